//! The gateway's lasting QUIC secret: with it a restarted gateway can send its former peers a
//! stateless reset.
//!
//! A restarted gateway answers datagrams of connections of earlier processes with a stateless reset
//! (RFC 9000 section 10.3), so clients need not wait for a timeout. For that, the keys of
//! connection ids and reset tokens must be the same as before. The key of address validation tokens
//! is kept too.
//!
//! INVARIANT: connection ids are random and long enough never to be used twice, because an attacker
//! who has seen the reset token of one could end a later connection of the same id.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::{hkdf, hmac};
use quinn::{ConnectionId, ConnectionIdGenerator, EndpointConfig};
use quinn_proto::InvalidCid;
use rand::Rng as _;
use zeroize::Zeroizing;

use vpnd_sys::own_file;
use vpnd_sys::secret_file::{self, Existing, SECRET_MODE, WriteError};

/// The secret's file in the state directory.
const FILE: &str = "quic.secret";
const SECRET_LEN: usize = 32;
/// More than that is not read of what lies in the secret's place.
const MAX_FILE_LEN: u64 = 4096;
/// Random bytes of a connection id.
const ID_RANDOM: usize = 12;
/// Bytes of a connection id by which the gateway recognises its own. They only spare answers to
/// garbage.
const ID_TAG: usize = 4;
/// The least time between two stateless resets. After `kill -9` each idle client learns from one
/// that it must attach: a client that gets none waits ever longer between its repetitions, and at
/// last for its idle timeout, so hundreds a second must not get into each other's way. Resets can
/// neither amplify nor go round: each is shorter than the datagram that it answers, and answers
/// only what names an id with a good tag, which the random bytes of another gateway's reset have
/// not.
const RESET_INTERVAL: Duration = Duration::from_micros(200);

#[derive(Debug, thiserror::Error)]
pub(crate) enum KeysError {
    #[error("can't read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is damaged: remove it, and the next start makes a new one", .0.display())]
    Damaged(PathBuf),
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Keys that outlive the process.
pub struct Keys {
    reset: hmac::Key,
    ids: hmac::Key,
    /// For address validation tokens.
    pub tokens: Arc<hkdf::Prk>,
}

impl Keys {
    /// The keys of the secret in `state_dir`, which is made if there is none.
    ///
    /// # Errors
    /// If the file can't be read or written, or is not what was written.
    #[cfg(test)]
    pub(crate) fn load_or_create(state_dir: &Path) -> Result<Self, KeysError> {
        let secret = load_or_create_secret(state_dir)?;
        Ok(Self::from_secret(&secret).expect("it was made with this length"))
    }

    /// The keys of a secret that another process has read; `None` if it is none.
    pub(crate) fn from_secret(secret: &[u8]) -> Option<Self> {
        <&[u8; SECRET_LEN]>::try_from(secret).ok().map(Self::derive)
    }

    /// A connection id that the gateway may have made.
    #[cfg(test)]
    pub(crate) fn some_id(&self) -> ConnectionId {
        ConnectionIds(self.ids.clone()).generate_cid()
    }

    fn derive(secret: &[u8; SECRET_LEN]) -> Self {
        let root = hkdf::Salt::new(hkdf::HKDF_SHA256, b"vpnd quic").extract(secret);
        let hmac_key = |purpose: &'static [u8]| {
            let purpose = [purpose];
            let key =
                root.expand(&purpose, hmac::HMAC_SHA256).expect("one hash is not too long to expand to");
            hmac::Key::from(key)
        };
        let purpose: [&[u8]; 1] = [b"address validation"];
        let tokens =
            root.expand(&purpose, hkdf::HKDF_SHA256).expect("one hash is not too long to expand to").into();
        Self {
            reset: hmac_key(b"stateless reset"),
            ids: hmac_key(b"connection id"),
            tokens: Arc::new(tokens),
        }
    }

    /// An endpoint's settings with these keys.
    pub(crate) fn endpoint_config(&self) -> EndpointConfig {
        let mut config = EndpointConfig::new(Arc::new(self.reset.clone()));
        let ids = self.ids.clone();
        config.cid_generator(move || Box::new(ConnectionIds(ids.clone()))).min_reset_interval(RESET_INTERVAL);
        config
    }
}

/// The secret in `state_dir`, which is made if there is none.
///
/// # Errors
/// If the file can't be read or written, or is not what was written.
pub(crate) fn load_or_create_secret(state_dir: &Path) -> Result<Zeroizing<Vec<u8>>, KeysError> {
    let path = state_dir.join(FILE);
    // Less privileged processes write in that directory.
    match own_file::read(&path, MAX_FILE_LEN).map(Zeroizing::new) {
        Ok(secret) if secret.len() == SECRET_LEN => Ok(secret),
        Ok(_) => Err(KeysError::Damaged(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut secret = Zeroizing::new(vec![0; SECRET_LEN]);
            vpnd_sys::random::random()(secret.as_mut_slice());
            secret_file::write(&path, secret.as_slice(), SECRET_MODE, Existing::Refuse)?;
            Ok(secret)
        }
        Err(source) => Err(KeysError::Read { path, source }),
    }
}

/// Generates connection ids, and recognises them.
struct ConnectionIds(hmac::Key);

impl ConnectionIdGenerator for ConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; ID_RANDOM + ID_TAG];
        let (random, tag) = id.split_at_mut(ID_RANDOM);
        rand::rng().fill_bytes(random);
        tag.copy_from_slice(&hmac::sign(&self.0, random).as_ref()[..ID_TAG]);
        ConnectionId::new(&id)
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        let known = id
            .split_at_checked(ID_RANDOM)
            .is_some_and(|(random, tag)| hmac::sign(&self.0, random).as_ref()[..ID_TAG] == *tag);
        if known { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        ID_RANDOM + ID_TAG
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}
