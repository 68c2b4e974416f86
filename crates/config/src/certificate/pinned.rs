//! The certificate for clients that pin the gateway's own authority, once another authority's has
//! taken its place.
//!
//! Profiles from before `[acme]` go on by it: it stays next to the other in `server.local.pem`,
//! for the same key, and is renewed as it was. INVARIANT: whatever takes the place of a
//! certificate, the one before is kept: that of the own authority there, any other in
//! `server.replaced.pem`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Current, Files, RenewalError, current_in, load, read};
use crate::{ServerConfig, Tls};
use vpnd_pki::leaf::{Leaf, chain, vouches};
use vpnd_sys::date::rfc3339;
use vpnd_sys::secret_file::{self, Existing, PUBLIC_MODE, WriteError};

impl Tls {
    /// The file with the certificate of the own authority, while another one has its place.
    #[must_use]
    pub fn pinned_certificate(&self) -> PathBuf {
        self.certificate.with_extension("local.pem")
    }

    /// The file with the last certificate of another authority that was replaced.
    #[must_use]
    pub fn replaced_certificate(&self) -> PathBuf {
        self.certificate.with_extension("replaced.pem")
    }

    /// Whether these certificates (PEM) are of the own authority.
    #[must_use]
    pub fn is_own(&self, pem: &[u8]) -> bool {
        let is_own = || {
            let (chain, ca) = (chain(pem), read(self.authority().0?).ok()?);
            let leaf = Leaf::parse(chain.first()?)?;
            let name = leaf.names.iter().find(|name| !name.contains('*'))?;
            Some(vouches(&ca, &chain, name, leaf.not_after_s))
        };
        is_own() == Some(true)
    }
}

/// Keeps the certificate that `new` (PEM) is about to replace, unless both are of the own
/// authority.
///
/// # Errors
/// If it can't be kept: then it should not be replaced.
pub fn keep(tls: &Tls, new: &[u8]) -> Result<(), WriteError> {
    let Ok(old) = fs::read(&tls.certificate) else { return Ok(()) };
    let place = match (tls.is_own(&old), tls.is_own(new)) {
        (true, true) => return Ok(()),
        (true, false) => tls.pinned_certificate(),
        (false, _) => tls.replaced_certificate(),
    };
    secret_file::write(&place, &old, PUBLIC_MODE, Existing::Replace)
}

/// Whether clients that pin the own authority need another certificate than the one that is
/// presented.
fn is_needed(config: &ServerConfig) -> bool {
    let tls = &config.tls;
    let is_possible = config.orders_own() || tls.pinned_certificate().exists();
    is_possible && tls.authority().0.is_some() && !read(&tls.certificate).is_ok_and(|pem| tls.is_own(&pem))
}

/// The file whose names the next certificate has: without an earlier one those of the presented
/// one.
fn template(tls: &Tls) -> PathBuf {
    let pinned = tls.pinned_certificate();
    if pinned.exists() { pinned } else { tls.certificate.clone() }
}

fn files<'f>(tls: &'f Tls, template: &'f Path) -> Result<Files<'f>, RenewalError> {
    Ok(Files { certificate: template, foreign: template == tls.certificate, ..Files::of(tls)? })
}

/// The certificate for clients that pin the own authority, renewed if it is due; `None` if the
/// presented one does for them.
///
/// # Errors
/// If there is none, and none can be made.
pub fn current(
    config: &ServerConfig,
    public_key: &[u8],
    now: SystemTime,
) -> Result<Option<Current>, RenewalError> {
    if !is_needed(config) {
        return Ok(None);
    }
    let (tls, template) = (&config.tls, template(&config.tls));
    let (pinned, days) = (tls.pinned_certificate(), tls.certificate_days);
    if template != pinned {
        let made = files(tls, &template)?.renew(Some(public_key), days, now)?;
        secret_file::write(&pinned, made.as_bytes(), PUBLIC_MODE, Existing::Replace)?;
    }
    current_in(&pinned, files(tls, &pinned), days, public_key, now).map(Some)
}

/// Why clients that pin the own authority can't connect or soon can't, if so. Looks, and changes
/// nothing.
pub(crate) fn fault(config: &ServerConfig, now_s: u64) -> Option<String> {
    let (tls, now) = (&config.tls, UNIX_EPOCH + Duration::from_secs(now_s));
    let pinned = tls.pinned_certificate();
    let Some(ca) = tls.authority().0.map(Path::display) else {
        let path = pinned.display();
        return pinned.exists().then(|| {
            format!("{path} is kept for profiles that pin its authority, and [tls] names none: they are cut off until 'ca' is there")
        });
    };
    if !is_needed(config) {
        return None;
    }
    let template = template(tls);
    let kept = load(&pinned).ok().map(|(_, leaf)| leaf);
    if kept.as_ref().is_some_and(|leaf| leaf.is_settled(now_s)) {
        return None;
    }
    let reason =
        files(tls, &template).and_then(|files| files.renew(None, tls.certificate_days, now)).err()?;
    let since = match kept.filter(|leaf| now_s < leaf.not_after_s) {
        Some(leaf) => format!("will be cut off on {}", rfc3339(leaf.not_after_s)),
        None => "are cut off".to_owned(),
    };
    Some(format!("profiles that pin {ca} {since}: {reason}"))
}

#[cfg(test)]
mod tests;
