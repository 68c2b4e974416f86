//! Logins that an OpenID provider vouches for.
//!
//! Invariants: who the user is comes from idp alone, out of a token that it has verified; the
//! user's record, certificate, codes and access profile here count as in any login. The provider
//! has shown who it is, so what is refused here is said: there is no password to be guessed.

use std::net::IpAddr;
use std::sync::Arc;

use vpnd_proto::session::DeviceId;

use super::external::{ExternalSource, blocking, cause};
use super::rounds::{AtSource, REPLY_MARGIN};
use super::throttle::Person;
use super::{Authenticator, Cause, Entrance, Login, LoginOutcome};
use vpnd_config::https_url::HttpsUrl;
use vpnd_config::source::{LOGIN_TIMEOUT, SourceKind};
use vpnd_ipc::gateway::idp::{
    LoginAddress, ProviderLogin, ProviderLogout, ReadLogout, RedeemCode, Redeemed, SourceRefusal, Url,
};
use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_ipc::request::Reason;
use vpnd_store::password::Password;
use vpnd_sys::clock::now;

impl Authenticator {
    fn provider(&self, name: &str) -> Option<Arc<ExternalSource>> {
        let is_it = |at: &&Arc<ExternalSource>| {
            at.source.name == name && matches!(at.source.kind, SourceKind::Oidc(_))
        };
        self.external.sources.iter().find(is_it).map(Arc::clone)
    }

    /// Whether users of this source log in at a provider, so in a browser alone.
    pub(crate) fn is_provider(&self, source: &str) -> bool {
        self.provider(source).is_some()
    }

    /// The address where a browser begins a login.
    pub(crate) async fn address_at_provider(&self, login: LoginAddress) -> Result<Url, Refusal> {
        let at = self.provider(&login.source).ok_or(Refusal::NotConfirmed)?;
        let reply = self.external.idp.request(login, LOGIN_TIMEOUT + REPLY_MARGIN).await;
        at.replied(reply.is_ok(), now());
        reply.and_then(of_https).map_err(|why| {
            self.record.source_failed(&at.source.name, &why);
            Refusal::SourceUnavailable
        })
    }

    /// A provider has sent a browser back without a code.
    pub(crate) fn refused_by_provider(
        &self,
        source: &str,
        address: IpAddr,
        device: DeviceId,
        now_s: u64,
    ) -> LoginOutcome {
        self.record.refused(&login_of("", address, device), source, Cause::NotApproved, now_s);
        Refusal::NotConfirmed.into()
    }

    /// Checks a logout token; returns who has logged out, or `None` if it proves nothing.
    pub(crate) async fn read_logout(&self, read: ReadLogout) -> Result<Option<ProviderLogout>, Reason> {
        let Some(at) = self.provider(&read.source) else { return Ok(None) };
        let reply = self.external.idp.request(read, LOGIN_TIMEOUT + REPLY_MARGIN).await;
        if let Err(why) = &reply {
            self.record.source_failed(&at.source.name, why);
        }
        reply
    }

    /// Logs in the user whose code this is.
    pub(crate) async fn log_in_at_provider(
        self: &Arc<Self>,
        redeem: RedeemCode,
        address: IpAddr,
        device: DeviceId,
        now_s: u64,
    ) -> LoginOutcome {
        let login = login_of("", address, device);
        let Some(at) = self.provider(&redeem.source) else { return Refusal::NotConfirmed.into() };
        let since = now();
        let Some(turn) = self.queue.turn_of(&at.turns, &login, now_s).await else {
            self.record.log(&login, &at.source.name, Cause::Overloaded);
            return Refusal::Busy.into();
        };
        let reply = self.external.idp.request(redeem, LOGIN_TIMEOUT + REPLY_MARGIN).await;
        drop(turn);
        at.replied(reply.is_ok(), now());
        let (this, now_s) = (Arc::clone(self), now_s + now().since(since).as_secs());
        let decided = blocking(move || match reply {
            Ok(Ok(Redeemed { login: shown, refresh })) => {
                let outcome = this.shown(Arc::clone(&at), &shown, login, now_s);
                if let Some(token) = refresh {
                    this.keep_token_of_login(&at, &shown.identity.subject, &token);
                }
                this.keep_session_of_login(&at, &shown, now_s);
                outcome
            }
            Ok(Err(refusal)) => this.not_shown(&at, &login, refusal, now_s),
            Err(why) => {
                this.record.source_failed(&at.source.name, &why);
                this.record.refused(&login, &at.source.name, Cause::SourceUnavailable, now_s);
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
        self.record.refused(login, &at.source.name, cause(refusal), now_s);
        match refusal {
            SourceRefusal::TooManyGroups => Refusal::TooManyGroups,
            _ => Refusal::NotConfirmed,
        }
        .into()
    }

    /// Keeps by which session at the provider its user may be logged out.
    fn keep_session_of_login(&self, at: &ExternalSource, shown: &ProviderLogin, now_s: u64) {
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
        let ProviderLogin { identity, factors, auth_time_s, .. } = shown;
        let Some(name) = identity.name.as_deref().filter(|name| self.is_name_of(&at, name)) else {
            return self.not_shown(&at, &login, SourceRefusal::NoName, now_s);
        };
        let login = Login { user: name.to_owned(), ..login };
        let (user, known) = match self.history.look_up(&login, now_s) {
            Ok(found) => found,
            Err(error) => return self.failed(&login, &error),
        };
        if self.credentials.lack_certificate(&login, user.as_ref()) {
            return self.not_certified(&login, now_s);
        }
        let person = Person::entry(&at.source.name, &identity.subject);
        // A one-time code would follow, which can be guessed.
        let has_codes = user.is_some_and(|user| user.totp.is_some());
        let admitted = if has_codes {
            self.admit(&login, person, known, now_s)
        } else {
            Ok(self.guesses.count_shown(&login, person, known, now_s))
        };
        match admitted {
            Ok(guess) => {
                let at = AtSource::shown(login, guess, at, (*factors, *auth_time_s));
                self.vouched_for(at, identity, now_s)
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

fn login_of(user: &str, source: IpAddr, device: DeviceId) -> Login {
    let password = Password::new(String::new());
    let (user, entrance) = (user.to_owned(), Entrance::Portal);
    Login { user, password, code: None, certificate: None, source, device, entrance }
}
