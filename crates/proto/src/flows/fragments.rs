//! Packets in fragments of which the first has passed, a short time ago.
//!
//! A fixed number is remembered, and the oldest gives way: fragments of one packet leave their host
//! one behind the other. An entry is an atomic word, as a flow's: a keyed fingerprint and a time.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::OnceLock;

use super::{TIME_MASK, age, time, units};
use crate::time::Time;

/// The most packets that are remembered.
pub(super) const PLACES: usize = 128;
/// Hosts wait no longer for the rest of a packet (Linux for IPv4).
const LIFETIME: u64 = units(30);

/// Packets of one kind of sender; takes no memory before the first.
#[derive(Default)]
pub(super) struct Passed {
    ring: OnceLock<Box<[AtomicU64; PLACES]>>,
    next: AtomicUsize,
}

impl Passed {
    /// Enters a packet by its fingerprint, which has zeros where its time goes.
    pub(super) fn enter(&self, now: Time, packet: u64) {
        let ring = self.ring.get_or_init(|| Box::new(core::array::from_fn(|_| AtomicU64::new(0))));
        let place = self.next.fetch_add(1, Ordering::Relaxed) % PLACES;
        ring[place].store(packet | time(now), Ordering::Relaxed);
    }

    /// Whether it was entered.
    pub(super) fn has(&self, now: Time, packet: u64) -> bool {
        let entries = self.ring.get().into_iter().flat_map(|ring| ring.iter());
        entries
            .map(|place| place.load(Ordering::Relaxed))
            .any(|entry| entry & !TIME_MASK == packet && age(entry, time(now)) <= LIFETIME)
    }
}
