//! Authentication of users: password, one-time code, client certificate, and limits for guesses.
//!
//! Invariants: a refusal does not disclose its cause to the client ([`Refusal`]), while the audit
//! file has it; where any user has codes, every failed login without a code is asked for one,
//! whatever was wrong and whichever source knows the user, and counts as a wrong guess until the
//! right one comes; an unknown user costs as much time as a known one; a code is good once; guesses
//! from elsewhere can't lock out a person from a source they came from before; if the store fails,
//! no login succeeds. Hashing takes tens of milliseconds and megabytes, so it runs on a bounded
//! number of threads behind a bounded queue, which networks share fairly ([`vpnd_ipc::turns`]),
//! never on a shard, and steps back behind other work. Whose turn it is depends on addresses and
//! devices, never on whether a user exists. This module must not know of connections or sessions.

mod absences;
pub(super) mod allowances;
mod at_provider;
mod by_visit;
mod cause;
mod credentials;
mod device;
mod dynamic;
pub(super) mod external;
mod grant;
mod guesses;
mod history;
mod known_sources;
mod login_record;
mod own_changes;
mod pending;
mod queue;
mod recheck;
mod refresh;
pub(super) mod rounds;
mod throttle;
pub(super) mod token_seal;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use vpnd_proto::session::DeviceId;

use crate::notices::Notices;
use allowances::{LOGINS, Limit, Limited};
pub(crate) use by_visit::{LoginFacts, Visit};
pub use cause::Cause;
use credentials::{CheckResult, Credentials};
pub(crate) use device::DeviceOutcome;
use external::External;
pub use grant::Authenticated;
use grant::certificate_cause;
use guesses::Guesses;
use history::History;
use login_record::LoginRecord;
pub(crate) use own_changes::Chosen;
use pending::{Attempt, LIFETIME, Pending, Step};
use queue::Queue;
use rounds::Demand;
use throttle::{Guess, Person};
use vpnd_config::factor::Factors;
use vpnd_ipc::gateway::auth::SourceHealth;
use vpnd_ipc::gateway::refusal::{Refusal, Refused};
use vpnd_store::password::{Hasher, NoMemory, Password};
use vpnd_store::{CertificateHash, Store, StoreError, UserId};
use vpnd_sys::clock::now;

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

pub struct Authenticator {
    store: Arc<dyn Store>,
    credentials: Credentials,
    history: Arc<History>,
    record: LoginRecord,
    pending: Mutex<Pending>,
    guesses: Arc<Guesses>,
    logins: Arc<Limit>,
    /// Those of WireGuard devices, apart from logins.
    admissions: Arc<Limit>,
    queue: Queue,
    external: External,
    /// Users without sessions who are checked again as well.
    visitors: OnceLock<Visitors>,
}

/// Returns users who are logged in elsewhere than in sessions, as of which generations.
pub(crate) type Visitors = Box<dyn Fn() -> Vec<(UserId, u64)> + Send + Sync>;

impl Authenticator {
    /// Makes an authenticator over `store`. Takes as long as one login, to hash a dummy password.
    ///
    /// # Errors
    /// [`NoMemory`], as for any login.
    pub fn new(store: Arc<dyn Store>, hasher: Hasher, settings: Settings) -> Result<Self, NoMemory> {
        let Settings { workers, queue, longest_wait, require_certificate } = settings;
        let history = Arc::new(History::new(Arc::clone(&store)));
        Ok(Self {
            credentials: Credentials::new(Arc::clone(&store), hasher, require_certificate)?,
            queue: Queue::new(workers.max(1), queue, longest_wait, Arc::clone(&history)),
            history,
            store,
            record: LoginRecord::default(),
            pending: Mutex::new(Pending::new()),
            guesses: Arc::default(),
            logins: Arc::new(Limit::new(Limited::Logins, LOGINS)),
            admissions: Arc::new(Limit::new(Limited::Admissions, LOGINS)),
            external: External::default(),
            visitors: OnceLock::new(),
        })
    }

    /// Checks a login on a thread that may wait, when it is its turn. If that does not come in
    /// time, or too many of its network wait already, nothing is checked.
    pub async fn authenticate(self: &Arc<Self>, login: Login, now_s: u64) -> LoginOutcome {
        let since = now();
        let Some(turn) = self.queue.turn(&login, now_s).await else {
            self.log_refusal(&login, Cause::Overloaded);
            return Refusal::Busy.into();
        };
        let (this, now_s) = (Arc::clone(self), now_s + now().since(since).as_secs());
        // The turn moves into the thread: a client that hangs up does not make room before its hash
        // is done.
        let checked = tokio::task::spawn_blocking(move || {
            let outcome = this.check(&login, now_s);
            drop(turn);
            outcome
        });
        checked.await.unwrap_or_else(|error| {
            tracing::error!(%error, "checking a login failed");
            Refusal::Credentials.into()
        })
    }

    /// Checks a login on this thread, which waits for the hash and the store.
    pub fn check(&self, login: &Login, now_s: u64) -> LoginOutcome {
        let (user, known) = match self.history.look_up(login, now_s) {
            Ok(found) => found,
            Err(error) => return self.failed(login, &error),
        };
        if self.credentials.lack_certificate(login, user.as_ref()) {
            return self.not_certified(login, now_s);
        }
        let guess = match self.admit(login, Person::of(&login.user, user.as_ref()), known, now_s) {
            Ok(guess) => guess,
            Err(throttled) => return throttled,
        };
        self.conclude(login, self.credentials.check(login, user, now_s), guess, now_s)
    }

    /// The outcome of a login whose credentials were checked, as far as the client has sent them.
    fn conclude(
        &self,
        login: &Login,
        checked: Result<CheckResult, StoreError>,
        guess: Guess,
        now_s: u64,
    ) -> LoginOutcome {
        match checked {
            Ok(CheckResult::Granted(user)) => self.granted(login, user, guess, now_s),
            Ok(CheckResult::CodeRequired(user)) => {
                // The question that a wrong password leads to (`refuse_login`): without it a right
                // one would be answered sooner.
                let _ = self.store.has_one_time_codes();
                self.require_code(login, Ok(user), guess, now_s)
            }
            Ok(CheckResult::Refused(cause)) => self.refuse_login(login, cause, guess, now_s),
            Ok(CheckResult::NotAdmitted(why)) => self.not_admitted(login, why, guess, now_s),
            Ok(CheckResult::NotChecked(none)) => {
                // The login does not count as a guess, and the client may try again.
                tracing::error!(error = %none, "a login could not be checked");
                self.guesses.take_back(login, guess);
                self.log_refusal(login, Cause::NoMemory);
                Refusal::Busy.into()
            }
            Err(error) => {
                self.guesses.take_back(login, guess);
                self.failed(login, &error)
            }
        }
    }

    /// Counts a login as a guess, or does not let it go on: the last step before its password is
    /// looked at.
    fn admit(&self, login: &Login, person: Person, known: bool, now_s: u64) -> Result<Guess, LoginOutcome> {
        let admitted = self.guesses.admit(login, person, known, now_s);
        let admitted = admitted.map_err(|error| self.failed(login, &error))?;
        admitted.map_err(|wait_s| self.throttled(login, wait_s))
    }

    /// Nothing was checked, so this neither counts nor costs a write.
    fn throttled(&self, login: &Login, wait_s: u64) -> LoginOutcome {
        self.log_refusal(login, Cause::Throttled);
        LoginOutcome::Refused(Refusal::Throttled.retry_after_s(Some(wait_s)))
    }

    /// Refuses a login. Where any user has codes, one without a code is asked for it first,
    /// whatever was wrong.
    fn refuse_login(&self, login: &Login, cause: Cause, guess: Guess, now_s: u64) -> LoginOutcome {
        // Not the named user counts, so this discloses nothing of one.
        if login.code.is_none() && self.store.has_one_time_codes().unwrap_or(true) {
            return self.require_code(login, Err(cause), guess, now_s);
        }
        self.refuse_for_good(login, cause, &guess, now_s)
    }

    fn refuse_for_good(&self, login: &Login, cause: Cause, guess: &Guess, now_s: u64) -> LoginOutcome {
        self.record_refused(login, cause, now_s);
        LoginOutcome::Refused(
            Refusal::Credentials.retry_after_s(self.guesses.wait_after_s(login, guess, now_s)),
        )
    }

    /// Asks for a one-time code, whatever was wrong. The login goes on counting as a guess, so that
    /// leaving discloses nothing.
    fn require_code(
        &self,
        login: &Login,
        awaited: Result<Box<Authenticated>, Cause>,
        guess: Guess,
        now_s: u64,
    ) -> LoginOutcome {
        let attempt = Attempt { login: login.clone(), since: now(), step: Step::Code(awaited, guess) };
        self.add(attempt, now_s).map_or(Refusal::WaitingFull.into(), LoginOutcome::CodeRequired)
    }

    /// Has a login wait for a person; its number, if there is room.
    fn add(&self, attempt: Attempt, now_s: u64) -> Option<u64> {
        let (number, over) = self.pending().add(now(), attempt);
        for attempt in &over {
            self.record_over(attempt, now_s);
        }
        number
    }

    /// The code came, for a login that was asked for one.
    pub fn complete(&self, number: u64, code: &Password, now_s: u64) -> LoginOutcome {
        let Some((login, awaited, guess)) = self.take(number, now_s).and_then(Attempt::into_code) else {
            // It came too late or was displaced, and was counted then.
            return Refusal::Busy.into();
        };
        match (
            self.credentials.check_code(
                awaited.as_ref().map(|user| &user.user).map_err(|cause| *cause),
                code,
                now_s,
            ),
            awaited,
        ) {
            (Ok(None), Ok(mut user)) => {
                user.factors = user.factors.and(Factors::ONE_TIME_CODE);
                self.conclude(&login, self.credentials.check_profile(&login, user, now_s), guess, now_s)
            }
            (Ok(None), Err(cause)) | (Ok(Some(cause)), _) => {
                self.refuse_for_good(&login, cause, &guess, now_s)
            }
            (Err(error), _) => self.failed(&login, &error),
        }
    }

    /// The person has gone, whom a login waited for.
    pub fn abandon(&self, number: u64, now_s: u64) {
        let attempt = self.pending().take(number);
        if let Some(attempt) = attempt {
            self.record_over(&attempt, now_s);
        }
    }

    /// Takes out a login that has waited, unless its time is over.
    fn take(&self, number: u64, now_s: u64) -> Option<Attempt> {
        let attempt = self.pending().take(number)?;
        if now().since(attempt.since) < LIFETIME {
            return Some(attempt);
        }
        self.record_over(&attempt, now_s);
        None
    }

    /// Records a login that waited without success.
    fn record_over(&self, attempt: &Attempt, now_s: u64) {
        let cause = attempt.step.cause();
        self.record_refused(&attempt.login, cause, now_s);
    }

    /// Not counted as a guess: a stranger could lock users out by it.
    fn not_certified(&self, login: &Login, now_s: u64) -> LoginOutcome {
        self.record_refused(login, certificate_cause(login), now_s);
        Refusal::Certificate.into()
    }

    /// Logs and records a refused login.
    fn record_refused(&self, login: &Login, cause: Cause, now_s: u64) {
        self.record.refused(login, self.external.source_name(&login.user), cause, now_s);
    }

    /// Refuses a login because the store has failed.
    fn failed(&self, login: &Login, error: &StoreError) -> LoginOutcome {
        tracing::error!(%error, "a login could not be checked");
        self.log_refusal(login, Cause::StoreFailed);
        match error {
            StoreError::Database { .. } if error.is_for_now() => Refusal::StoreUnavailable.into(),
            _ => Refusal::Credentials.into(),
        }
    }

    fn log_refusal(&self, login: &Login, cause: Cause) {
        self.record.log(login, self.external.source_name(&login.user), cause);
    }

    /// How the sources besides the store answer.
    pub(crate) fn source_health(&self) -> Vec<SourceHealth> {
        self.external.health(now())
    }

    /// Has these users checked again as those with sessions.
    pub(crate) fn follow_visitors(&self, visitors: Visitors) {
        // The first one stays: there is one portal.
        let _ = self.visitors.set(visitors);
    }

    /// Guesses and logins count at all gateways of this fleet from now on.
    pub(crate) fn share(&self, notices: &Arc<Notices>) {
        self.guesses.join(notices);
        self.count_gateways(1);
        let guesses: Weak<Guesses> = Arc::downgrade(&self.guesses);
        notices.subscribe(guesses);
        for limit in [&self.logins, &self.admissions] {
            limit.share();
            let limit: Weak<Limit> = Arc::downgrade(limit);
            notices.subscribe(limit);
        }
    }

    /// This many gateways of the fleet are alive.
    pub(crate) fn count_gateways(&self, alive: u32) {
        self.guesses.share(alive);
    }

    /// Takes all whom this source shows no more for gone: how many users with sessions these are,
    /// if there is such a source.
    pub fn confirm_absences(&self, source: &str) -> Option<u64> {
        let source = self.external.sources.iter().find(|listed| listed.source.name == source);
        source.map(|source| source.absences().confirm() as u64)
    }

    /// Logs how many lines about refusals were left out since the last call.
    pub fn report_log(&self) {
        self.record.report();
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Refusal> for LoginOutcome {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal.into())
    }
}

#[cfg(test)]
mod tests;
