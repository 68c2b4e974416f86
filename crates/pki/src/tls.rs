//! TLS 1.3 for the control channel (PROTOCOL §3): what both ends accept, and how epochs get their
//! secret from it.
//!
//! There is no key exchange of our own: rustls does the handshake, X25519MLKEM768 preferred, and
//! data keys come from its exporter. Early data is off at both ends, since it could be replayed. A
//! client resumes for an hour at most before the gateway has to prove itself again
//! ([`resumption`]).

mod any_of;
mod fault;
mod presented;
mod resumption;

use std::sync::Arc;

use crate::revocation_list::RevocationList;
use quinn::crypto::rustls::QuicServerConfig;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientCertVerifierBuilder, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use vpnd_control_channel::tls::{client_builder, finish};

use any_of::AnyOf;
pub use fault::{fault_in_words, in_words};
use presented::PinningVerifier;
pub use presented::{Chains, Presented};
pub use resumption::Client;
pub use vpnd_control_channel::tls::{ALPN, device_binding, epoch_secret};

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{what} holds no usable PEM: {source}")]
    Pem { what: &'static str, source: rustls_pki_types::pem::Error },
    #[error("{0} holds no certificate")]
    Empty(&'static str),
    #[error(
        "the private key is encrypted, and a daemon can't ask for its passphrase: \
         'openssl pkey -in OLD -out NEW' takes it off; then: chmod 600 NEW"
    )]
    Encrypted,
    /// A certificate or key that rustls refuses.
    #[error("{what} can't be used: {source}")]
    Refused { what: &'static str, source: rustls::Error },
    /// A CA that can't verify clients or servers.
    #[error("the CA certificate can't be used: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    /// The system's trust anchors can't be read.
    #[error("the system's trust anchors can't be used: {0}; pin the gateway's CA in the profile instead")]
    Platform(rustls::Error),
    /// The provider lacks what QUIC needs; only another build of it could.
    #[error("TLS has no cipher suite for QUIC: {0}")]
    NoInitialSuite(#[from] quinn::crypto::rustls::NoInitialCipherSuite),
}

/// A certificate chain and its key.
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Reads the chain (leaf first) and the key from PEM.
    ///
    /// # Errors
    /// If either is missing or malformed.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let chain = certificates("the certificate", chain)?;
        Ok(Self { chain, key: private_key(key)? })
    }

    /// Both as the TLS library uses them.
    ///
    /// # Errors
    /// If the key can't be used, or is not the certificate's.
    pub fn certified(self) -> Result<CertifiedKey, TlsError> {
        CertifiedKey::from_der(self.chain, self.key, &aws_lc_rs::default_provider())
            .map_err(|source| TlsError::Refused { what: "the gateway's certificate or key", source })
    }
}

/// The key of a gateway (PEM), ready to sign.
///
/// # Errors
/// If it is malformed or of a kind that TLS does not know.
pub fn signing_key(pem: &[u8]) -> Result<Arc<dyn SigningKey>, TlsError> {
    let key = private_key(pem)?;
    let refused = |source| TlsError::Refused { what: "the private key", source };
    aws_lc_rs::sign::any_supported_type(&key).map_err(refused)
}

/// Reads a private key from PEM.
///
/// # Errors
/// If it is missing, malformed or encrypted.
pub fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    let has = |mark: &[u8]| pem.windows(mark.len()).any(|part| part == mark);
    // The second is OpenSSL's old form.
    if has(b"BEGIN ENCRYPTED PRIVATE KEY") || has(b"Proc-Type: 4,ENCRYPTED") {
        return Err(TlsError::Encrypted);
    }
    PrivateKeyDer::from_pem_slice(pem).map_err(|source| TlsError::Pem { what: "the private key", source })
}

/// The client certificates that a gateway requires.
pub enum ClientCertificates<'a> {
    Ignored,
    /// One of this CA, if the client has one.
    Optional(ClientCa<'a>),
    /// One of this CA, or the handshake fails.
    Required(ClientCa<'a>),
}

/// The authority that signs client certificates.
#[derive(Clone, Copy, Debug)]
pub struct ClientCa<'a> {
    /// PEM.
    pub ca: &'a [u8],
    /// Certificates that it has revoked. If there is any list, a certificate that none covers is
    /// refused.
    pub revoked: &'a RevocationList,
}

/// A client's trust anchors for its gateway.
pub enum Trust<'a> {
    /// Certificates of this CA only (PEM).
    Pinned(&'a [u8]),
    /// The operating system's trust anchors.
    System(SystemTrust),
}

/// The authorities that the operating system trusts, as they were when they were read.
#[derive(Clone, Debug)]
pub struct SystemTrust(Arc<rustls_platform_verifier::Verifier>);

impl SystemTrust {
    /// Reads them, for which files must be within reach.
    ///
    /// # Errors
    /// [`TlsError::Platform`].
    pub fn read() -> Result<Self, TlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = rustls_platform_verifier::Verifier::new(provider).map_err(TlsError::Platform)?;
        Ok(Self(Arc::new(verifier)))
    }
}

/// The gateway's side of the handshake.
///
/// # Errors
/// [`TlsError`] names the input that can't be used.
pub fn server(
    certificate: Arc<Presented>,
    clients: &ClientCertificates<'_>,
) -> Result<QuicServerConfig, TlsError> {
    Ok(server_config(certificate, clients)?.try_into()?)
}

fn server_config(
    certificate: Arc<Presented>,
    clients: &ClientCertificates<'_>,
) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|source| TlsError::Refused { what: "TLS 1.3", source })?;
    let builder = match clients {
        ClientCertificates::Ignored => builder.with_no_client_auth(),
        ClientCertificates::Optional(ca) => {
            builder.with_client_cert_verifier(of_clients(ca)?.allow_unauthenticated().build()?)
        }
        ClientCertificates::Required(ca) => builder.with_client_cert_verifier(client_verifier(ca)?),
    };
    let mut config = builder.with_cert_resolver(certificate);
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.max_early_data_size = 0;
    // Tickets that the gateway needs no memory for: thousands of clients resume without a table of
    // them.
    config.ticketer = resumption::ticketer()?;
    Ok(config)
}

/// How a gateway verifies clients that must have a certificate of this authority.
///
/// # Errors
/// If the authority, or a list of what it has revoked, can't be used.
pub(crate) fn client_verifier(authority: &ClientCa<'_>) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    Ok(of_clients(authority)?.build()?)
}

fn of_clients(authority: &ClientCa<'_>) -> Result<ClientCertVerifierBuilder, TlsError> {
    let (roots, provider) = (roots(authority.ca)?, Arc::new(aws_lc_rs::default_provider()));
    let builder = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
    Ok(builder.with_crls(authority.revoked.lists().iter().cloned()))
}

/// The client's side of the handshake. Keep it for as long as the client runs: it remembers the
/// tickets.
///
/// # Errors
/// [`TlsError`] names the input that can't be used.
pub fn client(trust: &Trust<'_>, identity: Option<Identity>) -> Result<Client, TlsError> {
    Ok(Client::new(client_config(trust, identity)?, vpnd_sys::clock::now))
}

fn client_config(trust: &Trust<'_>, identity: Option<Identity>) -> Result<ClientConfig, TlsError> {
    let builder = client_builder().map_err(|source| TlsError::Refused { what: "TLS 1.3", source })?;
    // Its authorities are named to the gateway, which may have a certificate of theirs besides
    // another one.
    let verifier = match trust {
        Trust::Pinned(ca) => Arc::new(PinningVerifier::new(ca)?) as _,
        Trust::System(_) => verifier(trust)?,
    };
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let config = match identity {
        Some(Identity { chain, key }) => builder
            .with_client_auth_cert(chain, key)
            .map_err(|source| TlsError::Refused { what: "the client's certificate or key", source })?,
        None => builder.with_no_client_auth(),
    };
    Ok(finish(config))
}

/// The client's side of TLS with a directory or another server, 1.2 or 1.3; `identity` is there for
/// one that requires a certificate.
///
/// # Errors
/// [`TlsError`] names the input that can't be used.
pub fn to_server(trust: &Trust<'_>, identity: Option<Identity>) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|source| TlsError::Refused { what: "TLS", source })?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier(trust)?);
    Ok(match identity {
        Some(Identity { chain, key }) => builder
            .with_client_auth_cert(chain, key)
            .map_err(|source| TlsError::Refused { what: "the gateway's certificate or key", source })?,
        None => builder.with_no_client_auth(),
    })
}

/// The client's side of TLS 1.3 with the web server of a gateway, for which any of these vouches.
///
/// # Errors
/// [`TlsError`] names the input that can't be used.
pub fn to_pages(trusts: &[Trust<'_>]) -> Result<ClientConfig, TlsError> {
    let builder = client_builder().map_err(|source| TlsError::Refused { what: "TLS 1.3", source })?;
    let verifiers = trusts.iter().map(verifier).collect::<Result<Vec<_>, _>>()?;
    let builder = builder.dangerous().with_custom_certificate_verifier(AnyOf::new(verifiers)?);
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// How a client with this trust verifies a server.
///
/// # Errors
/// If the authorities can't be used.
pub fn verifier(trust: &Trust<'_>) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    match trust {
        Trust::Pinned(ca) => {
            let provider = Arc::new(aws_lc_rs::default_provider());
            Ok(WebPkiServerVerifier::builder_with_provider(roots(ca)?.into(), provider).build()?)
        }
        Trust::System(SystemTrust(verifier)) => Ok(Arc::clone(verifier) as _),
    }
}

fn roots(ca: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("the CA", ca)? {
        roots.add(certificate).map_err(|source| TlsError::Refused { what: "the CA certificate", source })?;
    }
    Ok(roots)
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|source| TlsError::Pem { what, source })?;
    if chain.is_empty() { Err(TlsError::Empty(what)) } else { Ok(chain) }
}

#[cfg(test)]
mod tests;
