//! Certificates from an authority that speaks ACME, as the parent orders them: when one is wanted,
//! a process is started for it.
//!
//! Invariants: a certificate's key stays here and in the process that presents it, auth or the
//! portal; a chain takes the old one's place only if it is for that key and for all configured
//! names, and is good now; whatever becomes of an order, the gateway goes on with what it has.
//! After a failure the next order of that certificate waits, longer each time: authorities lock out
//! who asks too often. One order at a time: they share the account and the challenge's port. If
//! that is the portal's as well, the portal answers there, by digests for the order's names alone.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::launcher::{Program, start_child};
use super::portal::{Portal, for_portal_alone, listen};
use vpnd_config::certificate;
use vpnd_config::certificate::order::{Ordered, Outcome, Owner, public_key};
use vpnd_config::secret_place;
use vpnd_config::{Acme, AcmeChallenge, ServerConfig, Tls};
use vpnd_ipc::child::ChildRole;
use vpnd_ipc::gateway::acme::{
    AcmeLaunch, ExternalAccountKey, FromAcme, MAX_ACCOUNT, MAX_CHAIN, MAX_REASON, ORDER_TIMEOUT, Proofs,
    ToAcme,
};
use vpnd_ipc::messages::{Common, SecretBytes};
use vpnd_ipc::spawn::RunningChild;
use vpnd_pki::leaf::Leaf;
use vpnd_sys::allowance::Allowance;
use vpnd_sys::clock::{now, wall_s};
use vpnd_sys::own_file;
use vpnd_sys::secret_file::{self, Existing, PUBLIC_MODE, SECRET_MODE};

/// Longest interval between looks at a certificate: clocks are set.
const LOOK_INTERVAL: Duration = Duration::from_secs(3600);
/// Time before the next order after one that failed, and the longest after several.
const DELAY: Duration = Duration::from_secs(3600);
const MAX_DELAY: Duration = Duration::from_secs(12 * 3600);
/// Limit for the process to be prepared: nothing else is done meanwhile.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Time beyond the order's own limit.
const GRACE: Duration = Duration::from_secs(15);
/// Pause while the portal, which has the challenge's port, is not there.
const PORTAL_PAUSE: Duration = Duration::from_secs(1);

/// The orders of a gateway, one at a time.
pub(super) struct Orders {
    running: Option<RunningOrder>,
    /// In the order of [`Owner::ALL`].
    schedules: [Schedule; 2],
    /// Reloads that order again at once after a failure: the worker can ask for reloads, and
    /// authorities lock out who fails often.
    retries: Allowance,
}

/// When a certificate is ordered.
struct Schedule {
    owner: Owner,
    /// When to look whether one is wanted; never if it is not to be ordered.
    next: Option<Instant>,
    delay: Duration,
    /// A chain that could not be written. Another order would be one of few that an authority
    /// allows.
    unsaved: Option<Vec<u8>>,
}

struct RunningOrder {
    child: RunningChild<FromAcme>,
    deadline: Instant,
    /// The configuration at the order's begin.
    ordered: Ordered,
    /// A process that was taken over would report accounts without an end.
    has_account: bool,
    answers: Answers,
    /// Those that the portal was sent.
    proofs: Proofs,
}

/// The process that answers the challenges of an order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answers {
    /// The process of the order.
    Own,
    /// The portal, which has no proofs yet.
    ByPortal,
    /// The portal, which has not said yet that it has the proofs.
    Sent,
    /// The portal, as the process was told.
    Told,
}

/// An event of an owner's order.
pub(super) enum Event {
    Due(Owner),
    Received(Result<FromAcme, String>),
}

impl Schedule {
    fn new(owner: Owner, config: &ServerConfig) -> Self {
        Self { owner, next: begin(owner, config), delay: DELAY, unsaved: None }
    }

    fn look_after(&mut self, interval: Duration) {
        self.next = Some(Instant::now() + interval);
    }

    /// `why` may be the words of a process that was taken over.
    fn failed(&mut self, config: &ServerConfig, why: &str) {
        let reason: String = vpnd_sys::text::harmless(why).chars().take(MAX_REASON).collect();
        let kept = match self.owner {
            Owner::Gateway => "no certificate from the ACME authority; the gateway keeps the one it has",
            Owner::Portal => {
                "no certificate for web pages from the ACME authority; they keep the one they have, if any"
            }
        };
        tracing::error!(error = %reason, next_s = self.delay.as_secs(), "{kept}");
        self.look_after(self.delay);
        note(config, self.owner, Some(reason), Some(self.delay));
        self.delay = (self.delay * 2).min(MAX_DELAY);
    }
}

/// Whether challenges of this authority arrive at the port of the pages.
fn arrive_at_pages(config: &ServerConfig, acme: &Acme) -> bool {
    config.portal.as_ref().is_some_and(|portal| portal.answers_challenges(acme))
}

/// Whether these are proofs of such names alone.
fn prove(proofs: &Proofs, names: &[String]) -> bool {
    proofs.iter().all(|proof| names.iter().any(|name| name.eq_ignore_ascii_case(&proof.name)))
}

/// When to look first.
fn begin(owner: Owner, config: &ServerConfig) -> Option<Instant> {
    Ordered::of(config, owner).map(|_| Instant::now())
}

impl Orders {
    pub(super) fn new(config: &ServerConfig) -> Self {
        let retries = Allowance::new(4, Duration::from_secs(15 * 60));
        Self { running: None, schedules: Owner::ALL.map(|owner| Schedule::new(owner, config)), retries }
    }

    fn of(&mut self, owner: Owner) -> &mut Schedule {
        let [gateway, portal] = &mut self.schedules;
        match owner {
            Owner::Gateway => gateway,
            Owner::Portal => portal,
        }
    }

    /// Looks at once whether any is wanted, after a reload. An order for something else is given
    /// up, and one whose challenges arrive at the portal no longer.
    pub(super) fn look_now(&mut self, config: &ServerConfig) {
        let is_other = |order: &mut RunningOrder| {
            let RunningOrder { ordered, answers, .. } = order;
            Ordered::of(config, ordered.owner).as_ref() != Some(ordered)
                || (*answers != Answers::Own && !arrive_at_pages(config, &ordered.acme))
        };
        let gave_up = self.running.take_if(is_other).map(|order| order.ordered.owner);
        let has_failed = self.schedules.iter().any(|schedule| {
            gave_up != Some(schedule.owner)
                && schedule.delay > DELAY
                && Ordered::of(config, schedule.owner).is_some()
        });
        let may_retry = !has_failed || self.retries.take(now());
        if !may_retry {
            tracing::warn!("too many reloads after failed orders: the next order waits as after a failure");
        }
        for schedule in &mut self.schedules {
            let waits = schedule.delay > DELAY && gave_up != Some(schedule.owner);
            let begin = begin(schedule.owner, config);
            if begin.is_none() || may_retry || !waits {
                (schedule.next, schedule.delay) = (begin, DELAY);
            }
        }
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
        let due = self.schedules.iter().filter_map(|schedule| Some((schedule.next?, schedule.owner)));
        match due.min_by_key(|(at, _)| *at) {
            Some((at, owner)) => {
                tokio::time::sleep_until(at).await;
                Event::Due(owner)
            }
            None => std::future::pending().await,
        }
    }

    /// Whether the order under way may report this account: one, of a size that can be read again.
    fn takes_account(&mut self, account: &[u8]) -> bool {
        let Some(order) = &mut self.running else { return false };
        !std::mem::replace(&mut order.has_account, true) && account.len() <= MAX_ACCOUNT
    }

    /// The proofs by which the portal answers for the order under way.
    pub(super) fn proofs(&self) -> Proofs {
        self.running.as_ref().map_or_else(Proofs::default, |order| order.proofs.clone())
    }

    /// Whether the order under way may have these answered by the portal: once, and for its names
    /// alone.
    fn takes_proofs(&mut self, proofs: &Proofs) -> bool {
        let Some(order) = &mut self.running else { return false };
        let are_good = order.answers == Answers::ByPortal && prove(proofs, &order.ordered.names);
        if are_good {
            order.answers = Answers::Sent;
            order.proofs = proofs.clone();
        }
        are_good
    }

    /// The portal answers by the proofs that it was sent.
    pub(super) async fn answering(&mut self) {
        // A portal that was taken over would send this without an end.
        if let Some(order) = self.running.as_mut().filter(|order| order.answers == Answers::Sent) {
            order.answers = Answers::Told;
            if let Err(error) = order.child.send(&ToAcme::Answering, &[]).await {
                tracing::debug!(%error, "the acme process is not sent a message");
            }
        }
    }

    /// Handles an event of the orders. Returns whose certificate is another one now.
    pub(super) async fn handle(
        &mut self,
        event: Event,
        config: &ServerConfig,
        common: &Common,
        portal: Option<&mut Portal>,
    ) -> Option<Owner> {
        let ordered = match (&event, &self.running) {
            (Event::Due(owner), _) => Ordered::of(config, *owner),
            (Event::Received(_), Some(order)) => Some(order.ordered.clone()),
            (Event::Received(_), None) => None,
        };
        let Some(ordered) = ordered else {
            if let Event::Due(owner) = event {
                self.of(owner).next = None;
            }
            return None;
        };
        match event {
            Event::Due(_) => return self.look(&ordered, config, common, portal.as_deref()).await,
            Event::Received(Ok(FromAcme::Account(account))) if self.takes_account(&account.0) => {
                let path = config.acme_account();
                if let Err(error) = secret_file::write(&path, &account.0, SECRET_MODE, Existing::Replace) {
                    tracing::warn!(%error, "the account at the ACME authority is not kept: the next order makes another");
                }
            }
            Event::Received(Ok(FromAcme::Proofs(proofs))) if self.takes_proofs(&proofs) => {
                if let Some(portal) = portal {
                    portal.answer_by(proofs).await;
                }
            }
            Event::Received(Ok(FromAcme::Account(_) | FromAcme::Proofs(_))) => {
                self.end_order(portal).await;
                let reason = "the acme process has sent an unexpected message";
                self.of(ordered.owner).failed(config, reason);
            }
            Event::Received(Ok(FromAcme::Issued(chain))) => {
                self.end_order(portal).await;
                return self.take_chain(&ordered, chain.into(), config);
            }
            Event::Received(Ok(FromAcme::Failed(why)) | Err(why)) => {
                self.end_order(portal).await;
                self.of(ordered.owner).failed(config, &why);
            }
        }
        None
    }

    /// Orders this certificate if another one is wanted. Returns its owner if one is there that had
    /// waited for its file.
    async fn look(
        &mut self,
        ordered: &Ordered,
        config: &ServerConfig,
        common: &Common,
        portal: Option<&Portal>,
    ) -> Option<Owner> {
        if let Some(chain) = self.of(ordered.owner).unsaved.take() {
            return self.take_chain(ordered, chain, config);
        }
        let answering = portal.filter(|portal| portal.answers_challenges(&ordered.acme));
        let begun = match ordered.wanted(config) {
            Ok(None) => {
                self.of(ordered.owner).look_after(LOOK_INTERVAL);
                Ok(())
            }
            // It has just been started, or will be soon.
            Ok(Some(_)) if answering.is_some_and(|portal| !portal.is_running()) => {
                self.of(ordered.owner).look_after(PORTAL_PAUSE);
                Ok(())
            }
            Ok(Some(why)) => {
                let (directory, names) = (ordered.acme.directory.as_str(), ordered.names.join(", "));
                tracing::info!(directory, names, %why, "ordering a certificate");
                self.order(ordered, config, common, answering.is_some()).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = begun {
            let reason = vpnd_sys::text::format_chain(&error);
            self.of(ordered.owner).failed(config, &reason);
        }
        None
    }

    /// Starts the order. Challenges arrive at the port of the portal if it `is_answering`.
    async fn order(
        &mut self,
        ordered: &Ordered,
        config: &ServerConfig,
        common: &Common,
        is_answering: bool,
    ) -> anyhow::Result<()> {
        let acme = &ordered.acme;
        let launch = launch(config, ordered, common)?;
        let (listener, answers) = if is_answering {
            (None, Answers::ByPortal)
        } else {
            let listener = listen(acme.listen).with_context(|| {
                format!(
                    "{} can't be opened for the challenge; choose another `listen` in [acme]",
                    acme.listen
                )
            })?;
            (Some(listener), Answers::Own)
        };
        // It is this process that it works for, not the version to which the others may belong.
        let program = Program::own();
        let child = start_child(&program, ChildRole::Acme, &launch, listener.into_iter().collect());
        let Ok(child) = tokio::time::timeout(START_TIMEOUT, child).await else {
            bail!("the acme process was not ready within {} s", START_TIMEOUT.as_secs());
        };
        let deadline = Instant::now() + ORDER_TIMEOUT + GRACE;
        let (child, ordered) = (child?.0.at_work(), ordered.clone());
        let (has_account, proofs) = (false, Proofs::default());
        self.running = Some(RunningOrder { child, deadline, ordered, has_account, answers, proofs });
        Ok(())
    }

    /// The order is over, and so are the answers of the portal.
    async fn end_order(&mut self, portal: Option<&mut Portal>) {
        let order = self.running.take();
        if let Some(portal) = portal
            && order.is_some_and(|order| matches!(order.answers, Answers::Sent | Answers::Told))
        {
            portal.answer_by(Proofs::default()).await;
        }
    }

    /// Puts a chain into its file. Returns its owner, unless that fails.
    fn take_chain(&mut self, ordered: &Ordered, chain: Vec<u8>, config: &ServerConfig) -> Option<Owner> {
        let schedule = self.of(ordered.owner);
        if let Err(error) = fits(ordered, &chain) {
            let reason =
                format!("the authority's certificate is of no use: {}", vpnd_sys::text::format_chain(&error));
            schedule.failed(config, &reason);
            return None;
        }
        let path = &ordered.certificate;
        let kept = match ordered.owner {
            Owner::Gateway => certificate::pinned::keep(&config.tls, &chain),
            Owner::Portal => Ok(()),
        };
        let written = kept.and_then(|()| secret_file::write(path, &chain, PUBLIC_MODE, Existing::Replace));
        if let Err(error) = written {
            schedule.unsaved = Some(chain);
            schedule.failed(config, &format!("the new certificate waits for its file: {error}"));
            return None;
        }
        tracing::info!(certificate = %path.display(), "the ACME authority has issued a certificate");
        note(config, ordered.owner, None, None);
        schedule.delay = DELAY;
        schedule.look_after(LOOK_INTERVAL);
        Some(ordered.owner)
    }

    pub(super) async fn dismiss(self, timeout: Duration) {
        if let Some(order) = self.running {
            order.child.dismiss(timeout).await;
        }
    }
}

/// Keeps the outcome for who asks. It is no more than a help: if it can't be written, the log has
/// it.
fn note(config: &ServerConfig, owner: Owner, failed: Option<String>, next: Option<Duration>) {
    let outcome = Outcome { at_s: wall_s(), failed, next_s: next.map(|next| wall_s() + next.as_secs()) };
    let path = Outcome::path(config, owner);
    let written = serde_json::to_vec(&outcome)
        .map(|text| secret_file::write(&path, &text, SECRET_MODE, Existing::Replace));
    if !matches!(written, Ok(Ok(()))) {
        tracing::warn!("the outcome of the order is not kept for 'vpnd doctor'");
    }
}

/// Whether the authority's chain is good for what was ordered.
fn fits(ordered: &Ordered, chain: &[u8]) -> anyhow::Result<()> {
    ensure!(chain.len() <= MAX_CHAIN, "it has more than {MAX_CHAIN} bytes");
    let leaf = vpnd_pki::leaf::chain(chain).first().and_then(|leaf| Leaf::parse(leaf));
    let leaf = leaf.context("it is not in PEM format")?;
    let own = public_key(&ordered.key);
    let own = own.with_context(|| format!("the key {} can't be read", ordered.key.display()))?;
    ensure!(leaf.public_key == own, "it is for another key");
    ensure!(wall_s() < leaf.not_after_s, "it has expired; is this machine's clock right?");
    match ordered.lacks(&leaf, 0) {
        Some(_) => bail!("it is for {} and not for {}", leaf.names.join(", "), ordered.names.join(", ")),
        None => Ok(()),
    }
}

/// The key (PEM) of what is ordered. The portal's is made if it is not there.
fn key(ordered: &Ordered, tls: &Tls) -> anyhow::Result<Zeroizing<String>> {
    let path = &ordered.key;
    if ordered.owner == Owner::Portal && !path.exists() {
        let (_, made) = vpnd_pki::authority::new_key()?;
        secret_file::write(path, made.as_bytes(), SECRET_MODE, Existing::Refuse)?;
        tracing::info!(key = %path.display(), "web pages have a separate key now");
    }
    let pem = std::fs::read(path).map(Zeroizing::new);
    let pem = pem.with_context(|| format!("can't read {}", path.display()))?;
    if ordered.owner == Owner::Portal {
        for_portal_alone(path, &pem, tls)?;
    }
    Ok(Zeroizing::new(String::from_utf8(pem.to_vec())?))
}

fn launch(config: &ServerConfig, ordered: &Ordered, common: &Common) -> anyhow::Result<AcmeLaunch> {
    let (acme, pem) = (&ordered.acme, key(ordered, &config.tls)?);
    let key = rcgen::KeyPair::from_pem(&pem)
        .with_context(|| format!("{} can't sign a request", ordered.key.display()))?;
    let mut params = rcgen::CertificateParams::new(ordered.names.clone())?;
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
        names: ordered.names.clone(),
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rcgen::{CertificateParams, KeyPair};
    use vpnd_ipc::gateway::acme::Proof;
    use vpnd_proto::control::Text;

    use super::*;

    /// A gateway with a portal and a key, and the key.
    fn gateway(directory: &Path) -> (ServerConfig, KeyPair) {
        let key = KeyPair::generate().expect("a key");
        std::fs::write(directory.join("key.pem"), key.serialize_pem()).expect("the directory is ours");
        let text = "[tls]\ncertificate = \"certificate.pem\"\nkey = \"key.pem\"\n[tunnel]\n\
                    pool_v4 = \"10.86.0.0/16\"\n[acme]\ndirectory = \"https://ca.example/d\"\n\
                    names = [\"vpn.uni.example\", \"vpn2.uni.example\"]\nterms_of_service_agreed = true\n\
                    [portal]\nenabled = true\nacme = true\nurl = \"https://pages.example\"\n";
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
        let ordered = Ordered::of(&config, Owner::Gateway).expect("it is ordered");
        let (both, later) = (["vpn.uni.example", "VPN2.uni.example"], (2100, 1, 1));
        fits(&ordered, &certificate(&both, &key, later)).expect("it is good");
        let refused = |chain: &[u8]| fits(&ordered, chain).expect_err("it is of no use").to_string();
        let other = KeyPair::generate().expect("a key");
        assert!(refused(&certificate(&both, &other, later)).contains("another key"));
        assert!(refused(&certificate(&both[..1], &key, later)).contains("and not for vpn.uni.example, vpn2"));
        assert!(refused(&certificate(&both, &key, (2001, 1, 1))).contains("expired"));
        assert!(refused(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").contains("PEM"));
        assert!(refused(b"").contains("PEM"));
        let padded = [certificate(&both, &key, later), vec![b'\n'; 64 << 10]].concat();
        assert!(refused(&padded).contains("65536 bytes"));
    }

    #[test]
    fn the_portals_key_is_made_once_and_is_never_the_gateways() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().expect("a directory");
        let (config, gateways) = gateway(directory.path());
        let ordered = Ordered::of(&config, Owner::Portal).expect("it is ordered");
        let made = key(&ordered, &config.tls).expect("it is made");
        let mode = std::fs::metadata(&ordered.key).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(key(&ordered, &config.tls).expect("it is there"), made);
        let own = KeyPair::from_pem(&made).expect("it is a key");
        fits(&ordered, &certificate(&["pages.example"], &own, (2100, 1, 1))).expect("it is good");
        let others = certificate(&["pages.example"], &gateways, (2100, 1, 1));
        assert!(
            fits(&ordered, &others).expect_err("it is the gateway's key").to_string().contains("another")
        );
        std::fs::write(&ordered.key, gateways.serialize_pem()).expect("the directory is ours");
        let refused = key(&ordered, &config.tls).expect_err("it is the gateway's");
        assert!(refused.to_string().contains("is 'key' of [tls] as well"), "{refused}");
        // The gateway's own is not made here.
        std::fs::remove_file(&config.tls.key).expect("the directory is ours");
        let gateways = Ordered::of(&config, Owner::Gateway).expect("it is ordered");
        assert!(key(&gateways, &config.tls).expect_err("it is gone").to_string().contains("can't read"));
    }

    #[test]
    fn the_portal_proves_no_other_name_than_the_orders() {
        let names = ["vpn.uni.example".to_owned(), "pages.example".to_owned()];
        let proofs = |names: &[&str]| {
            let proof = |name: &&str| Proof { name: Text::cut(name), digest: [0; 32].into() };
            Proofs::new(names.iter().map(proof).collect()).expect("they are few")
        };
        assert!(prove(&proofs(&["VPN.uni.example", "pages.example"]), &names) && prove(&proofs(&[]), &names));
        assert!(!prove(&proofs(&["pages.example", "www.example"]), &names));
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
    fn failed_orders_back_off_until_a_reload() {
        let directory = tempfile::tempdir().expect("a directory");
        let (config, _) = gateway(directory.path());
        std::fs::create_dir_all(&config.server.state_dir).expect("the directory is ours");
        let mut orders = Orders::new(&config);
        let wait = |orders: &Orders| {
            let next =
                orders.schedules[0].next.expect("there is [acme]").saturating_duration_since(Instant::now());
            (next.as_secs_f64() / 3600.0).round() as u32
        };
        let mut waits = Vec::new();
        for _ in 0..6 {
            waits.push(wait(&orders));
            orders.of(Owner::Gateway).failed(&config, "no");
        }
        assert_eq!(waits, [0, 1, 2, 4, 8, 12], "hours");
        assert!(!orders.takes_account(b"{}"), "there is no order");
        orders.of(Owner::Gateway).failed(&config, &format!("no\x1b[2J{}", "x".repeat(5000)));
        let kept =
            Outcome::read(&config, Owner::Gateway).and_then(|outcome| outcome.failed).expect("it is kept");
        assert!(kept.starts_with("no [2Jx") && kept.len() <= MAX_REASON, "{kept}");
        let waits = [(); 5].map(|()| {
            orders.look_now(&config);
            let now = wait(&orders);
            orders.of(Owner::Gateway).failed(&config, "no");
            now
        });
        assert_eq!(waits, [0, 0, 0, 0, 1], "a worker can't have orders made without a pause");
        assert_eq!(orders.schedules[1].delay, DELAY, "the portal's orders have not failed");
        assert!(Outcome::read(&config, Owner::Portal).is_none());
        let without = ServerConfig { acme: None, ..config };
        orders.look_now(&without);
        assert!(orders.schedules.iter().all(|schedule| schedule.next.is_none()));
    }
}
