//! UDP sockets of the shards: batched, offloaded, non-blocking. `quinn-udp` sets them up and
//! receives.
//!
//! A datagram that can't be sent is an ordinary event of a network: [`ShardSocket::try_send`]
//! classifies it and never fails. Segmentation offload (UDP GSO) that the kernel or driver refuses
//! for a destination is given up for that one for a while, and the batch that found out is sent one
//! datagram at a time; [`ShardSocket::offloads`] shows it.
//!
//! The sockets of a gateway share one port; [`bind_reuseport_group`] makes them.

mod fragmented;
mod group;
pub mod icmp;
mod many;
mod reopen;
mod singles;

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use quinn_udp::UdpSocketState;
use rustix::io::Errno;
use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub use quinn_udp::{BATCH_SIZE, EcnCodepoint, RecvMeta};

pub use group::{QuicMember, ReuseportGroup, Steering, bind_reuseport_group};
pub use many::MAX_SENDS;
pub use reopen::{port, reopen};

use singles::Singles;

/// The most shards: a receiver index names its shard by one byte (`docs/PROTOCOL.md`, section 7.1).
pub const MAX_SHARDS: usize = 256;

/// The most bytes of one segmented send. The kernel builds it as one packet and leaves cutting to
/// the device only while that is shorter than 65,536 bytes with the headers of UDP, IPv6 and
/// Ethernet (with a VLAN); a longer one it cuts in software, at several times the cost for both
/// ends.
pub const MAX_GSO_BYTES: usize = 65_535 - 8 - 40 - 18;

/// Default size of socket buffers, bytes: some milliseconds of 10 Gbit/s.
pub const DEFAULT_BUFFER_BYTES: usize = 8 << 20;

#[derive(Debug, Clone, Copy)]
pub struct SocketOptions {
    /// Receive buffer to request, bytes.
    pub recv_buffer: usize,
    /// Send buffer to request, bytes.
    pub send_buffer: usize,
    /// Let the kernel merge datagrams of one flow on receiving (UDP GRO).
    pub gro: bool,
    /// Let the kernel cut one long send into datagrams (UDP GSO).
    pub gso: bool,
    /// Mark of all packets of the socket, for policy routing (`SO_MARK`, needs CAP_NET_ADMIN).
    pub mark: Option<u32>,
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            recv_buffer: DEFAULT_BUFFER_BYTES,
            send_buffer: DEFAULT_BUFFER_BYTES,
            gro: true,
            gso: true,
            mark: None,
        }
    }
}

/// The state of a socket's offloads and buffers, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpOffloads {
    /// Datagrams that one send may hold; 1 when segmentation offload is off.
    pub gso_segments: usize,
    /// Segmentation offload was refused for a destination within the last minute, and that one does
    /// without it meanwhile.
    pub gso_gave_up: bool,
    /// Merged receiving is on.
    pub gro: bool,
    /// Receive buffer that the kernel gave, bytes.
    pub recv_buffer: usize,
    /// Send buffer that the kernel gave, bytes.
    pub send_buffer: usize,
    /// Datagrams might be fragmented because the kernel can't forbid it.
    pub may_fragment: bool,
}

/// A datagram to send, or a batch of them.
#[derive(Debug, Clone)]
pub struct Transmit<'a> {
    pub destination: SocketAddr,
    /// Traffic class of the outer header: DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// The bytes of all datagrams, one behind the other.
    pub contents: &'a [u8],
    /// Length of each datagram but the last, if there are several.
    pub segment_size: Option<usize>,
    /// The address to send from; `None` leaves it to the routing table.
    pub src_ip: Option<IpAddr>,
    /// Whether the outer IP layer may fragment it.
    pub may_fragment: bool,
}

/// Reason why a datagram was dropped on sending. Each is one counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// Longer than the path or interface takes (`EMSGSIZE`).
    TooBig,
    /// A queue or buffer of the kernel is full (`ENOBUFS`, `ENOMEM`).
    NoBuffers,
    /// The other end's port was closed some time ago (`ECONNREFUSED`).
    Refused,
    /// A firewall of this machine forbids it (`EPERM`, `EACCES`).
    Filtered,
    /// No route, or the network is down; from recent kernels also the condition of
    /// [`Self::SourceGone`], for IPv4.
    Unreachable,
    /// The source address is no longer one of this machine: forget it and let the kernel choose.
    SourceGone,
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOutcome {
    /// All of it was handed to the kernel.
    Sent,
    /// The socket's buffer is full: wait until it is writable and send the rest.
    WouldBlock {
        /// Bytes from the start of the contents that need not be sent again, a whole number of
        /// segments; 0 unless the batch was sent one datagram at a time.
        done: usize,
        /// Datagrams among these that were dropped.
        lost: usize,
    },
    /// Some of its datagrams were dropped, or all.
    Dropped {
        /// The reason of the last drop.
        reason: DropReason,
        /// How many.
        lost: usize,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum UdpError {
    #[error("UDP {0} is in use: stop the program that has it (`ss -ulnp`) or choose another port")]
    AddressInUse(SocketAddr),
    #[error("{0} is not an address of this machine: listen on one that `ip addr` shows, or on [::]")]
    NoSuchAddress(SocketAddr),
    /// A privilege is missing, for a port below 1024 or a mark.
    #[error("{step} for UDP {address} is not permitted: run as root or with {capability}")]
    NoPermission {
        /// The address of the socket.
        address: SocketAddr,
        step: &'static str,
        /// The capability that allows it.
        capability: &'static str,
    },
    /// More shards than a receiver index can name, or none.
    #[error("a port has 1 to {MAX_SHARDS} shards, not {0}")]
    BadShardCount(usize),
    #[error("{step} for UDP {address} failed: {source}")]
    Os {
        /// The address of the socket.
        address: SocketAddr,
        step: &'static str,
        source: io::Error,
    },
}

pub struct ShardSocket {
    socket: Socket,
    /// Receives; holds the offloads that the kernel granted at the start.
    state: UdpSocketState,
    gso: bool,
    /// Destinations that do without segmentation offload.
    singles: Arc<Singles>,
    gro: bool,
    is_v6: bool,
}

impl ShardSocket {
    /// Binds a single socket, as each shard of a client has (`docs/PROTOCOL.md`, section 2).
    pub fn bind(address: SocketAddr, options: &SocketOptions) -> Result<Self, UdpError> {
        let (socket, address) = open_preferring_v6(address)?;
        bind(&socket, address)?;
        Self::new(socket, address, options)
    }

    /// Registers the socket with the current tokio runtime, which then reports when it is readable.
    /// Not when it is writable: the kernel reports that for each datagram that has left, so every
    /// send would wake the shard once more.
    ///
    /// # Errors
    /// If the system call fails.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn into_async(self) -> io::Result<AsyncFd<Self>> {
        // SAFETY: the socket owns its open descriptor, always names the same one, and nothing here
        // closes or replaces it before the socket is dropped.
        Ok(unsafe { AsyncFd::register_with_interest(self, Interest::READABLE) }?)
    }

    /// Registers a socket that only sends: what arrives at it wakes no thread.
    ///
    /// # Errors
    /// If the system call fails.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn into_async_sender(self) -> io::Result<AsyncFd<Self>> {
        // SAFETY: as for `into_async`.
        Ok(unsafe { AsyncFd::register_with_interest(self, Interest::WRITABLE) }?)
    }

    fn new(socket: Socket, address: SocketAddr, options: &SocketOptions) -> Result<Self, UdpError> {
        configure(&socket, address, options)?;
        Self::set_up(socket, address, options)
    }

    /// Takes over a socket that another process has bound with the same `options` and passed on.
    /// Needs no privilege.
    ///
    /// # Errors
    /// [`UdpError`], also if the descriptor is no bound UDP socket.
    pub fn adopt(socket: OwnedFd, options: &SocketOptions) -> Result<Self, UdpError> {
        let unknown = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let socket = Socket::from(socket);
        let address = socket.local_addr().map_err(|source| classify_setup(unknown, "adopting", source))?;
        Self::set_up(socket, address.as_socket().unwrap_or(unknown), options)
    }

    /// Finds out about offloads.
    fn set_up(socket: Socket, address: SocketAddr, options: &SocketOptions) -> Result<Self, UdpError> {
        let failed = |source| classify_setup(address, "setting up", source);
        let state = UdpSocketState::new((&socket).into()).map_err(failed)?;
        // The time of arrival is not read, and its control message leaves no room for the
        // congestion mark of merged datagrams.
        set_flag(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, false).map_err(failed)?;
        if address.is_ipv6() {
            // Quinn's flag would forbid fragments for good. Without it the mode of path MTU
            // discovery decides, which allows none until `with_fragments` changes it.
            set_flag(&socket, libc::SOL_IPV6, libc::IPV6_DONTFRAG, false).map_err(failed)?;
        }
        // A kernel before 5.0 has no merging to switch off.
        let gro = state.gro_segments() > 1 && options.gro;
        if state.gro_segments() > 1 && !options.gro {
            set_flag(&socket, libc::SOL_UDP, libc::UDP_GRO, false).map_err(failed)?;
        }
        Ok(Self { socket, state, gso: options.gso, singles: Arc::default(), gro, is_v6: address.is_ipv6() })
    }

    /// The address that the socket is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let address = self.socket.local_addr()?;
        address.as_socket().ok_or_else(|| io::Error::other("the kernel names no internet address"))
    }

    /// Most datagrams that one [`Transmit`] may hold; 1 when segmentation offload is off. More are
    /// still sent, one at a time. The bytes of a batch are limited by [`MAX_GSO_BYTES`].
    pub fn max_gso_segments(&self) -> usize {
        if self.gso { self.state.max_gso_segments() } else { 1 }
    }

    /// Offloads and buffers as they are now.
    pub fn offloads(&self) -> UdpOffloads {
        UdpOffloads {
            gso_segments: self.max_gso_segments(),
            gso_gave_up: self.singles.any(Instant::now()),
            gro: self.gro,
            recv_buffer: self.socket.recv_buffer_size().unwrap_or(0),
            send_buffer: self.socket.send_buffer_size().unwrap_or(0),
            may_fragment: self.state.may_fragment(),
        }
    }

    /// Hands a datagram, or a batch of `segment_size` each and a shorter last one, to the kernel.
    pub fn try_send(&self, transmit: &Transmit<'_>) -> SendOutcome {
        if transmit.needs_fragments() {
            return self.with_fragments(|| self.try_send_whole(transmit));
        }
        self.try_send_whole(transmit)
    }

    fn try_send_whole(&self, transmit: &Transmit<'_>) -> SendOutcome {
        let Some(segment) = transmit.segment_size.filter(|size| *size < transmit.contents.len()) else {
            return self.send_one(transmit);
        };
        if !self.segments_to(transmit.destination) {
            return self.send_one_by_one(transmit, segment).outcome;
        }
        match self.send_message(transmit) {
            Ok(()) => SendOutcome::Sent,
            Err(error) if is_offload_refusal(&error, transmit) => self.without_offload(transmit, segment),
            Err(error) => classify_send(&error, transmit),
        }
    }

    /// Receives up to [`BATCH_SIZE`] buffers; each may hold several datagrams of `stride` bytes
    /// (see [`RecvMeta`]), so it should have 64 KiB when merging is on. A buffer that is too short
    /// cuts its datagram.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is nothing; other kinds are for the counters only.
    pub fn try_recv(&self, bufs: &mut [IoSliceMut<'_>], meta: &mut [RecvMeta]) -> io::Result<usize> {
        let count = bufs.len().min(meta.len());
        self.state.recv((&self.socket).into(), &mut bufs[..count], meta)
    }

    /// Whether the kernel cuts what goes to `destination`.
    #[inline]
    fn segments_to(&self, destination: SocketAddr) -> bool {
        self.max_gso_segments() > 1 && !self.singles.holds(destination.ip())
    }

    fn send_one(&self, transmit: &Transmit<'_>) -> SendOutcome {
        match self.send_message(transmit) {
            Ok(()) => SendOutcome::Sent,
            Err(error) => classify_send(&error, transmit),
        }
    }

    /// Sends each segment by itself.
    fn send_one_by_one(&self, batch: &Transmit<'_>, segment: usize) -> OneByOne {
        let mut result = OneByOne { outcome: SendOutcome::Sent, full_size: false };
        let (mut done, mut lost) = (0, 0);
        for contents in batch.contents.chunks(segment.max(1)) {
            let single = Transmit { contents, segment_size: None, ..batch.clone() };
            match self.send_one(&single) {
                SendOutcome::Sent => result.full_size |= contents.len() == segment,
                SendOutcome::WouldBlock { .. } => {
                    result.outcome = SendOutcome::WouldBlock { done, lost };
                    break;
                }
                SendOutcome::Dropped { reason, .. } => {
                    lost += 1;
                    result.outcome = SendOutcome::Dropped { reason, lost };
                }
            }
            done += contents.len();
        }
        result
    }

    /// After a refused batch: sends its segments singly and learns from that whether the offload is
    /// to blame. A segment above the interface's MTU or a source address that is gone are refused
    /// in the same way as by a driver without offload, but then no datagram of full size passes
    /// either. Routes decide about the driver, so this is about one destination, and routes change.
    fn without_offload(&self, batch: &Transmit<'_>, segment: usize) -> SendOutcome {
        let singles = self.send_one_by_one(batch, segment);
        if singles.full_size && self.singles.insert(batch.destination.ip(), Instant::now()) {
            tracing::warn!(
                to = %batch.destination.ip().to_canonical(),
                "the kernel refuses UDP segmentation offload on the way to this peer, and perhaps to others: they are sent \
                 single datagrams, slower, but nothing is lost, and the offload is tried again each minute. \
                 `udp_gso = false` in [offload] keeps it from being tried"
            );
        }
        singles.outcome
    }
}

/// Result of sending a batch one datagram at a time.
struct OneByOne {
    outcome: SendOutcome,
    /// Whether a datagram of full size passed.
    full_size: bool,
}

impl AsFd for ShardSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<ShardSocket> for OwnedFd {
    fn from(socket: ShardSocket) -> Self {
        socket.socket.into()
    }
}

impl AsRawFd for ShardSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// The answers of a kernel or driver that can't segment, among others. No kernel fragments what it
/// segments: datagrams that are longer than the path is known to be go by themselves.
fn is_offload_refusal(error: &io::Error, transmit: &Transmit<'_>) -> bool {
    let error = Errno::from_io_error(error);
    let is_too_long = transmit.may_fragment && error == Some(Errno::MSGSIZE);
    is_too_long || matches!(error, Some(Errno::IO | Errno::INVAL))
}

fn classify_send(error: &io::Error, transmit: &Transmit<'_>) -> SendOutcome {
    let reason = match Errno::from_io_error(error) {
        Some(Errno::AGAIN) => return SendOutcome::WouldBlock { done: 0, lost: 0 },
        Some(Errno::MSGSIZE) => DropReason::TooBig,
        Some(Errno::NOBUFS | Errno::NOMEM) => DropReason::NoBuffers,
        Some(Errno::CONNREFUSED) => DropReason::Refused,
        Some(Errno::PERM | Errno::ACCESS) => DropReason::Filtered,
        Some(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::NETDOWN | Errno::HOSTDOWN) => {
            DropReason::Unreachable
        }
        Some(Errno::INVAL | Errno::ADDRNOTAVAIL) if transmit.src_ip.is_some() => DropReason::SourceGone,
        _ => DropReason::Other,
    };
    let segments =
        transmit.segment_size.map_or(1, |segment| transmit.contents.len().div_ceil(segment.max(1)));
    SendOutcome::Dropped { reason, lost: segments.max(1) }
}

/// Opens a socket for `address`; `::` becomes `0.0.0.0` on a machine without IPv6.
fn open_preferring_v6(address: SocketAddr) -> Result<(Socket, SocketAddr), UdpError> {
    match open(address) {
        Err(UdpError::Os { source, .. })
            if address.is_ipv6()
                && address.ip().is_unspecified()
                && Errno::from_io_error(&source) == Some(Errno::AFNOSUPPORT) =>
        {
            let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
            Ok((open(address)?, address))
        }
        opened => Ok((opened?, address)),
    }
}

fn open(address: SocketAddr) -> Result<Socket, UdpError> {
    let failed = |source| classify_setup(address, "opening a socket", source);
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM.nonblocking(), Some(Protocol::UDP))
        .map_err(failed)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified()).map_err(failed)?;
    }
    Ok(socket)
}

fn bind(socket: &Socket, address: SocketAddr) -> Result<(), UdpError> {
    socket.bind(&address.into()).map_err(|source| classify_setup(address, "binding", source))
}

/// Sets buffers, mark and path MTU discovery, which QUIC's socket needs as well as the shards'.
fn configure(socket: &Socket, address: SocketAddr, options: &SocketOptions) -> Result<(), UdpError> {
    if let Some(mark) = options.mark {
        socket.set_mark(mark).map_err(|source| classify_setup(address, "marking packets", source))?;
    }
    let buffers = enlarge_buffers(socket, options);
    buffers.map_err(|source| classify_setup(address, "sizing the buffers", source))
}

/// Asks for buffers above the system's limit first, which CAP_NET_ADMIN allows, else for what the
/// limit gives.
fn enlarge_buffers(socket: &Socket, options: &SocketOptions) -> io::Result<()> {
    if sockopt::set_socket_recv_buffer_size_force(socket, options.recv_buffer).is_err() {
        socket.set_recv_buffer_size(options.recv_buffer)?;
    }
    if sockopt::set_socket_send_buffer_size_force(socket, options.send_buffer).is_err() {
        socket.set_send_buffer_size(options.send_buffer)?;
    }
    Ok(())
}

/// Sets an option that is on or off.
fn set_flag(socket: &Socket, level: libc::c_int, option: libc::c_int, on: bool) -> io::Result<()> {
    let value = libc::c_int::from(on);
    // SAFETY: the kernel reads one `int` of the given size during the call and keeps no pointer to
    // it.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn classify_setup(address: SocketAddr, step: &'static str, source: io::Error) -> UdpError {
    match Errno::from_io_error(&source) {
        Some(Errno::ADDRINUSE) => UdpError::AddressInUse(address),
        Some(Errno::ADDRNOTAVAIL) => UdpError::NoSuchAddress(address),
        Some(Errno::PERM | Errno::ACCESS) => {
            let capability = if step == "binding" { "CAP_NET_BIND_SERVICE" } else { "CAP_NET_ADMIN" };
            UdpError::NoPermission { address, step, capability }
        }
        _ => UdpError::Os { address, step, source },
    }
}

#[cfg(test)]
mod tests;
