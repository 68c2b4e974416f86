//! One end of a tunnel with all its parts in one place: the static key, the peers and one shard.
//! Threads and processes of a gateway, in three kinds, talk here by function calls.
#![allow(dead_code, reason = "each test uses its part")]

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use vpnd_crypto::{Backend, Secret};
use vpnd_proto::plane::{Activity, Endpoint};
use vpnd_proto::session::Random;
use vpnd_proto::time::Time;
use vpnd_proto::wire::Index;
use vpnd_wireguard::gate::Limits;
use vpnd_wireguard::handshakes::{Handshakes, Known};
use vpnd_wireguard::key::{PublicKey, StaticKey};
use vpnd_wireguard::mac::{HandshakeMessage as _, Mac1Key};
use vpnd_wireguard::message::{Message, TRANSPORT_HEADER_LEN};
use vpnd_wireguard::peers::{Config, Event, Output, PeerId, Peers};
use vpnd_wireguard::transport::{Opener, Sealer};
use zerocopy::IntoBytes as _;

/// Shards report the traffic of their sessions this often.
const REPORTS: Duration = Duration::from_secs(1);

/// Reports of a gateway's shards: at once the first message to an index and the newest from
/// elsewhere, all else now and then.
#[derive(Default)]
struct Reports {
    heard_at: HashMap<Index, Endpoint>,
    activity: BTreeMap<PeerId, Activity>,
    due: Option<Time>,
}

impl Reports {
    fn activity(&mut self, now: Time, peer: PeerId) -> &mut Activity {
        self.due.get_or_insert(now + REPORTS);
        self.activity.entry(peer).or_default()
    }
}

/// One end.
pub(crate) struct Node {
    pub(crate) handshakes: Handshakes,
    pub(crate) peers: Peers,
    openers: HashMap<Index, (PeerId, Opener)>,
    sealers: BTreeMap<PeerId, Arc<Sealer>>,
    endpoints: BTreeMap<PeerId, Endpoint>,
    /// `None` at a client, which has no shards.
    reports: Option<Reports>,
    /// Datagrams to be sent.
    pub(crate) sent: Vec<(Endpoint, Vec<u8>)>,
    pub(crate) events: Vec<Event>,
    /// How far the clock of the day is ahead of the node's time.
    pub(crate) day: Duration,
}

/// Data that a datagram carried; an empty packet is a keepalive.
pub(crate) struct Data {
    pub(crate) peer: PeerId,
    pub(crate) plaintext: Vec<u8>,
}

impl Node {
    pub(crate) fn new(now: Time, private: [u8; 32], limits: Limits, random: [Random; 2]) -> Self {
        let own = StaticKey::new(Secret::new(private));
        let config = Config { own: own.public(), shards: 3, backend: Backend::Ring, limits };
        let [of_handshakes, of_peers] = random;
        Self {
            handshakes: Handshakes::new(own, of_handshakes),
            peers: Peers::new(now, config, of_peers),
            openers: HashMap::new(),
            sealers: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            reports: None,
            sent: Vec::new(),
            events: Vec::new(),
            day: Duration::from_secs(1_700_000_000),
        }
    }

    /// With shards, as a gateway.
    pub(crate) fn with_shards(self) -> Self {
        Self { reports: Some(Reports::default()), ..self }
    }

    pub(crate) fn public(&self) -> PublicKey {
        self.handshakes.public()
    }

    pub(crate) fn add(
        &mut self,
        now: Time,
        key: PublicKey,
        known: Known,
        endpoint: Option<Endpoint>,
        interval: Option<Duration>,
    ) -> PeerId {
        self.handshakes.add(key, known).expect("a key of another node");
        let id = self.peers.add(now, key, endpoint, interval);
        self.settle(now);
        id
    }

    /// Sends a packet; false if there was no key to seal it with, so a handshake has begun.
    pub(crate) fn send(&mut self, now: Time, peer: PeerId, packet: &[u8]) -> bool {
        let mut message = vec![0; Sealer::message_len(packet.len())];
        message[TRANSPORT_HEADER_LEN..][..packet.len()].copy_from_slice(packet);
        let range = self.sealers.get(&peer).and_then(|sealer| sealer.reserve(now, 1).ok());
        let sealed = range.and_then(|mut range| range.seal(&mut message, packet.len()).ok());
        match (sealed, self.endpoints.get(&peer)) {
            (Some(_), Some(to)) => {
                self.sent.push((*to, message));
                match &mut self.reports {
                    Some(reports) => reports.activity(now, peer).last_tx_packet = now,
                    None => self.peers.on_sent(now, peer, true),
                }
            }
            _ => self.peers.on_no_session(now, peer),
        }
        self.settle(now);
        sealed.is_some()
    }

    /// A datagram came; returns what it carried.
    pub(crate) fn receive(&mut self, now: Time, from: Endpoint, mut datagram: Vec<u8>) -> Option<Data> {
        let Ok(Message::Transport(header)) = Message::parse(&datagram) else {
            let _ = self.peers.on_datagram(now, from, &datagram);
            self.settle(now);
            return None;
        };
        let (peer, opener) = self.openers.get_mut(&header.receiver)?;
        let peer = *peer;
        let opened = opener.open(now, header, &mut datagram).ok()?;
        let is_reported = self.reports.as_mut().is_none_or(|reports| {
            let activity = reports.activity(now, peer);
            activity.last_rx = now;
            if opened.len > 0 {
                activity.last_rx_contents = now;
            }
            opened.newest && reports.heard_at.insert(header.receiver, from) != Some(from)
        });
        if is_reported {
            self.peers.on_opened(now, header.receiver, from, opened);
        }
        self.settle(now);
        Some(Data { peer, plaintext: datagram[TRANSPORT_HEADER_LEN..][..opened.len].to_vec() })
    }

    /// When [`Node::timeout`] has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let due = self.reports.as_ref().and_then(|reports| reports.due);
        self.peers.poll_timeout().into_iter().chain(due).min()
    }

    pub(crate) fn timeout(&mut self, now: Time) {
        if let Some(reports) = self.reports.as_mut().filter(|reports| reports.due.is_some_and(|at| at <= now))
        {
            reports.due = None;
            for (peer, activity) in std::mem::take(&mut reports.activity) {
                self.peers.on_activity(now, peer, &activity);
            }
        }
        self.peers.on_timeout(now);
        self.settle(now);
    }

    /// A first message of which nothing but the first MAC is right: anyone who knows the public key
    /// can make it.
    pub(crate) fn junk(&self) -> Vec<u8> {
        let mut bytes = [0; 148];
        bytes[0] = 1;
        let Ok(Message::Initiation(message)) = Message::parse(&bytes) else { panic!("148 bytes of type 1") };
        let mut message = *message;
        message.stamp(&Mac1Key::new(self.public()), None);
        message.as_bytes().to_vec()
    }

    /// The number of receiving keys.
    pub(crate) fn openers(&self) -> usize {
        self.openers.len()
    }

    fn settle(&mut self, now: Time) {
        while let Some(output) = self.peers.poll_output() {
            match output {
                Output::Send { to, datagram } => self.sent.push((to, datagram)),
                Output::Ask(id, request) => {
                    let since_1970 = self.day + now.since(Time::ZERO);
                    let reply = self.handshakes.handle(now, since_1970, &request);
                    self.peers.on_reply(now, id, reply);
                }
                Output::Open { peer, index, opener } => {
                    assert!(self.openers.insert(index, (peer, *opener)).is_none(), "an index is given once");
                }
                Output::Close(index) => {
                    assert!(self.openers.remove(&index).is_some(), "it was opened");
                    if let Some(reports) = &mut self.reports {
                        reports.heard_at.remove(&index);
                    }
                }
                Output::Seal(peer, Some(sealer)) => {
                    self.sealers.insert(peer, sealer);
                }
                Output::Seal(peer, None) => {
                    self.sealers.remove(&peer);
                }
                Output::Endpoint(peer, endpoint) => {
                    self.endpoints.insert(peer, endpoint);
                    for (index, at) in self.reports.iter_mut().flat_map(|reports| &mut reports.heard_at) {
                        if self.openers.get(index).is_some_and(|(opened, _)| *opened == peer) {
                            *at = endpoint;
                        }
                    }
                }
                Output::Event(event) => self.events.push(event),
            }
        }
    }
}
