use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

const START: Time = Time::from_nanos(7_000_000_000);
const MILLISECOND: u64 = 1_000_000;
/// A thousandth of the promise of one second.
const SAMPLE: u64 = 10 * MILLISECOND;
const SAMPLES: usize = 200;

fn down(rate: u64) -> Rates {
    Rates { down: rate, up: 0 }
}

fn shards(count: usize, rate: u64) -> Vec<ShardLimit> {
    let buckets = Arc::new(Buckets::new(START, count));
    (0..count).map(|_| ShardLimit::new(down(rate), Arc::clone(&buckets))).collect()
}

fn admit(limit: &mut ShardLimit, now: u64, segments: Segments) -> u64 {
    let now = START + Duration::from_nanos(now);
    segments.bytes(limit.admit(now, Way::Down, segments))
}

/// A packet or super-packet of about `about` bytes.
fn segments(rng: &mut StdRng, about: u64) -> Segments {
    if about < 1_500 {
        return Segments::one(rng.random_range(40..1_500));
    }
    let len = rng.random_range(600..1_420);
    let count = (about as usize / len).clamp(1, 45);
    Segments { len, last_len: rng.random_range(40..=len), count }
}

/// The bytes that have passed at a sample.
#[derive(Clone, Copy)]
struct Sample {
    bytes: u64,
    /// When the last packets before it were offered, in nanoseconds. What the bucket gained since
    /// then is no error: at a slow rate a super-packet is a tenth of a second's bytes.
    offered_at: u64,
}

/// How far the rate between two samples is from `rate`.
fn error(from: Sample, until: Sample, rate: u64) -> f64 {
    let seconds = (until.offered_at - from.offered_at) as f64 / 1e9;
    (until.bytes - from.bytes) as f64 / (rate as f64 * seconds) - 1.0
}

/// Returns what passed until each sample of two seconds, in which streams offer `load` times the
/// rate.
fn offer(seed: u64, rate: u64, shard_count: usize, streams: usize, load: f64) -> Vec<Sample> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut shards = shards(shard_count, rate);
    let homes: Vec<usize> = (0..streams).map(|_| rng.random_range(0..shard_count)).collect();
    // So that no case has more than a few hundred thousand arrivals.
    let about = (rate / 40_000).max(if rng.random() { 100 } else { 20_000 });
    let (mut now, mut bytes, mut samples) = (0.0, 0, Vec::new());
    while samples.len() < SAMPLES {
        // One stream sends a few in a row.
        let home = homes[rng.random_range(0..streams)];
        for _ in 0..rng.random_range(1..8) {
            let segments = segments(&mut rng, about);
            let offered = segments.bytes(segments.count) as f64;
            let offered_at = now as u64;
            bytes += admit(&mut shards[home], offered_at, segments);
            now += offered * 1e9 / (rate as f64 * load) * rng.random_range(0.5..1.5);
            while now as u64 >= (samples.len() as u64 + 1) * SAMPLE && samples.len() < SAMPLES {
                samples.push(Sample { bytes, offered_at });
            }
        }
    }
    samples
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The promise: more is offered than the rate allows, and what passes within a second is within
    /// 5 % of the rate.
    #[test]
    fn within_a_second_the_rate_is_kept_to_five_percent(
        seed: u64,
        // 1 Mbit/s to 5 Gbit/s.
        exponent in 0.0..1.0,
        shard_count in prop::sample::select(vec![1usize, 2, 8, 64]),
        streams in prop::sample::select(vec![1usize, 8, 64]),
        load in 1.3..20.0,
    ) {
        let rate = (125_000.0 * f64::powf(5_000.0, exponent)) as u64;
        let passed = offer(seed, rate, shard_count, streams, load);
        let error = error(passed[SAMPLES / 2 - 1], passed[SAMPLES - 1], rate);
        prop_assert!(error.abs() <= 0.05, "{:.2} % at {rate} bytes/s", error * 100.0);
    }

    /// Whatever is offered and when: no period has more than the rate and one burst.
    #[test]
    fn no_period_has_more_than_the_rate_and_a_burst(
        seed: u64,
        exponent in 0.0..1.0,
        shard_count in prop::sample::select(vec![1usize, 8, 64]),
        load in 0.05..20.0,
    ) {
        let rate = (125_000.0 * f64::powf(5_000.0, exponent)) as u64;
        let passed = offer(seed, rate, shard_count, 8, load);
        let most = |nanos: u64| (nanos + burst_ns(rate) + SLICES_NS) as f64 * rate as f64 / 1e9 + 65_535.0;
        for (from, before) in passed.iter().enumerate() {
            for (to, until) in passed.iter().enumerate().skip(from) {
                let nanos = (to - from) as u64 * SAMPLE;
                prop_assert!((until.bytes - before.bytes) as f64 <= most(nanos), "from sample {from} to {to}");
            }
        }
    }
}

#[test]
fn the_extremes_are_kept_with_any_number_of_streams_over_all_shards() {
    for rate in [125_000, 1_250_000, 125_000_000, 625_000_000] {
        for (shard_count, streams) in [(1, 1), (8, 1), (8, 8), (8, 64), (64, 64)] {
            let passed = offer(1, rate, shard_count, streams, 3.0);
            let error = error(passed[SAMPLES / 2 - 1], passed[SAMPLES - 1], rate);
            assert!(error.abs() <= 0.05, "{rate} bytes/s, {shard_count} shards, {streams} streams: {error}");
        }
    }
}

#[test]
fn a_bucket_begins_empty_and_fills_to_a_burst() {
    // 250 ms of the rate; or 128 KiB, where that is more.
    for (rate, burst) in [(125_000_000, 31_250_000), (125_000, 128 << 10)] {
        let [mut limit] = shards(1, rate).try_into().expect("one");
        assert_eq!(admit(&mut limit, 0, Segments::one(1_000)), 0);
        let (mut passed, mut full) = (0, 0);
        // Nothing for an hour.
        let hour = 3_600_000 * MILLISECOND;
        while full < 10 {
            let bytes = admit(&mut limit, hour, Segments::one(1_000));
            (passed, full) = (passed + bytes, full + usize::from(bytes == 0));
        }
        assert!((burst - 1_000..=burst).contains(&passed), "{passed} of {burst} at {rate} bytes/s");
    }
}

#[test]
fn only_the_segments_in_excess_are_refused() {
    let [mut limit] = shards(1, 125_000).try_into().expect("one");
    let super_packet = Segments { len: 1_400, last_len: 100, count: 40 };
    // 100 ms give 12,500 bytes.
    let now = START + Duration::from_millis(100);
    assert_eq!(limit.admit(now, Way::Down, super_packet), 8);
    assert_eq!(limit.admit(now, Way::Down, super_packet), 0);
    // The last one is short.
    assert_eq!(limit.admit(now, Way::Down, Segments { len: 1_400, last_len: 500, count: 1 }), 1);
    assert_eq!(limit.admit(now, Way::Up, super_packet), 40, "the other direction has no limit");
}

#[test]
fn a_shard_that_is_idle_keeps_nothing_from_the_others() {
    let rate = 1_250_000;
    let mut shards = shards(8, rate);
    let packet = Segments::one(1_000);
    let at = |millis: u64| millis * MILLISECOND;
    // All take a slice; all but the first are idle afterwards.
    for (millis, shard) in (50..).zip(&mut shards) {
        assert_eq!(admit(shard, at(millis), packet), 1_000);
    }
    let [busy, idle @ ..] = shards.as_mut_slice() else { panic!("there are eight") };
    while admit(busy, at(99), packet) > 0 {}
    let mut passed = 0;
    for millis in 100..1_100 {
        for _ in 0..3 {
            passed += admit(busy, at(millis), packet);
        }
    }
    assert!((passed as f64 / rate as f64 - 1.0).abs() < 0.01, "{passed} bytes within a second");
    // An old slice is no reserve: the bucket is empty, and so are they.
    while admit(busy, at(1_100), packet) > 0 {}
    let mut late = 0;
    for _ in 0..100 {
        late += idle.iter_mut().map(|shard| admit(shard, at(1_100), packet)).sum::<u64>();
    }
    assert!((7_000..=SLICES_NS * rate / SECOND_NS).contains(&late), "{late} bytes were kept");
}

/// 64 shards at 1 Mbit/s, where a slice is shorter than a packet.
#[test]
fn no_shard_keeps_more_than_a_slice_of_what_did_not_pass() {
    let rate = 125_000;
    let mut shards = shards(64, rate);
    let held = |shards: &[ShardLimit]| shards.iter().map(|shard| shard.down.left).sum::<u64>();
    let most = SLICES_NS * rate / SECOND_NS;
    let super_packet = Segments { len: 1_400, last_len: 1_400, count: 40 };
    // A full bucket; nothing that one shard is admitted passes, such as where a group has no more:
    // all of it is there for the next.
    let hour = 3_600_000 * MILLISECOND;
    let now = START + Duration::from_nanos(hour);
    for shard in &mut shards {
        let admitted = shard.admit(now, Way::Down, super_packet);
        assert_eq!(admitted, 40);
        shard.refund(Way::Down, super_packet, admitted, 0);
    }
    assert!(held(&shards) <= most, "{} bytes are held of refunds", held(&shards));
    while admit(&mut shards[0], hour, super_packet) > 0 {}
    // Half of a packet is left each time that part of a super-packet passes: it goes back.
    let mut passed = 0;
    for (turn, shard) in (1..).zip(&mut shards) {
        passed += admit(shard, hour + turn * 17 * MILLISECOND, super_packet);
    }
    assert!(held(&shards) <= most, "{} bytes are held of parts", held(&shards));
    // 64 turns of 17 ms, and what was left of the burst before them.
    let rated = 64 * 17 * rate / 1_000;
    assert!(passed + most + 1_400 >= rated && passed <= rated + most + 1_400, "{passed} of {rated} bytes");
}

#[test]
fn another_rate_fills_no_bucket() {
    let buckets = Arc::new(Buckets::new(START, 1));
    let packet = Segments::one(100);
    let mut limit = ShardLimit::new(down(125_000), Arc::clone(&buckets));
    let now = 500 * MILLISECOND;
    let drain = |limit: &mut ShardLimit| {
        let packets = core::iter::repeat_with(|| admit(limit, now, packet));
        packets.take_while(|bytes| *bytes > 0).sum::<u64>()
    };
    drain(&mut limit);
    for rate in [12_500_000, 125_000, 625_000_000] {
        limit.give_back();
        limit = ShardLimit::new(down(rate), Arc::clone(&buckets));
        // Less than the time of one packet was left; a burst is 50 ms at least.
        let passed = drain(&mut limit);
        assert!(passed < rate / 1_000, "{passed} bytes at {rate}");
    }
}

/// Nothing is granted twice where threads take the same nanosecond at the same moment.
#[test]
fn what_threads_take_at_once_is_granted_once() {
    const NANOS: u64 = 4_000_000;
    let bucket = Bucket::new(Time::from_nanos(0));
    let take = || std::iter::repeat_with(|| bucket.take(Time::from_nanos(NANOS), NANOS, 1, 1));
    let granted: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(|| take().take_while(|granted| *granted > 0).sum::<u64>())).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).sum()
    });
    assert_eq!(granted, NANOS);
}

/// Threads take at once, give back, and have different opinions of the time: never more than the
/// rate and a burst in all.
#[test]
fn threads_share_a_bucket() {
    const THREADS: u64 = 8;
    const STEPS: u64 = 20_000;
    const STEP_NS: u64 = 3_000;
    let rate = 125_000_000;
    let buckets = Arc::new(Buckets::new(START, THREADS as usize));
    let clock = AtomicU64::new(0);
    let passed: u64 = std::thread::scope(|scope| {
        let thread = |seed| {
            let (buckets, clock) = (Arc::clone(&buckets), &clock);
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(seed);
                let mut limit = ShardLimit::new(down(rate), buckets);
                let mut passed = 0;
                for _ in 0..STEPS {
                    let now = clock.fetch_add(STEP_NS, Ordering::Relaxed);
                    let late = rng.random_range(0..2 * STEP_NS).min(now);
                    let segments = segments(&mut rng, 20_000);
                    passed += admit(&mut limit, now - late, segments);
                    if rng.random_ratio(1, 50) {
                        limit.give_back();
                    }
                }
                limit.give_back();
                passed
            })
        };
        let threads: Vec<_> = (0..THREADS).map(thread).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).sum()
    });
    let nanos = THREADS * STEPS * STEP_NS;
    let rated = nanos as f64 * rate as f64 / 1e9;
    // Several times as much was offered: all that is there was taken, but for what was put back at
    // the end.
    assert!(passed as f64 <= rated * 1.001, "{passed} of {rated}");
    assert!(passed as f64 >= rated * 0.9, "{passed} of {rated}");
}
