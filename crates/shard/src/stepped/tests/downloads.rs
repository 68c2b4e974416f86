//! A gateway's shard whose TUN device gets more for the clients than it can send: time passes when
//! it has sent a datagram, and then several new packets come.
//!
//! ```text
//!   campus ──▶ queue of the device, which drops what finds it full ──▶ shard ──▶ clients
//!     ▲                                                                            │
//!     └──────────── for each datagram that is sent, as many new packets ◀──────────┘
//! ```

use std::cell::Cell;
use std::collections::BTreeMap;

use vpnd_packet::ecn::Ecn;
use vpnd_packet::{Version, tcp_flag};
use vpnd_proto::plane::{Endpoint, Opened, Origin};
use vpnd_proto::wire::Header;

use super::overload::{OUTER, commands, jain, slot};
use super::*;
use crate::outbound::parse;

/// Packets that the device's queue holds: more than come before the shard is behind, on a fast
/// machine too.
const KERNEL_QUEUE: usize = 20_000;
const MSS: usize = 1_000;
/// Slices of each packet for the first client, whose downloads are many.
const SLICES: usize = 4;
/// Limit for what takes a fraction of a second on a machine that has nothing else to do.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A client without a shard: its plane opens what arrives.
struct Peer {
    index: u8,
    plane: Plane,
    /// Slices on their way to it so far.
    sent: u32,
    packets: u32,
}

impl Peer {
    fn new(index: u8) -> Self {
        let mut plane = Plane::new(Role::Client, Arc::new(Policy::default()), 0);
        for command in commands(index, slot(0), Role::Client) {
            plane.apply(command);
        }
        Self { index, plane, sent: 0, packets: 0 }
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint { remote: ([198, 51, 100, self.index], 4500).into(), local: None }
    }

    /// Packets for the first one are ECN-capable, ECT(0).
    fn class(&self) -> u8 {
        if self.index == 0 { 46 << 2 | 2 } else { 46 << 2 }
    }

    /// The next packet for it: to its address, or to the network of one or the other IP version
    /// behind it. The sequence numbers go on.
    fn packet(&mut self) -> Vec<u8> {
        let (slices, flags) = match self.index {
            // Each says that its sender has slowed down, which only the first slice may repeat.
            0 => (SLICES, tcp_flag::ACK | tcp_flag::CWR),
            _ => (1, tcp_flag::ACK),
        };
        let mut tcp = vec![0; 20 + slices * MSS];
        tcp[..4].copy_from_slice(&[1, 0xBB, 0x9C, 0x40]);
        tcp[4..8].copy_from_slice(&(self.sent * MSS as u32).to_be_bytes());
        (tcp[12], tcp[13]) = (0x50, flags);
        let is_v6 = self.packets % 3 == 2;
        let ip = match self.packets % 3 {
            0 => ipv4(self.class(), [10, 86, 0, self.index], tcp.len()),
            1 => ipv4(self.class(), [10, 99, self.index, 7], tcp.len()),
            _ => ipv6(self.class(), self.index, tcp.len()),
        };
        let gso = if is_v6 { VirtioHeader::GSO_TCPV6 } else { VirtioHeader::GSO_TCPV4 };
        let is_cut = slices > 1;
        let header = VirtioHeader {
            flags: VirtioHeader::NEEDS_CSUM,
            gso_type: if is_cut { gso | VirtioHeader::GSO_ECN } else { VirtioHeader::GSO_NONE },
            hdr_len: (ip.len() as u16 + 20).into(),
            gso_size: if is_cut { MSS as u16 } else { 0 }.into(),
            csum_start: (ip.len() as u16).into(),
            csum_offset: 16.into(),
        };
        (self.sent, self.packets) = (self.sent + slices as u32, self.packets + 1);
        [header.as_bytes(), &ip, &tcp].concat()
    }
}

fn ipv4(class: u8, to: [u8; 4], payload: usize) -> Vec<u8> {
    let len = (20 + payload) as u16;
    let mut header = vec![0x45, class, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 200, 0, 9];
    header[2..4].copy_from_slice(&len.to_be_bytes());
    header.extend(to);
    let checksum = vpnd_packet::checksum::ipv4_header(&header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header
}

fn ipv6(class: u8, to: u8, payload: usize) -> Vec<u8> {
    let mut header = vec![0x60 | class >> 4, class << 4, 0, 0, 0, 0, 6, 64];
    header[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
    let address = |text: String| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
    header.extend(address("fd99::9".to_owned()));
    header.extend(address(format!("fd00:{to}::7")));
    header
}

/// The packets for each peer, and their fate. Numbers are of slices.
struct World {
    peers: RefCell<Vec<Peer>>,
    /// For whom the next packets are, again and again.
    pattern: Vec<usize>,
    at: Cell<usize>,
    /// Packets that come while one datagram is sent.
    load: Cell<usize>,
    /// Time that sending takes besides that of this program.
    delay: Cell<Duration>,
    kernel: RefCell<VecDeque<Vec<u8>>>,
    kernel_drops: Cell<u64>,
    came: Cell<u64>,
    /// The numbers that arrived, in their order, by peer.
    arrived: RefCell<BTreeMap<u8, Vec<u32>>>,
    total: Cell<u64>,
    /// Those of the first peer that came with a mark.
    marked: RefCell<Vec<u32>>,
}

impl World {
    fn new(peers: u8, pattern: Vec<usize>) -> Self {
        Self {
            peers: RefCell::new((0..peers).map(Peer::new).collect()),
            pattern,
            at: Cell::new(0),
            load: Cell::new(2),
            delay: Cell::default(),
            kernel: RefCell::default(),
            kernel_drops: Cell::new(0),
            came: Cell::new(0),
            arrived: RefCell::default(),
            total: Cell::new(0),
            marked: RefCell::default(),
        }
    }

    fn host(&self, role: Role) -> Stepped<&Self, &Self> {
        let policy = Arc::new(Policy::without_rules(true));
        let spec = SteppedSpec { role, policy, tun_offloads: TunOffloads::ALL, mtu: 1_400 };
        Stepped::new(spec, self, self)
    }

    fn gateway(&self) -> Stepped<&Self, &Self> {
        let mut gateway = self.host(Role::Gateway);
        for peer in self.peers.borrow().iter() {
            let [open, install] = commands(peer.index, slot(peer.index), Role::Gateway);
            gateway.command(open);
            gateway.command(install);
            gateway.command(reach(peer));
        }
        gateway
    }

    /// The time that a datagram takes passes.
    fn pass(&self) {
        for _ in 0..self.load.get() {
            let peer = self.pattern[self.at.get() % self.pattern.len()];
            self.at.set(self.at.get() + 1);
            let peer = &mut self.peers.borrow_mut()[peer];
            let before = peer.sent;
            let packet = peer.packet();
            let slices = u64::from(peer.sent - before);
            self.came.set(self.came.get() + slices);
            let mut kernel = self.kernel.borrow_mut();
            if kernel.len() < KERNEL_QUEUE {
                kernel.push_back(packet);
            } else {
                self.kernel_drops.set(self.kernel_drops.get() + slices);
            }
        }
    }

    /// A datagram is sent, and arrives.
    fn send(&self, transmit: &Transmit<'_>) {
        if !self.delay.get().is_zero() {
            std::thread::sleep(self.delay.get());
        }
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len());
        for datagram in transmit.contents.chunks(segment) {
            self.total.set(self.total.get() + 1);
            if transmit.destination != OUTER {
                self.arrive(transmit, datagram.to_vec());
            }
            self.pass();
        }
    }

    fn arrive(&self, transmit: &Transmit<'_>, mut datagram: Vec<u8>) {
        let std::net::IpAddr::V4(to) = transmit.destination.ip() else { panic!("all peers have IPv4") };
        let mut peers = self.peers.borrow_mut();
        let peer = &mut peers[usize::from(to.octets()[3])];
        let from = Endpoint { remote: OUTER, local: None };
        let origin = Origin { from, mark: Ecn::of(transmit.traffic_class), congested: false };
        let header = Header::parse(&datagram).unwrap();
        let Ok(Opened::Tun(checked)) = peer.plane.open(now(), header, &mut datagram, origin) else {
            panic!("it is authentic, and its peer's");
        };
        let packet = checked.packet(&datagram);
        let tcp = packet.tcp().unwrap();
        let number = tcp.seq() / MSS as u32;
        self.arrived.borrow_mut().entry(peer.index).or_default().push(number);
        let is_first = peer.index == 0 && number.is_multiple_of(SLICES as u32);
        assert_eq!(tcp.flags() & tcp_flag::CWR != 0, is_first);
        if packet.version() == Version::V4 {
            let mut header = packet.bytes()[..20].to_vec();
            let checksum = [header[10], header[11]];
            header[0] = 0x45;
            header[10..12].fill(0);
            assert_eq!(checksum, vpnd_packet::checksum::ipv4_header(&header).to_be_bytes());
        }
        if packet.traffic_class() != peer.class() {
            assert_eq!((packet.traffic_class(), peer.index), (46 << 2 | 3, 0), "only what is ECN-capable");
            self.marked.borrow_mut().push(number);
        }
    }

    /// Steps the gateway until `datagrams` datagrams were sent. Returns the number to each peer.
    fn run(&self, gateway: &mut Stepped<&Self, &Self>, datagrams: u64) -> Vec<f64> {
        let counts = || -> Vec<usize> {
            let arrived = self.arrived.borrow();
            (0..self.peers.borrow().len() as u8).map(|peer| arrived.get(&peer).map_or(0, Vec::len)).collect()
        };
        let (before, end) = (counts(), self.total.get() + datagrams);
        while self.total.get() < end {
            self.pass();
            gateway.transmit().unwrap();
        }
        counts().iter().zip(before).map(|(after, before)| (after - before) as f64).collect()
    }

    /// Steps the gateway until it is behind, and its backlog full.
    fn overload(&self, gateway: &mut Stepped<&Self, &Self>) {
        let (start, before) = (now(), gateway.report().counters.dropped(DropReason::Overload));
        while gateway.report().counters.dropped(DropReason::Overload) == before {
            self.run(gateway, 100);
            assert!(now().since(start) < TIMEOUT);
        }
        assert!(gateway.shard.outbound.overload.is_behind);
    }

    /// Steps the gateway until nothing is left.
    fn drain(&self, gateway: &mut Stepped<&Self, &Self>) {
        self.load.set(0);
        while gateway.transmit().unwrap() == Progress::More {}
    }

    /// Slices that are neither in the device nor gone.
    fn waiting(&self, gateway: &mut Stepped<&Self, &Self>) -> u64 {
        let kernel = self.kernel.borrow();
        let slices = |read: &Vec<u8>| {
            let (header, packet) = parse(read).unwrap();
            (packet.total_len() - usize::from(header.hdr_len.get())).div_ceil(MSS) as u64
        };
        let drops = gateway.report().counters.total() + self.kernel_drops.get();
        self.came.get() - self.total.get() - drops - kernel.iter().map(slices).sum::<u64>()
    }
}

/// It is known where the peer is.
fn reach(peer: &Peer) -> Command {
    Command::Reach { slot: slot(peer.index), epoch: 1, lane: 0, endpoint: peer.endpoint() }
}

impl PacketDevice for World {
    fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let packet = self.kernel.borrow_mut().pop_front().ok_or(io::ErrorKind::WouldBlock)?;
        buf[..packet.len()].copy_from_slice(&packet);
        Ok(packet.len())
    }

    fn try_write_vectored(&self, _: &[IoSlice<'_>]) -> io::Result<usize> {
        panic!("nothing is for the TUN device");
    }
}

impl DatagramSocket for World {
    fn try_recv(&self, bufs: &mut [IoSliceMut<'_>], meta: &mut [RecvMeta]) -> io::Result<usize> {
        Mute.try_recv(bufs, meta)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> SendOutcome {
        self.send(transmit);
        SendOutcome::Sent
    }

    fn try_send_many(&self, transmits: &[Transmit<'_>]) -> usize {
        transmits.iter().for_each(|transmit| self.send(transmit));
        transmits.len()
    }

    fn wait_writable(&self, _: Duration) -> Duration {
        Duration::ZERO
    }

    fn offloads(&self) -> UdpOffloads {
        Mute.offloads()
    }
}

/// Traffic for five clients: four slices for the first to one for each other, and for each more
/// than a fifth of what can be sent.
fn greedy() -> Vec<usize> {
    vec![0, 1, 2, 3, 4]
}

/// The usual traffic, and for one in 401 packets a sixth client.
fn with_a_modest_one() -> Vec<usize> {
    (0..80).flat_map(|_| greedy()).chain([5]).collect()
}

#[test]
fn a_client_with_many_downloads_gets_no_more_than_the_others() {
    let world = World::new(5, greedy());
    let mut gateway = world.gateway();
    world.overload(&mut gateway);
    let parts = world.run(&mut gateway, 24_000);
    assert!(jain(&parts) > 0.99, "{parts:?}");
    // Each peer's slices came in order, and each slice that is missing was dropped and counted.
    for (peer, numbers) in world.arrived.borrow().iter() {
        assert!(numbers.is_sorted_by(|one, next| one < next), "{peer}");
    }
    let counters = gateway.report().counters;
    assert_eq!(counters.total(), counters.dropped(DropReason::Overload));
    assert!(counters.total() > 24_000, "{counters:?}");
    assert!((world.waiting(&mut gateway) as usize) < (20 << 20) / MSS);
}

#[test]
fn one_slice_of_a_super_packet_is_marked_congested() {
    let world = World::new(2, greedy());
    world.load.set(0);
    let mut gateway = world.gateway();
    // The first client's packets are ECN-capable, the second one's are not.
    for (peer, can_be_marked) in [(1, false), (0, true)] {
        let packet = world.peers.borrow_mut()[peer].packet();
        gateway.shard.outbound.read[..packet.len()].copy_from_slice(&packet);
        assert_eq!(gateway.shard.outbound.mark(packet.len()), can_be_marked);
        gateway.shard.send_read(now(), packet.len(), !can_be_marked);
    }
    let packet = world.peers.borrow_mut()[0].packet();
    gateway.shard.outbound.read[..packet.len()].copy_from_slice(&packet);
    gateway.shard.send_read(now(), packet.len(), true);
    gateway.shard.finish_sending(now());
    assert_eq!(*world.arrived.borrow(), BTreeMap::from([(0, vec![0, 1, 2, 3, 5, 6, 7])]));
    assert_eq!(*world.marked.borrow(), [0, 1, 2, 3]);
    assert_eq!(gateway.report().counters.dropped(DropReason::Overload), 2);
}

#[test]
fn a_packet_for_a_modest_client_waits_for_a_fraction_of_what_the_others_have() {
    let world = World::new(6, with_a_modest_one());
    let mut gateway = world.gateway();
    world.overload(&mut gateway);
    let (sent, arrived) = (world.peers.borrow()[5].sent, world.arrived.borrow()[&5].len());
    let parts = world.run(&mut gateway, 16_000);
    let sent = world.peers.borrow()[5].sent - sent;
    assert!(sent > 50 && parts[5] >= f64::from(sent) - 4.0, "{sent} sent, {parts:?}");
    // None was lost, and no more than a few wait.
    let numbers = world.arrived.borrow()[&5].clone();
    assert!(numbers[arrived..].is_sorted_by(|one, next| one + 1 == *next), "{numbers:?}");
}

#[test]
fn each_slice_leaves_or_is_counted_and_a_shard_that_has_caught_up_is_as_before() {
    let world = World::new(5, greedy());
    let mut gateway = world.gateway();
    for _ in 0..3 {
        world.load.set(2);
        world.overload(&mut gateway);
        world.run(&mut gateway, 2_000);
        assert!(!gateway.shard.outbound.overload.backlog.is_empty() && world.waiting(&mut gateway) > 1_000);
        world.drain(&mut gateway);
        assert!(
            !gateway.shard.outbound.overload.is_behind && gateway.shard.outbound.overload.backlog.is_empty()
        );
        assert_eq!(world.waiting(&mut gateway), 0);
        assert_eq!(gateway.transmit().unwrap(), Progress::Drained);
    }
    // Also where the state began and ended.
    for (peer, numbers) in world.arrived.borrow().iter() {
        assert!(numbers.is_sorted_by(|one, next| one < next), "{peer}");
    }
}

#[test]
fn a_device_that_is_drained_again_and_again_is_never_behind() {
    let world = World::new(5, greedy());
    let mut gateway = world.gateway();
    world.load.set(0);
    let start = now();
    while now().since(start) < Duration::from_millis(20) {
        for peer in world.peers.borrow_mut().iter_mut() {
            world.kernel.borrow_mut().push_back(peer.packet());
        }
        assert_eq!(gateway.transmit().unwrap(), Progress::Drained);
        assert!(!gateway.shard.outbound.overload.is_behind);
    }
    assert_eq!(gateway.report().counters.total(), 0);
}

#[test]
fn a_slow_client_sends_its_packets_in_their_order() {
    let world = World::new(1, vec![0]);
    let mut client = world.host(Role::Client);
    for command in commands(0, slot(0), Role::Client) {
        client.command(command);
    }
    world.load.set(1);
    let start = now();
    while now().since(start) < Duration::from_millis(20) {
        world.run(&mut client, 100);
        assert!(!client.shard.outbound.overload.is_behind);
    }
}

#[test]
fn what_waits_is_sent_before_another_process_takes_the_device() {
    let world = World::new(5, greedy());
    let mut gateway = world.gateway();
    world.overload(&mut gateway);
    world.load.set(0);
    let (before, waiting) = (world.total.get(), world.waiting(&mut gateway));
    let drops = gateway.report().counters.total();
    gateway.shard.handle_backlog();
    assert!(gateway.shard.outbound.overload.backlog.is_empty() && waiting > 1_000);
    // On a machine that stands still, some have waited long enough for CoDel to drop them.
    let dropped = gateway.report().counters.total() - drops;
    assert!(dropped < waiting / 10, "{dropped} of {waiting}");
    assert_eq!(world.total.get() - before + dropped, waiting);
}

#[test]
fn packets_without_a_receiver_are_dropped_for_the_usual_reason() {
    let world = World::new(5, greedy());
    let mut gateway = world.gateway();
    world.overload(&mut gateway);
    let plain = VirtioHeader::default();
    let cases = [
        vec![0; 3],
        [plain.as_bytes(), &[0x45, 0, 0]].concat(),
        packet(plain, 77),
        packet(VirtioHeader { gso_type: 3, ..plain }, 2),
    ];
    let dropped = |gateway: &mut Stepped<&World, &World>| {
        [DropReason::BadOffload, DropReason::BadPacket, DropReason::NoRoute]
            .map(|reason| gateway.report().counters.dropped(reason))
    };
    assert_eq!(dropped(&mut gateway), [0; 3]);
    cases.into_iter().for_each(|bytes| world.kernel.borrow_mut().push_front(bytes));
    gateway.transmit().unwrap();
    assert_eq!(dropped(&mut gateway), [2, 1, 1]);
    assert!(!gateway.shard.outbound.overload.backlog.is_empty());
}

#[test]
fn packets_that_wait_for_an_epoch_precede_the_backlog() {
    let world = World::new(6, with_a_modest_one());
    let mut gateway = world.gateway();
    // A session that is opened again has no keys.
    let [open, install] = commands(5, slot(5), Role::Gateway);
    gateway.command(open);
    world.overload(&mut gateway);
    world.run(&mut gateway, 2_000);
    assert!(world.peers.borrow()[5].sent > 5 && !world.arrived.borrow().contains_key(&5));
    gateway.command(install);
    let reached = reach(&world.peers.borrow()[5]);
    gateway.command(reached);
    world.run(&mut gateway, 4_000);
    world.drain(&mut gateway);
    let numbers = world.arrived.borrow()[&5].clone();
    assert_eq!(gateway.report().counters.dropped(DropReason::NoEpoch), 0, "few waited");
    assert!(numbers.len() > 20 && numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    assert_eq!(numbers[..5], [0, 1, 2, 3, 4]);
}

#[test]
fn packets_for_a_client_that_wait_for_long_get_marks_if_they_can_have_them() {
    let world = World::new(5, greedy());
    let mut gateway = world.gateway();
    // The queue has to stand for a tenth of a second, which a fast machine sends it in.
    world.delay.set(Duration::from_micros(20));
    let start = now();
    while world.marked.borrow().is_empty() && now().since(start) < TIMEOUT {
        world.run(&mut gateway, 1_000);
    }
    // All slices of a super-packet have the mark.
    let marked = world.marked.borrow();
    assert!(!marked.is_empty(), "{} slices without a mark", world.total.get());
    for slices in marked.chunks(SLICES) {
        let first = slices[0];
        assert_eq!(slices, [first, first + 1, first + 2, first + 3]);
        assert!(first.is_multiple_of(SLICES as u32));
    }
}
