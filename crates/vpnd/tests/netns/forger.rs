//! A flood of datagrams whose sender is forged, each from another address; and real first datagrams
//! of QUIC clients.
//!
//! Invariants: it ends with its value; addresses are none of the laboratory's. This module must not
//! know how a gateway defends itself.

use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, sendmmsg};
use quinn::crypto::rustls::QuicClientConfig;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use socket2::{Domain, Protocol, Socket, Type};

use crate::namespace::Namespace;

/// Datagrams of one system call.
const BATCH: usize = 64;
const IP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
/// `IPPROTO_RAW`: the sender writes the IP header.
const RAW: i32 = 255;

/// A flood under way.
pub(crate) struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
    began: Instant,
}

impl Flood {
    /// Begins to send the datagrams of `flight` in turns from `namespace` to `to`, at `rate` a
    /// second, or as many as one thread can.
    pub(crate) fn start(
        namespace: &Namespace,
        to: SocketAddrV4,
        flight: &[Vec<u8>],
        rate: Option<u32>,
    ) -> Self {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let handle = namespace.handle();
        let mut packets: Vec<Vec<u8>> =
            (0..BATCH).map(|number| packet(&flight[number % flight.len()], to)).collect();
        let (is_over, count) = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = std::thread::spawn(move || {
            handle.enter();
            let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(RAW))).expect("root may");
            let mut random = SmallRng::seed_from_u64(1);
            let began = Instant::now();
            while !is_over.load(Ordering::Relaxed) {
                for packet in &mut packets {
                    forge(packet, &mut random);
                }
                let so_far = count.fetch_add(send(&socket, &packets, to), Ordering::Relaxed);
                if let Some(rate) = rate {
                    let due = Duration::from_secs_f64((so_far + BATCH as u64) as f64 / f64::from(rate));
                    std::thread::sleep(due.saturating_sub(began.elapsed()));
                }
            }
        });
        Self { stop, sent, thread: Some(thread), began: Instant::now() }
    }

    /// Datagrams sent so far, and how many that is each second.
    pub(crate) fn sent(&self) -> (u64, f64) {
        let sent = self.sent.load(Ordering::Relaxed);
        (sent, sent as f64 / self.began.elapsed().as_secs_f64())
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // If it has panicked, the test has its message.
            let _ = thread.join();
        }
    }
}

/// Begins as many handshakes at once, from real addresses, with a client that trusts no gateway and
/// so never goes on.
pub(crate) fn knock(namespace: &Namespace, to: SocketAddrV4, times: usize) {
    namespace.within(|| {
        runtime().block_on(async {
            let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            let endpoint = quinn::Endpoint::client(any).expect("a socket");
            let handshake = || endpoint.connect_with(client(), to.into(), "localhost").expect("a client");
            let handshakes: Vec<quinn::Connecting> = (0..times).map(|_| handshake()).collect();
            for handshake in handshakes {
                // Those that get no answer never end by themselves.
                let _ = tokio::time::timeout(Duration::from_millis(500), handshake).await;
            }
        });
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// A client that trusts no authority.
fn client() -> quinn::ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has TLS 1.3")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"vpnd/1".to_vec()];
    quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).expect("TLS 1.3 is there")))
}

/// First datagrams of many different clients.
pub(crate) fn first_datagrams() -> Vec<Vec<u8>> {
    runtime().block_on(async {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let silent = tokio::net::UdpSocket::bind(any).await.expect("a loopback");
        let endpoint = quinn::Endpoint::client(any).expect("a loopback");
        let mut flights = Vec::new();
        let mut connecting = Vec::new();
        let to = silent.local_addr().expect("it is bound");
        for _ in 0..BATCH {
            connecting.push(endpoint.connect_with(client(), to, "localhost").expect("a client"));
            let mut datagram = vec![0; 2_048];
            // A client runs in this thread, too.
            let first = tokio::time::timeout(Duration::from_secs(30), silent.recv(&mut datagram)).await;
            let length = first.expect("a client speaks first").expect("it is a socket");
            datagram.truncate(length);
            flights.push(datagram);
        }
        flights
    })
}

/// An IPv4 packet with a UDP datagram without checksum; the kernel adds what belongs to the IP
/// header.
fn packet(payload: &[u8], to: SocketAddrV4) -> Vec<u8> {
    let mut packet = vec![0; IP_HEADER + UDP_HEADER];
    (packet[0], packet[8], packet[9]) = (0x45, 64, 17);
    packet[16..20].copy_from_slice(&to.ip().octets());
    packet[22..24].copy_from_slice(&to.port().to_be_bytes());
    packet[24..26].copy_from_slice(&((UDP_HEADER + payload.len()) as u16).to_be_bytes());
    packet.extend_from_slice(payload);
    packet
}

/// Another sender, anywhere but in 0/8, 10/8, 127/8 and from 192/8 on.
fn forge(packet: &mut [u8], random: &mut SmallRng) {
    let address: [u8; 4] = random.random();
    let first = address[0] % 64 + 64;
    packet[12..16].copy_from_slice(&address);
    packet[12] = if first == 127 { 128 } else { first };
    let port = random.random_range(1_024..u16::MAX);
    packet[20..22].copy_from_slice(&port.to_be_bytes());
}

/// Sends them, and counts those that the kernel took.
fn send(socket: &Socket, packets: &[Vec<u8>], to: SocketAddrV4) -> u64 {
    let slices: Vec<[IoSlice<'_>; 1]> = packets.iter().map(|packet| [IoSlice::new(packet)]).collect();
    let addresses = vec![Some(SockaddrIn::from(to)); packets.len()];
    let mut headers = MultiHeaders::preallocate(packets.len(), None);
    match sendmmsg(socket.as_raw_fd(), &mut headers, &slices, &addresses, [], MsgFlags::empty()) {
        Ok(results) => results.count() as u64,
        // A full queue of the sender.
        Err(Errno::ENOBUFS | Errno::EAGAIN | Errno::EINTR) => 0,
        Err(error) => panic!("forged packets can't be sent: {error}"),
    }
}
