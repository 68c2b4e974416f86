//! Logins of clients in a browser (PROTOCOL §4.3, §4.4): from the client's first message until it
//! comes back with a grant.
//!
//! Invariants: a grant is made only for a visit whose user has logged in just now, after that user
//! was asked; it is good once, for [`GRANT_LIFETIME`], for the device that began and with the
//! verifier that this device alone has, so an observer on its way gains nothing; it is no longer
//! good once the visit has ended, as it counts for what that visit is then. It goes to a port
//! of the browser's own machine and nowhere else; that of a short code was the client's from the
//! beginning, and counts once the user who has typed the code agrees. Of tickets and grants only
//! hashes are kept; what is kept is bounded, and networks share it fairly.

mod shared;
mod short_code;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use vpnd_proto::admission::Source;
use vpnd_proto::admission::shares::{Displaced, Division, Entered, PermitId, Shares, Standing};
use vpnd_proto::control::{AsText, Grant, LoginAt, ShortCode, Text, UserName};
use vpnd_proto::session::DeviceId;
use vpnd_proto::time::Time;

use super::Portal;
use super::token::VisitNumber;
use crate::authenticator::{Login, LoginOutcome};
use crate::notices::SharedLogin;
#[cfg(any(test, fuzzing))]
pub(crate) use short_code::read as read_code;
use short_code::{ByCode, Code, Guesses, INTERVAL};
use vpnd_ipc::gateway::auth::{BrowserLogin, BrowserLoginReply, SourceName};
use vpnd_ipc::gateway::idp::Url;
use vpnd_ipc::gateway::portal::Token;
use vpnd_ipc::gateway::portal::connect::{
    AnswerToClient, CodeEnd, ConnectEnd, ConnectPage, ConnectQuery, TypedCode,
};
use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_ipc::request::{Answer, Reason};
use vpnd_store::{StoreError, UserId};
use vpnd_sys::clock::now;

/// Limit for a person in the browser.
const LIFETIME: Duration = Duration::from_secs(600);
/// Limit for the client to come back.
const GRANT_LIFETIME: Duration = Duration::from_secs(60);
/// A person who has taken this long makes room for another.
const DISPLACE_AFTER: Duration = Duration::from_secs(60);
/// Logins at most.
const LIMIT: usize = 4_096;
/// Ports below are those of services.
const FIRST_PORT: u16 = 1_024;

type Hash = [u8; 32];

/// The logins that are under way.
pub(super) struct Connects {
    shares: Shares,
    /// By the hash of the ticket, then by that of the grant; with a code by that of the grant.
    logins: HashMap<Hash, Started>,
    /// The address of the pages, without a path.
    address: Option<String>,
    gives_codes: bool,
    guesses: Guesses,
    /// Logins as the other gateways of a fleet know them.
    told: HashMap<Hash, SharedLogin>,
}

/// A login that a client has begun.
struct Started {
    begun: BrowserLogin,
    since: Time,
    /// Its age at that time, if it is of another gateway.
    before: Duration,
    /// `None` for one that was begun at another gateway.
    permit: Option<PermitId>,
    by_code: Option<ByCode>,
    /// The person's answer. A client without a code gets a no from the browser.
    answer: Option<Answered>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answered {
    Yes(VisitNumber),
    No,
}

/// Where an answer goes.
#[derive(Debug, PartialEq, Eq)]
enum Way {
    /// To this port of the browser's machine, by its redirection to this address.
    Browser(Url, u16),
    /// To the client when it asks.
    Client,
}

/// The result of a grant that a client shows.
#[derive(Debug, PartialEq, Eq)]
enum Redeemed {
    Visit(VisitNumber),
    /// The person has not answered: the client may ask again after this time.
    Pending(Duration),
    No,
    Void,
}

impl Default for Connects {
    fn default() -> Self {
        let division =
            Division { limit: LIMIT, displace_after: DISPLACE_AFTER, displaced: Displaced::Oldest };
        Self {
            shares: Shares::new(division),
            logins: HashMap::new(),
            address: None,
            gives_codes: false,
            guesses: Guesses::default(),
            told: HashMap::new(),
        }
    }
}

impl Connects {
    /// Begins a login; `None` if too many of its network are under way. Its ticket; or its code,
    /// and the grant that will count once the code was typed.
    fn begin(&mut self, begun: BrowserLogin, now: Time) -> Option<(Token, Option<Code>)> {
        self.remove_where(|login| !login.is_on(now));
        let source = Source::from(begun.source);
        let Entered::In { permit, displaced } = self.shares.enter(now, source, Standing::Stranger) else {
            return None;
        };
        self.logins.retain(|_, login| login.permit.is_none() || login.permit != displaced);
        let code = (begun.short_code && self.gives_codes).then(|| self.fresh_code());
        let secret = Token(rand::random::<[u8; 32]>().into());
        let started = Started {
            begun,
            since: now,
            before: Duration::ZERO,
            permit: Some(permit),
            by_code: code.map(ByCode::new),
            answer: None,
        };
        self.logins.insert(hash(&*secret.0), started);
        Some((secret, code))
    }

    /// One that no other login has.
    fn fresh_code(&self) -> Code {
        loop {
            let code = Code::fresh();
            if !self.logins.values().any(|login| login.has(code)) {
                return code;
            }
        }
    }

    /// The ticket of the question about the login with this code, which this user has typed; `None`
    /// if there is none, or another user has typed it.
    fn typed(&mut self, code: Code, user: UserId, now: Time) -> Option<Token> {
        let is_meant = |login: &&mut Started| login.has(code) && login.waits(now);
        let login = self.logins.values_mut().find(is_meant)?;
        let ticket = Token(rand::random::<[u8; 32]>().into());
        login.by_code.as_mut()?.typed_by(user, hash(&*ticket.0)).then_some(ticket)
    }

    /// The hash under which the login of this ticket is, which waits for a person.
    fn asked(&self, ticket: &Token, now: Time) -> Option<Hash> {
        let ticket = hash(&*ticket.0);
        let key = match self.logins.get(&ticket) {
            Some(login) if login.by_code.is_none() => ticket,
            // It is a grant.
            Some(_) => return None,
            None => *self.logins.iter().find(|(_, login)| login.has_ticket(&ticket))?.0,
        };
        self.logins.get(&key).filter(|login| login.waits(now)).map(|_| key)
    }

    /// The login about which this user may be asked by this ticket, and its hash.
    fn asked_of(&self, ticket: &Token, user: UserId, now: Time) -> Option<(Hash, &Started)> {
        let key = self.asked(ticket, now)?;
        let login = self.logins.get(&key)?;
        login.by_code.as_ref().is_none_or(|by_code| by_code.is_of(user)).then_some((key, login))
    }

    /// Ends the wait of this ticket's login for this user, with a grant if there is a visit that
    /// grants it. Which way the answer goes.
    fn answer(&mut self, ticket: &Token, user: UserId, visit: Option<VisitNumber>, now: Time) -> Option<Way> {
        let (key, _) = self.asked_of(ticket, user, now)?;
        let mut login = self.logins.remove(&key)?;
        (login.since, login.before) = (now, Duration::ZERO);
        login.answer = Some(visit.map_or(Answered::No, Answered::Yes));
        if login.by_code.is_some() {
            self.logins.insert(key, login);
            return Some(Way::Client);
        }
        let BrowserLogin { port, state, .. } = login.begun;
        let mut query = form_urlencoded::Serializer::new(String::new());
        if visit.is_some() {
            let grant = rand::random::<[u8; 32]>();
            query.append_pair("code", &URL_SAFE_NO_PAD.encode(grant));
            self.logins.insert(hash(&grant), login);
        } else {
            query.append_pair("error", "access_denied");
            self.leave(login.permit);
        }
        query.append_pair("state", &URL_SAFE_NO_PAD.encode(*state));
        query.append_pair("iss", self.address.as_deref().unwrap_or_default());
        Some(Way::Browser(Url::new(format!("http://127.0.0.1:{port}/?{}", query.finish())).ok()?, port))
    }

    /// Ends the login of this grant, unless its person has not answered yet. The visit that it
    /// comes from, if this is the client that began.
    fn redeem(&mut self, shown: &Grant, device: DeviceId, now: Time) -> Redeemed {
        let key = hash(&*shown.grant);
        // A ticket is no grant, and is not used up by being shown as one.
        let is_grant = |login: &&mut Started| login.answer.is_some() || login.by_code.is_some();
        let Some(login) = self.logins.get_mut(&key).filter(is_grant) else { return Redeemed::Void };
        let is_same =
            hash(&*shown.verifier) == *login.begun.challenge && DeviceId(login.begun.device.into()) == device;
        let is_good = is_same && login.is_on(now);
        if let (true, None, Some(by_code)) = (is_good, login.answer, &mut login.by_code) {
            return Redeemed::Pending(by_code.ask(now));
        }
        let (permit, answer) = (login.permit, login.answer);
        self.logins.remove(&key);
        self.leave(permit);
        match answer.filter(|_| is_good) {
            Some(Answered::Yes(visit)) => Redeemed::Visit(visit),
            Some(Answered::No) => Redeemed::No,
            None => Redeemed::Void,
        }
    }

    fn leave(&mut self, permit: Option<PermitId>) {
        if let Some(permit) = permit {
            self.shares.leave(permit);
        }
    }

    /// Whether the person has not answered, as far as is known here.
    fn is_pending(&self, shown: &Grant, now: Time) -> bool {
        let login = self.logins.get(&hash(&*shown.grant));
        login.is_some_and(|login| login.by_code.is_some() && login.waits(now))
    }

    fn remove_where(&mut self, is_over: impl Fn(&Started) -> bool) {
        let shares = &mut self.shares;
        self.logins.retain(|_, login| {
            let stays = !is_over(login);
            if let (false, Some(permit)) = (stays, login.permit) {
                shares.leave(permit);
            }
            stays
        });
    }
}

impl Started {
    fn is_on(&self, now: Time) -> bool {
        let lifetime = if self.answer.is_some() { GRANT_LIFETIME } else { LIFETIME };
        now.since(self.since) + self.before < lifetime
    }

    /// Whether a person can answer.
    fn waits(&self, now: Time) -> bool {
        self.answer.is_none() && self.is_on(now)
    }

    fn has(&self, code: Code) -> bool {
        self.by_code.as_ref().is_some_and(|by_code| by_code.has(code))
    }

    fn has_ticket(&self, ticket: &Hash) -> bool {
        self.by_code.as_ref().is_some_and(|by_code| by_code.has_ticket(ticket))
    }
}

fn hash(bytes: &[u8]) -> Hash {
    Sha256::digest(bytes).into()
}

impl Portal {
    /// Browsers reach the pages at this address from now on.
    pub(crate) fn serve_at(&self, address: &str) {
        self.connects().address = Some(address.trim_end_matches('/').to_owned());
    }

    /// Whether clients get short codes that ask for them.
    pub(crate) fn give_codes(&self, gives_codes: bool) {
        self.connects().gives_codes = gives_codes;
    }

    /// Begins the login of a client.
    pub(crate) fn begin_in_browser(&self, login: BrowserLogin) -> BrowserLoginReply {
        // The browser may be at another gateway in a moment.
        self.fleet.in_order(|| self.begin_here(login)).unwrap_or_else(|error| {
            tracing::error!(%error, "no login in a browser can begin");
            BrowserLoginReply::Refused(Refusal::StoreUnavailable.into())
        })
    }

    fn begin_here(&self, login: BrowserLogin) -> BrowserLoginReply {
        let mut connects = self.connects();
        let address = connects.address.clone().filter(|_| self.is_on());
        let (Some(address), FIRST_PORT..) = (address, login.port) else {
            return BrowserLoginReply::Refused(Refusal::NoPages.into());
        };
        let from = login.source;
        let Some((secret, code)) = connects.begin(login, now()) else {
            return BrowserLoginReply::Refused(Refusal::WaitingFull.into());
        };
        let page = match code {
            Some(_) => format!("{address}/code"),
            None => format!("{address}/connect/{}", URL_SAFE_NO_PAD.encode(*secret.0)),
        };
        let code = code.map(|code| ShortCode {
            code: Text::cut(&code.shown()),
            grant: secret.0,
            from: AsText(from),
            interval_s: INTERVAL.as_secs() as u16,
        });
        match Text::new(page) {
            Ok(url) => BrowserLoginReply::At(LoginAt { url, time_s: LIFETIME.as_secs() as u16, code }),
            Err(_) => BrowserLoginReply::Refused(Refusal::NoPages.into()),
        }
    }

    /// Logs in the client that shows this grant.
    pub(crate) fn finish_in_browser(&self, grant: &Grant, login: Login) -> LoginOutcome {
        let redeem = || self.connects().redeem(grant, login.device, now());
        let is_pending = self.connects().is_pending(grant, now());
        // It is good once, whichever gateways it is shown to.
        let redeemed = if is_pending { Ok(redeem()) } else { self.fleet.in_order(redeem) };
        let redeemed = match redeemed {
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

    fn question(&self, query: &ConnectQuery) -> Result<ConnectPage, StoreError> {
        let is_asked = || self.connects().asked(&query.ticket, now()).is_some();
        // It may be asked at another gateway.
        let is_known = is_asked() || self.fleet.catch_up()? && is_asked();
        if !is_known {
            return Ok(ConnectPage::Over);
        }
        let Some((user, _)) = self.browsers.just_logged_in(&query.browser)? else {
            return Ok(ConnectPage::LogIn);
        };
        let (connects, now) = (self.connects(), now());
        let Some((_, login)) = connects.asked_of(&query.ticket, user.id, now) else {
            return Ok(ConnectPage::Over);
        };
        Ok(ConnectPage::Ask {
            name: Text::cut(&vpnd_sys::text::harmless(&login.begun.name)),
            from: login.begun.source,
            port: login.by_code.is_none().then_some(login.begun.port),
            user: UserName::cut(&user.name),
            source: SourceName::cut(&user.source),
            age_s: (now.since(login.since) + login.before).as_secs(),
            is_elsewhere: is_elsewhere(login.begun.source, query.browser.address),
        })
    }

    fn answer_to_client(&self, answer: &AnswerToClient) -> Result<ConnectEnd, StoreError> {
        let AnswerToClient { ticket, browser, allowed, compared } = answer;
        let Some((user, visit)) = self.browsers.just_logged_in(browser)? else {
            return Ok(ConnectEnd::LogIn);
        };
        let connects = self.connects();
        let Some((_, login)) = connects.asked_of(ticket, user.id, now()) else { return Ok(ConnectEnd::Over) };
        // A person who types the code of a stranger's device is to notice (RFC 8628 section 5.4).
        if *allowed && login.by_code.is_some() && !compared {
            return Ok(ConnectEnd::NotCompared);
        }
        let device = match login.by_code {
            Some(_) => format!("{}, by code, at {}", login.begun.name, login.begun.source),
            None => login.begun.name.to_string(),
        };
        drop(connects);
        let answer = || self.connects().answer(ticket, user.id, allowed.then_some(visit), now());
        let ended = self.fleet.in_order(answer)?;
        let event = if *allowed { "device-allowed" } else { "device-refused" };
        self.record.add(event, &user.name, browser.address, &vpnd_sys::text::harmless(&device));
        Ok(match ended {
            Some(Way::Browser(url, port)) => ConnectEnd::To { url, port },
            Some(Way::Client) => ConnectEnd::Kept,
            None => ConnectEnd::Over,
        })
    }

    fn typed_code(&self, typed: &TypedCode) -> Result<CodeEnd, StoreError> {
        let TypedCode { browser, code } = typed;
        if !self.connects().gives_codes {
            return Ok(CodeEnd::Off);
        }
        let Some((user, _)) = self.browsers.just_logged_in(browser)? else { return Ok(CodeEnd::LogIn) };
        if code.is_empty() {
            return Ok(CodeEnd::Form);
        }
        let wait_s = self.connects().guesses.take(user.id, browser.address, now());
        if let Err(wait_s) = wait_s {
            return Ok(CodeEnd::Wait(wait_s));
        }
        let ticket = match Code::read(code) {
            Some(code) => self.fleet.in_order(|| self.connects().typed(code, user.id, now()))?,
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

    pub(super) fn connects(&self) -> MutexGuard<'_, Connects> {
        self.connects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Answer<ConnectQuery> for Portal {
    async fn answer(self: &Arc<Self>, query: ConnectQuery) -> Result<ConnectPage, Reason> {
        self.from_store(move |portal| portal.question(&query)).await
    }
}

impl Answer<AnswerToClient> for Portal {
    async fn answer(self: &Arc<Self>, answer: AnswerToClient) -> Result<ConnectEnd, Reason> {
        self.from_store(move |portal| portal.answer_to_client(&answer)).await
    }
}

impl Answer<TypedCode> for Portal {
    async fn answer(self: &Arc<Self>, typed: TypedCode) -> Result<CodeEnd, Reason> {
        self.from_store(move |portal| portal.typed_code(&typed)).await
    }
}

/// Whether these are hosts of different networks; addresses of two families tell nothing.
fn is_elsewhere(device: IpAddr, browser: IpAddr) -> bool {
    let [device, browser] = [device, browser].map(|address| address.to_canonical());
    device.is_ipv6() == browser.is_ipv6() && Source::from(device) != Source::from(browser)
}

#[cfg(test)]
mod tests;
