//! Makes the connections of a pair and tells them apart from strangers'.
//!
//! The connecting host opens each connection with a 12-byte preamble: the run's id and the stream's
//! number. The listener takes only connections that show its run's id, each number once, until all
//! are there. Every step has a deadline, and a connection that says nothing costs the others no
//! more than [`PREAMBLE_TIMEOUT`].

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use super::{Job, Stream};
use crate::load::congestion::CongestionControl;

const PREAMBLE_BYTES: usize = 12;
const PREAMBLE_TIMEOUT: Duration = Duration::from_secs(2);
/// A connection attempt beyond this is repeated: the peer may still be coming up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Advice where nothing arrives at all.
fn advice(arrived: usize) -> &'static str {
    if arrived > 0 {
        return "";
    }
    "; the other host cannot reach this one: if it is behind NAT or a firewall, such as a client of a gateway that admits no connections \
     to clients, name the hosts of --pair the other way round, since the first one listens and the second one connects"
}

/// Foreign or silent connections that a listener bears before it gives up.
const MAX_STRANGERS: usize = 64;

/// Why the connections of a pair could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The listening socket could not be made.
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    /// The host has no such congestion control.
    #[error(
        "this host cannot use congestion control `{name}` ({source}); see net.ipv4.tcp_available_congestion_control"
    )]
    Congestion { name: CongestionControl, source: io::Error },
    /// The peer could not be reached.
    #[error("cannot connect to {address}: {source}")]
    Connect { address: SocketAddr, source: io::Error },
    /// Not all connections arrived in time.
    #[error("only {arrived} of {wanted} connections arrived within {seconds} s{}", advice(*arrived))]
    Missing {
        arrived: usize,
        /// Connections of the job.
        wanted: u32,
        seconds: u64,
    },
    /// Too many connections that are not of this run.
    #[error("{0} connections arrived that do not belong to this run")]
    Strangers(usize),
    /// The coordinator gave up meanwhile.
    #[error("stopped before all connections were made")]
    Stopped,
    /// A connected socket could not be set up.
    #[error("cannot set up a connection: {0}")]
    Socket(#[from] io::Error),
}

/// The listening end of a pair.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
}

impl Listener {
    /// Listens on `address` (port 0 lets the system choose).
    pub fn bind(address: SocketAddr, job: &Job) -> Result<Self, ConnectError> {
        let socket = socket_for(address, job)?;
        let listen = |socket: &Socket| {
            socket.bind(&address.into())?;
            socket.listen(job.streams.min(4096).cast_signed())?;
            socket.set_nonblocking(true)
        };
        listen(&socket).map_err(|source| ConnectError::Listen { address, source })?;
        Ok(Self { listener: socket.into() })
    }

    /// Where the peer is to connect to.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn port(&self) -> io::Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }

    /// Takes connections until every stream of the job has one.
    pub fn accept_all(
        &self,
        job: &Job,
        timeout: Duration,
        stopped: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<Stream>, ConnectError> {
        let deadline = Instant::now() + timeout;
        let mut slots: Vec<Option<TcpStream>> = (0..job.streams).map(|_| None).collect();
        let mut strangers = 0;
        while slots.iter().any(Option::is_none) {
            if stopped() {
                return Err(ConnectError::Stopped);
            }
            if Instant::now() > deadline {
                let arrived = slots.iter().flatten().count();
                return Err(ConnectError::Missing {
                    arrived,
                    wanted: job.streams,
                    seconds: timeout.as_secs(),
                });
            }
            let Ok((socket, _)) = self.listener.accept() else {
                // Nothing there yet, or a connection that died in the queue; both are tried again.
                std::thread::sleep(Duration::from_millis(2));
                continue;
            };
            match read_preamble(&socket, job) {
                Some(index) if slots[index as usize].is_none() => slots[index as usize] = Some(socket),
                _ => strangers += 1,
            }
            if strangers > MAX_STRANGERS {
                return Err(ConnectError::Strangers(strangers));
            }
        }
        slots
            .into_iter()
            .flatten()
            .zip(0..)
            .map(|(socket, index)| ready(socket, index, !job.connector_sends(index)))
            .collect()
    }
}

/// Opens every connection of the job to `peer`, trying again until `timeout` is over.
pub fn connect_all(
    peer: SocketAddr,
    job: &Job,
    timeout: Duration,
    stopped: &mut dyn FnMut() -> bool,
) -> Result<Vec<Stream>, ConnectError> {
    let deadline = Instant::now() + timeout;
    let mut streams = Vec::new();
    for index in 0..job.streams {
        let socket = loop {
            if stopped() {
                return Err(ConnectError::Stopped);
            }
            let socket = socket_for(peer, job)?;
            match socket.connect_timeout(&peer.into(), CONNECT_TIMEOUT) {
                Ok(()) => break TcpStream::from(socket),
                Err(source) if Instant::now() > deadline => {
                    return Err(ConnectError::Connect { address: peer, source });
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        (&socket).write_all(&preamble(job, index))?;
        streams.push(ready(socket, index, job.connector_sends(index))?);
    }
    Ok(streams)
}

/// A socket with the options of the job, for an end at `address` or a connection to it.
pub(in crate::load) fn socket_for(address: SocketAddr, job: &Job) -> Result<Socket, ConnectError> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Set on the socket before the handshake, so no sysctl of the host has to change.
    let name = job.congestion;
    name.set(&socket).map_err(|source| ConnectError::Congestion { name, source })?;
    // Before the handshake, so that the announced window and segment size follow; accepted sockets
    // inherit them.
    if let Some(bytes) = job.shape.window {
        socket.set_send_buffer_size(bytes as usize)?;
        socket.set_recv_buffer_size(bytes as usize)?;
    }
    if let Some(bytes) = job.shape.mss {
        socket.set_tcp_mss(bytes)?;
    }
    Ok(socket)
}

fn ready(socket: TcpStream, index: u32, sends: bool) -> Result<Stream, ConnectError> {
    socket.set_read_timeout(None)?;
    socket.set_nonblocking(true)?;
    Ok(Stream { index, sends, socket })
}

fn preamble(job: &Job, index: u32) -> [u8; PREAMBLE_BYTES] {
    let mut bytes = [0; PREAMBLE_BYTES];
    bytes[..8].copy_from_slice(&job.run_id.to_be_bytes());
    bytes[8..].copy_from_slice(&index.to_be_bytes());
    bytes
}

/// The stream's number, if the connection is of this run.
fn read_preamble(mut socket: &TcpStream, job: &Job) -> Option<u32> {
    let mut bytes = [0; PREAMBLE_BYTES];
    socket.set_nonblocking(false).ok()?;
    socket.set_read_timeout(Some(PREAMBLE_TIMEOUT)).ok()?;
    socket.read_exact(&mut bytes).ok()?;
    let (run_id, index) = bytes.split_at(8);
    let index = u32::from_be_bytes(index.try_into().expect("twelve bytes less eight"));
    (run_id == job.run_id.to_be_bytes() && index < job.streams).then_some(index)
}
