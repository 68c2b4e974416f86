use std::collections::{BTreeSet, HashMap};

use vpnd_crypto::Secret;
use zerocopy::IntoBytes as _;

use super::session::Session;
use super::table::Peer;
use super::*;
use crate::handshakes::{Handshakes, Known, Reply};
use crate::key::StaticKey;
use crate::mac::{HandshakeMessage as _, Mac1Key};
use crate::message::{Message, TRANSPORT_HEADER_LEN};
use crate::transport::OpenRefused;

const fn s(seconds: u64) -> Time {
    Time::from_nanos(seconds * 1_000_000_000)
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

fn at(port: u16) -> Endpoint {
    Endpoint { remote: ([192, 0, 2, 1], port).into(), local: None }
}

/// One end: what a worker does, with what it has put out so far.
struct End {
    handshakes: Handshakes,
    peers: Peers,
    peer: PeerId,
    sent: Vec<(Endpoint, Vec<u8>)>,
    sealer: Option<Arc<Sealer>>,
    openers: HashMap<Index, Opener>,
    /// The highest counter that was opened for each index.
    opened: HashMap<Index, u64>,
    events: Vec<Event>,
}

impl End {
    fn new(byte: u8, peer: PublicKey, shards: usize, endpoint: Option<Endpoint>) -> Self {
        let own = StaticKey::new(Secret::new([byte; 32]));
        let limits = gate::Limits::default();
        let config = Config { own: own.public(), shards, backend: Backend::Ring, limits };
        let mut handshakes = Handshakes::new(own, random(u64::from(byte)));
        handshakes.add(peer, Known::default()).expect("an ordinary key");
        let mut peers = Peers::new(s(1), config, random(u64::from(byte) + 100));
        let peer = peers.add(s(1), peer, endpoint, None);
        let (sent, events) = (Vec::new(), Vec::new());
        let (openers, opened) = (HashMap::new(), HashMap::new());
        Self { handshakes, peers, peer, sent, sealer: None, openers, opened, events }
    }

    /// This end's next process, which has taken its peer over.
    fn next_process(self, byte: u8, shards: usize) -> Self {
        let key = self.peers.key(self.peer).expect("it is there");
        let handed = self.peers.hand_over(self.peer, &self.opened).expect("it has keys");
        let mut next = Self::new(byte, key, shards, None);
        assert!(next.peers.take_over(next.peer, handed));
        next.settle(s(1));
        next
    }

    fn settle(&mut self, now: Time) {
        while let Some(output) = self.peers.poll_output() {
            match output {
                Output::Send { to, datagram } => self.sent.push((to, datagram)),
                Output::Ask(id, request) => {
                    let reply = self.handshakes.handle(now, now.since(Time::ZERO), &request);
                    self.peers.on_reply(now, id, reply);
                }
                Output::Open { index, opener, .. } => {
                    self.openers.insert(index, *opener);
                }
                Output::Close(index) => assert!(self.openers.remove(&index).is_some()),
                Output::Seal(_, sealer) => self.sealer = sealer,
                Output::Endpoint(..) => {}
                Output::Event(event) => self.events.push(event),
            }
        }
    }

    fn datagram(&mut self, now: Time, from: Endpoint, datagram: &[u8]) -> Result<(), Dropped> {
        let done = self.peers.on_datagram(now, from, datagram);
        self.settle(now);
        done
    }

    fn data(&mut self, now: Time, from: Endpoint, datagram: &[u8]) -> Result<Opened, Option<OpenRefused>> {
        let mut datagram = datagram.to_vec();
        let Ok(Message::Transport(header)) = Message::parse(&datagram) else { panic!("no data") };
        let opener = self.openers.get_mut(&header.receiver).ok_or(None)?;
        let opened = opener.open(now, header, &mut datagram).map_err(Some)?;
        let highest = self.opened.entry(header.receiver).or_default();
        *highest = header.counter.max(*highest);
        self.peers.on_opened(now, header.receiver, from, opened);
        self.settle(now);
        Ok(opened)
    }

    fn seal(&mut self, now: Time, text: &[u8]) -> Vec<u8> {
        let sealer = self.sealer.clone().expect("there is a session");
        let mut message = vec![0; Sealer::message_len(text.len())];
        message[TRANSPORT_HEADER_LEN..][..text.len()].copy_from_slice(text);
        let range = sealer.reserve(now, 1);
        range.and_then(|mut range| range.seal(&mut message, text.len())).expect("the key is young");
        self.peers.on_sent(now, self.peer, true);
        self.settle(now);
        message
    }

    fn begin(&mut self, now: Time) -> Vec<u8> {
        self.peers.on_no_session(now, self.peer);
        self.settle(now);
        self.sent.pop().expect("a first message").1
    }

    fn take_sent(&mut self) -> Vec<u8> {
        assert_eq!(self.sent.len(), 1);
        self.sent.pop().expect("one").1
    }
}

fn pair(shards: usize) -> (End, End) {
    let key = |byte| StaticKey::new(Secret::new([byte; 32])).public();
    (End::new(1, key(2), shards, Some(at(2))), End::new(2, key(1), shards, None))
}

/// A handshake that the first end begins; its messages take no time.
fn shake(client: &mut End, gateway: &mut End, now: Time) {
    let first = client.begin(now);
    gateway.datagram(now, at(1), &first).expect("it is for the gateway");
    let second = gateway.take_sent();
    client.datagram(now, at(2), &second).expect("it was begun");
    let proof = client.take_sent();
    gateway.data(now, at(1), &proof).expect("a keepalive of the new session");
}

#[test]
fn a_responder_sends_nothing_before_the_initiator_has_shown_its_keys() {
    let (mut client, mut gateway) = pair(1);
    let first = client.begin(s(2));
    gateway.datagram(s(2), at(1), &first).expect("it is for the gateway");
    assert!(gateway.sealer.is_none() && gateway.events.is_empty());
    let second = gateway.take_sent();
    client.datagram(s(2), at(2), &second).expect("it was begun");
    let proof = client.take_sent();
    gateway.data(s(2), at(1), &proof).expect("a keepalive of the new session");
    assert!(gateway.sealer.is_some());
    assert_eq!(gateway.events, [Event::HandshakeDone(gateway.peer)]);
    let message = gateway.seal(s(3), b"data");
    assert!(client.data(s(3), at(2), &message).is_ok());
}

#[test]
fn the_previous_keys_still_open_and_older_ones_are_erased() {
    let (mut client, mut gateway) = pair(1);
    shake(&mut client, &mut gateway, s(2));
    let [oldest, late] = [b"a", b"b"].map(|text| client.seal(s(2), text));
    shake(&mut client, &mut gateway, s(10));
    assert!(gateway.data(s(10), at(1), &late).is_ok(), "it was on its way");
    shake(&mut client, &mut gateway, s(20));
    assert_eq!(gateway.data(s(20), at(1), &oldest), Err(None), "nobody has this key any more");
    assert_eq!((gateway.openers.len(), gateway.peers.indexes.len()), (2, 2));
}

#[test]
fn a_peer_goes_on_in_the_next_process_without_a_handshake() {
    let (mut client, mut gateway) = pair(2);
    shake(&mut client, &mut gateway, s(2));
    let [late, seen] = [b"a", b"b"].map(|text| client.seal(s(3), text));
    gateway.data(s(3), at(7), &seen).expect("it is new");
    let on_its_way = gateway.seal(s(3), b"data");
    let mut gateway = gateway.next_process(2, 2);
    assert_eq!(gateway.peers.endpoint(gateway.peer), Some(at(7)));
    for message in [&late, &seen] {
        assert_eq!(gateway.data(s(4), at(7), message), Err(Some(OpenRefused::Replayed)));
    }
    let up = client.seal(s(4), b"up");
    gateway.data(s(4), at(7), &up).expect("it is new");
    let down = gateway.seal(s(4), b"down");
    for message in [&on_its_way, &down] {
        client.data(s(4), at(2), message).expect("no counter is used twice");
    }
    assert!(gateway.sent.is_empty() && client.sent.is_empty());
    let last = client.seal(s(181), b"last");
    assert_eq!(
        gateway.data(s(182), at(7), &last),
        Err(Some(OpenRefused::Exhausted)),
        "keys do not live longer"
    );
    gateway.peers.on_timeout(s(541));
    assert!(gateway.peers.hand_over(gateway.peer, &HashMap::new()).is_some());
    gateway.peers.on_timeout(s(542));
    assert!(gateway.peers.hand_over(gateway.peer, &HashMap::new()).is_none(), "they were erased");
}

#[test]
fn keys_before_and_after_the_current_ones_are_handed_over() {
    let (mut client, mut gateway) = pair(1);
    shake(&mut client, &mut gateway, s(2));
    let late = client.seal(s(2), b"late");
    shake(&mut client, &mut gateway, s(10));
    let mut gateway = gateway.next_process(2, 1);
    gateway.data(s(10), at(1), &late).expect("it was on its way");
    let late = client.seal(s(19), b"late");
    let latest = client.begin(s(20));
    gateway.datagram(s(20), at(1), &latest).expect("it is for the gateway");
    let answer = gateway.take_sent();
    let mut gateway = gateway.next_process(2, 1);
    client.datagram(s(20), at(2), &answer).expect("it was begun");
    let proof = client.take_sent();
    gateway.data(s(20), at(1), &proof).expect("a keepalive of the new session");
    assert_eq!(gateway.events, [Event::HandshakeDone(gateway.peer)]);
    gateway.data(s(20), at(1), &late).expect("it was on its way");
    let down = gateway.seal(s(21), b"down");
    client.data(s(21), at(2), &down).expect("it is sealed with the new keys");
}

#[test]
fn a_peer_is_taken_over_once_and_only_with_free_indexes() {
    let (mut client, mut gateway) = pair(1);
    shake(&mut client, &mut gateway, s(2));
    let handed = gateway.peers.hand_over(gateway.peer, &gateway.opened).expect("it has keys");
    assert!(!gateway.peers.take_over(gateway.peer, handed.clone()), "it has keys");
    let mut next = gateway.next_process(2, 1);
    let other = next.peers.add(s(3), PublicKey([9; 32]), None, None);
    assert!(!next.peers.take_over(other, handed.clone()), "an index has one peer");
    next.peers.remove(next.peer);
    assert!(!next.peers.take_over(next.peer, handed.clone()), "nobody has this number");
    let twice = handover::HandedPeer { previous: handed.current.clone(), ..handed.clone() };
    assert!(!next.peers.take_over(other, twice));
    assert!(next.peers.take_over(other, handed), "what was refused has changed nothing");
}

#[test]
fn indexes_disclose_only_their_shard() {
    for shards in [1, 2, 3, 64] {
        let (mut client, mut gateway) = pair(shards);
        let mut own = BTreeSet::new();
        for turn in 0..40 {
            shake(&mut client, &mut gateway, s(10 + turn * 10));
            assert!(gateway.openers.keys().all(|index| index.shard(shards) == 0), "the first shard's peer");
            own.extend(gateway.openers.keys().map(|index| index.0 >> 8));
        }
        assert_eq!(own.len(), 40, "the other bits are drawn anew for each session");
        let close = own.iter().zip(own.iter().skip(1)).filter(|(one, next)| *next - *one < 16).count();
        assert!(close < 3, "and do not follow each other: {own:?}");
    }
}

#[test]
fn the_first_mac_is_checked_before_anything_else() {
    let (mut client, mut gateway) = pair(1);
    let mut first = client.begin(s(2));
    first[116] ^= 1;
    assert_eq!(gateway.datagram(s(2), at(1), &first), Err(Dropped::WrongMac));
    first[116] ^= 1;
    gateway.datagram(s(2), at(1), &first).expect("it is for the gateway");
    let mut second = gateway.take_sent();
    second[60] ^= 1;
    assert_eq!(client.datagram(s(2), at(2), &second), Err(Dropped::WrongMac));
    assert!(client.sent.is_empty() && client.events.is_empty(), "silence is the answer");
}

#[test]
fn a_response_that_answers_nothing_costs_nothing() {
    let (mut client, mut gateway) = pair(1);
    let first = client.begin(s(2));
    gateway.datagram(s(2), at(1), &first).expect("it is for the gateway");
    let second = gateway.take_sent();
    client.datagram(s(2), at(2), &second).expect("it was begun");
    assert_eq!(client.datagram(s(2), at(2), &second), Err(Dropped::UnknownIndex), "it was answered");
    assert_eq!(client.datagram(s(2), at(2), &[4; 64]), Err(Dropped::Malformed));
    assert_eq!(client.peers.gate_counts().passed, 0, "the gate was not asked");
}

#[test]
fn forged_responses_have_to_pass_the_gate_after_a_few() {
    let (mut client, mut gateway) = pair(1);
    let first = client.begin(s(2));
    gateway.datagram(s(2), at(1), &first).expect("it is for the gateway");
    let second = gateway.take_sent();
    let Ok(Message::Response(genuine)) = Message::parse(&second) else { panic!("a response") };
    let mut forged = *genuine;
    forged.sealed_nothing[0] ^= 1;
    forged.stamp(&Mac1Key::new(client.handshakes.public()), None);
    for _ in 0..100 {
        let _ = client.datagram(s(2), at(9), forged.as_bytes());
    }
    let counts = client.peers.gate_counts();
    assert_eq!((counts.passed, counts.cookies), (60, 36), "all but four were judged");
    // Where the genuine one comes from, nothing was sent before.
    let elsewhere = Endpoint { remote: ([198, 51, 100, 1], 2).into(), local: None };
    client.datagram(s(2), elsewhere, &second).expect("it was begun");
    assert!(client.sealer.is_some(), "forgeries keep it from nothing");
}

#[test]
fn a_peers_endpoint_is_that_of_its_newest_authentic_message() {
    let (mut client, mut gateway) = pair(1);
    shake(&mut client, &mut gateway, s(2));
    assert_eq!(gateway.peers.endpoint(gateway.peer), Some(at(1)));
    let [older, newer] = [b"a", b"b"].map(|text| client.seal(s(3), text));
    gateway.data(s(3), at(7), &newer).expect("new");
    assert_eq!(gateway.peers.endpoint(gateway.peer), Some(at(7)), "data move it");
    gateway.data(s(3), at(1), &older).expect("late");
    assert_eq!(gateway.peers.endpoint(gateway.peer), Some(at(7)), "late data do not");
    assert!(gateway.data(s(3), at(9), &newer).is_err());
    let mut forged = newer.clone();
    forged[20] ^= 1;
    assert!(gateway.data(s(3), at(9), &forged).is_err());
    assert_eq!(gateway.peers.endpoint(gateway.peer), Some(at(7)), "nor replays and forgeries");
    let first = client.begin(s(20));
    gateway.datagram(s(20), at(8), &first).expect("it is for the gateway");
    assert_eq!(gateway.peers.endpoint(gateway.peer), Some(at(8)), "handshakes do");
    gateway.datagram(s(21), at(9), &first).expect("the gate does not know timestamps");
    assert_eq!(gateway.peers.endpoint(gateway.peer), Some(at(8)), "replayed ones do not");
}

#[test]
fn a_cookie_reply_moves_no_peer_and_is_used_for_the_next_message() {
    let (mut client, mut gateway) = pair(1);
    let first = client.begin(s(2));
    // More than one host may begin.
    let last = (0..100).map(|_| gateway.datagram(s(2), at(1), &first)).find(Result::is_err);
    assert_eq!(last, Some(Err(Dropped::CookieSent)));
    let reply = gateway.sent.pop().expect("a cookie").1;
    client.datagram(s(3), at(66), &reply).expect("it answers the last message");
    assert_eq!(client.peers.endpoint(client.peer), Some(at(2)));
    assert!(client.sent.is_empty(), "it waits for its time");
    client.peers.on_timeout(s(8));
    client.settle(s(8));
    let again = client.sent.pop().expect("a retry").1;
    gateway.datagram(s(2), at(1), &again).expect("its address is proved");
}

#[test]
fn an_unknown_key_is_reported_with_its_source() {
    let (mut client, mut gateway) = pair(1);
    let key = client.handshakes.public();
    gateway.handshakes.remove(&key);
    let first = client.begin(s(2));
    gateway.datagram(s(2), at(1), &first).expect("the worker does not know keys");
    assert_eq!(gateway.events, [Event::Refused { from: at(1), why: Refused::UnknownKey(key) }]);
    assert!(gateway.sent.is_empty() && gateway.openers.is_empty());
}

#[test]
fn a_removed_peer_leaves_nothing_behind() {
    let (mut client, mut gateway) = pair(1);
    shake(&mut client, &mut gateway, s(2));
    client.peers.on_no_session(s(10), client.peer);
    let key = client.handshakes.public();
    gateway.peers.on_no_session(s(10), gateway.peer);
    gateway.peers.remove(gateway.peer);
    gateway.settle(s(10));
    assert!(gateway.openers.is_empty() && gateway.sealer.is_none());
    assert_eq!((gateway.peers.indexes.len(), gateway.peers.poll_timeout()), (0, None));
    assert_eq!(gateway.peers.by_key(&key), None);
    // A late reply belongs to no peer.
    let added = gateway.peers.add(s(11), key, None, None);
    assert_ne!(added, gateway.peer, "numbers are not given twice");
}

#[test]
fn work_that_waits_for_the_static_key_is_bounded() {
    let (mut client, mut gateway) = pair(1);
    let first = client.begin(s(2));
    let from = |number: u32| {
        let ip = std::net::Ipv4Addr::from_bits(0x0A00_0000 + number * 256);
        Endpoint { remote: (ip, 1).into(), local: None }
    };
    let mut busy = 0;
    for number in 0..490 {
        // The process with the static key does not reply meanwhile.
        let done = gateway.peers.on_datagram(s(2), from(number), &first);
        busy += usize::from(done == Err(Dropped::Busy));
    }
    assert_eq!(busy, 490 - 480);
    gateway.peers.note_source(s(2), gateway.peer, at(1), Index(0));
    gateway.peers.on_no_session(s(2), gateway.peer);
    let asked = core::iter::from_fn(|| gateway.peers.poll_output());
    let ids: Vec<_> =
        asked.filter_map(|output| if let Output::Ask(id, _) = output { Some(id) } else { None }).collect();
    assert_eq!(ids.len(), 481, "a handshake of ours is not kept back by that");
    for id in ids {
        gateway.peers.on_reply(s(3), id, Reply::Refused(Refused::NotAuthentic(crate::noise::NotAuthentic)));
    }
    assert!(gateway.peers.on_datagram(s(4), from(1_000), &first).is_ok());
}

#[test]
fn responses_have_room_of_their_own() {
    let (mut client, mut gateway) = pair(1);
    shake(&mut client, &mut gateway, s(2));
    let of_gateway = gateway.begin(s(20));
    client.datagram(s(20), at(2), &of_gateway).expect("it is for the client");
    let (response, first) = (client.take_sent(), client.begin(s(20)));
    let from = |number: u32| {
        let ip = std::net::Ipv4Addr::from_bits(0x0A00_0000 + number * 256);
        Endpoint { remote: (ip, 1).into(), local: None }
    };
    // First messages fill their room; the process with the static key does not reply meanwhile.
    let flood = (0..490).map(|number| gateway.peers.on_datagram(s(20), from(number), &first));
    assert_eq!(flood.filter(|done| *done == Err(Dropped::Busy)).count(), 490 - 480);
    assert_eq!(gateway.peers.finishing(), 0);
    gateway.peers.on_datagram(s(20), at(1), &response).expect("there is room for it");
    assert_eq!(gateway.peers.finishing(), 1);
    // A peer that waits for others than that process makes room, once.
    let asked: Vec<_> = core::iter::from_fn(|| gateway.peers.poll_output())
        .filter_map(|output| if let Output::Ask(id, _) = output { Some(id) } else { None })
        .collect();
    for id in asked.iter().chain(&asked) {
        gateway.peers.set_aside(*id);
    }
    assert_eq!(gateway.peers.finishing(), 0);
    gateway.peers.on_datagram(s(20), from(1_000), &first).expect("there is room again");
    asked.into_iter().for_each(|id| gateway.peers.give_up(id));
    assert_eq!(gateway.peers.finishing(), 0);
}

#[test]
fn two_handshakes_at_once_leave_both_ends_a_session() {
    let (mut client, mut gateway) = pair(1);
    shake(&mut client, &mut gateway, s(2));
    let (of_client, of_gateway) = (client.begin(s(20)), gateway.begin(s(20)));
    gateway.datagram(s(20), at(1), &of_client).expect("it is for the gateway");
    client.datagram(s(20), at(2), &of_gateway).expect("it is for the client");
    let (to_client, to_gateway) = (gateway.take_sent(), client.take_sent());
    client.datagram(s(20), at(2), &to_client).expect("it was begun");
    gateway.datagram(s(20), at(1), &to_gateway).expect("it was begun");
    let (proof_of_client, proof_of_gateway) = (client.take_sent(), gateway.take_sent());
    client.data(s(20), at(2), &proof_of_gateway).expect("a keepalive of the gateway's session");
    gateway.data(s(20), at(1), &proof_of_client).expect("a keepalive of the client's session");
    for _ in 0..3 {
        let (up, down) = (client.seal(s(21), b"up"), gateway.seal(s(21), b"down"));
        assert!(gateway.data(s(21), at(1), &up).is_ok() && client.data(s(21), at(2), &down).is_ok());
    }
    assert!(gateway.peers.indexes.len() <= 3 && client.peers.indexes.len() <= 3);
}

#[test]
fn a_late_handshake_response_starts_no_session() {
    let (mut client, mut gateway) = pair(1);
    shake(&mut client, &mut gateway, s(2));
    gateway.peers.on_no_session(s(20), gateway.peer);
    let Some(Output::Ask(id, request)) = gateway.peers.poll_output() else { panic!("it begins") };
    // The client was faster.
    shake(&mut client, &mut gateway, s(21));
    let reply = gateway.handshakes.handle(s(21), Duration::from_secs(21), &request);
    gateway.peers.on_reply(s(22), id, reply);
    gateway.settle(s(22));
    assert!(gateway.sent.is_empty());
    let indexes = gateway.peers.indexes.len();
    assert_eq!(indexes, gateway.openers.len(), "no index is kept for it");
}

#[test]
fn contents_are_answered_with_a_keepalive_even_if_none_was_passed_on() {
    let (mut client, mut gateway) = pair(1);
    shake(&mut client, &mut gateway, s(2));
    for (at, contents, keepalives) in [(s(20), Time::ZERO, 0), (s(40), s(40), 1)] {
        let activity =
            Activity { rx_datagrams: 1, last_rx: at, last_rx_contents: contents, ..Activity::default() };
        gateway.peers.on_activity(at, gateway.peer, &activity);
        gateway.peers.on_timeout(at + Duration::from_secs(10));
        gateway.settle(at + Duration::from_secs(10));
        assert_eq!(gateway.sent.len(), keepalives, "at {at:?}");
    }
}

#[test]
fn traffic_without_an_answer_begins_a_handshake_however_it_is_reported() {
    let (mut client, mut gateway) = pair(1);
    shake(&mut client, &mut gateway, s(2));
    let sent = |at: Time, heard: Time| Activity {
        tx_packets: 1,
        last_tx: at,
        last_tx_packet: at,
        last_rx: heard,
        ..Activity::default()
    };
    gateway.peers.on_activity(s(20), gateway.peer, &sent(s(20), s(19)));
    gateway.peers.on_activity(s(34), gateway.peer, &sent(s(33), s(34)));
    gateway.peers.on_timeout(s(49));
    gateway.settle(s(49));
    assert!(gateway.sent.is_empty(), "it was heard after the last packet");
    gateway.peers.on_activity(s(50), gateway.peer, &sent(s(50), s(49)));
    gateway.peers.on_timeout(s(66));
    gateway.settle(s(66));
    assert_eq!(gateway.sent.len(), 1, "a first message");
}

#[test]
fn another_interval_of_keepalives_counts_at_once() {
    let (mut client, mut gateway) = pair(1);
    shake(&mut client, &mut gateway, s(2));
    let key = gateway.peers.key(gateway.peer).expect("it is there");
    assert_eq!(gateway.peers.add(s(3), key, None, Some(Duration::from_secs(4))), gateway.peer);
    gateway.peers.on_timeout(s(7));
    gateway.settle(s(7));
    let keepalive = gateway.take_sent();
    assert_eq!(client.data(s(7), at(2), &keepalive).map(|opened| opened.len), Ok(0));
}

/// A gateway of 5,000 idle peers has 16 KiB for each; this is the part of this crate, with the most
/// sessions a peer can have.
#[test]
fn a_peer_takes_little_memory() {
    // A library's key, with the allocation around it.
    const KEY: usize = 1_024;
    let session = size_of::<Session>() + size_of::<Sealer>() + size_of::<Opener>() + 2 * KEY;
    let peer = size_of::<Peer>() + 3 * session;
    assert!(peer <= 12 * 1_024, "{peer} bytes");
}
