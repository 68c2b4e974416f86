//! Password hashes that other programs have made: bcrypt (`$2a$`, `$2b$`, `$2y$`) and salted SHA-1
//! of directories (`{SSHA}`).
//!
//! Invariants: they are verified and never made; a hash that would cost whatever its author likes
//! is refused where it comes in ([`is_acceptable`]); the login that verifies one replaces it
//! (`Hasher::is_outdated`). This module must not know of users.

use aws_lc_rs::digest::{self, SHA1_FOR_LEGACY_USE_ONLY};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use subtle::ConstantTimeEq as _;

/// Costs of bcrypt that are taken over: a login waits for the hash, about a second at the highest.
const BCRYPT_COSTS: std::ops::RangeInclusive<u32> = 4..=14;
/// Length of a bcrypt hash in its text form.
const BCRYPT_LEN: usize = 60;
/// Bytes of the longest password that bcrypt reads.
const BCRYPT_PASSWORD_BYTES: usize = 72;
const SHA1_LEN: usize = 20;
/// Bytes of the longest salt.
const MAX_SALT: usize = 64;

/// A hash of one of these kinds.
pub(super) enum ForeignHash<'h> {
    Bcrypt(&'h str),
    SaltedSha1 { digest: [u8; SHA1_LEN], salt: Vec<u8> },
}

impl<'h> ForeignHash<'h> {
    pub(super) fn parse(text: &'h str) -> Option<Self> {
        if ["$2a$", "$2b$", "$2y$"].iter().any(|prefix| text.starts_with(prefix)) {
            let cost: u32 = text.get(4..6)?.parse().ok()?;
            let base = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'/');
            let is_valid = text.len() == BCRYPT_LEN
                && text.as_bytes()[6] == b'$'
                && text.bytes().skip(7).all(base)
                && BCRYPT_COSTS.contains(&cost);
            return is_valid.then_some(Self::Bcrypt(text));
        }
        let bytes = STANDARD.decode(text.strip_prefix("{SSHA}")?).ok()?;
        let (digest, salt) = bytes.split_first_chunk::<SHA1_LEN>()?;
        let is_valid = (1..=MAX_SALT).contains(&salt.len());
        is_valid.then(|| Self::SaltedSha1 { digest: *digest, salt: salt.to_vec() })
    }

    pub(super) fn verify(&self, password: &[u8]) -> bool {
        match self {
            // bcrypt would take any password with the same first bytes for the right one.
            Self::Bcrypt(_) if password.len() > BCRYPT_PASSWORD_BYTES || password.contains(&0) => false,
            Self::Bcrypt(text) => bcrypt::verify(password, text).unwrap_or(false),
            Self::SaltedSha1 { digest, salt } => {
                let salted = zeroize::Zeroizing::new([password, salt].concat());
                let computed = digest::digest(&SHA1_FOR_LEGACY_USE_ONLY, &salted);
                computed.as_ref().ct_eq(digest).into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hash of `correct horse` with the salt `saltsalt`, by another implementation (hashlib).
    const SSHA: &str = "{SSHA}awc/Cj0kafyFd5d8fGn07xoHBJJzYWx0c2FsdA==";

    #[test]
    fn a_hash_is_of_its_password_alone() {
        // Vector of the original implementation (crypt_blowfish, wrapper.c).
        let vector = "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW";
        for (hash, password) in [(vector.to_owned(), "U*U"), (SSHA.to_owned(), "correct horse")] {
            let parsed = ForeignHash::parse(&hash).expect(&hash);
            assert!(parsed.verify(password.as_bytes()));
            for wrong in ["", "U*", "U*U*", "correct horsf", "correct horse\0"] {
                assert!(!parsed.verify(wrong.as_bytes()), "{wrong:?}");
            }
        }
    }

    #[test]
    fn only_the_whole_password_counts() {
        let long = "x".repeat(BCRYPT_PASSWORD_BYTES);
        let hash = bcrypt::hash(&long, 4).unwrap();
        let parsed = ForeignHash::parse(&hash).unwrap();
        assert!(parsed.verify(long.as_bytes()));
        assert!(!parsed.verify(format!("{long}y").as_bytes()));
    }

    #[test]
    fn what_is_none_or_costs_too_much_is_no_hash() {
        let body = "CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW";
        assert!(ForeignHash::parse(&format!("$2b$14${body}")).is_some());
        for text in [
            "",
            "plain",
            "{SSHA}",
            "{SSHA}AAAA",
            "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=",
            "{SSHA}***",
            "$2b$",
            "$2b$é",
            "$1$abc$def",
        ] {
            assert!(ForeignHash::parse(text).is_none(), "{text}");
        }
        for wrong in [
            format!("$2b$31${body}"),
            format!("$2b$03${body}"),
            format!("$2b$12${body}x"),
            format!("$2x$12${body}"),
        ] {
            assert!(ForeignHash::parse(&wrong).is_none(), "{wrong}");
        }
    }
}
