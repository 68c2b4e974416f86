//! Logins of users whom another source than the store vouches for: a directory, asked by the idp
//! process.
//!
//! Invariants: a login is tried at the one source whose rule matches the name, never at another;
//! what the source lets in is still refused if the user's record here is disabled or expired, which
//! has the name of the source's entry, whichever of its names was typed; no answer is no login.
//! Logins of one source wait in a separate queue, so that a slow directory keeps no others
//! waiting. A failed login is asked for a one-time code, as local users are, whether the
//! password was wrong or the record here has a code. That or a refusal takes [`REFUSAL_TIME`], so
//! that its time discloses nothing of a source that is faster. Further rounds are the affair of
//! [`super::rounds`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vpnd_proto::control::{SecretText, UserName};
use vpnd_proto::time::Time;

use super::absences::Absences;
use super::refresh::Asking;
use super::rounds::AtSource;
use super::throttle::Person;
use super::token_seal::TokenSeal;
use super::{Authenticated, Authenticator, Cause, CheckResult, Login, LoginOutcome};
use crate::accounting::Accounting;
use crate::idp_client::IdpClient;
use vpnd_config::source::{Source, SourceKind};
use vpnd_config::user_name;
use vpnd_ipc::gateway::auth::SourceHealth;
use vpnd_ipc::gateway::idp::{Identity, LoginCheck, SourceName, SourceRefusal, Subject, Verdict};
use vpnd_ipc::gateway::portal::turns::{STORE, SourceNumber};
use vpnd_ipc::gateway::refusal::{Refusal, Refused};
use vpnd_ipc::request::Reason;
use vpnd_ipc::turns::Turns;
use vpnd_store::{ExternalUser, LOCAL, StoreError};
use vpnd_sys::clock::now;

/// Time from a login to its refusal, at least.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// Logins that wait for a source, for each that is checked there.
const QUEUE_FACTOR: usize = 8;

/// Logins of a source that are under way at the same time, those among them that wait for a
/// refusal's time.
pub(crate) fn permits(source: &Source) -> usize {
    (source.max_logins * (QUEUE_FACTOR + 1) + source.max_waiting()) * 2
}

/// The sources besides the store, and the way to them.
#[derive(Default)]
pub(crate) struct External {
    pub(super) sources: Vec<Arc<ExternalSource>>,
    pub(super) idp: Arc<IdpClient>,
    pub(super) accounting: Arc<Accounting>,
    pub(super) tokens: TokenSeal,
    pub(super) asking: Asking,
}

pub(super) struct ExternalSource {
    pub(super) source: Source,
    pub(super) turns: Arc<Turns>,
    health: Mutex<Health>,
    absences: Mutex<Absences>,
}

/// How a source has answered since this process began.
#[derive(Clone, Copy, Debug, Default)]
struct Health {
    up: Option<bool>,
    last_answer: Option<Time>,
    /// When the first request after that got no answer.
    silent_since: Option<Time>,
    answers: u64,
    failures: u64,
}

impl Health {
    fn count(&mut self, answered: bool, now: Time) {
        self.up = Some(answered);
        if answered {
            self.last_answer = Some(now);
            self.silent_since = None;
            self.answers += 1;
        } else {
            self.silent_since.get_or_insert(now);
            self.failures += 1;
        }
    }
}

impl ExternalSource {
    fn new(source: &Source) -> Self {
        let turns = Turns::new(source.max_logins, source.max_logins * QUEUE_FACTOR);
        Self { source: source.clone(), turns, health: Mutex::default(), absences: Mutex::default() }
    }

    /// Counts one request, and whether there was a reply.
    pub(super) fn replied(&self, answered: bool, now: Time) {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).count(answered, now);
    }

    /// The users with sessions whom it shows no more.
    pub(super) fn absences(&self) -> MutexGuard<'_, Absences> {
        self.absences.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn health(&self, accounting: &Accounting, now: Time) -> SourceHealth {
        let health = *self.health.lock().unwrap_or_else(PoisonError::into_inner);
        SourceHealth {
            name: SourceName::cut(&self.source.name),
            up: health.up,
            last_answer_s: health.last_answer.map(|at| now.since(at).as_secs()),
            silent_s: health.silent_since.map(|at| now.since(at).as_secs()),
            answers: health.answers,
            failures: health.failures,
            accounting: accounting.health(&self.source.name),
            missing: self.absences().held() as u64,
        }
    }
}

impl External {
    pub(crate) fn new(
        sources: &[Source],
        idp: Arc<IdpClient>,
        accounting: Arc<Accounting>,
        tokens: TokenSeal,
    ) -> Self {
        let sources = sources.iter().map(|source| Arc::new(ExternalSource::new(source)));
        Self { sources: sources.collect(), idp, accounting, tokens, asking: Asking::default() }
    }

    /// How each source answers.
    pub(super) fn health(&self, now: Time) -> Vec<SourceHealth> {
        self.sources.iter().map(|source| source.health(&self.accounting, now)).collect()
    }

    /// The source of a user, and the user's canonical name.
    fn source_of(&self, typed: &str) -> Option<(Arc<ExternalSource>, String)> {
        let name = user_name::canonical(typed)?;
        Some((Arc::clone(self.matching(&name)?), name))
    }

    fn matching(&self, canonical: &str) -> Option<&Arc<ExternalSource>> {
        self.sources.iter().find(|source| source.source.rule.matches(canonical))
    }

    /// The number of a source: that of its place, from 1.
    fn number(&self, is_it: impl Fn(&ExternalSource) -> bool) -> SourceNumber {
        let place = self.sources.iter().position(|source| is_it(source));
        place.and_then(|place| SourceNumber::try_from(place + 1).ok()).unwrap_or(STORE)
    }

    /// The name of the source that a user belongs to.
    pub(super) fn source_name(&self, typed: &str) -> &str {
        let canonical = user_name::canonical(typed);
        let source = canonical.and_then(|name| self.matching(&name));
        source.map_or(LOCAL, |source| source.source.name.as_str())
    }
}

impl Authenticator {
    /// Adds sources to the store.
    pub(crate) fn with_external(mut self, external: External) -> Self {
        self.external = external;
        self
    }

    /// The accounting of its sources.
    pub fn accounting(&self) -> &Arc<Accounting> {
        &self.external.accounting
    }

    /// Checks a login at the one source whose rule matches, and that is the store if no other does.
    pub async fn log_in(self: &Arc<Self>, login: Login, now_s: u64) -> LoginOutcome {
        let Some((source, name)) = self.external.source_of(&login.user) else {
            return self.authenticate(login, now_s).await;
        };
        let since = Instant::now();
        let login = Login { user: name, ..login };
        if matches!(source.source.kind, SourceKind::Oidc(_)) {
            // Nothing was checked, and this discloses no more than the configuration.
            self.log_refusal(&login, Cause::NeedsBrowser);
            return Refusal::NeedsBrowser.into();
        }
        let outcome = self.log_in_at(source, login, now_s).await;
        if matches!(
            outcome,
            LoginOutcome::Refused(Refused { refusal: Refusal::Credentials, .. })
                | LoginOutcome::CodeRequired(_)
        ) {
            tokio::time::sleep_until((since + REFUSAL_TIME).into()).await;
        }
        outcome
    }

    async fn log_in_at(self: &Arc<Self>, at: Arc<ExternalSource>, login: Login, now_s: u64) -> LoginOutcome {
        let since = now();
        let (this, before) = (Arc::clone(self), login.clone());
        let (person, known) = match blocking(move || this.before_source(&before, now_s)).await {
            Ok(Ok(found)) => found,
            Ok(Err(outcome)) | Err(outcome) => return outcome,
        };
        let Some(turn) = self.queue.turn_of(&at.turns, &login, now_s).await else {
            self.log_refusal(&login, Cause::Overloaded);
            return Refusal::Busy.into();
        };
        let Some(request) = request(&at.source, &login) else {
            return self.unavailable(&at.source.name, &login, "the name or password is too long", now_s);
        };
        let now_s = now_s + now().since(since).as_secs();
        let (this, before) = (Arc::clone(self), login.clone());
        match blocking(move || this.admit(&before, person, known, now_s)).await {
            Ok(Ok(guess)) => self.ask(AtSource::new(login, guess, at), request, Some(turn), now_s).await,
            Ok(Err(outcome)) | Err(outcome) => outcome,
        }
    }

    pub(crate) fn source_count(&self) -> usize {
        self.external.sources.len()
    }

    /// The source that decides logins by this name.
    pub(crate) fn number_for(&self, typed: &str) -> SourceNumber {
        let source = self.external.source_of(typed).map(|(source, _)| source);
        source.map_or(STORE, |source| self.external.number(|other| std::ptr::eq(other, &*source)))
    }

    /// The source of this name.
    pub(crate) fn number_of(&self, name: &str) -> SourceNumber {
        self.external.number(|source| source.source.name == name)
    }

    /// The source that decides the next step of the login with this number.
    pub(crate) fn number_at(&self, login: u64) -> SourceNumber {
        let source = self.pending().source_of(login);
        source.map_or(STORE, |source| self.external.number(|other| std::ptr::eq(other, &*source)))
    }

    /// Checks what needs no word of the source. Returns whose password it is, and whether they come
    /// from a known place.
    fn before_source(&self, login: &Login, now_s: u64) -> Result<(Person, bool), LoginOutcome> {
        let (user, known) = self.history.look_up(login, now_s).map_err(|error| self.failed(login, &error))?;
        if self.credentials.lack_certificate(login, user.as_ref()) {
            return Err(self.not_certified(login, now_s));
        }
        let person = Person::of(&login.user, user.as_ref());
        if login.password.expose().is_empty() {
            // It is never right, so a refusal at once discloses nothing.
            let guess = self.admit(login, person, known, now_s)?;
            return Err(self.refuse_for_good(login, Cause::WrongPassword, &guess, now_s));
        }
        // Those that will have to wait take no place in the queue.
        let wait_s = self.guesses.wait_s(login, &person, known, now_s);
        wait_s.map_or(Ok((person, known)), |wait_s| Err(self.throttled(login, wait_s)))
    }

    /// Decides by what the source has answered, and the user's record here.
    pub(super) fn after_source(
        &self,
        at: AtSource,
        reply: Result<Verdict, Reason>,
        now_s: u64,
    ) -> LoginOutcome {
        let is_unapproved = at.has_waited() && at.source.source.push().is_some();
        if reply.is_ok() || !is_unapproved {
            at.source.replied(reply.is_ok(), now());
        }
        let reason = match reply {
            Ok(Verdict::Accepted(identity)) => return self.vouched_for(at, &identity, now_s),
            Ok(Verdict::Refused(refusal)) => return self.refused(at, cause(refusal), now_s),
            Ok(Verdict::RefusedEntry(refusal, subject)) => {
                self.is_entry(&at, &subject);
                return self.refused(at, cause(refusal), now_s);
            }
            Ok(Verdict::Challenge(challenge)) => return self.challenge(at, &challenge, now_s),
            Err(reason) => reason,
        };
        if is_unapproved {
            // The server gives no answer to who does not approve. Coming back by itself, the client
            // would bother the person again.
            tracing::warn!(source = at.source.source.name, why = %reason, "a login was not approved");
            self.record_refused(&at.login, Cause::NotApproved, now_s);
            return Refusal::NotApproved.into();
        }
        self.guesses.take_back(&at.login, at.guess);
        self.unavailable(&at.source.source.name, &at.login, &reason, now_s)
    }

    /// Notes which entry of the source the name has led to: guesses by other names of it count for
    /// the same person.
    fn is_entry(&self, at: &AtSource, subject: &Subject) {
        self.guesses.is_entry(&at.login.user, Person::entry(&at.source.source.name, subject));
    }

    /// Whether logins by this name go to a source.
    pub(crate) fn has_source_for(&self, name: &str) -> bool {
        self.external.source_of(name).is_some()
    }

    /// The name of a user's record, and the source that logins by it go to, if they go to one.
    pub(crate) fn name_at(&self, typed: &str) -> (String, Option<String>) {
        let found = self.external.source_of(typed);
        found.map_or((typed.to_owned(), None), |(at, name)| (name, Some(at.source.name.clone())))
    }

    /// Whether the name, as it is, belongs to this source.
    pub(super) fn is_name_of(&self, at: &Arc<ExternalSource>, name: &str) -> bool {
        let (found, canonical) = self.external.source_of(name).unzip();
        found.is_some_and(|found| Arc::ptr_eq(&found, at)) && canonical.as_deref() == Some(name)
    }

    pub(super) fn vouched_for(&self, at: AtSource, identity: &Identity, now_s: u64) -> LoginOutcome {
        self.is_entry(&at, &identity.subject);
        let (login, source) = (&at.login, at.source.source.name.as_str());
        // A name that another source has is none for this one.
        let is_here = |name: &&UserName| self.is_name_of(&at.source, name);
        let name = identity.name.as_ref().filter(is_here).map_or(login.user.as_str(), |name| &**name);
        let external = ExternalUser {
            source: source.to_owned(),
            subject: identity.subject.to_string(),
            name: name.to_owned(),
            groups: identity.groups.iter().map(ToString::to_string).collect(),
        };
        let user = match self.store.refresh_external(&external, now_s) {
            Ok(user) => user,
            Err(error @ (StoreError::NameTaken { .. } | StoreError::Unusable { .. })) => {
                tracing::warn!(%error, source, "a user of a source has no record here");
                return self.refused(at, Cause::NoRecord, now_s);
            }
            Err(error) => return self.failed(login, &error),
        };
        let accept = at.accept(identity);
        let (limits, addresses) = (accept.limits, accept.addresses);
        self.external.accounting.accepted(&user, login.device, login.source, accept);
        match self.credentials.check_user(
            login,
            Authenticated {
                user,
                factors: at.factors(),
                limits,
                addresses,
                is_shown: at.is_shown(),
                auth_time_s: at.auth_time_s(),
            },
            now_s,
        ) {
            Ok(CheckResult::Refused(cause)) => self.refused(at, cause, now_s),
            checked => self.conclude(login, checked, at.guess, now_s),
        }
    }

    /// Refuses a login. One that has not waited for a person is asked for a code first, whatever
    /// was wrong.
    pub(super) fn refused(&self, at: AtSource, cause: Cause, now_s: u64) -> LoginOutcome {
        if at.is_shown() {
            let AtSource { login, guess, .. } = at;
            self.guesses.take_back(&login, guess);
            self.record_refused(&login, cause, now_s);
            let is_disabled = cause == Cause::Disabled;
            return if is_disabled { Refusal::Disabled } else { Refusal::NotConfirmed }.into();
        }
        if at.has_waited() {
            return self.refuse_for_good(&at.login, cause, &at.guess, now_s);
        }
        self.refuse_login(&at.login, cause, at.guess, now_s)
    }

    /// No guess: nothing was checked, and a directory that is down must not lock users out.
    fn unavailable(&self, source: &str, login: &Login, why: &str, now_s: u64) -> LoginOutcome {
        self.record.source_failed(source, why);
        self.record_refused(login, Cause::SourceUnavailable, now_s);
        Refusal::SourceUnavailable.into()
    }
}

/// Runs `work` on a thread that may wait for the disk.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, LoginOutcome> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        tracing::error!(%error, "checking a login failed");
        Refusal::Credentials.into()
    })
}

/// The request by which a login begins; `None` if it is longer than a message takes.
fn request(source: &Source, login: &Login) -> Option<LoginCheck> {
    Some(LoginCheck {
        source: SourceName::cut(&source.name),
        user: UserName::new(source.name_of(&login.user)).ok()?,
        password: SecretText::new(login.password.expose()).ok()?,
        address: login.source,
    })
}

pub(super) fn cause(refusal: SourceRefusal) -> Cause {
    match refusal {
        SourceRefusal::UnknownUser => Cause::UnknownUser,
        SourceRefusal::WrongPassword => Cause::WrongPassword,
        SourceRefusal::Disabled => Cause::Disabled,
        SourceRefusal::SeveralUsers | SourceRefusal::NoSubject | SourceRefusal::NoName => Cause::NoRecord,
        SourceRefusal::NotProved => Cause::NotProved,
        SourceRefusal::TooManyGroups => Cause::TooManyGroups,
    }
}

#[cfg(test)]
mod tests;
