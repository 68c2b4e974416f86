//! A certificate authority of one's own: the gateway's certificate, and certificates of clients.
//!
//! Invariants: keys are ECDSA on P-256, which every TLS library takes; a server's certificate can't be used by a client
//! nor the other way round; the authority can't make further authorities. Keys are erased from memory when dropped.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};
use zeroize::Zeroizing;

use crate::config::DnsName;

const DAY: Duration = Duration::from_secs(86_400);
/// How long an authority is valid.
const AUTHORITY_DAYS: u32 = 3650;
/// How long a gateway's or a client's certificate is valid.
const LEAF_DAYS: u32 = 825;

/// Why a certificate could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A name can't be in a certificate.
    #[error(
        "'{name}' is neither a DNS name nor an IP address; write it without a port, such as vpn.example.org"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// The authority's files can't be used.
    #[error("the authority's certificate or key can't be used: {0}")]
    Authority(rcgen::Error),
    /// The cryptographic library failed.
    #[error("a certificate could not be made: {0}")]
    Library(#[from] rcgen::Error),
}

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub struct Identity {
    /// The certificate.
    pub certificate_pem: String,
    /// The certificate's DER.
    pub certificate_der: Vec<u8>,
    /// The key.
    pub key_pem: Zeroizing<String>,
}

/// An authority that can sign.
pub struct Authority {
    certificate_pem: String,
    key_pem: Zeroizing<String>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes a new authority for the gateway called `name`.
    pub fn new(name: &str, now: SystemTime) -> Result<Self, CertificateError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let key_pem = Zeroizing::new(key.serialize_pem());
        let mut params = params(&format!("vpnd CA of {name}"), now, AUTHORITY_DAYS);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate_pem = params.self_signed(&key)?.pem();
        Ok(Self { certificate_pem, key_pem, issuer: Issuer::new(params, key) })
    }

    /// Takes an authority from its PEM files.
    pub fn from_pem(certificate_pem: &str, key_pem: &str) -> Result<Self, CertificateError> {
        let key = KeyPair::from_pem(key_pem).map_err(CertificateError::Authority)?;
        let issuer = Issuer::from_ca_cert_pem(certificate_pem, key).map_err(CertificateError::Authority)?;
        Ok(Self {
            certificate_pem: certificate_pem.to_owned(),
            key_pem: Zeroizing::new(key_pem.to_owned()),
            issuer,
        })
    }

    /// The authority's own certificate.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The authority's key.
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// Makes a certificate for a gateway that is reached by `names`.
    pub fn server(&self, names: &[String], now: SystemTime) -> Result<Identity, CertificateError> {
        for name in names {
            if name.parse::<IpAddr>().is_err() && name.parse::<DnsName>().is_err() {
                return Err(CertificateError::Name { name: name.clone() });
            }
        }
        let mut params = params(names.first().map_or("vpnd", String::as_str), now, LEAF_DAYS);
        params.subject_alt_names = CertificateParams::new(names)?.subject_alt_names;
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Makes a certificate for the client of `user`.
    pub fn client(&self, user: &str, now: SystemTime) -> Result<Identity, CertificateError> {
        self.sign(params(user, now, LEAF_DAYS), ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Identity, CertificateError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Identity {
            certificate_pem: certificate.pem(),
            certificate_der: certificate.der().to_vec(),
            key_pem: Zeroizing::new(key.serialize_pem()),
        })
    }
}

/// Valid from an hour ago, for clients whose clock is a little late.
fn params(common_name: &str, now: SystemTime, days: u32) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    // The longest common name is 64 characters (RFC 5280 appendix A.1).
    let short: String = common_name.chars().take(64).collect();
    params.distinguished_name.push(DnType::CommonName, short);
    params.not_before = (now - Duration::from_secs(3600)).into();
    params.not_after = (now + DAY * days).into();
    params
}
