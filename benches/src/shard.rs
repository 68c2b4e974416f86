//! One whole shard on made-up devices: everything but the system calls, in whose place stands one
//! copy of the bytes each.
//!
//! ```text
//!   client 0 ── wire ── gateway ── TUN        sender: client 0, from its TUN device to the wire
//!   client 1 ── wire ──────┘                  receiver: gateway, wire to TUN; hub: gateway, wire to wire
//! ```
//!
//! INVARIANT: what arrives is counted at each call, so a shard that drops packets is a panic and
//! not a fast shard.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vpnd_crypto::{Backend, EpochSecret, LabPermit, Suite};
use vpnd_proto::plane::{
    Command, Endpoint, EpochSpec, Event, GroupLimits, Limits, ReceiveSpec, Role, SessionSpec, Slot,
    UserBuckets,
};
use vpnd_proto::policy::{Policy, Principal};
use vpnd_proto::rate::{Buckets, MAX_RATE, RateGroup, Rates, SessionLimits};
use vpnd_proto::time::Time;
use vpnd_proto::wire::Index;
use vpnd_shard::Progress;
use vpnd_shard::devices::{DatagramSocket, PacketDevice};
use vpnd_shard::stepped::{Stepped, SteppedSpec};
use vpnd_sys::tun::TunOffloads;
use vpnd_sys::udp::{RecvMeta, SendOutcome, Transmit, UdpOffloads};

use crate::stage::{Load, Name, Side, Stage, Unit};
use crate::traffic::{self, CAMPUS, CLIENT, OTHER_CLIENT};

/// The packets of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Length of each packet in bytes; a super-packet if it is longer than the MTU.
    pub len: usize,
    /// How many.
    pub count: usize,
}

impl Burst {
    /// One TCP super-packet of this many slices.
    pub const fn super_packet(slices: usize) -> Self {
        Self { len: traffic::super_len(slices), count: 1 }
    }

    /// The number of 64-byte packets that a shard reads in one turn.
    pub const SMALL: Self = Self { len: 64, count: 64 };

    fn load(self) -> Load {
        let slices =
            if self.len > traffic::MTU { (self.len - traffic::HEADERS).div_ceil(traffic::MSS) } else { 1 };
        Load { packets: slices * self.count, bytes: self.len * self.count }
    }
}

/// The stage of `side` for one suite.
pub fn stage(side: Side, suite: Suite, backend: Backend, burst: Burst) -> Stage {
    stage_of(Net::new(suite, backend), side, suite, burst, false)
}

/// The stage with rate limits of sessions and of a group that let everything pass.
pub fn limited_stage(side: Side, suite: Suite, backend: Backend, burst: Burst) -> Stage {
    let mut net = Net::new(suite, backend);
    net.limit();
    stage_of(net, side, suite, burst, true)
}

fn stage_of(mut net: Net, side: Side, suite: Suite, burst: Burst, limited: bool) -> Stage {
    let to = if side == Side::Hub { OTHER_CLIENT } else { CAMPUS };
    net.clients[0].tun().load(&traffic::from_tun(CLIENT, to, burst.len));
    let name = match (side, limited) {
        // A client has no limits.
        (Side::Sender, _) => "shard, TUN to UDP",
        (Side::Receiver, false) => "shard, UDP to TUN",
        (Side::Receiver, true) => "shard, UDP to TUN, limited",
        (Side::Hub, false) => "shard, client to client",
        (Side::Hub, true) => "shard, client to client, limited",
    };
    let unit = if burst.len > traffic::MTU { Unit::SuperPacket } else { Unit::Packet };
    let name = Name::new(name, side, unit).with(suite.name()).whole();
    let (packets, bytes) = (burst.load().packets, burst.load().bytes);
    Stage::timed(name, burst.load(), move |calls| {
        (0..calls).map(|_| net.carry(side, burst.count, packets, bytes)).sum()
    })
}

/// A TUN device in memory: hands out one packet some times, and takes packets.
struct MemoryTun {
    packet: RefCell<Vec<u8>>,
    left: Cell<usize>,
    taken: RefCell<Vec<u8>>,
    /// Bytes that were written.
    written: Cell<usize>,
}

impl MemoryTun {
    fn new() -> Self {
        let (packet, taken) = (RefCell::default(), RefCell::new(vec![0; 1 << 17]));
        Self { packet, left: Cell::new(0), taken, written: Cell::new(0) }
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
        let mut taken = self.taken.borrow_mut();
        let mut at = 0;
        for part in parts {
            taken[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.written.set(self.written.get() + at);
        Ok(at)
    }
}

/// A run of datagrams, as segmentation offload sends and merged receiving gives them.
#[derive(Default)]
struct Message {
    bytes: Vec<u8>,
    stride: usize,
}

/// Messages in the order they came; their buffers are used again.
#[derive(Default)]
struct Queue {
    messages: Vec<Message>,
    filled: usize,
    next: usize,
}

impl Queue {
    fn put(&mut self, contents: &[u8], stride: usize) {
        if self.filled == self.messages.len() {
            self.messages.push(Message::default());
        }
        let message = &mut self.messages[self.filled];
        contents.clone_into(&mut message.bytes);
        message.stride = stride;
        self.filled += 1;
    }

    fn take(&mut self) -> Option<&Message> {
        let message = self.messages[..self.filled].get(self.next)?;
        self.next += 1;
        Some(message)
    }

    fn clear(&mut self) {
        (self.filled, self.next) = (0, 0);
    }

    fn datagrams(&self) -> usize {
        self.messages[..self.filled].iter().map(|m| m.bytes.len().div_ceil(m.stride)).sum()
    }
}

/// A socket in memory.
struct Wire {
    peer: Cell<SocketAddr>,
    inbox: RefCell<Queue>,
    outbox: RefCell<Queue>,
}

impl DatagramSocket for Wire {
    fn try_recv(&self, bufs: &mut [IoSliceMut<'_>], meta: &mut [RecvMeta]) -> io::Result<usize> {
        let mut inbox = self.inbox.borrow_mut();
        let mut count = 0;
        for (buf, meta) in bufs.iter_mut().zip(meta) {
            let Some(message) = inbox.take() else { break };
            let len = message.bytes.len();
            buf[..len].copy_from_slice(&message.bytes);
            (meta.addr, meta.len, meta.stride) = (self.peer.get(), len, message.stride);
            count += 1;
        }
        if count == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count) }
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> SendOutcome {
        let stride = transmit.segment_size.unwrap_or(transmit.contents.len());
        self.outbox.borrow_mut().put(transmit.contents, stride);
        SendOutcome::Sent
    }

    fn try_send_many(&self, transmits: &[Transmit<'_>]) -> usize {
        for transmit in transmits {
            self.try_send(transmit);
        }
        transmits.len()
    }

    fn wait_writable(&self, _: Duration) -> Duration {
        Duration::ZERO
    }

    fn offloads(&self) -> UdpOffloads {
        UdpOffloads {
            gso_segments: 64,
            gso_gave_up: false,
            gro: true,
            recv_buffer: 1 << 20,
            send_buffer: 1 << 20,
            may_fragment: false,
        }
    }
}

type Host = Stepped<MemoryTun, Wire>;

fn address(host: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, host], 4500))
}

fn host(role: Role, peer: SocketAddr) -> Host {
    let wire = Wire { peer: Cell::new(peer), inbox: RefCell::default(), outbox: RefCell::default() };
    let policy = Arc::new(Policy::without_rules(true));
    let spec = SteppedSpec { role, policy, tun_offloads: TunOffloads::ALL, mtu: traffic::MTU as u16 };
    Stepped::new(spec, MemoryTun::new(), wire)
}

/// A gateway and two clients that it has heard.
struct Net {
    gateway: Host,
    clients: [Host; 2],
}

impl Net {
    fn new(suite: Suite, backend: Backend) -> Self {
        let client = || host(Role::Client, address(1));
        let mut net = Self { gateway: host(Role::Gateway, address(2)), clients: [client(), client()] };
        for (place, inner) in [CLIENT, OTHER_CLIENT].into_iter().enumerate() {
            net.open(place as u32, inner.into(), suite, backend);
            net.be_heard(place, inner);
        }
        net
    }

    /// Opens a session with keys at both ends.
    fn open(&mut self, place: u32, inner: std::net::IpAddr, suite: Suite, backend: Backend) {
        let slot = |index| Slot { index, generation: 0 };
        let spec = |place| {
            let addresses = vec![inner.into()];
            Command::Open(SessionSpec {
                slot: slot(place),
                addresses,
                principal: Principal::default(),
                limits: None,
                flows: Arc::default(),
                path: Arc::default(),
            })
        };
        let keys = |place, own, peer, endpoint| {
            Command::Install(Box::new(EpochSpec {
                slot: slot(place),
                epoch: 1,
                suite,
                backend,
                lab: Some(LabPermit::insecure()),
                secret: Arc::new(EpochSecret::new([7; 32])),
                features: 1,
                lane: 0,
                peer_index: Index(peer),
                peer_lane: 0,
                endpoint,
                receive: vec![ReceiveSpec { index: Index(own), lanes: vec![0] }],
                reject_at: Time::from_nanos(u64::MAX),
            }))
        };
        let (low, high) = (0x100 * place + 0x1_0000, 0x100 * place + 0x2_0000);
        let gateway = Endpoint { remote: address(1), local: None };
        self.gateway.command(spec(place));
        self.gateway.command(keys(place, low, high, None));
        let client = &mut self.clients[place as usize];
        client.command(spec(0));
        client.command(keys(0, high, low, Some(gateway)));
    }

    /// Gives both sessions their own limits and those of their users and of a group, far above
    /// what a shard carries.
    fn limit(&mut self) {
        let rates = Rates { down: MAX_RATE, up: MAX_RATE };
        let buckets = || Arc::new(Buckets::new(Time::ZERO, 1));
        self.gateway.command(Command::Groups([GroupLimits { rates, buckets: buckets() }].into()));
        for index in [0, 1] {
            let limits = SessionLimits { rates, user: rates, group: Some(RateGroup(0)) };
            let user = UserBuckets { number: index, buckets: buckets() };
            let limits = Limits { limits, buckets: buckets(), user };
            self.gateway.command(Command::Limit { slot: Slot { index, generation: 0 }, limits });
        }
    }

    /// One packet of the client, from which the gateway learns where it is, as control would have
    /// it.
    fn be_heard(&mut self, client: usize, inner: [u8; 4]) {
        self.gateway.socket().peer.set(address(2 + client as u8));
        self.clients[client].tun().load(&traffic::from_tun(inner, CAMPUS, 64));
        self.send(client, 1);
        while self.gateway.receive() == Progress::More {}
        while let Some(event) = self.gateway.poll_event() {
            if let Event::Heard { slot, epoch, lane, endpoint } = event {
                self.gateway.command(Command::Reach { slot, epoch, lane, endpoint });
            }
        }
        self.gateway.socket().peer.set(address(2));
    }

    /// The client's shard works; what it sends is put where the gateway receives. Returns how long
    /// the shard took.
    fn send(&mut self, client: usize, count: usize) -> Duration {
        let client = &mut self.clients[client];
        client.tun().left.set(count);
        client.socket().outbox.borrow_mut().clear();
        let start = Instant::now();
        while client.transmit().expect("the device works") == Progress::More {}
        let spent = start.elapsed();
        let gateway = self.gateway.socket();
        gateway.inbox.borrow_mut().clear();
        std::mem::swap(&mut *gateway.inbox.borrow_mut(), &mut *client.socket().outbox.borrow_mut());
        spent
    }

    /// Carries a burst and says how long the shard of `side` took.
    fn carry(&mut self, side: Side, count: usize, packets: usize, bytes: usize) -> Duration {
        let sent = self.send(0, count);
        let gateway = self.gateway.socket();
        assert_eq!(gateway.inbox.borrow().datagrams(), packets, "the client drops packets");
        if side == Side::Sender {
            return sent;
        }
        gateway.outbox.borrow_mut().clear();
        self.gateway.tun().written.set(0);
        let start = Instant::now();
        while self.gateway.receive() == Progress::More {}
        let spent = start.elapsed();
        while self.gateway.poll_event().is_some() {}
        if side == Side::Hub {
            let forwarded = self.gateway.socket().outbox.borrow().datagrams();
            assert_eq!(forwarded, packets, "the gateway drops packets");
        } else {
            assert!(self.gateway.tun().written.get() >= bytes, "the gateway drops packets");
        }
        spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_carries_every_burst() {
        for side in [Side::Sender, Side::Receiver, Side::Hub] {
            for burst in [Burst::SMALL, Burst::super_packet(1), Burst::super_packet(traffic::MAX_SLICES)] {
                for (suite, backend) in
                    [(Suite::Aes256Gcm, Backend::Ring), (Suite::Null, Backend::RustCrypto)]
                {
                    assert!(stage(side, suite, backend, burst).run(3) > Duration::ZERO);
                    assert!(limited_stage(side, suite, backend, burst).run(3) > Duration::ZERO);
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "drops packets")]
    fn a_shard_that_drops_is_no_fast_shard() {
        let mut net = Net::new(Suite::Aes256Gcm, Backend::Ring);
        // Not the client's own source: the gateway must drop it.
        net.clients[0].tun().load(&traffic::from_tun(OTHER_CLIENT, CAMPUS, 64));
        net.carry(Side::Receiver, 1, 1, 64);
    }
}
