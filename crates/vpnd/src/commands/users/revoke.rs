//! `vpnd revoke`: client certificates that are no good any more.
//!
//! INVARIANT: a revoked certificate stays in the store as one of its user's. If it were taken away,
//! a user who had only that one would be let in without any.

use std::io::Write;
use std::path::Path;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use sha2::{Digest as _, Sha256};

use super::{UserError, entry};
use crate::admin_store::{Stores, UserSummary};
use crate::cli::RevokeArgs;
use vpnd_store::CertificateHash;

/// Runs it and prints what was done to `out`; `now_s` is the time in seconds since 1970.
pub fn revoke(
    args: &RevokeArgs,
    stores: &dyn Stores,
    now_s: u64,
    out: &mut dyn Write,
) -> Result<(), UserError> {
    let (_, mut store) = super::open(&args.store, stores)?;
    let users = store.users()?;
    if args.list {
        return list(&users, out);
    }
    let wanted = match (&args.certificate, &args.fingerprint) {
        (Some(path), _) => Some(of_file(path)?),
        (None, fingerprint) => fingerprint.map(|Fingerprint(hash)| hash),
    };
    let user = owner(&users, args.user.as_deref(), wanted)?;
    let revoked: Vec<CertificateHash> = match wanted {
        Some(certificate) => vec![certificate],
        None => user.certificates.clone(),
    };
    if revoked.is_empty() {
        return Err(UserError::NoSuchCertificate { whose: format!("user '{}'", user.name) });
    }
    store.revoke_certificates(&user.name, &revoked, now_s)?;
    for certificate in &revoked {
        let mut entry = entry("certificate-revoked", &user.name, now_s);
        entry.detail = args.reason.behind(Fingerprint(*certificate).to_string());
        store.audit(entry)?;
        writeln!(out, "revoked a certificate of '{}': {}", user.name, Fingerprint(*certificate))?;
    }
    Ok(writeln!(out, "sessions of '{}' end now; 'vpnd user certificate {0}' makes another", user.name)?)
}

/// The user who has this certificate.
fn owner<'u>(
    users: &'u [UserSummary],
    name: Option<&str>,
    certificate: Option<CertificateHash>,
) -> Result<&'u UserSummary, UserError> {
    let is_it = |user: &&UserSummary| {
        name.is_none_or(|name| user.name == name)
            && certificate.is_none_or(|certificate| user.certificates.contains(&certificate))
    };
    users.iter().find(is_it).ok_or_else(|| UserError::NoSuchCertificate {
        whose: name.map_or_else(|| "any user".to_owned(), |name| format!("user '{name}'")),
    })
}

fn of_file(path: &Path) -> Result<CertificateHash, UserError> {
    let text = super::read(path)?;
    match CertificateDer::from_pem_slice(text.as_bytes()) {
        Ok(certificate) => Ok(Sha256::digest(&certificate).into()),
        Err(_) => Err(UserError::NoSuchCertificate { whose: path.display().to_string() }),
    }
}

fn list(users: &[UserSummary], out: &mut dyn Write) -> Result<(), UserError> {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["USER", "REVOKED CERTIFICATE (SHA-256)"]);
    for user in users {
        for certificate in &user.revoked_certificates {
            table.add_row([user.name.clone(), Fingerprint(*certificate).to_string()]);
        }
    }
    Ok(writeln!(out, "{}", table.trim_fmt())?)
}

/// SHA-256 of a certificate, as `openssl x509 -fingerprint -sha256` writes it or without colons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(pub CertificateHash);

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::str::FromStr for Fingerprint {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTS: &str = "a SHA-256 fingerprint has 64 hexadecimal digits";
        let digits: Vec<u32> = text
            .chars()
            .filter(|c| *c != ':')
            .map(|c| c.to_digit(16))
            .collect::<Option<_>>()
            .ok_or(EXPECTS)?;
        let bytes: Vec<u8> = digits
            .chunks(2)
            .map(|pair| pair.iter().fold(0, |byte, digit| byte * 16 + *digit as u8))
            .collect();
        if digits.len() == 64 { Ok(Self(bytes.try_into().map_err(|_| EXPECTS)?)) } else { Err(EXPECTS) }
    }
}
