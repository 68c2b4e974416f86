//! Sockets of the portal's relays, each of which carries the datagrams of one client's TCP
//! connection to the gateway's port and back.
//!
//! Invariants: a socket sends to the gateway's port and receives from there, and stays on the
//! loopback device whatever the portal does with it. The portal gets it once the worker knows whose
//! datagrams come from there. Their number and rate are bounded, since the portal is not trusted;
//! that it names the client's true address is.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use vpnd_sys::allowance::Allowance;
use vpnd_sys::clock::now;

const DEVICE: &[u8] = b"lo";
/// Bytes of datagrams that wait for the portal at most, and for the gateway.
const BUFFER: usize = 1 << 20;

/// A relay.
struct Relay {
    /// Where its datagrams come from.
    here: SocketAddr,
    /// Until the worker knows it.
    socket: Option<OwnedFd>,
}

/// The relays of one portal process, by their numbers.
pub(super) struct Relays {
    /// The gateway's port, as this machine reaches it.
    port: SocketAddr,
    limit: usize,
    relays: BTreeMap<u64, Relay>,
    allowance: Allowance,
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoSocket {
    #[error("the portal asks for more than any portal needs")]
    TooMany,
    #[error("the system gives none: {0}")]
    Io(#[from] io::Error),
}

impl Relays {
    /// `listen` is where the gateway's port is.
    pub(super) fn new(listen: SocketAddr, limit: u32) -> Self {
        let host = if listen.ip().is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { listen.ip() };
        Self {
            port: SocketAddr::new(host, listen.port()),
            limit: limit as usize,
            relays: BTreeMap::new(),
            allowance: Allowance::new(1_024, Duration::from_millis(2)),
        }
    }

    /// Makes the socket of a relay; returns its address.
    pub(super) fn begin(&mut self, number: u64) -> Result<SocketAddr, NoSocket> {
        let allowed = self.relays.len() < self.limit && self.allowance.take(now());
        if !allowed || self.relays.contains_key(&number) {
            return Err(NoSocket::TooMany);
        }
        let (socket, here) = self.unused(|| connected(self.port))?;
        self.relays.insert(number, Relay { here, socket: Some(socket) });
        Ok(here)
    }

    /// A socket at an address of no relay whose end is not known yet: the portal may have closed
    /// that one's already.
    fn unused(
        &self,
        mut make: impl FnMut() -> io::Result<(OwnedFd, SocketAddr)>,
    ) -> io::Result<(OwnedFd, SocketAddr)> {
        // Open until there is another, so that the system gives no port twice.
        let mut used = Vec::new();
        loop {
            let (socket, here) = make()?;
            if self.relays.values().all(|relay| relay.here != here) {
                return Ok((socket, here));
            }
            used.push(socket);
        }
    }

    /// The worker knows the relay at this address: its number and socket, for the portal.
    pub(super) fn known(&mut self, here: SocketAddr) -> Option<(u64, OwnedFd)> {
        let mut relays = self.relays.iter_mut();
        relays.find_map(|(number, relay)| Some((*number, relay.socket.take_if(|_| relay.here == here)?)))
    }

    /// A relay is over; returns its address.
    pub(super) fn end(&mut self, number: u64) -> Option<SocketAddr> {
        self.relays.remove(&number).map(|relay| relay.here)
    }

    /// All relays are over; returns their addresses.
    pub(super) fn end_all(&mut self) -> impl Iterator<Item = SocketAddr> + use<> {
        std::mem::take(&mut self.relays).into_values().map(|relay| relay.here)
    }
}

/// A socket that is connected to this port, and its address.
fn connected(port: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let own: IpAddr = if port.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    let socket = Socket::new(Domain::for_address(port), Type::DGRAM, Some(Protocol::UDP))?;
    // Without it the portal could choose another way for what it sends, by IP options.
    socket.bind_device(Some(DEVICE))?;
    socket.set_recv_buffer_size(BUFFER)?;
    socket.set_send_buffer_size(BUFFER)?;
    socket.bind(&SocketAddr::new(own, 0).into())?;
    socket.connect(&port.into())?;
    socket.set_nonblocking(true)?;
    let local = socket.local_addr()?.as_socket();
    let local = local.ok_or_else(|| io::Error::other("the kernel names no internet address"))?;
    Ok((socket.into(), local))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn relay_sockets_of_the_portal_are_limited_and_registered() {
        let gateway = UdpSocket::bind("0.0.0.0:0").unwrap();
        let mut relays = Relays::new(gateway.local_addr().unwrap(), 2);
        let address = relays.begin(7).unwrap();
        assert!(address.ip().is_loopback());
        assert!(matches!(relays.begin(7), Err(NoSocket::TooMany)), "the number is taken");
        let other = relays.begin(8).unwrap();
        assert!(matches!(relays.begin(9), Err(NoSocket::TooMany)), "there are two");
        assert!(relays.known(([127, 0, 0, 1], 1).into()).is_none());
        let (number, socket) = relays.known(other).unwrap();
        assert!(number == 8 && relays.known(other).is_none(), "once");
        UdpSocket::from(socket).send(b"x").unwrap();
        assert_eq!(gateway.recv_from(&mut [0; 8]).unwrap(), (1, other));
        assert_eq!((relays.end(7), relays.end(7)), (Some(address), None));
        assert!(relays.begin(9).is_ok());
    }

    #[test]
    fn a_port_is_not_used_again_before_the_end_of_its_relay_is_known() {
        let gateway = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut relays = Relays::new(gateway.local_addr().unwrap(), 2);
        let address = relays.begin(7).unwrap();
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let given = |relays: &Relays| {
            // The system gives the same port again, as it may once the portal has closed the
            // socket.
            let mut next = [address, at(1), at(2)].into_iter();
            let socket = || Ok((UdpSocket::bind("127.0.0.1:0")?.into(), next.next().unwrap()));
            relays.unused(socket).unwrap().1
        };
        assert_eq!(given(&relays), at(1));
        relays.end(7);
        assert_eq!(given(&relays), address);
    }

    #[test]
    fn relays_reach_the_port_at_its_listening_address() {
        let port = |listen: &str| Relays::new(listen.parse().unwrap(), 1).port.to_string();
        assert_eq!(port("0.0.0.0:4433"), "127.0.0.1:4433");
        assert_eq!(port("[::]:4433"), "127.0.0.1:4433", "it takes both");
        assert_eq!(port("192.0.2.1:4433"), "192.0.2.1:4433");
        assert_eq!(port("[2001:db8::1]:4433"), "[2001:db8::1]:4433");
    }
}
