//! When the machine's name servers are to be looked at: soon after `resolv.conf` was written, or
//! what systemd-resolved remembers of the tunnel; and now and then ([`Pace`]), or each second where
//! a file can't be watched.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::changes::SETTLES;
use crate::parent::pace::Pace;
use vpnd_sys::dns::DnsSystem;
use vpnd_sys::file_watch::FileWatch;

pub(in crate::parent) struct DnsWatch {
    resolv_conf: Watched,
    /// Where `resolv.conf` is a link to.
    target: Watched,
    memory: Watched,
    pace: Pace,
}

impl DnsWatch {
    /// Begins within the current tokio runtime, for the tunnel of this number.
    pub(in crate::parent) fn open(interface_index: u32) -> Self {
        let system = DnsSystem::default();
        let memory = Watched::open(system.memory_of(interface_index));
        let target = Watched::open(target_of(&system.resolv_conf));
        let resolv_conf = Watched::open(system.resolv_conf.clone());
        Self { resolv_conf, target, memory, pace: Pace::new() }
    }

    /// Waits until it is time. Safe to cancel.
    pub(in crate::parent) async fn due(&mut self) {
        loop {
            if [&self.resolv_conf, &self.target, &self.memory].iter().any(|file| file.watch.is_none()) {
                self.pace.sign();
            }
            tokio::select! {
                () = self.pace.due() => return,
                () = self.resolv_conf.changed() => {
                    self.resolv_conf.reopen();
                    self.target = Watched::open(target_of(&self.resolv_conf.path));
                }
                () = self.target.changed() => self.target.reopen(),
                () = self.memory.changed() => self.memory.reopen(),
            }
            self.pace.sign();
            self.soon();
        }
    }

    /// Something is not settled yet.
    pub(in crate::parent) fn soon(&mut self) {
        self.pace.within(SETTLES);
    }

    /// Something is not as it should be.
    pub(in crate::parent) fn sign(&mut self) {
        self.pace.sign();
    }
}

/// The file that this one is a link to, or itself.
fn target_of(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// A file, and the watch of it; `None` if the kernel has none left.
struct Watched {
    path: PathBuf,
    watch: Option<FileWatch>,
}

impl Watched {
    fn open(path: PathBuf) -> Self {
        let watch = nearest(&path);
        Self { path, watch }
    }

    /// After a change: its directory may be another one now.
    fn reopen(&mut self) {
        self.watch = nearest(&self.path);
    }

    /// Waits for a change; never returns if it is not watched.
    async fn changed(&mut self) {
        if let Some(watch) = &mut self.watch
            && watch.changed().await.is_ok()
        {
            return;
        }
        self.watch = None;
        std::future::pending().await
    }
}

/// A watch of the file, or of the nearest directory above it that is missing.
fn nearest(path: &Path) -> Option<FileWatch> {
    for path in path.ancestors() {
        match FileWatch::open(path) {
            Ok(watch) => return Some(watch),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => {
                tracing::debug!(%error, "{} is not watched", path.display());
                return None;
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_file_is_watched_before_its_directories_are_there_and_after_they_were_made_again() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("resolve/netif/5");
        let mut watched = Watched::open(path.clone());
        let mut notices = async |what: &str| {
            let noticed = timeout(Duration::from_secs(30), watched.changed()).await;
            noticed.unwrap_or_else(|_| panic!("{what}"));
            watched.reopen();
        };
        for _ in 0..2 {
            fs::create_dir(place.path().join("resolve")).unwrap();
            notices("its directory's directory").await;
            fs::create_dir(place.path().join("resolve/netif")).unwrap();
            notices("its directory").await;
            fs::write(&path, "x").unwrap();
            notices("itself").await;
            fs::remove_dir_all(place.path().join("resolve")).unwrap();
            notices("their end").await;
        }
    }
}
