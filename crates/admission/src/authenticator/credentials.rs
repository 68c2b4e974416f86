//! Checks of what a login presents: the password, the state of the user, the certificate, the
//! one-time code.
//!
//! Invariants: the same work is done whatever is wrong, for unknown users as well, so that the time
//! of an answer discloses nothing; a code is good once, and used up only where all else is right;
//! without a code in the login nothing is changed. Of codes for a right password a user has a
//! number, whatever the worker says of the client's address: who knows the password can neither
//! try them all, nor use up those of the user's own networks and devices from elsewhere.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::allowances::Allowances;
use super::grant::{certificate_cause, is_certified};
use super::{Authenticated, Cause, Login};
use crate::access::{Access, NotAdmitted};
use crate::notices::lock;
use vpnd_config::factor::{Factors, Requirement};
use vpnd_store::password::{Hasher, NoMemory, Password};
use vpnd_store::totp;
use vpnd_store::{PasswordHash, Store, StoreError, TotpSecret, User, UserId};
use vpnd_sys::clock::now;
use vpnd_sys::process;

/// Codes of a user that are looked at, and the time for each after that. A right one is good once
/// in 30 s, so there are few of these.
pub(super) const CODES: u32 = 30;
const CODE_INTERVAL: Duration = Duration::from_secs(120);

/// Internal result of one check; [`LoginOutcome`](super::LoginOutcome) is the part that may be
/// disclosed.
pub(super) enum CheckResult {
    Granted(Box<Authenticated>),
    /// The password is right, and the user must show a code, which was not sent with it.
    CodeRequired(Box<Authenticated>),
    Refused(Cause),
    /// All was right, more than the password, and no profile lets the user in.
    NotAdmitted(NotAdmitted),
    NotChecked(NoMemory),
}

/// The checks, and what they compare with.
pub(super) struct Credentials {
    store: Arc<dyn Store>,
    hasher: Hasher,
    /// A hash that no password has, for users that do not exist.
    nobody: PasswordHash,
    /// A secret that no codes are made of, for users that have none.
    no_secret: TotpSecret,
    access: Arc<Access>,
    /// Whether every user must show a client certificate.
    require_certificate: bool,
    /// The limits of codes: from elsewhere, and from where the user has come from.
    codes: [Mutex<Allowances>; 2],
}

impl Credentials {
    /// Takes as long as one login, to hash a dummy password.
    pub(super) fn new(
        store: Arc<dyn Store>,
        hasher: Hasher,
        access: Arc<Access>,
        require_certificate: bool,
    ) -> Result<Self, NoMemory> {
        let (nobody, no_secret) = (hasher.hash(&Password::generate())?, totp::generate());
        let codes = [(); 2].map(|()| Mutex::new(Allowances::new(CODES, CODE_INTERVAL)));
        Ok(Self { store, hasher, nobody, no_secret, access, require_certificate, codes })
    }

    /// Whether any user has one-time codes.
    pub(super) fn any_has_codes(&self) -> Result<bool, StoreError> {
        self.store.has_one_time_codes()
    }

    /// Whether every user must show a certificate, and this login has shown none of this user's.
    pub(super) fn lack_certificate(&self, login: &Login, user: Option<&User>) -> bool {
        self.require_certificate && !is_certified(login, user)
    }

    /// Checks the password and everything else of a local user, or of none. A machine is checked by
    /// its certificate; without one that is its own it is a user whose password is wrong. `known`
    /// means that the user has come from this source, or with this device, before.
    pub(super) fn check(
        &self,
        login: &Login,
        user: Option<User>,
        known: bool,
        now_s: u64,
    ) -> Result<CheckResult, StoreError> {
        let user = match user {
            Some(user) if user.is_machine() && is_certified(login, Some(&user)) => {
                return self.check_user(login, Authenticated::here(user, Factors::default()), known, now_s);
            }
            user => user,
        };
        let own = user.as_ref().and_then(|user| user.password.as_ref());
        let right = match self.verify(&login.password, own) {
            Ok(right) => right,
            Err(none) => return Ok(CheckResult::NotChecked(none)),
        };
        let (user, cause) = match user {
            Some(user) if user.is_machine() => (user, Some(certificate_cause(login))),
            Some(user) => (user, (!right).then_some(Cause::WrongPassword)),
            None => (User::nobody(), Some(Cause::UnknownUser)),
        };
        // Every failure takes the same steps, except that a right code is used up only with a right
        // password.
        let checked = match cause {
            Some(cause) if login.code.is_some() => self.refuse(login, cause, now_s)?,
            _ => self.check_user(login, Authenticated::here(user, Factors::PASSWORD), known, now_s)?,
        };
        Ok(cause.map_or(checked, CheckResult::Refused))
    }

    /// Whether this is the password of the hash, or of a user without one.
    pub(super) fn verify(&self, password: &Password, own: Option<&PasswordHash>) -> Result<bool, NoMemory> {
        // Users of other sources have none: theirs is a hash that no password has, at the
        // same cost.
        let hash = own.unwrap_or(&self.nobody);
        // Requests that wait for the store, such as attaches, go first. A hash that another program
        // has made may take less time than one of ours: then one of ours is computed, too.
        process::behind_others(|| {
            let right = self.hasher.verify(password, hash)?;
            if !self.hasher.costs_the_same(hash) {
                self.hasher.verify(password, &self.nobody)?;
            }
            Ok(right)
        })
    }

    /// The hash of a password that is to be stored.
    pub(super) fn hash(&self, password: &Password) -> Result<PasswordHash, NoMemory> {
        process::behind_others(|| self.hasher.hash(password))
    }

    /// Refuses after a look at the login's code, if any: the time of the answer discloses
    /// nothing of the cause.
    fn refuse(&self, login: &Login, cause: Cause, now_s: u64) -> Result<CheckResult, StoreError> {
        if let Some(code) = &login.code {
            self.check_code(Err(cause), code, false, now_s)?;
        }
        Ok(CheckResult::Refused(cause))
    }

    /// Checks everything but the password. Without a code in the login it changes nothing.
    pub(super) fn check_user(
        &self,
        login: &Login,
        mut user: Authenticated,
        known: bool,
        now_s: u64,
    ) -> Result<CheckResult, StoreError> {
        if !user.enabled {
            return self.refuse(login, Cause::Disabled, now_s);
        }
        // A missing certificate is answered like a wrong password, so the user's need for one is
        // not disclosed.
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
        if let Some(wrong) = self.check_code(Ok(&user), code, known, now_s)? {
            return Ok(CheckResult::Refused(wrong));
        }
        user.factors = user.factors.and(Factors::ONE_TIME_CODE);
        self.check_profile(login, Box::new(user), now_s)
    }

    /// Checks a user who has already shown all credentials but the certificate.
    pub(super) fn check_shown(
        &self,
        login: &Login,
        mut user: Authenticated,
        now_s: u64,
    ) -> Result<CheckResult, StoreError> {
        let lacks_certificate = !user.certificates.is_empty() && !is_certified(login, Some(&user));
        let lacks_code = user.totp.is_some() && user.factors.missing(&[Requirement::OneTimeCode]).is_some();
        let cause = match (user.enabled, lacks_certificate, lacks_code) {
            (false, ..) => Some(Cause::Disabled),
            (_, true, _) => Some(certificate_cause(login)),
            (_, _, true) => Some(Cause::NoCode),
            _ => None,
        };
        if let Some(cause) = cause {
            return Ok(CheckResult::Refused(cause));
        }
        if is_certified(login, Some(&user)) {
            user.factors = user.factors.and(Factors::KEY);
        }
        self.check_profile(login, Box::new(user), now_s)
    }

    /// Whether the user's time lasts and an access profile lets the user in, after all else was
    /// right.
    pub(super) fn check_profile(
        &self,
        login: &Login,
        user: Box<Authenticated>,
        now_s: u64,
    ) -> Result<CheckResult, StoreError> {
        let admitted = match user.has_expired(now_s) {
            true => Err(NotAdmitted::Expired),
            false => self.access.admit_login(&user, user.factors, user.asked_at_s(now_s), now_s).map(drop),
        };
        match admitted {
            Ok(()) => Ok(CheckResult::Granted(user)),
            Err(why) if user.factors.has_second() || user.is_shown => Ok(CheckResult::NotAdmitted(why)),
            Err(why) => self.refuse(login, Cause::from(why), now_s),
        }
    }

    /// Stores a hash of the right password that costs more, if the user's costs less than it
    /// should.
    pub(super) fn strengthen(&self, user: &User, password: &Password) {
        let Some(old) = user.password.as_ref().filter(|hash| self.hasher.is_outdated(hash)) else { return };
        let fresh = self.hasher.hash(password).map_err(|error| error.to_string());
        let stored = fresh
            .and_then(|fresh| self.store.rehash(user.id, old, &fresh).map_err(|error| error.to_string()));
        if let Err(error) = stored {
            tracing::warn!(%error, "a password hash could not be strengthened");
        }
    }

    /// Returns the cause of a refusal, or `None` if the code is right. The work is the same whether
    /// or not all else was right, so that its time discloses nothing.
    pub(super) fn check_code(
        &self,
        awaited: Result<&User, Cause>,
        code: &Password,
        known: bool,
        now_s: u64,
    ) -> Result<Option<Cause>, StoreError> {
        // A code is counted without a right password, too, or the time would disclose that.
        let counted = awaited.map_or(UserId::NOBODY, |user| user.id);
        let is_too_many = lock(&self.codes[usize::from(known)]).take(counted, now()).is_err();
        let awaited = awaited.and_then(|user| if is_too_many { Err(Cause::TooManyCodes) } else { Ok(user) });
        let secret = awaited.ok().and_then(|user| user.totp.as_ref()).unwrap_or(&self.no_secret);
        let step = totp::matching_step(secret, code, now_s);
        let (id, used) = match (awaited, step) {
            (Ok(user), Some(step)) => (user.id, step),
            _ => (UserId::NOBODY, 0),
        };
        let fresh = self.store.use_totp_step(id, used)?;
        if let (Ok(user), Some(_), true) = (awaited, step, fresh) {
            // No guesser has a right code.
            lock(&self.codes[usize::from(known)]).give_back(&user.id);
        }
        Ok(match (awaited, step) {
            (Err(cause), _) => Some(cause),
            (Ok(_), None) => Some(Cause::WrongCode),
            (Ok(_), Some(_)) => (!fresh).then_some(Cause::ReplayedCode),
        })
    }
}
