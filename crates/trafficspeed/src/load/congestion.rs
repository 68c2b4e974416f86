//! The congestion control of measured connections: always named, never what a host happens to have
//! as its default, since one stream over the same path may carry three times as much under another
//! one.

use std::fmt;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// Longest name with its closing zero, as the kernel has it (`TCP_CA_NAME_MAX`).
const MAX_NAME_BYTES: usize = 16;
/// Linux's own default since 2.6.19, and the only one beside Reno that every kernel has.
const DEFAULT: &str = "cubic";

/// The name of one congestion control algorithm, padded with zeros.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CongestionControl([u8; MAX_NAME_BYTES]);

impl CongestionControl {
    pub fn name(&self) -> &str {
        let len = self.0.iter().position(|byte| *byte == 0).unwrap_or(MAX_NAME_BYTES);
        std::str::from_utf8(&self.0[..len]).expect("only ASCII gets in")
    }

    /// The congestion control of TCP without a choice in a namespace: this one if the machine lets
    /// namespaces choose it (its own default, or one of `net.ipv4.tcp_allowed_congestion_control`),
    /// otherwise the machine's default.
    #[must_use]
    pub fn in_namespaces(self) -> Self {
        let read =
            |name: &str| fs::read_to_string(format!("/proc/sys/net/ipv4/tcp_{name}")).unwrap_or_default();
        let allowed = read("allowed_congestion_control").split_whitespace().any(|name| name == self.name());
        let default = read("congestion_control").trim().parse();
        if allowed { self } else { default.unwrap_or(self) }
    }

    /// Makes it that of a socket. Connections that a listening socket accepts inherit it.
    ///
    /// # Errors
    /// The kernel's, `NotFound` if it has no such algorithm.
    pub fn set<'s>(&self, socket: impl Into<SockRef<'s>>) -> io::Result<()> {
        socket.into().set_tcp_congestion(self.name().as_bytes())
    }

    /// A connection that has it from its first segment on.
    pub fn connect(&self, peer: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
        let socket = Socket::new(Domain::for_address(peer), Type::STREAM, Some(Protocol::TCP))?;
        self.set(&socket)?;
        socket.connect_timeout(&peer.into(), timeout)?;
        Ok(socket.into())
    }

    /// The congestion control of a socket.
    pub fn of<'s>(socket: impl Into<SockRef<'s>>) -> io::Result<Self> {
        let padded = socket.into().tcp_congestion()?;
        let name = String::from_utf8_lossy(&padded);
        name.trim_end_matches('\0').parse().map_err(|reason: String| io::Error::other(reason))
    }
}

impl Default for CongestionControl {
    fn default() -> Self {
        DEFAULT.parse().expect("it is a name")
    }
}

impl FromStr for CongestionControl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        if text.is_empty() || text.len() >= MAX_NAME_BYTES || !text.bytes().all(plain) {
            return Err(format!("`{text}` names no congestion control; for example cubic, bbr or reno"));
        }
        let mut name = [0; MAX_NAME_BYTES];
        name[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Self(name))
    }
}

impl TryFrom<String> for CongestionControl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<CongestionControl> for String {
    fn from(value: CongestionControl) -> Self {
        value.name().to_owned()
    }
}

impl fmt::Display for CongestionControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for CongestionControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn a_name_is_what_the_kernel_can_hold() {
        assert_eq!(CongestionControl::default().name(), "cubic");
        for wrong in ["", "Cubic", "a b", "sixteen-letters-", "c\u{fc}bic"] {
            assert!(wrong.parse::<CongestionControl>().is_err(), "{wrong}");
        }
        let text = serde_json::to_string(&CongestionControl::default()).unwrap();
        assert_eq!(text, "\"cubic\"");
        assert!(serde_json::from_str::<CongestionControl>("\"../x\"").is_err());
    }

    #[test]
    fn accepted_connections_inherit_it_whatever_the_host_prefers() {
        for name in ["reno", "cubic"] {
            let wanted: CongestionControl = name.parse().unwrap();
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            wanted.set(&listener).unwrap();
            let peer = listener.local_addr().unwrap();
            let connected = wanted.connect(peer, Duration::from_secs(5)).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            assert_eq!(CongestionControl::of(&accepted).unwrap(), wanted);
            assert_eq!(CongestionControl::of(&connected).unwrap(), wanted);
        }
    }
}
