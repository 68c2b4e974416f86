use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits { places: 256, handshakes_per_s: 100 };
const SECRET: [u8; 16] = *b"sixteen of them!";

fn admission() -> Admission {
    Admission::new(LIMITS, SECRET)
}

fn at(ms: u64) -> Time {
    Time::ZERO + Duration::from_secs(1000) + Duration::from_millis(ms)
}

fn source(address: &str) -> Source {
    Source::from(address.parse::<IpAddr>().unwrap())
}

/// A different host each time, from all over the internet.
fn random_v4(number: u32) -> Source {
    Source::from(IpAddr::V4(Ipv4Addr::from_bits(number.wrapping_mul(2_654_435_761) ^ 0x5bd1_e995)))
}

/// Returns how many of `times` handshakes are admitted that are over at once.
fn handshakes(admission: &mut Admission, now: Time, from: Source, times: usize) -> usize {
    let come_and_go =
        |_: &usize| on_connection(admission, now, from).map(|permit| admission.leave(permit)).is_some();
    (0..times).filter(come_and_go).count()
}

/// The place that a handshake gets.
fn on_connection(admission: &mut Admission, now: Time, from: Source) -> Option<PermitId> {
    match admission.on_connection(now, from) {
        ConnectionDecision::Accept { permit, .. } => Some(permit),
        ConnectionDecision::Refuse | ConnectionDecision::Ignore => None,
    }
}

fn answers(admission: &mut Admission, now: Time, from: Source, times: usize) -> usize {
    (0..times).filter(|_| admission.on_initial(now, from) == RetryDecision::Retry).count()
}

#[test]
fn a_host_has_its_rate_and_a_burst_of_six_seconds() {
    let (mut admission, host) = (admission(), source("192.0.2.1"));
    assert_eq!(handshakes(&mut admission, at(0), host, 2_000), 600);
    assert_eq!(handshakes(&mut admission, at(500), host, 2_000), 50);
    assert_eq!(handshakes(&mut admission, at(100_000), host, 2_000), 600);
    let counts = admission.counts();
    assert_eq!((counts.accepted, counts.ignored, counts.refused), (1_250, 4_750, 0));
}

#[test]
fn one_address_cannot_use_the_whole_rate_of_its_network() {
    for (host, neighbour, site, far) in [
        ("192.0.2.1", "192.0.2.2", "192.0.3.1", "198.51.100.1"),
        ("2001:db8:1:100::1", "2001:db8:1:101::1", "2001:db8:1:200::1", "2001:db8:2::1"),
    ] {
        let mut admission = admission();
        assert_eq!(handshakes(&mut admission, at(0), source(host), 5_000), 600);
        assert_eq!(handshakes(&mut admission, at(0), source(neighbour), 5_000), 600, "a neighbour of {host}");
        let third = match host.parse().unwrap() {
            IpAddr::V4(_) => source("192.0.2.3"),
            IpAddr::V6(_) => source("2001:db8:1:102::1"),
        };
        assert_eq!(
            handshakes(&mut admission, at(0), third, 5_000),
            0,
            "the site of {host} has had its share"
        );
        assert_eq!(handshakes(&mut admission, at(0), source(site), 5_000), 600, "another site than {host}");
        assert_eq!(
            handshakes(&mut admission, at(0), source(far), 5_000),
            600,
            "another provider than {host}"
        );
    }
}

#[test]
fn the_addresses_of_a_64_and_both_ways_to_write_ipv4_are_one_source() {
    assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
    assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
    assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
    assert_ne!(source("0.0.0.1"), source("0.0.0.2"));
    let v6 = Ipv6Addr::from_bits(u128::from(source("192.0.2.1").bits) << 64);
    assert_ne!(Source::from(IpAddr::V6(v6)), source("192.0.2.1"), "the same bits of the other family");
}

#[test]
fn a_morning_of_five_hundred_logins_from_one_address_passes() {
    // Each connection needs three round trips of 50 ms; who is refused comes again within a second,
    // as clients do.
    let (mut admission, campus) = (admission(), source("192.0.2.1"));
    let mut waiting: Vec<u64> = vec![0; 500];
    let mut leaving: Vec<(u64, PermitId)> = Vec::new();
    let mut done = 0;
    for now in (0..5_000).step_by(10) {
        leaving.retain(|(due, permit)| {
            let over = *due <= now;
            if over {
                admission.leave(*permit);
                done += 1;
            }
            !over
        });
        for (number, due) in (0..).zip(&mut waiting).filter(|(_, due)| **due <= now) {
            assert_eq!(answers(&mut admission, at(now), campus, 2), 2, "both datagrams of a first flight");
            match admission.on_connection(at(now), campus) {
                ConnectionDecision::Accept { permit, .. } => {
                    (*due, _) = (u64::MAX, leaving.push((now + 150, permit)))
                }
                ConnectionDecision::Refuse => *due = now + 250 + (now + number) * 7_919 % 500,
                ConnectionDecision::Ignore => panic!("the storm is within the rate"),
            }
        }
    }
    assert_eq!(done, 500, "all are in after five seconds");
}

#[test]
fn unproved_sources_cost_nothing_but_answers_and_those_are_limited() {
    let (mut admission, victim) = (admission(), source("192.0.2.1"));
    assert_eq!(answers(&mut admission, at(0), victim, 100_000), 2_400);
    assert_eq!(answers(&mut admission, at(1_000), victim, 100_000), 400);
    assert_eq!(admission.counts().dropped, 197_200);
    assert!(admission.places.taken() == 0 && admission.sessions.is_empty());
    assert_eq!(handshakes(&mut admission, at(1_000), victim, 1), 1, "whoever really is there gets in");
}

#[test]
fn while_the_queue_is_full_fewer_strangers_are_answered() {
    let (mut admission, known) = (admission(), source("198.51.100.1"));
    admission.session_began(known);
    let mut answered = |batches: u32| {
        (0..batches).for_each(|_| admission.batch_read(true));
        let strangers =
            (0..1_280).filter(|n| admission.on_initial(at(0), random_v4(*n)) == RetryDecision::Retry);
        let strangers = strangers.count();
        assert_eq!(answers(&mut admission, at(0), known, 10), 10, "who has a session does not wait");
        assert!(admission.on_validated(at(0), source("203.0.113.1")), "nor who has a proof");
        admission.batch_read(false);
        strangers
    };
    let shares = [0, 7, 8, 16, 48, 1_000, 0].map(&mut answered);
    assert_eq!(shares, [1_280, 1_280, 640, 320, 20, 20, 1_280]);
    assert_eq!(admission.counts().dropped, 640 + 960 + 1_260 + 1_260);
}

#[test]
fn a_proof_is_not_looked_at_too_often() {
    let (mut admission, host) = (admission(), source("192.0.2.1"));
    assert_eq!((0..100_000).filter(|_| admission.on_validated(at(0), host)).count(), 4_800);
    assert!(admission.on_validated(at(0), source("192.0.2.2")) && admission.on_validated(at(10), host));
    assert_eq!(admission.counts().dropped, 95_200);
}

#[test]
fn a_flood_from_random_addresses_refuses_no_honest_client() {
    // 300,000 datagrams a second for two seconds; an honest client comes every millisecond.
    let mut admission = Admission::new(Limits { handshakes_per_s: 500, ..LIMITS }, SECRET);
    let mut honest = 0;
    for ms in 0..2_000u32 {
        for number in 0..300 {
            admission.on_initial(at(ms.into()), random_v4(ms * 300 + number));
        }
        let from = random_v4(0x8000_0000 + ms);
        honest += answers(&mut admission, at(ms.into()), from, 1);
        assert_eq!(handshakes(&mut admission, at(ms.into()), from, 1), 1);
    }
    assert_eq!(honest, 2_000);
}

#[test]
fn a_flood_from_its_own_network_leaves_a_session_its_way() {
    let (mut admission, mine) = (admission(), source("10.1.2.3"));
    admission.session_began(mine);
    for host in 0..=u16::MAX {
        let [high, low] = host.to_be_bytes();
        let neighbour = Source::from(IpAddr::from([10, 1, high, low]));
        if neighbour != mine {
            answers(&mut admission, at(0), neighbour, 10);
            handshakes(&mut admission, at(0), neighbour, 10);
        }
    }
    let stranger = source("10.1.2.4");
    assert_eq!(answers(&mut admission, at(0), stranger, 1), 0, "the network has had its answers");
    assert_eq!(handshakes(&mut admission, at(0), stranger, 1), 0);
    assert_eq!(answers(&mut admission, at(0), mine, 3_000), 2_400);
    assert_eq!(handshakes(&mut admission, at(0), mine, 5_000), 2_400);
    admission.session_began(stranger);
    assert_eq!(handshakes(&mut admission, at(0), stranger, 1), 1);
    admission.session_ended(stranger);
    assert_eq!(handshakes(&mut admission, at(0), stranger, 1), 0, "without a session it is one of them");
}

#[test]
fn places_are_limited_and_some_are_kept() {
    let mut admission = admission();
    let (known, crowd) = (source("198.51.100.1"), source("192.0.2.1"));
    admission.session_began(known);
    let taken: Vec<PermitId> = (0..300).filter_map(|_| on_connection(&mut admission, at(0), crowd)).collect();
    assert_eq!(taken.len(), 64, "one source");
    let others =
        (0..300).filter(|number| on_connection(&mut admission, at(0), random_v4(*number)).is_some()).count();
    assert!(others >= 128, "{others} others, of whom some took the crowd's places");
    assert_eq!(admission.places.taken(), 192, "strangers together have three quarters");
    let kept: Vec<PermitId> = (0..300).filter_map(|_| on_connection(&mut admission, at(0), known)).collect();
    assert!(kept.len() >= 64, "a source with a session");
    assert_eq!(admission.places.taken(), 256);
    assert!(kept.len() <= 128, "it is not the only one either");
    let before = admission.places.taken();
    admission.leave(kept[0]);
    admission.leave(kept[0]);
    assert_eq!(admission.places.taken(), before - 1, "a place is given back once");
}

#[test]
fn two_addresses_with_all_they_can_hold_keep_no_stranger_out() {
    let mut admission = admission();
    for crowd in ["192.0.2.1", "198.51.100.1"] {
        for _ in 0..600 {
            let _ = on_connection(&mut admission, at(0), source(crowd));
        }
    }
    for number in 0..128 {
        let stranger = random_v4(number);
        assert!(on_connection(&mut admission, at(0), stranger).is_some(), "number {number}");
    }
}

#[test]
fn many_hosts_of_one_network_keep_no_stranger_out() {
    for network in ["2001:db8:1::", "192.0.0.0"] {
        let mut admission = admission();
        let crowd = |number: u32| match network.parse::<IpAddr>().unwrap() {
            IpAddr::V6(v6) => IpAddr::from(Ipv6Addr::from_bits(v6.to_bits() + (u128::from(number) << 64))),
            IpAddr::V4(v4) => IpAddr::from(Ipv4Addr::from_bits(v4.to_bits() + number)),
        };
        for number in 0..5_000 {
            on_connection(&mut admission, at(0), Source::from(crowd(number)));
        }
        for number in 0..64 {
            assert!(on_connection(&mut admission, at(0), random_v4(number)).is_some(), "{network}: {number}");
        }
    }
}

#[test]
fn the_smallest_gateway_admits_one_client() {
    let mut admission = Admission::new(Limits { places: 1, handshakes_per_s: 1 }, SECRET);
    assert!(on_connection(&mut admission, at(0), source("192.0.2.1")).is_some());
    assert_eq!(admission.on_connection(at(0), source("192.0.2.2")), ConnectionDecision::Refuse);
    assert!(
        on_connection(&mut admission, at(1_000), source("192.0.2.2")).is_some(),
        "whoever stays for long makes room"
    );
    assert_eq!((admission.places.taken(), admission.counts().displaced), (1, 1));
}

#[test]
fn a_shared_sketch_cell_gets_no_refund() {
    let mut sketch = Sketch::new(Rate { per_s: 1, burst: 3 });
    let (first, second) = (Cells::from_hash(5), Cells::from_hash(7 << 32));
    let cells = Cells::from_hash(7 << 32 | 5);
    for _ in 0..3 {
        assert!(sketch.allows(cells, at(0)));
        sketch.charge(cells, at(0));
    }
    for neighbour in [first, second] {
        assert!(sketch.allows(neighbour, at(0)), "its other cell is fresh");
        sketch.charge(neighbour, at(0));
    }
    assert!(!sketch.allows(cells, at(0)));
}

proptest! {
    /// Against one exact bucket for each host: never more, and the same while there are few.
    #[test]
    fn a_sketch_allows_what_an_exact_bucket_does(steps in prop::collection::vec((0u8..6, 0u64..40), 1..400)) {
        let mut sketch = Sketch::new(Rate { per_s: 50, burst: 5 });
        let mut exact: HashMap<u8, (f64, u64)> = HashMap::new();
        let mut now = 0;
        for (host, later) in steps {
            now += later;
            let (tokens, last) = exact.entry(host).or_insert((5.0, now));
            *tokens = (*tokens + (now - *last) as f64 * 0.05).min(5.0);
            *last = now;
            let cells = Cells::from_hash(u64::from(host) * 0x0000_0101_0000_0103);
            let allowed = sketch.allows(cells, at(now));
            prop_assert_eq!(allowed, *tokens > 1.0 - 1e-6, "host {} at {} ms has {}", host, now, tokens);
            if allowed {
                sketch.charge(cells, at(now));
                *tokens -= 1.0;
            }
        }
    }

    #[test]
    fn a_sketch_never_allows_more_than_an_exact_bucket(hosts in prop::collection::vec(any::<u64>(), 1..2_000)) {
        let mut sketch = Sketch::new(Rate { per_s: 1, burst: 3 });
        let mut allowed: HashMap<u64, usize> = HashMap::new();
        for host in hosts {
            let cells = Cells::from_hash((host % 7).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            if sketch.allows(cells, at(0)) {
                sketch.charge(cells, at(0));
                *allowed.entry(host % 7).or_default() += 1;
            }
        }
        prop_assert!(allowed.values().all(|count| *count <= 3), "{:?}", allowed);
    }
}
