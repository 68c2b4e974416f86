//! The last step of a login whose credentials were right: whether an access profile is for the user and its required factors were
//! proved, and the record of it.
//!
//! Invariants: nobody is let in who is in no profile, or by fewer factors than it requires. That this is the reason shows only after a factor
//! besides the password: to whoever has shown no other, a right password that lets nobody in is a wrong one, in its answer, its time and its
//! count. Which factors were proved is decided where they are checked, never by what the worker says of them. The record waits for no disk:
//! where it can't be written, the audit file has a gap.

use std::ops::Deref;
use std::sync::{Arc, Mutex};

use super::allowances::Allowances;
use super::credentials::CheckResult;
use super::throttle::{Guess, source_prefix};
use super::{Authenticator, Cause, Login, LoginOutcome};
use crate::access::{Access, NotAdmitted};
use vpnd_config::factor::Factors;
use vpnd_ipc::gateway::idp::{SourceAddresses, SourceLimits};
use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_store::audit::recorder::Recorder;
use vpnd_store::{StoreError, User};
use vpnd_sys::clock::now;

/// A user who has proved to be that one, and by which factors.
#[derive(Clone, Debug)]
pub struct Authenticated {
    pub user: User,
    pub factors: Factors,
    /// Of the session, by the user's source.
    pub limits: SourceLimits,
    /// The inner addresses that the user's source has for the user.
    pub addresses: SourceAddresses,
}

impl Authenticated {
    /// A user for whom no source sets limits or addresses.
    pub fn here(user: User, factors: Factors) -> Self {
        Self { user, factors, limits: SourceLimits::default(), addresses: SourceAddresses::default() }
    }
}

impl Deref for Authenticated {
    type Target = User;

    fn deref(&self) -> &User {
        &self.user
    }
}

impl Authenticator {
    /// The same with these access profiles.
    pub(crate) fn with_access(mut self, access: Arc<Access>) -> Self {
        self.access = access;
        self
    }

    /// The same with so many logins of one user at once.
    pub(crate) fn with_logins_per_user(mut self, logins: u32) -> Self {
        self.allowances = Mutex::new(Allowances::new(logins));
        self
    }

    /// The same with this recorder of logins.
    pub(crate) fn with_audit(mut self, audit: Recorder) -> Self {
        self.audit = Some(audit);
        self
    }

    /// Whether an access profile lets the user in, after all else was right.
    pub(super) fn check_profile(
        &self,
        login: &Login,
        user: Box<Authenticated>,
        now_s: u64,
    ) -> Result<CheckResult, StoreError> {
        match self.access.admit(&user, user.factors) {
            Ok(_) => Ok(CheckResult::Granted(user)),
            Err(why) if user.factors.has_second() => Ok(CheckResult::NotAdmitted(why)),
            Err(why) => self.refuse(login, Cause::from(why), now_s),
        }
    }

    /// No guess: more than the password was right.
    pub(super) fn not_admitted(
        &self,
        login: &Login,
        why: NotAdmitted,
        guess: Guess,
        now_s: u64,
    ) -> LoginOutcome {
        self.throttle().take_back(guess);
        self.record(login, Cause::from(why), now_s);
        Refusal::from(why).into()
    }

    pub(super) fn granted(
        &self,
        login: &Login,
        user: Box<Authenticated>,
        guess: Guess,
        now_s: u64,
    ) -> LoginOutcome {
        // Before anything is written: whoever logs in without end must not fill the disk, nor push out what is remembered.
        if let Err(wait_s) = self.allowances().take(user.id, now()) {
            self.throttle().take_back(guess);
            return self.throttled(login, wait_s);
        }
        self.throttle().succeeded(guess);
        if let Some(old) = user.password.as_ref().filter(|hash| self.hasher.is_outdated(hash)) {
            let fresh = self.hasher.hash(&login.password).map_err(|error| error.to_string());
            let stored = fresh
                .and_then(|fresh| self.store.rehash(user.id, old, &fresh).map_err(|error| error.to_string()));
            if let Err(error) = stored {
                tracing::warn!(%error, "a password hash could not be strengthened");
            }
        }
        let prefix = source_prefix(login.source);
        if let Err(error) = self.store.remember_source(user.id, &prefix, now_s) {
            tracing::warn!(%error, "the network of a login could not be stored");
        }
        self.known_sources().add(prefix, now_s);
        self.audit(login, "login", "", now_s);
        LoginOutcome::Granted(user)
    }
}

/// Whether the certificate that was shown is one of this user.
pub(super) fn is_certified(login: &Login, user: Option<&User>) -> bool {
    let Some((shown, user)) = login.certificate.as_ref().zip(user) else { return false };
    user.certificates.contains(shown) && !user.revoked_certificates.contains(shown)
}

pub(super) fn certificate_cause(login: &Login) -> Cause {
    if login.certificate.is_some() { Cause::ForeignCertificate } else { Cause::NoCertificate }
}
