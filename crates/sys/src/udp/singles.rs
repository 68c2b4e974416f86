//! Destinations that are sent single datagrams for a while, because the kernel refused segmentation
//! offload on the way there. The sockets of one port share them.
//!
//! INVARIANT: it takes a fixed room, an entry ends by itself, and reading it takes no lock. Two
//! destinations with one place displace each other, which costs a refused send and stops nothing.
//! Places follow from a random key, so no client can choose an address that is taken for another's.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Places for destinations. Where a device has no offload, each address behind it takes one.
const PLACES: usize = 1_024;
/// The offload is tried again after this time: routes, devices and their settings change.
const RETRY_AFTER: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Singles {
    began: Instant,
    keys: RandomState,
    /// None until the first destination. The upper half of an entry is a part of the address's
    /// hash, the lower the second at which it ends.
    places: OnceLock<Box<[AtomicU64]>>,
    logged: AtomicBool,
}

impl Default for Singles {
    fn default() -> Self {
        let keys = RandomState::new();
        Self { began: Instant::now(), keys, places: OnceLock::new(), logged: AtomicBool::default() }
    }
}

impl Singles {
    /// Adds a destination, whatever its port. Returns whether it is the first one.
    pub(super) fn insert(&self, destination: IpAddr, now: Instant) -> bool {
        let places = self.places.get_or_init(|| (0..PLACES).map(|_| AtomicU64::new(0)).collect());
        let hash = self.hash(destination);
        let until = self.second(now) + RETRY_AFTER.as_secs();
        places[place(hash)].store(tag(hash) | until, Ordering::Relaxed);
        !self.logged.swap(true, Ordering::Relaxed)
    }

    /// Whether `destination` is sent single datagrams.
    #[inline]
    pub(super) fn holds(&self, destination: IpAddr) -> bool {
        self.places.get().is_some_and(|places| self.is_among(places, destination, Instant::now()))
    }

    /// Whether any destination is sent single datagrams.
    pub(super) fn any(&self, now: Instant) -> bool {
        let entries = self.places.get().into_iter().flatten().map(|place| place.load(Ordering::Relaxed));
        entries.into_iter().any(|entry| self.is_in_force(entry, now))
    }

    fn is_among(&self, places: &[AtomicU64], destination: IpAddr, now: Instant) -> bool {
        let hash = self.hash(destination);
        let entry = places[place(hash)].load(Ordering::Relaxed);
        tag(entry) == tag(hash) && self.is_in_force(entry, now)
    }

    fn hash(&self, destination: IpAddr) -> u64 {
        // A socket for both IP versions has the mapped form of an IPv4 address.
        self.keys.hash_one(destination.to_canonical())
    }

    fn is_in_force(&self, entry: u64, now: Instant) -> bool {
        self.second(now) < entry & !tag(u64::MAX)
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

    fn holds(singles: &Singles, destination: IpAddr, now: Instant) -> bool {
        singles.places.get().is_some_and(|places| singles.is_among(places, destination, now))
    }

    #[test]
    fn a_destination_is_held_for_a_minute_and_others_are_not() {
        let singles = Singles::default();
        let start = singles.began;
        let [held, other]: [IpAddr; 2] = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().unwrap());
        assert!(!singles.any(start) && !holds(&singles, held, start));
        assert!(singles.insert(held, start), "the first");
        for (seconds, is_held) in [(0, true), (59, true), (60, false)] {
            let now = start + Duration::from_secs(seconds);
            assert_eq!(
                (holds(&singles, held, now), singles.any(now)),
                (is_held, is_held),
                "after {seconds} s"
            );
            assert!(!holds(&singles, other, now));
        }
        assert!(!singles.insert(held, start + Duration::from_secs(70)), "not the first");
        assert!(holds(&singles, held, start + Duration::from_secs(80)), "held again");
        assert!(holds(&singles, "::ffff:192.0.2.1".parse().unwrap(), start), "the same address");
    }

    #[test]
    fn any_number_of_destinations_takes_the_same_room() {
        let singles = Singles::default();
        let now = singles.began;
        let all = || (0..20_000u128).map(|number| IpAddr::from(Ipv6Addr::from(number << 64)));
        for destination in all() {
            singles.insert(destination, now);
            assert!(holds(&singles, destination, now), "the newest is held");
        }
        let held = all().filter(|destination| holds(&singles, *destination, now)).count();
        assert_eq!(held, PLACES, "what displaced the others is not taken for them");
    }
}
