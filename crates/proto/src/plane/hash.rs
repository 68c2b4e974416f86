//! Where a receive index stands in its table, found with two instructions: each datagram needs it.

use core::hash::Hasher;

/// Receive indexes are random numbers of our own choice, so they are their own hash.
#[derive(Clone, Copy, Debug, Default)]
pub struct IndexHasher(u64);

impl Hasher for IndexHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 << 8) | u64::from(byte);
        }
    }

    #[inline]
    fn write_u32(&mut self, index: u32) {
        // The table takes its bucket from the low bits and a tag from the top ones; both must vary.
        self.0 = u64::from(index).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}
