//! Connections that are lost at the worst moment.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use crate::postgres::{Dial, Dialled};

/// Dials Unix sockets by a proxy that ends a connection at a COMMIT: the server does the work or
/// never learns of it, and its client is not told which.
pub struct LosesCommits {
    pub sockets: Vec<PathBuf>,
    /// Commits that are lost from now on.
    pub left: Arc<AtomicU32>,
    /// Whether the server is to learn of them.
    pub passes: bool,
    /// Fault before the client loses its connection.
    pub meanwhile: Arc<dyn Fn() + Send + Sync>,
}

impl Dial for LosesCommits {
    fn dial(&self, host: usize) -> io::Result<Dialled> {
        let (ours, theirs) = UnixStream::pair()?;
        let server = UnixStream::connect(&self.sockets[host])?;
        let (mut from_server, mut to_client) = (server.try_clone()?, ours.try_clone()?);
        let is_lost = Arc::new(AtomicBool::new(false));
        let loses = Arc::clone(&is_lost);
        thread::spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            while let Ok(count @ 1..) = from_server.read(&mut bytes) {
                if loses.load(Ordering::SeqCst) || to_client.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
            if !loses.load(Ordering::SeqCst) {
                let _ = to_client.shutdown(Shutdown::Both);
            }
        });
        let (left, passes, meanwhile) = (Arc::clone(&self.left), self.passes, Arc::clone(&self.meanwhile));
        thread::spawn(move || {
            let lose = |commit: &[u8]| {
                is_lost.store(true, Ordering::SeqCst);
                if passes {
                    (&server).write_all(commit)?;
                }
                meanwhile();
                ours.shutdown(Shutdown::Both)
            };
            let _ = pass_on(&ours, &server, &left, lose);
            let _ = server.shutdown(Shutdown::Both);
        });
        Ok(OwnedFd::from(theirs).into())
    }
}

fn pass_on(
    mut client: &UnixStream,
    mut server: &UnixStream,
    left: &AtomicU32,
    lose: impl FnOnce(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let count = client.read(&mut bytes)?;
        if count == 0 {
            return Ok(());
        }
        let is_commit = bytes[..count].windows(7).any(|part| part == b"COMMIT\0");
        let less = |left: u32| left.checked_sub(1);
        if is_commit && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
            return lose(&bytes[..count]);
        }
        server.write_all(&bytes[..count])?;
    }
}
