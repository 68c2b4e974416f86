//! A certificate authority of one's own: the gateway's certificate, and certificates of clients.
//!
//! Invariants: keys are ECDSA on P-256, which every TLS library takes; a server's certificate can't
//! be used by a client nor the other way round; the authority can't make further authorities. Keys
//! are erased from memory when dropped.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SubjectPublicKeyInfo,
};
use zeroize::Zeroizing;

use crate::dns_name::DnsName;

const DAY: Duration = Duration::from_secs(86_400);
const AUTHORITY_DAYS: u32 = 3650;
/// Default validity of a gateway's certificate. A gateway renews it by itself where its
/// authority's key is on the same machine.
pub const SERVER_DAYS: u32 = 30;
/// Validity of a client's certificate. A client can't get another one by itself, so it lives long,
/// and `vpnd revoke` ends it sooner.
const CLIENT_DAYS: u32 = 825;

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A name can't be in a certificate.
    #[error(
        "'{name}' is neither a DNS name nor an IP address; write it without a port, such as vpn.example.org"
    )]
    Name { name: String },
    #[error("the authority's certificate or key can't be used: {0}")]
    Authority(rcgen::Error),
    #[error("a certificate could not be made: {0}")]
    Library(#[from] rcgen::Error),
}

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub struct IssuedCertificate {
    pub certificate_pem: String,
    pub certificate_der: Vec<u8>,
    pub key_pem: Zeroizing<String>,
}

/// An authority that can sign.
pub struct Authority {
    certificate_pem: String,
    key_pem: Zeroizing<String>,
    issuer: Issuer<'static, KeyPair>,
    not_after: SystemTime,
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
        let not_after = params.not_after.into();
        Ok(Self { certificate_pem, key_pem, issuer: Issuer::new(params, key), not_after })
    }

    /// Takes an authority from its PEM files.
    pub fn from_pem(certificate_pem: &str, key_pem: &str) -> Result<Self, CertificateError> {
        let key = KeyPair::from_pem(key_pem).map_err(CertificateError::Authority)?;
        let issuer = Issuer::from_ca_cert_pem(certificate_pem, key).map_err(CertificateError::Authority)?;
        Ok(Self {
            certificate_pem: certificate_pem.to_owned(),
            key_pem: Zeroizing::new(key_pem.to_owned()),
            issuer,
            not_after: expiry(certificate_pem),
        })
    }

    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// Makes a certificate for a gateway that is reached by `names`.
    pub fn server(&self, names: &[String], now: SystemTime) -> Result<IssuedCertificate, CertificateError> {
        let (key, key_pem) = new_key()?;
        let params = self.server_params(names, SERVER_DAYS, now)?;
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth, &key).map(|certificate| IssuedCertificate {
            certificate_pem: certificate.pem(),
            certificate_der: certificate.der().to_vec(),
            key_pem,
        })
    }

    /// Issues a gateway's certificate for an existing key, by its public half
    /// (SubjectPublicKeyInfo, DER), valid for `days`. PEM.
    pub fn server_for(
        &self,
        names: &[String],
        public_key: &[u8],
        days: u32,
        now: SystemTime,
    ) -> Result<String, CertificateError> {
        let params = self.server_params(names, days, now)?;
        let key = SubjectPublicKeyInfo::from_der(public_key)?;
        Ok(self.sign(params, ExtendedKeyUsagePurpose::ServerAuth, &key)?.pem())
    }

    fn server_params(
        &self,
        names: &[String],
        days: u32,
        now: SystemTime,
    ) -> Result<CertificateParams, CertificateError> {
        for name in names {
            if name.parse::<IpAddr>().is_err() && name.parse::<DnsName>().is_err() {
                return Err(CertificateError::Name { name: name.clone() });
            }
        }
        let mut params = params(names.first().map_or("vpnd", String::as_str), now, days);
        params.subject_alt_names = CertificateParams::new(names)?.subject_alt_names;
        Ok(params)
    }

    /// Makes a certificate for the client of `user`.
    pub fn client(&self, user: &str, now: SystemTime) -> Result<IssuedCertificate, CertificateError> {
        let (key, key_pem) = new_key()?;
        let certificate =
            self.sign(params(user, now, CLIENT_DAYS), ExtendedKeyUsagePurpose::ClientAuth, &key)?;
        Ok(IssuedCertificate {
            certificate_pem: certificate.pem(),
            certificate_der: certificate.der().to_vec(),
            key_pem,
        })
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
        key: &impl PublicKeyData,
    ) -> Result<Certificate, CertificateError> {
        // Nothing outlives its authority.
        params.not_after = params.not_after.min(self.not_after.into());
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        Ok(params.signed_by(key, &self.issuer)?)
    }
}

/// A new key, and its PEM.
pub fn new_key() -> Result<(KeyPair, Zeroizing<String>), CertificateError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let pem = Zeroizing::new(key.serialize_pem());
    Ok((key, pem))
}

/// When an authority's certificate expires.
fn expiry(pem: &str) -> SystemTime {
    let leaf = crate::leaf::chain(pem.as_bytes());
    let leaf = leaf.first().and_then(|der| crate::leaf::Leaf::parse(der));
    SystemTime::UNIX_EPOCH + Duration::from_secs(leaf.map_or(0, |leaf| leaf.not_after_s))
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
