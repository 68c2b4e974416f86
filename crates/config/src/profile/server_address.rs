//! An address of a gateway in a profile.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};
use std::str::FromStr;

use super::DEFAULT_PORT;
use vpnd_pki::dns_name::DnsName;

/// A host name or address and a UDP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    /// A DNS name, or an address without brackets.
    pub host: String,
    pub port: u16,
}

impl ServerAddress {
    /// The address, if it needs no look-up.
    #[must_use]
    pub fn literal(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.host.parse().ok()?, self.port))
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.parse::<Ipv6Addr>() {
            Ok(address) => write!(f, "[{address}]:{}", self.port),
            Err(_) => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl FromStr for ServerAddress {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        if let Ok(address) = bare.parse::<Ipv6Addr>() {
            return Ok(Self { host: address.to_string(), port: DEFAULT_PORT });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().ok().filter(|port| *port != 0).ok_or(())?),
            None => (text, DEFAULT_PORT),
        };
        let host = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(inner) => inner.parse::<Ipv6Addr>().map_err(|_| ())?.to_string(),
            None => host.parse::<DnsName>()?.as_str().to_owned(),
        };
        Ok(Self { host, port })
    }
}

/// Text of a message about an address that is none.
pub const ADDRESS: &str =
    "a name or address with a port, such as \"vpn.example.org:4433\" or \"[2001:db8::1]:4433\"";

/// The addresses of `first`, and behind them those of `second` that are others.
#[must_use]
pub fn joined(first: &[ServerAddress], second: &[ServerAddress]) -> Vec<ServerAddress> {
    let mut all: Vec<ServerAddress> = Vec::with_capacity(first.len() + second.len());
    for address in first.iter().chain(second) {
        if !all.contains(address) {
            all.push(address.clone());
        }
    }
    all
}
