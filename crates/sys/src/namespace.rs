//! The identity of the network namespace of the calling thread.

use std::io;
use std::os::fd::AsRawFd as _;

use nix::libc;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// A number that no other network namespace has until the machine restarts, which inode numbers are
/// not.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 5.14.
pub fn cookie() -> io::Result<u64> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let (mut cookie, mut len) = (0_u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: the option writes up to `len` bytes to `cookie`, which is as long, and both live
    // until the call has returned.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    if status == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_namespace_async;

    #[test]
    fn each_namespace_has_a_cookie_of_its_own() {
        let own = cookie().unwrap();
        assert_eq!(cookie().unwrap(), own);
        in_namespace_async(async move || assert_ne!(cookie().unwrap(), own));
    }
}
