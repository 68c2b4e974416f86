//! Keys of peers: 32 bytes, written as WireGuard's tools write them.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use vpnd_crypto::Secret;
use vpnd_crypto::x25519::PrivateKey;

/// A peer's public key, which is its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; 32]);

/// The error of a text that is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a WireGuard key has 44 characters of base64 (32 bytes), as `wg pubkey` prints it")]
pub struct NotAKey;

impl PublicKey {
    /// Characters of a key that the log shows.
    const SHOWN: usize = 8;

    /// The first characters, for logs: enough to find the device, too few to copy.
    #[must_use]
    pub fn short(&self) -> String {
        let mut text = self.to_string();
        text.truncate(Self::SHOWN);
        text
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())
    }
}

impl FromStr for PublicKey {
    type Err = NotAKey;

    fn from_str(text: &str) -> Result<Self, NotAKey> {
        let bytes = STANDARD.decode(text).map_err(|_| NotAKey)?;
        bytes.try_into().map(Self).map_err(|_| NotAKey)
    }
}

/// A static key pair: this gateway's.
#[derive(Debug)]
pub struct StaticKey {
    pub(crate) private: PrivateKey,
    public: PublicKey,
}

impl StaticKey {
    /// The pair of a private key, which any 32 random bytes are.
    #[must_use]
    pub fn new(private: Secret<32>) -> Self {
        let private = PrivateKey::new(&private);
        let public = PublicKey(private.public());
        Self { private, public }
    }

    /// A pair whose halves do not belong together, which a thief would need.
    #[cfg(test)]
    pub(crate) const fn claiming(private: PrivateKey, public: PublicKey) -> Self {
        Self { private, public }
    }

    /// The half that peers know.
    #[must_use]
    pub const fn public(&self) -> PublicKey {
        self.public
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Curve points of low order and their twins that are not reduced (the list of
    /// <https://cr.yp.to/ecdh.html>).
    pub(crate) const LOW_ORDER: [[u8; 32]; 5] = {
        let mut one = [0; 32];
        one[0] = 1;
        // p - 1, p and p + 1.
        let mut below = [0xFF; 32];
        below[0] = 0xEC;
        below[31] = 0x7F;
        let (mut zero_again, mut one_again) = (below, below);
        zero_again[0] = 0xED;
        one_again[0] = 0xEE;
        [[0; 32], one, below, zero_again, one_again]
    };

    #[test]
    fn text_and_key_are_the_same() {
        let key: PublicKey = "HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw=".parse().expect("a key");
        assert_eq!(key.to_string(), "HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw=");
        assert_eq!(key.short(), "HIgo9xNz");
        for wrong in ["", "HIgo9xNz", "HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykwA", "?"] {
            assert_eq!(wrong.parse::<PublicKey>(), Err(NotAKey));
        }
    }
}
