//! Message types shared by the daemons. Each daemon has its own messages besides:
//! [`crate::gateway`], and a client's in its own crate, with one enum for each direction of each
//! channel and phase, so that nothing can be sent that the other end has no use for. An upgrade
//! leaves the parent as it is, so numbers are never given to something else.

use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use minicbor::{Decode, Encode};
use zeroize::Zeroizing;

use vpnd_sys::account::UnixUser;
use vpnd_sys::clock::{self, Origin};
use vpnd_sys::logging::LogFormat;
use vpnd_sys::logging::{self, LogError};
use vpnd_sys::sandbox::{Protections, SandboxMode};
use vpnd_sys::tun::TunOffloads;

/// The longest frame between a parent and its child, bytes: a configuration of full size and a
/// certificate chain fit.
pub const MAX_FRAME: usize = 4 << 20;

/// Settings that every child is started with.
#[derive(Clone, Debug, Encode, Decode)]
pub struct Common {
    #[n(0)]
    pub log_filter: String,
    /// Whether log lines are JSON objects.
    #[n(1)]
    pub log_json: bool,
    #[n(2)]
    pub sandbox: SandboxMode,
    /// The user that the child becomes.
    #[n(3)]
    pub identity: Option<UnixUser>,
    /// The clock of all processes of this daemon.
    #[n(4)]
    pub clock: Origin,
    /// Whether log lines are sentences for a person.
    #[cbor(n(5), default)]
    pub log_sentences: bool,
}

impl Common {
    pub fn new(
        log_filter: &str,
        log_format: LogFormat,
        sandbox: SandboxMode,
        identity: Option<UnixUser>,
    ) -> Self {
        Self {
            log_filter: log_filter.to_owned(),
            log_json: log_format == LogFormat::Json,
            log_sentences: log_format == LogFormat::Sentences,
            sandbox,
            identity,
            clock: clock::origin(),
        }
    }

    /// Begins to log as the parent does.
    pub fn log(&self) -> Result<(), LogError> {
        let format = match (self.log_json, self.log_sentences) {
            (true, _) => LogFormat::Json,
            (false, true) => LogFormat::Sentences,
            (false, false) => LogFormat::Text,
        };
        logging::init(&self.log_filter, format)
    }
}

/// Bytes that are erased when they are dropped, and don't print.
#[derive(Clone)]
pub struct SecretBytes(pub Zeroizing<Vec<u8>>);

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretBytes(<secret>)")
    }
}

impl<C> Encode<C> for SecretBytes {
    fn encode<W: minicbor::encode::Write>(
        &self,
        e: &mut minicbor::Encoder<W>,
        _: &mut C,
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        e.bytes(&self.0)?.ok()
    }
}

impl<'b, C> Decode<'b, C> for SecretBytes {
    fn decode(d: &mut minicbor::Decoder<'b>, _: &mut C) -> Result<Self, minicbor::decode::Error> {
        Ok(Self(Zeroizing::new(d.bytes()?.to_vec())))
    }
}

#[derive(Debug, Encode, Decode)]
pub enum Prepared {
    /// It is shut in and has found no fault with its first message.
    #[n(0)]
    Prepared(#[n(0)] Protections),
    /// The child failed, and why.
    #[n(2)]
    Failed(#[n(0)] String),
}

/// A worker's second message, once it has its devices.
#[derive(Debug, Encode, Decode)]
pub enum Ready {
    #[n(1)]
    Ready,
    /// The child failed, and why.
    #[n(2)]
    Failed(#[n(0)] String),
}

/// The data path's devices, which exist once everything else was checked. Descriptors: the TUN
/// queues, as many sockets of shards, and QUIC's socket.
#[derive(Clone, Debug, Encode, Decode)]
pub struct Devices {
    #[n(0)]
    pub shards: u32,
    #[n(1)]
    pub tun: TunOffloads,
    /// The reason why the kernel does not steer datagrams, if it does not. Then QUIC's socket is a
    /// second handle of the first shard's.
    #[n(2)]
    pub steering_refused: Option<String>,
}

/// Borrows descriptors for sending.
pub fn borrowed(descriptors: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    descriptors.iter().map(|descriptor| descriptor.as_fd()).collect()
}
