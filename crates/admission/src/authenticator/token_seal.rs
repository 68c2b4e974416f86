//! Seals refresh tokens before they go into the store: XChaCha20-Poly1305 under a key in a file of
//! the state directory, with a random nonce.
//!
//! Invariants: the key is in no database and in no backup, so a copy of the store shows no token; a
//! sealed token opens for the user alone for whom it was sealed. A lost key costs its users a
//! login.

use std::io;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use chacha20poly1305::aead::AeadInOut as _;
use chacha20poly1305::{KeyInit as _, XChaCha20Poly1305};
use vpnd_crypto::Secret;
use vpnd_pki::key_file::{self, Content};
use vpnd_store::{RefreshToken, UserId};
use zeroize::Zeroizing;

/// The name of the file.
const FILE_NAME: &str = "refresh-tokens.key";
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;

pub struct TokenSeal(XChaCha20Poly1305);

/// Under a key of this process alone.
impl Default for TokenSeal {
    fn default() -> Self {
        Self::new(&Secret::new(rand::random()))
    }
}

impl TokenSeal {
    fn new(key: &Secret<32>) -> Self {
        Self(XChaCha20Poly1305::new(&(*key.expose()).into()))
    }

    /// Under the key of this state directory; one is made if there is none, or a damaged one.
    pub fn open_or_create(state_dir: &Path) -> io::Result<Self> {
        let path = state_dir.join(FILE_NAME);
        let (mut file, content) = key_file::open_or_create(&path)?;
        let key = match content {
            Content::Key(key) => key,
            Content::Nothing => key_file::make(&mut file, &path)?,
            Content::Damaged => {
                tracing::warn!(
                    path = %path.display(),
                    "the key of refresh tokens is damaged: another is made, and users of OpenID providers have to log in again"
                );
                key_file::make_again(&mut file, &path)?
            }
        };
        Ok(Self::new(&key))
    }

    pub(super) fn seal(&self, user: UserId, token: &str) -> RefreshToken {
        let nonce = rand::random::<[u8; NONCE_BYTES]>();
        let mut sealed = Vec::with_capacity(NONCE_BYTES + token.len() + TAG_BYTES);
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(token.as_bytes());
        let text = (&mut sealed[NONCE_BYTES..]).into();
        let tag = self.0.encrypt_inout_detached(&nonce.into(), &user.0, text);
        sealed.extend_from_slice(&tag.expect("a token is shorter than the cipher's limit"));
        RefreshToken::new(STANDARD_NO_PAD.encode(&sealed))
    }

    /// The token, if it was sealed for this user under this key.
    pub(super) fn open(&self, user: UserId, sealed: &RefreshToken) -> Option<Zeroizing<String>> {
        let bytes = STANDARD_NO_PAD.decode(sealed.expose()).ok()?;
        let (nonce, rest) = bytes.split_first_chunk::<NONCE_BYTES>()?;
        let (text, tag) = rest.split_last_chunk::<TAG_BYTES>()?;
        let mut text = Zeroizing::new(text.to_vec());
        let opened = text.as_mut_slice().into();
        self.0.decrypt_inout_detached(&(*nonce).into(), &user.0, opened, &(*tag).into()).ok()?;
        str::from_utf8(&text).ok().map(|text| Zeroizing::new(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const ANN: UserId = UserId([1; 16]);

    #[test]
    fn a_sealed_token_opens_for_its_user_under_its_key_alone() {
        let seal = TokenSeal::default();
        let sealed = seal.seal(ANN, "a secret");
        assert_eq!(seal.open(ANN, &sealed).as_deref().map(String::as_str), Some("a secret"));
        assert!(!sealed.expose().contains("secret") && sealed != seal.seal(ANN, "a secret"));
        assert!(seal.open(UserId([2; 16]), &sealed).is_none(), "another user's");
        assert!(TokenSeal::default().open(ANN, &sealed).is_none(), "another key");
        let bytes = STANDARD_NO_PAD.decode(sealed.expose()).unwrap();
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            let other = RefreshToken::new(STANDARD_NO_PAD.encode(other));
            assert!(seal.open(ANN, &other).is_none(), "byte {at}");
            let cut = RefreshToken::new(STANDARD_NO_PAD.encode(&bytes[..at]));
            assert!(seal.open(ANN, &cut).is_none(), "{at} bytes");
        }
        assert!(seal.open(ANN, &RefreshToken::new("a secret".to_owned())).is_none(), "in clear");
    }

    #[test]
    fn the_token_key_is_kept_and_a_lost_one_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let open = || TokenSeal::open_or_create(directory.path()).unwrap();
        let sealed = open().seal(ANN, "t");
        assert!(open().open(ANN, &sealed).is_some());
        let path = directory.path().join(FILE_NAME);
        for damaged in [&b"short"[..], &[b'A'; 64], &[0; 4096]] {
            fs::write(&path, damaged).unwrap();
            let sealed = open().seal(ANN, "t");
            assert!(open().open(ANN, &sealed).is_some(), "the new key is kept");
        }
        assert!(open().open(ANN, &sealed).is_none());
        fs::remove_file(&path).unwrap();
        let sealed = open().seal(ANN, "t");
        assert!(open().open(ANN, &sealed).is_some());
    }
}
