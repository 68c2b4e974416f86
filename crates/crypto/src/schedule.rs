//! From the secret of one TLS handshake to the key of one lane (`docs/PROTOCOL.md` §6.1).
//!
//! The epoch secret is 32 bytes of the TLS 1.3 exporter (RFC 8446 §7.5) with the label
//! [`EXPORTER_LABEL`] and no context. It is uniformly random, so it is used as the PRK of HKDF
//! (RFC 5869) without an extraction:
//!
//! ```text
//! material = HKDF-Expand(SHA-256, PRK = epoch secret, info, L = suite.key_len() + 12)
//! info     = "vpnd/1 lane" || 0x00 || suite id (u16, little-endian) || direction (u8) || lane (u8)
//! key      = material[..key_len]        IV = material[key_len..]
//! ```
//!
//! INVARIANT: suite, direction and lane are all in `info`, so no two lanes of an epoch share key
//! and IV, and an epoch whose ends disagree on the suite opens nothing.

use std::fmt;

use hkdf::Hkdf;
use sha2::Sha256;

use crate::secret::Secret;
use crate::suite::{MAX_KEY_LEN, Suite};

/// The label given to the TLS exporter.
pub const EXPORTER_LABEL: &[u8] = b"EXPORTER-vpnd/1 epoch";

/// Bytes of a lane's IV, and of every nonce.
pub const IV_LEN: usize = 12;

const INFO_PREFIX: &[u8; 12] = b"vpnd/1 lane\0";

/// Which way a lane's packets go. The discriminants are the protocol's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Direction {
    /// From the client to the gateway.
    ToGateway = 0,
    /// From the gateway to the client.
    ToClient = 1,
}

/// The secret of one epoch, from which the keys of all its lanes are derived.
///
/// Drop it no later than the last of the lanes: then old packets stay secret even if this machine
/// is taken over later.
#[derive(Debug, PartialEq, Eq)]
pub struct EpochSecret(Secret<32>);

impl EpochSecret {
    /// Takes the 32 bytes that the TLS exporter gave.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(Secret::new(bytes))
    }

    /// Lets `export` write the TLS exporter's 32 bytes in place, for instance
    /// `|out| connection.export_keying_material(out, EXPORTER_LABEL, &[])`.
    ///
    /// # Errors
    /// Those of `export`.
    pub fn try_export<E>(export: impl FnOnce(&mut [u8; 32]) -> Result<(), E>) -> Result<Self, E> {
        Secret::try_fill(export).map(Self)
    }

    /// The 32 bytes, for another process of this machine that goes on with the epoch. The name
    /// makes each use easy to find in review.
    pub const fn expose(&self) -> &[u8; 32] {
        self.0.expose()
    }

    /// The key of one lane. Both ends get the same key from the same arguments.
    pub fn lane_key(&self, suite: Suite, direction: Direction, lane: u8) -> LaneKey {
        let mut info = [0; INFO_PREFIX.len() + 4];
        let (prefix, rest) = info.split_at_mut(INFO_PREFIX.len());
        let [id_low, id_high] = suite.id().to_le_bytes();
        prefix.copy_from_slice(INFO_PREFIX);
        rest.copy_from_slice(&[id_low, id_high, direction as u8, lane]);

        let hkdf = Hkdf::<Sha256>::from_prk(self.0.expose()).expect("a PRK may be as long as the hash");
        let material = Secret::try_fill(|out| hkdf.expand(&info, &mut out[..suite.key_len() + IV_LEN]))
            .expect("no suite needs the 8,160 bytes at which HKDF ends");
        LaneKey { suite, material }
    }
}

/// Key material and IV of one lane, ready to become a [`SealKey`](crate::SealKey) at its sender and
/// an [`OpenKey`](crate::OpenKey) at its receiver.
///
/// INVARIANT: at most one `SealKey` is ever made from it; two would count separately and repeat
/// nonces.
pub struct LaneKey {
    suite: Suite,
    material: Secret<{ MAX_KEY_LEN + IV_LEN }>,
}

impl LaneKey {
    /// The suite the key was derived for, the only one it can be used with.
    pub const fn suite(&self) -> Suite {
        self.suite
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.material.expose()[..self.suite.key_len()]
    }

    pub(crate) fn iv(&self) -> &[u8; IV_LEN] {
        self.material.expose()[self.suite.key_len()..].first_chunk().expect("key material ends with the IV")
    }

    /// A lane key of chosen bytes, for published test vectors.
    #[cfg(test)]
    pub(crate) fn from_parts(suite: Suite, key: &[u8], iv: [u8; IV_LEN]) -> Self {
        assert_eq!(key.len(), suite.key_len());
        let mut bytes = [0; MAX_KEY_LEN + IV_LEN];
        bytes[..key.len()].copy_from_slice(key);
        bytes[key.len()..][..IV_LEN].copy_from_slice(&iv);
        Self { suite, material: Secret::new(bytes) }
    }
}

impl fmt::Debug for LaneKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneKey").field("suite", &self.suite).field("material", &self.material).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::Direction::{ToClient, ToGateway};
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn counting_secret() -> EpochSecret {
        EpochSecret::new(std::array::from_fn(|i| i as u8))
    }

    /// Key and IV for the epoch secret 00 01 .. 1f, computed with Python's hmac and hashlib by the
    /// formula of the module's documentation. That script reproduces test case 1 of RFC 5869.
    const KNOWN: [(Suite, Direction, u8, &str, &str); 7] = [
        (Suite::Aes128Gcm, ToGateway, 0, "cb6a7298b0bb7fc6d3b83ad098dc96f4", "de8b8388054f44ce77e8ffad"),
        (Suite::Aes128Gcm, ToClient, 0, "de9df5bc42e2ca7e3d03fe3e61f900ad", "5fac20d193a55dd8649709fe"),
        (
            Suite::Aes256Gcm,
            ToGateway,
            3,
            "33f02388fe1322f593074bf7cf4e64b56661709b99f8f6ecbee57c2de30e73b5",
            "89582af39ecff117ab70fb13",
        ),
        (
            Suite::ChaCha20Poly1305,
            ToClient,
            255,
            "88fd22a50ef1ab1af2f08cb8503fb5eae9524f0169709eb6c76341d165d73e12",
            "68435e6deae10d98ec7b8094",
        ),
        (Suite::Null, ToGateway, 1, "", "0277d7a2fa80b6c6c014f49f"),
        (
            Suite::AuthOnly,
            ToClient,
            2,
            "334ca10122da87f726b7cc03c20994a19d9e9d505a790454606c13b117cbf9a8",
            "7766db9c37973da3c393e2c6",
        ),
        (
            Suite::Aes256CbcHmacSha256,
            ToGateway,
            0,
            "86a63fd207a0eb31b7d9668502f739787393ba6a9d9da04f5263f6c08bbf2ce8d1753a36748e2f41970326d3d87a1ea510e4f714409420f2927954647fd6046c0b11686c7351667d308eb710dbad9b314c28c13767f67d8e0e0a708fe65d67ed",
            "d8c90575a3ba7fbb60efa43b",
        ),
    ];

    #[test]
    fn lane_keys_are_those_computed_elsewhere() {
        let secret = counting_secret();
        for (suite, direction, lane, key, iv) in KNOWN {
            let lane_key = secret.lane_key(suite, direction, lane);
            assert_eq!(lane_key.suite(), suite);
            assert_eq!(hex(lane_key.key()), key, "{suite} {direction:?} {lane}");
            assert_eq!(hex(lane_key.iv()), iv, "{suite} {direction:?} {lane}");
        }
    }

    #[test]
    fn no_two_lanes_of_an_epoch_share_key_or_iv() {
        let secret = counting_secret();
        let mut keys = std::collections::HashSet::new();
        let mut ivs = std::collections::HashSet::new();
        let mut lanes = 0;
        for suite in Suite::ALL {
            for direction in [ToGateway, ToClient] {
                for lane in 0..=u8::MAX {
                    let lane_key = secret.lane_key(suite, direction, lane);
                    lanes += 1;
                    ivs.insert(*lane_key.iv());
                    // The suite without protection has no key to compare.
                    if suite != Suite::Null {
                        keys.insert(lane_key.key()[..16].to_vec());
                    }
                }
            }
        }
        assert_eq!(ivs.len(), lanes);
        assert_eq!(keys.len(), lanes - 512);
    }

    #[test]
    fn another_epoch_has_other_keys() {
        let one = counting_secret().lane_key(Suite::Aes256Gcm, ToGateway, 0);
        let other = EpochSecret::new([0; 32]).lane_key(Suite::Aes256Gcm, ToGateway, 0);
        assert_ne!(one.key(), other.key());
        assert_ne!(one.iv(), other.iv());
    }

    #[test]
    fn an_exporter_writes_in_place_and_its_failure_is_handed_on() {
        let exported = EpochSecret::try_export(|out| {
            *out = std::array::from_fn(|i| i as u8);
            Ok::<(), ()>(())
        });
        assert_eq!(exported, Ok(counting_secret()));
        assert_eq!(EpochSecret::try_export(|_| Err("too early")), Err("too early"));
    }

    #[test]
    fn debug_shows_no_byte_of_a_key() {
        let secret = EpochSecret::new([0xAB; 32]);
        assert_eq!(format!("{secret:?}"), "EpochSecret([redacted])");
        let lane_key = secret.lane_key(Suite::Aes128Gcm, ToClient, 0);
        assert_eq!(format!("{lane_key:?}"), "LaneKey { suite: Aes128Gcm, material: [redacted] }");
    }
}
