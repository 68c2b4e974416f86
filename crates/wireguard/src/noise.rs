//! Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s: the two messages of a handshake, and the keys that they
//! give (§5.4.1 to §5.4.5).
//!
//! The initiator's way is [`initiate`], then [`Initiator::finish`]; the responder's is [`open`],
//! which shows who asks, then [`Opened::respond`]. Each consumes what came before, so nothing
//! secret is used twice. Whether a peer is known and its timestamp is later than others is for
//! [`handshakes`](crate::handshakes) to decide.

use std::sync::Arc;

use minicbor::encode::Write;
use minicbor::{Decode, Decoder, Encode, Encoder, decode, encode};
use vpnd_crypto::x25519::PrivateKey;
use vpnd_crypto::{Backend, NoiseKey, Secret};

use crate::hash::{hash, kdf};
use crate::key::{PublicKey, StaticKey};
use crate::message::{Initiation, Response, TAG_LEN};
use crate::timestamp::Timestamp;

const CONSTRUCTION: &[u8] = b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
const IDENTIFIER: &[u8] = b"WireGuard v1 zx2c4 Jason@zx2c4.com";
/// A handshake seals three short fields; what is fastest for packets does not matter here.
const BACKEND: Backend = Backend::Ring;

/// A message of a handshake is not what a peer with its key has made for this key: one value for
/// all reasons, a key of low order among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message of the handshake is not authentic")]
pub struct NotAuthentic;

/// The keys of one session, for the two directions. They are encoded only on their way to another
/// process of the same gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionKeys {
    /// The key that this end seals with.
    pub send: Arc<Secret<32>>,
    /// The key that this end opens with.
    pub receive: Arc<Secret<32>>,
}

impl SessionKeys {
    fn new(send: Secret<32>, receive: Secret<32>) -> Self {
        Self { send: Arc::new(send), receive: Arc::new(receive) }
    }
}

impl<C> Encode<C> for SessionKeys {
    fn encode<W: Write>(&self, e: &mut Encoder<W>, _: &mut C) -> Result<(), encode::Error<W::Error>> {
        e.array(2)?.bytes(self.send.expose())?.bytes(self.receive.expose())?.ok()
    }
}

impl<'b, C> Decode<'b, C> for SessionKeys {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
        fn key(d: &mut Decoder) -> Result<Secret<32>, decode::Error> {
            let (at, bytes) = (d.position(), d.bytes()?);
            let key = bytes.try_into().map_err(|_| decode::Error::message("a key has 32 bytes").at(at));
            key.map(Secret::copy_of)
        }
        let at = d.position();
        if d.array()? != Some(2) {
            return Err(decode::Error::message("a session has two keys").at(at));
        }
        Ok(Self::new(key(d)?, key(d)?))
    }
}

/// The state of a handshake that both ends share: C and H of the paper.
#[derive(Debug)]
struct Transcript {
    chaining: Secret<32>,
    hash: [u8; 32],
}

impl Transcript {
    /// A handshake that `responder` is to answer.
    fn new(responder: PublicKey) -> Self {
        let chaining = hash(&[CONSTRUCTION]);
        let named = hash(&[&chaining, IDENTIFIER]);
        Self { chaining: Secret::new(chaining), hash: hash(&[&named, &responder.0]) }
    }

    fn mix_hash(&mut self, bytes: &[u8]) {
        self.hash = hash(&[&self.hash, bytes]);
    }

    /// An ephemeral public key, which goes into both.
    fn mix_ephemeral(&mut self, public: &[u8; 32]) {
        [self.chaining] = kdf(self.chaining.expose(), public);
        self.mix_hash(public);
    }

    fn mix_secret(&mut self, secret: &Secret<32>) {
        [self.chaining] = kdf(self.chaining.expose(), secret.expose());
    }

    /// Mixes a secret in, and returns the key of the field that follows.
    fn mix_key(&mut self, secret: &Secret<32>) -> Secret<32> {
        let [chaining, key] = kdf(self.chaining.expose(), secret.expose());
        self.chaining = chaining;
        key
    }

    fn mix_preshared(&mut self, preshared: &Secret<32>) -> Secret<32> {
        let [chaining, mixed, key] = kdf(self.chaining.expose(), preshared.expose());
        self.chaining = chaining;
        self.mix_hash(mixed.expose());
        key
    }

    /// Seals a field, `SEALED` bytes with its tag.
    fn seal<const SEALED: usize>(&mut self, key: &Secret<32>, field: &[u8]) -> [u8; SEALED] {
        let mut sealed = [0; SEALED];
        sealed[..field.len()].copy_from_slice(field);
        expand(key)
            .seal_in_place(0, &self.hash, &mut sealed, field.len())
            .expect("a field's room is its length and a tag");
        self.mix_hash(&sealed);
        sealed
    }

    /// Opens a field of `LEN` bytes.
    fn open<const LEN: usize>(&mut self, key: &Secret<32>, sealed: &[u8]) -> Result<[u8; LEN], NotAuthentic> {
        let mut room = [0; 32 + TAG_LEN];
        let room = &mut room[..sealed.len()];
        room.copy_from_slice(sealed);
        let field = expand(key).open_in_place(0, &self.hash, room).map_err(|_| NotAuthentic)?;
        let field = field.first_chunk().copied().ok_or(NotAuthentic)?;
        self.mix_hash(sealed);
        Ok(field)
    }

    /// The keys of the session: the first is the initiator's for sending.
    fn split(self) -> [Secret<32>; 2] {
        kdf(self.chaining.expose(), &[])
    }
}

fn expand(key: &Secret<32>) -> NoiseKey {
    NoiseKey::new(BACKEND, key).expect("ring has ChaCha20-Poly1305")
}

/// The secret of two keys; there is none with a point of low order.
pub(crate) fn agree(private: &PrivateKey, public: &PublicKey) -> Result<Secret<32>, NotAuthentic> {
    private.agree(&public.0).ok_or(NotAuthentic)
}

/// An initiator that waits for the response.
#[derive(Debug)]
pub struct Initiator {
    transcript: Transcript,
    ephemeral: PrivateKey,
}

/// Begins a handshake with `peer`: the first message, without indexes and MACs. `shared` is the
/// secret of the two static keys, `ephemeral` 32 random bytes.
///
/// # Errors
/// If the peer's key is of low order.
pub fn initiate(
    own: &StaticKey,
    peer: PublicKey,
    shared: &Secret<32>,
    ephemeral: Secret<32>,
    timestamp: Timestamp,
) -> Result<(Initiator, Initiation), NotAuthentic> {
    let mut transcript = Transcript::new(peer);
    let ephemeral = PrivateKey::new(&ephemeral);
    transcript.mix_ephemeral(&ephemeral.public());
    let key = transcript.mix_key(&agree(&ephemeral, &peer)?);
    let sealed_static = transcript.seal(&key, &own.public().0);
    let key = transcript.mix_key(shared);
    let sealed_timestamp = transcript.seal(&key, &timestamp.to_bytes());
    let message = Initiation::new(ephemeral.public(), sealed_static, sealed_timestamp);
    Ok((Initiator { transcript, ephemeral }, message))
}

impl Initiator {
    /// Reads the response, and ends the handshake.
    ///
    /// # Errors
    /// If the peer that was asked has not made it. The initiator still waits then: anybody can send
    /// a wrong response.
    pub fn finish(
        &self,
        own: &StaticKey,
        preshared: &Secret<32>,
        response: &Response,
    ) -> Result<SessionKeys, NotAuthentic> {
        let theirs = PublicKey(response.ephemeral);
        let Transcript { chaining, hash } = &self.transcript;
        let mut transcript = Transcript { chaining: Secret::copy_of(chaining.expose()), hash: *hash };
        transcript.mix_ephemeral(&theirs.0);
        transcript.mix_secret(&agree(&self.ephemeral, &theirs)?);
        transcript.mix_secret(&agree(&own.private, &theirs)?);
        let key = transcript.mix_preshared(preshared);
        let [] = transcript.open(&key, &response.sealed_nothing)?;
        let [send, receive] = transcript.split();
        Ok(SessionKeys::new(send, receive))
    }
}

/// An initiation of which the sender's key is known, but not yet that the sender has it.
#[derive(Debug)]
pub struct Claimed {
    transcript: Transcript,
    ephemeral: PublicKey,
    peer: PublicKey,
}

/// Reads who asks in a first message.
///
/// # Errors
/// If it was not made for this key.
pub fn open(own: &StaticKey, message: &Initiation) -> Result<Claimed, NotAuthentic> {
    let mut transcript = Transcript::new(own.public());
    let ephemeral = PublicKey(message.ephemeral);
    transcript.mix_ephemeral(&ephemeral.0);
    let key = transcript.mix_key(&agree(&own.private, &ephemeral)?);
    let peer = PublicKey(transcript.open(&key, &message.sealed_static)?);
    Ok(Claimed { transcript, ephemeral, peer })
}

impl Claimed {
    /// The key that the sender claims to have.
    #[must_use]
    pub const fn peer(&self) -> PublicKey {
        self.peer
    }

    /// Proves it, with the secret of the two static keys.
    ///
    /// # Errors
    /// If the sender does not have that key.
    pub fn prove(mut self, shared: &Secret<32>, message: &Initiation) -> Result<Opened, NotAuthentic> {
        let key = self.transcript.mix_key(shared);
        let timestamp = Timestamp::from_bytes(self.transcript.open(&key, &message.sealed_timestamp)?);
        let Self { transcript, ephemeral, peer } = self;
        Ok(Opened { transcript, ephemeral, peer, timestamp })
    }
}

/// An authentic first message, perhaps a replayed one.
#[derive(Debug)]
pub struct Opened {
    transcript: Transcript,
    ephemeral: PublicKey,
    peer: PublicKey,
    timestamp: Timestamp,
}

impl Opened {
    /// The time of the peer's clock when it was made.
    #[must_use]
    pub const fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    /// Answers it: the second message, without indexes and MACs, and the keys. `ephemeral` are 32
    /// random bytes.
    ///
    /// # Errors
    /// If the peer's ephemeral key is of low order.
    pub fn respond(
        self,
        preshared: &Secret<32>,
        ephemeral: &Secret<32>,
    ) -> Result<(Response, SessionKeys), NotAuthentic> {
        let Self { mut transcript, ephemeral: theirs, peer, .. } = self;
        let ephemeral = PrivateKey::new(ephemeral);
        transcript.mix_ephemeral(&ephemeral.public());
        transcript.mix_secret(&agree(&ephemeral, &theirs)?);
        transcript.mix_secret(&agree(&ephemeral, &peer)?);
        let key = transcript.mix_preshared(preshared);
        let response = Response::new(ephemeral.public(), transcript.seal(&key, &[]));
        let [receive, send] = transcript.split();
        Ok((response, SessionKeys::new(send, receive)))
    }
}

#[cfg(test)]
mod tests;
