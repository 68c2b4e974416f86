//! Encryption above TCP: the keys of one connection, and data as a sequence of sealed records.
//!
//! ```text
//! session secret = HMAC-SHA-256(shared secret, "trafficspeed block" | salt of the writer | salt of the target)
//! ```
//!
//! The shared secret comes from the coordinator over the control line, fresh for every connection. Between hosts others
//! may read that line, so there the ends bind it to a key that they derive from their token ([`bound`]). Because both
//! ends put a random salt in, keys differ even if it were used again. From the session secret each direction has a key and
//! IV of its own by the key schedule of the `crypto` crate. A record is at most [`RECORD_BYTES`] of plaintext and a
//! tag; its nonce is made from a counter that only [`Sealer`] holds.
//!
//! INVARIANT: a [`Sealer`] counts up by one for each record and cannot be cloned, so no nonce is used twice.
//! There is no forward secrecy against who learns the secret, or the token, later: this is a measuring tool.

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use vpnd_crypto::backend::{Preference, choose};
use vpnd_crypto::{Direction, EpochSecret, OpenKey, SealKey, Suite};

use super::{BlockError, SALT_BYTES, Secret};

/// Most plaintext of one record, bytes.
pub const RECORD_BYTES: usize = 32 << 10;
/// Bytes that sealing adds to each record, whatever the cipher.
pub const TAG_BYTES: usize = 16;
/// Bytes of associated data at most.
const MAX_AAD: usize = 32;

/// The cipher of sealed blocks: an AEAD, so that it can be the one of the tunnel that they are compared with. Otherwise the
/// comparison would be between two ciphers as much as between two places to encrypt.
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

    const fn suite(self) -> Suite {
        match self {
            Self::Aes128Gcm => Suite::Aes128Gcm,
            Self::Aes256Gcm => Suite::Aes256Gcm,
            Self::ChaCha20Poly1305 => Suite::ChaCha20Poly1305,
        }
    }

    /// Its name in reports and between agents.
    pub const fn name(self) -> &'static str {
        self.suite().name()
    }

    /// Whether it is the one of a job that names none. Such jobs are understood by older agents; one that names another cipher
    /// is refused by them, so that nothing is sealed with a cipher that was not asked for.
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

// Where a record lies in a block depends on this.
const _: () = {
    let mut at = 0;
    while at < Sealing::ALL.len() {
        assert!(Sealing::ALL[at].suite().overhead() == TAG_BYTES);
        at += 1;
    }
};

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

/// A secret that needs both `told` and `key`.
pub fn bound(told: &Secret, key: &[u8; 32]) -> Secret {
    Secret(code(&Secret(*key), b"trafficspeed block between hosts", &[&told.0]))
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
    let suite = sealing.suite();
    let session = EpochSecret::new(code(secret, b"trafficspeed block", &[writer, target]));
    let backend = choose(suite, Preference::Auto).expect("a library has every AEAD").backend;
    let (out, back) = match end {
        End::Writer => (Direction::ToGateway, Direction::ToClient),
        End::Target => (Direction::ToClient, Direction::ToGateway),
    };
    let permitted = "the suite needs no permit, and the key was derived for it";
    let seal = SealKey::new(suite, backend, &session.lane_key(suite, out, 0), None).expect(permitted);
    let open = OpenKey::new(suite, backend, &session.lane_key(suite, back, 0), None).expect(permitted);
    (Sealer { key: seal, counter: 0 }, Opener { key: open, counter: 0 })
}

/// Length of `plain` bytes as sealed records.
pub fn sealed_len(plain: usize) -> usize {
    plain + plain.div_ceil(RECORD_BYTES) * TAG_BYTES
}

/// Seals what one end sends.
#[derive(Debug)]
pub struct Sealer {
    key: SealKey,
    counter: u64,
}

impl Sealer {
    /// Seals data in place. Before, plaintext number i of [`RECORD_BYTES`] lies at i × ([`RECORD_BYTES`] + [`TAG_BYTES`]),
    /// where its record will be; `sealed` ends with the last tag. `aad` is authenticated with each record.
    ///
    /// # Errors
    /// [`BlockError::Exhausted`].
    pub fn seal(&mut self, aad: &[u8], sealed: &mut [u8]) -> Result<(), BlockError> {
        assert!(aad.len() <= MAX_AAD, "only headers are associated");
        for record in sealed.chunks_mut(RECORD_BYTES + TAG_BYTES) {
            let counter = self.counter;
            self.counter += 1;
            let plain = record.len() - TAG_BYTES;
            self.key.seal_in_place(counter, aad, record, plain).map_err(|_| BlockError::Exhausted)?;
        }
        Ok(())
    }
}

/// Opens what one end gets, in the order in which it was sealed.
#[derive(Debug)]
pub struct Opener {
    key: OpenKey,
    counter: u64,
}

impl Opener {
    /// Opens records in place and moves their plaintext together at the start of `sealed`; returns its length.
    ///
    /// # Errors
    /// [`BlockError::NotAuthentic`]; `sealed` then holds nothing that may be used.
    pub fn open(&mut self, aad: &[u8], sealed: &mut [u8]) -> Result<usize, BlockError> {
        let (mut from, mut to) = (0, 0);
        while from < sealed.len() {
            let end = sealed.len().min(from + RECORD_BYTES + TAG_BYTES);
            let counter = self.counter;
            self.counter += 1;
            let record = &mut sealed[from..end];
            let opened =
                self.key.open_in_place(counter, aad, record).map_err(|_| BlockError::NotAuthentic)?;
            let len = opened.len();
            sealed.copy_within(from..from + len, to);
            (from, to) = (end, to + len);
        }
        Ok(to)
    }
}
