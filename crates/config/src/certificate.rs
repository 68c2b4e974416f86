//! The gateway's certificate: its fields, when it is due to be replaced, and its renewal by the
//! local authority.
//!
//! Clients pin the authority and not this certificate, so it may live for days and change at any
//! time. INVARIANT: a new certificate is for the names of the old one, and it takes the old one's
//! place only after it proved good for a client that trusts the authority: a renewal can fail, but
//! it can't make a working gateway unreachable.

pub mod order;
pub mod pinned;

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use vpnd_pki::leaf::{Leaf, chain, vouches};

use zeroize::Zeroizing;

use crate::Tls;
use vpnd_pki::authority::{Authority, CertificateError};
use vpnd_sys::secret_file::{self, Existing, PUBLIC_MODE, WriteError};

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
pub struct Files<'a> {
    pub certificate: &'a Path,
    pub ca: &'a Path,
    pub ca_key: &'a Path,
    /// Whether the old certificate may be another authority's: that of `[acme]` takes its place
    /// again.
    pub foreign: bool,
}

impl<'a> Files<'a> {
    /// The paths from the configuration.
    pub fn of(tls: &'a Tls) -> Result<Self, RenewalError> {
        match tls.authority() {
            (Some(ca), Some(ca_key)) => {
                Ok(Self { certificate: &tls.certificate, ca, ca_key, foreign: false })
            }
            _ => Err(RenewalError::NoAuthority),
        }
    }

    /// A chain (PEM) for the names of the one that is there, with `public_key` (DER) or the one
    /// that is there.
    pub fn renew(
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
pub struct Current {
    /// PEM.
    pub chain: Vec<u8>,
    pub leaf: Leaf,
    pub renewal: Renewal,
}

#[derive(Debug)]
pub enum Renewal {
    /// It is good for long.
    NotDue,
    /// It is a new one, and in its file.
    Done,
    /// It is a new one, in memory alone.
    Unsaved(WriteError),
    /// It is the old one.
    Failed(RenewalError),
}

/// Reads the certificate, and renews it for the same key if it is due, not valid yet or not the
/// key's. `public_key` is the key's, DER.
pub fn current(tls: &Tls, public_key: &[u8], now: SystemTime) -> Result<Current, RenewalError> {
    current_in(&tls.certificate, Files::of(tls), tls.certificate_days, public_key, now)
}

/// The certificate in `path`, which `files` renew.
fn current_in(
    path: &Path,
    files: Result<Files<'_>, RenewalError>,
    days: u32,
    public_key: &[u8],
    now: SystemTime,
) -> Result<Current, RenewalError> {
    let (old, leaf) = load(path)?;
    let now_s = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    if leaf.is_settled(now_s) && leaf.public_key == public_key {
        return Ok(Current { chain: old, leaf, renewal: Renewal::NotDue });
    }
    let new = match files.and_then(|files| files.renew(Some(public_key), days, now)) {
        Ok(new) => new,
        Err(error) => return Ok(Current { chain: old, leaf, renewal: Renewal::Failed(error) }),
    };
    let written = secret_file::write(path, new.as_bytes(), PUBLIC_MODE, Existing::Replace);
    let renewal = written.map_or_else(Renewal::Unsaved, |()| Renewal::Done);
    let leaf = chain(new.as_bytes()).first().and_then(|leaf| Leaf::parse(leaf)).unwrap_or(leaf);
    Ok(Current { chain: new.into_bytes(), leaf, renewal })
}

/// Whether [`current`] would renew a certificate that has expired, or why not. Looks, and changes
/// nothing.
pub fn renewable(tls: &Tls, now: SystemTime) -> Result<(), RenewalError> {
    Files::of(tls)?.renew(None, tls.certificate_days, now).map(drop)
}

fn load(path: &Path) -> Result<(Vec<u8>, Leaf), RenewalError> {
    let pem = read(path)?;
    let leaf = chain(&pem).first().and_then(|leaf| Leaf::parse(leaf));
    Ok((pem, leaf.ok_or_else(|| RenewalError::NoCertificate { path: path.to_owned() })?))
}

pub fn read(path: &Path) -> Result<Vec<u8>, RenewalError> {
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
