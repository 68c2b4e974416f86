//! Rate limits: which packets are charged to whom, and what never fills a bucket.

use super::*;
use crate::rate::{Buckets, RateGroup, Rates, Segments, SessionLimits};

/// Length of the packets in bytes.
const LEN: usize = 1_000;
/// In bytes per second: 100 packets.
const RATE: u64 = 100 * LEN as u64;
const FROM: [&str; 2] = ["198.51.100.1:1000", "198.51.100.2:2000"];

const fn rates(down: u64, up: u64) -> Rates {
    Rates { down, up }
}

/// Clients with limits, at a gateway that forwards between them.
struct Limited {
    net: Net,
    buckets: [Arc<Buckets>; 2],
    user: Arc<Buckets>,
    group: Arc<Buckets>,
}

impl Limited {
    fn new() -> Self {
        let mut net = Net::new(true);
        net.meet();
        let buckets = || Arc::new(Buckets::new(START, 1));
        Self { net, buckets: [buckets(), buckets()], user: buckets(), group: buckets() }
    }

    fn limit(&mut self, place: u32, rates: Rates, group: Option<u32>) {
        let limits = SessionLimits { rates, user: Rates::default(), group: group.map(RateGroup) };
        self.apply(place, limits);
    }

    /// Both sessions are of one user.
    fn limit_user(&mut self, rates: Rates, user: Rates) {
        for place in [ALICE, BOB] {
            self.apply(place, SessionLimits { rates, user, group: None });
        }
    }

    fn apply(&mut self, place: u32, limits: SessionLimits) {
        let user = UserBuckets { number: 1, buckets: Arc::clone(&self.user) };
        let limits = Limits { limits, buckets: Arc::clone(&self.buckets[place as usize]), user };
        self.net.gateway.apply(Command::Limit { slot: slot(place), limits });
    }

    fn limit_group(&mut self, rates: Rates) {
        let group = GroupLimits { rates, buckets: Arc::clone(&self.group) };
        self.net.gateway.apply(Command::Groups([group].into()));
    }

    /// A client sends `packets` packets at once; returns how many pass.
    fn send(&mut self, from: u32, to: u8, packets: usize) -> usize {
        let packet = long_packet(10 + from as u8, to);
        let mut passed = 0;
        for _ in 0..packets {
            let datagram = self.net.client_sends(from, &packet);
            let origin = FROM[from as usize];
            let mut datagram = datagram.clone();
            let opened = open(&mut self.net.gateway, self.net.now, &mut datagram, origin, Ecn::NotEct);
            match opened {
                Ok(Opened::Forward { to, .. }) => passed += self.seal(to),
                Ok(Opened::Tun(_)) => passed += 1,
                Err(DropReason::RateLimit) => {}
                other => panic!("{other:?}"),
            }
        }
        passed
    }

    /// The campus sends `packets` packets at once; returns how many pass.
    fn answer(&mut self, to: u32, packets: usize) -> usize {
        (0..packets).map(|_| self.seal(slot(to))).sum()
    }

    /// One packet for a client; whether it passes.
    fn seal(&mut self, to: Slot) -> usize {
        let mut sender = self.net.gateway.sender(self.net.now, to).expect("there is an epoch");
        sender.admit(Segments::one(LEN))
    }

    fn pass(&mut self, millis: u64) {
        self.net.now = self.net.now + Duration::from_millis(millis);
    }

    fn dropped(&self) -> u64 {
        self.net.gateway.counters().dropped(DropReason::RateLimit)
    }
}

fn long_packet(from: u8, to: u8) -> Vec<u8> {
    let mut packet = super::packet(from, to);
    packet.resize(LEN, 0);
    packet[2..4].copy_from_slice(&(LEN as u16).to_be_bytes());
    packet
}

/// A host that is no client.
const CAMPUS: u8 = 200;

#[test]
fn each_direction_has_its_own_limit_and_each_drop_is_counted_once() {
    let mut limited = Limited::new();
    limited.limit(ALICE, rates(2 * RATE, RATE), None);
    // 100 ms: ten packets up, twenty down.
    limited.pass(100);
    assert_eq!(limited.send(ALICE, CAMPUS, 15), 10);
    assert_eq!(limited.dropped(), 5);
    assert_eq!(limited.answer(ALICE, 30), 20);
    assert_eq!(limited.dropped(), 15);
    assert_eq!(limited.send(BOB, CAMPUS, 50), 50, "he has no limit");
    let activity = limited.net.gateway.activity(slot(ALICE)).expect("she is there");
    assert_eq!((activity.rx_packets, activity.rx_bytes), (10, 10 * LEN as u64), "what was dropped is no use");
    limited.pass(50);
    assert_eq!(limited.send(ALICE, CAMPUS, 15), 5);
}

#[test]
fn between_clients_both_are_charged() {
    let mut limited = Limited::new();
    limited.limit(ALICE, rates(0, 2 * RATE), None);
    limited.limit(BOB, rates(RATE, 0), None);
    limited.pass(100);
    // Twenty may leave her, ten may reach him.
    assert_eq!(limited.send(ALICE, 11, 30), 10);
    assert_eq!(limited.dropped(), 20);
    assert_eq!(limited.send(ALICE, CAMPUS, 10), 0, "hers are spent");
    assert_eq!(limited.answer(BOB, 10), 0, "and his");
}

#[test]
fn the_sessions_of_a_group_share_its_limit() {
    let mut limited = Limited::new();
    limited.limit_group(rates(RATE, RATE));
    limited.limit(ALICE, rates(0, RATE / 2), Some(0));
    limited.limit(BOB, Rates::default(), Some(0));
    limited.pass(100);
    assert_eq!(limited.send(ALICE, CAMPUS, 30), 5, "her own limit is lower");
    assert_eq!(limited.send(BOB, CAMPUS, 30), 5, "what she has left of the group's");
    assert_eq!(limited.answer(ALICE, 6) + limited.answer(BOB, 30), 10);
    // Packets that the group's limit refuses are not charged to the session.
    limited.limit_group(Rates::default());
    limited.pass(100);
    assert_eq!(limited.send(ALICE, CAMPUS, 30), 5);
    assert_eq!(limited.send(BOB, CAMPUS, 30), 30);
}

#[test]
fn the_sessions_of_a_user_share_a_limit_beside_their_own() {
    let mut limited = Limited::new();
    limited.limit_user(rates(0, RATE), rates(RATE, RATE));
    limited.pass(100);
    assert_eq!(limited.answer(ALICE, 6) + limited.answer(BOB, 30), 10);
    assert_eq!(limited.send(ALICE, CAMPUS, 6) + limited.send(BOB, CAMPUS, 30), 10);
    // Packets that the user's limit refuses are not charged to the session, and another limit fills
    // no bucket.
    limited.limit_user(rates(0, RATE), Rates::default());
    assert_eq!(limited.send(BOB, CAMPUS, 30), 6, "the session's own are left");
    limited.limit_user(rates(0, 0), rates(2 * RATE, 2 * RATE));
    assert_eq!(limited.answer(ALICE, 30) + limited.send(ALICE, CAMPUS, 30), 0);
    limited.pass(50);
    assert_eq!(limited.answer(ALICE, 30), 10);
}

#[test]
fn a_session_is_not_charged_for_what_its_group_refuses() {
    let mut limited = Limited::new();
    limited.limit_group(rates(0, RATE));
    limited.limit(ALICE, rates(0, RATE), Some(0));
    limited.limit(BOB, Rates::default(), Some(0));
    limited.pass(100);
    assert_eq!(limited.send(BOB, CAMPUS, 10), 10);
    assert_eq!(limited.send(ALICE, CAMPUS, 10), 0);
    limited.limit(ALICE, rates(0, RATE), None);
    assert_eq!(limited.send(ALICE, CAMPUS, 30), 10, "hers are all there");
}

#[test]
fn neither_a_new_epoch_nor_another_limit_fills_a_bucket() {
    let mut limited = Limited::new();
    limited.limit(ALICE, rates(RATE, RATE), None);
    limited.pass(100);
    assert_eq!((limited.send(ALICE, CAMPUS, 30), limited.answer(ALICE, 30)), (10, 10));
    for epoch in 2..5 {
        limited.net.install(ALICE, epoch, 1);
        assert_eq!(limited.send(ALICE, CAMPUS, 30), 0);
        limited.limit(ALICE, rates(RATE, RATE), None);
        assert_eq!(limited.answer(ALICE, 30), 0);
    }
    // Ten times as fast: one packet's worth of time was left at most.
    limited.limit(ALICE, rates(10 * RATE, 10 * RATE), None);
    assert!(limited.send(ALICE, CAMPUS, 30) < 10);
    limited.limit(ALICE, Rates::default(), None);
    assert_eq!((limited.send(ALICE, CAMPUS, 300), limited.answer(ALICE, 300)), (300, 300), "no limit");
    limited.limit(ALICE, rates(RATE, RATE), None);
    assert_eq!(limited.send(ALICE, CAMPUS, 30), 0);
}

#[test]
fn joined_halves_are_charged_as_one_packet() {
    let mut limited = Limited::new();
    limited.limit(ALICE, rates(0, RATE), None);
    limited.pass(50);
    let packet = long_packet(10, CAMPUS);
    let mut passed = 0;
    for _ in 0..20 {
        for second in [false, true] {
            let mut plaintext = vec![0; 2 + LEN / 2];
            let len = halves_of(&packet, second, &mut plaintext);
            let datagram = limited.net.client_sends(ALICE, &plaintext[..len]);
            match limited.net.gateway_gets(&datagram, FROM[0]) {
                Ok(Opened::Joined { .. }) => passed += 1,
                Ok(Opened::Consumed) => assert!(!second),
                Err(DropReason::RateLimit) => assert!(second),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(passed, 5);
    assert_eq!(limited.dropped(), 15);
}

fn halves_of(packet: &[u8], second: bool, out: &mut [u8]) -> usize {
    super::super::halves::write(packet, second, out).expect("it fits")
}
