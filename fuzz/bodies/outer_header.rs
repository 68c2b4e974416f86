//! Any bytes as a datagram from the network: nothing panics, and no sender without the keys gets
//! anything past the gateway.

use std::sync::Arc;

use vpnd_crypto::{Backend, EpochSecret, Suite};
use vpnd_packet::ecn::Ecn;
use vpnd_packet::{Packet, decrement_hop_limit};
use vpnd_proto::plane::{
    Command, DropReason, Dropped, Endpoint, EpochSpec, NoSender, Opened, Origin, Plane, ReceiveSpec, Role,
    SessionSpec, Slot,
};
use vpnd_proto::policy::{Policy, Principal};
use vpnd_proto::time::Time;
use vpnd_proto::wire::{DATA, HEADER_LEN, Header, HeaderError, Index, PacketClass};

const NOW: Time = Time::from_nanos(1_000_000_000);
const REJECT_AT: Time = Time::from_nanos(181_000_000_000);
const SLOT: Slot = Slot { index: 0, generation: 0 };
/// The session's receive index at the gateway and at its client.
const AT_GATEWAY: u32 = 0x0102_0304;
const AT_CLIENT: u32 = 0x8102_0304;
/// More than any path carries in one datagram of this protocol.
const MAX_PLAINTEXT: usize = 20_000;
/// Room that any suite needs behind a plaintext.
const TRAILER: usize = 48;

/// Checks one input.
pub(crate) fn run(data: &[u8]) {
    check_header(data);
    let mut gateway = plane(Role::Gateway, AT_GATEWAY, AT_CLIENT);
    check_stranger(&mut gateway, data.to_vec());
    check_stranger(&mut gateway, aimed(data));
    let mut client = plane(Role::Client, AT_CLIENT, AT_GATEWAY);
    check_stranger(&mut client, data.to_vec());
    check_peer(&mut gateway, &mut client, &data[..data.len().min(MAX_PLAINTEXT)]);
}

fn check_header(data: &[u8]) {
    let class = PacketClass::of(data);
    match Header::parse(data) {
        Ok(header) => {
            assert_eq!(class, PacketClass::Data);
            assert_eq!(header.to_bytes(), data[..HEADER_LEN]);
            assert!((1..=64).all(|shards| header.index.shard(shards) < shards));
        }
        Err(HeaderError::Truncated) => assert!(data.len() < HEADER_LEN),
        Err(HeaderError::Kind) => assert_ne!(data[0], DATA),
        Err(HeaderError::Reserved) => assert_ne!([data[2] & !1, data[3]], [0, 0]),
    }
}

/// These bytes with a header of the session, so that they reach its keys.
fn aimed(data: &[u8]) -> Vec<u8> {
    let counter = data.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let header = Header { lane: 0, confirm: false, index: Index(AT_GATEWAY), counter };
    [&header.to_bytes(), data].concat()
}

/// A datagram that was not sealed with the keys is dropped, counted and changes nothing else.
fn check_stranger(plane: &mut Plane, mut datagram: Vec<u8>) {
    let before = (plane.counters().total(), plane.activity(SLOT));
    let Ok(header) = Header::parse(&datagram) else { return };
    let opened = plane.open(NOW, header, &mut datagram, origin(7));
    assert!(opened.is_err(), "a forgery was taken for {opened:?}");
    assert_eq!((plane.counters().total(), plane.activity(SLOT)), (before.0 + 1, before.1));
    assert_eq!(plane.poll_event(), None);
}

/// A sealed packet arrives once, as it was, and not if anything of it is changed.
fn check_peer(gateway: &mut Plane, client: &mut Plane, plaintext: &[u8]) {
    let mut datagram = vec![0; HEADER_LEN + plaintext.len() + TRAILER];
    datagram[HEADER_LEN..HEADER_LEN + plaintext.len()].copy_from_slice(plaintext);
    let sender = client.sender(NOW, SLOT).map_err(NoSender::give_up);
    let sealed = sender.and_then(|mut sender| sender.seal(&mut datagram, plaintext.len()));
    datagram.truncate(sealed.expect("the epoch is new").len);

    let place = plaintext.iter().fold(0, |sum: usize, byte| sum.wrapping_mul(31) + usize::from(*byte));
    let mut forged = datagram.clone();
    forged[place % datagram.len()] ^= 1 << (place % 8);
    check_stranger(gateway, forged);

    let mut arrived = datagram.clone();
    let header = Header::parse(&arrived).expect("it was sealed");
    let opened = gateway.open(NOW, header, &mut arrived, origin(1)).map_err(Dropped::reason);
    let inside = &arrived[HEADER_LEN..HEADER_LEN + plaintext.len()];
    match opened {
        Ok(Opened::Tun(packet)) => {
            assert_eq!(packet.packet(&arrived).bytes(), &plaintext[..packet.range().len()]);
        }
        // There is no other client, but one may write to itself.
        Ok(Opened::Forward { to, len }) => {
            let mut routed = plaintext[..len].to_vec();
            let version = Packet::parse(plaintext).expect("it was forwarded").version();
            assert!(decrement_hop_limit(&mut routed, version));
            assert_eq!((to, &inside[..len]), (SLOT, &routed[..]));
        }
        Ok(
            Opened::Expired { slot, len } | Opened::Redirect { slot, len } | Opened::Refused { slot, len },
        ) => {
            assert_eq!((slot, &inside[..len]), (SLOT, &plaintext[..len]));
        }
        Ok(Opened::Probe { size, .. } | Opened::BatchProbe { size, .. }) => {
            assert!(usize::from(size) <= plaintext.len());
        }
        Ok(Opened::BatchesLost(peer)) => assert_eq!(peer, origin(1).from.remote),
        // It was routed, so its header is another one.
        Ok(Opened::Joined { to: Some(to), .. }) => assert_eq!(to, SLOT),
        Ok(Opened::Joined { to: None, packet }) => {
            let joined = &gateway.joined()[packet.range()];
            assert!(joined.ends_with(&inside[2..]) || joined.starts_with(&inside[2..]));
        }
        Ok(Opened::Consumed) => assert_eq!(inside, plaintext),
        Err(reason) => assert!(reason != DropReason::NotAuthentic && reason != DropReason::Replayed),
    }
    while gateway.poll_event().is_some() {}
    check_stranger(gateway, datagram);
}

fn origin(port: u16) -> Origin {
    Origin { from: endpoint(port), mark: Ecn::NotEct, congested: false }
}

fn endpoint(port: u16) -> Endpoint {
    Endpoint { remote: ([192, 0, 2, 1], port).into(), local: None }
}

/// One end of a session with one epoch.
fn plane(role: Role, own: u32, peer: u32) -> Plane {
    let mut plane = Plane::new(role, Arc::new(Policy::without_rules(true)), 7);
    let addresses =
        vec!["10.0.0.10/32".parse().expect("a network"), "fd00::10/128".parse().expect("a network")];
    plane.apply(Command::Open(SessionSpec {
        slot: SLOT,
        addresses,
        principal: Principal::default(),
        limits: None,
        flows: Arc::default(),
        path: Arc::default(),
    }));
    plane.apply(Command::Install(Box::new(EpochSpec {
        slot: SLOT,
        epoch: 1,
        suite: Suite::Aes128Gcm,
        backend: Backend::Ring,
        lab: None,
        secret: Arc::new(EpochSecret::new([7; 32])),
        features: vpnd_proto::control::FEATURES,
        lane: 0,
        peer_index: Index(peer),
        peer_lane: 0,
        endpoint: (role == Role::Client).then(|| endpoint(4433)),
        receive: vec![ReceiveSpec { index: Index(own), lanes: vec![0] }],
        reject_at: REJECT_AT,
    })));
    plane
}
