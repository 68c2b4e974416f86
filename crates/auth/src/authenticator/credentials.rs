//! Checks of what a login presents: the password, the state of the user, the certificate, the one-time code.
//!
//! Invariants: the same work is done whatever is wrong, for unknown users as well, so that the time of an answer discloses nothing;
//! a code is good once, and used up only where all else is right; without a code that came along nothing is changed.

use super::grant::{certificate_cause, is_certified};
use super::{Authenticated, Authenticator, Cause, Login};
use crate::access::NotAdmitted;
use vpnd_config::factor::Factors;
use vpnd_store::password::{NoMemory, Password};
use vpnd_store::totp;
use vpnd_store::{StoreError, User, UserId};
use vpnd_sys::process;

/// Internal result of one check; [`LoginOutcome`](super::LoginOutcome) is the part that may be disclosed.
pub(super) enum CheckResult {
    Granted(Box<Authenticated>),
    /// The password is right, and the user must show a code, which did not come along.
    CodeRequired(Box<Authenticated>),
    Refused(Cause),
    /// All was right, more than the password, and no profile lets the user in.
    NotAdmitted(NotAdmitted),
    NotChecked(NoMemory),
}

impl Authenticator {
    /// Checks the password and everything else of a local user, or of none.
    pub(super) fn check_credentials(
        &self,
        login: &Login,
        user: Option<User>,
        now_s: u64,
    ) -> Result<CheckResult, StoreError> {
        let own = user.as_ref().and_then(|user| user.password.as_ref());
        // Users of other sources have none: theirs is the hash that nobody's password has, at the same cost.
        let hash = own.unwrap_or(&self.nobody);
        // Requests that wait for the store, such as attaches, go first. A hash that another program has made may take less time than
        // one of ours: then one of ours is computed, too.
        let verify = || {
            let right = self.hasher.verify(&login.password, hash)?;
            if !self.hasher.costs_the_same(hash) {
                self.hasher.verify(&login.password, &self.nobody)?;
            }
            Ok(right)
        };
        let right = match process::behind_others(verify) {
            Ok(right) => right,
            Err(none) => return Ok(CheckResult::NotChecked(none)),
        };
        let (user, cause) = match user {
            Some(user) => (user, (!right).then_some(Cause::WrongPassword)),
            None => (User::nobody(), Some(Cause::UnknownUser)),
        };
        // The same is done whatever was wrong, but that a right code is used up only beside a right password.
        let checked = match cause {
            Some(cause) if login.code.is_some() => self.refuse(login, cause, now_s)?,
            _ => self.check_user(login, Authenticated::here(user, Factors::PASSWORD), now_s)?,
        };
        Ok(cause.map_or(checked, CheckResult::Refused))
    }

    /// Refuses after a look at the code that came along, if any: the time of the answer discloses nothing of the cause.
    pub(super) fn refuse(&self, login: &Login, cause: Cause, now_s: u64) -> Result<CheckResult, StoreError> {
        if let Some(code) = &login.code {
            self.check_code(Err(cause), code, now_s)?;
        }
        Ok(CheckResult::Refused(cause))
    }

    /// Checks everything but the password. Without a code that came along it changes nothing.
    pub(super) fn check_user(
        &self,
        login: &Login,
        mut user: Authenticated,
        now_s: u64,
    ) -> Result<CheckResult, StoreError> {
        if !user.enabled {
            return self.refuse(login, Cause::Disabled, now_s);
        }
        if user.has_expired(now_s) {
            return self.refuse(login, Cause::Expired, now_s);
        }
        // That this user alone needs one does not show: it is answered like a wrong password.
        if !user.certificates.is_empty() && !is_certified(login, Some(&user)) {
            return self.refuse(login, certificate_cause(login), now_s);
        }
        if is_certified(login, Some(&user)) {
            user.factors = user.factors.and(Factors::KEY);
        }
        if user.totp.is_none() {
            return self.check_profile(login, Box::new(user), now_s);
        }
        let Some(code) = &login.code else { return Ok(CheckResult::CodeRequired(Box::new(user))) };
        if let Some(wrong) = self.check_code(Ok(&user), code, now_s)? {
            return Ok(CheckResult::Refused(wrong));
        }
        user.factors = user.factors.and(Factors::ONE_TIME_CODE);
        self.check_profile(login, Box::new(user), now_s)
    }

    /// Returns the cause of a refusal, or `None` if the code is right. The work is the same whether or not all else was
    /// right, so that its time discloses nothing.
    pub(super) fn check_code(
        &self,
        awaited: Result<&User, Cause>,
        code: &Password,
        now_s: u64,
    ) -> Result<Option<Cause>, StoreError> {
        let secret = awaited.ok().and_then(|user| user.totp.as_ref()).unwrap_or(&self.no_secret);
        let step = totp::matching_step(secret, code, now_s);
        let (id, used) = match (awaited, step) {
            (Ok(user), Some(step)) => (user.id, step),
            _ => (UserId::NOBODY, 0),
        };
        let fresh = self.store.use_totp_step(id, used)?;
        Ok(match (awaited, step) {
            (Err(cause), _) => Some(cause),
            (Ok(_), None) => Some(Cause::WrongCode),
            (Ok(_), Some(_)) => (!fresh).then_some(Cause::ReplayedCode),
        })
    }
}
