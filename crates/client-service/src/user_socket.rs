//! The socket at which a service takes commands of users who are not root.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, chown};
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::net::{UnixListener, UnixStream};

/// Pause after the kernel had no descriptor or memory for a new connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Shortest interval between lines about refused users.
pub(crate) const REFUSAL_INTERVAL: Duration = Duration::from_secs(1);

/// The socket, which root and the group may open.
pub(crate) fn listen(path: &Path, group: Option<u32>) -> anyhow::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                bail!("a service runs already, at {}", path.display());
            }
            fs::remove_file(path).with_context(|| format!("can't remove {}", path.display()))?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        _ => bail!("{} is in the way of the socket", path.display()),
    }
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).with_context(|| format!("can't make {}", directory.display()))?;
    }
    trusted_path::check(path)?;
    let listener = StdListener::bind(path).with_context(|| format!("can't listen at {}", path.display()))?;
    let mode = if group.is_some() { 0o660 } else { 0o600 };
    let restricted = chown(path, Some(rustix::process::geteuid().as_raw()), group)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)));
    restricted.with_context(|| format!("can't restrict {}", path.display()))?;
    listener.set_nonblocking(true)?;
    Ok(UnixListener::from_std(listener)?)
}

/// The next connection. Safe to cancel.
pub(crate) async fn accepted(listener: &UnixListener) -> UnixStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                tracing::warn!(%error, "can't accept on the socket of users");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[tokio::test]
    async fn the_socket_is_the_groups_alone_and_no_other_services() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("run/socket");
        let listener = listen(&path, None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let error = listen(&path, None).unwrap_err().to_string();
        assert!(error.contains("runs already"), "{error}");
        drop(listener);
        let group = rustix::process::getegid().as_raw();
        let _listener = listen(&path, Some(group)).unwrap();
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.mode() & 0o777, found.gid()), (0o660, group));
        let file = place.path().join("file");
        fs::write(&file, "kept").unwrap();
        assert!(listen(&file, None).is_err());
        assert_eq!(fs::read_to_string(file).unwrap(), "kept");
    }
}
