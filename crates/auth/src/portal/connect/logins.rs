//! Logins in a browser that are under way: tickets, short codes and grants.
//!
//! Invariants: a grant is good once, for [`GRANT_LIFETIME`], for the device that began and with the
//! verifier that this device alone has, so an observer on its way gains nothing. It goes to a port
//! of the browser's own machine and nowhere else; that of a short code was the client's from the
//! beginning, and counts once the user who has typed the code agrees. Of tickets and grants only
//! hashes are kept; what is kept is bounded, and networks share it fairly.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use vpnd_proto::admission::Source;
use vpnd_proto::admission::shares::{Displaced, Division, Entered, PermitId, Shares, Standing};
use vpnd_proto::control::Grant;
use vpnd_proto::session::DeviceId;
use vpnd_proto::time::Time;

use super::shared::{self, Told};
use super::short_code::{ByCode, Code};
use crate::portal::token::VisitNumber;
use vpnd_admission::notices::SharedLogin;
use vpnd_ipc::gateway::auth::BrowserLogin;
use vpnd_ipc::gateway::idp::Url;
use vpnd_ipc::gateway::portal::Token;
use vpnd_store::UserId;

/// Limit for a person in the browser.
pub(super) const LIFETIME: Duration = Duration::from_secs(600);
/// Limit for the client to come back.
const GRANT_LIFETIME: Duration = Duration::from_secs(60);
/// A person who has taken this long makes room for another.
const DISPLACE_AFTER: Duration = Duration::from_secs(60);
/// Logins at most.
const LIMIT: usize = 4_096;

pub(super) type Hash = [u8; 32];

/// The logins that are under way.
pub(super) struct Logins {
    shares: Shares,
    /// By the hash of the ticket, then by that of the grant; with a code by that of the grant.
    started: HashMap<Hash, Started>,
    /// The address of the pages, without a path.
    address: Option<String>,
    gives_codes: bool,
    told: Told,
}

/// A login that a client has begun.
pub(super) struct Started {
    pub(super) begun: BrowserLogin,
    pub(super) since: Time,
    /// Its age at that time, if it is of another gateway.
    pub(super) before: Duration,
    /// `None` for one that was begun at another gateway.
    pub(super) permit: Option<PermitId>,
    pub(super) by_code: Option<ByCode>,
    /// The person's answer. A client without a code gets a no from the browser.
    pub(super) answer: Option<Answered>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    Yes(VisitNumber),
    No,
}

/// Where an answer goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// To this port of the browser's machine, by its redirection to this address.
    Browser(Url, u16),
    /// To the client when it asks.
    Client,
}

/// The result of a grant that a client shows.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redeemed {
    Visit(VisitNumber),
    /// The person has not answered: the client may ask again after this time.
    Pending(Duration),
    No,
    Void,
}

impl Default for Logins {
    fn default() -> Self {
        let division =
            Division { limit: LIMIT, displace_after: DISPLACE_AFTER, displaced: Displaced::Oldest };
        Self {
            shares: Shares::new(division),
            started: HashMap::new(),
            address: None,
            gives_codes: false,
            told: Told::default(),
        }
    }
}

impl Logins {
    /// Browsers reach the pages at this address from now on.
    pub(super) fn serve_at(&mut self, address: &str) {
        self.address = Some(address.trim_end_matches('/').to_owned());
    }

    pub(super) fn address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    /// Whether clients get short codes that ask for them.
    pub(super) fn give_codes(&mut self, gives_codes: bool) {
        self.gives_codes = gives_codes;
    }

    pub(super) fn gives_codes(&self) -> bool {
        self.gives_codes
    }

    /// Begins a login; `None` if too many of its network are under way. Its ticket; or its code,
    /// and the grant that will count once the code was typed.
    pub(super) fn begin(&mut self, begun: BrowserLogin, now: Time) -> Option<(Token, Option<Code>)> {
        self.remove_where(|login| !login.is_on(now));
        let source = Source::from(begun.source);
        let Entered::In { permit, displaced } = self.shares.enter(now, source, Standing::Stranger) else {
            return None;
        };
        self.started.retain(|_, login| login.permit.is_none() || login.permit != displaced);
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
        self.started.insert(hash(&*secret.0), started);
        Some((secret, code))
    }

    /// Undoes a login that has just begun, which has this ticket or grant.
    pub(super) fn abandon(&mut self, secret: &Token) {
        let login = self.started.remove(&hash(&*secret.0));
        self.leave(login.and_then(|login| login.permit));
    }

    /// One that no other login here has. Gateways that make one at the same moment do not know of
    /// each other's: of 20^8 codes it is another one.
    fn fresh_code(&self) -> Code {
        loop {
            let code = Code::fresh();
            if !self.started.values().any(|login| login.has(code)) {
                return code;
            }
        }
    }

    /// The ticket of the question about the login with this code, which this user has typed; `None`
    /// if there is none, or another user has typed it.
    pub(super) fn typed(&mut self, code: Code, user: UserId, now: Time) -> Option<Token> {
        let is_meant = |login: &&mut Started| login.has(code) && login.waits(now);
        let login = self.started.values_mut().find(is_meant)?;
        let ticket = Token(rand::random::<[u8; 32]>().into());
        login.by_code.as_mut()?.typed_by(user, hash(&*ticket.0)).then_some(ticket)
    }

    /// The hash under which the login of this ticket is, which waits for a person.
    pub(super) fn asked(&self, ticket: &Token, now: Time) -> Option<Hash> {
        let ticket = hash(&*ticket.0);
        let key = match self.started.get(&ticket) {
            Some(login) if login.by_code.is_none() => ticket,
            // It is a grant.
            Some(_) => return None,
            None => *self.started.iter().find(|(_, login)| login.has_ticket(&ticket))?.0,
        };
        self.started.get(&key).filter(|login| login.waits(now)).map(|_| key)
    }

    /// The login about which this user may be asked by this ticket, and its hash.
    pub(super) fn asked_of(&self, ticket: &Token, user: UserId, now: Time) -> Option<(Hash, &Started)> {
        let key = self.asked(ticket, now)?;
        let login = self.started.get(&key)?;
        login.by_code.as_ref().is_none_or(|by_code| by_code.is_of(user)).then_some((key, login))
    }

    /// Ends the wait of this ticket's login for this user, with a grant if there is a visit that
    /// grants it. Which way the answer goes.
    pub(super) fn answer(
        &mut self,
        ticket: &Token,
        user: UserId,
        visit: Option<VisitNumber>,
        now: Time,
    ) -> Option<Way> {
        let (key, _) = self.asked_of(ticket, user, now)?;
        let mut login = self.started.remove(&key)?;
        (login.since, login.before) = (now, Duration::ZERO);
        login.answer = Some(visit.map_or(Answered::No, Answered::Yes));
        if login.by_code.is_some() {
            self.started.insert(key, login);
            return Some(Way::Client);
        }
        let BrowserLogin { port, state, .. } = login.begun;
        let mut query = form_urlencoded::Serializer::new(String::new());
        if visit.is_some() {
            let grant = rand::random::<[u8; 32]>();
            query.append_pair("code", &URL_SAFE_NO_PAD.encode(grant));
            self.started.insert(hash(&grant), login);
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
    pub(super) fn redeem(&mut self, shown: &Grant, device: DeviceId, now: Time) -> Redeemed {
        let key = hash(&*shown.grant);
        let is_grant = |login: &&mut Started| login.has_grant();
        let Some(login) = self.started.get_mut(&key).filter(is_grant) else { return Redeemed::Void };
        let is_same =
            hash(&*shown.verifier) == *login.begun.challenge && DeviceId(login.begun.device.into()) == device;
        let is_good = is_same && login.is_on(now);
        if let (true, None, Some(by_code)) = (is_good, login.answer, &mut login.by_code) {
            return Redeemed::Pending(by_code.ask(now));
        }
        let (permit, answer) = (login.permit, login.answer);
        self.started.remove(&key);
        self.leave(permit);
        match answer.filter(|_| is_good) {
            Some(Answered::Yes(visit)) => Redeemed::Visit(visit),
            Some(Answered::No) => Redeemed::No,
            None => Redeemed::Void,
        }
    }

    /// Those that have begun, changed or ended here since the last call, by their hashes, and their
    /// ages in seconds.
    pub(super) fn made(&mut self, now: Time) -> Vec<(Hash, Option<(SharedLogin, u64)>)> {
        self.told.made(&self.started, now)
    }

    /// Another gateway has begun, changed or ended it.
    pub(super) fn learn(&mut self, hash: Hash, shared: Option<&SharedLogin>, age: Duration, now: Time) {
        self.remove_where(|login| !login.is_on(now));
        let before = self.started.remove(&hash);
        let permit = before.and_then(|before| before.permit);
        let Some(shared) = shared else {
            self.told.forget(&hash);
            return self.leave(permit);
        };
        let login = Started { permit, ..shared::restore(shared, age, now) };
        if login.is_on(now) && self.started.len() < 4 * LIMIT {
            self.told.learn(hash, shared.clone());
            self.started.insert(hash, login);
        } else {
            self.leave(permit);
        }
    }

    /// Forgets all: which of them were used elsewhere is not known.
    pub(super) fn forget(&mut self) {
        self.remove_where(|_| true);
        self.told.clear();
    }

    fn leave(&mut self, permit: Option<PermitId>) {
        if let Some(permit) = permit {
            self.shares.leave(permit);
        }
    }

    /// Whether a login has this grant, as far as is known here.
    pub(super) fn knows(&self, shown: &Grant) -> bool {
        self.started.get(&hash(&*shown.grant)).is_some_and(Started::has_grant)
    }

    /// Whether the person has not answered, as far as is known here.
    pub(super) fn is_pending(&self, shown: &Grant, now: Time) -> bool {
        let login = self.started.get(&hash(&*shown.grant));
        login.is_some_and(|login| login.by_code.is_some() && login.waits(now))
    }

    fn remove_where(&mut self, is_over: impl Fn(&Started) -> bool) {
        let shares = &mut self.shares;
        self.started.retain(|_, login| {
            let stays = !is_over(login);
            if let (false, Some(permit)) = (stays, login.permit) {
                shares.leave(permit);
            }
            stays
        });
    }
}

impl Started {
    pub(super) fn age(&self, now: Time) -> Duration {
        now.since(self.since) + self.before
    }

    fn is_on(&self, now: Time) -> bool {
        let lifetime = if self.answer.is_some() { GRANT_LIFETIME } else { LIFETIME };
        self.age(now) < lifetime
    }

    /// Whether it has a grant: a ticket is none, and is not used up by being shown as one.
    fn has_grant(&self) -> bool {
        self.answer.is_some() || self.by_code.is_some()
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

#[cfg(test)]
pub(super) mod tests;
