//! Destinations that are sent single datagrams for a while: the kernel refused segmentation offload
//! on the way there, or batches were lost on it. The sockets of one port share them.
//!
//! INVARIANT: it takes a fixed room, an entry ends by itself, and reading it takes no lock. Two
//! destinations with one place displace each other, which costs a refused send or a lost batch and
//! stops nothing.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Places for destinations. Where a device has no offload, each client behind it takes one.
const PLACES: usize = 1_024;
/// In an entry: the upper half is a part of the destination's hash, this bit the cause, the rest
/// the second at which it ends.
const LOST: u64 = 1 << 31;

/// The reason for sending single datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The kernel refused a batch.
    Refused,
    /// Batches were lost on the way, and single datagrams were not.
    Lost,
}

impl Cause {
    /// The offload is tried again after this time: routes, devices and their settings change. A
    /// refused batch costs one system call, a lost one a stall of the connections in it.
    pub(super) const fn retry_after(self) -> Duration {
        match self {
            Self::Refused => Duration::from_secs(60),
            Self::Lost => Duration::from_secs(600),
        }
    }
}

#[derive(Debug)]
pub(super) struct Singles {
    began: Instant,
    /// None until the first destination.
    places: OnceLock<Box<[AtomicU64]>>,
    logged: [AtomicBool; 2],
}

impl Default for Singles {
    fn default() -> Self {
        Self { began: Instant::now(), places: OnceLock::new(), logged: Default::default() }
    }
}

impl Singles {
    /// Adds a destination. Returns whether it is the first one for this cause.
    pub(super) fn insert(&self, destination: IpAddr, cause: Cause, now: Instant) -> bool {
        let places = self.places.get_or_init(|| (0..PLACES).map(|_| AtomicU64::new(0)).collect());
        let hash = hash(destination);
        let until = self.second(now) + cause.retry_after().as_secs();
        let cause_bit = if cause == Cause::Lost { LOST } else { 0 };
        places[place(hash)].store(tag(hash) | cause_bit | until, Ordering::Relaxed);
        !self.logged[cause as usize].swap(true, Ordering::Relaxed)
    }

    /// Whether `destination` is sent single datagrams.
    #[inline]
    pub(super) fn holds(&self, destination: IpAddr) -> bool {
        self.places.get().is_some_and(|places| self.is_among(places, destination, Instant::now()))
    }

    /// Whether any destination is sent single datagrams for this cause.
    pub(super) fn any(&self, cause: Cause, now: Instant) -> bool {
        let entries = self.places.get().into_iter().flatten().map(|place| place.load(Ordering::Relaxed));
        entries
            .filter(|entry| (entry & LOST != 0) == (cause == Cause::Lost))
            .any(|entry| self.is_in_force(entry, now))
    }

    fn is_among(&self, places: &[AtomicU64], destination: IpAddr, now: Instant) -> bool {
        let hash = hash(destination);
        let entry = places[place(hash)].load(Ordering::Relaxed);
        entry & tag(u64::MAX) == tag(hash) && self.is_in_force(entry, now)
    }

    fn is_in_force(&self, entry: u64, now: Instant) -> bool {
        self.second(now) < entry & (LOST - 1)
    }

    fn second(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_secs()
    }
}

fn hash(destination: IpAddr) -> u64 {
    let mut hasher = DefaultHasher::new();
    // A socket for both IP versions has the mapped form of an IPv4 address.
    destination.to_canonical().hash(&mut hasher);
    hasher.finish()
}

const fn place(hash: u64) -> usize {
    (hash % PLACES as u64) as usize
}

const fn tag(hash: u64) -> u64 {
    hash & 0xFFFF_FFFF_0000_0000
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    fn holds(singles: &Singles, destination: IpAddr, now: Instant) -> bool {
        singles.places.get().is_some_and(|places| singles.is_among(places, destination, now))
    }

    #[test]
    fn a_destination_is_held_for_its_causes_time_and_others_are_not() {
        for (cause, other_cause, time) in
            [(Cause::Refused, Cause::Lost, 60), (Cause::Lost, Cause::Refused, 600)]
        {
            let singles = Singles::default();
            let start = singles.began;
            let [held, other]: [IpAddr; 2] = ["192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap()];
            assert!(!singles.any(cause, start) && !holds(&singles, held, start));
            assert!(singles.insert(held, cause, start), "the first");
            for (seconds, is_held) in [(0, true), (time - 1, true), (time, false)] {
                let now = start + Duration::from_secs(seconds);
                let result = (holds(&singles, held, now), singles.any(cause, now));
                assert_eq!(result, (is_held, is_held), "after {seconds} s");
                assert!(!holds(&singles, other, now) && !singles.any(other_cause, now));
            }
            assert!(!singles.insert(held, cause, start + Duration::from_secs(time + 10)), "not the first");
            assert!(holds(&singles, held, start + Duration::from_secs(time + 20)), "held again");
            assert!(holds(&singles, "::ffff:192.0.2.1".parse().unwrap(), start), "the same address");
        }
    }

    #[test]
    fn any_number_of_destinations_takes_the_same_room() {
        let singles = Singles::default();
        let now = singles.began;
        let all = || (0..100_000u128).map(|number| Ipv6Addr::from(number << 64).into());
        for destination in all() {
            singles.insert(destination, Cause::Refused, now);
            assert!(holds(&singles, destination, now), "the newest is held");
        }
        let held = all().filter(|destination| holds(&singles, *destination, now)).count();
        assert_eq!(held, PLACES, "what displaced the others is not taken for them");
    }
}
