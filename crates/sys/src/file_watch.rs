//! Notices when a file is replaced, written or removed, by its directory: a rename gives the name
//! to another file.

use std::ffi::{CString, OsStr};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::io::unix::AsyncFd;

pub struct FileWatch {
    events: AsyncFd<OwnedFd>,
    name: CString,
}

impl FileWatch {
    /// Watches `path`, within the current tokio runtime.
    ///
    /// # Errors
    /// If the kernel watches no more, or there is no such directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        let directory = path.parent().unwrap_or(Path::new("/"));
        let name = CString::new(path.file_name().unwrap_or(OsStr::new("")).as_bytes())?;
        let events = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let changes = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::CLOSE_WRITE;
        inotify::add_watch(&events, directory, changes)?;
        // SAFETY: an owned descriptor stays open, and is the same one, until the value is dropped.
        let events = unsafe { AsyncFd::register(events) }?;
        Ok(Self { events, name })
    }

    /// Waits for the next change. Safe to cancel; several may come for one.
    ///
    /// # Errors
    /// If the kernel does not watch any more.
    pub async fn changed(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.events.readable().await?;
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut events = inotify::Reader::new(self.events.get_ref(), &mut buffer);
            let is_ours = loop {
                match events.next() {
                    // Reports are lost, or the directory is gone.
                    Ok(event)
                        if event.events().intersects(ReadFlags::QUEUE_OVERFLOW | ReadFlags::IGNORED) =>
                    {
                        break true;
                    }
                    Ok(event) if event.file_name() == Some(self.name.as_c_str()) => break true,
                    Ok(_) => {}
                    Err(rustix::io::Errno::WOULDBLOCK) => break false,
                    Err(errno) => return Err(errno.into()),
                }
            };
            if is_ours {
                return Ok(());
            }
            ready.clear_ready();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn every_way_to_change_a_file_is_noticed_and_no_other_file() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("resolv.conf"), directory.path().join("other"));
        let mut watch = FileWatch::open(&path).unwrap();
        let changes: [&dyn Fn() -> io::Result<()>; 5] = [
            &|| fs::write(&path, "new"),
            &|| fs::write(&path, "written in place"),
            &|| fs::write(&other, "x").and_then(|()| fs::rename(&other, &path)),
            &|| fs::remove_file(&path),
            &|| std::os::unix::fs::symlink("elsewhere", &path),
        ];
        for (number, change) in changes.iter().enumerate() {
            change().unwrap();
            let noticed = tokio::time::timeout(Duration::from_secs(30), watch.changed()).await;
            noticed.unwrap_or_else(|_| panic!("change {number}")).unwrap();
            // More events of the same change.
            while tokio::time::timeout(Duration::from_millis(1), watch.changed()).await.is_ok() {}
        }
        fs::write(&other, "x").unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(20), watch.changed()).await.is_err());
    }
}
