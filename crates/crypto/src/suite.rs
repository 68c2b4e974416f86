//! The closed set of cipher suites: numbers, names, sizes, limits of use.
//!
//! Everything here is part of the protocol (`docs/PROTOCOL.md` §6.2 and §11); a changed value is
//! another protocol.
//!
//! | id | name | key bytes | growth |
//! |---|---|---|---|
//! | 1 | `aes-128-gcm` | 16 | 16 |
//! | 2 | `aes-256-gcm` | 32 | 16 |
//! | 3 | `chacha20-poly1305` | 32 | 16 |
//! | 0xF000 | `none` | 0 | 0 |
//! | 0xF001 | `auth-only` | 32 | 16 |
//! | 0xF002 | `aes-256-cbc-hmac-sha-256` | 96 | 33 to 48 |
//!
//! Ids from 0xF000 are for the laboratory: they exist to measure what protection costs. A key for
//! one cannot be made without a [`LabPermit`].

use std::fmt;
use std::str::FromStr;

/// Longest plaintext that may be sealed, in bytes: no UDP datagram carries more, and the limits of
/// use count on it.
pub const MAX_PLAINTEXT_LEN: usize = 65_535;

/// Longest key material of any suite, in bytes.
pub const MAX_KEY_LEN: usize = 96;

/// A cipher suite: encryption and authentication together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Suite {
    /// AES-128 in Galois/Counter Mode (NIST SP 800-38D), 128-bit tag.
    Aes128Gcm,
    /// AES-256 in Galois/Counter Mode (NIST SP 800-38D), 128-bit tag.
    Aes256Gcm,
    /// ChaCha20 and Poly1305 (RFC 8439).
    ChaCha20Poly1305,
    /// **Laboratory only.** No encryption and no authentication: anyone who sees a packet can read
    /// it, and anyone can send one.
    Null,
    /// **Laboratory only.** HMAC-SHA-256 truncated to 128 bits over nonce, associated data and
    /// plaintext, which travels in the clear.
    AuthOnly,
    /// **Laboratory only.** AES-256-CBC with PKCS #7 padding, then HMAC-SHA-256 truncated to 128
    /// bits over the ciphertext: the classic suite of IPsec (RFC 3602, RFC 4868), to compare with.
    Aes256CbcHmacSha256,
}

impl Suite {
    /// Every suite, those for the laboratory too.
    pub const ALL: [Self; 6] = [
        Self::Aes128Gcm,
        Self::Aes256Gcm,
        Self::ChaCha20Poly1305,
        Self::Null,
        Self::AuthOnly,
        Self::Aes256CbcHmacSha256,
    ];

    /// The suites that protect traffic, the only ones offered without a [`LabPermit`].
    pub const STANDARD: [Self; 3] = [Self::Aes128Gcm, Self::Aes256Gcm, Self::ChaCha20Poly1305];

    /// The number of the suite on the wire and in the key schedule.
    pub const fn id(self) -> u16 {
        match self {
            Self::Aes128Gcm => 1,
            Self::Aes256Gcm => 2,
            Self::ChaCha20Poly1305 => 3,
            Self::Null => 0xF000,
            Self::AuthOnly => 0xF001,
            Self::Aes256CbcHmacSha256 => 0xF002,
        }
    }

    /// The suite with this number, if there is one.
    pub fn from_id(id: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.id() == id)
    }

    /// The name used in configuration, logs and status.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "aes-128-gcm",
            Self::Aes256Gcm => "aes-256-gcm",
            Self::ChaCha20Poly1305 => "chacha20-poly1305",
            Self::Null => "none",
            Self::AuthOnly => "auth-only",
            Self::Aes256CbcHmacSha256 => "aes-256-cbc-hmac-sha-256",
        }
    }

    /// Whether the suite is for measurements in the laboratory only and must never carry real
    /// traffic.
    pub const fn is_lab_only(self) -> bool {
        match self {
            Self::Aes128Gcm | Self::Aes256Gcm | Self::ChaCha20Poly1305 => false,
            Self::Null | Self::AuthOnly | Self::Aes256CbcHmacSha256 => true,
        }
    }

    /// Whether the suite is AES-GCM, with a key of either length.
    pub const fn is_aes_gcm(self) -> bool {
        matches!(self, Self::Aes128Gcm | Self::Aes256Gcm)
    }

    /// Bytes of key material, all sub-keys together. The IV of a lane is not counted.
    pub const fn key_len(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 | Self::AuthOnly => 32,
            Self::Aes256CbcHmacSha256 => 96,
        }
    }

    /// The most bytes by which sealing lengthens a packet. [`Suite::sealed_len`] gives the exact
    /// length.
    pub const fn overhead(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Aes128Gcm | Self::Aes256Gcm | Self::ChaCha20Poly1305 | Self::AuthOnly => 16,
            Self::Aes256CbcHmacSha256 => 48,
        }
    }

    /// Length in bytes of a sealed packet with `plaintext_len` bytes of plaintext.
    pub const fn sealed_len(self, plaintext_len: usize) -> usize {
        match self {
            Self::Aes256CbcHmacSha256 => (plaintext_len / 16 + 1) * 16 + 32,
            _ => plaintext_len + self.overhead(),
        }
    }

    /// Returns the limits of a key of this suite; see [`Limits`] for the reasons.
    ///
    /// All suites have the same limits, so that an epoch lives equally long whatever protects it
    /// and measurements of different suites compare the same number of rekeys.
    pub const fn limits(self) -> Limits {
        Limits { rekey_after: 1 << 24, refuse_after: 1 << 26, max_failed_opens: 1 << 36 }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Suite {
    type Err = UnknownSuite;

    fn from_str(name: &str) -> Result<Self, UnknownSuite> {
        Self::ALL.into_iter().find(|suite| suite.name() == name).ok_or(UnknownSuite)
    }
}

/// No suite has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no such cipher suite; use aes-128-gcm, aes-256-gcm or chacha20-poly1305 \
     (for measurements only: none, auth-only, aes-256-cbc-hmac-sha-256)"
)]
pub struct UnknownSuite;

/// Limits of the key of one lane.
///
/// The values follow the analysis that TLS 1.3 and DTLS 1.3 rest on (RFC 8446 §5.5, RFC 9147 §4.5.3
/// and appendix B). There, AES-GCM may protect 2^24.5 records of 2^14 bytes on a key while an
/// attacker's advantage over an ideal cipher stays near 2^-57. The bound grows with the square of
/// the number of 16-byte blocks: a lane that carries 1,408-byte packets reaches 2^24 of them after
/// 2^30.5 blocks, for an advantage of about 2^-68, and even 2^24 packets of 65,535 bytes stay at
/// 2^-57. ChaCha20-Poly1305 would allow more; one value for both keeps the protocol simple and keys
/// short-lived. Nonces are masked with a secret IV for each lane, so an attacker gains nothing from
/// watching many keys at once (Hoang, Tessaro, Thiruvengadam: *The Multi-user Security of GCM,
/// Revisited*, CCS 2018).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Once a lane has sealed this many packets, its holder asks for a new epoch. Two doublings
    /// before `refuse_after`, so that traffic goes on while the handshake runs.
    pub rekey_after: u64,
    /// The first counter that is neither sealed nor opened, enforced by [`SealKey`](crate::SealKey)
    /// and [`OpenKey`](crate::OpenKey).
    pub refuse_after: u64,
    /// When this many datagrams failed to open under the keys of an epoch, the epoch ends: each is
    /// an attempt at forgery, and RFC 9147 §4.5.3 allows 2^36 of them for each of the standard
    /// suites. The caller counts.
    pub max_failed_opens: u64,
}

/// The permission to make keys for laboratory suites, which protect nothing or not enough.
///
/// Only [`LabPermit::insecure`] makes one, so that a search for its name finds every place that
/// could weaken traffic.
#[derive(Clone, Copy, Debug)]
pub struct LabPermit(());

impl LabPermit {
    /// Call this only after a person asked for insecure suites explicitly, on both ends.
    pub const fn insecure() -> Self {
        Self(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The protocol's numbers, written out a second time on purpose.
    const WIRE: [(Suite, u16, &str, usize, usize, bool); 6] = [
        (Suite::Aes128Gcm, 1, "aes-128-gcm", 16, 16, false),
        (Suite::Aes256Gcm, 2, "aes-256-gcm", 32, 16, false),
        (Suite::ChaCha20Poly1305, 3, "chacha20-poly1305", 32, 16, false),
        (Suite::Null, 0xF000, "none", 0, 0, true),
        (Suite::AuthOnly, 0xF001, "auth-only", 32, 16, true),
        (Suite::Aes256CbcHmacSha256, 0xF002, "aes-256-cbc-hmac-sha-256", 96, 48, true),
    ];

    #[test]
    fn numbers_names_and_sizes_are_those_of_the_protocol() {
        for ((suite, id, name, key_len, overhead, lab), listed) in WIRE.into_iter().zip(Suite::ALL) {
            assert_eq!(suite, listed);
            assert_eq!((suite.id(), suite.name()), (id, name));
            assert_eq!((suite.key_len(), suite.overhead(), suite.is_lab_only()), (key_len, overhead, lab));
            assert!(suite.key_len() <= MAX_KEY_LEN);
            assert_eq!((Suite::from_id(id), name.parse()), (Some(suite), Ok(suite)));
            assert_eq!(format!("{suite:>26}").trim_start(), name);
        }
    }

    #[test]
    fn unknown_ids_and_names_are_refused() {
        let known = (0..=u16::MAX).filter_map(Suite::from_id).count();
        assert_eq!(known, Suite::ALL.len());
        for name in ["", "AES-128-GCM", "null", "aes-128-gcm ", "aes"] {
            assert_eq!(name.parse::<Suite>(), Err(UnknownSuite), "{name:?}");
        }
    }

    #[test]
    fn standard_suites_are_those_that_are_not_for_the_laboratory() {
        let standard: Vec<_> = Suite::ALL.into_iter().filter(|suite| !suite.is_lab_only()).collect();
        assert_eq!(standard, Suite::STANDARD);
    }

    #[test]
    fn overhead_is_the_largest_growth_and_is_reached() {
        for suite in Suite::ALL {
            let growth = (0..100).map(|n| suite.sealed_len(n) - n);
            assert_eq!(growth.max(), Some(suite.overhead()), "{suite}");
        }
    }

    #[test]
    fn limits_leave_room_to_rekey() {
        for suite in Suite::ALL {
            let limits = suite.limits();
            assert_eq!(
                (limits.rekey_after, limits.refuse_after, limits.max_failed_opens),
                (16_777_216, 67_108_864, 68_719_476_736)
            );
        }
    }
}
