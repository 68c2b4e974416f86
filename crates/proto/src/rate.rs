//! Rate limits: token buckets of sessions, users or groups, which all shards of a gateway share.
//!
//! A [`Bucket`] is one atomic number: the time up to which the rate has been used. Taking bytes
//! moves it forward by the time that they need at the rate, never beyond now; a bucket that is left
//! alone fills up by itself, to [`burst_ns`] at most. Since its unit is time and not bytes, another
//! rate is only another price: a bucket that is empty stays so when its rate changes.
//!
//! Shards take from it in slices ([`Meter`]), so that most packets cost a subtraction. A slice is
//! good for [`slice_ns`]; what is left of an old one goes back with the next packet.
//!
//! INVARIANTS: in any period all shards together pass no more bytes than the rate gives in that
//! period and a burst before it, and what they held in slices when it began, which is [`SLICES_NS`]
//! at most. A bucket begins empty. Everything that is decided together is in the one atomic, so
//! relaxed ordering is enough: its modifications have one order, whatever else a thread sees late.
//! A shard with an old `now` takes less, never more.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Arc;

use crate::time::Time;

/// Least burst of a bucket, bytes: two of the longest super-packets.
const MIN_BURST: u64 = 128 << 10;
/// Least burst of a bucket in nanoseconds of its rate. TCP that has lost the end of its window is
/// silent for a retransmission timeout, 200 ms at least: the bucket must not overflow meanwhile, or
/// the connection never gets its rate.
const BURST_NS: u64 = 250_000_000;
/// Slice that a shard takes at once, in nanoseconds of the rate.
const SLICE_NS: u64 = 5_000_000;
/// Largest sum of the shards' slices, in nanoseconds of the rate: the error in a second, 4 %.
const SLICES_NS: u64 = 40_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// The fastest limit, in bytes per second. What is faster is held to this.
pub const MAX_RATE: u64 = 125_000_000_000;

/// A limit for each direction in bytes per second of inner packets with IP headers; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// To the client.
    pub down: u64,
    /// From the client.
    pub up: u64,
}

impl Rates {
    /// Whether neither direction has a limit.
    #[must_use]
    pub const fn are_unlimited(self) -> bool {
        self.down == 0 && self.up == 0
    }
}

/// The number of a group of sessions that share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RateGroup(pub u32);

/// The limits of a session: its own, and those that it shares. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionLimits {
    /// Its own.
    pub rates: Rates,
    /// The rates of all sessions of its user together.
    pub user: Rates,
    /// The group whose limits it shares.
    pub group: Option<RateGroup>,
}

/// The buckets of one session, user or group.
#[derive(Debug)]
pub struct Buckets {
    down: Bucket,
    up: Bucket,
    /// The slice that one shard takes at once, in nanoseconds.
    slice_ns: u64,
}

impl Buckets {
    /// Empty ones for this many shards.
    #[must_use]
    pub fn new(now: Time, shards: usize) -> Self {
        let slice_ns = SLICE_NS.min(SLICES_NS / shards.max(1) as u64);
        Self { down: Bucket::new(now), up: Bucket::new(now), slice_ns }
    }
}

/// Which of two buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the client.
    Down,
    /// From the client.
    Up,
}

/// A token bucket that threads share. It has separate cache lines, two since processors fetch them
/// in pairs: writes for one direction or session must not slow down shards that read another.
#[derive(Debug)]
#[repr(align(128))]
struct Bucket {
    /// The time up to which the rate has been used, in nanoseconds of the caller's clock.
    used_until: AtomicU64,
}

const _: () = assert!(size_of::<Bucket>() == 128 && size_of::<Buckets>() == 3 * 128);

impl Bucket {
    fn new(now: Time) -> Self {
        Self { used_until: AtomicU64::new(now.as_nanos()) }
    }

    /// Takes up to `most` nanoseconds of the rate; nothing if there are fewer than `least`.
    fn take(&self, now: Time, burst: u64, least: u64, most: u64) -> u64 {
        let now = now.as_nanos();
        let full = now.saturating_sub(burst);
        let mut used_until = self.used_until.load(Ordering::Relaxed);
        loop {
            let from = used_until.max(full);
            let granted = now.saturating_sub(from).min(most);
            if granted < least || granted == 0 {
                return 0;
            }
            let swap = (Ordering::Relaxed, Ordering::Relaxed);
            match self.used_until.compare_exchange_weak(used_until, from + granted, swap.0, swap.1) {
                Ok(_) => return granted,
                Err(seen) => used_until = seen,
            }
        }
    }

    /// Takes back what was granted and not used.
    fn give_back(&self, nanos: u64) {
        // It is never more than was granted; a mistake there must not lock a session out for good.
        let less = |used_until: u64| Some(used_until.saturating_sub(nanos));
        let _ = self.used_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// Packets that are admitted together, as of a super-packet: of one length but for the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    /// Length of each packet in bytes.
    pub len: usize,
    /// Length of the last one, which is no longer.
    pub last_len: usize,
    /// How many, at least one.
    pub count: usize,
}

impl Segments {
    /// One packet.
    #[inline]
    #[must_use]
    pub const fn one(len: usize) -> Self {
        Self { len, last_len: len, count: 1 }
    }

    /// Bytes of the first `count` packets.
    #[inline]
    const fn bytes(self, count: usize) -> u64 {
        let bytes = self.len * count;
        (if count == self.count { bytes - self.len + self.last_len } else { bytes }) as u64
    }

    /// Returns how many of the first packets fit into `bytes`.
    const fn fitting(self, bytes: u64) -> usize {
        if bytes >= self.bytes(self.count) {
            return self.count;
        }
        let whole = bytes as usize / self.len;
        if whole < self.count { whole } else { self.count - 1 }
    }

    /// The first `count` packets; `None` if that is none.
    #[must_use]
    pub(crate) const fn first(self, count: usize) -> Option<Self> {
        match count {
            0 => None,
            _ if count == self.count => Some(self),
            _ => Some(Self { len: self.len, last_len: self.len, count }),
        }
    }
}

/// One shard's slice of one bucket.
#[derive(Clone, Copy, Debug, Default)]
struct Meter {
    /// Bytes per second; 0 is no limit.
    rate: u64,
    /// Bytes of the slice that are left.
    left: u64,
    /// When the slice is old.
    good_until: Time,
}

impl Meter {
    fn new(rate: u64) -> Self {
        Self { rate: rate.min(MAX_RATE), ..Self::default() }
    }

    /// Returns how many of the first packets may pass.
    #[inline]
    fn admit(&mut self, now: Time, bucket: &Bucket, slice_ns: u64, segments: Segments) -> usize {
        if self.rate == 0 {
            return segments.count;
        }
        let bytes = segments.bytes(segments.count);
        if self.left >= bytes && now < self.good_until {
            self.left -= bytes;
            return segments.count;
        }
        self.admit_from_bucket(now, bucket, slice_ns, segments)
    }

    fn admit_from_bucket(&mut self, now: Time, bucket: &Bucket, slice_ns: u64, segments: Segments) -> usize {
        if now >= self.good_until {
            self.give_back(bucket);
        }
        let least = self.nanos(segments.bytes(1).saturating_sub(self.left));
        let most = self.nanos(segments.bytes(segments.count).saturating_sub(self.left)).max(slice_ns);
        let granted = bucket.take(now, burst_ns(self.rate), least, most);
        if granted > 0 {
            self.left += self.bytes_in(granted);
            self.good_until = now + Duration::from_nanos(slice_ns);
        }
        let admitted = segments.fitting(self.left);
        self.left -= segments.bytes(admitted);
        self.keep_one_slice(bucket, slice_ns);
        admitted
    }

    /// Bytes that were admitted do not pass after all.
    fn refund(&mut self, bucket: &Bucket, slice_ns: u64, bytes: u64) {
        if self.rate != 0 {
            self.left += bytes;
            self.keep_one_slice(bucket, slice_ns);
        }
    }

    /// No shard holds more than a slice between two packets.
    fn keep_one_slice(&mut self, bucket: &Bucket, slice_ns: u64) {
        if self.left > self.bytes_in(slice_ns) {
            self.give_back(bucket);
        }
    }

    fn give_back(&mut self, bucket: &Bucket) {
        if self.left > 0 {
            // Rounded down: never more than was taken.
            bucket.give_back(self.left * SECOND_NS / self.rate);
            self.left = 0;
        }
    }

    /// Returns the time that this many bytes need.
    fn nanos(&self, bytes: u64) -> u64 {
        (bytes * SECOND_NS).div_ceil(self.rate)
    }

    /// The bytes that such a time gives.
    fn bytes_in(&self, nanos: u64) -> u64 {
        nanos * self.rate / SECOND_NS
    }
}

/// The time that fills a bucket.
fn burst_ns(rate: u64) -> u64 {
    BURST_NS.max((MIN_BURST * SECOND_NS).div_ceil(rate))
}

/// One shard's part in the limits of one session, user or group, in both directions.
#[derive(Debug)]
pub struct ShardLimit {
    buckets: Arc<Buckets>,
    down: Meter,
    up: Meter,
}

impl ShardLimit {
    /// Without slices.
    #[must_use]
    pub fn new(rates: Rates, buckets: Arc<Buckets>) -> Self {
        Self { buckets, down: Meter::new(rates.down), up: Meter::new(rates.up) }
    }

    /// Gives back what is left of its slices, before other limits take the place of these.
    pub fn give_back(&mut self) {
        self.down.give_back(&self.buckets.down);
        self.up.give_back(&self.buckets.up);
    }

    /// Returns how many of the first packets of `segments` may pass.
    #[inline]
    pub fn admit(&mut self, now: Time, way: Way, segments: Segments) -> usize {
        let (meter, bucket, slice_ns) = self.at(way);
        meter.admit(now, bucket, slice_ns, segments)
    }

    /// `admitted` packets of `segments` were admitted, and only `passed` of them pass.
    pub fn refund(&mut self, way: Way, segments: Segments, admitted: usize, passed: usize) {
        let (meter, bucket, slice_ns) = self.at(way);
        meter.refund(bucket, slice_ns, segments.bytes(admitted) - segments.bytes(passed));
    }

    #[inline]
    fn at(&mut self, way: Way) -> (&mut Meter, &Bucket, u64) {
        let slice_ns = self.buckets.slice_ns;
        match way {
            Way::Down => (&mut self.down, &self.buckets.down, slice_ns),
            Way::Up => (&mut self.up, &self.buckets.up, slice_ns),
        }
    }
}

#[cfg(test)]
mod tests;
