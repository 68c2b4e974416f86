//! Logins of users whom another source than the store vouches for: a directory, asked by the idp
//! process.
//!
//! Invariants: a login is tried at the one source whose rule matches the name, never at another;
//! what the source lets in is still refused if the user's record here is disabled or expired, which
//! has the name of the source's entry, whichever of its names was typed; no answer is no login.
//! Logins of one source wait in a separate queue, so that a slow directory keeps no others
//! waiting. A failed login is asked for a one-time code, as local users are, whether the
//! password was wrong or the record here has a code. That or a refusal takes [`REFUSAL_TIME`], so
//! that its time discloses nothing of a source that is faster. [`super::rounds`] has what a login
//! is between two rounds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vpnd_proto::control::{ChallengeAnswer, SecretText, UserName};
use vpnd_proto::session::DeviceId;

use super::credentials::CheckResult;
use super::logins::Logins;
use super::pending::{Attempt, Step, StepKind};
use super::rounds::{APPROVAL_NOTICE, APPROVAL_POLL, AtSource, PendingReply, REPLY_MARGIN};
use super::sources::{ExternalSource, Sources};
use super::throttle::Person;
use super::{Authenticated, Cause, Login, LoginOutcome};
use vpnd_config::source::Source;
use vpnd_ipc::gateway::idp::{
    Identity, IdpChallenge, IdpRequest, LoginAnswer, LoginCheck, SourceName, SourceRefusal, Subject, Verdict,
};
use vpnd_ipc::gateway::refusal::{Refusal, Refused};
use vpnd_ipc::request::{Reason, Request};
use vpnd_ipc::turns::Turn;
use vpnd_store::password::Password;
use vpnd_store::{ExternalUser, Store, StoreError};
use vpnd_sys::clock::now;

/// Time from a login to its refusal, at least.
const REFUSAL_TIME: Duration = Duration::from_secs(1);

pub(super) struct ExternalLogins {
    pub(super) store: Arc<dyn Store>,
    pub(super) sources: Arc<Sources>,
    pub(super) logins: Arc<Logins>,
}

impl ExternalLogins {
    /// Checks a login at the one source whose rule matches, and that is the store if no other does.
    pub(super) async fn log_in(self: &Arc<Self>, login: Login, now_s: u64) -> LoginOutcome {
        let Some((source, name)) = self.sources.source_of(&login.user) else {
            return self.logins.authenticate(login, now_s).await;
        };
        let since = Instant::now();
        let login = Login { user: name, ..login };
        if source.is_provider() {
            // Nothing was checked, and this discloses no more than the configuration.
            self.logins.record.log(&login, Cause::NeedsBrowser);
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
        let Some(turn) = self.logins.queue.turn_of(&at.turns, &login, now_s).await else {
            self.logins.record.log(&login, Cause::Overloaded);
            return Refusal::Busy.into();
        };
        let Some(request) = request(&at.source, &login) else {
            return self.unavailable(&at.source.name, &login, "the name or password is too long", now_s);
        };
        let now_s = now_s + now().since(since).as_secs();
        let (this, before) = (Arc::clone(self), login.clone());
        match blocking(move || this.logins.admit(&before, person, known, now_s)).await {
            Ok(Ok(guess)) => self.ask(AtSource::new(login, guess, at), request, Some(turn), now_s).await,
            Ok(Err(outcome)) | Err(outcome) => outcome,
        }
    }

    /// Checks what needs no word of the source. Returns whose password it is, and whether they come
    /// from a known place.
    fn before_source(&self, login: &Login, now_s: u64) -> Result<(Person, bool), LoginOutcome> {
        let logins = &self.logins;
        let found = logins.history.look_up(login, now_s);
        let (user, known) = found.map_err(|error| logins.failed(login, &error))?;
        if logins.credentials.lack_certificate(login, user.as_ref()) {
            return Err(logins.not_certified(login, now_s));
        }
        let person = Person::of(&login.user, user.as_ref());
        if login.password.expose().is_empty() {
            // It is never right, so a refusal at once discloses nothing.
            let guess = logins.admit(login, person, known, now_s)?;
            return Err(logins.refuse_for_good(login, Cause::WrongPassword, &guess, now_s));
        }
        // Those that will have to wait take no place in the queue.
        let wait_s = logins.guesses.wait_s(login, &person, known, now_s);
        wait_s.map_or(Ok((person, known)), |wait_s| Err(logins.throttled(login, wait_s)))
    }

    /// Has the source asked. A login that is to be approved elsewhere waits in the pool for that.
    async fn ask(
        self: &Arc<Self>,
        at: AtSource,
        request: impl Request<Message = IdpRequest, Reply = Verdict>,
        turn: Option<Turn>,
        now_s: u64,
    ) -> LoginOutcome {
        let idp = Arc::clone(&self.sources.idp);
        let longest = at.source.source.reply_timeout() + REPLY_MARGIN;
        let mut reply = PendingReply::start(async move { idp.request(request, longest).await });
        let arrived = match at.source.source.push() {
            Some(_) => tokio::time::timeout(APPROVAL_NOTICE, reply.arrived()).await.ok(),
            None => Some(reply.arrived().await),
        };
        drop(turn);
        let this = Arc::clone(self);
        blocking(move || match arrived {
            Some(reply) => this.after_source(at, reply, now_s),
            None => this.await_approval(at, reply, now_s),
        })
        .await
        .unwrap_or_else(|refused| refused)
    }

    /// Decides by what the source has answered, and the user's record here.
    fn after_source(&self, at: AtSource, reply: Result<Verdict, Reason>, now_s: u64) -> LoginOutcome {
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
            self.logins.record.refused(&at.login, Cause::NotApproved, now_s);
            return Refusal::NotApproved.into();
        }
        self.logins.guesses.take_back(&at.login, at.guess);
        self.unavailable(&at.source.source.name, &at.login, &reason, now_s)
    }

    /// Notes which entry of the source the name has led to: guesses by other names of it count for
    /// the same person.
    fn is_entry(&self, at: &AtSource, subject: &Subject) {
        self.logins.guesses.is_entry(&at.login.user, Person::entry(&at.source.source.name, subject));
    }

    pub(super) fn vouched_for(&self, at: AtSource, identity: &Identity, now_s: u64) -> LoginOutcome {
        self.is_entry(&at, &identity.subject);
        let (login, source) = (&at.login, at.source.source.name.as_str());
        // A name that another source has is none for this one.
        let is_here = |name: &&UserName| self.sources.is_name_of(&at.source, name);
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
            Err(error) => return self.logins.failed(login, &error),
        };
        let accept = at.accept(identity);
        let (limits, addresses) = (accept.limits, accept.addresses);
        self.sources.accounting.accepted(&user, login.device, login.source, accept);
        match self.logins.credentials.check_user(
            login,
            Authenticated {
                user,
                factors: at.factors(),
                limits,
                addresses,
                is_shown: at.is_shown(),
                auth_time_s: at.auth_time_s(),
            },
            at.guess.is_known(),
            now_s,
        ) {
            Ok(CheckResult::Refused(cause)) => self.refused(at, cause, now_s),
            checked => self.logins.conclude(login, checked, at.guess, now_s),
        }
    }

    /// Refuses a login. One that has not waited for a person is asked for a code first, whatever
    /// was wrong.
    fn refused(&self, at: AtSource, cause: Cause, now_s: u64) -> LoginOutcome {
        if at.is_shown() {
            let AtSource { login, guess, .. } = at;
            self.logins.guesses.take_back(&login, guess);
            self.logins.record.refused(&login, cause, now_s);
            let is_disabled = cause == Cause::Disabled;
            return if is_disabled { Refusal::Disabled } else { Refusal::NotConfirmed }.into();
        }
        if at.has_waited() {
            return self.logins.refuse_for_good(&at.login, cause, &at.guess, now_s);
        }
        self.logins.refuse(&at.login, cause, at.guess, now_s)
    }

    /// No guess: nothing was checked, and a directory that is down must not lock users out.
    fn unavailable(&self, source: &str, login: &Login, why: &str, now_s: u64) -> LoginOutcome {
        self.logins.record.source_failed(source, why);
        self.logins.record.refused(login, Cause::SourceUnavailable, now_s);
        Refusal::SourceUnavailable.into()
    }

    /// A server demands more than it was sent.
    fn challenge(&self, mut at: AtSource, challenge: &IdpChallenge, now_s: u64) -> LoginOutcome {
        if !at.begin_round() {
            return self.refused(at, Cause::TooManyRounds, now_s);
        }
        let demand = at.demand(challenge);
        let step = |at| Step::Challenge(at, challenge.round.clone());
        self.wait(at, step, now_s)
            .map_or(Refusal::WaitingFull.into(), |number| LoginOutcome::Challenge(number, demand))
    }

    fn await_approval(&self, at: AtSource, reply: PendingReply, now_s: u64) -> LoginOutcome {
        let demand = at.approval();
        let step = |at| Step::Approval(at, Some(reply));
        self.wait(at, step, now_s)
            .map_or(Refusal::WaitingFull.into(), |number| LoginOutcome::Approval(number, demand))
    }

    /// Has a login wait for a person; its number, if there is room.
    fn wait(&self, mut at: AtSource, step: impl FnOnce(AtSource) -> Step, now_s: u64) -> Option<u64> {
        let (login, since) = (at.login.clone(), at.waits_since());
        self.logins.waiting.add(Attempt { login, since, step: step(at) }, now_s)
    }

    /// The answer of a person has come, for the login with this number.
    pub(super) async fn answer(
        self: &Arc<Self>,
        number: u64,
        answer: &ChallengeAnswer,
        device: DeviceId,
        now_s: u64,
    ) -> LoginOutcome {
        let kind = self.logins.waiting.kind_of(number, device);
        match kind {
            // It came too late or was displaced, and was recorded then.
            None => Refusal::Busy.into(),
            Some(StepKind::Code) => {
                let (logins, code) = (Arc::clone(&self.logins), Password::new(answer.expose().to_owned()));
                let completed = blocking(move || logins.complete(number, &code, now_s)).await;
                completed.unwrap_or_else(|refused| refused)
            }
            Some(StepKind::Challenge) => self.answer_challenge(number, answer, now_s).await,
            // The worker mixes up its logins.
            Some(StepKind::Approval | StepKind::Foreign) => {
                self.logins.waiting.abandon(number, now_s);
                Refusal::Credentials.into()
            }
        }
    }

    async fn answer_challenge(
        self: &Arc<Self>,
        number: u64,
        answer: &ChallengeAnswer,
        now_s: u64,
    ) -> LoginOutcome {
        let waited = self.logins.waiting.take(number, now_s).map(|attempt| attempt.step);
        let Some(Step::Challenge(at, round)) = waited else { return Refusal::Busy.into() };
        let source = &at.source.source;
        let Ok(user) = UserName::new(source.name_of(&at.login.user)) else { return Refusal::Busy.into() };
        let request = LoginAnswer {
            source: SourceName::cut(&source.name),
            user,
            answer: answer.clone(),
            address: at.login.source,
            round,
        };
        self.ask(at, request, None, now_s).await
    }

    /// The decision of the server about the login with this number; `None` while it still waits.
    pub(super) async fn approved(
        self: &Arc<Self>,
        number: u64,
        device: DeviceId,
        now_s: u64,
    ) -> Option<LoginOutcome> {
        let reply = self.logins.waiting.take_reply(number, device);
        let Some(mut reply) = reply else { return Some(Refusal::Busy.into()) };
        let Ok(arrived) = tokio::time::timeout(APPROVAL_POLL, reply.arrived()).await else {
            self.logins.waiting.put_back(number, reply);
            return None;
        };
        let this = Arc::clone(self);
        let decided = blocking(move || {
            let waited = this.logins.waiting.take(number, now_s).map(|attempt| attempt.step);
            let Some(Step::Approval(at, _)) = waited else { return Refusal::Busy.into() };
            this.after_source(at, arrived, now_s)
        })
        .await;
        Some(decided.unwrap_or_else(|refused| refused))
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
