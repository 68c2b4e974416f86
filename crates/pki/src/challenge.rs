//! Answers to an authority's TLS-ALPN-01 challenges (RFC 8737): certificates that prove a name,
//! each under a key that serves for nothing else.
//!
//! INVARIANT: only a handshake that offers the challenge's protocol and no other gets one of them,
//! so no browser ever does.

use std::collections::HashMap;
use std::sync::Arc;

use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// The protocol of TLS-ALPN-01 (RFC 8737 section 6.2).
pub const ALPN: &[u8] = b"acme-tls/1";

#[derive(Debug, thiserror::Error)]
#[error("a certificate that answers the challenge for {name} can't be made: {reason}")]
pub struct ChallengeError {
    name: String,
    reason: String,
}

/// The answers to the challenges of an order, by the names that they prove.
#[derive(Debug, Default)]
pub struct ChallengeCertificates(HashMap<String, Arc<CertifiedKey>>);

impl ChallengeCertificates {
    /// A certificate with each digest of a key authorization.
    ///
    /// # Errors
    /// If a name is none that a certificate can have.
    pub fn new<'p>(
        proofs: impl IntoIterator<Item = (&'p str, &'p [u8; 32])>,
    ) -> Result<Self, ChallengeError> {
        let made = proofs.into_iter().map(|(name, digest)| {
            let error = |reason: String| ChallengeError { name: name.to_owned(), reason };
            let certified = self_signed(name, digest).map_err(|source| error(source.to_string())).and_then(
                |(chain, key)| {
                    let key = aws_lc_rs::sign::any_supported_type(&key);
                    let key = key.map_err(|source| error(source.to_string()))?;
                    Ok(CertifiedKey::new(vec![chain], key))
                },
            )?;
            Ok((name.to_ascii_lowercase(), Arc::new(certified)))
        });
        Ok(Self(made.collect::<Result<_, _>>()?))
    }

    /// Whether this is an authority's handshake for a challenge, rather than a browser's.
    #[must_use]
    pub fn is_asked_for(hello: &ClientHello<'_>) -> bool {
        hello.alpn().is_some_and(|protocols| protocols.eq([ALPN]))
    }

    /// The answer for the name that the authority asks for.
    #[must_use]
    pub fn find(&self, hello: &ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().filter(|_| Self::is_asked_for(hello))?;
        self.0.get(&name.to_ascii_lowercase()).cloned()
    }
}

fn self_signed(
    name: &str,
    digest: &[u8; 32],
) -> Result<(rustls_pki_types::CertificateDer<'static>, PrivateKeyDer<'static>), rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let certificate = params.self_signed(&key)?;
    Ok((certificate.der().clone(), PrivatePkcs8KeyDer::from(key.serialize_der()).into()))
}

impl ResolvesServerCert for ChallengeCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.find(&hello)
    }
}
