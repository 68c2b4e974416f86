//! Users who have proved to be themselves.
//!
//! INVARIANT: which factors were proved is decided where they are checked, never by what the worker
//! says of them.

use std::ops::Deref;

use super::{Cause, Login};
use vpnd_config::factor::Factors;
use vpnd_ipc::gateway::idp::{SourceAddresses, SourceLimits};
use vpnd_store::User;

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

/// Whether the certificate that was shown is one of this user.
pub(super) fn is_certified(login: &Login, user: Option<&User>) -> bool {
    let Some((shown, user)) = login.certificate.as_ref().zip(user) else { return false };
    user.certificates.contains(shown) && !user.revoked_certificates.contains(shown)
}

pub(super) fn certificate_cause(login: &Login) -> Cause {
    if login.certificate.is_some() { Cause::ForeignCertificate } else { Cause::NoCertificate }
}
