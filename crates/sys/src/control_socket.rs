//! The sockets of a client's control channel, and of a way over TCP, for its worker: only a
//! privileged process can mark them.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// Bytes that wait before a TCP connection at most, in each direction.
const BUFFER: usize = 1 << 20;

/// A socket for the control channel to `gateway`. Its datagrams carry the mark, so that they never
/// enter the tunnel. It is not connected: the machine may get another address.
///
/// # Errors
/// The kernel's, also if there is no way to the gateway.
pub fn socket(gateway: SocketAddr, mark: Option<u32>) -> io::Result<UdpSocket> {
    let marked = || {
        let socket = Socket::new(Domain::for_address(gateway), Type::DGRAM, Some(Protocol::UDP))?;
        mark.map_or(Ok(()), |mark| socket.set_mark(mark))?;
        Ok::<_, io::Error>(socket)
    };
    // Sends nothing, but fails at once if there is no way.
    marked()?.connect(&gateway.into())?;
    let any: SocketAddr = match gateway {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = marked()?;
    socket.bind(&any.into())?;
    Ok(socket.into())
}

/// A TCP connection to `gateway`, which has begun and never enters the tunnel; and a socket before
/// it, which this machine alone reaches.
///
/// # Errors
/// The kernel's, also if there is no way to the gateway.
pub fn stream(gateway: SocketAddr, mark: u32) -> io::Result<[OwnedFd; 2]> {
    let stream = Socket::new(Domain::for_address(gateway), Type::STREAM, Some(Protocol::TCP))?;
    stream.set_mark(mark)?;
    stream.set_nonblocking(true)?;
    match stream.connect(&gateway.into()) {
        Err(error) if Errno::from_io_error(&error) != Some(Errno::INPROGRESS) => return Err(error),
        _ => {}
    }
    let before = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    before.set_nonblocking(true)?;
    // Some runs of datagrams, each of 64 KiB.
    let buffers = SockRef::from(&before);
    buffers.set_recv_buffer_size(BUFFER)?;
    buffers.set_send_buffer_size(BUFFER)?;
    Ok([stream.into(), before.into()])
}
