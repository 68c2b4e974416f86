//! A gateway's shard that gets more than it can handle: time passes when it has handled a packet,
//! and then several new ones come.
//!
//! ```text
//!   peers ──▶ queue of the kernel, which drops what finds it full ──▶ shard ──▶ TUN device
//!     ▲                                                                            │
//!     └──────────── for each packet that is written, as many new ones ◀────────────┘
//! ```

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;

use vpnd_crypto::{Backend, EpochSecret, Suite};
use vpnd_proto::control::{FEATURE_PARTIAL_CHECKSUM, FEATURE_PATH_SIZE};
use vpnd_proto::plane::{Endpoint, EpochSpec, ReceiveSpec};
use vpnd_proto::time::Time;
use vpnd_proto::wire::{HEADER_LEN, Index};

use super::*;

/// Messages that the kernel's queue holds.
const KERNEL_QUEUE: usize = 2_000;
const PAYLOAD: usize = 900;
const UDP: usize = 20 + 8;
pub(super) const OUTER: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)), 4500);

/// A client without a shard: its plane seals packets with rising numbers.
struct Peer {
    index: u8,
    plane: Plane,
    address: SocketAddr,
    sent: u32,
}

pub(super) fn slot(index: u8) -> Slot {
    Slot { index: index.into(), generation: 0 }
}

/// Opens session `index` in a plane. It has an address, and a network of each IP version behind its
/// client.
pub(super) fn commands(index: u8, at: Slot, role: Role) -> [Command; 2] {
    let number = u32::from(index) << 8;
    let (own, peer) = if role == Role::Gateway {
        (0x1_0000 + number, 0x2_0000 + number)
    } else {
        (0x2_0000 + number, 0x1_0000 + number)
    };
    let session = SessionSpec {
        slot: at,
        addresses: vec![
            std::net::IpAddr::from([10, 86, 0, index]).into(),
            format!("10.99.{index}.0/24").parse().unwrap(),
            format!("fd00:{index}::/64").parse().unwrap(),
        ],
        principal: Principal::default(),
        limits: None,
        flows: Arc::default(),
        path: Arc::default(),
    };
    let epoch = EpochSpec {
        slot: at,
        epoch: 1,
        suite: Suite::Aes128Gcm,
        backend: Backend::Ring,
        lab: None,
        secret: Arc::new(EpochSecret::new([index; 32])),
        features: FEATURE_PARTIAL_CHECKSUM | FEATURE_PATH_SIZE,
        lane: 0,
        peer_index: Index(peer),
        peer_lane: 0,
        endpoint: (role == Role::Client).then_some(Endpoint { remote: OUTER, local: None }),
        receive: vec![ReceiveSpec { index: Index(own), lanes: vec![0] }],
        reject_at: Time::from_nanos(u64::MAX),
    };
    [Command::Open(session), Command::Install(Box::new(epoch))]
}

impl Peer {
    fn new(index: u8) -> Self {
        let mut plane = Plane::new(Role::Client, Arc::new(Policy::default()), 0);
        for command in commands(index, slot(0), Role::Client) {
            plane.apply(command);
        }
        Self { index, plane, address: ([198, 51, 100, index], 4500).into(), sent: 0 }
    }

    /// The first one's packets are ECN-capable, ECT(0).
    fn class(&self) -> u8 {
        if self.index == 0 { 46 << 2 | 2 } else { 46 << 2 }
    }

    /// Its next packet for the campus, sealed.
    fn datagram(&mut self) -> Vec<u8> {
        self.datagram_to([10, 200, 0, 9], PAYLOAD)
    }

    fn datagram_to(&mut self, destination: [u8; 4], payload: usize) -> Vec<u8> {
        let source = [10, 86, 0, self.index];
        let mut packet = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 17, 0, 0];
        packet[1] = self.class();
        packet.extend(source.into_iter().chain(destination));
        packet.extend([0x9C, 0x40, 1, 0xBB, 0, 0, 0, 0]);
        packet.extend(self.sent.to_be_bytes());
        packet.resize(UDP + payload, 0x5A);
        let len = packet.len();
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        packet[24..26].copy_from_slice(&(len as u16 - 20).to_be_bytes());
        let checksum = vpnd_packet::checksum::ipv4_header(&packet[..20]);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        self.sent += 1;
        let mut datagram = vec![0; HEADER_LEN + len + 48];
        datagram[HEADER_LEN..HEADER_LEN + len].copy_from_slice(&packet);
        let mut sender = self.plane.sender(Time::ZERO, slot(0)).expect("it has an epoch");
        let sealed = sender.seal_packet(&mut datagram, len).expect("it may seal");
        datagram.truncate(sealed.len);
        datagram
    }
}

/// Senders, their packets, and the fate of these.
struct World {
    peers: RefCell<Vec<Peer>>,
    /// Senders in the order in which their datagrams come, again and again: a peer, or `None` for
    /// the attacker.
    pattern: Vec<Option<usize>>,
    at: Cell<usize>,
    /// Datagrams that come while one packet is handled.
    load: Cell<usize>,
    kernel: RefCell<VecDeque<(SocketAddr, Vec<u8>)>>,
    kernel_drops: Cell<u64>,
    came: Cell<u64>,
    /// The numbers of the packets that were written, in their order, by peer.
    written: RefCell<BTreeMap<u8, Vec<u32>>>,
    total: Cell<u64>,
    /// Packets that came out with a mark.
    marked: Cell<u64>,
    /// Where datagrams were sent to, and their lengths.
    sent: RefCell<Vec<(SocketAddr, usize)>>,
}

impl World {
    fn new(peers: u8, pattern: Vec<Option<usize>>, load: usize) -> Self {
        Self {
            peers: RefCell::new((0..peers).map(Peer::new).collect()),
            pattern,
            at: Cell::new(0),
            load: Cell::new(load),
            kernel: RefCell::default(),
            kernel_drops: Cell::new(0),
            came: Cell::new(0),
            written: RefCell::default(),
            total: Cell::new(0),
            marked: Cell::new(0),
            sent: RefCell::default(),
        }
    }

    fn gateway(&self) -> Stepped<&Self, &Self> {
        let policy = Arc::new(Policy::without_rules(true));
        let none = TunOffloads { checksum: false, tso4: false, tso6: false, uso: false, ..TunOffloads::ALL };
        let spec = SteppedSpec { role: Role::Gateway, policy, tun_offloads: none, mtu: 1_400 };
        let mut gateway = Stepped::new(spec, self, self);
        for peer in self.peers.borrow_mut().iter_mut() {
            for command in commands(peer.index, slot(peer.index), Role::Gateway) {
                gateway.command(command);
            }
            // It is known where the peer is.
            self.arrive_from(peer);
        }
        while gateway.receive() == Progress::More {}
        gateway
    }

    fn arrive_from(&self, peer: &mut Peer) {
        let datagram = peer.datagram();
        self.arrive(peer.address, datagram);
    }

    fn arrive(&self, from: SocketAddr, datagram: Vec<u8>) {
        self.came.set(self.came.get() + 1);
        let mut kernel = self.kernel.borrow_mut();
        if kernel.len() < KERNEL_QUEUE {
            kernel.push_back((from, datagram));
        } else {
            self.kernel_drops.set(self.kernel_drops.get() + 1);
        }
    }

    /// The time that a packet takes passes.
    fn pass(&self) {
        for _ in 0..self.load.get() {
            let sender = self.pattern[self.at.get() % self.pattern.len()];
            self.at.set(self.at.get() + 1);
            let mut peers = self.peers.borrow_mut();
            match sender {
                Some(peer) => self.arrive_from(&mut peers[peer]),
                None => {
                    // The index of peer 0, from somewhere else.
                    let mut forged = peers[0].datagram();
                    *forged.last_mut().unwrap() ^= 1;
                    self.arrive(([203, 0, 113, 66], 666).into(), forged);
                }
            }
        }
    }

    /// Steps the gateway until `packets` packets were written. Returns the number of each peer.
    fn run(&self, gateway: &mut Stepped<&Self, &Self>, packets: u64) -> Vec<f64> {
        let counts = || -> Vec<usize> {
            let written = self.written.borrow();
            (0..self.peers.borrow().len() as u8).map(|peer| written.get(&peer).map_or(0, Vec::len)).collect()
        };
        let (before, end) = (counts(), self.total.get() + packets);
        while self.total.get() < end {
            self.pass();
            gateway.receive();
        }
        counts().iter().zip(before).map(|(after, before)| (after - before) as f64).collect()
    }
}

impl PacketDevice for World {
    fn try_read(&self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let bytes = gathered(parts);
        let (_, packet) = VirtioHeader::split(&bytes).expect("a virtio header");
        let number = u32::from_be_bytes(packet[UDP..UDP + 4].try_into().unwrap());
        self.written.borrow_mut().entry(packet[15]).or_default().push(number);
        self.total.set(self.total.get() + 1);
        let mut header = packet[..20].to_vec();
        header[10..12].fill(0);
        assert_eq!(packet[10..12], vpnd_packet::checksum::ipv4_header(&header).to_be_bytes());
        if packet[1] != self.peers.borrow()[usize::from(packet[15])].class() {
            assert_eq!((packet[1], packet[15]), (46 << 2 | 3, 0), "only what is ECN-capable is changed");
            self.marked.set(self.marked.get() + 1);
        }
        self.pass();
        Ok(bytes.len())
    }
}

impl DatagramSocket for World {
    fn try_recv(&self, bufs: &mut [IoSliceMut<'_>], meta: &mut [RecvMeta]) -> io::Result<usize> {
        let next = || {
            let (from, datagram) = self.kernel.borrow_mut().pop_front()?;
            let stride = datagram.len();
            Some((from, datagram, stride))
        };
        receive(next, bufs, meta)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> SendOutcome {
        self.sent.borrow_mut().push((transmit.destination, transmit.contents.len()));
        SendOutcome::Sent
    }

    fn try_send_many(&self, transmits: &[Transmit<'_>]) -> usize {
        transmits.iter().for_each(|transmit| {
            self.try_send(transmit);
        });
        transmits.len()
    }

    fn wait_writable(&self, _: Duration) -> Duration {
        Duration::ZERO
    }

    fn offloads(&self) -> UdpOffloads {
        Mute.offloads()
    }
}

/// Jain's index of fairness.
pub(super) fn jain(parts: &[f64]) -> f64 {
    let (sum, squares) = (parts.iter().sum::<f64>(), parts.iter().map(|part| part * part).sum::<f64>());
    sum * sum / (squares * parts.len() as f64)
}

/// One greedy session, whose datagrams are 16 of 24, and four that send two each.
fn greedy() -> Vec<Option<usize>> {
    (0..24).map(|at| Some(if at % 3 == 0 { 1 + at / 3 % 4 } else { 0 })).collect()
}

#[test]
fn a_greedy_session_gets_no_more_than_the_others() {
    let world = World::new(5, greedy(), 3);
    let mut gateway = world.gateway();
    world.run(&mut gateway, 4_000);
    let parts = world.run(&mut gateway, 24_000);
    assert!(jain(&parts) > 0.99, "{parts:?}");
    // The others came in order, and each that is missing was dropped and counted.
    for (peer, numbers) in world.written.borrow().iter() {
        assert!(numbers.is_sorted_by(|one, next| one < next), "{peer}");
    }
    let counters = gateway.report().counters;
    assert_eq!(counters.total(), counters.dropped(DropReason::Overload));
    assert!(counters.total() > 8_000, "{counters:?}");
}

#[test]
fn packets_of_a_session_that_waits_for_long_get_marks_if_they_can_have_them() {
    let world = World::new(5, greedy(), 3);
    let mut gateway = world.gateway();
    // The time for that depends on the machine: the queue has to stand for a tenth of a second.
    let start = now();
    while world.marked.get() == 0 && now().since(start) < Duration::from_secs(20) {
        world.run(&mut gateway, 1_000);
    }
    assert!(world.marked.get() > 0, "{} packets without a mark", world.total.get());
}

#[test]
fn one_packet_of_a_run_is_marked_congested() {
    // The first peer's packets are ECN-capable, the second one's are not.
    for (peer, marked, lost) in [(0, 1, 0), (1, 0, 1)] {
        let world = World::new(2, greedy(), 0);
        let mut gateway = world.gateway();
        let before = world.total.get();
        let run: Vec<u8> = (0..3).flat_map(|_| world.peers.borrow_mut()[peer].datagram()).collect();
        let address = world.peers.borrow()[peer].address;
        let mut meta = RecvMeta::default();
        (meta.addr, meta.len, meta.stride) = (address, run.len(), run.len() / 3);
        gateway.shard.handle_messages(now(), &mut [run.into()], &[meta], 1);
        let dropped = gateway.report().counters.dropped(DropReason::Overload);
        assert_eq!((world.total.get() - before, world.marked.get(), dropped), (3 - lost, marked, lost));
    }
}

#[test]
fn each_datagram_leaves_or_is_counted_and_a_shard_that_has_caught_up_is_as_before() {
    let world = World::new(5, greedy(), 3);
    let mut gateway = world.gateway();
    world.run(&mut gateway, 4_000);
    assert!(gateway.shard.inbound.overload.is_behind && !gateway.shard.inbound.overload.backlog.is_empty());
    world.load.set(0);
    while gateway.receive() == Progress::More {}
    assert!(!gateway.shard.inbound.overload.is_behind && gateway.shard.inbound.overload.backlog.is_empty());
    let drops = gateway.report().counters.total() + world.kernel_drops.get();
    assert_eq!(world.came.get(), world.total.get() + drops);
}

#[test]
fn what_waits_is_handled_before_another_process_takes_the_socket() {
    let world = World::new(5, greedy(), 3);
    let mut gateway = world.gateway();
    world.run(&mut gateway, 4_000);
    let before = world.total.get();
    world.load.set(0);
    gateway.shard.handle_backlog();
    assert!(gateway.shard.inbound.overload.backlog.is_empty() && world.total.get() > before + 1_000);
}

#[test]
fn a_packet_of_a_modest_session_waits_for_a_fraction_of_what_the_others_have() {
    let mut pattern = greedy();
    // One in 408 is of a sixth session.
    pattern = (0..17).flat_map(|_| pattern.clone()).chain([Some(5)]).collect();
    let world = World::new(6, pattern, 3);
    let mut gateway = world.gateway();
    world.run(&mut gateway, 4_000);
    let (sent, written) = (world.peers.borrow()[5].sent, world.written.borrow()[&5].len());
    let parts = world.run(&mut gateway, 8_000);
    let sent = world.peers.borrow()[5].sent - sent;
    assert!(sent > 50 && parts[5] >= f64::from(sent) - 4.0, "{sent} sent, {parts:?}");
    // None was lost, and no more than a few wait.
    let numbers = world.written.borrow()[&5].clone();
    assert!(numbers[written..].is_sorted_by(|one, next| one + 1 == *next), "{numbers:?}");
}

#[test]
fn a_flood_with_the_index_of_a_session_costs_that_session_nothing() {
    // Four sessions, and an attacker who knows the index of the first and sends three times as much
    // as all of them.
    let pattern = (0..16).map(|at| (at % 4 == 0).then_some(at / 4)).collect();
    let world = World::new(4, pattern, 8);
    let mut gateway = world.gateway();
    world.run(&mut gateway, 4_000);
    // Some rounds.
    let parts = world.run(&mut gateway, 24_000);
    assert!(jain(&parts) > 0.99, "{parts:?}");
    assert!(gateway.report().counters.dropped(DropReason::Overload) > 24_000);
}

#[test]
fn a_client_is_asked_about_its_path_behind_the_packets_that_have_to_pass_it() {
    let world = World::new(2, greedy(), 0);
    let mut gateway = world.gateway();
    let (address, datagrams) = {
        let mut peers = world.peers.borrow_mut();
        let datagrams: Vec<_> = (0..3).map(|_| peers[0].datagram_to([10, 86, 0, 1], 1_300)).collect();
        (peers[0].address, datagrams)
    };
    datagrams.into_iter().for_each(|datagram| world.arrive(address, datagram));
    while gateway.receive() == Progress::More {}
    let to = world.peers.borrow()[1].address;
    let (packet, check) = (HEADER_LEN + UDP + 1_300 + 16, HEADER_LEN + 2 + 16);
    assert_eq!(*world.sent.borrow(), [(to, packet), (to, packet), (to, packet), (to, check)]);
}
