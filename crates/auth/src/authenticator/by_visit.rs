//! Logins of clients whose users have logged in in a browser.
//!
//! INVARIANT: the user's record counts as it is now: nothing lets in who was disabled, changed or
//! revoked since, and the certificate that the client shows is checked as in any login. No password
//! can be guessed here, so what is refused is said.

use vpnd_proto::session::DeviceId;

use super::{Authenticated, Authenticator, Cause, CheckResult, Login, LoginOutcome};
use vpnd_config::factor::Factors;
use vpnd_ipc::gateway::idp::{SourceAddresses, SourceLimits};
use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_store::UserId;

/// A user who has logged in in a browser, as the user was then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Visit {
    pub(crate) user: UserId,
    /// A revocation of the user ends the visit.
    pub(crate) generation: u64,
    pub(crate) factors: Factors,
    pub(crate) login: LoginFacts,
}

/// The facts of a login that count for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoginFacts {
    /// The one that it was begun with.
    pub(crate) device: DeviceId,
    /// When the user has shown credentials.
    pub(crate) auth_time_s: u64,
    pub(crate) limits: SourceLimits,
    pub(crate) addresses: SourceAddresses,
}

impl Visit {
    /// That of a user who was let in just now.
    pub(crate) fn of(user: &Authenticated, device: DeviceId, now_s: u64) -> Self {
        let login = LoginFacts {
            device,
            auth_time_s: user.asked_at_s(now_s),
            limits: user.limits,
            addresses: user.addresses,
        };
        Self { user: user.id, generation: user.generation, factors: user.factors, login }
    }
}

impl Authenticator {
    /// Logs in the user of this visit with the client's device; `None` if the client has shown
    /// nothing that is good.
    pub(crate) fn log_in_by_visit(&self, visit: Option<Visit>, login: Login, now_s: u64) -> LoginOutcome {
        let void = |login: &Login| {
            self.record_refused(login, Cause::GrantVoid, now_s);
            Refusal::GrantVoid.into()
        };
        let Some(visit) = visit else { return void(&login) };
        let user = match self.store.user_by_id(visit.user) {
            Ok(Some(user)) => user,
            Ok(None) => return void(&login),
            Err(error) => return self.failed(&login, &error),
        };
        // The machine's other users see where the client waits, and could answer as themselves.
        if !login.user.is_empty() && !login.user.eq_ignore_ascii_case(&user.name) {
            return void(&login);
        }
        let login = Login { user: user.name.clone(), ..login };
        if user.generation != visit.generation {
            return void(&login);
        }
        if self.credentials.lack_certificate(&login, Some(&user)) {
            return self.not_certified(&login, now_s);
        }
        let of_login = visit.login;
        let user = Authenticated {
            user,
            factors: visit.factors,
            limits: of_login.limits,
            addresses: of_login.addresses,
            is_shown: true,
            auth_time_s: Some(of_login.auth_time_s),
        };
        match self.credentials.check_shown(&login, user, now_s) {
            Ok(CheckResult::Granted(user)) => {
                if let Err(wait_s) = self.logins.take(user.id) {
                    return self.throttled(&login, wait_s);
                }
                self.external.accounting.moves(user.id, of_login.device, login.device, login.source);
                self.history.remember(user.id, login.source, now_s);
                self.record.granted(&login, now_s);
                LoginOutcome::Granted(user)
            }
            Ok(CheckResult::NotAdmitted(why)) => {
                self.record_refused(&login, Cause::from(why), now_s);
                Refusal::from(why).into()
            }
            Ok(CheckResult::Refused(cause)) => {
                self.record_refused(&login, cause, now_s);
                Refusal::GrantVoid.into()
            }
            Ok(CheckResult::CodeRequired(_) | CheckResult::NotChecked(_)) => void(&login),
            Err(error) => self.failed(&login, &error),
        }
    }
}
