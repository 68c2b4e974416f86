//! `vpnd renew`: a new certificate for the gateway, by hand.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::cli::RenewArgs;
use vpnd_config::certificate::pinned::keep;
use vpnd_config::certificate::{Files, RenewalError, read};
use vpnd_config::{ConfigError, ServerConfig, Tls};
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
    #[error(
        "{} is from the ACME authority, and the gateway renews it. To go back to a certificate of its own authority, take [acme] out of \
         the configuration, then run: vpnd renew && vpnd reload", certificate.display()
    )]
    Ordered { certificate: PathBuf },
}

/// Renews what `args` name, in its place. Returns when the new certificate expires, in words.
pub fn renew(args: &RenewArgs, now: SystemTime) -> Result<String, RenewError> {
    if let (Some(certificate), Some(ca), Some(ca_key)) = (&args.certificate, &args.ca, &args.ca_key) {
        let files = Files { certificate, ca, ca_key, foreign: false };
        let renewed = files.renew(None, args.days.unwrap_or(SERVER_DAYS), now)?;
        Staged::new(certificate, renewed.as_bytes(), PUBLIC_MODE)
            .and_then(|staged| staged.publish(Existing::Replace))
            .map_err(RenewalError::from)?;
        return Ok(describe(&renewed));
    }
    let config = ServerConfig::load(&args.config)?;
    let mut files = Files::of(&config.tls)?;
    if let Some(ca_key) = &args.ca_key {
        files.ca_key = ca_key;
    }
    let (pinned, is_own) = (config.tls.pinned_certificate(), is_own(&config));
    if !is_own && config.orders_own() && !args.new_key {
        return Err(RenewError::Ordered { certificate: config.tls.certificate });
    }
    files.foreign = args.new_key && config.orders_own();
    // It has the names by which the profiles of before know the gateway.
    if !is_own && pinned.exists() {
        files.certificate = &pinned;
    }
    let days = args.days.unwrap_or(config.tls.certificate_days);
    let key_path = &config.tls.key;
    let renewed = if args.new_key {
        let (key, pem) = new_key().map_err(RenewalError::from)?;
        let renewed = files.renew(Some(&rcgen::PublicKeyData::subject_public_key_info(&key)), days, now)?;
        publish(&config.tls, &renewed, Some((key_path, &pem)))?;
        renewed
    } else {
        let read = |source| RenewalError::Read { path: key_path.clone(), source };
        let key = zeroize::Zeroizing::new(fs::read(key_path).map_err(read)?);
        let public_key =
            vpnd_pki::tls::signing_key(&key).ok().and_then(|key| Some(key.public_key()?.to_vec()));
        let renewed = files.renew(public_key.as_deref(), days, now)?;
        publish(&config.tls, &renewed, None)?;
        renewed
    };
    Ok(describe(&renewed))
}

fn is_own(config: &ServerConfig) -> bool {
    read(&config.tls.certificate).is_ok_and(|pem| config.tls.is_own(&pem))
}

/// Writes the certificate, and the key before it; one of another authority is kept. A run that is
/// stopped in between leaves a key without its certificate; run the command again.
fn publish(tls: &Tls, certificate: &str, key: Option<(&Path, &str)>) -> Result<(), RenewalError> {
    keep(tls, certificate.as_bytes())?;
    let certificate = Staged::new(&tls.certificate, certificate.as_bytes(), PUBLIC_MODE)?;
    if let Some((path, pem)) = key {
        Staged::new(path, pem.as_bytes(), SECRET_MODE)?.publish(Existing::Replace)?;
    }
    Ok(certificate.publish(Existing::Replace)?)
}

fn describe(pem: &str) -> String {
    let leaf = chain(pem.as_bytes()).first().and_then(|leaf| Leaf::parse(leaf));
    leaf.map_or_else(|| "?".to_owned(), |leaf| rfc3339(leaf.not_after_s))
}
