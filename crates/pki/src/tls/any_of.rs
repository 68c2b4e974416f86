//! A verifier of servers that any of several trusts.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::TlsError;

/// The verifiers, of which one is enough for a certificate.
#[derive(Debug)]
pub(super) struct AnyOf {
    first: Arc<dyn ServerCertVerifier>,
    others: Vec<Arc<dyn ServerCertVerifier>>,
}

impl AnyOf {
    /// # Errors
    /// If there is none.
    pub(super) fn new(mut verifiers: Vec<Arc<dyn ServerCertVerifier>>) -> Result<Arc<Self>, TlsError> {
        if verifiers.is_empty() {
            return Err(TlsError::Empty("the list of authorities"));
        }
        let first = verifiers.remove(0);
        Ok(Arc::new(Self { first, others: verifiers }))
    }
}

impl ServerCertVerifier for AnyOf {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verify = |verifier: &Arc<dyn ServerCertVerifier>| {
            verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
        };
        verify(&self.first).or_else(|error| {
            let mut others = self.others.iter().map(verify);
            others.find_map(Result::ok).ok_or(error)
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.first.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.first.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.first.supported_verify_schemes()
    }
}
