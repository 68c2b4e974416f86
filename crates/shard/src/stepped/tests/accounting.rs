//! Each packet that a shard reads or receives leaves it or is counted as dropped, once, whatever
//! its devices refuse.

use std::cell::Cell;

use proptest::prelude::*;
use vpnd_crypto::{Backend, EpochSecret, Suite};
use vpnd_proto::plane::{Endpoint, EpochSpec, Limits, ReceiveSpec, UserBuckets};
use vpnd_proto::rate::{Buckets, Rates, SessionLimits};
use vpnd_proto::time::Time;
use vpnd_proto::wire::Index;

use super::*;

pub(super) const CLIENT: [u8; 4] = [10, 86, 0, 2];
pub(super) const CAMPUS: [u8; 4] = [10, 200, 0, 9];
const MSS: usize = 1_000;

/// Instructions for the next writes or sends of a device: numbers that are used in turn.
#[derive(Default)]
struct Luck(Vec<u8>, Cell<usize>);

impl Luck {
    fn next(&self) -> u8 {
        self.1.set(self.1.get() + 1);
        if self.0.is_empty() { u8::MAX } else { self.0[self.1.get() % self.0.len()] }
    }
}

/// A TUN device that refuses some packets.
#[derive(Default)]
pub(super) struct Tun {
    pub(super) reads: RefCell<VecDeque<Vec<u8>>>,
    luck: Luck,
    /// Packets that it took; a super-packet as its slices.
    written: Cell<usize>,
    /// The packets as they came.
    pub(super) packets: RefCell<Vec<Vec<u8>>>,
}

impl PacketDevice for Tun {
    fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let bytes = self.reads.borrow_mut().pop_front().ok_or(io::ErrorKind::WouldBlock)?;
        buf[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let bytes = gathered(parts);
        let (header, packet) = VirtioHeader::split(&bytes).expect("a virtio header");
        let errno = match self.luck.next() {
            0 => rustix::io::Errno::INVAL,
            1 => rustix::io::Errno::IO,
            _ => {
                self.written.set(self.written.get() + slices(&header, packet));
                self.packets.borrow_mut().push(packet.to_vec());
                return Ok(bytes.len());
            }
        };
        Err(errno.into())
    }
}

/// Returns the number of packets of a (super-)packet, as its sender sees them.
fn slices(header: &VirtioHeader, packet: &[u8]) -> usize {
    if header.gso_type == VirtioHeader::GSO_NONE {
        return 1;
    }
    (packet.len() - usize::from(header.hdr_len.get())).div_ceil(header.gso_size.get().into())
}

/// A socket that refuses some datagrams.
#[derive(Default)]
pub(super) struct Wire {
    pub(super) inbox: RefCell<VecDeque<Vec<u8>>>,
    luck: Luck,
    pub(super) sent: RefCell<Vec<Vec<u8>>>,
}

impl Wire {
    fn record(&self, contents: &[u8], segment: Option<usize>) {
        let datagrams = contents.chunks(segment.unwrap_or(contents.len()).max(1));
        self.sent.borrow_mut().extend(datagrams.map(<[u8]>::to_vec));
    }
}

impl DatagramSocket for Wire {
    fn try_recv(&self, bufs: &mut [IoSliceMut<'_>], meta: &mut [RecvMeta]) -> io::Result<usize> {
        let from = RecvMeta::default().addr;
        let next = || {
            let datagram = self.inbox.borrow_mut().pop_front()?;
            let stride = datagram.len();
            Some((from, datagram, stride))
        };
        receive(next, bufs, meta)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> SendOutcome {
        let (contents, segment) = (transmit.contents, transmit.segment_size);
        match self.luck.next() {
            0 => SendOutcome::Dropped {
                reason: vpnd_sys::udp::DropReason::Refused,
                lost: segment.map_or(1, |segment| contents.len().div_ceil(segment)),
            },
            // Room for the first datagrams of a run, but the very first is refused.
            1 => {
                let done = segment.map_or(0, |segment| contents.len() / segment / 2 * segment);
                let lost = if done > 0 { segment.unwrap_or(0) } else { 0 };
                if done > lost {
                    self.record(&contents[lost..done], segment);
                }
                SendOutcome::WouldBlock { done, lost: usize::from(lost > 0) }
            }
            // All but the last.
            2 => {
                let sent = segment.map_or(0, |segment| (contents.len() - 1) / segment * segment);
                if sent > 0 {
                    self.record(&contents[..sent], segment);
                }
                SendOutcome::Dropped { reason: vpnd_sys::udp::DropReason::Refused, lost: 1 }
            }
            _ => {
                self.record(contents, segment);
                SendOutcome::Sent
            }
        }
    }

    fn try_send_many(&self, transmits: &[Transmit<'_>]) -> usize {
        let taken = usize::from(self.luck.next()).min(transmits.len());
        for transmit in &transmits[..taken] {
            self.record(transmit.contents, transmit.segment_size);
        }
        taken
    }

    fn wait_writable(&self, _: Duration) -> Duration {
        Duration::ZERO
    }

    fn offloads(&self) -> UdpOffloads {
        Mute.offloads()
    }
}

pub(super) type Host = Stepped<Tun, Wire>;

pub(super) fn host(role: Role, luck: &[u8]) -> Host {
    let policy = Arc::new(Policy::without_rules(true));
    let spec = SteppedSpec { role, policy, tun_offloads: TunOffloads::ALL, mtu: 1_400 };
    let luck = || Luck(luck.to_vec(), Cell::default());
    let mut host =
        Stepped::new(spec, Tun { luck: luck(), ..Tun::default() }, Wire { luck: luck(), ..Wire::default() });
    let gateway = role == Role::Gateway;
    let slot = Slot { index: 0, generation: 0 };
    let addresses = vec![std::net::IpAddr::from(CLIENT).into()];
    host.command(Command::Open(SessionSpec {
        slot,
        addresses,
        principal: Principal::default(),
        limits: None,
        flows: Arc::default(),
        path: Arc::default(),
    }));
    install(&mut host, gateway);
    host
}

/// Gives it the keys of its epoch.
pub(super) fn install(host: &mut Host, gateway: bool) {
    let slot = Slot { index: 0, generation: 0 };
    let (own, peer) = if gateway { (0x100, 0x200) } else { (0x200, 0x100) };
    host.command(Command::Install(Box::new(EpochSpec {
        slot,
        epoch: 1,
        suite: Suite::Aes128Gcm,
        backend: Backend::Ring,
        lab: None,
        secret: Arc::new(EpochSecret::new([7; 32])),
        features: 1,
        lane: 0,
        peer_index: Index(peer),
        peer_lane: 0,
        endpoint: Some(Endpoint { remote: ([192, 0, 2, 1], 4500).into(), local: None }),
        receive: vec![ReceiveSpec { index: Index(own), lanes: vec![0] }],
        reject_at: Time::from_nanos(u64::MAX),
    })));
}

/// Something that a TUN device delivers.
#[derive(Clone, Debug)]
enum Read {
    Udp { from: [u8; 4], to: [u8; 4], len: usize },
    TcpSuper { from: [u8; 4], to: [u8; 4], len: usize },
    Garbage(Vec<u8>),
}

impl Read {
    /// The packet behind its virtio header.
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Garbage(bytes) => bytes.clone(),
            Self::Udp { from, to, len } => {
                let mut udp = vec![0x9C, 0x40, 1, 0xBB, 0, 0, 0, 0];
                udp.resize(8 + len, 0x5A);
                udp[4..6].copy_from_slice(&(8 + *len as u16).to_be_bytes());
                ip(VirtioHeader::default(), 17, *from, *to, &udp)
            }
            Self::TcpSuper { from, to, len } => {
                let mut tcp = vec![0; 20 + len];
                tcp[..4].copy_from_slice(&[0x9C, 0x40, 1, 0xBB]);
                tcp[12..14].copy_from_slice(&[0x50, 0x10]);
                let header = VirtioHeader {
                    flags: VirtioHeader::NEEDS_CSUM,
                    gso_type: VirtioHeader::GSO_TCPV4,
                    hdr_len: 40.into(),
                    gso_size: (MSS as u16).into(),
                    csum_start: 20.into(),
                    csum_offset: 16.into(),
                };
                ip(header, 6, *from, *to, &tcp)
            }
        }
    }

    /// Returns the number of its packets if a shard cuts it, and else one.
    fn packets(&self, is_cut: bool) -> usize {
        match self {
            Self::TcpSuper { len, .. } if is_cut => len.div_ceil(MSS),
            _ => 1,
        }
    }
}

pub(super) fn ip(header: VirtioHeader, protocol: u8, from: [u8; 4], to: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, protocol, 0, 0];
    bytes[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
    bytes.extend(from);
    bytes.extend(to);
    let checksum = vpnd_packet::checksum::ipv4_header(&bytes);
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
    [header.as_bytes(), &bytes, payload].concat()
}

fn read() -> impl Strategy<Value = Read> {
    let address = || prop_oneof![3 => Just(CLIENT), 3 => Just(CAMPUS), 1 => Just([10, 86, 0, 77])];
    prop_oneof![
        4 => (address(), address(), 0..1_200_usize).prop_map(|(from, to, len)| Read::Udp { from, to, len }),
        4 => (address(), address(), 1_001..60_000_usize)
            .prop_map(|(from, to, len)| Read::TcpSuper { from, to, len }),
        1 => prop::collection::vec(any::<u8>(), 0..60).prop_map(Read::Garbage),
    ]
}

fn drops(host: &mut Host) -> u64 {
    host.report().counters.total()
}

/// Has a shard send what its TUN device delivers. Returns the datagrams, and how many packets it
/// had.
fn transmit(host: &mut Host, reads: &[Read], is_cut: impl Fn(&Read) -> bool) -> (Vec<Vec<u8>>, usize) {
    host.tun().reads.borrow_mut().extend(reads.iter().map(Read::bytes));
    while host.transmit().unwrap() == Progress::More {}
    let packets = reads.iter().map(|read| read.packets(is_cut(read))).sum();
    (host.socket().sent.take(), packets)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_packet_leaves_or_is_counted_once(
        sent in prop::collection::vec(read(), 1..20),
        answers in prop::collection::vec(read(), 0..20),
        luck in prop::collection::vec(0..6_u8, 0..40),
        arrivals in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..200),
    ) {
        // A client cuts all that it can parse, whatever its addresses.
        let mut client = host(Role::Client, &luck);
        let (datagrams, packets) = transmit(&mut client, &sent, |_| true);
        prop_assert_eq!(packets as u64, datagrams.len() as u64 + drops(&mut client));

        // A gateway cuts only what is for its client.
        let mut gateway = host(Role::Gateway, &luck);
        let to_client = |read: &Read| matches!(read, Read::TcpSuper { to: CLIENT, .. });
        let (answered, packets) = transmit(&mut gateway, &answers, to_client);
        let before = drops(&mut gateway);
        prop_assert_eq!(packets as u64, answered.len() as u64 + before);

        // Datagrams come in any order, some twice, some forged, some not at all.
        let mut received = 0;
        for (which, forged) in arrivals {
            if datagrams.is_empty() {
                break;
            }
            let mut datagram = which.get(&datagrams).clone();
            let last = datagram.len() - 1;
            datagram[last] ^= u8::from(forged);
            gateway.socket().inbox.borrow_mut().push_back(datagram);
            received += 1;
        }
        while gateway.receive() == Progress::More {}
        let left = gateway.tun().written.get() + gateway.socket().sent.take().len();
        prop_assert_eq!(received, left as u64 + drops(&mut gateway) - before, "{:?}", gateway.report().counters);
    }
}

/// 128 KiB at once, and then next to nothing: a packet takes more than 0.1 s.
fn limit(gateway: &mut Host) {
    let rates = Rates { down: 8_000, up: 0 };
    let limits = SessionLimits { rates, ..SessionLimits::default() };
    let buckets = || Arc::new(Buckets::new(Time::ZERO, 1));
    let user = UserBuckets { number: 0, buckets: buckets() };
    let limits = Limits { limits, buckets: buckets(), user };
    gateway.command(Command::Limit { slot: Slot { index: 0, generation: 0 }, limits });
}

/// Asserts that as many of these packets of `len` bytes were sent as a burst has, and the others
/// counted.
fn assert_limited(gateway: &mut Host, sent: usize, packets: usize, len: usize) {
    let burst = (128 << 10) / len;
    assert!((burst - 1..burst + 20).contains(&sent), "{sent} of {packets} were sent, a burst is {burst}");
    let limited = gateway.report().counters.dropped(DropReason::RateLimit);
    assert_eq!((limited, drops(gateway)), ((packets - sent) as u64, (packets - sent) as u64));
}

#[test]
fn of_a_super_packet_only_the_slices_in_excess_are_dropped() {
    let mut gateway = host(Role::Gateway, &[]);
    limit(&mut gateway);
    let reads = vec![Read::TcpSuper { from: CAMPUS, to: CLIENT, len: 50 * MSS }; 4];
    let (sent, packets) = transmit(&mut gateway, &reads, |_| true);
    assert_limited(&mut gateway, sent.len(), packets, MSS + 40);
}

#[test]
fn traffic_between_clients_is_limited_like_the_rest() {
    let (mut client, mut gateway) = (host(Role::Client, &[]), host(Role::Gateway, &[]));
    limit(&mut gateway);
    // To itself, by the gateway: that is a client, too.
    let reads = vec![Read::Udp { from: CLIENT, to: CLIENT, len: 1_000 }; 200];
    let (datagrams, packets) = transmit(&mut client, &reads, |_| true);
    assert_eq!(datagrams.len(), packets);
    gateway.socket().inbox.borrow_mut().extend(datagrams);
    while gateway.receive() == Progress::More {}
    let sent = gateway.socket().sent.take().len();
    assert_limited(&mut gateway, sent, packets, 1_028);
}
