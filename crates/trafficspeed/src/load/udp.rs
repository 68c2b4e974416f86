//! UDP sockets of a pair: how they find each other, and many datagrams with one system call.
//!
//! The listening host opens one socket per stream and tells the ports; the connecting host greets
//! each until it is greeted back, and confirms. On a path that loses packets any of the three may
//! be missing: greetings are repeated, each is answered, and silence confirms too. Afterwards
//! both ends' sockets are connected, so the kernel keeps strangers' datagrams away.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, MultiHeaders, recvmmsg};
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, sendmmsg, sockopt};

use super::tcp::ConnectError;
use super::worker_pool::WAIT_TIMEOUT;

/// Most datagrams of one system call.
pub(super) const BATCH: usize = 64;
/// Receive buffer unless the user names one: enough that a busy machine's pauses do not show as
/// loss.
const RECEIVE_BUFFER: usize = 4 << 20;
const GREETING: &[u8; 8] = b"tsGREET\0";
const ANSWER: &[u8; 8] = b"tsREPLY\0";
const CONFIRMATION: &[u8; 8] = b"tsAGREE\0";
/// A peer that has greeted and then is silent for this long has its answer: a greeting without one
/// is repeated every [`WAIT_TIMEOUT`].
const SILENCE: Duration = Duration::from_secs(1);
const GREETING_BYTES: usize = 20;
/// Columns before the inode in the kernel's tables of sockets; the last one has the drops.
const INODE_COLUMN: usize = 9;

/// The listening end's sockets, waiting to be greeted.
#[derive(Debug)]
pub(super) struct UdpListener {
    sockets: Vec<UdpSocket>,
}

impl UdpListener {
    pub(super) fn bind(address: IpAddr, streams: u32, window: Option<u32>) -> Result<Self, ConnectError> {
        let bind = SocketAddr::new(address, 0);
        let open = || (0..streams).map(|_| socket_at(bind, window)).collect::<io::Result<_>>();
        let sockets = open().map_err(|source| ConnectError::Listen { address: bind, source })?;
        Ok(Self { sockets })
    }

    pub(super) fn ports(&self) -> io::Result<Vec<u16>> {
        self.sockets.iter().map(|socket| Ok(socket.local_addr()?.port())).collect()
    }

    /// Waits until every socket was greeted by this run, and answers.
    pub(super) fn meet(
        self,
        run_id: u64,
        timeout: Duration,
        stopped: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<UdpSocket>, ConnectError> {
        let deadline = Instant::now() + timeout;
        let wanted = self.sockets.len() as u32;
        for (socket, index) in self.sockets.iter().zip(0..) {
            meet_one(socket, (run_id, index), || check(deadline, index, wanted, timeout, stopped))?;
        }
        Ok(self.sockets)
    }
}

/// Answers the greetings of one stream until they end.
fn meet_one(
    socket: &UdpSocket,
    (run_id, index): (u64, u32),
    mut check: impl FnMut() -> Result<(), ConnectError>,
) -> Result<(), ConnectError> {
    let mut buffer = [0; 2048];
    let mut greeted: Option<Instant> = None;
    loop {
        check()?;
        if greeted.is_some_and(|last| last.elapsed() > SILENCE) {
            return Ok(());
        }
        let Ok((bytes, peer)) = socket.recv_from(&mut buffer) else { continue };
        if buffer[..bytes] == greeting(GREETING, run_id, index) {
            if greeted.is_none() {
                socket.connect(peer)?;
            }
            socket.send(&greeting(ANSWER, run_id, index))?;
            greeted = Some(Instant::now());
        } else if greeted.is_some() && buffer[..bytes] == greeting(CONFIRMATION, run_id, index) {
            return Ok(());
        }
    }
}

/// Greets every socket of the listening end until it answers.
pub(super) fn reach(
    peer: IpAddr,
    ports: &[u16],
    run_id: u64,
    window: Option<u32>,
    timeout: Duration,
    stopped: &mut dyn FnMut() -> bool,
) -> Result<Vec<UdpSocket>, ConnectError> {
    let deadline = Instant::now() + timeout;
    let mut sockets = Vec::new();
    for (port, index) in ports.iter().zip(0..) {
        let address = SocketAddr::new(peer, *port);
        let any: SocketAddr = if peer.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
        let socket = socket_at(any, window)?;
        socket.connect(address).map_err(|source| ConnectError::Connect { address, source })?;
        let mut buffer = [0; 2048];
        loop {
            check(deadline, index, ports.len() as u32, timeout, stopped)?;
            // A refused greeting shows at the next call; the peer may still be coming up.
            let _ = socket.send(&greeting(GREETING, run_id, index));
            if let Ok(bytes) = socket.recv(&mut buffer)
                && buffer[..bytes] == greeting(ANSWER, run_id, index)
            {
                // Without it the other end waits for a second.
                let _ = socket.send(&greeting(CONFIRMATION, run_id, index));
                break;
            }
        }
        sockets.push(socket);
    }
    Ok(sockets)
}

fn check(
    deadline: Instant,
    arrived: u32,
    wanted: u32,
    timeout: Duration,
    stopped: &mut dyn FnMut() -> bool,
) -> Result<(), ConnectError> {
    if stopped() {
        return Err(ConnectError::Stopped);
    }
    if Instant::now() > deadline {
        return Err(ConnectError::Missing { arrived: arrived as usize, wanted, seconds: timeout.as_secs() });
    }
    Ok(())
}

fn greeting(kind: &[u8; 8], run_id: u64, index: u32) -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    bytes[..8].copy_from_slice(kind);
    bytes[8..16].copy_from_slice(&run_id.to_be_bytes());
    bytes[16..].copy_from_slice(&index.to_be_bytes());
    bytes
}

fn socket_at(address: SocketAddr, window: Option<u32>) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    socket.set_read_timeout(Some(WAIT_TIMEOUT))?;
    socket.set_write_timeout(Some(WAIT_TIMEOUT))?;
    let bytes = window.map_or(RECEIVE_BUFFER, |bytes| bytes as usize);
    // The administrator may go past the host's limit; others get what the limit allows.
    if sockopt::set_socket_recv_buffer_size_force(&socket, bytes).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, bytes)?;
    }
    if let Some(bytes) = window {
        sockopt::set_socket_send_buffer_size(&socket, bytes as usize)?;
    }
    Ok(socket)
}

/// Sends `datagrams`; returns how many the kernel took.
pub(super) fn send_batch<'a>(
    socket: &UdpSocket,
    datagrams: impl Iterator<Item = &'a [u8]>,
) -> io::Result<usize> {
    let parts: Vec<[IoSlice<'_>; 1]> = datagrams.map(|part| [IoSlice::new(part)]).collect();
    let mut controls: Vec<SendAncillaryBuffer<'_, '_, '_>> =
        parts.iter().map(|_| SendAncillaryBuffer::default()).collect();
    let mut headers: Vec<MMsgHdr<'_>> =
        parts.iter().zip(&mut controls).map(|(part, control)| MMsgHdr::new(part, control)).collect();
    Ok(sendmmsg(socket, &mut headers, SendFlags::NOSIGNAL)?)
}

/// Receives datagrams into places of `place` bytes each.
pub(super) struct Receiver {
    headers: MultiHeaders<()>,
    buffer: Vec<u8>,
    lengths: Vec<usize>,
    place: usize,
}

impl Receiver {
    pub(super) fn new(place: usize) -> Self {
        Self {
            headers: MultiHeaders::preallocate(BATCH, None),
            buffer: vec![0; BATCH * place],
            lengths: Vec::with_capacity(BATCH),
            place,
        }
    }

    /// Waits for datagrams, at most the socket's timeout, and takes all that are there.
    pub(super) fn receive(&mut self, socket: &UdpSocket) -> io::Result<()> {
        self.lengths.clear();
        let mut parts: Vec<[IoSliceMut<'_>; 1]> =
            self.buffer.chunks_mut(self.place).map(|part| [IoSliceMut::new(part)]).collect();
        let flags = MsgFlags::MSG_WAITFORONE;
        let results = recvmmsg(socket.as_raw_fd(), &mut self.headers, parts.iter_mut(), flags, None)?;
        self.lengths.extend(results.map(|message| message.bytes));
        Ok(())
    }

    /// The lengths of the last call's messages.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        self.buffer.chunks(self.place).zip(&self.lengths).map(|(place, length)| &place[..*length])
    }
}

/// Datagrams that the kernel threw away because the buffer of one of these sockets was full, so
/// far.
pub(super) fn drops_at(sockets: &[UdpSocket]) -> u64 {
    let inodes: Vec<u64> =
        sockets.iter().filter_map(|socket| rustix::fs::fstat(socket).ok()).map(|stat| stat.st_ino).collect();
    let tables = ["udp", "udp6"].map(|name| fs::read_to_string(format!("/proc/thread-self/net/{name}")));
    tables.into_iter().flatten().map(|table| dropped_in(&table, &inodes)).sum()
}

/// The drops of these sockets in the kernel's table of one IP version.
fn dropped_in(table: &str, inodes: &[u64]) -> u64 {
    let drops = |line: &str| {
        let mut columns = line.split_whitespace().skip(INODE_COLUMN);
        let inode = columns.next()?.parse().ok()?;
        let drops = columns.last()?.parse::<u64>().ok()?;
        inodes.contains(&inode).then_some(drops)
    };
    table.lines().skip(1).filter_map(drops).sum()
}

/// Datagrams that the kernel of this host's namespace threw away because a socket's buffer was
/// full, whosoever it was, so far.
pub fn socket_drops() -> u64 {
    let v4 = fs::read_to_string("/proc/thread-self/net/snmp").unwrap_or_default();
    let v6 = fs::read_to_string("/proc/thread-self/net/snmp6").unwrap_or_default();
    dropped_v4(&v4) + dropped_v6(&v6)
}

fn dropped_v4(text: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return 0 };
    let mut columns = names.split_whitespace().zip(values.split_whitespace());
    columns.find(|(name, _)| *name == "RcvbufErrors").and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

fn dropped_v6(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("Udp6RcvbufErrors"));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn sockets_of_one_run_find_each_other_and_batches_arrive_whole() {
        let door = UdpListener::bind(Ipv4Addr::LOCALHOST.into(), 2, None).unwrap();
        let ports = door.ports().unwrap();
        let meeting =
            std::thread::spawn(move || door.meet(9, Duration::from_secs(5), &mut || false).unwrap());
        let timeout = Duration::from_secs(5);
        let senders = reach(Ipv4Addr::LOCALHOST.into(), &ports, 9, None, timeout, &mut || false).unwrap();
        let receivers = meeting.join().unwrap();
        let datagrams: Vec<u8> = (0..5 * 30).collect();
        assert_eq!(send_batch(&senders[1], datagrams.chunks(30)).unwrap(), 5);
        let mut receiver = Receiver::new(100);
        let mut got = Vec::new();
        while got.len() < datagrams.len() {
            receiver.receive(&receivers[1]).unwrap();
            for datagram in receiver.datagrams() {
                assert_eq!(datagram.len(), 30);
                got.extend_from_slice(datagram);
            }
        }
        assert_eq!(got, datagrams);
        let timed_out = receiver.receive(&receivers[0]).unwrap_err();
        assert_eq!(timed_out.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(receiver.datagrams().count(), 0);
    }

    /// Carries datagrams between the one who greets and `far`; after the first greeting nothing for
    /// `outage`, and no confirmation at all, until `over`.
    fn relay(far: SocketAddr, outage: Duration, over: Arc<AtomicBool>) -> (u16, std::thread::JoinHandle<()>) {
        let own = socket_at((Ipv4Addr::LOCALHOST, 0).into(), None).unwrap();
        let port = own.local_addr().unwrap().port();
        let thread = std::thread::spawn(move || {
            let (mut near, mut first, mut buffer) = (None, None, [0; 64]);
            while !over.load(Ordering::Relaxed) {
                let Ok((bytes, from)) = own.recv_from(&mut buffer) else { continue };
                let since = first.map(|first: Instant| first.elapsed());
                if from != far {
                    near = Some(from);
                    first = first.or(Some(Instant::now()));
                }
                if since.is_some_and(|since| since < outage) || buffer.starts_with(CONFIRMATION) {
                    continue;
                }
                if let Some(to) = if from == far { near } else { Some(far) } {
                    own.send_to(&buffer[..bytes], to).unwrap();
                }
            }
        });
        (port, thread)
    }

    #[test]
    fn a_path_that_loses_answers_and_confirmations_connects_all_the_same() {
        let door = UdpListener::bind(Ipv4Addr::LOCALHOST.into(), 1, None).unwrap();
        let far = SocketAddr::from((Ipv4Addr::LOCALHOST, door.ports().unwrap()[0]));
        let over = Arc::new(AtomicBool::new(false));
        let (port, relaying) = relay(far, Duration::from_millis(300), Arc::clone(&over));
        let timeout = Duration::from_secs(10);
        let meeting = std::thread::spawn(move || door.meet(9, timeout, &mut || false).is_ok());
        let reached = reach(Ipv4Addr::LOCALHOST.into(), &[port], 9, None, timeout, &mut || false);
        let met = meeting.join().unwrap();
        over.store(true, Ordering::Relaxed);
        relaying.join().unwrap();
        assert!(reached.is_ok() && met, "{reached:?} {met}");
    }

    #[test]
    fn another_run_is_not_let_in() {
        let door = UdpListener::bind(Ipv4Addr::LOCALHOST.into(), 1, None).unwrap();
        let ports = door.ports().unwrap();
        let timeout = Duration::from_millis(300);
        let meeting = std::thread::spawn(move || door.meet(9, timeout, &mut || false));
        let stranger = reach(Ipv4Addr::LOCALHOST.into(), &ports, 8, None, timeout, &mut || false);
        assert!(matches!(stranger, Err(ConnectError::Missing { arrived: 0, wanted: 1, .. })));
        assert!(matches!(meeting.join().unwrap(), Err(ConnectError::Missing { .. })));
    }

    #[test]
    fn drops_are_those_of_the_sockets_asked_about() {
        let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (full, other, sender) = (bind(), bind(), bind());
        sockopt::set_socket_recv_buffer_size(&full, 4_096).unwrap();
        for _ in 0..50 {
            sender.send_to(&[0; 1_000], full.local_addr().unwrap()).unwrap();
        }
        full.set_nonblocking(true).unwrap();
        let arrived = std::iter::from_fn(|| full.recv(&mut [0; 1_000]).ok()).count() as u64;
        assert!(arrived < 50, "the buffer is not so long");
        assert_eq!(drops_at(&[full.try_clone().unwrap()]), 50 - arrived);
        assert_eq!(drops_at(&[other, sender]), 0);
        assert!(socket_drops() >= 50 - arrived);
        let v6 = UdpSocket::bind((std::net::Ipv6Addr::LOCALHOST, 0)).unwrap();
        assert_eq!(drops_at(&[full, v6]), 50 - arrived);
    }

    #[test]
    fn drops_of_both_ip_versions_are_found_by_name() {
        let text = "Tcp: A B\nTcp: 1 2\nUdp: InDatagrams RcvbufErrors SndbufErrors\nUdp: 10 7 3\n";
        assert_eq!(dropped_v4(text), 7);
        assert_eq!(dropped_v6("Udp6InErrors 9\nUdp6RcvbufErrors                \t4\n"), 4);
        assert_eq!((dropped_v4(""), dropped_v6("")), (0, 0));
    }
}
