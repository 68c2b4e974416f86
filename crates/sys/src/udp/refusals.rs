//! Destinations for which the kernel refused segmentation offload a short time ago.
//!
//! INVARIANT: it takes a fixed room, and an entry lasts for [`RETRY_AFTER`] at most. Two
//! destinations with one place displace each other, which costs a refused send each time and loses
//! nothing.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The offload is tried again after this time: routes, devices and their settings change.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(60);
/// Places for destinations. Where a device has no offload, each client behind it takes one.
const PLACES: usize = 1_024;

#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// None until the first refusal; then a destination has one.
    places: Vec<Option<(IpAddr, Instant)>>,
}

impl Refusals {
    pub(super) fn insert(&mut self, destination: IpAddr, now: Instant) {
        self.places.resize(PLACES, None);
        self.places[place(destination)] = Some((destination, now));
    }

    /// Whether the offload was refused for `destination` and is not yet to be tried again.
    pub(super) fn holds(&self, destination: IpAddr, now: Instant) -> bool {
        let entry = self.places.get(place(destination)).copied().flatten();
        entry.is_some_and(|(refused, since)| refused == destination && is_fresh(since, now))
    }

    /// Whether it holds any destination.
    pub(super) fn any(&self, now: Instant) -> bool {
        self.places.iter().flatten().any(|(_, since)| is_fresh(*since, now))
    }
}

fn is_fresh(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) < RETRY_AFTER
}

fn place(destination: IpAddr) -> usize {
    let mut hasher = DefaultHasher::new();
    destination.hash(&mut hasher);
    (hasher.finish() % PLACES as u64) as usize
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn a_destination_is_held_for_a_minute_and_others_are_not() {
        let start = Instant::now();
        let [refused, other]: [IpAddr; 2] = ["192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap()];
        let mut refusals = Refusals::default();
        assert!(!refusals.any(start) && !refusals.holds(refused, start));
        refusals.insert(refused, start);
        for (seconds, held) in [(0, true), (59, true), (60, false)] {
            let now = start + Duration::from_secs(seconds);
            assert_eq!((refusals.holds(refused, now), refusals.any(now)), (held, held), "after {seconds} s");
            assert!(!refusals.holds(other, now));
        }
        refusals.insert(refused, start + Duration::from_secs(70));
        assert!(refusals.holds(refused, start + Duration::from_secs(100)), "refused again");
    }

    #[test]
    fn any_number_of_destinations_takes_the_same_room() {
        let now = Instant::now();
        let mut refusals = Refusals::default();
        let all = || (0..100_000u128).map(|number| Ipv6Addr::from(number).into());
        for destination in all() {
            refusals.insert(destination, now);
            assert!(refusals.holds(destination, now), "the newest is held");
        }
        assert_eq!(refusals.places.len(), PLACES);
        let held = all().filter(|destination| refusals.holds(*destination, now)).count();
        assert_eq!(held, PLACES, "what displaced the others is not taken for them");
    }
}
