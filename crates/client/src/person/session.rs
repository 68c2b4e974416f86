//! From where people work on this machine: the peers of sessions over SSH.
//!
//! A file that can't be read counts as absent.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// Processes above this one that are looked at.
const ANCESTORS: usize = 32;
/// Where logind writes down the sessions of this machine.
const SESSIONS: &str = "/run/systemd/sessions";
/// Sessions of it that are looked at.
const MAX_SESSIONS: usize = 1_024;

/// The peers that `SSH_CONNECTION` names, here and in the processes above: sudo takes it out.
pub fn peers() -> impl Iterator<Item = SocketAddr> {
    let parent = |pid: &u32| -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        line.trim().parse().ok().filter(|pid| *pid > 1)
    };
    let processes = std::iter::successors(Some(std::process::id()), parent).take(ANCESTORS);
    processes.filter_map(|pid| peer_of(&fs::read(format!("/proc/{pid}/environ")).ok()?))
}

/// The addresses from which people are logged in, by logind's word.
pub(crate) fn logged_in_from() -> Vec<IpAddr> {
    of_directory(Path::new(SESSIONS))
}

fn of_directory(directory: &Path) -> Vec<IpAddr> {
    let entries = fs::read_dir(directory).into_iter().flatten().take(MAX_SESSIONS).flatten();
    entries.filter_map(|entry| host_of(&fs::read_to_string(entry.path()).ok()?)).collect()
}

fn host_of(session: &str) -> Option<IpAddr> {
    let value = |key: &str| session.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let is_there = value("REMOTE") == Some("1") && value("STATE") != Some("closing");
    value("REMOTE_HOST").filter(|_| is_there).and_then(plain)
}

fn peer_of(environment: &[u8]) -> Option<SocketAddr> {
    let entries = environment.split(|byte| *byte == 0);
    let value = entries.filter_map(|entry| entry.strip_prefix(b"SSH_CONNECTION=")).next()?;
    let mut words = std::str::from_utf8(value).ok()?.split(' ');
    Some(SocketAddr::new(plain(words.next()?)?, words.next()?.parse().ok()?))
}

/// An address, without the interface that it is at, and an IPv4 address as such.
fn plain(text: &str) -> Option<IpAddr> {
    Some(text.split('%').next()?.parse::<IpAddr>().ok()?.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_found_by_its_peer() {
        let peer = |address: &str, port| Some(SocketAddr::new(address.parse().unwrap(), port));
        let environment = b"PATH=/bin\0SSH_CONNECTION=192.0.2.7 50123 192.0.2.1 22\0HOME=/root\0";
        assert_eq!(peer_of(environment), peer("192.0.2.7", 50_123));
        assert_eq!(peer_of(b"SSH_CONNECTION=::ffff:192.0.2.7 1 ::1 22\0"), peer("192.0.2.7", 1));
        assert_eq!(peer_of(b"SSH_CONNECTION=fe80::1%eth0 1 fe80::2%eth0 22\0"), peer("fe80::1", 1));
        for none in
            [&b""[..], b"SSH_CONNECTION=\0", b"SSH_CONNECTION=here 1\0", b"XSSH_CONNECTION=192.0.2.7 1\0"]
        {
            assert_eq!(peer_of(none), None);
        }
    }

    #[test]
    fn a_login_session_is_found_by_its_remote_host() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        write("1", "UID=0\nSTATE=active\nREMOTE=1\nTYPE=tty\nREMOTE_HOST=192.0.2.7\n");
        write("2", "UID=0\nSTATE=closing\nREMOTE=1\nREMOTE_HOST=192.0.2.8\n");
        write("3", "UID=0\nSTATE=active\nREMOTE=0\nREMOTE_HOST=192.0.2.9\n");
        write("4", "STATE=active\nREMOTE=1\nREMOTE_HOST=host.example\n");
        write("5", "");
        fs::create_dir(directory.path().join("6.ref")).unwrap();
        assert_eq!(of_directory(directory.path()), [IpAddr::from([192, 0, 2, 7])]);
        assert!(of_directory(&directory.path().join("none")).is_empty());
    }
}
