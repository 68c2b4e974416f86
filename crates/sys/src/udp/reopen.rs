//! Another port for a socket that stays open: threads that receive and send by it notice nothing.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, bind, connect_unspec, getsockname, sockopt};

/// How often the kernel is asked for another port.
const TRIES: usize = 8;

/// Gives a UDP socket that was bound to a port of the kernel's choice another such port, and
/// returns that. Its options, among them its mark, stay; but it is bound to no device afterwards.
///
/// # Errors
/// If the system call fails, or the socket was bound to a port by number: that one it keeps.
pub fn reopen(socket: &impl AsFd) -> io::Result<u16> {
    let any = match sockopt::socket_domain(socket)? {
        AddressFamily::INET6 => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        _ => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
    };
    let before = port(socket)?;
    for _ in 0..TRIES {
        connect_unspec(socket)?;
        match bind(socket, &any) {
            // Something was sent meanwhile, for which the kernel has chosen a port.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
        let after = port(socket)?;
        if after != before {
            return Ok(after);
        }
    }
    Err(io::Error::other("the socket keeps its port"))
}

/// The port of a UDP socket.
///
/// # Errors
/// If the system call fails, or it is no socket of the internet.
pub fn port(socket: &impl AsFd) -> io::Result<u16> {
    let address = SocketAddr::try_from(getsockname(socket)?).map_err(io::Error::from)?;
    Ok(address.port())
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_socket_moves_to_other_ports_and_still_receives() {
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for address in ["0.0.0.0:0", "[::]:0"] {
            let Ok(socket) = UdpSocket::bind(address) else { continue };
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let mut ports = vec![socket.local_addr().unwrap().port()];
            for _ in 0..3 {
                let port = reopen(&socket).unwrap();
                assert_eq!(socket.local_addr().unwrap().port(), port);
                assert!(!ports.contains(&port), "{port} again");
                ports.push(port);
                sender.send_to(b"here", ("127.0.0.1", port)).unwrap();
                let mut word = [0; 8];
                assert_eq!(socket.recv(&mut word).unwrap(), 4);
            }
        }
    }

    #[test]
    fn a_port_that_was_asked_for_by_number_stays() {
        let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let socket = UdpSocket::bind(free).unwrap();
        assert!(reopen(&socket).is_err());
        assert_eq!(socket.local_addr().unwrap().port(), free.port());
    }
}
