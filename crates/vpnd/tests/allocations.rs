//! The data path allocates nothing for a packet: the shards of a gateway and two clients, on
//! sockets of the loopback device and TUN devices made of memory, carry each kind of traffic while
//! every allocation of the process is counted.
//!
//! One test only: another would allocate at the same time.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vpnd_crypto::{Backend, EpochSecret, Suite};
use vpnd_packet::offload::VirtioHeader;
use vpnd_proto::plane::{Command, Endpoint, EpochSpec, Event, ReceiveSpec, Role, SessionSpec, Slot};
use vpnd_proto::policy::{Policy, Principal};
use vpnd_proto::time::Time;
use vpnd_proto::wire::Index;
use vpnd_shard::Progress;
use vpnd_shard::devices::PacketDevice;
use vpnd_shard::stepped::{Stepped, SteppedSpec};
use vpnd_sys::tun::TunOffloads;
use vpnd_sys::udp::{ShardSocket, SocketOptions};
use zerocopy::{FromBytes, IntoBytes};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// Rounds before counting: buffers grow, the clients' endpoints are learned, lazy things are made.
const WARM_UP: usize = 20;
const ROUNDS: usize = 200;

/// A TUN device in memory: hands out one packet some times, and takes packets as a kernel does.
struct MemoryTun {
    packet: RefCell<Vec<u8>>,
    left: Cell<usize>,
    /// Length of virtio header and packet headers of what is written.
    headers: Cell<usize>,
    /// Bytes of payload that were written.
    payload: Cell<usize>,
}

impl MemoryTun {
    fn new() -> Self {
        let zero = || Cell::new(0);
        Self { packet: RefCell::default(), left: zero(), headers: zero(), payload: zero() }
    }

    fn load(&self, packet: &[u8]) {
        packet.clone_into(&mut self.packet.borrow_mut());
    }
}

impl PacketDevice for MemoryTun {
    fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        if self.left.get() == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.left.set(self.left.get() - 1);
        let packet = self.packet.borrow();
        buf[..packet.len()].copy_from_slice(&packet);
        Ok(packet.len())
    }

    fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        self.payload.set(self.payload.get() + len - self.headers.get());
        Ok(len)
    }
}

type Host = Stepped<MemoryTun, ShardSocket>;

fn host(role: Role) -> Host {
    let socket = ShardSocket::bind(SocketAddr::from(([127, 0, 0, 1], 0)), &SocketOptions::default());
    let socket = socket.expect("a socket on the loopback device");
    let spec = SteppedSpec {
        role,
        policy: Arc::new(Policy::without_rules(true)),
        tun_offloads: TunOffloads::ALL,
        mtu: 1408,
    };
    Stepped::new(spec, MemoryTun::new(), socket)
}

fn address(host: &Host) -> SocketAddr {
    host.socket().local_addr().expect("it is bound")
}

/// A gateway and its clients.
struct Net {
    gateway: Host,
    clients: Vec<Host>,
}

impl Net {
    fn new() -> Self {
        let mut net = Self { gateway: host(Role::Gateway), clients: Vec::new() };
        for place in 0..2 {
            let mut client = host(Role::Client);
            let session = |place| SessionSpec {
                slot: Slot { index: place, generation: 0 },
                addresses: Vec::new(),
                principal: Principal::default(),
                limits: None,
                flows: Arc::default(),
                path: Arc::default(),
            };
            let addresses = vec![format!("10.86.0.{}/32", 2 + place).parse().expect("a network")];
            client.command(Command::Open(SessionSpec { addresses: addresses.clone(), ..session(0) }));
            net.gateway.command(Command::Open(SessionSpec { addresses, ..session(place) }));
            let keys = |place, own, peer, endpoint| {
                Command::Install(Box::new(EpochSpec {
                    slot: Slot { index: place, generation: 0 },
                    epoch: 1,
                    suite: Suite::Aes256Gcm,
                    backend: Backend::AwsLc,
                    lab: None,
                    secret: Arc::new(EpochSecret::new([own as u8; 32])),
                    features: 1,
                    lane: 0,
                    peer_index: Index(peer),
                    peer_lane: 0,
                    endpoint,
                    receive: vec![ReceiveSpec { index: Index(own), lanes: vec![0] }],
                    reject_at: Time::from_nanos(u64::MAX),
                }))
            };
            let gateway = Endpoint { remote: address(&net.gateway), local: None };
            let (low, high) = (0x100 * place + 0x1_0000, 0x100 * place + 0x2_0000);
            net.gateway.command(keys(place, low, high, None));
            client.command(keys(0, high, low, Some(gateway)));
            net.clients.push(client);
        }
        net
    }

    /// Lets everyone work until `client` and the gateway have nothing more to do, and acts as
    /// control for what they see.
    fn settle(&mut self, done: impl Fn(&Self) -> bool) {
        let patience = Instant::now() + Duration::from_secs(10);
        while !done(self) {
            assert!(Instant::now() < patience, "packets were lost: {:?}", self.gateway.report());
            for host in std::iter::once(&mut self.gateway).chain(&mut self.clients) {
                while host.transmit().expect("the device works") == Progress::More {}
                while host.receive() == Progress::More {}
                while let Some(event) = host.poll_event() {
                    if let Event::Heard { slot, epoch, lane, endpoint } = event {
                        host.command(Command::Reach { slot, epoch, lane, endpoint });
                    }
                }
            }
        }
    }
}

/// A packet of the kernel behind its virtio header, checksum and perhaps cutting left to do.
fn packet(protocol: u8, from: [u8; 4], to: [u8; 4], payload: usize, gso_size: usize) -> Vec<u8> {
    let transport = if protocol == 6 { 20 } else { 8 };
    let len = (20 + transport + payload) as u16;
    let mut bytes = vec![0x45, 0];
    bytes.extend(len.to_be_bytes());
    bytes.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
    bytes.extend(from);
    bytes.extend(to);
    let checksum = vpnd_packet::checksum::ipv4_header(&bytes);
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
    bytes.extend([0x9C, 0x40, 1, 0xBB]);
    if protocol == 6 {
        bytes.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0xF6, 0, 0, 0, 0]);
    } else {
        bytes.extend((len - 20).to_be_bytes());
        bytes.extend([0, 0]);
    }
    bytes.resize(usize::from(len), 0x5A);
    let cut = payload > gso_size;
    let kind = if protocol == 6 { VirtioHeader::GSO_TCPV4 } else { VirtioHeader::GSO_UDP_L4 };
    let header = VirtioHeader {
        flags: VirtioHeader::NEEDS_CSUM,
        gso_type: if cut { kind } else { VirtioHeader::GSO_NONE },
        hdr_len: (20 + transport as u16).into(),
        gso_size: if cut { gso_size as u16 } else { 0 }.into(),
        csum_start: 20.into(),
        csum_offset: if protocol == 6 { 16 } else { 6 }.into(),
    };
    [header.as_bytes(), &bytes].concat()
}

const CAMPUS: [u8; 4] = [10, 200, 0, 9];
const ANN: [u8; 4] = [10, 86, 0, 2];
const BOB: [u8; 4] = [10, 86, 0, 3];

#[derive(Clone, Copy, Debug)]
enum Way {
    ClientToCampus,
    CampusToClient,
    ClientToClient,
}

/// Sends `burst` packets each round; returns how many bytes of payload arrived.
fn carry(net: &mut Net, way: Way, rounds: usize, burst: usize) -> usize {
    fn ends(net: &Net, way: Way) -> (&MemoryTun, &MemoryTun) {
        match way {
            Way::ClientToCampus => (net.clients[0].tun(), net.gateway.tun()),
            Way::CampusToClient => (net.gateway.tun(), net.clients[0].tun()),
            Way::ClientToClient => (net.clients[0].tun(), net.clients[1].tun()),
        }
    }
    let (sender, receiver) = ends(net, way);
    let (header, _) = VirtioHeader::read_from_prefix(&sender.packet.borrow()).expect("a virtio header");
    let headers = usize::from(header.hdr_len.get());
    receiver.headers.set(size_of::<VirtioHeader>() + headers);
    let payload = sender.packet.borrow().len() - receiver.headers.get();
    let before = receiver.payload.get();
    for round in 1..=rounds {
        ends(net, way).0.left.set(burst);
        net.settle(|net| ends(net, way).1.payload.get() >= before + round * burst * payload);
    }
    ends(net, way).1.payload.get() - before
}

#[test]
fn no_packet_costs_an_allocation() {
    let _profiler = dhat::Profiler::builder().testing().build();
    let mut net = Net::new();
    // Both clients send first, so that the gateway learns their endpoints.
    net.clients[0].tun().load(&packet(17, ANN, CAMPUS, 10, 1000));
    net.clients[1].tun().load(&packet(17, BOB, CAMPUS, 20, 1000));
    net.clients[1].tun().left.set(1);
    carry(&mut net, Way::ClientToCampus, 1, 1);
    net.settle(|net| net.gateway.tun().payload.get() == 30);

    let ways = [
        (Way::ClientToCampus, ANN, CAMPUS),
        (Way::CampusToClient, CAMPUS, ANN),
        (Way::ClientToClient, ANN, BOB),
    ];
    // TCP and UDP super-packets, and small packets that no offload helps.
    let kinds = [(6, 40 * 1300 + 7, 1300, 2), (17, 30 * 1200, 1200, 2), (17, 64, 1200, 20), (6, 1, 1300, 1)];
    for (way, from, to) in ways {
        for (protocol, payload, gso_size, burst) in kinds {
            let sender = match way {
                Way::CampusToClient => net.gateway.tun(),
                _ => net.clients[0].tun(),
            };
            sender.load(&packet(protocol, from, to, payload, gso_size));
            carry(&mut net, way, WARM_UP, burst);
            let before = dhat::HeapStats::get().total_blocks;
            let bytes = carry(&mut net, way, ROUNDS, burst);
            let allocated = dhat::HeapStats::get().total_blocks - before;
            assert_eq!(bytes, ROUNDS * burst * payload);
            assert_eq!(allocated, 0, "{way:?}, protocol {protocol}, {payload} bytes: allocations");
        }
    }
}
