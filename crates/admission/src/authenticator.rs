//! Authentication of users: password, one-time code, client certificate, and limits for guesses.
//!
//! Invariants: a refusal does not disclose its cause to the client ([`Refusal`]); an unknown user
//! costs as much time as a known one; a code is good once; guesses from elsewhere can't lock out a
//! person from a source they came from before. Hashing takes tens of milliseconds and megabytes, so
//! it runs on a bounded number of threads behind a bounded queue, which networks share fairly
//! ([`vpnd_ipc::turns`]), never on a shard, and steps back behind other work. This module must not
//! know of connections or sessions.

mod absences;
pub mod allowances;
mod cause;
mod credentials;
mod device;
mod dynamic;
mod external;
mod grant;
mod guesses;
mod history;
mod known_sources;
mod login_record;
mod logins;
mod own_changes;
mod pending;
mod queue;
mod recheck;
mod refresh;
pub mod rounds;
mod shown_logins;
pub mod sources;
mod throttle;
pub mod token_seal;
mod visit;
mod waiting;

use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use vpnd_proto::control::ChallengeAnswer;
use vpnd_proto::session::DeviceId;

use crate::access::Access;
use crate::accounting::Accounting;
use crate::notices::Notices;
use allowances::{LOGINS, Limit, Limited};
pub use cause::Cause;
use credentials::Credentials;
use device::DeviceAdmission;
pub use device::DeviceOutcome;
use dynamic::DynamicRequests;
use external::ExternalLogins;
pub use grant::Authenticated;
use guesses::Guesses;
use history::History;
use login_record::LoginRecord;
use logins::Logins;
pub use own_changes::Chosen;
use own_changes::OwnChanges;
use queue::Queue;
use recheck::Rechecks;
use refresh::RefreshTokens;
use rounds::Demand;
use shown_logins::ShownLogins;
use sources::Sources;
use token_seal::TokenSeal;
pub use visit::{LoginFacts, Visit};
use vpnd_config::{AccessProfiles, Tunnel};
use vpnd_ipc::gateway::auth::SourceHealth;
use vpnd_ipc::gateway::idp::{LoginAddress, ProviderLogout, ReadLogout, RedeemCode, Url};
use vpnd_ipc::gateway::portal::OwnChange;
use vpnd_ipc::gateway::portal::invitations::InvitationStep;
use vpnd_ipc::gateway::portal::turns::SourceNumber;
use vpnd_ipc::gateway::refusal::{Refusal, Refused};
use vpnd_ipc::request::Reason;
use vpnd_store::audit::recorder::Recorder;
use vpnd_store::password::{Hasher, NoMemory, Password};
use vpnd_store::{CertificateHash, PasswordHash, Store, StoreError, TotpSecret, User, UserId};
use vpnd_sys::clock::now;
use waiting::Waiting;

/// Limit for a login's wait in the queue. A client gives up after 20 s, and on a machine where
/// turns take that long, what comes before and after takes its time too: to check passwords of
/// clients that have gone would keep out those that come.
pub const QUEUE_TIMEOUT: Duration = Duration::from_secs(8);

/// Credentials that a client presents.
#[derive(Clone, Debug)]
pub struct Login {
    /// The user's name, as given.
    pub user: String,
    pub password: Password,
    /// The one-time code, if one was given.
    pub code: Option<Password>,
    /// SHA-256 of the client certificate that the TLS handshake verified.
    pub certificate: Option<CertificateHash>,
    pub source: IpAddr,
    pub entrance: Entrance,
    /// The device, which has proved to the worker that it is this one.
    pub device: DeviceId,
}

/// The process that a login comes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entrance {
    /// The worker, whose clients' addresses are proved by their handshakes.
    Tunnel,
    /// The portal, which names any address if it was taken over. Its failures keep no user from the
    /// tunnel.
    Portal,
}

impl Entrance {
    const ALL: [Self; 2] = [Self::Tunnel, Self::Portal];
}

/// The answer to a login.
#[derive(Debug)]
pub enum LoginOutcome {
    /// Let in.
    Granted(Box<Authenticated>),
    /// Not let in without a one-time code. That comes, or doesn't, with this number. It discloses
    /// nothing else: the password may be right or wrong, and the user may be one who needs a code,
    /// needs none, or does not exist.
    CodeRequired(u64),
    /// Not let in without this. The answer comes, or doesn't, with this number.
    Challenge(u64, Demand),
    /// A server waits for a person's approval. Its decision is asked for with this number, again
    /// and again.
    Approval(u64, Demand),
    /// Not let in.
    Refused(Refused),
}

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Logins that are checked at the same time; at least 1.
    pub workers: usize,
    /// Logins that may wait for their turn.
    pub queue: usize,
    /// Limit for the wait; [`QUEUE_TIMEOUT`] outside tests.
    pub longest_wait: Duration,
    /// Whether every user must show a client certificate.
    pub require_certificate: bool,
}

/// The parts besides the store; by default only its users log in.
pub struct Surroundings {
    pub access: Arc<Access>,
    pub sources: Sources,
    pub tokens: TokenSeal,
    pub audit: Option<Recorder>,
    /// Logins of one user at once.
    pub logins_per_user: u32,
}

/// Profiles are those of everybody, and nothing is recorded.
impl Default for Surroundings {
    fn default() -> Self {
        Self {
            access: Arc::new(Access::new(AccessProfiles::of_everybody(), &Tunnel::default())),
            sources: Sources::default(),
            tokens: TokenSeal::default(),
            audit: None,
            logins_per_user: LOGINS,
        }
    }
}

/// Returns users who are logged in elsewhere than in sessions, as of which generations.
pub type Visitors = Box<dyn Fn() -> Vec<(UserId, u64)> + Send + Sync>;

pub struct Authenticator {
    sources: Arc<Sources>,
    logins: Arc<Logins>,
    external: Arc<ExternalLogins>,
    shown: Arc<ShownLogins>,
    own_changes: Arc<OwnChanges>,
    rechecks: Arc<Rechecks>,
    dynamic: Arc<DynamicRequests>,
    devices: Arc<DeviceAdmission>,
}

impl Authenticator {
    /// Makes an authenticator over `store` alone. Takes as long as one login, to hash a dummy
    /// password.
    ///
    /// # Errors
    /// [`NoMemory`], as for any login.
    pub fn new(store: Arc<dyn Store>, hasher: Hasher, settings: Settings) -> Result<Self, NoMemory> {
        Self::within(store, hasher, settings, Surroundings::default())
    }

    /// Makes one with all that there is besides.
    ///
    /// # Errors
    /// [`NoMemory`], as for any login.
    pub fn within(
        store: Arc<dyn Store>,
        hasher: Hasher,
        settings: Settings,
        surroundings: Surroundings,
    ) -> Result<Self, NoMemory> {
        let Settings { workers, queue, longest_wait, require_certificate } = settings;
        let Surroundings { access, sources, tokens, audit, logins_per_user } = surroundings;
        let store = || Arc::clone(&store);
        let credentials = Credentials::new(store(), hasher, Arc::clone(&access), require_certificate)?;
        let (sources, history) = (Arc::new(sources), Arc::new(History::new(store())));
        let sources = || Arc::clone(&sources);
        let record = Arc::new(LoginRecord::new(sources(), audit));
        let record = || Arc::clone(&record);
        let limit = |limited| Arc::new(Limit::new(limited, logins_per_user));
        let logins = Arc::new(Logins {
            credentials,
            queue: Queue::new(workers.max(1), queue, longest_wait, Arc::clone(&history)),
            history,
            record: record(),
            guesses: Arc::default(),
            limit: limit(Limited::Logins),
            waiting: Waiting::new(record()),
        });
        let logins = || Arc::clone(&logins);
        let external = Arc::new(ExternalLogins { store: store(), sources: sources(), logins: logins() });
        let tokens = Arc::new(RefreshTokens::new(store(), tokens));
        let shown = ShownLogins {
            store: store(),
            sources: sources(),
            logins: logins(),
            external: Arc::clone(&external),
            tokens: Arc::clone(&tokens),
        };
        let rechecks = Arc::new(Rechecks::new(store(), sources(), record(), tokens));
        let devices = DeviceAdmission {
            store: store(),
            access,
            sources: sources(),
            rechecks: Arc::clone(&rechecks),
            record: record(),
            limit: limit(Limited::Admissions),
        };
        Ok(Self {
            sources: sources(),
            logins: logins(),
            external,
            shown: Arc::new(shown),
            own_changes: Arc::new(OwnChanges { store: store(), logins: logins() }),
            rechecks,
            dynamic: Arc::new(DynamicRequests::new(store(), sources(), record())),
            devices: Arc::new(devices),
        })
    }

    /// Checks a login at the one source whose rule matches, and that is the store if no other does.
    pub async fn log_in(&self, login: Login, now_s: u64) -> LoginOutcome {
        self.external.log_in(login, now_s).await
    }

    /// Checks a login at the store on this thread, which waits for the hash and the store.
    pub fn check(&self, login: &Login, now_s: u64) -> LoginOutcome {
        self.logins.check(login, now_s)
    }

    /// The code came, for a login that was asked for one.
    pub fn complete(&self, number: u64, code: &Password, now_s: u64) -> LoginOutcome {
        self.logins.complete(number, code, now_s)
    }

    /// The answer of a person has come, for the login with this number.
    pub async fn answer(
        &self,
        number: u64,
        answer: &ChallengeAnswer,
        device: DeviceId,
        now_s: u64,
    ) -> LoginOutcome {
        self.external.answer(number, answer, device, now_s).await
    }

    /// The decision of the server about the login with this number; `None` while it still waits.
    pub async fn approved(&self, number: u64, device: DeviceId, now_s: u64) -> Option<LoginOutcome> {
        self.external.approved(number, device, now_s).await
    }

    /// The person has gone, whom a login waited for.
    pub fn abandon(&self, number: u64, now_s: u64) {
        self.logins.waiting.abandon(number, now_s);
    }

    /// Logs in the user of this visit with the client's device; `None` if the client has shown
    /// nothing that is good.
    pub fn log_in_by_visit(&self, visit: Option<Visit>, login: Login, now_s: u64) -> LoginOutcome {
        self.shown.by_visit(visit, login, now_s)
    }

    /// Whether users of this source log in at a provider, so in a browser alone.
    pub fn is_provider(&self, source: &str) -> bool {
        self.sources.provider(source).is_some()
    }

    /// The address where a browser begins a login.
    pub async fn address_at_provider(&self, login: LoginAddress) -> Result<Url, Refusal> {
        self.shown.address_at_provider(login).await
    }

    /// Logs in the user whose code this is.
    pub async fn log_in_at_provider(
        &self,
        redeem: RedeemCode,
        address: IpAddr,
        device: DeviceId,
        now_s: u64,
    ) -> LoginOutcome {
        self.shown.at_provider(redeem, address, device, now_s).await
    }

    /// A provider has sent a browser back without a code.
    pub fn refused_by_provider(
        &self,
        source: &str,
        address: IpAddr,
        device: DeviceId,
        now_s: u64,
    ) -> LoginOutcome {
        self.shown.refused_by_provider(source, address, device, now_s)
    }

    /// Checks a logout token; returns who has logged out, or `None` if it proves nothing.
    pub async fn read_logout(&self, read: ReadLogout) -> Result<Option<ProviderLogout>, Reason> {
        self.shown.read_logout(read).await
    }

    /// Decides about the device with this key; `has_pages` is whether there is a portal.
    pub async fn admit_device(
        &self,
        key: [u8; 32],
        outer: IpAddr,
        has_pages: bool,
        times: (u64, u64),
    ) -> DeviceOutcome {
        self.devices.admit(key, outer, has_pages, times).await
    }

    /// Gives a user another password, which is a revocation. `login` has the present one.
    pub async fn change_password(&self, login: Login, user: User, new: Password, now_s: u64) -> OwnChange {
        self.own_changes.change_password(login, user, new, now_s).await
    }

    /// Gives a user this secret of one-time codes, of which a code was typed.
    pub fn change_codes(
        &self,
        user: &User,
        secret: TotpSecret,
        code: &Password,
        now_s: u64,
    ) -> Result<OwnChange, StoreError> {
        self.own_changes.change_codes(user, secret, code, now_s)
    }

    /// Takes a user's one-time codes away.
    pub fn remove_codes(&self, user: &User, now_s: u64) -> Result<OwnChange, StoreError> {
        self.own_changes.remove_codes(user, now_s)
    }

    /// Whether this user sets up one-time codes without an administrator.
    pub fn sets_up_codes(&self, user: &User) -> bool {
        self.sources.let_set_up_codes(user)
    }

    /// Gives the user of an invitation the password and the codes that they have chosen.
    pub async fn accept_invitation(&self, chosen: Chosen, now_s: u64) -> InvitationStep {
        self.own_changes.accept_invitation(chosen, now_s).await
    }

    /// The hash of an unknown password, for a user who is invited.
    pub async fn unknown_password(&self, source: IpAddr) -> Option<PasswordHash> {
        self.own_changes.unknown_password(source).await
    }

    /// Checks the users of all configured sources again; never returns.
    pub async fn recheck(&self) {
        Arc::clone(&self.rechecks).run().await;
    }

    /// Has these users checked again as those with sessions.
    pub fn follow_visitors(&self, visitors: Visitors) {
        self.rechecks.follow_visitors(visitors);
    }

    /// Does what servers request; never returns. Does nothing if no source is configured for it.
    pub async fn follow_servers(&self) {
        Arc::clone(&self.dynamic).follow().await;
    }

    /// Takes all whom this source shows no more for gone: how many users with sessions these are,
    /// if there is such a source.
    pub fn confirm_absences(&self, source: &str) -> Option<u64> {
        self.sources.named(source).map(|source| source.absences().confirm() as u64)
    }

    /// The accounting of its sources.
    pub fn accounting(&self) -> &Arc<Accounting> {
        &self.sources.accounting
    }

    /// How the sources besides the store answer.
    pub fn source_health(&self) -> Vec<SourceHealth> {
        self.sources.health(now())
    }

    pub fn source_count(&self) -> usize {
        self.sources.all().len()
    }

    /// Whether logins by this name go to a source.
    pub fn has_source_for(&self, name: &str) -> bool {
        self.sources.source_of(name).is_some()
    }

    /// The name of a user's record, and the source that logins by it go to, if they go to one.
    pub fn name_at(&self, typed: &str) -> (String, Option<String>) {
        self.sources.name_at(typed)
    }

    /// The source that decides logins by this name.
    pub fn number_for(&self, typed: &str) -> SourceNumber {
        let source = self.sources.source_of(typed).map(|(source, _)| source);
        self.sources.number(source.as_ref())
    }

    /// The source of this name.
    pub fn number_of(&self, name: &str) -> SourceNumber {
        self.sources.number(self.sources.named(name))
    }

    /// The source that decides the next step of the login with this number.
    pub fn number_at(&self, login: u64) -> SourceNumber {
        self.sources.number(self.logins.waiting.source_of(login).as_ref())
    }

    /// Guesses, logins and servers' requests count at all gateways of this fleet from now on.
    pub fn share(&self, notices: &Arc<Notices>) {
        self.logins.guesses.join(notices);
        self.count_gateways(1);
        self.dynamic.share(notices);
        let guesses: Weak<Guesses> = Arc::downgrade(&self.logins.guesses);
        notices.subscribe(guesses);
        for limit in [&self.logins.limit, &self.devices.limit] {
            limit.share();
            let limit: Weak<Limit> = Arc::downgrade(limit);
            notices.subscribe(limit);
        }
    }

    /// This many gateways of the fleet are alive.
    pub fn count_gateways(&self, alive: u32) {
        self.logins.guesses.share(alive);
    }

    /// Logs how many lines about refusals were left out since the last call.
    pub fn report_log(&self) {
        self.logins.record.report();
    }
}

impl From<Refusal> for LoginOutcome {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal.into())
    }
}

#[cfg(test)]
mod tests;
