//! A gateway's certificate chain: the fields that its renewal goes by, and whether a client takes
//! it.

use std::time::Duration;

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::extensions::GeneralName;

use crate::tls::{self, Trust};

/// A certificate of a gateway, as far as its renewal goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// DNS names and addresses, in its order.
    pub names: Vec<String>,
    /// Seconds since 1970.
    pub not_before_s: u64,
    /// Seconds since 1970.
    pub not_after_s: u64,
    /// SubjectPublicKeyInfo, DER.
    pub public_key: Vec<u8>,
}

impl Leaf {
    /// Reads the certificate; `None` if it is malformed.
    pub fn parse(der: &[u8]) -> Option<Self> {
        let (_, parsed) = x509_parser::parse_x509_certificate(der).ok()?;
        let seconds = |time: x509_parser::time::ASN1Time| u64::try_from(time.timestamp()).unwrap_or(0);
        let name = |name: &GeneralName<'_>| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => address(bytes).map(|address| address.to_string()),
            _ => None,
        };
        let names = parsed.subject_alternative_name().ok().flatten();
        Some(Self {
            names: names
                .map(|names| names.value.general_names.iter().filter_map(name).collect())
                .unwrap_or_default(),
            not_before_s: seconds(parsed.validity().not_before),
            not_after_s: seconds(parsed.validity().not_after),
            public_key: parsed.public_key().raw.to_vec(),
        })
    }

    /// When it should be replaced: a third of its life is left.
    pub fn due_s(&self) -> u64 {
        self.not_after_s - self.not_after_s.saturating_sub(self.not_before_s) / 3
    }

    /// Whether it is good now and needs no replacement. One that begins later was made while the
    /// clock was ahead.
    pub fn is_settled(&self, now_s: u64) -> bool {
        (self.not_before_s..self.due_s()).contains(&now_s)
    }

    /// When an administrator should look why it was not replaced: a quarter of its life is left.
    pub fn overdue_s(&self) -> u64 {
        self.not_after_s - self.not_after_s.saturating_sub(self.not_before_s) / 4
    }
}

fn address(bytes: &[u8]) -> Option<std::net::IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(std::net::IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(std::net::IpAddr::from)).ok()
}

/// The certificates of a PEM file, the gateway's own first.
pub fn chain(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().unwrap_or_default()
}

/// Whether a client that trusts these authorities alone takes the chain for that of the gateway
/// `name`.
pub fn vouches(ca_pem: &[u8], chain: &[CertificateDer<'static>], name: &str, at_s: u64) -> bool {
    verify(&Trust::Pinned(ca_pem), chain, name, at_s).is_ok()
}

/// Verifies the chain as a client with this trust does that connects to the gateway `name`.
///
/// # Errors
/// The client's reason to refuse it.
pub fn verify(
    trust: &Trust<'_>,
    chain: &[CertificateDer<'static>],
    name: &str,
    at_s: u64,
) -> Result<(), rustls::Error> {
    let other = |error: &dyn std::fmt::Display| rustls::Error::General(error.to_string());
    let verifier = tls::verifier(trust).map_err(|error| other(&error))?;
    let name = ServerName::try_from(name).map_err(|error| other(&error))?;
    let (leaf, rest) = chain.split_first().ok_or(rustls::Error::NoCertificatesPresented)?;
    let at = UnixTime::since_unix_epoch(Duration::from_secs(at_s));
    verifier.verify_server_cert(leaf, rest, &name, &[], at).map(drop)
}
