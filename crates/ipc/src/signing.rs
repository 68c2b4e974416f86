//! Signatures with the gateway's TLS key, which only the auth process has.
//!
//! The worker's TLS library asks for one in each full handshake and waits for it, so this has a
//! separate channel, and at the auth process a thread that does nothing else: a signature never
//! waits behind a password or the store. INVARIANT: what is signed is a server's CertificateVerify
//! of TLS 1.3 (RFC 8446 section 4.4.3) and nothing else. Such a signature covers both ends' fresh
//! randomness, so one that was requested ahead of time is of no use later: a worker that was taken
//! over can impersonate the gateway while it lives, and not afterwards.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use minicbor::bytes::{ByteArray, ByteVec};
use minicbor::{Decode, Encode};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{SignatureAlgorithm, SignatureScheme};
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;

/// The longest request or answer, bytes: a signature of RSA with 16,384 bits has 2,048.
const MAX_FRAME: usize = 4096;
/// Limit for a signature in a handshake. It takes a tenth of a millisecond; this is for a machine
/// that stands still.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Keys that are good at the same time: the current one, and the one before for handshakes that had
/// begun with it.
const MAX_KEYS: usize = 2;

/// Prefix of the bytes that a server signs, so that they can't be taken for anything else (RFC 8446
/// section 4.4.3).
const CONTEXT: &[u8] = b"TLS 1.3, server CertificateVerify\0";
const PADDING: [u8; 64] = [0x20; 64];
/// Lengths of the hash of the handshake so far: SHA-256 and SHA-384 are the hashes of TLS 1.3.
const TRANSCRIPT_HASHES: [usize; 2] = [32, 48];

/// The schemes that TLS 1.3 allows in a CertificateVerify.
const SCHEMES: [SignatureScheme; 7] = [
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ECDSA_NISTP521_SHA512,
    SignatureScheme::ED25519,
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
];

/// A key by the digest of its public half.
type KeyId = ByteArray<32>;

/// The worker's description of the gateway's key.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct KeyDescription {
    #[n(0)]
    id: KeyId,
    /// The schemes it can sign with, as TLS numbers them, best first.
    #[n(1)]
    schemes: Vec<u16>,
    #[n(2)]
    algorithm: u8,
}

impl KeyDescription {
    /// Describes the key of `certified`; `None` if it can't sign in TLS 1.3.
    pub fn of(certified: &CertifiedKey) -> Option<Self> {
        let key = certified.key.as_ref();
        let is_able = |scheme: &SignatureScheme| key.choose_scheme(&[*scheme]).is_some();
        let schemes: Vec<u16> = SCHEMES.iter().filter(|scheme| is_able(scheme)).map(|&s| s.into()).collect();
        let id = id_of(key)?;
        (!schemes.is_empty()).then(|| Self { id, schemes, algorithm: key.algorithm().into() })
    }
}

fn id_of(key: &dyn SigningKey) -> Option<KeyId> {
    key.public_key().map(|public| ByteArray::from(<[u8; 32]>::from(Sha256::digest(public.as_ref()))))
}

#[derive(Debug, Encode, Decode)]
struct Request {
    #[n(0)]
    number: u64,
    #[n(1)]
    key: KeyId,
    #[n(2)]
    scheme: u16,
    #[n(3)]
    message: ByteVec,
}

#[derive(Debug, Encode, Decode)]
struct Answer {
    /// The number of the request.
    #[n(0)]
    number: u64,
    /// `None` if the key is no longer there, or failed.
    #[n(1)]
    signature: Option<ByteVec>,
}

#[derive(Debug, thiserror::Error)]
pub enum SigningError {
    #[error("the channel for signatures failed: {0}")]
    Io(#[from] rustix::io::Errno),
    #[error("the channel for signatures has ended")]
    Closed,
    #[error("the channel for signatures carried a message that makes no sense: {0}")]
    Malformed(&'static str),
    /// The worker requested a signature that no worker needs: an attacker controls it.
    #[error("the worker asked for a signature, but not of a TLS handshake of this gateway")]
    Forbidden,
    /// The auth process does not answer now.
    #[error("no signature came within {ANSWER_TIMEOUT:?}")]
    Timeout,
    /// The auth process no longer has this key, or the key failed.
    #[error("the auth process can't sign with this key")]
    Unavailable,
}

/// Both ends of a new channel for signatures: the worker's and the auth process's.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    // Each message keeps its boundaries, so neither end can leave the other in the middle of one.
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Whether this is what a server of TLS 1.3 signs to prove who it is.
fn is_certificate_verify(message: &[u8]) -> bool {
    let hash = message.strip_prefix(&PADDING).and_then(|rest| rest.strip_prefix(CONTEXT));
    hash.is_some_and(|hash| TRANSCRIPT_HASHES.contains(&hash.len()))
}

/// The keys that the auth process signs with, the current one last.
#[derive(Clone, Default)]
pub struct Keys(Arc<RwLock<Vec<Held>>>);

struct Held {
    id: KeyId,
    key: Arc<dyn SigningKey>,
}

impl Keys {
    /// Signs with `key` from now on, too. The key before it stays, and the one before that goes.
    ///
    /// # Errors
    /// [`SigningError::Unavailable`] for a key whose public half is not known.
    pub fn add(&self, key: Arc<dyn SigningKey>) -> Result<(), SigningError> {
        let id = id_of(key.as_ref()).ok_or(SigningError::Unavailable)?;
        let mut keys = self.0.write().unwrap_or_else(PoisonError::into_inner);
        keys.retain(|held| held.id != id);
        keys.push(Held { id, key });
        let surplus = keys.len().saturating_sub(MAX_KEYS);
        keys.drain(..surplus);
        Ok(())
    }

    fn sign(&self, request: &Request) -> Option<Vec<u8>> {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let held = keys.iter().find(|held| held.id == request.key)?;
        let signer = held.key.choose_scheme(&[request.scheme.into()])?;
        signer.sign(&request.message).ok()
    }
}

/// Signs for the worker at the other end of `socket`, on a separate thread. How that ended comes
/// from the receiver.
///
/// # Errors
/// If there is no thread to be had.
pub fn serve(socket: OwnedFd, keys: Keys) -> io::Result<oneshot::Receiver<SigningError>> {
    let (ended, receiver) = oneshot::channel();
    std::thread::Builder::new().name("signer".to_owned()).spawn(move || {
        let error = loop {
            if let Err(error) = answer_one(&socket, &keys) {
                break error;
            }
        };
        // The receiver may be gone.
        let _ = ended.send(error);
    })?;
    Ok(receiver)
}

fn answer_one(socket: &OwnedFd, keys: &Keys) -> Result<(), SigningError> {
    let request: Request = receive(socket, RecvFlags::empty())?;
    if !is_certificate_verify(&request.message) {
        return Err(SigningError::Forbidden);
    }
    let signature = keys.sign(&request).map(ByteVec::from);
    send(socket, &Answer { number: request.number, signature })
}

/// The worker's end, which several handshakes share.
pub struct SigningClient {
    socket: OwnedFd,
    state: Mutex<ClientState>,
}

#[derive(Default)]
struct ClientState {
    last: u64,
    /// An answer did not come in time. Until it has, no handshake waits: a handshake must not hold
    /// up all others for a second each.
    overdue: bool,
}

impl fmt::Debug for SigningClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningClient").finish_non_exhaustive()
    }
}

impl SigningClient {
    /// Takes the worker's end of the channel.
    pub fn new(socket: OwnedFd) -> Arc<Self> {
        Arc::new(Self { socket, state: Mutex::default() })
    }

    /// Has `message` signed. Blocks for a tenth of a millisecond, and never for more than
    /// [`ANSWER_TIMEOUT`].
    fn sign(&self, key: KeyId, scheme: SignatureScheme, message: &[u8]) -> Result<Vec<u8>, SigningError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.overdue {
            self.wait_for(state.last, Duration::ZERO)?;
            state.overdue = false;
        }
        state.last += 1;
        let request =
            Request { number: state.last, key, scheme: scheme.into(), message: message.to_vec().into() };
        send(&self.socket, &request)?;
        match self.wait_for(state.last, ANSWER_TIMEOUT) {
            Err(SigningError::Timeout) => {
                state.overdue = true;
                Err(SigningError::Timeout)
            }
            Ok(answer) => answer.signature.map(Into::into).ok_or(SigningError::Unavailable),
            Err(error) => Err(error),
        }
    }

    /// The answer to this request; there are no others under way.
    fn wait_for(&self, number: u64, timeout: Duration) -> Result<Answer, SigningError> {
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).unwrap_or_default();
            let mut waiting = [PollFd::new(&self.socket, PollFlags::IN)];
            match rustix::event::poll(&mut waiting, Some(&left)) {
                Ok(0) => return Err(SigningError::Timeout),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let answer: Answer = receive(&self.socket, RecvFlags::DONTWAIT)?;
            return if answer.number == number {
                Ok(answer)
            } else {
                Err(SigningError::Malformed("an answer to another request"))
            };
        }
    }
}

fn send<T: Encode<()>>(socket: &OwnedFd, message: &T) -> Result<(), SigningError> {
    let mut frame = Vec::new();
    minicbor::encode(message, &mut frame).expect("a vector takes all that is written to it");
    if frame.len() > MAX_FRAME {
        return Err(SigningError::Malformed("too long to send"));
    }
    match rustix::io::retry_on_intr(|| rustix::net::send(socket, &frame, SendFlags::NOSIGNAL)) {
        Ok(_) => Ok(()),
        Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => Err(SigningError::Closed),
        Err(error) => Err(error.into()),
    }
}

fn receive<T: for<'b> Decode<'b, ()>>(socket: &OwnedFd, flags: RecvFlags) -> Result<T, SigningError> {
    let mut frame = [0; MAX_FRAME + 1];
    let received = rustix::io::retry_on_intr(|| rustix::net::recv(socket, &mut frame[..], flags));
    let len = match received {
        Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => return Err(SigningError::Closed),
        Ok((len, _)) => len,
        Err(error) => return Err(error.into()),
    };
    if len > MAX_FRAME {
        return Err(SigningError::Malformed("too long"));
    }
    let mut decoder = minicbor::Decoder::new(&frame[..len]);
    let message = decoder.decode().map_err(|_| SigningError::Malformed("not a message of this channel"))?;
    let is_whole = decoder.position() == len;
    if is_whole { Ok(message) } else { Err(SigningError::Malformed("bytes after a message")) }
}

/// The gateway's key as the worker's TLS library sees it.
#[derive(Debug)]
pub struct RemoteKey {
    description: KeyDescription,
    client: Arc<SigningClient>,
}

impl RemoteKey {
    /// The key of `description`, which the auth process behind `client` has.
    pub fn new(description: KeyDescription, client: Arc<SigningClient>) -> Arc<Self> {
        Arc::new(Self { description, client })
    }
}

impl SigningKey for RemoteKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let schemes = self.description.schemes.iter().map(|&scheme| SignatureScheme::from(scheme));
        let scheme = schemes.into_iter().find(|scheme| offered.contains(scheme))?;
        Some(Box::new(RemoteSigner { key: self.description.id, scheme, client: Arc::clone(&self.client) }))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.description.algorithm.into()
    }
}

#[derive(Debug)]
struct RemoteSigner {
    key: KeyId,
    scheme: SignatureScheme,
    client: Arc<SigningClient>,
}

impl Signer for RemoteSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        self.client.sign(self.key, self.scheme, message).map_err(|error| {
            tracing::error!(%error, "a handshake fails, because it can't be signed");
            rustls::Error::General(error.to_string())
        })
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme
    }
}

#[cfg(test)]
mod tests;
