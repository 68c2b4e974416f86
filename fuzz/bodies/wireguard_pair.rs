//! A client and a gateway for the targets of WireGuard's messages: what each input is tried on, and
//! what must not come of it.

use std::net::SocketAddr;

use vpnd_proto::plane::Endpoint;
use vpnd_proto::session::Random;
use vpnd_proto::time::Time;
use vpnd_wireguard::gate::Limits;
use vpnd_wireguard::handshakes::Known;
use vpnd_wireguard::peers::{Event, PeerId};

use crate::node::Node;

pub(crate) const NOW: Time = Time::from_nanos(1_000_000_000);
/// Some time later; handshakes do not follow each other more closely.
pub(crate) const LATER: Time = Time::from_nanos(20_000_000_000);

/// Both ends, and what each calls the other.
pub(crate) struct Pair {
    pub(crate) client: Node,
    pub(crate) gateway: Node,
    pub(crate) gateway_at_client: PeerId,
    pub(crate) client_at_gateway: PeerId,
}

pub(crate) fn at(port: u16) -> Endpoint {
    Endpoint { remote: SocketAddr::from(([192, 0, 2, 1], port)), local: None }
}

/// Where the client and the gateway are.
pub(crate) const CLIENT: u16 = 1;
pub(crate) const GATEWAY: u16 = 2;

impl Pair {
    /// Two ends that know each other and have not shaken hands.
    pub(crate) fn new() -> Self {
        let mut client = Node::new(NOW, [1; 32], Limits::default(), [random(1), random(2)]);
        let mut gateway = Node::new(NOW, [2; 32], Limits::default(), [random(3), random(4)]);
        let known = || Known::default();
        let gateway_at_client = client.add(NOW, gateway.public(), known(), Some(at(GATEWAY)), None);
        let client_at_gateway = gateway.add(NOW, client.public(), known(), None, None);
        Self { client, gateway, gateway_at_client, client_at_gateway }
    }

    /// The client's first message.
    pub(crate) fn initiation(&mut self, now: Time) -> Vec<u8> {
        self.client.send(now, self.gateway_at_client, b"");
        self.client.sent.pop().expect("there is no session yet").1
    }

    /// The gateway's answer.
    pub(crate) fn response(&mut self, now: Time) -> Vec<u8> {
        let initiation = self.initiation(now);
        self.gateway.receive(now, at(CLIENT), initiation);
        self.gateway.sent.pop().expect("a known peer").1
    }

    /// A whole handshake.
    pub(crate) fn shake(&mut self) {
        let response = self.response(NOW);
        self.client.receive(NOW, at(GATEWAY), response);
        let proof = self.client.sent.pop().expect("the new session is shown").1;
        self.gateway.receive(NOW, at(CLIENT), proof);
        assert_eq!(self.gateway.events, [Event::HandshakeDone(self.client_at_gateway)]);
    }
}

/// Bits to change in `bytes`: pairs of a place and a mask. Returns whether anything is changed.
pub(crate) fn change(bytes: &mut [u8], data: &[u8]) -> bool {
    let before = bytes.to_vec();
    for pair in data.chunks_exact(2) {
        let place = usize::from(pair[0]) % bytes.len();
        bytes[place] ^= pair[1];
    }
    bytes != before
}

fn random(seed: u64) -> Random {
    let mut state = seed;
    Box::new(move |bytes| {
        for byte in bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 56) as u8;
        }
    })
}
