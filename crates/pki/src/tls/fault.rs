//! Words for certificates that are refused: rustls and webpki name some faults as their code does.

use std::io;

use rustls::CertificateError;

/// The error of a handshake, in words where it is about the other end's certificate.
pub fn in_words(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let Some(rustls::Error::InvalidCertificate(fault)) = inner else { return error };
    io::Error::other(format!("its certificate is refused: {}", words(fault)))
}

fn words(fault: &CertificateError) -> String {
    let known = match fault {
        CertificateError::UnknownIssuer => "no authority that this machine trusts has signed it",
        CertificateError::BadSignature => "its signature is not that of the authority that it names",
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "it is not for a server (its extendedKeyUsage lacks serverAuth)"
        }
        CertificateError::BadEncoding => "it can't be read",
        // webpki writes these as its code does.
        CertificateError::Other(other) if other.to_string() == "CaUsedAsEndEntity" => {
            "it is an authority's, perhaps signed by itself, and not a server's"
        }
        other => return other.to_string(),
    };
    known.to_owned()
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::{ServerName, UnixTime};

    use super::*;
    use crate::tls::{self, Trust};

    /// What a client finds at a server with this certificate.
    fn found(certificate: &rcgen::Certificate, ca_pem: &str) -> String {
        let ca = Trust::Pinned(ca_pem.as_bytes());
        let verifier = tls::verifier(&ca).expect("it is good");
        let name = ServerName::try_from("vpn.example.org").expect("a name");
        let error = verifier.verify_server_cert(certificate.der(), &[], &name, &[], UnixTime::now());
        in_words(io::Error::other(error.expect_err("it is not trusted"))).to_string()
    }

    #[test]
    fn faults_of_certificates_are_words() {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = || rcgen::CertificateParams::new(vec!["vpn.example.org".to_owned()]).expect("a name");
        let mut authority = params();
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority = authority.self_signed(&key).expect("signed");
        let stranger = params().self_signed(&rcgen::KeyPair::generate().expect("a key")).expect("signed");
        let found = [found(&authority, &authority.pem()), found(&stranger, &authority.pem())];
        for (found, words) in found.iter().zip(["it is an authority's", "its signature is not that"]) {
            assert!(found.contains(words), "{found}");
            assert!(!found.contains("Error") && !found.contains("Ca") && !found.contains('('), "{found}");
        }
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(in_words(refused).kind(), io::ErrorKind::ConnectionRefused);
    }
}
