//! The addresses of this machine, and the ports that it takes for its connections.
//!
//! This module must not know what a configuration says.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// Addresses and ports that are the machine's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalPorts {
    pub addresses: Vec<Ipv4Addr>,
    /// The first and the last port that the kernel gives to connections
    /// (`net.ipv4.ip_local_port_range`).
    pub range: Option<(u16, u16)>,
    /// Ranges of ports among them that it gives to none (`net.ipv4.ip_local_reserved_ports`).
    pub reserved: Vec<(u16, u16)>,
}

/// The addresses by which other machines may reach this one.
#[must_use]
pub fn reachable_addresses() -> Vec<IpAddr> {
    let address = |interface: nix::ifaddrs::InterfaceAddress| -> Option<IpAddr> {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
    };
    let is_reachable = |address: &IpAddr| match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    };
    nix::ifaddrs::getifaddrs().into_iter().flatten().filter_map(address).filter(is_reachable).collect()
}

/// The addresses by which this machine sends to networks elsewhere, one of each IP version in which
/// it has a route there.
pub(crate) fn outward_addresses() -> impl Iterator<Item = IpAddr> {
    // No host has these (RFC 5737, RFC 3849), and nothing is sent: the kernel chooses the sockets'
    // own addresses.
    let elsewhere: [IpAddr; 2] =
        [Ipv4Addr::new(203, 0, 113, 1).into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()];
    elsewhere.into_iter().filter_map(|elsewhere| {
        let any: IpAddr = match elsewhere {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((elsewhere, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    })
}

impl LocalPorts {
    /// Those of this machine. What can't be read counts as not there.
    #[must_use]
    pub fn read() -> Self {
        let setting =
            |name: &str| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
        let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
        let address =
            |interface: nix::ifaddrs::InterfaceAddress| Some(interface.address?.as_sockaddr_in()?.ip());
        Self {
            addresses: interfaces.filter_map(address).collect(),
            range: range(&setting("ip_local_port_range")),
            reserved: reserved(&setting("ip_local_reserved_ports")),
        }
    }

    /// The first of these ports that the kernel may give to a connection of the machine.
    pub(crate) fn taken_of(&self, ports: (u16, u16)) -> Option<u16> {
        let (first, last) = self.range?;
        let is_reserved =
            |port: &u16| self.reserved.iter().any(|(first, last)| (first..=last).contains(&port));
        (first.max(ports.0)..=last.min(ports.1)).find(|port| !is_reserved(port))
    }
}

fn range(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.trim().split_once(char::is_whitespace)?;
    Some((first.parse().ok()?, last.trim().parse().ok()?))
}

fn reserved(text: &str) -> Vec<(u16, u16)> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    text.trim().split(',').filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_the_machine_are_those_of_the_range_that_are_not_reserved() {
        let machine = |text: &str| LocalPorts {
            range: range("32768\t60999\n"),
            reserved: reserved(text),
            ..LocalPorts::default()
        };
        for (text, ports, taken) in [
            ("\n", (10_000, 32_767), None),
            ("\n", (10_000, 32_768), Some(32_768)),
            ("\n", (61_000, 65_535), None),
            ("\n", (60_000, 65_535), Some(60_000)),
            ("32768-39999,50000\n", (30_000, 39_999), None),
            ("32768-39999,50000\n", (30_000, 40_000), Some(40_000)),
            ("32768-39999,50000\n", (50_000, 50_001), Some(50_001)),
        ] {
            assert_eq!(machine(text).taken_of(ports), taken, "{text:?} {ports:?}");
        }
        assert_eq!(LocalPorts::default().taken_of((1, 65_535)), None);
        let ports = LocalPorts::read();
        assert!(ports.range.is_some() && ports.addresses.contains(&Ipv4Addr::LOCALHOST), "{ports:?}");
    }
}
