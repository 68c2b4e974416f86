//! Certificate revocation lists (RFC 5280 section 5), for client authorities that publish their
//! own.
//!
//! Invariants: a file counts as a whole or not at all: each list in it is of one of the
//! authorities, signed by its key, in its time and of a kind that TLS goes by; and each authority
//! has one. What stands on a list that is in force is never let in, whether that list has expired
//! meanwhile or not. This module must not know where the file is, nor what sessions are.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::tls::{self, ClientCa, TlsError};
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::prelude::{CertificateRevocationList, FromDer as _, X509Certificate};
use x509_parser::x509::X509Version;

/// The longest file: it travels in one message between the daemon's processes.
pub const MAX_LEN: usize = 2 << 20;
/// DER's tag of a sequence.
const DER_SEQUENCE: u8 = 0x30;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ListError {
    /// There is none, or another file can't be read.
    #[error("can't read {0}: {1}")]
    Read(String, String),
    #[error("it is longer than {} bytes", MAX_LEN)]
    TooLong,
    #[error("it can't be read as certificate revocation lists (PEM or DER): {0}")]
    Malformed(String),
    #[error("it has a list of '{0}', which is no authority in 'client_ca'")]
    Foreign(String),
    /// Another authority has made it, or it is damaged.
    #[error("its list of '{0}' is not signed with that authority's key")]
    Forged(String),
    #[error("its list of '{0}' is of {1}; is this machine's clock right?")]
    Early(String, String),
    #[error("its list of '{0}' was to be replaced by {1}: fetch the newer one")]
    Expired(String, String),
    #[error("it has no list of '{0}', which is an authority in 'client_ca'")]
    Missing(String),
    #[error(
        "its list of '{0}' is of version 1, which names no extensions: have version 2 made ('openssl ca' does with 'crl_extensions')"
    )]
    Old(String),
    /// It is for a part of the certificates or of the reasons, or has what TLS does not know.
    #[error("TLS can't use its lists: {0}")]
    Unsupported(String),
}

#[derive(Debug, thiserror::Error)]
#[error("the certificate revocation lists in {} can't be used: {source}", path.display())]
pub struct LoadError {
    path: PathBuf,
    source: ListError,
}

/// A certificate as revocation lists name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub struct CertificateNumber {
    /// The name of its authority, DER.
    #[n(0)]
    issuer: ByteVec,
    /// Big-endian, without zeros before it.
    #[n(1)]
    serial: ByteVec,
}

impl CertificateNumber {
    /// Returns the number of a certificate (DER); `None` if it is none.
    #[must_use]
    pub fn of(certificate: &[u8]) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        Some(Self::new(parsed.issuer().as_raw(), parsed.raw_serial()))
    }

    fn new(issuer: &[u8], serial: &[u8]) -> Self {
        let zeros = serial.iter().take_while(|byte| **byte == 0).count();
        Self { issuer: issuer.to_vec().into(), serial: serial[zeros..].to_vec().into() }
    }
}

/// The lists of one file.
#[derive(Clone, Debug, Default)]
pub struct RevocationList {
    file: Vec<u8>,
    lists: Vec<CertificateRevocationListDer<'static>>,
    revoked: HashSet<CertificateNumber>,
    /// When the first of them expires, and when the one that does so was made, seconds since 1970.
    life_s: Option<(i64, i64)>,
}

impl RevocationList {
    /// Takes the lists of a file (PEM, or one in DER) that was checked already. An empty one
    /// revokes nothing.
    ///
    /// # Errors
    /// [`ListError::Malformed`].
    pub fn trusted(file: &[u8]) -> Result<Self, ListError> {
        if file.is_empty() {
            return Ok(Self::default());
        }
        let mut all = Self { lists: ders(file)?, file: file.to_vec(), ..Self::default() };
        let lists = all.lists.clone();
        for list in &lists {
            all.add(&parse(list)?);
        }
        Ok(all)
    }

    /// Reads the lists in the file at `path` for the authorities in `client_ca`.
    ///
    /// # Errors
    /// [`LoadError`]; then no list counts.
    pub fn load(path: &Path, client_ca: &Path, now_s: u64) -> Result<Self, LoadError> {
        let failed = |source| LoadError { path: path.to_owned(), source };
        let authorities = read(client_ca).map_err(failed)?;
        Self::checked(&read(path).map_err(failed)?, &authorities, now_s).map_err(failed)
    }

    /// The file's content, for a process that takes it as [`Self::trusted`].
    #[must_use]
    pub fn file(&self) -> Vec<u8> {
        self.file.clone()
    }

    /// Takes the lists of a file for the authorities in `client_ca` (PEM), at this moment.
    ///
    /// # Errors
    /// [`ListError`]; then no list counts.
    pub fn checked(file: &[u8], client_ca: &[u8], now_s: u64) -> Result<Self, ListError> {
        if file.len() > MAX_LEN {
            return Err(ListError::TooLong);
        }
        let authorities: Vec<CertificateDer<'_>> =
            CertificateDer::pem_slice_iter(client_ca).filter_map(Result::ok).collect();
        let authorities: Vec<X509Certificate<'_>> = authorities
            .iter()
            .filter_map(|der| X509Certificate::from_der(der).ok())
            .map(|(_, parsed)| parsed)
            .collect();
        let lists = ders(file)?;
        let mut named = HashSet::new();
        for list in &lists {
            let list = parse(list)?;
            check(&list, &authorities, now_s)?;
            named.insert(list.issuer().as_raw().to_vec());
        }
        if let Some(without) = authorities.iter().find(|ca| !named.contains(ca.subject().as_raw())) {
            return Err(ListError::Missing(without.subject().to_string()));
        }
        let all = Self::trusted(file)?;
        // A list that TLS refuses later would end a gateway's listener.
        let verifier = tls::client_verifier(&ClientCa { ca: client_ca, revoked: &all });
        verifier.map_err(|error| match error {
            TlsError::Verifier(why) => ListError::Unsupported(why.to_string()),
            error => ListError::Unsupported(error.to_string()),
        })?;
        Ok(all)
    }

    fn add(&mut self, list: &CertificateRevocationList<'_>) {
        let issuer = list.issuer().as_raw();
        let numbers = list.iter_revoked_certificates();
        self.revoked.extend(numbers.map(|entry| CertificateNumber::new(issuer, entry.raw_serial())));
        if let Some(ends) = list.next_update() {
            let life = (ends.timestamp(), list.last_update().timestamp());
            self.life_s = Some(self.life_s.map_or(life, |first| first.min(life)));
        }
    }

    /// Whether it names this certificate.
    #[must_use]
    pub fn names(&self, certificate: &CertificateNumber) -> bool {
        self.revoked.contains(certificate)
    }

    /// Number of certificates in the list.
    #[must_use]
    pub fn len(&self) -> usize {
        self.revoked.len()
    }

    /// Whether it names none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.revoked.is_empty()
    }

    /// When its first list expires and when that one was made, seconds since 1970.
    #[must_use]
    pub fn life_s(&self) -> Option<(i64, i64)> {
        self.life_s
    }

    /// The lists as TLS takes them.
    #[must_use]
    pub fn lists(&self) -> &[CertificateRevocationListDer<'static>] {
        &self.lists
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ListError> {
    let failed = |error: std::io::Error| ListError::Read(path.display().to_string(), error.to_string());
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(MAX_LEN as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn ders(file: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, ListError> {
    if file.first() == Some(&DER_SEQUENCE) {
        return Ok(vec![file.to_vec().into()]);
    }
    let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(file).collect();
    let lists = lists.map_err(|error| ListError::Malformed(error.to_string()))?;
    if lists.is_empty() { Err(ListError::Malformed("there is none in it".to_owned())) } else { Ok(lists) }
}

fn parse(list: &[u8]) -> Result<CertificateRevocationList<'_>, ListError> {
    match CertificateRevocationList::from_der(list) {
        Ok(([], parsed)) => Ok(parsed),
        Ok(_) => Err(ListError::Malformed("bytes after a list".to_owned())),
        Err(error) => Err(ListError::Malformed(error.to_string())),
    }
}

fn check(
    list: &CertificateRevocationList<'_>,
    authorities: &[X509Certificate<'_>],
    now_s: u64,
) -> Result<(), ListError> {
    let issuer = list.issuer().to_string();
    let mut of_issuer =
        authorities.iter().filter(|ca| ca.subject().as_raw() == list.issuer().as_raw()).peekable();
    if of_issuer.peek().is_none() {
        return Err(ListError::Foreign(issuer));
    }
    if !of_issuer.any(|ca| list.verify_signature(ca.public_key()).is_ok()) {
        return Err(ListError::Forged(issuer));
    }
    if list.version() != Some(X509Version::V2) {
        return Err(ListError::Old(issuer));
    }
    let now_s = i64::try_from(now_s).unwrap_or(i64::MAX);
    if list.last_update().timestamp() > now_s {
        return Err(ListError::Early(issuer, list.last_update().to_string()));
    }
    match list.next_update() {
        Some(ends) if ends.timestamp() > now_s => Ok(()),
        Some(ends) => Err(ListError::Expired(issuer, ends.to_string())),
        None => Err(ListError::Malformed("a list does not say when the next one comes".to_owned())),
    }
}

#[cfg(test)]
mod tests;
