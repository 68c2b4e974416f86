//! Behaviour: recorded datagrams of every kind, changed in every way, do nothing to a running
//! gateway, in any state of a session.
//!
//! ```text
//!   client 1, client 2 ── net: relay, which records ── gateway
//!                          └── mutator, past the relay ──┘
//! ```
//!
//! `./x mutate` runs the same for longer and holds the figures against what is promised. The seed
//! is printed; with it the changes are the same, as far as what was recorded is.

use std::fs;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt, SeedableRng};

use crate::client::Client;
use crate::gateway::{Gateway, Login};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab};
use crate::relay::{Faults, PORT, Relay};
use crate::traffic::ping_until;

const SECOND: Duration = Duration::from_secs(1);
/// The longest UDP datagram over IPv4.
const LONGEST: usize = 65_507;

#[test]
fn mutated_datagrams_harm_nothing() {
    let Some(lab) = Lab::new(2) else { return };
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let (seconds, long) = number("VPND_MUTATE_SECONDS").map_or((4, false), |seconds| (seconds, true));
    let seed = number("VPND_MUTATE_SEED").unwrap_or_else(|| rand::rng().random());
    println!("seed             {seed}");
    let relay = Relay::start(&lab, Faults { record: true, record_all: true, ..Faults::default() });
    let mut gateway = Gateway::init(&lab);
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    gateway.start();
    let mutator = Mutator { seed, sent: AtomicU64::new(0), over: AtomicBool::new(false) };
    let mut first = Client::connect(&lab, 1, &ann);
    ping_until(first.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let samples = relay.recorded();
    assert!(samples.iter().any(|d| d[0] & 0xC0 == 0xC0), "a handshake was recorded");
    assert!(samples.iter().any(|d| d[0] == 0x80), "data was recorded");

    let slowest = thread::scope(|scope| {
        scope.spawn(|| mutator.send(&lab, &samples));
        let _end = End(&mutator.over);
        let part = Duration::from_secs(seconds) / 4;
        // A live session; one whose client is gone, beside logins that come and go; a gateway that
        // has forgotten all.
        let mut slowest = watch(&gateway, part);
        let before = memory(&gateway);
        first.kill();
        slowest = slowest.max(come_and_go(&lab, &gateway, &bob, part));
        let after = memory(&gateway);
        println!("gateway memory   {} KiB, then {} KiB", before / 1024, after / 1024);
        let bound = if long { 16 } else { 64 };
        assert!(after.saturating_sub(before) <= bound << 20, "memory grows");
        assert_no_panic(&mut gateway);
        gateway.terminate();
        gateway.start();
        slowest = slowest.max(come_and_go(&lab, &gateway, &bob, part));
        slowest.max(watch(&gateway, part))
    });
    assert_no_panic(&mut gateway);
    let sent = mutator.sent.load(Ordering::Relaxed);
    println!("mutated          {sent} datagrams");
    println!("slowest status   {:.3} s", slowest.as_secs_f64());
    assert!(sent > 1_000, "the mutator was at work");
    assert!(slowest < if long { SECOND } else { 8 * SECOND }, "the gateway hung");
    let last = Client::connect(&lab, 2, &bob);
    ping_until(last.namespace(), CAMPUS_V4.into(), 5 * SECOND);
}

fn assert_no_panic(gateway: &mut Gateway<'_>) {
    gateway.process().assert_running();
    assert!(!gateway.process().output().contains("panicked"), "{}", gateway.process().output());
}

/// Asks for the gateway's status all the time; the longest that it took.
fn watch(gateway: &Gateway<'_>, duration: Duration) -> Duration {
    let end = Instant::now() + duration;
    let mut slowest = Duration::ZERO;
    while Instant::now() < end {
        let start = Instant::now();
        gateway.status();
        slowest = slowest.max(start.elapsed());
    }
    slowest
}

/// Clients log in, send something and leave, or are killed.
fn come_and_go(lab: &Lab, gateway: &Gateway<'_>, login: &Login, duration: Duration) -> Duration {
    let end = Instant::now() + duration;
    let mut slowest = Duration::ZERO;
    for kill in [false, true].into_iter().cycle() {
        let mut client = Client::connect(lab, 2, login);
        ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
        slowest = slowest.max(watch(gateway, SECOND / 10));
        if kill {
            client.kill()
        } else {
            client.interrupt()
        }
        if Instant::now() >= end {
            break;
        }
    }
    slowest
}

/// Resident bytes of the gateway's processes.
fn memory(gateway: &Gateway<'_>) -> u64 {
    let parent = gateway.status()["pid"].as_u64().expect("a process");
    let resident = |pid: u64| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().to_owned();
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    let family = children.split_whitespace().filter_map(|pid| pid.parse().ok()).chain([parent]);
    family.filter_map(resident).sum::<u64>() * 1_024
}

/// Ends the mutator, whatever the end is.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Mutator {
    seed: u64,
    sent: AtomicU64,
    over: AtomicBool,
}

impl Mutator {
    fn send(&self, lab: &Lab, samples: &[Vec<u8>]) {
        let mut dice = StdRng::seed_from_u64(self.seed);
        let socket = lab.net.within(|| UdpSocket::bind("0.0.0.0:0")).expect("a port is free");
        while !self.over.load(Ordering::Relaxed) {
            let datagram = mutated(&mut dice, samples);
            // A full queue, or a gateway that is just restarting, loses one; the next is another.
            if socket.send_to(&datagram, (GATEWAY_V4, PORT)).is_ok() {
                self.sent.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// One of the samples, changed in one way.
fn mutated(dice: &mut StdRng, samples: &[Vec<u8>]) -> Vec<u8> {
    let sample = |dice: &mut StdRng| samples.choose(dice).expect("something was recorded").clone();
    let mut datagram = sample(dice);
    let len = datagram.len();
    match dice.random_range(0..8) {
        0 => (0..dice.random_range(1..9)).for_each(|_| {
            datagram[dice.random_range(0..len)] ^= 1 << dice.random_range(0..8);
        }),
        1 => datagram.truncate(dice.random_range(0..len)),
        2 => {
            // Seldom very long: those cost the network most.
            let most = if dice.random_ratio(1, 50) { LONGEST } else { 2_000 };
            datagram.resize(dice.random_range(0..=most), dice.random());
        }
        3 => {
            let other = sample(dice);
            datagram.truncate(dice.random_range(0..len));
            datagram.extend_from_slice(&other[dice.random_range(0..other.len())..]);
        }
        4 => fill(dice, &mut datagram, 0..16),
        5 => {
            let from = dice.random_range(0..len);
            fill(dice, &mut datagram, from..len);
        }
        6 => {
            let (at, value) =
                (dice.random_range(0..len), *[0, 1, 0x7F, 0x80, 0xFF].choose(dice).expect("some"));
            let end = (at + dice.random_range(1..9)).min(len);
            datagram[at..end].fill(value);
        }
        _ => {
            let other = sample(dice);
            let shared = other.len().min(len).min(16);
            datagram[..shared].copy_from_slice(&other[..shared]);
            datagram[len - 1] ^= 1;
        }
    }
    datagram.truncate(LONGEST);
    datagram
}

fn fill(dice: &mut StdRng, datagram: &mut [u8], range: std::ops::Range<usize>) {
    let end = range.end.min(datagram.len());
    dice.fill_bytes(&mut datagram[range.start.min(end)..end]);
}
