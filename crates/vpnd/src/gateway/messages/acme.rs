//! Messages between the parent and the process that orders a certificate (RFC 8555).
//!
//! INVARIANT: no private key but the account's is in them; the parent keeps that of the certificate and signs the request itself.

use std::time::Duration;

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};

use crate::privsep::messages::{Common, SecretBytes};

/// Limit for an order.
pub(crate) const ORDER_TIMEOUT: Duration = Duration::from_secs(240);
/// The longest reason, characters.
pub(crate) const MAX_REASON: usize = 600;
/// The longest certificate chain (PEM) and the longest account, bytes.
pub(crate) const MAX_CHAIN: usize = 64 << 10;
pub(crate) const MAX_ACCOUNT: usize = 8 << 10;

/// The first message; with one descriptor: the listener for challenges.
#[derive(Debug, Encode, Decode)]
pub(crate) struct AcmeLaunch {
    #[n(0)]
    pub(crate) common: Common,
    /// The directory's address.
    #[n(1)]
    pub(crate) directory: String,
    #[n(2)]
    pub(crate) port: u16,
    /// PEM; absent if the system's authorities count.
    #[n(3)]
    pub(crate) directory_ca: Option<ByteVec>,
    #[n(4)]
    pub(crate) names: Vec<String>,
    /// Whether challenges are answered over HTTP rather than in a TLS handshake.
    #[n(5)]
    pub(crate) over_http: bool,
    #[n(6)]
    pub(crate) contact: Vec<String>,
    /// The account as it was reported; absent if a new one is to be made.
    #[n(7)]
    pub(crate) account: Option<SecretBytes>,
    #[n(8)]
    pub(crate) external_account: Option<ExternalAccountKey>,
    /// The certificate signing request, DER.
    #[n(9)]
    pub(crate) request: ByteVec,
}

/// How the authority knows its customer.
#[derive(Debug, Encode, Decode)]
pub(crate) struct ExternalAccountKey {
    #[n(0)]
    pub(crate) key_id: String,
    #[n(1)]
    pub(crate) key: SecretBytes,
}

/// Acme process → parent, once it is prepared.
#[derive(Debug, Encode, Decode)]
pub(crate) enum FromAcme {
    /// A new account, to be kept for later orders.
    #[n(0)]
    Account(#[n(0)] SecretBytes),
    /// The certificate chain, PEM.
    #[n(1)]
    Issued(#[n(0)] ByteVec),
    /// There is no certificate, and why. The number is that of each child's first report.
    #[n(2)]
    Failed(#[n(0)] String),
}
