use std::net::Ipv6Addr;

use super::*;
use crate::cookie::CookieJar;
use crate::message::Initiation;

const OWN: PublicKey = PublicKey([9; 32]);
/// Six times as many at once.
const LIMITS: Limits = Limits { unproved: 2, proved: 5, all_unproved: Rate { per_s: 40, burst: 40 } };

const fn ms(millis: u64) -> Time {
    Time::from_nanos(millis * 1_000_000)
}

fn random() -> Random {
    let mut state = 3u64;
    Box::new(move |bytes| {
        for byte in bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
    })
}

fn host(number: u32) -> SocketAddr {
    SocketAddr::new(std::net::Ipv4Addr::from_bits(0x0A00_0000 + (number << 8)).into(), 51820)
}

fn message() -> Initiation {
    let mut message = Initiation::new([1; 32], [2; 48], [3; 28]).from(Index(7));
    message.stamp(&Mac1Key::new(OWN), None);
    message
}

fn gate(random: &mut Random) -> Gate {
    Gate::new(ms(0), OWN, LIMITS, random)
}

/// The number that passes of `count` messages from `from` at `now`, without a proof.
fn passed(gate: &mut Gate, now: Time, from: SocketAddr, count: usize, random: &mut Random) -> usize {
    let verdicts = (0..count).map(|_| gate.admit(now, from, Index(7), &message(), random));
    verdicts.filter(|verdict| *verdict == Verdict::Pass).count()
}

/// A first message from a host that has got a cookie, and shows it.
fn proved(gate: &mut Gate, now: Time, from: SocketAddr, random: &mut Random) -> Initiation {
    let (mut jar, key) = (CookieJar::default(), Mac1Key::new(OWN));
    loop {
        let mut message = message();
        jar.stamp(now, &key, &mut message);
        match gate.admit(now, from, Index(7), &message, random) {
            Verdict::Pass => {}
            Verdict::Cookie(reply) => {
                assert!(jar.keep(now, OWN, &reply));
                jar.stamp(now, &key, &mut message);
                return message;
            }
            Verdict::TooMany => panic!("it has shown no cookie"),
        }
    }
}

#[test]
fn the_first_mac_is_checked_and_counted() {
    let mut random = random();
    let mut gate = gate(&mut random);
    assert!(gate.is_for_us(&message()));
    let mut wrong = message();
    wrong.mac1[0] ^= 1;
    assert!(!gate.is_for_us(&wrong));
    assert_eq!(gate.counts().wrong_mac, 1);
}

#[test]
fn one_flooder_is_asked_for_a_proof_and_others_are_not() {
    let mut random = random();
    let mut gate = gate(&mut random);
    assert_eq!(passed(&mut gate, ms(1_000), host(1), 1_000, &mut random), 12);
    for other in 2..6 {
        assert_eq!(passed(&mut gate, ms(1_000), host(other), 3, &mut random), 3, "host {other}");
    }
    assert_eq!(gate.counts().cookies, 988);
}

#[test]
fn forged_addresses_have_everyone_asked_until_the_flood_is_over() {
    let mut random = random();
    let mut gate = gate(&mut random);
    let flood = (100..1_100).map(|number| passed(&mut gate, ms(1_000), host(number), 1, &mut random));
    assert_eq!(flood.sum::<usize>(), 40);
    assert_eq!(passed(&mut gate, ms(1_000), host(1), 1, &mut random), 0, "an honest host is asked as well");
    assert_eq!(passed(&mut gate, ms(3_000), host(1), 1, &mut random), 1, "and no longer two seconds later");
}

#[test]
fn a_proven_address_passes_at_the_rate_of_one_host() {
    let mut random = random();
    let mut gate = gate(&mut random);
    let second = proved(&mut gate, ms(1_000), host(1), &mut random);
    assert_eq!(gate.counts().passed, 12, "without a cookie");
    let verdicts: Vec<_> =
        (0..32).map(|_| gate.admit(ms(1_100), host(1), Index(7), &second, &mut random)).collect();
    assert!(verdicts[..30].iter().all(|verdict| *verdict == Verdict::Pass));
    assert!(verdicts[30..].iter().all(|verdict| *verdict == Verdict::TooMany), "and gets no cookie either");
    assert!(
        matches!(gate.admit(ms(1_100), host(2), Index(7), &second, &mut random), Verdict::Pass),
        "elsewhere it proves nothing, so that host's own rate counts"
    );
    assert_eq!(gate.counts().too_many, 2);
}

#[test]
fn all_addresses_of_a_site_have_the_rate_of_a_site_and_other_networks_theirs() {
    let mut random = random();
    let mut gate = gate(&mut random);
    let hosts = (0..256).map(|subnet| Ipv6Addr::new(0x2001, 0xDB8, 0, subnet, 0, 0, 0, 1));
    let flood: Vec<_> = hosts
        .map(|host| {
            let from = SocketAddr::from((host, 51820));
            (from, proved(&mut gate, ms(1_000), from, &mut random))
        })
        .collect();
    let honest = proved(&mut gate, ms(1_000), host(1), &mut random);
    let mut passed = 0;
    for tenth in 0..100 {
        for (from, message) in &flood {
            let verdict = gate.admit(ms(1_000 + 100 * tenth), *from, Index(7), message, &mut random);
            passed += usize::from(verdict == Verdict::Pass);
        }
    }
    assert!((150..=160).contains(&passed), "twice a host's of 10 s and its 6 s at once: {passed}");
    assert_eq!(gate.admit(ms(11_000), host(1), Index(7), &honest, &mut random), Verdict::Pass);
}
