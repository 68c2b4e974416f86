//! ICMP errors about datagrams that a socket has sent (`IP_RECVERR`, `ip(7)`).
//!
//! INVARIANT: they are hints. Anyone who can guess the socket's port can forge them, so nothing is
//! given up because of one.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd as _;

use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt,
    sockopt::{Ipv4RecvErr, Ipv6RecvErr},
};
use tokio::io::Interest;

/// Errors that are taken from a queue at a time, so that a flood of them does not keep the reader
/// busy.
const MAX_AT_ONCE: usize = 64;

/// Room for control messages: the error comes after all others that the socket's user has enabled.
const CONTROL_LEN: usize = 512;

/// The reason why a datagram has not reached its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unreachable {
    /// Nothing listens on the port.
    Port,
    /// The host does not answer on its own link, or is unknown.
    Host,
    /// A router has no route.
    Network,
    /// A firewall forbids it.
    Prohibited,
}

impl Unreachable {
    /// By type and code of RFC 792 and RFC 1812.
    fn of_icmp(kind: u8, code: u8) -> Option<Self> {
        const DESTINATION_UNREACHABLE: u8 = 3;
        match (kind, code) {
            (DESTINATION_UNREACHABLE, 0 | 6 | 11) => Some(Self::Network),
            (DESTINATION_UNREACHABLE, 1 | 5 | 7 | 8 | 12) => Some(Self::Host),
            // A host without UDP, too.
            (DESTINATION_UNREACHABLE, 2 | 3) => Some(Self::Port),
            (DESTINATION_UNREACHABLE, 9 | 10 | 13..=15) => Some(Self::Prohibited),
            _ => None,
        }
    }

    /// By type and code of RFC 4443.
    fn of_icmpv6(kind: u8, code: u8) -> Option<Self> {
        const DESTINATION_UNREACHABLE: u8 = 1;
        match (kind, code) {
            (DESTINATION_UNREACHABLE, 0 | 2) => Some(Self::Network),
            (DESTINATION_UNREACHABLE, 1 | 5 | 6) => Some(Self::Prohibited),
            (DESTINATION_UNREACHABLE, 3) => Some(Self::Host),
            (DESTINATION_UNREACHABLE, 4) => Some(Self::Port),
            _ => None,
        }
    }
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Port => "port unreachable",
            Self::Host => "host unreachable",
            Self::Network => "network unreachable",
            Self::Prohibited => "administratively prohibited",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// The reason that it gives.
    pub reason: Unreachable,
    /// Its sender, which may be forged.
    pub reporter: Option<IpAddr>,
}

/// Collects ICMP errors about the datagrams of a socket, while other code reads and writes it. Ends
/// when the value is dropped, because an unread queue would take the room of datagrams.
///
/// Meanwhile any call on the socket may fail once with the error of an ICMP message.
pub struct IcmpErrors {
    socket: tokio::net::UdpSocket,
    ipv6: bool,
}

impl IcmpErrors {
    /// Starts for a socket of one protocol version, within the current tokio runtime.
    pub fn start(socket: &UdpSocket) -> io::Result<Self> {
        let socket = socket.try_clone()?;
        socket.set_nonblocking(true)?;
        let ipv6 = socket.local_addr()?.is_ipv6();
        let errors = Self { socket: tokio::net::UdpSocket::from_std(socket)?, ipv6 };
        errors.switch(true)?;
        Ok(errors)
    }

    /// The next error. Safe to cancel.
    ///
    /// # Errors
    /// If the system call fails; there are no more errors then.
    pub async fn next(&self) -> io::Result<IcmpError> {
        self.socket.async_io(Interest::ERROR, || self.take()).await
    }

    fn switch(&self, on: bool) -> io::Result<()> {
        let switched = if self.ipv6 {
            setsockopt(&self.socket, Ipv6RecvErr, &on)
        } else {
            setsockopt(&self.socket, Ipv4RecvErr, &on)
        };
        Ok(switched?)
    }

    /// Takes the next error about a datagram from the queue.
    fn take(&self) -> io::Result<IcmpError> {
        for _ in 0..MAX_AT_ONCE {
            // The start of the datagram that it is about comes with it, and is not looked at.
            let mut quoted = [0; 64];
            let mut space = vec![0; CONTROL_LEN];
            let mut parts = [IoSliceMut::new(&mut quoted)];
            let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
            let fd = self.socket.as_raw_fd();
            let message = recvmsg::<SockaddrStorage>(fd, &mut parts, Some(&mut space), flags)?;
            let error = message.cmsgs().ok().and_then(|mut messages| messages.find_map(read));
            if let Some(error) = error {
                return Ok(error);
            }
        }
        // It is this thread's turn again soon, because the queue has not been empty.
        Err(io::ErrorKind::Interrupted.into())
    }
}

impl Drop for IcmpErrors {
    fn drop(&mut self) {
        // Frees the queue as well. It can't fail: it was switched on.
        let _ = self.switch(false);
    }
}

fn read(message: ControlMessageOwned) -> Option<IcmpError> {
    match message {
        ControlMessageOwned::Ipv4RecvErr(error, reporter)
            if error.ee_origin == nix::libc::SO_EE_ORIGIN_ICMP =>
        {
            let reporter =
                reporter.map(|from| IpAddr::from(u32::from_be(from.sin_addr.s_addr).to_be_bytes()));
            Some(IcmpError { reason: Unreachable::of_icmp(error.ee_type, error.ee_code)?, reporter })
        }
        ControlMessageOwned::Ipv6RecvErr(error, reporter)
            if error.ee_origin == nix::libc::SO_EE_ORIGIN_ICMP6 =>
        {
            let reporter = reporter.map(|from| IpAddr::from(from.sin6_addr.s6_addr));
            Some(IcmpError { reason: Unreachable::of_icmpv6(error.ee_type, error.ee_code)?, reporter })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
    use std::time::Duration;

    use super::*;

    /// Nothing listens there: it was given back just now.
    fn closed_port(host: IpAddr) -> SocketAddr {
        UdpSocket::bind((host, 0)).unwrap().local_addr().unwrap()
    }

    #[tokio::test]
    async fn a_closed_port_is_reported_and_the_socket_stays_usable() {
        for host in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let Ok(socket) = UdpSocket::bind((host, 0)) else { continue };
            let errors = IcmpErrors::start(&socket).unwrap();
            socket.send_to(b"anybody?", closed_port(host)).unwrap();
            let error = tokio::time::timeout(Duration::from_secs(5), errors.next()).await.unwrap().unwrap();
            assert_eq!(error, IcmpError { reason: Unreachable::Port, reporter: Some(host) });
            drop(errors);
            socket.send_to(b"anybody?", closed_port(host)).unwrap();
            let own = socket.local_addr().unwrap();
            socket.send_to(b"me", own).expect("errors are not reported any more");
            let mut buffer = [0; 8];
            socket.set_nonblocking(false).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            assert_eq!(socket.recv_from(&mut buffer).unwrap(), (2, own));
        }
    }

    #[test]
    fn icmp_types_and_codes_match_their_specifications() {
        assert_eq!(Unreachable::of_icmp(3, 13), Some(Unreachable::Prohibited));
        assert_eq!(Unreachable::of_icmp(3, 1), Some(Unreachable::Host));
        assert_eq!(Unreachable::of_icmp(3, 4), None, "too big is another matter");
        assert_eq!(Unreachable::of_icmp(11, 0), None);
        assert_eq!(Unreachable::of_icmpv6(1, 1), Some(Unreachable::Prohibited));
        assert_eq!(Unreachable::of_icmpv6(1, 0), Some(Unreachable::Network));
        assert_eq!(Unreachable::of_icmpv6(2, 0), None);
    }
}
