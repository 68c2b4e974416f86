//! Logins with a password that is checked here, and the last step of all others: whether an access
//! profile is for the user and its required factors were proved, and the record of it.
//!
//! Invariants: a refusal does not disclose its cause to the client ([`Refusal`]), while the audit
//! file has it; where any user has codes, every failed login without a code is asked for one,
//! whatever was wrong and whichever source knows the user, and counts as a wrong guess until the
//! right one comes; if the store fails, no login succeeds. No user is let in without a profile, or
//! by fewer factors than it requires. That this is the reason shows only after a factor besides the
//! password: to a user who has shown no other, a right password that does not suffice is a wrong
//! one, in its answer, its time and its count.

use std::sync::Arc;

use super::allowances::Limit;
use super::credentials::{CheckResult, Credentials};
use super::grant::certificate_cause;
use super::guesses::Guesses;
use super::history::History;
use super::login_record::LoginRecord;
use super::pending::{Attempt, Step};
use super::queue::Queue;
use super::throttle::{Guess, Person};
use super::waiting::Waiting;
use super::{Authenticated, Cause, Login, LoginOutcome};
use crate::access::NotAdmitted;
use vpnd_config::factor::Factors;
use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_store::StoreError;
use vpnd_store::password::Password;
use vpnd_sys::clock::now;

pub(super) struct Logins {
    pub(super) credentials: Credentials,
    pub(super) history: Arc<History>,
    pub(super) record: Arc<LoginRecord>,
    pub(super) guesses: Arc<Guesses>,
    pub(super) limit: Arc<Limit>,
    pub(super) waiting: Waiting,
    pub(super) queue: Queue,
}

impl Logins {
    /// Checks a login on a thread that may wait, when it is its turn. If that does not come in
    /// time, or too many of its network wait already, nothing is checked.
    pub(super) async fn authenticate(self: &Arc<Self>, login: Login, now_s: u64) -> LoginOutcome {
        let since = now();
        let Some(turn) = self.queue.turn(&login, now_s).await else {
            self.record.log(&login, Cause::Overloaded);
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
    pub(super) fn check(&self, login: &Login, now_s: u64) -> LoginOutcome {
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
        self.conclude(login, self.credentials.check(login, user, known, now_s), guess, now_s)
    }

    /// The outcome of a login whose credentials were checked, as far as the client has sent them.
    pub(super) fn conclude(
        &self,
        login: &Login,
        checked: Result<CheckResult, StoreError>,
        guess: Guess,
        now_s: u64,
    ) -> LoginOutcome {
        match checked {
            Ok(CheckResult::Granted(user)) => self.granted(login, user, guess, now_s),
            Ok(CheckResult::CodeRequired(user)) => {
                // The question that a wrong password leads to (`refuse`): without it a right one
                // would be answered sooner.
                let _ = self.credentials.any_has_codes();
                self.require_code(login, Ok(user), guess, now_s)
            }
            Ok(CheckResult::Refused(cause)) => self.refuse(login, cause, guess, now_s),
            Ok(CheckResult::NotAdmitted(why)) => self.not_admitted(login, why, guess, now_s),
            Ok(CheckResult::NotChecked(none)) => {
                // The login does not count as a guess, and the client may try again.
                tracing::error!(error = %none, "a login could not be checked");
                self.guesses.take_back(login, guess);
                self.record.log(login, Cause::NoMemory);
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
    pub(super) fn admit(
        &self,
        login: &Login,
        person: Person,
        known: bool,
        now_s: u64,
    ) -> Result<Guess, LoginOutcome> {
        let admitted = self.guesses.admit(login, person, known, now_s);
        let admitted = admitted.map_err(|error| self.failed(login, &error))?;
        admitted.map_err(|wait_s| self.throttled(login, wait_s))
    }

    fn granted(&self, login: &Login, user: Box<Authenticated>, guess: Guess, now_s: u64) -> LoginOutcome {
        // Before anything is written: endless logins must not fill the disk, nor push
        // out what is remembered.
        if let Err(wait_s) = self.limit.take(user.id) {
            self.guesses.take_back(login, guess);
            return self.throttled(login, wait_s);
        }
        self.guesses.succeeded(login, guess);
        self.credentials.strengthen(&user, &login.password);
        self.let_in(login, user, now_s)
    }

    /// Remembers a user who is let in, and records it.
    pub(super) fn let_in(&self, login: &Login, user: Box<Authenticated>, now_s: u64) -> LoginOutcome {
        self.history.remember(user.id, login.source, now_s);
        self.record.granted(login, now_s);
        LoginOutcome::Granted(user)
    }

    /// No guess: more than the password was right.
    fn not_admitted(&self, login: &Login, why: NotAdmitted, guess: Guess, now_s: u64) -> LoginOutcome {
        self.guesses.take_back(login, guess);
        self.record.refused(login, Cause::from(why), now_s);
        Refusal::from(why).into()
    }

    /// Nothing was checked, so this neither counts nor costs a write.
    pub(super) fn throttled(&self, login: &Login, wait_s: u64) -> LoginOutcome {
        self.record.log(login, Cause::Throttled);
        LoginOutcome::Refused(Refusal::Throttled.retry_after_s(Some(wait_s)))
    }

    /// Refuses a login. Where any user has codes, one without a code is asked for it first,
    /// whatever was wrong.
    pub(super) fn refuse(&self, login: &Login, cause: Cause, guess: Guess, now_s: u64) -> LoginOutcome {
        // Not the named user counts, so this discloses nothing of one.
        if login.code.is_none() && self.credentials.any_has_codes().unwrap_or(true) {
            return self.require_code(login, Err(cause), guess, now_s);
        }
        self.refuse_for_good(login, cause, &guess, now_s)
    }

    pub(super) fn refuse_for_good(
        &self,
        login: &Login,
        cause: Cause,
        guess: &Guess,
        now_s: u64,
    ) -> LoginOutcome {
        self.record.refused(login, cause, now_s);
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
        self.waiting.add(attempt, now_s).map_or(Refusal::WaitingFull.into(), LoginOutcome::CodeRequired)
    }

    /// The code came, for a login that was asked for one.
    pub(super) fn complete(&self, number: u64, code: &Password, now_s: u64) -> LoginOutcome {
        let waited = self.waiting.take(number, now_s).and_then(Attempt::into_code);
        let Some((login, awaited, guess)) = waited else {
            // It came too late or was displaced, and was counted then.
            return Refusal::Busy.into();
        };
        match (
            self.credentials.check_code(
                awaited.as_ref().map(|user| &user.user).map_err(|cause| *cause),
                code,
                guess.is_known(),
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

    /// Not counted as a guess: a stranger could lock users out by it.
    pub(super) fn not_certified(&self, login: &Login, now_s: u64) -> LoginOutcome {
        self.record.refused(login, certificate_cause(login), now_s);
        Refusal::Certificate.into()
    }

    /// Refuses a login because the store has failed.
    pub(super) fn failed(&self, login: &Login, error: &StoreError) -> LoginOutcome {
        tracing::error!(%error, "a login could not be checked");
        self.record.log(login, Cause::StoreFailed);
        match error {
            StoreError::Database { .. } if error.is_for_now() => Refusal::StoreUnavailable.into(),
            _ => Refusal::Credentials.into(),
        }
    }
}
