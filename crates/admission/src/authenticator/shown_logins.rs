//! Logins of users who have shown elsewhere who they are: to an OpenID provider, or in a browser
//! before.
//!
//! Invariants: who the user of a provider is comes from idp alone, out of a token that it has
//! verified; the user's record, certificate, codes and access profile here count as in any login,
//! as they are now: nothing lets in who was disabled, changed or revoked since a visit began. There
//! is no password to be guessed, so what is refused is said.

use std::net::IpAddr;
use std::sync::Arc;

use vpnd_proto::session::DeviceId;

use super::credentials::CheckResult;
use super::external::{ExternalLogins, blocking, cause};
use super::logins::Logins;
use super::refresh::RefreshTokens;
use super::rounds::{AtSource, REPLY_MARGIN};
use super::sources::{ExternalSource, Sources};
use super::throttle::Person;
use super::visit::Visit;
use super::{Authenticated, Cause, Entrance, Login, LoginOutcome};
use vpnd_config::https_url::HttpsUrl;
use vpnd_config::source::LOGIN_TIMEOUT;
use vpnd_ipc::gateway::idp::{
    LoginAddress, ProviderLogin, ProviderLogout, ReadLogout, RedeemCode, Redeemed, SourceRefusal, Url,
};
use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_ipc::request::Reason;
use vpnd_store::Store;
use vpnd_store::password::Password;
use vpnd_sys::clock::now;

pub(super) struct ShownLogins {
    pub(super) store: Arc<dyn Store>,
    pub(super) sources: Arc<Sources>,
    pub(super) logins: Arc<Logins>,
    pub(super) external: Arc<ExternalLogins>,
    pub(super) tokens: Arc<RefreshTokens>,
}

impl ShownLogins {
    /// Logs in the user of this visit with the client's device; `None` if the client has shown
    /// nothing that is good.
    pub(super) fn by_visit(&self, visit: Option<Visit>, login: Login, now_s: u64) -> LoginOutcome {
        let logins = &self.logins;
        let void = |login: &Login| {
            logins.record.refused(login, Cause::GrantVoid, now_s);
            Refusal::GrantVoid.into()
        };
        let Some(visit) = visit else { return void(&login) };
        let user = match self.store.user_by_id(visit.user) {
            Ok(Some(user)) => user,
            Ok(None) => return void(&login),
            Err(error) => return logins.failed(&login, &error),
        };
        // The machine's other users see where the client waits, and could answer as themselves.
        if !login.user.is_empty() && !login.user.eq_ignore_ascii_case(&user.name) {
            return void(&login);
        }
        let login = Login { user: user.name.clone(), ..login };
        if user.generation != visit.generation {
            return void(&login);
        }
        if logins.credentials.lack_certificate(&login, Some(&user)) {
            return logins.not_certified(&login, now_s);
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
        match logins.credentials.check_shown(&login, user, now_s) {
            Ok(CheckResult::Granted(user)) => {
                if let Err(wait_s) = logins.limit.take(user.id) {
                    return logins.throttled(&login, wait_s);
                }
                self.sources.accounting.moves(user.id, of_login.device, login.device, login.source);
                logins.let_in(&login, user, now_s)
            }
            Ok(CheckResult::NotAdmitted(why)) => {
                logins.record.refused(&login, Cause::from(why), now_s);
                Refusal::from(why).into()
            }
            Ok(CheckResult::Refused(cause)) => {
                logins.record.refused(&login, cause, now_s);
                Refusal::GrantVoid.into()
            }
            Ok(CheckResult::CodeRequired(_) | CheckResult::NotChecked(_)) => void(&login),
            Err(error) => logins.failed(&login, &error),
        }
    }

    /// The address where a browser begins a login.
    pub(super) async fn address_at_provider(&self, login: LoginAddress) -> Result<Url, Refusal> {
        let at = self.sources.provider(&login.source).ok_or(Refusal::NotConfirmed)?;
        let reply = self.sources.idp.request(login, LOGIN_TIMEOUT + REPLY_MARGIN).await;
        at.replied(reply.is_ok(), now());
        reply.and_then(of_https).map_err(|why| {
            self.logins.record.source_failed(&at.source.name, &why);
            Refusal::SourceUnavailable
        })
    }

    /// A provider has sent a browser back without a code.
    pub(super) fn refused_by_provider(
        &self,
        source: &str,
        address: IpAddr,
        device: DeviceId,
        now_s: u64,
    ) -> LoginOutcome {
        let login = login_from(address, device);
        self.logins.record.refused_at(source, &login, Cause::NotApproved, now_s);
        Refusal::NotConfirmed.into()
    }

    /// Checks a logout token; returns who has logged out, or `None` if it proves nothing.
    pub(super) async fn read_logout(&self, read: ReadLogout) -> Result<Option<ProviderLogout>, Reason> {
        let Some(at) = self.sources.provider(&read.source) else { return Ok(None) };
        let reply = self.sources.idp.request(read, LOGIN_TIMEOUT + REPLY_MARGIN).await;
        if let Err(why) = &reply {
            self.logins.record.source_failed(&at.source.name, why);
        }
        reply
    }

    /// Logs in the user whose code this is.
    pub(super) async fn at_provider(
        self: &Arc<Self>,
        redeem: RedeemCode,
        address: IpAddr,
        device: DeviceId,
        now_s: u64,
    ) -> LoginOutcome {
        let login = login_from(address, device);
        let Some(at) = self.sources.provider(&redeem.source) else { return Refusal::NotConfirmed.into() };
        let since = now();
        let Some(turn) = self.logins.queue.turn_of(&at.turns, &login, now_s).await else {
            self.logins.record.log_at(&at.source.name, &login, Cause::Overloaded);
            return Refusal::Busy.into();
        };
        let reply = self.sources.idp.request(redeem, LOGIN_TIMEOUT + REPLY_MARGIN).await;
        drop(turn);
        at.replied(reply.is_ok(), now());
        let (this, now_s) = (Arc::clone(self), now_s + now().since(since).as_secs());
        let decided = blocking(move || match reply {
            Ok(Ok(Redeemed { login: shown, refresh })) => {
                let outcome = this.shown(Arc::clone(&at), &shown, login, now_s);
                if let Some(token) = refresh {
                    this.tokens.keep_of_login(&at, &shown.identity.subject, &token);
                }
                this.keep_session(&at, &shown, now_s);
                outcome
            }
            Ok(Err(refusal)) => this.not_shown(&at, &login, refusal, now_s),
            Err(why) => {
                let name = &at.source.name;
                this.logins.record.source_failed(name, &why);
                this.logins.record.refused_at(name, &login, Cause::SourceUnavailable, now_s);
                Refusal::SourceUnavailable.into()
            }
        });
        decided.await.unwrap_or_else(|refused| refused)
    }

    fn not_shown(
        &self,
        at: &ExternalSource,
        login: &Login,
        refusal: SourceRefusal,
        now_s: u64,
    ) -> LoginOutcome {
        self.logins.record.refused_at(&at.source.name, login, cause(refusal), now_s);
        match refusal {
            SourceRefusal::TooManyGroups => Refusal::TooManyGroups,
            _ => Refusal::NotConfirmed,
        }
        .into()
    }

    /// Keeps by which session at the provider its user may be logged out.
    fn keep_session(&self, at: &ExternalSource, shown: &ProviderLogin, now_s: u64) {
        let Some(session) = shown.session else { return };
        let user = self.store.user_by_subject(&at.source.name, &shown.identity.subject);
        let kept = user.and_then(|user| match user {
            Some(user) => self.store.keep_provider_session(user.id, &session.into(), now_s),
            None => Ok(()),
        });
        if let Err(error) = kept {
            tracing::error!(%error, "a session at a provider can't be kept, so its end there ends none here");
        }
    }

    fn shown(
        &self,
        at: Arc<ExternalSource>,
        shown: &ProviderLogin,
        login: Login,
        now_s: u64,
    ) -> LoginOutcome {
        let (logins, ProviderLogin { identity, factors, auth_time_s, .. }) = (&self.logins, shown);
        let Some(name) = identity.name.as_deref().filter(|name| self.sources.is_name_of(&at, name)) else {
            return self.not_shown(&at, &login, SourceRefusal::NoName, now_s);
        };
        let login = Login { user: name.to_owned(), ..login };
        let (user, known) = match logins.history.look_up(&login, now_s) {
            Ok(found) => found,
            Err(error) => return logins.failed(&login, &error),
        };
        if logins.credentials.lack_certificate(&login, user.as_ref()) {
            return logins.not_certified(&login, now_s);
        }
        let person = Person::entry(&at.source.name, &identity.subject);
        // A one-time code would follow, which can be guessed.
        let has_codes = user.is_some_and(|user| user.totp.is_some());
        let admitted = if has_codes {
            logins.admit(&login, person, known, now_s)
        } else {
            Ok(logins.guesses.count_shown(&login, person, known, now_s))
        };
        match admitted {
            Ok(guess) => {
                let at = AtSource::shown(login, guess, at, (*factors, *auth_time_s));
                self.external.vouched_for(at, identity, now_s)
            }
            Err(throttled) => throttled,
        }
    }
}

/// The address, if it is one of https: no browser is sent to another, whatever idp says.
fn of_https(url: Url) -> Result<Url, Reason> {
    let place = url.split('?').next().unwrap_or_default();
    let is_one = url.bytes().all(|byte| byte.is_ascii_graphic()) && place.parse::<HttpsUrl>().is_ok();
    is_one.then_some(url).ok_or_else(|| Reason::cut("the address of its login page is none of https"))
}

/// A login whose user the provider has not named yet.
fn login_from(source: IpAddr, device: DeviceId) -> Login {
    let password = Password::new(String::new());
    let (user, entrance) = (String::new(), Entrance::Portal);
    Login { user, password, code: None, certificate: None, source, device, entrance }
}
