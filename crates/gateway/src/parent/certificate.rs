//! The gateway's certificate and key in the privileged parent: it reads them, renews the
//! certificate when that is due, and has a running gateway take it over. The chain is for the
//! worker, the key for the auth process alone.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, anyhow};
use minicbor::bytes::ByteVec;
use rustls::sign::CertifiedKey;
use zeroize::Zeroizing;

use super::worker::Worker;
use vpnd_config::certificate::{self, Current, Renewal};
use vpnd_config::{ServerConfig, Tls};
use vpnd_ipc::child::ChildRole;
use vpnd_ipc::gateway::{FromAuth, GatewayCertificate, PinnedCertificate, ToAuth, ToWorker};
use vpnd_ipc::messages::SecretBytes;
use vpnd_ipc::signing::KeyDescription;
use vpnd_ipc::spawn::{ChildError, RunningChild};
use vpnd_pki::revocation_list::{LoadError, RevocationList};
use vpnd_pki::tls::{self, Chains};
use vpnd_sys::clock::wall_s;

/// Longest interval between checks of the certificate: clocks are set, and disks become writable
/// again.
const LOOK_INTERVAL: Duration = Duration::from_secs(3600);
/// Limit for the auth process to take another key.
const KEY_TIMEOUT: Duration = Duration::from_secs(5);

/// Both, and they belong together.
pub(super) struct TlsMaterial {
    pub(super) certificate: GatewayCertificate,
    pub(super) key: SecretBytes,
}

impl TlsMaterial {
    /// Reads the files that the configuration names, and renews the certificate if it is due.
    pub(super) fn load(config: &ServerConfig) -> anyhow::Result<Self> {
        let tls = &config.tls;
        let key_path = tls.key.display();
        let key =
            std::fs::read(&tls.key).map(Zeroizing::new).with_context(|| format!("can't read {key_path}"))?;
        let signing = tls::signing_key(&key)?;
        let public_key = signing.public_key().ok_or_else(|| anyhow!("{key_path} has no public half"))?;
        let current = certificate::current(tls, &public_key, SystemTime::now())?;
        log(&tls.certificate, &current.renewal, current.leaf.overdue_s());
        let pinned = pinned(config, &public_key);
        let due_s = pinned.iter().fold(current.leaf.due_s(), |due_s, pinned| due_s.min(pinned.leaf.due_s()));
        let chain = vpnd_pki::leaf::chain(&current.chain);
        let certified = CertifiedKey::new(chain, Arc::clone(&signing));
        certified.keys_match().with_context(|| {
            let path = tls.certificate.display();
            format!("{key_path} is not the key of {path}; run 'vpnd renew', or bring the right one")
        })?;
        let description = KeyDescription::of(&certified)
            .ok_or_else(|| anyhow!("{key_path} holds a key that can't sign in TLS 1.3"))?;
        let pinned = pinned.map(|pinned| sent(tls, pinned)).transpose()?;
        // Checks as the worker does, which has nothing to present if this fails.
        let presented = Chains::signed_by(&current.chain, signing)?;
        pinned.as_ref().map(|pinned| presented.with_pinned(&pinned.chain, &pinned.ca)).transpose()?;
        let certificate = GatewayCertificate {
            chain: ByteVec::from(current.chain),
            key: description,
            due_s,
            expires_s: current.leaf.not_after_s,
            pinned,
        };
        Ok(Self { certificate, key: SecretBytes(key) })
    }
}

/// The certificate for clients that pin the own authority. Without it, all others connect all the
/// same.
fn pinned(config: &ServerConfig, public_key: &[u8]) -> Option<Current> {
    let current = match certificate::pinned::current(config, public_key, SystemTime::now()) {
        Ok(current) => current?,
        Err(error) => {
            tracing::warn!(%error, "CLIENTS WHOSE PROFILES PIN THE GATEWAY'S OWN AUTHORITY ARE CUT OFF");
            return None;
        }
    };
    log(&config.tls.pinned_certificate(), &current.renewal, current.leaf.overdue_s());
    // One for another key would be refused after the handshake, and with no better reason.
    (current.leaf.public_key == public_key).then_some(current)
}

fn sent(tls: &Tls, pinned: Current) -> anyhow::Result<PinnedCertificate> {
    let (ca, _) = tls.authority();
    let ca = certificate::read(ca.context("[tls] names no authority")?)?;
    Ok(PinnedCertificate { chain: pinned.chain.into(), ca: ca.into() })
}

fn log(path: &Path, renewal: &Renewal, overdue_s: u64) {
    let certificate = path.display();
    match renewal {
        Renewal::NotDue => {}
        Renewal::Done => tracing::info!(%certificate, "the gateway's certificate is renewed"),
        Renewal::Unsaved(error) => tracing::warn!(
            %error,
            "the gateway's certificate is renewed, but in memory alone: let the service write into the directory of {certificate}"
        ),
        // It is on its way out. Before that its owner may well be about to renew it.
        Renewal::Failed(error) if wall_s() >= overdue_s => {
            tracing::warn!(%error, "THE GATEWAY'S CERTIFICATE EXPIRES SOON, and it can't be renewed here");
        }
        Renewal::Failed(error) => {
            tracing::info!(%error, "the gateway's certificate is due, and can't be renewed here")
        }
    }
}

/// The revocation list of the clients' authority, if one is configured.
///
/// # Errors
/// If the lists can't be used.
pub(super) fn revoked_by_authority(tls: &Tls) -> Result<Option<RevocationList>, LoadError> {
    match (&tls.client_crl, &tls.client_ca) {
        (Some(list), Some(authority)) => RevocationList::load(list, authority, wall_s()).map(Some),
        _ => Ok(None),
    }
}

/// The certificate that the worker presents, as the privileged parent remembers it.
pub(super) struct CurrentCertificate {
    certificate: GatewayCertificate,
    /// When it becomes valid, and the one for clients that pin the own authority: later than now if
    /// the clock was ahead.
    begins_s: u64,
    /// The file's contents when it was read. A renewed certificate may be in memory alone.
    file: Vec<u8>,
}

impl CurrentCertificate {
    pub(super) fn new(certificate: GatewayCertificate, tls: &Tls) -> Self {
        let chains = certificate.pinned.iter().map(|pinned| &pinned.chain).chain([&certificate.chain]);
        let begins_s = chains.filter_map(|chain| {
            let leaf = vpnd_pki::leaf::chain(chain).into_iter().next()?;
            Some(vpnd_pki::leaf::Leaf::parse(&leaf)?.not_before_s)
        });
        let begins_s = begins_s.max().unwrap_or_default();
        Self { certificate, begins_s, file: std::fs::read(&tls.certificate).unwrap_or_default() }
    }

    /// When it should be looked at again.
    pub(super) fn next_look(&self) -> Duration {
        let until_due = Duration::from_secs(self.certificate.due_s.saturating_sub(wall_s()));
        // If it is due and was not renewed, that is not tried again at once.
        if until_due.is_zero() { LOOK_INTERVAL } else { until_due.min(LOOK_INTERVAL) }
    }

    /// Takes certificate and key over from their files. If that fails, what is presented stays.
    /// Returns whether another certificate is presented.
    ///
    /// # Errors
    /// If a process is lost.
    pub(super) async fn take_over(
        &mut self,
        config: &ServerConfig,
        auth: &mut RunningChild<FromAuth>,
        worker: &Worker,
    ) -> Result<bool, ChildError> {
        let TlsMaterial { certificate, key } = match TlsMaterial::load(config) {
            Ok(credentials) => credentials,
            Err(error) => {
                tracing::error!(
                    "the gateway's certificate stays unchanged: {}",
                    vpnd_sys::text::format_chain(&error)
                );
                return Ok(false);
            }
        };
        let before = std::mem::replace(self, Self::new(certificate, &config.tls));
        let certificate = &self.certificate;
        if before.certificate == *certificate {
            return Ok(false);
        }
        // The other way round, handshakes would fail without the key.
        if before.certificate.key != certificate.key {
            auth.send(&ToAuth::Key(key), &[]).await?;
            match tokio::time::timeout(KEY_TIMEOUT, auth.receive()).await {
                Ok(Ok(FromAuth::KeyTaken)) => {}
                Ok(Ok(FromAuth::ConfigurationTaken)) => {
                    return Err(ChildError::Unexpected(ChildRole::Auth));
                }
                Ok(Ok(FromAuth::Failed(why))) => return Err(ChildError::Failed(why)),
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(ChildError::Slow(ChildRole::Auth)),
            }
        }
        worker.send(&ToWorker::Certificate(certificate.clone()), &[]).await?;
        tracing::info!(expires_s = certificate.expires_s, "another certificate is presented");
        Ok(true)
    }

    /// Whether it is in force, and there is none to take over.
    pub(super) fn is_settled(&self, tls: &Tls) -> bool {
        self.is_in(tls) && (self.begins_s..self.certificate.due_s).contains(&wall_s())
    }

    /// Whether it is the one that is in its file.
    pub(super) fn is_in(&self, tls: &Tls) -> bool {
        std::fs::read(&tls.certificate).is_ok_and(|file| file == self.file)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use vpnd_pki::authority::Authority;

    const DAY: Duration = Duration::from_secs(86_400);

    /// A gateway with this in [tls], and a certificate of its authority, made then.
    fn bench(tls: &str, made: SystemTime) -> (tempfile::TempDir, ServerConfig) {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new("vpn.example", SystemTime::now() - 500 * DAY).unwrap();
        let server = authority.server(&["vpn.example".to_owned()], made).unwrap();
        let files = [
            ("ca.pem", authority.certificate_pem()),
            ("server.pem", &server.certificate_pem),
            ("server-key.pem", &server.key_pem),
        ];
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        let text = format!(
            "[tls]\ncertificate = 'server.pem'\nkey = 'server-key.pem'\n{tls}[tunnel]\npool_v4 = '10.86.0.0/16'\n"
        );
        let config = ServerConfig::parse(&text, "server.toml", directory.path()).unwrap();
        (directory, config)
    }

    #[test]
    fn a_certificate_that_is_not_valid_yet_is_looked_at_again() {
        for (made, is_settled) in [(SystemTime::now(), true), (SystemTime::now() + 400 * DAY, false)] {
            let (_directory, config) = bench("", made);
            let TlsMaterial { certificate, .. } = TlsMaterial::load(&config).unwrap();
            let current = CurrentCertificate::new(certificate, &config.tls);
            assert_eq!(current.is_settled(&config.tls), is_settled);
            assert!(current.next_look() <= LOOK_INTERVAL);
        }
    }

    #[test]
    fn what_a_worker_could_not_present_is_not_sent_to_it() {
        let (directory, config) = bench("ca = 'ca.pem'\n", SystemTime::now());
        let at = |name: &str| directory.path().join(name);
        // Another authority's has taken its place.
        fs::copy(at("server.pem"), at("server.local.pem")).unwrap();
        let other = Authority::new("other.example", SystemTime::now()).unwrap();
        let own = fs::read(at("server.pem")).unwrap();
        let own = vpnd_pki::leaf::Leaf::parse(&vpnd_pki::leaf::chain(&own)[0]).unwrap();
        let others = other.server_for(&own.names, &own.public_key, 30, SystemTime::now()).unwrap();
        fs::write(at("server.pem"), others).unwrap();
        assert!(TlsMaterial::load(&config).unwrap().certificate.pinned.is_some());
        fs::write(at("ca.pem"), "").unwrap();
        let error = TlsMaterial::load(&config).err().unwrap();
        assert!(format!("{error:#}").contains("no certificate"), "{error:#}");
    }
}
