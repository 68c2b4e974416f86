//! Logins of clients in a browser (PROTOCOL §4.3): from the client's first message until it comes
//! back with a grant.
//!
//! Invariants: a grant is made only for a visit whose user has logged in just now, after that user
//! was asked; it is good once, for [`GRANT_LIFETIME`], for the device that began and with the
//! verifier that this device alone has, so whoever sees it on its way has nothing. It goes to a port
//! of the browser's own machine and nowhere else. Of tickets and grants only hashes are kept; what
//! is kept is bounded, and networks share it fairly.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use vpnd_proto::admission::Source;
use vpnd_proto::admission::shares::{Displaced, Division, Entered, PermitId, Shares, Standing};
use vpnd_proto::control::{Grant, LoginAt, Text, UserName};
use vpnd_proto::session::DeviceId;
use vpnd_proto::time::Time;

use super::Portal;
use super::visits::{Found, Visit};
use crate::access::NotAdmitted;
use crate::authenticator::{Login, LoginOutcome};
use vpnd_ipc::gateway::auth::{BrowserLogin, BrowserLoginReply, SourceName};
use vpnd_ipc::gateway::idp::Url;
use vpnd_ipc::gateway::portal::connect::{AnswerToClient, ConnectEnd, ConnectPage, ConnectQuery};
use vpnd_ipc::gateway::portal::{Browser, Token};
use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_ipc::request::{Answer, Reason};
use vpnd_store::{StoreError, User};
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
    /// By the hash of the ticket, then by that of the grant.
    logins: HashMap<Hash, Started>,
    /// The address of the pages, without a path.
    address: Option<String>,
}

/// A login that a client has begun.
struct Started {
    begun: BrowserLogin,
    since: Time,
    permit: PermitId,
    /// Once the person has agreed.
    granted: Option<Visit>,
}

impl Default for Connects {
    fn default() -> Self {
        let division =
            Division { limit: LIMIT, displace_after: DISPLACE_AFTER, displaced: Displaced::Oldest };
        Self { shares: Shares::new(division), logins: HashMap::new(), address: None }
    }
}

impl Connects {
    /// Begins a login; `None` if too many of its network are under way.
    fn begin(&mut self, begun: BrowserLogin, now: Time) -> Option<Token> {
        self.remove_where(|login| !login.is_on(now));
        let source = Source::from(begun.source);
        let Entered::In { permit, displaced } = self.shares.enter(now, source, Standing::Stranger) else {
            return None;
        };
        self.logins.retain(|_, login| Some(login.permit) != displaced);
        let ticket = Token(rand::random::<[u8; 32]>().into());
        self.logins.insert(hash(&*ticket.0), Started { begun, since: now, permit, granted: None });
        Some(ticket)
    }

    /// The login of this ticket, which waits for a person.
    fn asked(&self, ticket: &Token, now: Time) -> Option<&BrowserLogin> {
        let login = self.logins.get(&hash(&*ticket.0))?;
        (login.granted.is_none() && login.is_on(now)).then_some(&login.begun)
    }

    /// Ends the wait of this ticket's login, with a grant if there is a visit that grants it. Where
    /// the browser is to go.
    fn answer(&mut self, ticket: &Token, visit: Option<Visit>, now: Time) -> Option<(Url, u16)> {
        self.asked(ticket, now)?;
        let mut login = self.logins.remove(&hash(&*ticket.0))?;
        let BrowserLogin { port, state, .. } = login.begun;
        let mut query = form_urlencoded::Serializer::new(String::new());
        if visit.is_some() {
            let grant = rand::random::<[u8; 32]>();
            query.append_pair("code", &URL_SAFE_NO_PAD.encode(grant));
            (login.granted, login.since) = (visit, now);
            self.logins.insert(hash(&grant), login);
        } else {
            query.append_pair("error", "access_denied");
            self.shares.leave(login.permit);
        }
        query.append_pair("state", &URL_SAFE_NO_PAD.encode(*state));
        query.append_pair("iss", self.address.as_deref().unwrap_or_default());
        Some((Url::new(format!("http://127.0.0.1:{port}/?{}", query.finish())).ok()?, port))
    }

    /// Ends the login of this grant. The visit that it comes from, if this is the client that began.
    fn redeem(&mut self, shown: &Grant, device: DeviceId, now: Time) -> Option<Visit> {
        let key = hash(&*shown.grant);
        // A ticket is no grant, and is not used up by being shown as one.
        self.logins.get(&key).filter(|login| login.granted.is_some())?;
        let login = self.logins.remove(&key)?;
        self.shares.leave(login.permit);
        let is_same =
            hash(&*shown.verifier) == *login.begun.challenge && DeviceId(login.begun.device.into()) == device;
        login.granted.filter(|_| is_same && login.is_on(now))
    }

    fn remove_where(&mut self, is_over: impl Fn(&Started) -> bool) {
        let shares = &mut self.shares;
        self.logins.retain(|_, login| {
            let stays = !is_over(login);
            if !stays {
                shares.leave(login.permit);
            }
            stays
        });
    }
}

impl Started {
    fn is_on(&self, now: Time) -> bool {
        let lifetime = if self.granted.is_some() { GRANT_LIFETIME } else { LIFETIME };
        now.since(self.since) < lifetime
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

    /// Begins the login of a client.
    pub(crate) fn begin_in_browser(&self, login: BrowserLogin) -> BrowserLoginReply {
        let mut connects = self.connects();
        let address = connects.address.clone().filter(|_| self.is_on());
        let (Some(address), FIRST_PORT..) = (address, login.port) else {
            return BrowserLoginReply::Refused(Refusal::NoPages.into());
        };
        let Some(ticket) = connects.begin(login, now()) else {
            return BrowserLoginReply::Refused(Refusal::WaitingFull.into());
        };
        let ticket = URL_SAFE_NO_PAD.encode(*ticket.0);
        match Text::new(format!("{address}/connect/{ticket}")) {
            Ok(url) => BrowserLoginReply::At(LoginAt { url, time_s: LIFETIME.as_secs() as u16 }),
            Err(_) => BrowserLoginReply::Refused(Refusal::NoPages.into()),
        }
    }

    /// Logs in the client that shows this grant.
    pub(crate) fn finish_in_browser(&self, grant: &Grant, login: Login) -> LoginOutcome {
        let visit = self.connects().redeem(grant, login.device, now());
        self.authenticator.log_in_by_visit(visit, login, (self.clocks.wall)())
    }

    /// The browser's user and visit, if the login was just now, and the user's access profile takes
    /// one of that age: a grant is worth a login.
    fn just_logged_in(&self, browser: &Browser) -> Result<Option<(User, Visit)>, StoreError> {
        let Some(user) = self.visitor(browser)? else { return Ok(None) };
        let mut visits = self.visits();
        let is_recent = visits.is_recent(&browser.token, now());
        let Found::Here(visit) = visits.visit(&browser.token, browser.address, now()) else {
            return Ok(None);
        };
        drop(visits);
        let (auth_time_s, now_s) = (visit.login.auth_time_s, (self.clocks.wall)());
        let admitted = self.access.admit_login(&user, visit.factors, auth_time_s, now_s);
        // Any other reason is the login's to say.
        let is_new = !matches!(admitted, Err(NotAdmitted::OldLogin));
        Ok((is_recent && is_new).then_some((user, visit)))
    }

    fn question(&self, query: &ConnectQuery) -> Result<ConnectPage, StoreError> {
        if self.connects().asked(&query.ticket, now()).is_none() {
            return Ok(ConnectPage::Over);
        }
        let Some((user, _)) = self.just_logged_in(&query.browser)? else { return Ok(ConnectPage::LogIn) };
        let connects = self.connects();
        let Some(login) = connects.asked(&query.ticket, now()) else { return Ok(ConnectPage::Over) };
        Ok(ConnectPage::Ask {
            name: Text::cut(&vpnd_sys::text::harmless(&login.name)),
            from: login.source,
            port: login.port,
            user: UserName::cut(&user.name),
            source: SourceName::cut(&user.source),
        })
    }

    fn answer_to_client(&self, answer: &AnswerToClient) -> Result<ConnectEnd, StoreError> {
        let AnswerToClient { ticket, browser, allowed } = answer;
        let Some((user, visit)) = self.just_logged_in(browser)? else { return Ok(ConnectEnd::LogIn) };
        let mut connects = self.connects();
        let Some(name) = connects.asked(ticket, now()).map(|login| login.name.to_string()) else {
            return Ok(ConnectEnd::Over);
        };
        let ended = connects.answer(ticket, allowed.then_some(visit), now());
        drop(connects);
        let event = if *allowed { "device-allowed" } else { "device-refused" };
        self.record(event, &user.name, browser.address, &vpnd_sys::text::harmless(&name));
        Ok(ended.map_or(ConnectEnd::Over, |(url, port)| ConnectEnd::To { url, port }))
    }

    fn connects(&self) -> MutexGuard<'_, Connects> {
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

#[cfg(test)]
mod tests {
    use super::super::visits::tests::ANN;
    use super::*;

    const VERIFIER: [u8; 32] = [7; 32];
    const DEVICE: DeviceId = DeviceId([1; 16]);

    fn connects() -> Connects {
        Connects { address: Some("https://vpn.uni.example".to_owned()), ..Connects::default() }
    }

    fn begun(address: &str) -> BrowserLogin {
        BrowserLogin {
            device: DEVICE.0.into(),
            source: address.parse().unwrap(),
            port: 40_000,
            state: [3; 32].into(),
            challenge: hash(&VERIFIER).into(),
            name: Text::new("pc").unwrap(),
        }
    }

    /// A login that a person has agreed to at the beginning of time.
    fn granted(connects: &mut Connects) -> [u8; 32] {
        let ticket = connects.begin(begun("192.0.2.1"), Time::ZERO).unwrap();
        let (url, port) = connects.answer(&ticket, Some(ANN), Time::ZERO).unwrap();
        let query = url.strip_prefix("http://127.0.0.1:40000/?").unwrap();
        let pairs: HashMap<_, _> = form_urlencoded::parse(query.as_bytes()).collect();
        assert_eq!((port, pairs.len(), &*pairs["iss"]), (40_000, 3, "https://vpn.uni.example"));
        assert_eq!(pairs["state"], URL_SAFE_NO_PAD.encode([3; 32]));
        URL_SAFE_NO_PAD.decode(&*pairs["code"]).unwrap().try_into().unwrap()
    }

    fn shown(grant: [u8; 32], verifier: [u8; 32]) -> Grant {
        Grant { grant: grant.into(), verifier: verifier.into() }
    }

    #[test]
    fn a_grant_is_good_once_in_time_for_the_client_that_began() {
        let (mut connects, zero) = (connects(), Time::ZERO);
        let grant = granted(&mut connects);
        assert_eq!(connects.redeem(&shown(grant, VERIFIER), DEVICE, zero), Some(ANN));
        assert_eq!(connects.redeem(&shown(grant, VERIFIER), DEVICE, zero), None, "twice");
        let grant = granted(&mut connects);
        assert_eq!(connects.redeem(&shown(grant, [8; 32]), DEVICE, zero), None, "another verifier");
        assert_eq!(connects.redeem(&shown(grant, VERIFIER), DEVICE, zero), None, "it was tried");
        let grant = granted(&mut connects);
        assert_eq!(connects.redeem(&shown(grant, VERIFIER), DeviceId([2; 16]), zero), None, "another device");
        let grant = granted(&mut connects);
        assert_eq!(connects.redeem(&shown(grant, VERIFIER), DEVICE, zero + GRANT_LIFETIME), None, "too late");
        let grant = granted(&mut connects);
        let last = zero + (GRANT_LIFETIME - Duration::from_nanos(1));
        assert_eq!(connects.redeem(&shown(grant, VERIFIER), DEVICE, last), Some(ANN));
        assert_eq!((connects.logins.len(), connects.shares.taken()), (0, 0));
    }

    #[test]
    fn a_ticket_is_answered_once_in_time_and_is_no_grant() {
        let (mut connects, zero) = (connects(), Time::ZERO);
        let ticket = connects.begin(begun("192.0.2.1"), zero).unwrap();
        assert_eq!(connects.redeem(&shown(*ticket.0, VERIFIER), DEVICE, zero), None);
        assert!(connects.asked(&ticket, zero).is_some(), "it is not used up");
        let (url, _) = connects.answer(&ticket, None, zero).unwrap();
        assert!(url.contains("error=access_denied") && !url.contains("code="), "{url:?}");
        assert!(connects.answer(&ticket, Some(ANN), zero).is_none(), "it was refused");
        let ticket = connects.begin(begun("192.0.2.1"), zero).unwrap();
        assert!(connects.answer(&ticket, Some(ANN), zero + LIFETIME).is_none(), "too late");
        let grant = granted(&mut connects);
        assert!(connects.asked(&Token(grant.into()), zero).is_none(), "a grant is no ticket");
        assert!(connects.answer(&Token(grant.into()), Some(ANN), zero).is_none());
        assert_eq!(connects.redeem(&shown(grant, VERIFIER), DEVICE, zero), Some(ANN));
    }

    #[test]
    fn a_crowd_keeps_nobody_out() {
        let mut connects = connects();
        for _ in 0..2 * LIMIT {
            let _ = connects.begin(begun("192.0.2.1"), Time::ZERO);
        }
        assert!(connects.logins.len() <= LIMIT && connects.logins.len() == connects.shares.taken());
        assert!(connects.begin(begun("198.51.100.1"), Time::ZERO).is_some());
        assert!(connects.begin(begun("198.51.100.1"), Time::ZERO + LIFETIME).is_some());
        assert_eq!((connects.logins.len(), connects.shares.taken()), (1, 1));
    }
}
