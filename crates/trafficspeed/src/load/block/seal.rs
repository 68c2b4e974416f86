//! Encryption above TCP: the keys of one connection, and data as a sequence of sealed records.
//!
//! ```text
//! session secret = HMAC-SHA-256(shared secret,
//!     "trafficspeed block" | salt of the writer | salt of the target)
//! ```
//!
//! The shared secret comes from the coordinator over the control line, fresh for every connection.
//! Between hosts others may read that line, so there the ends bind it to a key that they derive
//! from their token ([`bound`]). Because both ends put a random salt in, keys differ even if it
//! were used again. From the session secret each direction and cipher has its own key and IV,
//! by HMAC-SHA-256 again. A record is at most [`RECORD_BYTES`] of plaintext and a tag; its nonce is
//! the IV with a counter that only [`Sealer`] holds (as in TLS 1.3). The library is ring, whatever
//! the tunnel uses.
//!
//! INVARIANT: a [`Sealer`] counts up by one for each record and cannot be cloned, so no nonce is
//! used twice. There is no forward secrecy against who learns the secret, or the token, later: this
//! is a measuring tool.

use hmac::{Hmac, KeyInit, Mac};
use ring::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey,
};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use zeroize::Zeroizing;

use super::{BlockError, SALT_BYTES, Secret};

/// Most plaintext of one record, bytes.
pub const RECORD_BYTES: usize = 32 << 10;
/// The library that seals, as vpnd names it.
pub const LIBRARY: &str = "ring";
/// Bytes that sealing adds to each record, whatever the cipher.
pub const TAG_BYTES: usize = 16;
/// Records that one key seals at most: 2^37 blocks of AES, far below where GCM loses its margin.
const MOST_RECORDS: u64 = 1 << 26;

/// The cipher of sealed blocks: an AEAD, so that it can be the one of the tunnel that they are
/// compared with. Otherwise the comparison would be between two ciphers as much as between two
/// places to encrypt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sealing {
    #[serde(rename = "aes-128-gcm")]
    Aes128Gcm,
    /// Older jobs and reports name none: there was only this one.
    #[default]
    #[serde(rename = "aes-256-gcm")]
    Aes256Gcm,
    #[serde(rename = "chacha20-poly1305")]
    ChaCha20Poly1305,
}

impl Sealing {
    pub const ALL: [Self; 3] = [Self::Aes128Gcm, Self::Aes256Gcm, Self::ChaCha20Poly1305];

    fn algorithm(self) -> &'static Algorithm {
        match self {
            Self::Aes128Gcm => &AES_128_GCM,
            Self::Aes256Gcm => &AES_256_GCM,
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        }
    }

    /// Its name in reports and between agents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "aes-128-gcm",
            Self::Aes256Gcm => "aes-256-gcm",
            Self::ChaCha20Poly1305 => "chacha20-poly1305",
        }
    }

    /// Whether it is the one of a job that names none. Such jobs are understood by older agents;
    /// one that names another cipher is refused by them, so that nothing is sealed with a cipher
    /// that was not asked for.
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Random bytes of one end.
pub type Salt = [u8; SALT_BYTES];

/// A writer's proof that it holds the secret, before the target gives it anything.
pub fn proof(secret: &Secret, salt: &Salt) -> Salt {
    let code = code(secret, b"trafficspeed block proof", &[salt]);
    code[..SALT_BYTES].try_into().expect("a code is longer than a salt")
}

/// Whether the writer's proof is right; compared in constant time.
pub fn is_proof(secret: &Secret, salt: &Salt, shown: &Salt) -> bool {
    let mut mac = mac(secret, b"trafficspeed block proof");
    mac.update(salt);
    mac.verify_truncated_left(shown).is_ok()
}

fn mac(secret: &Secret, label: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(&secret.0).expect("HMAC takes keys of any length");
    mac.update(label);
    mac
}

fn code(secret: &Secret, label: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = mac(secret, label);
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// A secret that needs both `given` and `key`.
pub fn bound(given: &Secret, key: &[u8; 32]) -> Secret {
    Secret(code(&Secret(*key), b"trafficspeed block between hosts", &[&given.0]))
}

/// Which end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Sends blocks, gets answers.
    Writer,
    Target,
}

/// The keys of one end: for what it sends, and for what it gets. They differ with the cipher too.
pub fn keys(
    secret: &Secret,
    sealing: Sealing,
    end: End,
    (writer, target): (&Salt, &Salt),
) -> (Sealer, Opener) {
    let session = Secret(code(secret, b"trafficspeed block", &[writer, target]));
    let from = |sender: End| RecordKey::derive(&session, sealing, sender);
    let other = match end {
        End::Writer => End::Target,
        End::Target => End::Writer,
    };
    (Sealer(from(end)), Opener(from(other)))
}

/// The key of one direction, and the counter of its records.
#[derive(Debug)]
struct RecordKey {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    counter: u64,
}

impl RecordKey {
    fn derive(session: &Secret, sealing: Sealing, sender: End) -> Self {
        let sender: &[u8] = match sender {
            End::Writer => b" writer",
            End::Target => b" target",
        };
        let derived =
            |label: &[u8]| Zeroizing::new(code(session, label, &[sealing.name().as_bytes(), sender]));
        let algorithm = sealing.algorithm();
        let key = derived(b"trafficspeed block key ");
        let key =
            UnboundKey::new(algorithm, &key[..algorithm.key_len()]).expect("its length is the cipher's");
        let mut iv = [0; NONCE_LEN];
        iv.copy_from_slice(&derived(b"trafficspeed block iv ")[..NONCE_LEN]);
        Self { key: LessSafeKey::new(key), iv, counter: 0 }
    }

    /// The nonce of the next record; `None` once the key has had all that it may.
    fn next_nonce(&mut self) -> Option<Nonce> {
        let counter = self.counter;
        self.counter = (counter < MOST_RECORDS).then(|| counter + 1)?;
        let mut nonce = self.iv;
        nonce.iter_mut().rev().zip(counter.to_le_bytes()).for_each(|(byte, count)| *byte ^= count);
        Some(Nonce::assume_unique_for_key(nonce))
    }
}

/// Length of `plain` bytes as sealed records.
pub fn sealed_len(plain: usize) -> usize {
    plain + plain.div_ceil(RECORD_BYTES) * TAG_BYTES
}

/// Seals what one end sends.
#[derive(Debug)]
pub struct Sealer(RecordKey);

impl Sealer {
    /// Seals data in place. Before, plaintext number i of [`RECORD_BYTES`] lies at i ×
    /// ([`RECORD_BYTES`] + [`TAG_BYTES`]), where its record will be; `sealed` ends with the last
    /// tag. `aad` is authenticated with each record.
    pub fn seal(&mut self, aad: &[u8], sealed: &mut [u8]) -> Result<(), BlockError> {
        for record in sealed.chunks_mut(RECORD_BYTES + TAG_BYTES) {
            let nonce = self.0.next_nonce().ok_or(BlockError::Exhausted)?;
            let (plain, place) = record.split_at_mut(record.len() - TAG_BYTES);
            let tag = self.0.key.seal_in_place_separate_tag(nonce, Aad::from(aad), plain);
            place.copy_from_slice(tag.map_err(|_| BlockError::Exhausted)?.as_ref());
        }
        Ok(())
    }
}

/// Opens what one end gets, in the order in which it was sealed.
#[derive(Debug)]
pub struct Opener(RecordKey);

impl Opener {
    /// Opens records in place and moves their plaintext together at the start of `sealed`; returns
    /// its length.
    ///
    /// # Errors
    /// [`BlockError::NotAuthentic`]; `sealed` then holds nothing that may be used.
    pub fn open(&mut self, aad: &[u8], sealed: &mut [u8]) -> Result<usize, BlockError> {
        let (mut from, mut to) = (0, 0);
        while from < sealed.len() {
            let end = sealed.len().min(from + RECORD_BYTES + TAG_BYTES);
            let nonce = self.0.next_nonce().ok_or(BlockError::NotAuthentic)?;
            let opened = self.0.key.open_in_place(nonce, Aad::from(aad), &mut sealed[from..end]);
            let len = opened.map_err(|_| BlockError::NotAuthentic)?.len();
            sealed.copy_within(from..from + len, to);
            (from, to) = (end, to + len);
        }
        Ok(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_seals_a_limited_number_of_records_with_unique_nonces() {
        let (secret, salts): (Secret, (Salt, Salt)) = (Secret::random(), ([1; 16], [2; 16]));
        for sealing in Sealing::ALL {
            let (mut sealer, _) = keys(&secret, sealing, End::Writer, (&salts.0, &salts.1));
            let mut nonces: Vec<[u8; NONCE_LEN]> =
                (0..300).map(|_| *sealer.0.next_nonce().unwrap().as_ref()).collect();
            nonces.sort_unstable();
            nonces.dedup();
            assert_eq!(nonces.len(), 300);
            sealer.0.counter = MOST_RECORDS - 1;
            let mut data = vec![0; sealed_len(64)];
            sealer.seal(b"x", &mut data).unwrap();
            for _ in 0..2 {
                assert!(matches!(sealer.seal(b"x", &mut data), Err(BlockError::Exhausted)));
            }
            assert_eq!(sealing.algorithm().tag_len(), TAG_BYTES, "where a record lies depends on it");
        }
    }
}
