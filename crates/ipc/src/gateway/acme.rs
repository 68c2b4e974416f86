//! Messages between the parent and the process that orders a certificate (RFC 8555).
//!
//! INVARIANT: no private key but the account's is in them; the parent keeps that of the certificate
//! and signs the request itself.

use std::time::Duration;

use minicbor::bytes::{ByteArray, ByteVec};
use minicbor::{Decode, Encode};
use vpnd_proto::control::{List, Text};

use crate::messages::{Common, SecretBytes};

/// Limit for an order.
pub const ORDER_TIMEOUT: Duration = Duration::from_secs(240);
/// The longest reason, characters.
pub const MAX_REASON: usize = 600;
/// The longest certificate chain (PEM) and the longest account, bytes.
pub const MAX_CHAIN: usize = 64 << 10;
pub const MAX_ACCOUNT: usize = 8 << 10;
/// Names in one certificate at most.
pub const MAX_NAMES: usize = 16;

/// The first message; with one descriptor: the listener for challenges. Without one, the portal
/// answers them.
#[derive(Debug, Encode, Decode)]
pub struct AcmeLaunch {
    #[n(0)]
    pub common: Common,
    /// The directory's address.
    #[n(1)]
    pub directory: String,
    #[n(2)]
    pub port: u16,
    /// PEM; absent if the system's authorities count.
    #[n(3)]
    pub directory_ca: Option<ByteVec>,
    #[n(4)]
    pub names: Vec<String>,
    /// Whether challenges are answered over HTTP rather than in a TLS handshake.
    #[n(5)]
    pub over_http: bool,
    #[n(6)]
    pub contact: Vec<String>,
    /// The account as it was reported; absent if a new one is to be made.
    #[n(7)]
    pub account: Option<SecretBytes>,
    #[n(8)]
    pub external_account: Option<ExternalAccountKey>,
    /// The certificate signing request, DER.
    #[n(9)]
    pub request: ByteVec,
}

/// How the authority knows its customer.
#[derive(Debug, Encode, Decode)]
pub struct ExternalAccountKey {
    #[n(0)]
    pub key_id: String,
    #[n(1)]
    pub key: SecretBytes,
}

/// Acme process → parent, once it is prepared.
#[derive(Debug, Encode, Decode)]
pub enum FromAcme {
    /// A new account, to be kept for later orders.
    #[n(0)]
    Account(#[n(0)] SecretBytes),
    /// The certificate chain, PEM.
    #[n(1)]
    Issued(#[n(0)] ByteVec),
    /// There is no certificate, and why. The number is that of each child's first report.
    #[n(2)]
    Failed(#[n(0)] String),
    /// Has the portal answer challenges. Answered by [`ToAcme::Answering`] once it does.
    #[n(3)]
    Proofs(#[n(0)] Proofs),
}

/// Parent → acme process, once it is prepared.
#[derive(Debug, Encode, Decode)]
pub enum ToAcme {
    /// The portal answers challenges by the proofs.
    #[n(0)]
    Answering,
}

/// The proofs for all names of an order.
pub type Proofs = List<Proof, MAX_NAMES>;

/// The answer to the challenge of a name (RFC 8737 section 3).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Proof {
    #[n(0)]
    pub name: Text<253>,
    /// SHA-256 of the key authorization, which is no secret.
    #[n(1)]
    pub digest: ByteArray<32>,
}
