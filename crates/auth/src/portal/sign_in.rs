//! Logins of browsers: with a password and what is asked for besides, or at an OpenID provider.
//!
//! Invariants: a login takes the way of a client's login, with its limits and its record. Whatever
//! waits for all sources at the same time leaves room for the requests that wait for nothing.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::at_provider::{ASKED, AtProvider, Begun, Proof};
use super::browsers::Browsers;
use super::record::Record;
use super::token::Found;
use super::waiting_logins::{WaitingLogin, WaitingLogins};
use vpnd_admission::access::Access;
use vpnd_admission::authenticator::{Authenticator, Entrance, Login, LoginOutcome};
use vpnd_admission::notices::lock;
use vpnd_ipc::gateway::idp::{LoginAddress, RedeemCode};
use vpnd_ipc::gateway::portal::turns::{LOGINS_AT_ONCE, LOGOUTS_AT_ONCE, STORE, SourceNumber, TurnQuery};
use vpnd_ipc::gateway::portal::{
    Browser, FinishAtProvider, LoginStep, PortalAnswer, PortalLogin, ProviderStart, StartAtProvider,
};
use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_proto::control::ChallengeKind;
use vpnd_proto::session::DeviceId;
use vpnd_store::password::Password;
use vpnd_sys::clock::{Clocks, now};

/// Longest time since a provider asked for credentials, in a login that follows another: less than
/// the desk allows for changes, which are made after it.
const AGAIN: Duration = Duration::from_secs(300);
/// Looks at logins that wait for an approval, at the same time: each lasts until there is one, or
/// for a second.
static APPROVALS: Semaphore = Semaphore::const_new(MAX_APPROVALS);
const MAX_APPROVALS: usize = 32;

pub(super) struct SignIn {
    authenticator: Arc<Authenticator>,
    access: Arc<Access>,
    clocks: Clocks,
    record: Arc<Record>,
    browsers: Arc<Browsers>,
    waiting: Mutex<WaitingLogins>,
    at_provider: Mutex<AtProvider>,
    /// Whether devices whose session is over reach the login pages of providers.
    providers_in_reach: AtomicBool,
}

impl SignIn {
    pub(super) fn new(
        authenticator: Arc<Authenticator>,
        access: Arc<Access>,
        clocks: Clocks,
        record: Arc<Record>,
        browsers: Arc<Browsers>,
    ) -> Self {
        Self {
            authenticator,
            access,
            clocks,
            record,
            browsers,
            waiting: Mutex::default(),
            at_provider: Mutex::default(),
            providers_in_reach: AtomicBool::new(false),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingLogins> {
        lock(&self.waiting)
    }

    fn at_provider(&self) -> MutexGuard<'_, AtProvider> {
        lock(&self.at_provider)
    }

    /// Requests of the portal at the same time: twice those that wait for something.
    pub(super) fn max_requests(&self) -> usize {
        let at_source = LOGINS_AT_ONCE + LOGOUTS_AT_ONCE + ASKED;
        2 * (LOGINS_AT_ONCE + MAX_APPROVALS + at_source * self.authenticator.source_count())
    }

    /// The source that decides a login.
    pub(super) fn source_of(&self, login: &TurnQuery) -> SourceNumber {
        match login {
            TurnQuery::User(name) => self.authenticator.number_for(name),
            TurnQuery::Provider(source) => self.authenticator.number_of(source),
            TurnQuery::Answer(browser) => {
                let found = self.waiting().find(&browser.token, browser.address, now());
                match found {
                    Found::Here(WaitingLogin { number, .. }) => self.authenticator.number_at(number),
                    Found::Elsewhere(_) | Found::Over(_) | Found::Nothing => STORE,
                }
            }
        }
    }

    pub(super) async fn log_in(&self, login: PortalLogin) -> LoginStep {
        // A browser is no device that is known again.
        let (device, address) = (DeviceId(rand::random()), login.address);
        let credentials = Login {
            user: login.user.to_string(),
            password: Password::new(login.password.expose().to_owned()),
            code: None,
            certificate: None,
            source: address,
            entrance: Entrance::Portal,
            device,
        };
        let outcome = self.authenticator.log_in(credentials, (self.clocks.wall)()).await;
        self.decided(outcome, device, address)
    }

    /// The answer of a person has come, for whom a login waits.
    pub(super) async fn answer(&self, typed: PortalAnswer) -> LoginStep {
        let Browser { token, address, .. } = typed.browser;
        let found = self.waiting().find(&token, address, now());
        self.waiting().remove(&token);
        // It came too late, or from another network.
        let Found::Here(WaitingLogin { number, device }) = found else {
            return LoginStep::Refused(Refusal::Busy.into());
        };
        let outcome = self.authenticator.answer(number, &typed.answer, device, (self.clocks.wall)()).await;
        self.decided(outcome, device, address)
    }

    /// The decision about a login that is approved elsewhere; `None` while it still waits.
    pub(super) async fn approved(&self, browser: Browser) -> Option<LoginStep> {
        let Browser { token, address, .. } = browser;
        let found = self.waiting().find(&token, address, now());
        let Found::Here(WaitingLogin { number, device }) = found else {
            return Some(LoginStep::Refused(Refusal::Busy.into()));
        };
        // The browser looks again.
        let Ok(_permit) = APPROVALS.try_acquire() else { return None };
        let outcome = self.authenticator.approved(number, device, (self.clocks.wall)()).await;
        outcome.map(|outcome| {
            self.waiting().remove(&token);
            self.decided(outcome, device, address)
        })
    }

    /// The person has gone, for whom a login of this browser may wait.
    pub(super) fn abandon(&self, browser: &Browser) {
        let login = self.waiting().remove(&browser.token);
        if let Some(WaitingLogin { number, .. }) = login {
            self.authenticator.abandon(number, (self.clocks.wall)());
        }
    }

    fn decided(&self, outcome: LoginOutcome, device: DeviceId, address: IpAddr) -> LoginStep {
        let demand = |number, kind, text| {
            let token = self.waiting().add(WaitingLogin { number, device }, address, now());
            token.map_or_else(
                || {
                    self.authenticator.abandon(number, (self.clocks.wall)());
                    LoginStep::Refused(Refusal::WaitingFull.into())
                },
                |token| LoginStep::Demand { token, kind, text },
            )
        };
        match outcome {
            LoginOutcome::Granted(user) => LoginStep::LoggedIn(self.browsers.begin(&user, device, address)),
            LoginOutcome::CodeRequired(number) => demand(number, ChallengeKind::Code, None),
            LoginOutcome::Challenge(number, demanded) | LoginOutcome::Approval(number, demanded) => {
                demand(number, demanded.kind, Some(demanded.text))
            }
            LoginOutcome::Refused(refused) => {
                self.record.refusals.count(refused.refusal.portal_counter());
                LoginStep::Refused(refused)
            }
        }
    }

    /// Whether devices whose session is over reach the login pages of providers.
    pub(super) fn reach_providers(&self, do_reach: bool) {
        self.providers_in_reach.store(do_reach, Ordering::Relaxed);
    }

    /// Whether a device whose session is over would not reach the login page.
    pub(super) fn may_be_out_of_reach(
        &self,
        StartAtProvider { source, anyway, .. }: &StartAtProvider,
    ) -> bool {
        self.is_provider(source) && !anyway && !self.providers_in_reach.load(Ordering::Relaxed)
    }

    /// Whether users of this source log in at a provider.
    pub(super) fn is_provider(&self, source: &str) -> bool {
        self.authenticator.is_provider(source)
    }

    pub(super) async fn start_at_provider(&self, start: StartAtProvider) -> ProviderStart {
        let StartAtProvider { source, address, again, .. } = start;
        let ages = [again.then_some(AGAIN), self.access.shortest_login_age()];
        let max_age_s = ages.into_iter().flatten().min().map(|age| age.as_secs());
        if !self.is_provider(&source) {
            return ProviderStart::Refused(Refusal::NotConfirmed.into());
        }
        let Some(_asked) = self.at_provider().ask(&source) else {
            return ProviderStart::Refused(Refusal::SourceUnavailable.into());
        };
        let begun = self.at_provider().begin(&source, address, max_age_s, now());
        let Some(Begun { token, state, nonce, challenge }) = begun else {
            return ProviderStart::Refused(Refusal::WaitingFull.into());
        };
        let asked = LoginAddress { source, state, nonce, challenge, max_age_s };
        match self.authenticator.address_at_provider(asked).await {
            Ok(url) => ProviderStart::Go { url, token },
            Err(refusal) => ProviderStart::Refused(refusal.into()),
        }
    }

    pub(super) async fn finish_at_provider(&self, finish: FinishAtProvider) -> LoginStep {
        let FinishAtProvider { source, browser, state, code, issuer } = finish;
        let proof = self.at_provider().finish(&state, &source, &browser.token, now());
        let Some(Proof { nonce, verifier, max_age_s }) = proof else {
            self.record.refusals.count("login_not_confirmed");
            if self.record.refusals.admits() {
                tracing::info!(
                    source = &*source,
                    address = %browser.address,
                    "a browser came back from a provider with a state that is not its own, used or too old"
                );
            }
            return LoginStep::Refused(Refusal::NotConfirmed.into());
        };
        let (device, now_s) = (DeviceId(rand::random()), (self.clocks.wall)());
        let redeem =
            code.map(|code| RedeemCode { source: source.clone(), code, issuer, nonce, verifier, max_age_s });
        let outcome = match redeem {
            Some(redeem) => {
                self.authenticator.log_in_at_provider(redeem, browser.address, device, now_s).await
            }
            None => self.authenticator.refused_by_provider(&source, browser.address, device, now_s),
        };
        self.decided(outcome, device, browser.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::portal::desk::tests::Bench;
    use vpnd_ipc::gateway::portal::OverviewQuery;
    use vpnd_ipc::gateway::portal::visits::BrowserKind;
    use vpnd_proto::control::{SecretText, UserName};
    use vpnd_store::{TotpSecret, UserChange, Users as _};

    #[tokio::test]
    async fn a_login_that_waits_is_no_visit_yet() {
        let bench = Bench::new();
        let totp = UserChange { totp: Some(Some(TotpSecret::new(vec![7; 20]))), ..UserChange::default() };
        bench.store.modify_user("gus", &totp, 9).unwrap();
        let address = [192, 0, 2, 1].into();
        let password = SecretText::new("right").unwrap();
        let login = PortalLogin { user: UserName::new("gus").unwrap(), password, address };
        let LoginStep::Demand { token, .. } = bench.ask(login).await else { panic!("he needs a code") };
        let browser = Browser { token, address, kind: BrowserKind::default() };
        assert!(bench.ask(OverviewQuery(browser)).await.is_none());
    }
}
