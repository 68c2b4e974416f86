//! The files by which names are looked up, of which the sandbox opens those that were there at the
//! start. Where another has taken the place of one, only a new process can read it.

use std::fs::File;
use std::io;
use std::time::Duration;

use vpnd_ipc::child::RESOLVER_FILES;

/// Interval at which they are looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// Returns the first that another file takes the place of. To be called once the sandbox is on: a
/// file that is closed to this process from the start would be closed to the next one, too.
pub(super) async fn replaced() -> &'static str {
    let open: Vec<_> = RESOLVER_FILES.into_iter().filter(|path| !is_closed(path)).collect();
    loop {
        tokio::time::sleep(INTERVAL).await;
        if let Some(path) = open.iter().find(|path| is_closed(path)) {
            return path;
        }
    }
}

fn is_closed(path: &str) -> bool {
    File::open(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}
