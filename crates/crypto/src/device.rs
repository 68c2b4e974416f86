//! The key of a device: it signs what only its own TLS connection has (`docs/PROTOCOL.md` §4.1).
//!
//! ```text
//! TLS exporter --> Binding --DeviceKey::sign()--> signature (Ed25519, RFC 8032)
//! signed        = "vpnd/1 device" || 0x00 || binding (32 bytes)
//! ```
//!
//! INVARIANT: a key signs texts of this one shape only, so a signature proves nothing but that its
//! holder took part in the connection that the binding comes from; on any other connection it is
//! worthless.

use std::fmt;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use zeroize::Zeroizing;

use crate::secret::Secret;

/// The label given to the TLS exporter for a [`Binding`].
pub const BINDING_LABEL: &[u8] = b"EXPORTER-vpnd/1 device";

/// Bytes of a device's public key.
pub const PUBLIC_KEY_LEN: usize = 32;
/// Bytes of a signature.
pub const SIGNATURE_LEN: usize = 64;
/// Bytes of a [`Binding`], and of the seed of a key.
pub const BINDING_LEN: usize = 32;

/// Stands before the binding in the signed text.
const CONTEXT: &[u8; 14] = b"vpnd/1 device\0";

/// The bytes of PKCS #8 (RFC 8410 §7) before the 32 bytes of an Ed25519 seed.
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
/// Bytes of a key in PKCS #8.
pub const PKCS8_LEN: usize = PKCS8_PREFIX.len() + 32;

/// A value that only the two ends of one TLS connection have: 32 bytes of its exporter. Not a
/// secret that keys come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding([u8; BINDING_LEN]);

impl Binding {
    /// Takes the 32 bytes that the TLS exporter gave.
    pub const fn new(bytes: [u8; BINDING_LEN]) -> Self {
        Self(bytes)
    }

    /// Lets `export` write the TLS exporter's 32 bytes, for instance
    /// `|out| connection.export_keying_material(out, BINDING_LABEL, &[])`.
    ///
    /// # Errors
    /// Those of `export`.
    pub fn try_export<E>(export: impl FnOnce(&mut [u8; BINDING_LEN]) -> Result<(), E>) -> Result<Self, E> {
        let mut bytes = [0; BINDING_LEN];
        export(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// The bytes, for the process that holds the key.
    pub const fn as_bytes(&self) -> &[u8; BINDING_LEN] {
        &self.0
    }

    fn signed_text(&self) -> [u8; CONTEXT.len() + BINDING_LEN] {
        let mut text = [0; CONTEXT.len() + BINDING_LEN];
        let (context, binding) = text.split_at_mut(CONTEXT.len());
        context.copy_from_slice(CONTEXT);
        binding.copy_from_slice(&self.0);
        text
    }
}

/// The private key of a device.
pub struct DeviceKey {
    seed: Secret<32>,
    pair: Ed25519KeyPair,
}

impl DeviceKey {
    /// The key of a seed, which must be random and kept secret.
    ///
    /// # Panics
    /// Never: any 32 bytes are a seed (RFC 8032 §5.1.5).
    pub fn from_seed(seed: Secret<32>) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed.expose()).expect("any 32 bytes are a seed");
        Self { seed, pair }
    }

    /// The key in a file that [`DeviceKey::to_pkcs8`] has filled; `None` for anything else.
    pub fn from_pkcs8(der: &[u8]) -> Option<Self> {
        let seed: &[u8; 32] = der.strip_prefix(&PKCS8_PREFIX)?.try_into().ok()?;
        Some(Self::from_seed(Secret::copy_of(seed)))
    }

    /// The key as PKCS #8 (RFC 8410), which `openssl pkey -inform DER` understands.
    pub fn to_pkcs8(&self) -> Zeroizing<[u8; PKCS8_LEN]> {
        let mut der = Zeroizing::new([0; PKCS8_LEN]);
        der[..PKCS8_PREFIX.len()].copy_from_slice(&PKCS8_PREFIX);
        der[PKCS8_PREFIX.len()..].copy_from_slice(self.seed.expose());
        der
    }

    /// The public key.
    ///
    /// # Panics
    /// Never: Ed25519 has public keys of one length.
    pub fn public(&self) -> [u8; PUBLIC_KEY_LEN] {
        self.pair.public_key().as_ref().try_into().expect("Ed25519 has public keys of 32 bytes")
    }

    /// Proves that the holder of this key takes part in the connection that `binding` comes from.
    ///
    /// # Panics
    /// Never: Ed25519 has signatures of one length.
    pub fn sign(&self, binding: &Binding) -> [u8; SIGNATURE_LEN] {
        let signature = self.pair.sign(&binding.signed_text());
        signature.as_ref().try_into().expect("Ed25519 has signatures of 64 bytes")
    }
}

impl fmt::Debug for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeviceKey([redacted])")
    }
}

/// The y-coordinates of the points of small order, little-endian: orders 4, 1, 8, 8 and 2.
/// Signatures of such a key are valid for any text, or for one of a few, and can be made without a
/// secret.
const SMALL_ORDER: [[u8; 32]; 5] = [
    [0; 32],
    {
        let mut one = [0; 32];
        one[0] = 1;
        one
    },
    [
        0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0, 0xd5,
        0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05,
    ],
    [
        0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f, 0x2a,
        0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a,
    ],
    {
        let mut minus_one = FIELD;
        minus_one[0] -= 1;
        minus_one
    },
];
/// The prime of the field, 2^255 - 19, little-endian.
const FIELD: [u8; 32] = {
    let mut prime = [0xff; 32];
    (prime[0], prime[31]) = (0xed, 0x7f);
    prime
};

/// Whether this is the one encoding of a point (RFC 8032 §5.1.3) that is not of small order, as far
/// as its y-coordinate shows.
fn is_strict(point: &[u8; 32]) -> bool {
    let mut y = *point;
    // The sign of x.
    y[31] &= 0x7f;
    let is_reduced = y.iter().rev().lt(FIELD.iter().rev());
    is_reduced && !SMALL_ORDER.contains(&y)
}

/// Whether the holder of `public` has signed this connection's binding. Keys and signatures that
/// need no secret are refused.
pub fn is_signed(public: &[u8; PUBLIC_KEY_LEN], binding: &Binding, signature: &[u8; SIGNATURE_LEN]) -> bool {
    let (commitment, _) = signature.split_first_chunk().expect("a signature has 64 bytes");
    if !is_strict(public) || !is_strict(commitment) {
        return false;
    }
    UnparsedPublicKey::new(&ED25519, public).verify(&binding.signed_text(), signature).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BINDING: Binding = Binding::new([0x42; 32]);

    fn key(byte: u8) -> DeviceKey {
        DeviceKey::from_seed(Secret::new([byte; 32]))
    }

    #[test]
    fn keys_are_those_of_rfc_8032() {
        // RFC 8032 §7.1, test 1.
        let seed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
        let public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
        let bytes = |hex: &str| -> [u8; 32] {
            core::array::from_fn(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap())
        };
        assert_eq!(DeviceKey::from_seed(Secret::new(bytes(seed))).public(), bytes(public));
    }

    #[test]
    fn the_signed_text_is_that_of_the_protocol() {
        let mut text = b"vpnd/1 device\0".to_vec();
        text.extend([0x42; 32]);
        let by_hand = key(1).pair.sign(&text);
        assert!(is_signed(&key(1).public(), &BINDING, by_hand.as_ref().try_into().unwrap()));
    }

    #[test]
    fn a_signature_is_good_for_one_key_and_one_connection() {
        let signature = key(1).sign(&BINDING);
        assert!(is_signed(&key(1).public(), &BINDING, &signature));
        assert!(!is_signed(&key(2).public(), &BINDING, &signature));
        for byte in 0..BINDING_LEN {
            let mut other = BINDING;
            other.0[byte] ^= 1;
            assert!(!is_signed(&key(1).public(), &other, &signature), "byte {byte} of the binding");
        }
        for byte in 0..SIGNATURE_LEN {
            let mut other = signature;
            other[byte] ^= 1;
            assert!(!is_signed(&key(1).public(), &BINDING, &other), "byte {byte} of the signature");
        }
        assert!(!is_signed(&[0xFF; 32], &BINDING, &signature), "not a point of the curve");
    }

    /// Verifies a signature as the library does, without our stricter checks.
    fn is_signed_loosely(public: &[u8; 32], signature: &[u8; 64]) -> bool {
        UnparsedPublicKey::new(&ED25519, public).verify(&BINDING.signed_text(), signature).is_ok()
    }

    #[test]
    fn a_key_of_small_order_has_signed_nothing() {
        // With the neutral point as key and commitment, and 0 for the rest, each text is signed.
        let mut neutral = [0; 32];
        neutral[0] = 1;
        let mut forged = [0; 64];
        forged[0] = 1;
        assert!(is_signed_loosely(&neutral, &forged), "the library takes it");
        assert!(!is_signed(&neutral, &BINDING, &forged));
        // With the base point as commitment, which belongs to 1.
        forged[..32].fill(0x66);
        forged[0] = 0x58;
        forged[32] = 1;
        assert!(is_signed_loosely(&neutral, &forged), "the library takes it");
        assert!(!is_signed(&neutral, &BINDING, &forged));
        let mut points = SMALL_ORDER.to_vec();
        // Other encodings of the first two: beyond the prime.
        points.extend((0..=18).map(|more| {
            let mut beyond = FIELD;
            beyond[0] += more;
            beyond
        }));
        for mut point in points {
            for _ in 0..2 {
                assert!(!is_strict(&point), "{point:x?}");
                point[31] ^= 0x80;
            }
        }
        let signature = key(1).sign(&BINDING);
        assert!(is_strict(&key(1).public()) && is_signed(&key(1).public(), &BINDING, &signature));
    }

    #[test]
    fn a_key_survives_its_file_and_nothing_else_is_one() {
        let der = key(7).to_pkcs8();
        assert_eq!(DeviceKey::from_pkcs8(&der[..]).unwrap().public(), key(7).public());
        let of_the_library = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der[..]).unwrap();
        assert_eq!(of_the_library.public_key().as_ref(), key(7).public());
        for length in 0..PKCS8_LEN {
            assert!(DeviceKey::from_pkcs8(&der[..length]).is_none(), "{length} bytes");
        }
        let longer = [&der[..], &[0]].concat();
        assert!(DeviceKey::from_pkcs8(&longer).is_none());
        let mut other = der;
        other[11] ^= 1;
        assert!(DeviceKey::from_pkcs8(&other[..]).is_none(), "another algorithm");
    }

    #[test]
    fn the_key_is_not_printed() {
        assert_eq!(format!("{:?}", key(0xAB)), "DeviceKey([redacted])");
    }
}
