//! The data every stream carries: seeded random bytes, so that no tunnel gains by compressing.
//!
//! All streams of a process share one buffer of [`PAYLOAD_BYTES`]; each reads it as a ring from a
//! different start. The period is far beyond the window of the compressors that VPNs use (LZO,
//! LZ4: at most 64 KiB). Both ends build the same buffer from the seed, so a receiver can check
//! every byte by its position.
//!
//! A process makes the buffer of a seed once: short work would wait for it at every start.

use std::sync::{Arc, Mutex, PoisonError};

use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// Length of the ring in bytes; a power of two.
pub const PAYLOAD_BYTES: usize = 1 << 20;

/// The ring that was made last, and its seed.
static LAST: Mutex<Option<(u64, Arc<[u8]>)>> = Mutex::new(None);

/// The ring of random bytes of one seed.
pub struct Payload(Arc<[u8]>);

impl Payload {
    /// The ring that belongs to `seed`; the same on every machine.
    pub fn new(seed: u64) -> Self {
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, ring)) = last.as_ref().filter(|(made, _)| *made == seed) {
            return Self(Arc::clone(ring));
        }
        let mut bytes = vec![0_u8; PAYLOAD_BYTES];
        ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut bytes);
        let ring: Arc<[u8]> = bytes.into();
        *last = Some((seed, Arc::clone(&ring)));
        Self(ring)
    }

    /// The bytes of `stream` from `position` on, at most `limit` of them, never empty for a
    /// positive limit.
    pub fn chunk(&self, stream: u32, position: u64, limit: usize) -> &[u8] {
        let from = Self::offset(stream, position);
        let to = (from + limit).min(PAYLOAD_BYTES);
        &self.0[from..to]
    }

    /// Whether `received` is what `stream` carries at `position`.
    pub fn matches(&self, stream: u32, position: u64, received: &[u8]) -> bool {
        let mut rest = received;
        let mut position = position;
        while !rest.is_empty() {
            let expected = self.chunk(stream, position, rest.len());
            let (head, tail) = rest.split_at(expected.len());
            if head != expected {
                return false;
            }
            position += expected.len() as u64;
            rest = tail;
        }
        true
    }

    fn offset(stream: u32, position: u64) -> usize {
        // An odd stride spreads the streams over the ring, so that no two neighbours send the same
        // bytes.
        let start = u64::from(stream).wrapping_mul(40_503);
        (start.wrapping_add(position) % PAYLOAD_BYTES as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_bytes_and_another_seed_others() {
        assert_eq!(Payload::new(1).0, Payload::new(1).0);
        assert_ne!(Payload::new(1).0, Payload::new(2).0);
    }

    #[test]
    fn bytes_are_spread_evenly_enough_not_to_compress() {
        let payload = Payload::new(42);
        let mut counts = [0_u32; 256];
        for byte in payload.0.iter() {
            counts[usize::from(*byte)] += 1;
        }
        // 4,096 of each are expected; six standard deviations are 384.
        assert!(counts.iter().all(|n| (3_700..4_500).contains(n)), "{counts:?}");
    }

    #[test]
    fn content_is_compared_across_the_end_of_the_ring() {
        let payload = Payload::new(7);
        let position = PAYLOAD_BYTES as u64 - 10;
        let mut bytes = payload.chunk(0, position, 100).to_vec();
        assert_eq!(bytes.len(), 10, "a chunk ends at the end of the ring");
        bytes.extend_from_slice(payload.chunk(0, position + 10, 90));
        assert!(payload.matches(0, position, &bytes));
        assert!(!payload.matches(1, position, &bytes), "another stream has other bytes");
        assert!(!payload.matches(0, position + 1, &bytes), "a lost byte shows");
        bytes[55] ^= 1;
        assert!(!payload.matches(0, position, &bytes));
    }
}
