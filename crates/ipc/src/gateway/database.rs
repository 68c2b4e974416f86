//! A gateway's user database: what a process needs to use it, and the requests for connections,
//! which no such process may make by itself.
//!
//! The auth process sends [`Dial`] over a separate channel, and the privileged parent answers
//! each by [`Dialled`], with the connection's descriptor if there is one.

use minicbor::bytes::{ByteArray, ByteVec};
use minicbor::{Decode, Encode};
use zeroize::Zeroizing;

use crate::messages::SecretBytes;
use vpnd_config::database::DatabaseFiles;

/// The longest frame of the channel, bytes: certificates are among what is sent.
pub const MAX_FRAME: usize = 128 << 10;

/// Files that `[store]` names, and this start of the gateway.
#[derive(Clone, Debug, Encode, Decode)]
pub struct DatabaseLaunch {
    #[n(0)]
    password: Option<SecretBytes>,
    #[n(1)]
    ca: Option<ByteVec>,
    #[n(2)]
    certificate: Option<ByteVec>,
    #[n(3)]
    key: Option<SecretBytes>,
    /// Names the start; all its processes have it.
    #[n(4)]
    pub instance: Option<ByteArray<16>>,
}

impl DatabaseLaunch {
    #[must_use]
    pub fn new(files: DatabaseFiles, instance: Option<[u8; 16]>) -> Self {
        let secret = |text: Zeroizing<String>| SecretBytes(text.as_bytes().to_vec().into());
        Self {
            password: files.password.map(secret),
            ca: files.ca.map(ByteVec::from),
            certificate: files.certificate.map(ByteVec::from),
            key: files.key.map(SecretBytes),
            instance: instance.map(ByteArray::from),
        }
    }

    #[must_use]
    pub fn files(&self) -> DatabaseFiles {
        let text = |bytes: &SecretBytes| Zeroizing::new(String::from_utf8_lossy(&bytes.0).into_owned());
        DatabaseFiles {
            password: self.password.as_ref().map(text),
            ca: self.ca.as_ref().map(|bytes| bytes.to_vec()),
            certificate: self.certificate.as_ref().map(|bytes| bytes.to_vec()),
            key: self.key.as_ref().map(|bytes| bytes.0.clone()),
        }
    }
}

/// Auth process → parent: connect to the host of this number in the configuration.
#[derive(Clone, Copy, Debug, Encode, Decode)]
pub struct Dial {
    #[n(0)]
    pub host: u8,
    /// Number that the answer repeats: several requests are under way.
    #[n(1)]
    pub number: u64,
}

/// Parent → auth process.
#[derive(Debug, Encode, Decode)]
pub struct Dialled {
    #[n(0)]
    pub number: u64,
    #[n(1)]
    pub outcome: DialOutcome,
}

#[derive(Debug, Encode, Decode)]
pub enum DialOutcome {
    /// With the connection's descriptor, and the files as they are now.
    #[n(0)]
    Connected(#[n(0)] DatabaseLaunch),
    #[n(1)]
    Failed(#[n(0)] String),
}
