//! The identity of the network namespace of the calling thread.

use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;

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

/// Whether the calling thread is in the network namespace of the machine, or of the container that
/// it takes for one: that of process 1. `None` if that can't be found out.
pub fn is_the_machines() -> Option<bool> {
    let own = fs::metadata("/proc/thread-self/ns/net").ok()?;
    if let Ok(first) = fs::metadata("/proc/1/ns/net") {
        return Some((own.dev(), own.ino()) == (first.dev(), first.ino()));
    }
    // A service with few privileges may look neither at process 1 nor, in a process that it has
    // started, at itself. By this it knows that process 1 has started it, in its own namespace.
    let service = std::env::var("SYSTEMD_EXEC_PID").ok()?.parse().ok()?;
    is_of_service(service, std::process::id(), std::os::unix::process::parent_id()).then_some(true)
}

/// Whether the process `own` is the service of process 1 that has this number, or was started by
/// it.
fn is_of_service(service: u32, own: u32, parent: u32) -> bool {
    (own == service && parent == 1) || (parent == service && service != 1)
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

    #[test]
    fn a_service_of_process_1_and_the_clients_that_it_starts_are_in_its_namespace() {
        for (own, parent) in [(10, 1), (11, 10)] {
            assert!(is_of_service(10, own, parent), "{own} {parent}");
        }
        // Another manager's service, another process of process 1, and one further down.
        for (service, own, parent) in [(10, 10, 9), (10, 12, 1), (10, 13, 12), (1, 12, 1)] {
            assert!(!is_of_service(service, own, parent), "{service} {own} {parent}");
        }
    }

    #[test]
    fn another_namespace_is_not_the_machines() {
        in_namespace_async(async || assert_ne!(is_the_machines(), Some(true)));
    }
}
