//! `vpnd renew`: a new certificate for the gateway, by hand.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use crate::cli::RenewArgs;
use vpnd_config::certificate::{Files, RenewalError};
use vpnd_config::{ConfigError, ServerConfig};
use vpnd_pki::authority::{SERVER_DAYS, new_key};
use vpnd_pki::leaf::{Leaf, chain};
use vpnd_sys::date::rfc3339;
use vpnd_sys::secret_file::{Existing, PUBLIC_MODE, SECRET_MODE, Staged};

#[derive(Debug, thiserror::Error)]
pub enum RenewError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Renewal(#[from] RenewalError),
}

/// Renews what `args` name, in its place. Returns when the new certificate expires, in words.
pub fn renew(args: &RenewArgs, now: SystemTime) -> Result<String, RenewError> {
    if let (Some(certificate), Some(ca), Some(ca_key)) = (&args.certificate, &args.ca, &args.ca_key) {
        let files = Files { certificate, ca, ca_key, foreign: false };
        let renewed = files.renew(None, args.days.unwrap_or(SERVER_DAYS), now)?;
        publish(certificate, &renewed, None)?;
        return Ok(describe(&renewed));
    }
    let config = ServerConfig::load(&args.config)?;
    let mut files = Files::of(&config.tls)?;
    if let Some(ca_key) = &args.ca_key {
        files.ca_key = ca_key;
    }
    files.foreign = args.new_key && config.acme.is_some();
    let days = args.days.unwrap_or(config.tls.certificate_days);
    let key_path = &config.tls.key;
    let renewed = if args.new_key {
        let (key, pem) = new_key().map_err(RenewalError::from)?;
        let renewed = files.renew(Some(&rcgen::PublicKeyData::subject_public_key_info(&key)), days, now)?;
        publish(&config.tls.certificate, &renewed, Some((key_path, &pem)))?;
        renewed
    } else {
        let read = |source| RenewalError::Read { path: key_path.clone(), source };
        let key = zeroize::Zeroizing::new(fs::read(key_path).map_err(read)?);
        let public_key =
            vpnd_pki::tls::signing_key(&key).ok().and_then(|key| Some(key.public_key()?.to_vec()));
        let renewed = files.renew(public_key.as_deref(), days, now)?;
        publish(&config.tls.certificate, &renewed, None)?;
        renewed
    };
    Ok(describe(&renewed))
}

/// Writes the certificate, and the key before it. Whoever is stopped in between has a key without its certificate, and runs the
/// command again.
fn publish(path: &Path, certificate: &str, key: Option<(&Path, &str)>) -> Result<(), RenewalError> {
    let certificate = Staged::new(path, certificate.as_bytes(), PUBLIC_MODE)?;
    if let Some((path, pem)) = key {
        Staged::new(path, pem.as_bytes(), SECRET_MODE)?.publish(Existing::Replace)?;
    }
    Ok(certificate.publish(Existing::Replace)?)
}

fn describe(pem: &str) -> String {
    let leaf = chain(pem.as_bytes()).first().and_then(|leaf| Leaf::parse(leaf));
    leaf.map_or_else(|| "?".to_owned(), |leaf| rfc3339(leaf.not_after_s))
}
