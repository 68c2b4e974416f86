//! Buffers, alike for every system: what its UDP sockets and the queues of its tunnel devices
//! hold.
//!
//! Left alone, each program takes what its makers chose, from some 200 KiB of the kernel's own to
//! several MiB, and a comparison would partly be one of these numbers. So once a system is up, each
//! of its sockets and devices gets the same. The sizes are those that vpnd takes by itself, and
//! vpnd is measured as it is delivered. They are of each socket and of each queue: a program with a
//! socket and a queue for each core has as many times that, which is part of its design.
//!
//! The kernel's own defaults (net.core.rmem_default and its kin) belong to the whole machine and
//! not to a namespace. So sockets are changed from outside, through duplicates of their descriptors
//! (pidfd_getfd(2)), and devices inside their namespaces. INVARIANT: nothing outside the lab
//! changes, so nothing has to be recorded or undone. TCP sockets are left alone: a size that is set
//! ends the kernel's own sizing of their windows.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::os::unix::fs::MetadataExt;

use rustix::net::sockopt;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::SystemError;
use crate::lab::device::Tunnel;
use crate::lab::namespace::Namespace;
use crate::lab::{Lab, LabError};
use crate::observe::process_ids;

/// Bytes that each UDP socket may hold, in each direction, as a program would ask for them.
pub const UDP_BYTES: usize = 8 << 20;
/// Packets that wait at most in each tunnel device of the gateway.
pub const GATEWAY_QUEUE: u32 = 2_000;
pub const CLIENT_QUEUE: u32 = 500;

/// A remark for a reader of the figures; the same for all systems.
pub const METHOD: &str = "each UDP socket of a VPN has receive and send buffers of 8 MiB, and each queue of its TUN and TAP devices \
                          2,000 packets at the gateway and 500 at a client (a super-packet is one), whatever its programs chose; \
                          those with a socket and a queue for each core, such as vpnd, have as many; TCP sockets keep the kernel's \
                          own sizing";

/// Gives a system that is up its buffers. Returns in words what still has others.
pub fn equalise(lab: &Lab) -> Result<Option<String>, SystemError> {
    set_queues(lab)?;
    Ok(enlarge_sockets(lab)?)
}

/// Gives all tunnel devices their queues, those included that were made since the last time.
pub fn set_queues(lab: &Lab) -> Result<(), LabError> {
    let clients = lab.clients().iter().map(|client| (client, CLIENT_QUEUE));
    for (namespace, packets) in std::iter::once((lab.gateway(), GATEWAY_QUEUE)).chain(clients) {
        for tunnel in Tunnel::all(namespace)?.into_iter().filter(|tunnel| tunnel.queue != packets) {
            tunnel.set_queue(namespace, packets)?;
        }
    }
    Ok(())
}

/// Gives all UDP sockets in the lab their buffers; the system is the only one that has any by then.
fn enlarge_sockets(lab: &Lab) -> Result<Option<String>, LabError> {
    let mut left = udp_sockets(lab)?;
    let found = left.len();
    let mut failure = None;
    for pid in processes(lab) {
        for (descriptor, inode) in sockets_of(pid) {
            if !left.contains(&inode) {
                continue;
            }
            match enlarge(pid, descriptor, inode) {
                Ok(()) => {
                    left.remove(&inode);
                }
                Err(error) => failure = Some(error),
            }
        }
    }
    if !left.is_empty() {
        // A socket that was closed meanwhile has no buffers.
        let still = udp_sockets(lab)?;
        left.retain(|inode| still.contains(inode));
    }
    Ok(exception(left.len(), found, failure.as_ref()))
}

fn exception(left: usize, found: usize, reason: Option<&io::Error>) -> Option<String> {
    let reason = reason.map_or_else(|| "no program holds them".to_owned(), ToString::to_string);
    (left > 0).then(|| {
        format!("{left} of its {found} UDP sockets have other buffers than those of all systems: {reason}")
    })
}

fn namespaces(lab: &Lab) -> impl Iterator<Item = &Namespace> {
    std::iter::once(lab.gateway()).chain(lab.clients())
}

/// The processes inside the gateway and the clients.
fn processes(lab: &Lab) -> Vec<u32> {
    let own: HashSet<u64> = namespaces(lab).filter_map(Namespace::identity).collect();
    let is_inside = |pid: &u32| {
        fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|namespace| own.contains(&namespace.ino()))
    };
    process_ids().into_iter().filter(is_inside).collect()
}

/// The inodes of all UDP sockets inside the gateway and the clients.
fn udp_sockets(lab: &Lab) -> Result<HashSet<u64>, LabError> {
    let mut found = HashSet::new();
    for namespace in namespaces(lab) {
        let action = format!("reading the UDP sockets of namespace {}", namespace.name());
        // The thread's own view: /proc/net would be that of the program's first thread, which is
        // outside.
        let read = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        let text = namespace.within(|| {
            let v4 = read("udp").map_err(|source| LabError::System { action, source })?;
            // A kernel without IPv6 has no such file.
            Ok(v4 + &read("udp6").unwrap_or_default())
        })?;
        found.extend(text.lines().filter_map(inode_of_line));
    }
    Ok(found)
}

/// The inode in a line of /proc/net/udp; `None` for its head, and for a socket that is being
/// closed.
fn inode_of_line(line: &str) -> Option<u64> {
    line.split_whitespace().nth(9)?.parse().ok().filter(|inode| *inode != 0)
}

/// The sockets of a process: descriptor and inode.
fn sockets_of(pid: u32) -> Vec<(RawFd, u64)> {
    // A process that has ended meanwhile has none.
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let socket = |entry: fs::DirEntry| {
        let descriptor = entry.file_name().to_str()?.parse().ok()?;
        let shown = fs::read_link(entry.path()).ok()?;
        let inode = shown.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
        Some((descriptor, inode))
    };
    entries.flatten().filter_map(socket).collect()
}

/// Gives one socket of a process its buffers.
fn enlarge(pid: u32, descriptor: RawFd, inode: u64) -> io::Result<()> {
    let pid = Pid::from_raw(pid.cast_signed()).ok_or(io::ErrorKind::NotFound)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let socket = File::from(pidfd_getfd(process, descriptor, PidfdGetfdFlags::empty())?);
    if socket.metadata()?.ino() != inode {
        return Err(io::Error::other("the descriptor has become another's"));
    }
    set_buffers(&socket)
}

/// Sets both buffers beyond the machine's limit, and makes sure that they are as large.
fn set_buffers(socket: &impl AsFd) -> io::Result<()> {
    sockopt::set_socket_recv_buffer_size_force(socket, UDP_BYTES)?;
    sockopt::set_socket_send_buffer_size_force(socket, UDP_BYTES)?;
    let granted = sockopt::socket_recv_buffer_size(socket)?.min(sockopt::socket_send_buffer_size(socket)?);
    // The kernel counts its own overhead in and shows the double.
    if granted == 2 * UDP_BYTES {
        return Ok(());
    }
    Err(io::Error::other(format!("the kernel granted {granted} bytes instead of {}", 2 * UDP_BYTES)))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;
    use std::path::Path;

    use super::*;

    #[test]
    fn a_socket_is_found_in_its_process_and_gets_its_buffers_from_outside() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (own, descriptor) = (std::process::id(), socket.as_raw_fd());
        let inode = sockets_of(own).into_iter().find(|(number, _)| *number == descriptor).unwrap().1;
        let listed = fs::read_to_string("/proc/thread-self/net/udp").unwrap();
        assert!(listed.lines().filter_map(inode_of_line).any(|listed| listed == inode), "{listed}");
        let before = sockopt::socket_recv_buffer_size(&socket).unwrap();
        assert!(enlarge(own, descriptor, inode + 1).is_err(), "another socket");
        assert_eq!(sockopt::socket_recv_buffer_size(&socket).unwrap(), before);
        match enlarge(own, descriptor, inode) {
            Ok(()) => {
                assert_eq!(sockopt::socket_recv_buffer_size(&socket).unwrap(), 2 * UDP_BYTES);
                assert_eq!(sockopt::socket_send_buffer_size(&socket).unwrap(), 2 * UDP_BYTES);
            }
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "only root may: {error}"),
        }
    }

    #[test]
    fn the_inode_of_a_line_is_read_and_no_head_or_closing_socket() {
        let line = "10277: 0100007F:9651 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 29955 2 \
                    000000002ab2dd5b 0";
        assert_eq!(inode_of_line(line), Some(29_955));
        assert_eq!(inode_of_line(&line.replace("29955", "0")), None);
        let head = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref \
                    pointer drops";
        assert_eq!(inode_of_line(head), None);
    }

    #[test]
    fn what_could_not_be_changed_is_said_with_the_reason() {
        assert_eq!(exception(0, 3, None), None);
        let denied = io::Error::other("denied");
        let said = exception(1, 3, Some(&denied)).unwrap();
        assert_eq!(said, "1 of its 3 UDP sockets have other buffers than those of all systems: denied");
        assert!(exception(1, 1, None).unwrap().ends_with("no program holds them"));
    }

    #[test]
    fn the_sizes_are_those_of_the_words_and_those_that_vpnd_takes_by_itself() {
        let mib = UDP_BYTES >> 20;
        assert!(METHOD.contains(&format!("buffers of {mib} MiB")), "{METHOD}");
        assert!(METHOD.contains("2,000 packets at the gateway and 500 at a client"), "{METHOD}");
        assert_eq!((GATEWAY_QUEUE, CLIENT_QUEUE), (2_000, 500));
        let vpnd = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("sys").join("src");
        for (file, line) in [
            ("tun.rs", format!("GATEWAY_TX_QUEUE_LEN: u32 = {GATEWAY_QUEUE};")),
            ("tun.rs", format!("CLIENT_TX_QUEUE_LEN: u32 = {CLIENT_QUEUE};")),
            ("udp.rs", format!("DEFAULT_BUFFER_BYTES: usize = {mib} << 20;")),
        ] {
            let text = fs::read_to_string(vpnd.join(file)).unwrap();
            assert!(text.contains(&line), "vpnd has another value than {line}");
        }
    }
}
