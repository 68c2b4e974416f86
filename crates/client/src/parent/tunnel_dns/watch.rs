//! When the machine's name servers are to be looked at: each second, and soon after `resolv.conf`
//! was written, or what systemd-resolved remembers of the tunnel.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::SETTLES;
use vpnd_sys::dns::DnsSystem;
use vpnd_sys::file_watch::FileWatch;

const INTERVAL: Duration = Duration::from_secs(1);

pub(in crate::parent) struct DnsWatch {
    /// Files without a watch, because the kernel has none left or their directory is not there, are
    /// looked at each second alone.
    resolv_conf: Option<FileWatch>,
    memory: Option<FileWatch>,
    next: Instant,
}

impl DnsWatch {
    /// Begins within the current tokio runtime, for the tunnel of this number.
    pub(in crate::parent) fn open(interface_index: u32) -> Self {
        let system = DnsSystem::default();
        let [resolv_conf, memory] =
            [system.resolv_conf.clone(), system.memory_of(interface_index)].map(|path| {
                let watch = FileWatch::open(&path);
                watch.inspect_err(|error| tracing::debug!(%error, "{} is not watched", path.display())).ok()
            });
        Self { resolv_conf, memory, next: Instant::now() + INTERVAL }
    }

    /// Waits until it is time. Safe to cancel.
    pub(in crate::parent) async fn due(&mut self) {
        loop {
            tokio::select! {
                () = sleep_until(self.next) => break,
                () = changed(&mut self.resolv_conf) => self.soon(),
                () = changed(&mut self.memory) => self.soon(),
            }
        }
        self.next = Instant::now() + INTERVAL;
    }

    /// Something is not settled yet.
    pub(in crate::parent) fn soon(&mut self) {
        self.next = self.next.min(Instant::now() + SETTLES);
    }
}

/// Waits for a change of the file; never returns if it is not watched.
async fn changed(file: &mut Option<FileWatch>) {
    if let Some(watch) = file
        && watch.changed().await.is_ok()
    {
        return;
    }
    *file = None;
    std::future::pending().await
}
