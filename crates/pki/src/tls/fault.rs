//! Words for certificates that are refused: rustls and webpki name some faults as their code does.

use std::io;

/// The error of a handshake, in words where it is about the other end's certificate. `ca` says
/// where the authorities are that it must lead to; without it they are those of the system.
pub fn in_words(error: io::Error, ca: Option<&str>) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let Some(rustls::Error::InvalidCertificate(fault)) = inner else { return error };
    let words = match (fault, ca) {
        (rustls::CertificateError::UnknownIssuer, Some(ca)) => format!("no authority in {ca} has signed it"),
        _ => fault_in_words(&fault.to_string()),
    };
    io::Error::other(format!("its certificate is refused: {words}"))
}

/// Faults as rustls and webpki write them, within a sentence of theirs or alone, and in words.
const WORDS: [(&str, &str); 7] = [
    ("UnknownIssuer", "no authority that this machine trusts has signed it"),
    ("BadSignature", "its signature is not that of the authority that it names"),
    ("InvalidPurpose", "it is not for a server (its extendedKeyUsage lacks serverAuth)"),
    ("BadEncoding", "it can't be read"),
    ("CaUsedAsEndEntity", "it is an authority's, perhaps signed by itself, and not a server's"),
    ("UnhandledCriticalExtension", "it has a critical extension that is not known here"),
    ("Revoked", "its authority has revoked it"),
];

/// A fault of a certificate as rustls writes it, in words; one that is not known here stays as it
/// is.
pub fn fault_in_words(fault: &str) -> String {
    let known = WORDS.iter().find(|(name, _)| fault.contains(name)).map(|(_, words)| *words);
    known.unwrap_or_else(|| fault.trim_start_matches("invalid peer certificate: ")).to_owned()
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::{ServerName, UnixTime};

    use super::*;
    use crate::tls::{self, Trust};

    /// Returns the fault that a client finds in this certificate.
    fn found(certificate: &rcgen::Certificate, ca_pem: &str, place: Option<&str>) -> String {
        let ca = Trust::Pinned(ca_pem.as_bytes());
        let verifier = tls::verifier(&ca).expect("it is good");
        let name = ServerName::try_from("vpn.example.org").expect("a name");
        let error = verifier.verify_server_cert(certificate.der(), &[], &name, &[], UnixTime::now());
        in_words(io::Error::other(error.expect_err("it is not trusted")), place).to_string()
    }

    #[test]
    fn faults_of_certificates_are_words() {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = || rcgen::CertificateParams::new(vec!["vpn.example.org".to_owned()]).expect("a name");
        let mut authority = params();
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority = authority.self_signed(&key).expect("signed");
        let stranger = params().self_signed(&rcgen::KeyPair::generate().expect("a key")).expect("signed");
        let mut other = params();
        other.distinguished_name.push(rcgen::DnType::CommonName, "other");
        let unknown = other.self_signed(&key).expect("signed");
        let cases = [
            (&authority, None, "it is an authority's"),
            (&stranger, None, "its signature is not that"),
            (&unknown, None, "no authority that this machine trusts has signed it"),
            (&unknown, Some("/etc/campus.pem"), "no authority in /etc/campus.pem has signed it"),
        ];
        for (certificate, place, words) in cases {
            let found = found(certificate, &authority.pem(), place);
            assert!(found.contains(words), "{found}");
            assert!(!found.contains("Error") && !found.contains("Ca") && !found.contains('('), "{found}");
        }
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(in_words(refused, None).kind(), io::ErrorKind::ConnectionRefused);
    }
}
