//! Bytes that must not leak by accident.
//!
//! [`Secret`] erases itself when dropped, prints as `[redacted]`, compares in constant time, and
//! has neither `Display` nor any serialisation. What it cannot do: the compiler may leave copies on
//! the stack when a value is moved, so secrets are written in place ([`Secret::try_fill`],
//! [`Secret::copy_of`]) and passed by reference wherever that is possible.

use std::fmt;

use subtle::{Choice, ConstantTimeEq};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// `N` secret bytes.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct Secret<const N: usize>([u8; N]);

impl<const N: usize> Secret<N> {
    /// Takes over the bytes. The caller's copy, if it keeps one, is the caller's to erase;
    /// [`Secret::try_fill`] leaves none.
    pub const fn new(bytes: [u8; N]) -> Self {
        Self(bytes)
    }

    /// Lets `fill` write the bytes in place.
    ///
    /// # Errors
    /// Those of `fill`; the bytes written so far are erased.
    pub fn try_fill<E>(fill: impl FnOnce(&mut [u8; N]) -> Result<(), E>) -> Result<Self, E> {
        let mut secret = Self([0; N]);
        fill(&mut secret.0)?;
        Ok(secret)
    }

    /// A copy of `bytes`, which is made in place.
    #[must_use]
    pub fn copy_of(bytes: &[u8; N]) -> Self {
        let mut secret = Self([0; N]);
        secret.0.copy_from_slice(bytes);
        secret
    }

    /// The bytes. The name makes each use easy to find in review.
    pub const fn expose(&self) -> &[u8; N] {
        &self.0
    }
}

impl<const N: usize> ConstantTimeEq for Secret<N> {
    fn ct_eq(&self, other: &Self) -> Choice {
        self.0[..].ct_eq(&other.0[..])
    }
}

impl<const N: usize> PartialEq for Secret<N> {
    fn eq(&self, other: &Self) -> bool {
        self.ct_eq(other).into()
    }
}

impl<const N: usize> Eq for Secret<N> {}

impl<const N: usize> fmt::Debug for Secret<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_nothing() {
        let secret = Secret::new([0xAB; 16]);
        assert_eq!(format!("{secret:?}"), "[redacted]");
        assert_eq!(format!("{secret:#?}"), "[redacted]");
    }

    #[test]
    fn zeroize_clears_every_byte_and_drop_calls_it() {
        const fn erased_on_drop<T: ZeroizeOnDrop>() {}
        const { erased_on_drop::<Secret<32>>() };
        let mut secret = Secret::new([0xAB; 32]);
        secret.zeroize();
        assert_eq!(secret.expose(), &[0; 32]);
    }

    #[test]
    fn every_single_byte_counts_in_equality() {
        let one = Secret::new([7; 32]);
        assert_eq!(one, Secret::new([7; 32]));
        for i in 0..32 {
            let mut bytes = [7; 32];
            bytes[i] ^= 1;
            assert_ne!(one, Secret::new(bytes), "byte {i}");
        }
    }

    #[test]
    fn try_fill_hands_on_success_and_failure() {
        let filled = Secret::<4>::try_fill(|bytes| {
            bytes.copy_from_slice(b"abcd");
            Ok::<(), ()>(())
        });
        assert_eq!(filled, Ok(Secret::new(*b"abcd")));
        assert_eq!(Secret::<4>::try_fill(|_| Err("no exporter")), Err("no exporter"));
    }
}
