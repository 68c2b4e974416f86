//! The last step of a login whose credentials were right: whether an access profile is for the user
//! and its required factors were proved, and the record of it.
//!
//! Invariants: no user is let in without a profile, or by fewer factors than it requires. That
//! this is the reason shows only after a factor besides the password: to a user who has shown no
//! other, a right password that does not suffice is a wrong one, in its answer, its time and its
//! count. Which factors were proved is decided where they are checked, never by what the worker
//! says of them.

use std::ops::Deref;
use std::sync::Arc;

use super::allowances::{Limit, Limited};
use super::throttle::Guess;
use super::{Authenticator, Cause, Login, LoginOutcome};
use crate::access::{Access, NotAdmitted};
use vpnd_config::factor::Factors;
use vpnd_ipc::gateway::idp::{SourceAddresses, SourceLimits};
use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_store::User;
use vpnd_store::audit::recorder::Recorder;

/// A user who has proved to be that one, and by which factors.
#[derive(Clone, Debug)]
pub struct Authenticated {
    pub user: User,
    pub factors: Factors,
    /// Limits of the session, by the user's source.
    pub limits: SourceLimits,
    /// The inner addresses that the user's source has for the user.
    pub addresses: SourceAddresses,
    /// Whether the source itself has shown who it is, so that no guess of a password is confirmed
    /// by what is said of the user.
    pub is_shown: bool,
    /// When the user has shown credentials; `None` if that was just now, or, where the source has
    /// shown who it is, if it has not said.
    pub auth_time_s: Option<u64>,
}

impl Authenticated {
    /// A user for whom no source sets limits or addresses.
    pub fn here(user: User, factors: Factors) -> Self {
        let (limits, addresses) = (SourceLimits::default(), SourceAddresses::default());
        Self { user, factors, limits, addresses, is_shown: false, auth_time_s: None }
    }

    /// When the user was last asked for credentials. What a source has not said is long ago.
    pub fn asked_at_s(&self, now_s: u64) -> u64 {
        let unsaid_s = if self.is_shown { 0 } else { now_s };
        self.auth_time_s.map_or(unsaid_s, |at_s| at_s.min(now_s))
    }
}

impl Deref for Authenticated {
    type Target = User;

    fn deref(&self) -> &User {
        &self.user
    }
}

impl Authenticator {
    /// Sets the access profiles.
    pub(crate) fn with_access(mut self, access: Arc<Access>) -> Self {
        self.credentials = self.credentials.with_access(access);
        self
    }

    /// With this many logins of one user at once.
    pub(crate) fn with_logins_per_user(mut self, logins: u32) -> Self {
        self.logins = Arc::new(Limit::new(Limited::Logins, logins));
        self.admissions = Arc::new(Limit::new(Limited::Admissions, logins));
        self
    }

    /// Sets the recorder of logins.
    pub(crate) fn with_audit(mut self, audit: Recorder) -> Self {
        self.record = self.record.with_audit(audit);
        self
    }

    /// No guess: more than the password was right.
    pub(super) fn not_admitted(
        &self,
        login: &Login,
        why: NotAdmitted,
        guess: Guess,
        now_s: u64,
    ) -> LoginOutcome {
        self.guesses.take_back(login, guess);
        self.record_refused(login, Cause::from(why), now_s);
        Refusal::from(why).into()
    }

    pub(super) fn granted(
        &self,
        login: &Login,
        user: Box<Authenticated>,
        guess: Guess,
        now_s: u64,
    ) -> LoginOutcome {
        // Before anything is written: endless logins must not fill the disk, nor push
        // out what is remembered.
        if let Err(wait_s) = self.logins.take(user.id) {
            self.guesses.take_back(login, guess);
            return self.throttled(login, wait_s);
        }
        self.guesses.succeeded(login, guess);
        self.credentials.strengthen(&user, &login.password);
        self.history.remember(user.id, login.source, now_s);
        self.record.granted(login, now_s);
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
