use super::*;
use crate::cookie::CookieJar;
use crate::message::Initiation;

const OWN: PublicKey = PublicKey([9; 32]);
const LIMITS: Limits = Limits {
    unproved: Rate { per_s: 2, burst: 4 },
    proved: Rate { per_s: 5, burst: 10 },
    all_unproved: Rate { per_s: 20, burst: 20 },
};

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
    assert_eq!(passed(&mut gate, ms(1_000), host(1), 1_000, &mut random), 4);
    for other in 2..6 {
        assert_eq!(passed(&mut gate, ms(1_000), host(other), 3, &mut random), 3, "host {other}");
    }
    assert_eq!(gate.counts().cookies, 996);
}

#[test]
fn forged_addresses_have_everyone_asked_until_the_flood_is_over() {
    let mut random = random();
    let mut gate = gate(&mut random);
    let flood = (100..1_100).map(|number| passed(&mut gate, ms(1_000), host(number), 1, &mut random));
    assert_eq!(flood.sum::<usize>(), 20);
    assert_eq!(passed(&mut gate, ms(1_000), host(1), 1, &mut random), 0, "an honest host is asked as well");
    assert_eq!(passed(&mut gate, ms(3_000), host(1), 1, &mut random), 1, "and no longer two seconds later");
}

#[test]
fn a_proven_address_passes_at_the_rate_of_one_host() {
    let mut random = random();
    let mut gate = gate(&mut random);
    assert_eq!(passed(&mut gate, ms(1_000), host(1), 4, &mut random), 4);
    let (mut jar, key) = (CookieJar::default(), Mac1Key::new(OWN));
    let mut first = message();
    jar.stamp(ms(1_000), &key, &mut first);
    let Verdict::Cookie(reply) = gate.admit(ms(1_000), host(1), Index(7), &first, &mut random) else {
        panic!("it has used up its rate");
    };
    assert!(jar.keep(ms(1_000), OWN, &reply));
    let mut second = message();
    jar.stamp(ms(1_100), &key, &mut second);
    let verdicts: Vec<_> =
        (0..12).map(|_| gate.admit(ms(1_100), host(1), Index(7), &second, &mut random)).collect();
    assert!(verdicts[..10].iter().all(|verdict| *verdict == Verdict::Pass));
    assert!(verdicts[10..].iter().all(|verdict| *verdict == Verdict::TooMany), "and gets no cookie either");
    assert!(
        matches!(gate.admit(ms(1_100), host(2), Index(7), &second, &mut random), Verdict::Pass),
        "elsewhere it proves nothing, so that host's own rate counts"
    );
    assert_eq!(gate.counts().too_many, 2);
}
