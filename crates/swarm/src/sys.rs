//! The operating system where no safe wrapper exists: the crate's only `unsafe`.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Has the runtime tell when `descriptor` is readable.
///
/// # Errors
/// If the system call fails.
///
/// # Panics
/// Outside a tokio runtime.
pub(crate) fn watch_readable(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` owns its open descriptor and always names the same one until it is
    // dropped.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?)
}
