//! Test traffic: pings, and transfers whose bytes are compared.
//!
//! Invariants: every wait has an end; payload is pseudo-random, so nothing can be right by chance.
//! This module must not know whether there is a VPN.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sha2::{Digest, Sha256};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::lab::eventually;
use crate::namespace::Namespace;

/// Bytes of one transfer.
pub(crate) const TEN_MB: usize = 10_000_000;

const CHUNK: usize = 64 * 1024;
const ICMP_ECHO: [u8; 2] = [8, 0];
const ICMPV6_ECHO: [u8; 2] = [128, 129];

/// Sends one ICMP echo request with `size` bytes of payload; whether its answer came within
/// `limit`.
pub(crate) fn ping(from: &Namespace, to: IpAddr, size: usize, limit: Duration) -> bool {
    from.within(|| echo_request(None, to, size, limit)).unwrap_or(false)
}

/// Pings from an address of the sender's choice.
pub(crate) fn ping_as(from: &Namespace, source: IpAddr, to: IpAddr, limit: Duration) -> bool {
    from.within(|| echo_request(Some(source), to, 56, limit)).expect("the source address can be used")
}

/// Pings until an answer comes; fails when the time is up.
pub(crate) fn ping_until(from: &Namespace, to: IpAddr, limit: Duration) {
    let reply = || ping(from, to, 56, Duration::from_millis(200)).then_some(());
    eventually(&format!("{to} answers"), limit, reply);
}

/// Seconds since the first call, as a number of 16 bits.
fn seconds() -> u16 {
    static START: OnceLock<Instant> = OnceLock::new();
    (START.get_or_init(Instant::now).elapsed().as_secs() & 0xffff) as u16
}

fn echo_request(source: Option<IpAddr>, to: IpAddr, size: usize, limit: Duration) -> io::Result<bool> {
    let (domain, protocol, [request, reply]) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, ICMP_ECHO),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, ICMPV6_ECHO),
    };
    let mut socket = Socket::new(domain, Type::RAW, Some(protocol))?;
    if let Some(source) = source {
        socket.bind(&SockAddr::from(SocketAddr::new(source, 0)))?;
    }
    let mut payload = vec![0; size.max(8)];
    rand::rng().fill_bytes(&mut payload);
    // The identifier: a loop of pings is one connection each second, as one program's pings are
    // one.
    payload[..2].copy_from_slice(&seconds().to_be_bytes());
    let mut packet = vec![request, 0, 0, 0];
    packet.extend(&payload);
    if to.is_ipv4() {
        // For ICMPv6 the kernel computes the checksum.
        let sum = internet_checksum(&packet);
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    socket.send_to(&packet, &SocketAddr::new(to, 0).into())?;
    let end = Instant::now() + limit;
    let mut answer = vec![0; size + 256];
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        socket.set_read_timeout(Some(left))?;
        let length = match socket.read(&mut answer) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        // A raw IPv4 socket also gets the IP header; either way the answer ends with our own random
        // bytes.
        let header = if to.is_ipv4() { usize::from(answer[0] & 0xf) * 4 } else { 0 };
        if length >= header + 4 && answer[header] == reply && answer[header + 4..length] == payload {
            return Ok(true);
        }
    }
    Ok(false)
}

/// RFC 1071.
pub(crate) fn internet_checksum(bytes: &[u8]) -> u16 {
    let words =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

/// Sends `bytes` pseudo-random bytes over TCP to an echo server at `to` and compares what comes
/// back: the same number of bytes each way. Fails if anything is different or `limit` passes
/// without progress.
pub(crate) fn transfer(from: &Namespace, server: &Namespace, to: IpAddr, bytes: usize, limit: Duration) {
    let listener =
        server.within(|| TcpListener::bind(SocketAddr::new(to, 0))).expect("the address is the server's");
    let address = listener.local_addr().expect("it is bound");
    thread::scope(|scope| {
        scope.spawn(|| {
            let stream =
                accept(&listener, limit).unwrap_or_else(|error| panic!("no connection came: {error}"));
            echo(stream, limit).unwrap_or_else(|error| panic!("server: {error}"));
        });
        let result = from.within(|| send_and_compare(address, bytes, limit));
        result.unwrap_or_else(|error| panic!("transfer to {to}: {error}"));
    });
}

/// A conversation over one TCP connection for `duration`: each message is answered and compared
/// before the next. It may stall in between, but no longer than `limit`.
pub(crate) fn trickle(from: &Namespace, server: &Namespace, to: IpAddr, duration: Duration, limit: Duration) {
    let start = Instant::now();
    trickle_while(from, server, to, limit, || start.elapsed() < duration);
}

/// A conversation while `goes_on` is true; the longest time that a message took.
pub(crate) fn trickle_while(
    from: &Namespace,
    server: &Namespace,
    to: IpAddr,
    limit: Duration,
    goes_on: impl Fn() -> bool + Send,
) -> Duration {
    let listener =
        server.within(|| TcpListener::bind(SocketAddr::new(to, 0))).expect("the address is the server's");
    let address = listener.local_addr().expect("it is bound");
    thread::scope(|scope| {
        scope.spawn(|| {
            let stream =
                accept(&listener, limit).unwrap_or_else(|error| panic!("no connection came: {error}"));
            echo(stream, limit).unwrap_or_else(|error| panic!("server: {error}"));
        });
        let talk = from.within(|| converse(address, limit, goes_on));
        let (messages, longest) = talk.unwrap_or_else(|error| panic!("conversation with {to}: {error}"));
        assert!(messages > 10, "only {messages} messages got through");
        longest
    })
}

fn converse(to: SocketAddr, limit: Duration, goes_on: impl Fn() -> bool) -> io::Result<(usize, Duration)> {
    let mut stream = TcpStream::connect_timeout(&to, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    let (mut message, mut answer) = (vec![0; 10_000], vec![0; 10_000]);
    let (mut count, mut longest) = (0, Duration::ZERO);
    while goes_on() {
        let began = Instant::now();
        rand::rng().fill_bytes(&mut message);
        stream.write_all(&message)?;
        stream.read_exact(&mut answer)?;
        assert!(message == answer, "message {count} came back changed");
        longest = longest.max(began.elapsed());
        count += 1;
        thread::sleep(Duration::from_millis(5));
    }
    Ok((count, longest))
}

fn accept(listener: &TcpListener, limit: Duration) -> io::Result<TcpStream> {
    let end = Instant::now() + limit;
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < end => {
                thread::sleep(Duration::from_millis(2));
            }
            Err(error) => return Err(error),
        }
    }
}

fn echo(mut stream: TcpStream, limit: Duration) -> io::Result<()> {
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    let mut buffer = vec![0; CHUNK];
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return stream.shutdown(std::net::Shutdown::Write);
        }
        stream.write_all(&buffer[..length])?;
    }
}

fn send_and_compare(to: SocketAddr, bytes: usize, limit: Duration) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    let mut writer = stream.try_clone()?;
    let sender = thread::spawn(move || -> io::Result<_> {
        let (mut random, mut sum) = (StdRng::seed_from_u64(1), Sha256::new());
        let mut chunk = vec![0; CHUNK];
        let mut left = bytes;
        while left > 0 {
            let part = &mut chunk[..left.min(CHUNK)];
            random.fill_bytes(part);
            sum.update(&part);
            writer.write_all(part)?;
            left -= part.len();
        }
        writer.shutdown(std::net::Shutdown::Write)?;
        Ok(sum.finalize())
    });
    let (mut sum, mut buffer, mut received) = (Sha256::new(), vec![0; CHUNK], 0);
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            break;
        }
        sum.update(&buffer[..length]);
        received += length;
    }
    let sent = sender.join().expect("the sender does not panic")?;
    assert_eq!(received, bytes, "bytes came back");
    assert_eq!(sum.finalize(), sent, "the bytes that came back are those sent");
    Ok(())
}
