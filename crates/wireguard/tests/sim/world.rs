//! The network, its clock, and all that is checked while it runs.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, RngExt, SeedableRng};
use vpnd_proto::admission::sketch::Rate;
use vpnd_proto::plane::Endpoint;
use vpnd_proto::session::Random;
use vpnd_proto::time::Time;
use vpnd_wireguard::gate::Limits;
use vpnd_wireguard::handshakes::Known;
use vpnd_wireguard::message::TransportHeader;
use vpnd_wireguard::peers::{Event, PeerId};

use crate::node::Node;

const PORT: u16 = 51820;
/// Room for all that is late, before an account is made.
const SETTLE: Duration = Duration::from_secs(5);

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The fate of datagrams.
#[derive(Clone, Copy)]
pub(crate) struct Network {
    loss: f64,
    /// Delivered twice.
    duplicates: f64,
    /// Delivered again some minutes later.
    replays: f64,
    delay: (u64, u64),
    /// A flood has the gateway ask everyone for a proof of its address.
    cookies: bool,
}

impl Network {
    pub(crate) const GOOD: Self =
        Self { loss: 0.0, duplicates: 0.0, replays: 0.0, delay: (5, 6), cookies: false };
    pub(crate) const FLOODED: Self = Self { cookies: true, ..Self::GOOD };
    pub(crate) const BAD: Self =
        Self { loss: 0.2, duplicates: 0.1, replays: 0.05, delay: (5, 400), cookies: false };
}

/// A device, and the peer that it is at the gateway.
struct Client {
    node: Node,
    /// The gateway, as it knows it.
    gateway: PeerId,
    at: Endpoint,
    at_gateway: PeerId,
    private: [u8; 32],
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Delivery {
    at: Time,
    number: u64,
    to: std::net::SocketAddr,
    from: std::net::SocketAddr,
    datagram: Vec<u8>,
}

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) gateway: Node,
    clients: Vec<Client>,
    network: Network,
    random: Xoshiro256PlusPlus,
    flying: BTreeSet<Delivery>,
    next: u64,
    next_port: u16,
    packets: u64,
    /// By packet: who sent it to the gateway (or was sent it), and whether it has arrived.
    expected: BTreeMap<u64, (usize, bool)>,
    pub(crate) sealed: usize,
    pub(crate) arrived: usize,
    pub(crate) lost_while_sealed: usize,
    /// Receiving index and counter of all data ever sent.
    counters: HashSet<(std::net::SocketAddr, u32, u64)>,
    gateway_private: [u8; 32],
}

fn gateway_address() -> Endpoint {
    Endpoint { remote: ([198, 51, 100, 1], PORT).into(), local: None }
}

fn seeded(random: &mut Xoshiro256PlusPlus) -> Random {
    let mut own = Xoshiro256PlusPlus::seed_from_u64(random.random());
    Box::new(move |bytes| own.fill_bytes(bytes))
}

impl World {
    pub(crate) fn new(seed: u64, clients: usize, network: Network) -> Self {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let gateway_private = random.random();
        let now = Time::from_nanos(1_000_000_000);
        let gateway = Self::gateway(now, gateway_private, network, &mut random);
        let mut world = Self {
            now,
            gateway,
            clients: Vec::new(),
            network,
            random,
            flying: BTreeSet::new(),
            next: 0,
            next_port: 1_024,
            packets: 0,
            expected: BTreeMap::new(),
            sealed: 0,
            arrived: 0,
            lost_while_sealed: 0,
            counters: HashSet::new(),
            gateway_private,
        };
        for _ in 0..clients {
            let private = world.random.random();
            world.add_client(private);
        }
        world
    }

    fn gateway(now: Time, private: [u8; 32], network: Network, random: &mut Xoshiro256PlusPlus) -> Node {
        // A flood uses up what all who have not proved their addresses have together.
        let limits = if network.cookies {
            Limits { all_unproved: Rate { per_s: 1, burst: 1 }, ..Limits::default() }
        } else {
            Limits::default()
        };
        let random = [seeded(random), seeded(random)];
        Node::new(now, private, limits, random).with_shards()
    }

    fn add_client(&mut self, private: [u8; 32]) {
        let random = [seeded(&mut self.random), seeded(&mut self.random)];
        let mut node = Node::new(self.now, private, Limits::default(), random);
        let gateway =
            node.add(self.now, self.gateway.public(), Known::default(), Some(gateway_address()), None);
        let at_gateway = self.gateway.add(self.now, node.public(), Known::default(), None, None);
        let at = self.new_address();
        self.clients.push(Client { node, gateway, at, at_gateway, private });
    }

    /// A second device with the configuration of the first.
    pub(crate) fn copy_client(&mut self, client: usize) {
        self.add_client(self.clients[client].private);
    }

    fn new_address(&mut self) -> Endpoint {
        self.next_port += 1;
        Endpoint { remote: ([203, 0, 113, 7], self.next_port).into(), local: None }
    }

    pub(crate) fn move_client(&mut self, client: usize) {
        self.clients[client].at = self.new_address();
    }

    /// The gateway's process ends, and one that has only its store begins.
    pub(crate) fn restart_gateway(&mut self) {
        let new = Self::gateway(self.now, self.gateway_private, self.network, &mut self.random);
        let old = std::mem::replace(&mut self.gateway, new);
        for client in &mut self.clients {
            let key = client.node.public();
            let known = Known { latest: old.handshakes.latest(&key), ..Known::default() };
            client.at_gateway = self.gateway.add(self.now, key, known, None, None);
        }
    }

    /// The gateway knows where the client was last.
    pub(crate) fn gateway_learns_address(&mut self, client: usize) {
        let client = &mut self.clients[client];
        self.gateway.peers.remove(client.at_gateway);
        let key = client.node.public();
        client.at_gateway = self.gateway.add(self.now, key, Known::default(), Some(client.at), None);
    }

    pub(crate) fn handshakes(&self, client: usize) -> usize {
        let id = self.clients[client].at_gateway;
        self.gateway.events.iter().filter(|event| **event == Event::HandshakeDone(id)).count()
    }

    /// Traffic both ways between the gateway and every client.
    pub(crate) fn talk(&mut self, duration: Duration, every: Duration) {
        let end = self.now + duration;
        while self.now < end {
            for client in 0..self.clients.len() {
                self.client_sends(client);
                if self.gateway.peers.endpoint(self.clients[client].at_gateway).is_some() {
                    self.gateway_sends(client);
                }
            }
            self.run_for(every);
        }
    }

    pub(crate) fn client_sends(&mut self, client: usize) {
        let packet = self.packet(client);
        let Client { node, gateway, at, .. } = &mut self.clients[client];
        let sealed = node.send(self.now, *gateway, &packet.to_be_bytes());
        let at = *at;
        self.note_sent(packet, client, sealed);
        self.flush_client(client, at);
    }

    pub(crate) fn gateway_sends(&mut self, client: usize) {
        let packet = self.packet(client);
        let id = self.clients[client].at_gateway;
        let sealed = self.gateway.send(self.now, id, &packet.to_be_bytes());
        self.note_sent(packet, client, sealed);
        self.flush_gateway();
    }

    /// Whether a packet of the gateway gets to the client now.
    pub(crate) fn gateway_reaches(&mut self, client: usize) -> bool {
        let before = self.arrived;
        self.gateway_sends(client);
        self.run_for(ms(50));
        self.arrived > before
    }

    fn packet(&mut self, _client: usize) -> u64 {
        self.packets += 1;
        self.packets
    }

    fn note_sent(&mut self, packet: u64, client: usize, sealed: bool) {
        if sealed {
            self.sealed += 1;
            self.expected.insert(packet, (client, false));
        }
    }

    fn flush_client(&mut self, client: usize, from: Endpoint) {
        for (to, datagram) in std::mem::take(&mut self.clients[client].node.sent) {
            self.carry(from, to, datagram);
        }
    }

    fn flush_gateway(&mut self) {
        for (to, datagram) in std::mem::take(&mut self.gateway.sent) {
            self.carry(gateway_address(), to, datagram);
        }
    }

    fn carry(&mut self, from: Endpoint, to: Endpoint, datagram: Vec<u8>) {
        if let Ok(header) = TransportHeader::parse(&datagram) {
            // An index may be drawn again by chance, at another address or much later; not
            // with the same counter at once.
            let new = self.counters.insert((to.remote, header.receiver.0, header.counter));
            assert!(new, "counter {} used twice with {:?}", header.counter, header.receiver);
        }
        let network = self.network;
        let copies = [
            (!self.random.random_bool(network.loss)).then_some(Duration::ZERO),
            self.random.random_bool(network.duplicates).then_some(Duration::ZERO),
            self.random.random_bool(network.replays).then(|| secs(self.random.random_range(1..600))),
        ];
        for later in copies.into_iter().flatten() {
            let delay = ms(self.random.random_range(network.delay.0..network.delay.1)) + later;
            self.next += 1;
            self.flying.insert(Delivery {
                at: self.now + delay,
                number: self.next,
                to: to.remote,
                from: from.remote,
                datagram: datagram.clone(),
            });
        }
    }

    pub(crate) fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(at) = self.next_step().filter(|at| *at <= end) {
            self.now = at;
            self.step();
        }
        self.now = end;
    }

    fn next_step(&self) -> Option<Time> {
        let nodes = self.clients.iter().map(|client| &client.node).chain([&self.gateway]);
        let timers = nodes.filter_map(Node::poll_timeout);
        timers.chain(self.flying.first().map(|delivery| delivery.at)).min().map(|at| at.max(self.now))
    }

    fn step(&mut self) {
        while self.flying.first().is_some_and(|delivery| delivery.at <= self.now) {
            let delivery = self.flying.pop_first().expect("there is one");
            self.deliver(delivery);
        }
        for client in 0..self.clients.len() {
            self.clients[client].node.timeout(self.now);
            let at = self.clients[client].at;
            self.flush_client(client, at);
        }
        self.gateway.timeout(self.now);
        self.flush_gateway();
        let most = self.clients.len() * 3;
        assert!(self.gateway.openers() <= most, "{} receiving keys", self.gateway.openers());
    }

    fn deliver(&mut self, delivery: Delivery) {
        let from = Endpoint { remote: delivery.from, local: None };
        if delivery.to == gateway_address().remote {
            if self.network.cookies {
                let flooder = Endpoint { remote: ([192, 0, 2, 99], 99).into(), local: None };
                let junk = self.gateway.junk();
                self.gateway.receive(self.now, flooder, junk);
            }
            let data = self.gateway.receive(self.now, from, delivery.datagram);
            self.flush_gateway();
            if let Some(data) = data {
                let sender = self.clients.iter().position(|client| client.at_gateway == data.peer);
                self.note_arrived(sender.expect("a peer of the gateway"), &data.plaintext);
            }
            return;
        }
        let Some(client) = self.clients.iter().position(|client| client.at.remote == delivery.to) else {
            return;
        };
        let data = self.clients[client].node.receive(self.now, from, delivery.datagram);
        let at = self.clients[client].at;
        self.flush_client(client, at);
        if let Some(data) = data {
            self.note_arrived(client, &data.plaintext);
        }
    }

    fn note_arrived(&mut self, client: usize, plaintext: &[u8]) {
        let Some((packet, padding)) = plaintext.split_first_chunk::<8>() else { return };
        assert!(
            padding.iter().all(|byte| *byte == 0) && plaintext.len() == 16,
            "padded to 16 bytes with zeros"
        );
        let packet = u64::from_be_bytes(*packet);
        let (with, arrived) = self.expected.get_mut(&packet).expect("it was sent");
        let same_key = self.clients[*with].private == self.clients[client].private;
        assert!(same_key, "packet {packet} came from another peer");
        assert!(!std::mem::replace(arrived, true), "packet {packet} came twice");
        self.arrived += 1;
    }

    /// Lets all that is late arrive, and counts what never will.
    pub(crate) fn check(&mut self) {
        self.run_for(SETTLE);
        self.lost_while_sealed = self.expected.values().filter(|(_, arrived)| !arrived).count();
        assert!(self.arrived > 0);
    }

    /// Someone between repeats every cookie reply from elsewhere. How often that moves the gateway,
    /// as the client knows it.
    pub(crate) fn spoof_cookie_replies(&mut self, client: usize) -> usize {
        let elsewhere = self.new_address();
        let before = self.clients[client].node.peers.endpoint(self.clients[client].gateway);
        let mut moved = 0;
        for _ in 0..60 {
            self.client_sends(client);
            self.run_for(ms(2));
            // On their way to the client: 64 bytes.
            let replies: Vec<_> = self
                .flying
                .iter()
                .filter(|delivery| delivery.datagram.len() == 64 && delivery.datagram[0] == 3)
                .map(|delivery| delivery.datagram.clone())
                .collect();
            for reply in replies {
                self.clients[client].node.receive(self.now, elsewhere, reply);
            }
            let now_at = self.clients[client].node.peers.endpoint(self.clients[client].gateway);
            moved += usize::from(now_at != before);
            self.run_for(secs(4));
        }
        moved
    }
}
