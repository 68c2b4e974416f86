//! The certificates of the portal in TLS: its own, which is replaced while it runs, and the answers
//! to an authority's challenges while one is ordered.
//!
//! INVARIANT: a handshake gets one or the other by what it asks for: a browser never an answer, and
//! an authority that looks for one nothing else. Until the first certificate is there, browsers are
//! refused in the handshake.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use vpnd_ipc::gateway::acme::Proofs;
use vpnd_ipc::gateway::portal::PortalCertificate;
use vpnd_pki::challenge::{ChallengeCertificates, ChallengeError};
use vpnd_pki::tls::{Identity, TlsError};

#[derive(Debug)]
pub(crate) struct Certificates {
    own: RwLock<Option<Arc<CertifiedKey>>>,
    answers: RwLock<ChallengeCertificates>,
}

impl Certificates {
    pub(crate) fn new(own: Option<&PortalCertificate>) -> Result<Self, TlsError> {
        Ok(Self { own: RwLock::new(own.map(certified).transpose()?), answers: RwLock::default() })
    }

    /// Presents this one in all handshakes that begin from now on.
    pub(crate) fn replace(&self, own: &PortalCertificate) -> Result<(), TlsError> {
        let own = certified(own)?;
        *self.own.write().unwrap_or_else(PoisonError::into_inner) = Some(own);
        Ok(())
    }

    /// Answers challenges by these proofs, and by none that came before.
    pub(crate) fn answer_by(&self, proofs: &Proofs) -> Result<(), ChallengeError> {
        let proofs = proofs.iter().map(|proof| (&*proof.name, &*proof.digest));
        let answers = ChallengeCertificates::new(proofs)?;
        *self.answers.write().unwrap_or_else(PoisonError::into_inner) = answers;
        Ok(())
    }
}

fn certified(own: &PortalCertificate) -> Result<Arc<CertifiedKey>, TlsError> {
    Ok(Arc::new(Identity::from_pem(&own.chain, &own.key.0)?.certified()?))
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if ChallengeCertificates::is_asked_for(&hello) {
            self.answers.read().unwrap_or_else(PoisonError::into_inner).find(&hello)
        } else {
            self.own.read().unwrap_or_else(PoisonError::into_inner).clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, ServerConnection, SignatureScheme};
    use vpnd_ipc::gateway::acme::Proof;
    use vpnd_ipc::messages::SecretBytes;
    use vpnd_pki::authority::Authority;
    use vpnd_pki::challenge::ALPN;
    use vpnd_proto::control::Text;

    use super::*;

    /// Takes any certificate: what matters is which one it is.
    #[derive(Debug)]
    struct Anyone;

    impl ServerCertVerifier for Anyone {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, rustls::Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            crate::suites().signature_verification_algorithms.supported_schemes()
        }
    }

    fn pair(name: &str) -> PortalCertificate {
        let now = SystemTime::now();
        let issued = Authority::new(name, now).unwrap().server(&[name.to_owned()], now).unwrap();
        let key = SecretBytes(issued.key_pem.as_bytes().to_vec().into());
        PortalCertificate { chain: issued.certificate_pem.into_bytes().into(), key }
    }

    fn first(pair: &PortalCertificate) -> Vec<u8> {
        vpnd_pki::leaf::chain(&pair.chain)[0].to_vec()
    }

    /// The certificate that a client with these protocols gets which asks for `name`.
    fn presented(certificates: &Arc<Certificates>, name: &str, protocols: &[&[u8]]) -> Option<Vec<u8>> {
        let server = crate::tls(Arc::clone(certificates)).unwrap();
        let mut client = ClientConfig::builder_with_provider(Arc::new(crate::suites()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anyone))
            .with_no_client_auth();
        client.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
        let mut server = ServerConnection::new(server).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let mut sent = Vec::new();
            client.write_tls(&mut sent).unwrap();
            server.read_tls(&mut &sent[..]).unwrap();
            server.process_new_packets().ok()?;
            let mut sent = Vec::new();
            server.write_tls(&mut sent).unwrap();
            client.read_tls(&mut &sent[..]).unwrap();
            client.process_new_packets().ok()?;
        }
        Some(client.peer_certificates()?[0].to_vec())
    }

    #[test]
    fn browsers_get_the_portals_own_and_authorities_their_answer() {
        let certificates = Arc::new(Certificates::new(None).unwrap());
        let (name, http) = ("vpn.uni.example", &b"http/1.1"[..]);
        assert_eq!(presented(&certificates, name, &[http]), None, "there is none yet");
        let proof = Proof { name: Text::cut("VPN.uni.example"), digest: [7; 32].into() };
        certificates.answer_by(&Proofs::new(vec![proof]).unwrap()).unwrap();
        let answer = presented(&certificates, name, &[ALPN]).expect("it is answered");
        let has_digest =
            |der: &[u8]| der.windows(34).any(|part| part[..2] == [4, 32] && part[2..] == [7; 32]);
        assert!(has_digest(&answer));
        assert_eq!(presented(&certificates, "other.example", &[ALPN]), None, "there is no such order");
        assert_eq!(presented(&certificates, name, &[http]), None, "an answer is no certificate of pages");

        let (one, two) = (pair(name), pair(name));
        certificates.replace(&one).unwrap();
        assert_eq!(presented(&certificates, name, &[http]), Some(first(&one)));
        assert_eq!(presented(&certificates, name, &[]), Some(first(&one)));
        // RFC 8737 section 3: an authority offers no other protocol.
        assert_eq!(presented(&certificates, name, &[ALPN, http]), Some(first(&one)));
        assert_eq!(presented(&certificates, name, &[ALPN]).as_ref(), Some(&answer));
        certificates.replace(&two).unwrap();
        assert_eq!(presented(&certificates, name, &[http]), Some(first(&two)));
        let mixed = PortalCertificate { key: one.key.clone(), ..two.clone() };
        assert!(certificates.replace(&mixed).is_err(), "the key is another's");
        assert_eq!(presented(&certificates, name, &[http]), Some(first(&two)));
        certificates.answer_by(&Proofs::default()).unwrap();
        assert_eq!(presented(&certificates, name, &[ALPN]), None, "the order is over");
    }
}
