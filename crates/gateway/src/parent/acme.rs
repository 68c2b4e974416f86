//! Certificates from an authority that speaks ACME, as the parent orders them: when one is wanted,
//! a process is started for it.
//!
//! Invariants: the certificate's key stays here and in the auth process; a chain takes the old
//! one's place only if it is for that key and for all configured names, and is good now; whatever
//! becomes of an order, the gateway goes on with what it has. After a failure the next order waits,
//! longer each time: authorities lock out who asks too often.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::{Gateway, start_child};
use vpnd_config::certificate;
use vpnd_config::certificate::order::{Outcome, lacks, wanted};
use vpnd_config::secret_place;
use vpnd_config::{Acme, AcmeChallenge, ServerConfig};
use vpnd_ipc::child::ChildRole;
use vpnd_ipc::gateway::acme::{
    AcmeLaunch, ExternalAccountKey, FromAcme, MAX_ACCOUNT, MAX_CHAIN, MAX_REASON, ORDER_TIMEOUT,
};
use vpnd_ipc::messages::{Common, SecretBytes};
use vpnd_ipc::spawn::{self, ChildError, RunningChild};
use vpnd_pki::leaf::Leaf;
use vpnd_sys::allowance::Allowance;
use vpnd_sys::clock::{now, wall_s};
use vpnd_sys::own_file;
use vpnd_sys::secret_file::{self, Existing, PUBLIC_MODE, SECRET_MODE};

/// Longest interval between looks at the certificate: clocks are set.
const LOOK_INTERVAL: Duration = Duration::from_secs(3600);
/// Time before the next order after one that failed, and the longest after several.
const DELAY: Duration = Duration::from_secs(3600);
const MAX_DELAY: Duration = Duration::from_secs(12 * 3600);
/// Limit for the process to be prepared: nothing else is done meanwhile.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Time beyond the order's own limit.
const GRACE: Duration = Duration::from_secs(15);

/// The orders of a gateway, one at a time.
pub(super) struct Orders {
    running: Option<RunningOrder>,
    /// When to look whether a certificate is wanted; never without `[acme]`.
    next: Option<Instant>,
    delay: Duration,
    /// Reloads that order again at once after a failure: the worker can ask for reloads, and
    /// authorities lock out who fails often.
    retries: Allowance,
    /// A chain that could not be written. Another order would be one of few that an authority
    /// allows.
    unsaved: Option<Vec<u8>>,
}

struct RunningOrder {
    child: RunningChild<FromAcme>,
    deadline: Instant,
    /// The configuration when the order began.
    acme: Acme,
    /// A process that was taken over would report accounts without an end.
    has_account: bool,
}

/// What has happened.
pub(super) enum Event {
    Due,
    Received(Result<FromAcme, String>),
}

impl Orders {
    pub(super) fn new(config: &ServerConfig) -> Self {
        let next = config.acme.as_ref().map(|_| Instant::now());
        let retries = Allowance::new(4, Duration::from_secs(15 * 60));
        Self { running: None, next, delay: DELAY, retries, unsaved: None }
    }

    /// Looks at once whether one is wanted, after a reload. An order for something else is given
    /// up.
    pub(super) fn look_now(&mut self, config: &ServerConfig) {
        let gave_up = self.running.take_if(|order| config.acme.as_ref() != Some(&order.acme)).is_some();
        let has_failed = !gave_up && self.delay > DELAY && config.acme.is_some();
        if has_failed && !self.retries.take(now()) {
            tracing::warn!("too many reloads after failed orders: the next order waits as after a failure");
            return;
        }
        self.next = config.acme.as_ref().map(|_| Instant::now());
        self.delay = DELAY;
    }

    /// The next event. Safe to cancel.
    pub(super) async fn event(&mut self) -> Event {
        if let Some(RunningOrder { child, deadline, .. }) = &mut self.running {
            let received = tokio::time::timeout_at(*deadline, child.receive()).await;
            return Event::Received(match received {
                Ok(received) => received.map_err(|error| error.to_string()),
                Err(_) => Err("the acme process does not end".to_owned()),
            });
        }
        match self.next {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
        Event::Due
    }

    fn look_later(&mut self) {
        self.next = Some(Instant::now() + LOOK_INTERVAL);
    }

    /// Whether the order under way may report this account: one, of a size that can be read again.
    fn takes_account(&mut self, account: &[u8]) -> bool {
        let Some(order) = &mut self.running else { return false };
        !std::mem::replace(&mut order.has_account, true) && account.len() <= MAX_ACCOUNT
    }

    /// `why` may be the words of a process that was taken over.
    fn failed(&mut self, config: &ServerConfig, why: String) {
        let why: String = vpnd_sys::text::harmless(&why).chars().take(MAX_REASON).collect();
        tracing::error!(
            error = %why, next_s = self.delay.as_secs(),
            "no certificate from the ACME authority; the gateway keeps the one it has"
        );
        self.next = Some(Instant::now() + self.delay);
        note(config, Some(why), Some(self.delay));
        self.delay = (self.delay * 2).min(MAX_DELAY);
    }

    pub(super) async fn dismiss(self, timeout: Duration) {
        if let Some(order) = self.running {
            order.child.dismiss(timeout).await;
        }
    }
}

impl Gateway {
    /// Handles an event of the orders.
    ///
    /// # Errors
    /// If the auth process or the worker is lost.
    pub(super) async fn handle_order(&mut self, event: Event) -> Result<(), ChildError> {
        let Some(acme) = self.config.acme.clone() else {
            self.orders.next = None;
            return Ok(());
        };
        match event {
            Event::Due => {
                if let Some(chain) = self.orders.unsaved.take() {
                    return self.take_chain(&acme, chain).await;
                }
                match wanted(&self.config, &acme) {
                    Ok(None) => self.orders.look_later(),
                    Ok(Some(why)) => {
                        tracing::info!(directory = acme.directory.as_str(), %why, "ordering a certificate");
                        if let Err(error) = self.order(&acme).await {
                            self.orders.failed(&self.config, vpnd_sys::text::format_chain(&error));
                        }
                    }
                    Err(error) => self.orders.failed(&self.config, vpnd_sys::text::format_chain(&error)),
                }
            }
            Event::Received(Ok(FromAcme::Account(account))) => {
                if !self.orders.takes_account(&account.0) {
                    self.orders.running = None;
                    let why = "the acme process has sent something else than was expected".to_owned();
                    self.orders.failed(&self.config, why);
                    return Ok(());
                }
                let path = self.config.acme_account();
                if let Err(error) = secret_file::write(&path, &account.0, SECRET_MODE, Existing::Replace) {
                    tracing::warn!(%error, "the account at the ACME authority is not kept: the next order makes another");
                }
            }
            Event::Received(Ok(FromAcme::Issued(chain))) => {
                self.orders.running = None;
                return self.take_chain(&acme, chain.into()).await;
            }
            Event::Received(Ok(FromAcme::Failed(why)) | Err(why)) => {
                self.orders.running = None;
                self.orders.failed(&self.config, why);
            }
        }
        Ok(())
    }

    async fn order(&mut self, acme: &Acme) -> anyhow::Result<()> {
        let launch = launch(&self.config, acme, &self.common)?;
        let listener = listen(acme.listen).with_context(|| {
            format!("{} can't be opened for the challenge; choose another `listen` in [acme]", acme.listen)
        })?;
        let child = start_child(Path::new(spawn::THIS_PROGRAM), ChildRole::Acme, &launch, vec![listener]);
        let Ok(child) = tokio::time::timeout(START_TIMEOUT, child).await else {
            bail!("the acme process was not ready within {} s", START_TIMEOUT.as_secs());
        };
        let deadline = Instant::now() + ORDER_TIMEOUT + GRACE;
        self.orders.running = Some(RunningOrder {
            child: child?.0.at_work(),
            deadline,
            acme: acme.clone(),
            has_account: false,
        });
        Ok(())
    }

    /// Puts a chain into its file and into force.
    async fn take_chain(&mut self, acme: &Acme, chain: Vec<u8>) -> Result<(), ChildError> {
        if let Err(error) = fits(&self.config, acme, &chain) {
            let why =
                format!("the authority's certificate is of no use: {}", vpnd_sys::text::format_chain(&error));
            self.orders.failed(&self.config, why);
            return Ok(());
        }
        let path = &self.config.tls.certificate;
        let written = certificate::pinned::keep(&self.config.tls, &chain)
            .and_then(|()| secret_file::write(path, &chain, PUBLIC_MODE, Existing::Replace));
        if let Err(error) = written {
            self.orders.unsaved = Some(chain);
            self.orders.failed(&self.config, format!("the new certificate waits for its file: {error}"));
            return Ok(());
        }
        tracing::info!(certificate = %path.display(), "there is a certificate from the ACME authority");
        note(&self.config, None, None);
        self.orders.delay = DELAY;
        self.orders.look_later();
        self.take_over_certificate().await
    }
}

/// Keeps the outcome for who asks. It is no more than a help: if it can't be written, the log has
/// it.
fn note(config: &ServerConfig, failed: Option<String>, next: Option<Duration>) {
    let outcome = Outcome { at_s: wall_s(), failed, next_s: next.map(|next| wall_s() + next.as_secs()) };
    let written = serde_json::to_vec(&outcome)
        .map(|text| secret_file::write(&config.acme_outcome(), &text, SECRET_MODE, Existing::Replace));
    if !matches!(written, Ok(Ok(()))) {
        tracing::warn!("the outcome of the order is not kept for 'vpnd doctor'");
    }
}

/// Whether the authority's chain is good for this gateway.
fn fits(config: &ServerConfig, acme: &Acme, chain: &[u8]) -> anyhow::Result<()> {
    ensure!(chain.len() <= MAX_CHAIN, "it has more than {MAX_CHAIN} bytes");
    let leaf = vpnd_pki::leaf::chain(chain).first().and_then(|leaf| Leaf::parse(leaf));
    let leaf = leaf.context("it is none in PEM format")?;
    let public_key = public_key(&config.tls.key)?;
    ensure!(leaf.public_key == public_key, "it is for another key");
    ensure!(wall_s() < leaf.not_after_s, "it has expired; is this machine's clock right?");
    match lacks(&leaf, acme, 0) {
        Some(_) => bail!("it is for {} and not for all names in [acme]", leaf.names.join(", ")),
        None => Ok(()),
    }
}

fn public_key(key: &Path) -> anyhow::Result<Vec<u8>> {
    let pem = read_key(key)?;
    let public = vpnd_pki::tls::signing_key(&pem)?.public_key().map(|key| key.to_vec());
    public.with_context(|| format!("{} has no public half", key.display()))
}

fn read_key(key: &Path) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    std::fs::read(key).map(Zeroizing::new).with_context(|| format!("can't read {}", key.display()))
}

fn launch(config: &ServerConfig, acme: &Acme, common: &Common) -> anyhow::Result<AcmeLaunch> {
    let pem = Zeroizing::new(String::from_utf8(read_key(&config.tls.key)?.to_vec())?);
    let key = rcgen::KeyPair::from_pem(&pem)
        .with_context(|| format!("{} can't sign a request", config.tls.key.display()))?;
    let names: Vec<String> = acme.names.iter().map(ToString::to_string).collect();
    let mut params = rcgen::CertificateParams::new(names.clone())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    let request = params.serialize_request(&key)?.der().to_vec();
    let external_account = match &acme.external_account {
        None => None,
        Some(external) => {
            let key = secret_place::read(&external.key).context("eab_key_file in [acme] can't be used")?;
            let key = SecretBytes(Zeroizing::new(key.as_bytes().to_vec()));
            Some(ExternalAccountKey { key_id: external.key_id.clone(), key })
        }
    };
    Ok(AcmeLaunch {
        common: common.clone(),
        directory: acme.directory.as_str().to_owned(),
        port: acme.directory.port(),
        directory_ca: acme.directory_ca.as_deref().map(certificate::read).transpose()?.map(Into::into),
        names,
        over_http: acme.challenge == AcmeChallenge::Http01,
        contact: acme.contact.clone(),
        account: account(config, acme)?,
        external_account,
        request: request.into(),
    })
}

/// The account that was kept, if it is one at this directory.
fn account(config: &ServerConfig, acme: &Acme) -> anyhow::Result<Option<SecretBytes>> {
    #[derive(Deserialize)]
    struct Kept {
        directory: String,
    }
    let path = config.acme_account();
    let bytes = match own_file::read(&path, MAX_ACCOUNT as u64) {
        Ok(bytes) => Zeroizing::new(bytes),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("can't read {}", path.display())),
    };
    let kept: Kept = serde_json::from_slice(&bytes).with_context(|| {
        format!("{} is damaged: remove it, and the next order makes another account", path.display())
    })?;
    Ok((kept.directory == acme.directory.as_str()).then_some(SecretBytes(bytes)))
}

/// Opens the challenges' port. Where IPv6 is switched off, "any address" is any of IPv4.
fn listen(address: SocketAddr) -> std::io::Result<OwnedFd> {
    let opened = TcpListener::bind(address).or_else(|error| {
        let is_any = address.is_ipv6() && address.ip().is_unspecified();
        let is_without = error.raw_os_error() == Some(libc::EAFNOSUPPORT)
            || error.kind() == std::io::ErrorKind::AddrNotAvailable;
        if is_any && is_without {
            return TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port()));
        }
        Err(error)
    });
    opened.map(OwnedFd::from)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    /// A gateway with a key, and the key.
    fn gateway(directory: &Path) -> (ServerConfig, KeyPair) {
        let key = KeyPair::generate().expect("a key");
        std::fs::write(directory.join("key.pem"), key.serialize_pem()).expect("the directory is ours");
        let text = "[tls]\ncertificate = \"certificate.pem\"\nkey = \"key.pem\"\n[tunnel]\n\
                    pool_v4 = \"10.86.0.0/16\"\n[acme]\ndirectory = \"https://ca.example/d\"\n\
                    names = [\"vpn.uni.example\", \"vpn2.uni.example\"]\nterms_of_service_agreed = true\n";
        (ServerConfig::parse(text, "server.toml", directory).expect("it is good"), key)
    }

    fn certificate(names: &[&str], key: &KeyPair, until: (i32, u8, u8)) -> Vec<u8> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.not_after = rcgen::date_time_ymd(until.0, until.1, until.2);
        params.self_signed(key).expect("it signs").pem().into_bytes()
    }

    #[test]
    fn a_chain_is_taken_for_the_gateways_key_and_all_its_names_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let (config, key) = gateway(directory.path());
        let acme = config.acme.as_ref().expect("it is there");
        let (both, later) = (["vpn.uni.example", "VPN2.uni.example"], (2100, 1, 1));
        fits(&config, acme, &certificate(&both, &key, later)).expect("it is good");
        let refused = |chain: &[u8]| fits(&config, acme, chain).expect_err("it is of no use").to_string();
        let other = KeyPair::generate().expect("a key");
        assert!(refused(&certificate(&both, &other, later)).contains("another key"));
        assert!(refused(&certificate(&both[..1], &key, later)).contains("not for all names"));
        assert!(refused(&certificate(&both, &key, (2001, 1, 1))).contains("expired"));
        assert!(refused(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").contains("PEM"));
        assert!(refused(b"").contains("PEM"));
        let padded = [certificate(&both, &key, later), vec![b'\n'; 64 << 10]].concat();
        assert!(refused(&padded).contains("65536 bytes"));
    }

    #[test]
    fn an_account_of_another_directory_is_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let (config, _) = gateway(directory.path());
        let acme = config.acme.as_ref().expect("it is there");
        std::fs::create_dir_all(&config.server.state_dir).expect("the directory is ours");
        assert!(account(&config, acme).expect("there is none").is_none());
        let write = |text: &str| {
            secret_file::write(&config.acme_account(), text.as_bytes(), SECRET_MODE, Existing::Replace)
                .expect("ours");
        };
        write(r#"{"directory":"https://ca.example/d","id":"x"}"#);
        assert!(account(&config, acme).expect("it is good").is_some());
        write(r#"{"directory":"https://ca.example/e","id":"x"}"#);
        assert!(account(&config, acme).expect("it is good").is_none());
        write("{");
        assert!(account(&config, acme).expect_err("it is damaged").to_string().contains("remove it"));
    }

    #[test]
    fn after_failures_orders_wait_longer_until_somebody_reloads() {
        let directory = tempfile::tempdir().expect("a directory");
        let (config, _) = gateway(directory.path());
        std::fs::create_dir_all(&config.server.state_dir).expect("the directory is ours");
        let mut orders = Orders::new(&config);
        let wait = |orders: &Orders| {
            let next = orders.next.expect("there is [acme]").saturating_duration_since(Instant::now());
            (next.as_secs_f64() / 3600.0).round() as u32
        };
        let mut waits = Vec::new();
        for _ in 0..6 {
            waits.push(wait(&orders));
            orders.failed(&config, "no".to_owned());
        }
        assert_eq!(waits, [0, 1, 2, 4, 8, 12], "hours");
        assert!(!orders.takes_account(b"{}"), "there is no order");
        orders.failed(&config, format!("no\x1b[2J{}", "x".repeat(5000)));
        let kept = Outcome::read(&config).and_then(|outcome| outcome.failed).expect("it is kept");
        assert!(kept.starts_with("no [2Jx") && kept.len() <= MAX_REASON, "{kept}");
        let waits = [(); 5].map(|()| {
            orders.look_now(&config);
            let now = wait(&orders);
            orders.failed(&config, "no".to_owned());
            now
        });
        assert_eq!(waits, [0, 0, 0, 0, 1], "a worker can't have orders made without a pause");
        let without = ServerConfig { acme: None, ..config };
        orders.look_now(&without);
        assert!(orders.next.is_none());
    }
}
