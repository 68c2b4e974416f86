//! The gateway's certificate: its fields, when it is due to be replaced, and its renewal by the local authority.
//!
//! Clients pin the authority and not this certificate, so it may live for days and change at any time. INVARIANT: a new
//! certificate is for the names of the old one, and it takes the old one's place only after it proved good for a client that
//! trusts the authority: a renewal can fail, but it can't make a working gateway unreachable.

pub(crate) mod order;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::extensions::GeneralName;
use zeroize::Zeroizing;

use crate::authority::{Authority, CertificateError};
use crate::config::Tls;
use crate::secret_file::{self, Existing, PUBLIC_MODE, WriteError};
use crate::tls::{self, Trust};

/// A certificate of a gateway, as far as its renewal goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    /// DNS names and addresses, in its order.
    pub(crate) names: Vec<String>,
    /// Seconds since 1970.
    pub(crate) not_before_s: u64,
    /// Seconds since 1970.
    pub(crate) not_after_s: u64,
    /// SubjectPublicKeyInfo, DER.
    pub(crate) public_key: Vec<u8>,
}

impl Leaf {
    /// Reads the certificate; `None` if it is malformed.
    pub(crate) fn parse(der: &[u8]) -> Option<Self> {
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
    pub(crate) fn due_s(&self) -> u64 {
        self.not_after_s - self.not_after_s.saturating_sub(self.not_before_s) / 3
    }

    /// When an administrator should look why it was not replaced: a quarter of its life is left.
    pub(crate) fn overdue_s(&self) -> u64 {
        self.not_after_s - self.not_after_s.saturating_sub(self.not_before_s) / 4
    }
}

fn address(bytes: &[u8]) -> Option<std::net::IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(std::net::IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(std::net::IpAddr::from)).ok()
}

/// The certificates of a PEM file, the gateway's own first.
pub(crate) fn chain(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().unwrap_or_default()
}

/// Whether a client that trusts these authorities alone takes the chain for that of the gateway `name`.
pub(crate) fn vouches(ca_pem: &[u8], chain: &[CertificateDer<'static>], name: &str, at_s: u64) -> bool {
    verify(&Trust::Pinned(ca_pem), chain, name, at_s).is_ok()
}

/// Verifies the chain as a client with this trust does that connects to the gateway `name`.
///
/// # Errors
/// The client's reason to refuse it.
pub(crate) fn verify(
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

#[derive(Debug, thiserror::Error)]
pub enum RenewalError {
    #[error("can't read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("no authority for the gateway's certificate is configured: write 'ca' and 'ca_key' into [tls]")]
    NoAuthority,
    #[error(
        "the authority's key {} is not on this machine; where it is, run: vpnd renew --certificate {} --ca {} \
         --ca-key KEY, and bring the certificate back", key.display(), certificate.display(), ca.display()
    )]
    NoKey { key: PathBuf, certificate: PathBuf, ca: PathBuf },
    /// There is no certificate in the file, or none with a name.
    #[error("{} has no certificate of a gateway in PEM format", path.display())]
    NoCertificate { path: PathBuf },
    /// The certificate is that of another authority.
    #[error("{} was not issued by {}; renew it as you got it", certificate.display(), ca.display())]
    Foreign {
        /// The gateway's.
        certificate: PathBuf,
        /// The authority's.
        ca: PathBuf,
    },
    /// It was made, and would be refused.
    #[error("a certificate that {} signs is not good for clients: has {} expired, and does its key belong to it?", key.display(), ca.display())]
    Unusable {
        /// The authority's certificate.
        ca: PathBuf,
        key: PathBuf,
    },
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Paths of the files that a renewal reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Files<'a> {
    pub(crate) certificate: &'a Path,
    pub(crate) ca: &'a Path,
    pub(crate) ca_key: &'a Path,
    /// Whether the old certificate may be another authority's: that of `[acme]` takes its place again.
    pub(crate) foreign: bool,
}

impl<'a> Files<'a> {
    /// The paths from the configuration.
    pub(crate) fn of(tls: &'a Tls) -> Result<Self, RenewalError> {
        match tls.authority() {
            (Some(ca), Some(ca_key)) => {
                Ok(Self { certificate: &tls.certificate, ca, ca_key, foreign: false })
            }
            _ => Err(RenewalError::NoAuthority),
        }
    }

    /// A chain (PEM) for the names of the one that is there, with `public_key` (DER) or the one that is there.
    pub(crate) fn renew(
        self,
        public_key: Option<&[u8]>,
        days: u32,
        now: SystemTime,
    ) -> Result<String, RenewalError> {
        let Self { certificate, ca, ca_key, foreign } = self;
        let no_certificate = || RenewalError::NoCertificate { path: certificate.to_owned() };
        let old = chain(&read(certificate)?);
        let leaf = old.first().and_then(|leaf| Leaf::parse(leaf)).ok_or_else(no_certificate)?;
        let name = leaf.names.iter().find(|name| !name.contains('*')).ok_or_else(no_certificate)?;
        let ca_pem = read(ca)?;
        let is_own = vouches(&ca_pem, &old, name, leaf.not_after_s);
        if !is_own && !foreign {
            return Err(RenewalError::Foreign { certificate: certificate.to_owned(), ca: ca.to_owned() });
        }
        if !ca_key.exists() {
            let [key, certificate, ca] = [ca_key, certificate, ca].map(Path::to_owned);
            return Err(RenewalError::NoKey { key, certificate, ca });
        }
        let key_pem = Zeroizing::new(text(read(ca_key)?));
        let authority = Authority::from_pem(&text(ca_pem.clone()), &key_pem)?;
        let public_key = public_key.unwrap_or(&leaf.public_key);
        let mut renewed = authority.server_for(&leaf.names, public_key, days, now)?;
        for rest in old.iter().skip(1).filter(|_| is_own) {
            renewed += &pem_of(rest);
        }
        let now_s = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let is_good = vouches(&ca_pem, &chain(renewed.as_bytes()), name, now_s);
        let unusable = || RenewalError::Unusable { ca: ca.to_owned(), key: ca_key.to_owned() };
        is_good.then_some(renewed).ok_or_else(unusable)
    }
}

/// The certificate that a gateway presents.
#[derive(Debug)]
pub(crate) struct Current {
    /// PEM.
    pub(crate) chain: Vec<u8>,
    pub(crate) leaf: Leaf,
    pub(crate) renewal: Renewal,
}

#[derive(Debug)]
pub(crate) enum Renewal {
    /// It is good for long.
    NotDue,
    /// It is a new one, and in its file.
    Done,
    /// It is a new one, in memory alone.
    Unsaved(WriteError),
    /// It is the old one.
    Failed(RenewalError),
}

/// Reads the certificate, and renews it for the same key if it is due or not the key's. `public_key` is the key's, DER.
pub(crate) fn current(tls: &Tls, public_key: &[u8], now: SystemTime) -> Result<Current, RenewalError> {
    let (old, leaf) = load(&tls.certificate)?;
    let now_s = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    if now_s < leaf.due_s() && leaf.public_key == public_key {
        return Ok(Current { chain: old, leaf, renewal: Renewal::NotDue });
    }
    let renewed = Files::of(tls).and_then(|files| files.renew(Some(public_key), tls.certificate_days, now));
    let new = match renewed {
        Ok(new) => new,
        Err(error) => return Ok(Current { chain: old, leaf, renewal: Renewal::Failed(error) }),
    };
    let written = secret_file::write(&tls.certificate, new.as_bytes(), PUBLIC_MODE, Existing::Replace);
    let renewal = written.map_or_else(Renewal::Unsaved, |()| Renewal::Done);
    let leaf = chain(new.as_bytes()).first().and_then(|leaf| Leaf::parse(leaf)).unwrap_or(leaf);
    Ok(Current { chain: new.into_bytes(), leaf, renewal })
}

/// Whether [`current`] would renew a certificate that has expired, or why not. Looks, and changes nothing.
pub(crate) fn renewable(tls: &Tls, now: SystemTime) -> Result<(), RenewalError> {
    Files::of(tls)?.renew(None, tls.certificate_days, now).map(drop)
}

fn load(path: &Path) -> Result<(Vec<u8>, Leaf), RenewalError> {
    let pem = read(path)?;
    let leaf = chain(&pem).first().and_then(|leaf| Leaf::parse(leaf));
    Ok((pem, leaf.ok_or_else(|| RenewalError::NoCertificate { path: path.to_owned() })?))
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, RenewalError> {
    std::fs::read(path).map_err(|source| RenewalError::Read { path: path.to_owned(), source })
}

fn text(pem: Vec<u8>) -> String {
    String::from_utf8(pem).unwrap_or_default()
}

/// One certificate as PEM (RFC 7468): 64 characters a line.
fn pem_of(der: &[u8]) -> String {
    use base64::Engine as _;
    let encoded = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<_> = encoded.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

#[cfg(test)]
mod tests;
