//! The certificate that a gateway presents, and how a client names the authorities that it trusts
//! (PROTOCOL §3).
//!
//! A gateway may have two chains: one for all clients, of a public authority, and one for clients
//! that pin the gateway's own. A client that pins names its authorities in its ClientHello
//! (`certificate_authorities`, RFC 8446 section 4.2.4). INVARIANT: such a name chooses among
//! certificates that any client may see, so a wrong one gains an attacker nothing.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::{TlsError, certificates, roots};

/// The longest list of authorities that a client names, bytes: the ClientHello should fit into two
/// datagrams. A client with more names none.
const MAX_NAMES_LEN: usize = 512;

/// The certificate that a gateway presents, and what signs for it. It can be replaced while
/// connections come in: each handshake takes the one that is there when it begins.
#[derive(Debug)]
pub struct Presented(RwLock<Chains>);

/// A gateway's chains.
#[derive(Debug)]
pub struct Chains {
    usual: Arc<CertifiedKey>,
    pinned: Option<PinnedChain>,
}

/// The chain for clients that name one of these authorities.
#[derive(Debug)]
struct PinnedChain {
    authorities: Vec<DistinguishedName>,
    certified: Arc<CertifiedKey>,
}

impl From<CertifiedKey> for Chains {
    fn from(certified: CertifiedKey) -> Self {
        Self { usual: certified.into(), pinned: None }
    }
}

impl Chains {
    /// A chain (PEM, leaf first) with a key that is elsewhere.
    ///
    /// # Errors
    /// If the chain is malformed.
    pub fn signed_by(chain: &[u8], key: Arc<dyn SigningKey>) -> Result<Self, TlsError> {
        Ok(CertifiedKey::new(certificates("the certificate", chain)?, key).into())
    }

    /// Has another chain for the same key presented to clients that name one of the authorities in
    /// `ca` (PEM).
    ///
    /// # Errors
    /// If one of them is malformed.
    pub fn with_pinned(mut self, chain: &[u8], ca: &[u8]) -> Result<Self, TlsError> {
        let chain = certificates("the certificate for clients that pin the authority", chain)?;
        let certified = CertifiedKey::new(chain, Arc::clone(&self.usual.key)).into();
        self.pinned = Some(PinnedChain { authorities: roots(ca)?.subjects(), certified });
        Ok(self)
    }

    fn choose(&self, named: Option<&[DistinguishedName]>) -> &Arc<CertifiedKey> {
        let is_known = |name: &DistinguishedName, pinned: &PinnedChain| {
            pinned.authorities.iter().any(|authority| authority.as_ref() == name.as_ref())
        };
        let is_named =
            |pinned: &&PinnedChain| named.unwrap_or_default().iter().any(|name| is_known(name, pinned));
        self.pinned.as_ref().filter(is_named).map_or(&self.usual, |pinned| &pinned.certified)
    }
}

impl Presented {
    #[must_use]
    pub fn new(chains: impl Into<Chains>) -> Arc<Self> {
        Arc::new(Self(RwLock::new(chains.into())))
    }

    /// Presents `chains` from now on.
    pub fn replace(&self, chains: impl Into<Chains>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = chains.into();
    }
}

impl ResolvesServerCert for Presented {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let chains = self.0.read().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(chains.choose(hello.certificate_authorities())))
    }
}

/// The verifier of a client that pins authorities: it names them to the gateway.
#[derive(Debug)]
pub(super) struct PinningVerifier {
    verifier: Arc<WebPkiServerVerifier>,
    named: Option<Vec<DistinguishedName>>,
}

impl PinningVerifier {
    /// A verifier by the authorities in `ca` (PEM).
    ///
    /// # Errors
    /// If they can't be used.
    pub(super) fn new(ca: &[u8]) -> Result<Self, TlsError> {
        let (roots, provider) = (roots(ca)?, Arc::new(aws_lc_rs::default_provider()));
        let named = roots.subjects();
        let len: usize = named.iter().map(|name| name.as_ref().len()).sum();
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build()?;
        Ok(Self { verifier, named: (len <= MAX_NAMES_LEN).then_some(named) })
    }
}

impl ServerCertVerifier for PinningVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verifier.verify_server_cert(leaf, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        self.named.as_deref()
    }
}
