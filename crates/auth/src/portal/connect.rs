//! Logins of clients in a browser (PROTOCOL §4.3, §4.4): from the client's first message until it
//! comes back with a grant.
//!
//! Invariants: a grant is made only for a visit whose user has logged in just now, after that user
//! was asked; it is no longer good once the visit has ended, as it counts for what that visit is
//! then. A user answers at a pace, since each answer is in the audit file. [`logins`] has what a
//! ticket, a code and a grant are good for.

mod logins;
mod shared;
mod short_code;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use vpnd_proto::admission::Source;
use vpnd_proto::control::{AsText, Grant, LoginAt, ShortCode, Text, UserName};
use vpnd_proto::session::DeviceId;

use super::browsers::Browsers;
use super::record::Record;
use logins::{LIFETIME, Logins, Redeemed, Way};
#[cfg(any(test, fuzzing))]
pub(crate) use short_code::read as read_code;
use short_code::{Code, Guesses, INTERVAL};
use vpnd_admission::authenticator::allowances::Allowances;
use vpnd_admission::authenticator::{Authenticator, Login, LoginOutcome};
use vpnd_admission::notices::{self, Membership, Notice, Subscriber, Taken, lock};
use vpnd_ipc::gateway::auth::{BrowserLogin, BrowserLoginReply, SourceName};
use vpnd_ipc::gateway::portal::Token;
use vpnd_ipc::gateway::portal::connect::{
    AnswerToClient, CodeEnd, ConnectEnd, ConnectPage, ConnectQuery, TypedCode,
};
use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_store::{StoreError, UserId};
use vpnd_sys::clock::{Clocks, now};

/// Ports below are those of services.
const FIRST_PORT: u16 = 1_024;
/// Answers of a user at once, and the time for each after that.
const ANSWERS: u32 = 60;
const ANSWER_INTERVAL: Duration = Duration::from_secs(20);

pub(super) struct ClientLogins {
    authenticator: Arc<Authenticator>,
    clocks: Clocks,
    record: Arc<Record>,
    fleet: Arc<Membership>,
    browsers: Arc<Browsers>,
    logins: Mutex<Logins>,
    /// The limit of short codes.
    guesses: Mutex<Guesses>,
    /// The limit of answers to clients.
    answers: Mutex<Allowances>,
}

impl ClientLogins {
    pub(super) fn new(
        authenticator: Arc<Authenticator>,
        clocks: Clocks,
        record: Arc<Record>,
        fleet: Arc<Membership>,
        browsers: Arc<Browsers>,
    ) -> Self {
        let (logins, guesses) = (Mutex::default(), Mutex::default());
        let answers = Mutex::new(Allowances::new(ANSWERS, ANSWER_INTERVAL));
        Self { authenticator, clocks, record, fleet, browsers, logins, guesses, answers }
    }

    fn logins(&self) -> MutexGuard<'_, Logins> {
        lock(&self.logins)
    }

    /// Browsers reach the pages at this address from now on.
    pub(super) fn serve_at(&self, address: &str) {
        self.logins().serve_at(address);
    }

    /// Whether clients get short codes that ask for them.
    pub(super) fn give_codes(&self, gives_codes: bool) {
        self.logins().give_codes(gives_codes);
    }

    /// Begins the login of a client; `has_pages` is whether there is a portal.
    pub(super) fn begin(&self, login: BrowserLogin, has_pages: bool) -> BrowserLoginReply {
        // Before the database: a client that can't begin costs the fleet nothing.
        let (secret, at) = match self.begin_here(login, has_pages) {
            Ok(begun) => begun,
            Err(refusal) => return BrowserLoginReply::Refused(refusal.into()),
        };
        // The browser may be at another gateway in a moment.
        if let Err(error) = self.fleet.tell() {
            tracing::error!(%error, "no login in a browser can begin");
            self.logins().abandon(&secret);
            return BrowserLoginReply::Refused(Refusal::StoreUnavailable.into());
        }
        BrowserLoginReply::At(at)
    }

    /// A login that other gateways do not know of yet, with its ticket or its grant.
    fn begin_here(&self, login: BrowserLogin, has_pages: bool) -> Result<(Token, LoginAt), Refusal> {
        let mut logins = self.logins();
        let address = logins.address().filter(|_| has_pages).map(str::to_owned);
        let (Some(address), FIRST_PORT..) = (address, login.port) else { return Err(Refusal::NoPages) };
        let from = login.source;
        let (secret, code) = logins.begin(login, now()).ok_or(Refusal::WaitingFull)?;
        let page = match code {
            Some(_) => format!("{address}/code"),
            None => format!("{address}/connect/{}", URL_SAFE_NO_PAD.encode(*secret.0)),
        };
        let Ok(url) = Text::new(page) else {
            logins.abandon(&secret);
            return Err(Refusal::NoPages);
        };
        let code = code.map(|code| ShortCode {
            code: Text::cut(&code.shown()),
            grant: secret.0,
            from: AsText(from),
            interval_s: INTERVAL.as_secs() as u16,
        });
        Ok((secret, LoginAt { url, time_s: LIFETIME.as_secs() as u16, code }))
    }

    /// Logs in the client that shows this grant.
    pub(super) fn finish(&self, grant: &Grant, login: Login) -> LoginOutcome {
        let redeemed = match self.redeem(grant, login.device) {
            Ok(redeemed) => redeemed,
            Err(error) => {
                tracing::error!(%error, "a login in a browser can't end");
                return Refusal::StoreUnavailable.into();
            }
        };
        let visit = match redeemed {
            Redeemed::Visit(number) => self.browsers.visits().numbered(number, now()),
            Redeemed::Void => None,
            // Neither is an attempt that the audit file has: the first is none, and of the second
            // it has the person's answer.
            Redeemed::Pending(wait) => {
                return LoginOutcome::Refused(Refusal::Pending.retry_after_s(Some(wait.as_secs())));
            }
            Redeemed::No => return Refusal::DeviceRefused.into(),
        };
        self.authenticator.log_in_by_visit(visit, login, (self.clocks.wall)())
    }

    /// The result of this grant, which is good once, whichever gateways it is shown to. One that
    /// none of them knows costs the fleet no change.
    fn redeem(&self, grant: &Grant, device: DeviceId) -> Result<Redeemed, StoreError> {
        let redeem = || self.logins().redeem(grant, device, now());
        let is_known = || self.logins().knows(grant);
        if self.logins().is_pending(grant, now()) {
            return Ok(redeem());
        }
        let is_known = is_known() || self.fleet.catch_up()? && is_known();
        if is_known { self.fleet.in_order(redeem) } else { Ok(Redeemed::Void) }
    }

    /// The question to a user who has come with a ticket.
    pub(super) fn question(&self, query: &ConnectQuery) -> Result<ConnectPage, StoreError> {
        let is_asked = || self.logins().asked(&query.ticket, now()).is_some();
        // It may be asked at another gateway.
        let is_known = is_asked() || self.fleet.catch_up()? && is_asked();
        if !is_known {
            return Ok(ConnectPage::Over);
        }
        let Some((user, _)) = self.browsers.just_logged_in(&query.browser)? else {
            return Ok(ConnectPage::LogIn);
        };
        let (logins, now) = (self.logins(), now());
        let Some((_, login)) = logins.asked_of(&query.ticket, user.id, now) else {
            return Ok(ConnectPage::Over);
        };
        Ok(ConnectPage::Ask {
            name: Text::cut(&vpnd_sys::text::harmless(&login.begun.name)),
            from: login.begun.source,
            port: login.by_code.is_none().then_some(login.begun.port),
            user: UserName::cut(&user.name),
            source: SourceName::cut(&user.source),
            age_s: login.age(now).as_secs(),
            is_elsewhere: is_elsewhere(login.begun.source, query.browser.address),
        })
    }

    /// The user's answer to it.
    pub(super) fn answer(&self, answer: &AnswerToClient) -> Result<ConnectEnd, StoreError> {
        let AnswerToClient { ticket, browser, allowed, compared } = answer;
        let Some((user, visit)) = self.browsers.just_logged_in(browser)? else {
            return Ok(ConnectEnd::LogIn);
        };
        let logins = self.logins();
        let Some((_, login)) = logins.asked_of(ticket, user.id, now()) else { return Ok(ConnectEnd::Over) };
        // A person who types the code of a stranger's device is to notice (RFC 8628 section 5.4).
        if *allowed && login.by_code.is_some() && !compared {
            return Ok(ConnectEnd::NotCompared);
        }
        let device = match login.by_code {
            Some(_) => format!("{}, by code, at {}", login.begun.name, login.begun.source),
            None => login.begun.name.to_string(),
        };
        drop(logins);
        if let Err(wait_s) = lock(&self.answers).take(user.id, now()) {
            return Ok(ConnectEnd::Wait(wait_s));
        }
        let answer = || self.logins().answer(ticket, user.id, allowed.then_some(visit), now());
        let ended = self.fleet.in_order(answer)?;
        let event = if *allowed { "device-allowed" } else { "device-refused" };
        self.record.add(event, &user.name, browser.address, &vpnd_sys::text::harmless(&device));
        Ok(match ended {
            Some(Way::Browser(url, port)) => ConnectEnd::To { url, port },
            Some(Way::Client) => ConnectEnd::Kept,
            None => ConnectEnd::Over,
        })
    }

    /// A user has typed the code that a client shows.
    pub(super) fn typed(&self, typed: &TypedCode) -> Result<CodeEnd, StoreError> {
        let TypedCode { browser, code } = typed;
        if !self.logins().gives_codes() {
            return Ok(CodeEnd::Off);
        }
        let Some((user, _)) = self.browsers.just_logged_in(browser)? else { return Ok(CodeEnd::LogIn) };
        if code.is_empty() {
            return Ok(CodeEnd::Form);
        }
        let wait_s = lock(&self.guesses).take(user.id, browser.address, now());
        if let Err(wait_s) = wait_s {
            return Ok(CodeEnd::Wait(wait_s));
        }
        let ticket = match Code::read(code) {
            Some(code) => self.fleet.in_order(|| self.logins().typed(code, user.id, now()))?,
            None => None,
        };
        Ok(ticket.map_or_else(
            || {
                self.record.refusals.count("short_code");
                self.record.add("code-wrong", &user.name, browser.address, "");
                CodeEnd::Wrong
            },
            CodeEnd::Found,
        ))
    }
}

impl Subscriber for ClientLogins {
    fn learn(&self, notice: &Notice) {
        match notice {
            Notice::Login(hash, shared, began_s) => {
                let age = Duration::from_secs((self.clocks.steady)().saturating_sub(*began_s));
                self.logins().learn((*hash).into(), shared.as_ref(), age, now());
            }
            Notice::Taken(Taken::Code(user, from), at_s) => {
                let (user, age) = (UserId((*user).into()), notices::age(*at_s));
                lock(&self.guesses).learn(user, *from, age, now());
            }
            _ => {}
        }
    }

    fn made(&self) -> Vec<Notice> {
        let now_s = (self.clocks.steady)();
        let logins = self.logins().made(now()).into_iter().map(|(hash, shared)| {
            let (shared, age_s) = shared.unzip();
            Notice::Login(hash.into(), shared, now_s.saturating_sub(age_s.unwrap_or_default()))
        });
        let typed = lock(&self.guesses).take_shared().into_iter();
        let typed = typed.map(|(user, address)| Taken::Code(user.0.into(), address).now());
        logins.chain(typed).collect()
    }

    fn has_missed(&self) {
        self.logins().forget();
    }
}

/// Whether these are hosts of different networks; addresses of two families tell nothing.
fn is_elsewhere(device: IpAddr, browser: IpAddr) -> bool {
    let [device, browser] = [device, browser].map(|address| address.to_canonical());
    device.is_ipv6() == browser.is_ipv6() && Source::from(device) != Source::from(browser)
}

#[cfg(test)]
mod tests;
