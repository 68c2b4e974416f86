//! The two MACs of each message of a handshake (§5.4.4).
//!
//! The first proves that the sender knows the receiver's public key, and is checked before anything
//! else: a receiver does not answer those who don't. The second proves that the sender receives at
//! the address that it sends from.

use subtle::ConstantTimeEq as _;
use zerocopy::IntoBytes as _;

use crate::cookie::Cookie;
use crate::hash::{MAC_LEN, hash, mac};
use crate::key::PublicKey;
use crate::message::{Initiation, Response};

const LABEL: &[u8] = b"mac1----";

/// The key of the first MACs of messages to one receiver.
#[derive(Clone, Copy, Debug)]
pub struct Mac1Key([u8; 32]);

impl Mac1Key {
    /// The key of messages to `receiver`; anyone who knows that can make it.
    #[must_use]
    pub fn new(receiver: PublicKey) -> Self {
        Self(hash(&[LABEL, &receiver.0]))
    }
}

/// A message that ends with two MACs.
pub trait HandshakeMessage {
    /// The bytes that the first MAC covers, the first MAC, and the second, which covers both.
    fn parts(&self) -> (&[u8], &[u8; MAC_LEN], &[u8; MAC_LEN]);
    /// The two MACs, for writing.
    fn macs(&mut self) -> (&mut [u8; MAC_LEN], &mut [u8; MAC_LEN]);

    /// Whether the first MAC is right.
    #[must_use]
    fn is_for(&self, key: &Mac1Key) -> bool {
        let (covered, mac1, _) = self.parts();
        mac(&key.0, &[covered]).ct_eq(mac1).into()
    }

    /// Whether the second MAC shows `cookie`.
    #[must_use]
    fn shows(&self, cookie: &Cookie) -> bool {
        let (covered, mac1, mac2) = self.parts();
        mac(&cookie.0, &[covered, mac1]).ct_eq(mac2).into()
    }

    /// Writes both MACs, the second only with a cookie.
    fn stamp(&mut self, key: &Mac1Key, cookie: Option<&Cookie>) {
        let first = mac(&key.0, &[self.parts().0]);
        *self.macs().0 = first;
        let second = cookie.map(|cookie| mac(&cookie.0, &[self.parts().0, &first]));
        *self.macs().1 = second.unwrap_or_default();
    }
}

macro_rules! ends_with_macs {
    ($name:ident) => {
        impl HandshakeMessage for $name {
            fn parts(&self) -> (&[u8], &[u8; MAC_LEN], &[u8; MAC_LEN]) {
                let bytes = self.as_bytes();
                (&bytes[..bytes.len() - 2 * MAC_LEN], &self.mac1, &self.mac2)
            }

            fn macs(&mut self) -> (&mut [u8; MAC_LEN], &mut [u8; MAC_LEN]) {
                (&mut self.mac1, &mut self.mac2)
            }
        }
    };
}

ends_with_macs!(Initiation);
ends_with_macs!(Response);

#[cfg(test)]
mod tests {
    use vpnd_proto::wire::Index;

    use super::*;

    fn message() -> Initiation {
        Initiation::new([1; 32], [2; 48], [3; 28]).from(Index(7))
    }

    #[test]
    fn the_first_mac_covers_every_byte_before_it_and_names_the_receiver() {
        let key = Mac1Key::new(PublicKey([9; 32]));
        let mut message = message();
        assert!(!message.is_for(&key));
        message.stamp(&key, None);
        assert!(message.is_for(&key) && !message.is_for(&Mac1Key::new(PublicKey([8; 32]))));
        for at in 0..size_of::<Initiation>() - MAC_LEN {
            let mut other = message;
            other.as_mut_bytes()[at] ^= 1;
            assert!(!other.is_for(&key), "byte {at}");
        }
    }

    #[test]
    fn the_second_mac_covers_the_first_and_all_before() {
        let key = Mac1Key::new(PublicKey([9; 32]));
        let cookie = Cookie([5; MAC_LEN]);
        let mut message = message();
        message.stamp(&key, Some(&cookie));
        assert!(message.is_for(&key) && message.shows(&cookie) && !message.shows(&Cookie([6; MAC_LEN])));
        for at in 0..size_of::<Initiation>() {
            let mut other = message;
            other.as_mut_bytes()[at] ^= 1;
            assert!(!other.shows(&cookie), "byte {at}");
        }
        message.stamp(&key, None);
        assert_eq!(message.mac2, [0; MAC_LEN]);
    }
}
