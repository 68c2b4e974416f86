//! Destinations that are sent single datagrams for a while: the kernel refused segmentation offload
//! on the way there, or batches were lost on it. The sockets of one port share them.
//!
//! INVARIANT: it takes a fixed room, an entry ends by itself, and reading it takes no lock. Two
//! destinations with one place displace each other, which costs a refused send or a lost batch and
//! stops nothing. What one client reports is true for its own address and port alone, and places
//! follow from a random key, so no client can choose an address that is taken for another's.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Places for destinations. Where a device has no offload, each address behind it takes one.
const PLACES: usize = 1_024;
/// In an entry: the upper half is a part of the destination's hash, this bit the cause, the rest
/// the second at which it ends.
const LOST: u64 = 1 << 31;

/// The reason for sending single datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The kernel refused a batch to this address, whatever the port.
    Refused,
    /// Batches to this address and port were lost on the way, and single datagrams were not.
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
    keys: RandomState,
    /// None until the first destination.
    places: OnceLock<Box<[AtomicU64]>>,
    logged: [AtomicBool; 2],
}

impl Default for Singles {
    fn default() -> Self {
        let keys = RandomState::new();
        Self { began: Instant::now(), keys, places: OnceLock::new(), logged: Default::default() }
    }
}

impl Singles {
    /// Adds a destination. Returns whether it is the first one for this cause.
    pub(super) fn insert(&self, destination: SocketAddr, cause: Cause, now: Instant) -> bool {
        let places = self.places.get_or_init(|| (0..PLACES).map(|_| AtomicU64::new(0)).collect());
        let hash = self.hash(destination, cause);
        let until = self.second(now) + cause.retry_after().as_secs();
        let cause_bit = if cause == Cause::Lost { LOST } else { 0 };
        places[place(hash)].store(tag(hash) | cause_bit | until, Ordering::Relaxed);
        !self.logged[cause as usize].swap(true, Ordering::Relaxed)
    }

    /// Whether `destination` is sent single datagrams.
    #[inline]
    pub(super) fn holds(&self, destination: SocketAddr) -> bool {
        self.places.get().is_some_and(|places| self.is_among(places, destination, Instant::now()))
    }

    /// Whether any destination is sent single datagrams for this cause.
    pub(super) fn any(&self, cause: Cause, now: Instant) -> bool {
        let entries = self.places.get().into_iter().flatten().map(|place| place.load(Ordering::Relaxed));
        entries
            .filter(|entry| (entry & LOST != 0) == (cause == Cause::Lost))
            .any(|entry| self.is_in_force(entry, now))
    }

    fn is_among(&self, places: &[AtomicU64], destination: SocketAddr, now: Instant) -> bool {
        [Cause::Refused, Cause::Lost].into_iter().any(|cause| {
            let hash = self.hash(destination, cause);
            let entry = places[place(hash)].load(Ordering::Relaxed);
            entry & tag(u64::MAX) == tag(hash) && self.is_in_force(entry, now)
        })
    }

    fn hash(&self, destination: SocketAddr, cause: Cause) -> u64 {
        let port = (cause == Cause::Lost).then_some(destination.port());
        // A socket for both IP versions has the mapped form of an IPv4 address.
        self.keys.hash_one((destination.ip().to_canonical(), port))
    }

    fn is_in_force(&self, entry: u64, now: Instant) -> bool {
        self.second(now) < entry & (LOST - 1)
    }

    fn second(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_secs()
    }
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

    fn holds(singles: &Singles, destination: SocketAddr, now: Instant) -> bool {
        singles.places.get().is_some_and(|places| singles.is_among(places, destination, now))
    }

    #[test]
    fn a_destination_is_held_for_its_causes_time_and_others_are_not() {
        for (cause, other_cause, time) in
            [(Cause::Refused, Cause::Lost, 60), (Cause::Lost, Cause::Refused, 600)]
        {
            let singles = Singles::default();
            let start = singles.began;
            let [held, neighbour, other]: [SocketAddr; 3] =
                ["192.0.2.1:1", "192.0.2.1:2", "192.0.2.2:1"].map(|text| text.parse().unwrap());
            assert!(!singles.any(cause, start) && !holds(&singles, held, start));
            assert!(singles.insert(held, cause, start), "the first");
            for (seconds, is_held) in [(0, true), (time - 1, true), (time, false)] {
                let now = start + Duration::from_secs(seconds);
                let result = (holds(&singles, held, now), singles.any(cause, now));
                assert_eq!(result, (is_held, is_held), "after {seconds} s");
                let shares = is_held && cause == Cause::Refused;
                assert_eq!(holds(&singles, neighbour, now), shares, "another port of the address");
                assert!(!holds(&singles, other, now) && !singles.any(other_cause, now));
            }
            assert!(!singles.insert(held, cause, start + Duration::from_secs(time + 10)), "not the first");
            assert!(holds(&singles, held, start + Duration::from_secs(time + 20)), "held again");
            assert!(holds(&singles, "[::ffff:192.0.2.1]:1".parse().unwrap(), start), "the same address");
        }
    }

    #[test]
    fn any_number_of_destinations_takes_the_same_room() {
        let singles = Singles::default();
        let now = singles.began;
        let all = || (0..20_000u128).map(|number| SocketAddr::from((Ipv6Addr::from(number << 64), 1)));
        for destination in all() {
            singles.insert(destination, Cause::Refused, now);
            assert!(holds(&singles, destination, now), "the newest is held");
        }
        let held = all().filter(|destination| holds(&singles, *destination, now)).count();
        assert_eq!(held, PLACES, "what displaced the others is not taken for them");
    }
}
