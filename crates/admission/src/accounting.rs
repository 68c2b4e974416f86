//! Accounting of the sessions of RADIUS sources (RFC 2866): which sessions begin, go on and end,
//! for the servers of their source.
//!
//! Invariants: only sessions of a source that is configured for it are accounted for; no login, no
//! session's end and no packet waits for it. A session has at most one Start that is not followed
//! by its Stop or by the gateway's own. The worker says how much traffic there was and nothing
//! else: whose it was is known here.

mod ledger;
mod open_sessions;

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vpnd_proto::control::{Code, Text, UserName};
use vpnd_proto::session::{DeviceId, SessionId};
use vpnd_proto::time::Time;

use super::lease::Addresses;
use crate::idp_client::IdpClient;
use ledger::Ledger;
use open_sessions::{OpenSession, OpenSessions};
use vpnd_config::source::Source;
use vpnd_ipc::gateway::auth::{AccountingHealth, MAX_WRITES, SourceName, Traffic};
use vpnd_ipc::gateway::idp::{
    AcceptAttributes, AccountedSession, AccountingEvent, AccountingRecord, TerminateCause, Usage,
};
use vpnd_store::{User, UserId};
use vpnd_sys::clock::{now, steady_s, wall_s};

/// Logins that are on their way to a session, at most.
const MAX_LOGINS: usize = 16_384;
/// Time for a login to become a session, second factors included.
const LOGIN_LIFETIME: Duration = Duration::from_secs(300);
/// Time between two records of a session where neither the configuration nor the server says one,
/// and the bounds of what a server may say.
const INTERIM: Duration = Duration::from_secs(600);
const MIN_INTERIM_S: u32 = 60;
const MAX_INTERIM_S: u32 = 86_400;
/// Limit for the last record of a gateway that stops.
const LAST_TIMEOUT: Duration = Duration::from_millis(1_500);

#[derive(Default)]
pub struct Accounting {
    ledgers: Vec<Ledger>,
    idp: Arc<IdpClient>,
    file: Option<OpenSessions>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    accepted: HashMap<(UserId, DeviceId), Accepted>,
    /// Granted, and not kept yet.
    granted: HashMap<SessionId, (OpenSession, Time)>,
    open: HashMap<SessionId, Running>,
    /// Whether the sessions of the process before this one are among them.
    is_loaded: bool,
}

/// A source has let a user in.
struct Accepted {
    station: IpAddr,
    attributes: AcceptAttributes,
    at: Time,
}

struct Running {
    session: OpenSession,
    /// When its traffic is to be accounted for; `None` if not before its end.
    due: Option<Time>,
}

impl Accounting {
    /// For those of `sources` that are configured for it.
    pub fn new(sources: &[Source], idp: Arc<IdpClient>) -> Self {
        let ledgers = sources.iter().filter(|source| source.accounting().is_some()).map(Ledger::new);
        Self { ledgers: ledgers.collect(), idp, ..Self::default() }
    }

    /// Sets the file for records that the next process needs, if there is anything to account
    /// for.
    pub fn with_file(mut self, path: &Path) -> Self {
        if !self.ledgers.is_empty() {
            self.file = OpenSessions::open(path);
        }
        self
    }

    /// The gateway starts, rather than an upgrade: no session of before goes on until its client
    /// comes back. `is_alive` says which may.
    pub fn start(&self, is_alive: impl Fn(SessionId) -> bool) {
        if let Some(file) = &self.file {
            file.restart(is_alive);
        }
        for ledger in &self.ledgers {
            ledger.add(record(&ledger.source.name, AccountingEvent::On, None), now());
        }
    }

    /// Sends records; never returns.
    pub async fn deliver(self: Arc<Self>) {
        futures_util::future::join_all(self.ledgers.iter().map(|ledger| ledger.deliver(&self.idp))).await;
    }

    /// The gateway stops: its servers learn it now or by its next start.
    pub async fn stop(&self) {
        let last = self.ledgers.iter().map(|ledger| {
            let record = record(&ledger.source.name, AccountingEvent::Off, None);
            self.idp.request(record, LAST_TIMEOUT)
        });
        futures_util::future::join_all(last).await;
    }

    /// The counts of a source's records; `None` if there are none.
    pub fn health(&self, source: &str) -> Option<AccountingHealth> {
        self.ledger(source).map(Ledger::health)
    }

    /// A source has let this user in, who may yet be refused.
    pub fn accepted(&self, user: &User, device: DeviceId, station: IpAddr, attributes: AcceptAttributes) {
        if self.ledger(&user.source).is_none() {
            return;
        }
        let (mut state, at) = (self.state(), now());
        if state.accepted.len() >= MAX_LOGINS {
            state.accepted.retain(|_, accepted| at.since(accepted.at) < LOGIN_LIFETIME);
        }
        if state.accepted.len() < MAX_LOGINS {
            state.accepted.insert((user.id, device), Accepted { station, attributes, at });
        }
    }

    /// The user who was let in with one device goes on with another one, which is there.
    pub fn moves(&self, user: UserId, from: DeviceId, to: DeviceId, station: IpAddr) {
        let mut state = self.state();
        if let Some(accepted) = state.accepted.remove(&(user, from)) {
            state.accepted.insert((user, to), Accepted { station, ..accepted });
        }
    }

    /// A session may begin.
    pub fn granted(&self, id: SessionId, user: &User, device: DeviceId, addresses: Addresses) {
        let Some(ledger) = self.ledger(&user.source) else { return };
        let (mut state, at) = (self.state(), now());
        let accepted = state.accepted.remove(&(user.id, device));
        let Some(session) = open_session(&ledger.source, user, addresses, accepted) else { return };
        if state.granted.len() >= MAX_LOGINS {
            state.granted.retain(|_, (_, granted)| at.since(*granted) < LOGIN_LIFETIME);
        }
        if state.granted.len() < MAX_LOGINS {
            state.granted.insert(id, (session, at));
        }
    }

    /// A session that may begin has begun; any other is none of these.
    pub fn kept(&self, id: SessionId) {
        let granted = self.state().granted.remove(&id);
        if let Some((session, _)) = granted {
            self.begin(id, session);
        }
    }

    /// A session that may begin does not.
    pub fn abandoned(&self, id: SessionId) {
        self.state().granted.remove(&id);
    }

    /// A session of an earlier run goes on, which its servers take to have ended.
    pub fn restored(&self, id: SessionId, user: &User, addresses: Addresses) {
        let Some(ledger) = self.ledger(&user.source) else { return };
        if self.state().open.contains_key(&id) || self.current(id).is_some() {
            return;
        }
        let Some(fresh) = open_session(&ledger.source, user, addresses, None) else { return };
        let session = match self.file.as_ref().and_then(|file| file.earlier(id)) {
            Some(earlier) if earlier.source == fresh.source => {
                let AccountedSession { user, station, classes, .. } = earlier.session;
                let session = AccountedSession { user, station, classes, ..fresh.session };
                OpenSession { session, interim_s: earlier.interim_s, ..fresh }
            }
            _ => fresh,
        };
        self.begin(id, session);
    }

    /// A session is over.
    pub fn ended(&self, id: SessionId, code: Code, traffic: Traffic) {
        let open = self.state().open.remove(&id).map(|running| running.session);
        let Some(session) = open.or_else(|| self.current(id)) else { return };
        if let Some(file) = &self.file {
            file.remove(id);
        }
        self.add(&session, AccountingEvent::Stop(usage(&session, traffic), TerminateCause::from(code)));
    }

    /// A session has had this traffic so far.
    pub fn has_used(&self, id: SessionId, traffic: Traffic) {
        let session = self.state().open.get(&id).map(|running| running.session.clone());
        if let Some(session) = session {
            self.add(&session, AccountingEvent::Interim(usage(&session, traffic)));
        }
    }

    /// The session of a source that its servers know by this Acct-Session-Id.
    pub fn session(&self, source: &str, id: &str) -> Option<SessionId> {
        let state = self.state();
        let is_it =
            |running: &Running| *running.session.session.id == *id && *running.session.source == *source;
        state.open.iter().find(|(_, running)| is_it(running)).map(|(id, _)| *id)
    }

    /// The sessions whose traffic is to be accounted for now.
    pub fn due(&self) -> Vec<SessionId> {
        if self.ledgers.is_empty() {
            return Vec::new();
        }
        self.load();
        let (mut state, at) = (self.state(), now());
        let due = state.open.iter_mut().filter(|(_, running)| running.due.is_some_and(|due| due <= at));
        let due = due.take(MAX_WRITES).map(|(id, running)| {
            running.due = self.interim(&running.session).map(|every| at + every);
            *id
        });
        due.collect()
    }

    /// Takes over the sessions of the process before this one. A worker asks only once that has
    /// ceased to work.
    fn load(&self) {
        if std::mem::replace(&mut self.state().is_loaded, true) {
            return;
        }
        let at = now();
        for (id, session) in self.file.as_ref().map(OpenSessions::all).unwrap_or_default() {
            // Their turns are spread.
            let due = self.interim(&session).map(|every| at + every.mul_f64(rand::random()));
            self.state().open.entry(id).or_insert(Running { session, due });
        }
    }

    fn begin(&self, id: SessionId, session: OpenSession) {
        if let Some(file) = &self.file {
            file.add(id, &session);
        }
        self.add(&session, AccountingEvent::Start);
        let due = self.interim(&session).map(|every| now() + every);
        self.state().open.insert(id, Running { session, due });
    }

    /// A session that the process before this one has begun.
    fn current(&self, id: SessionId) -> Option<OpenSession> {
        let file = self.file.as_ref().filter(|_| !self.state().is_loaded)?;
        file.current(id)
    }

    fn add(&self, session: &OpenSession, event: AccountingEvent) {
        if let Some(ledger) = self.ledger(&session.source) {
            ledger.add(record(&session.source, event, Some(session.session.clone())), now());
        }
    }

    fn interim(&self, session: &OpenSession) -> Option<Duration> {
        let configured = self.ledger(&session.source)?.source.accounting()?.interim;
        interim(configured, session.interim_s)
    }

    fn ledger(&self, source: &str) -> Option<&Ledger> {
        self.ledgers.iter().find(|ledger| ledger.source.name == source)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Time between two records of a session. The gateway's own setting has precedence (RFC 2869 §2.1).
fn interim(configured: Option<Duration>, of_server: Option<u32>) -> Option<Duration> {
    let of_server = || {
        let bounded = |seconds: u32| Duration::from_secs(seconds.clamp(MIN_INTERIM_S, MAX_INTERIM_S).into());
        of_server.map_or(INTERIM, bounded)
    };
    Some(configured.unwrap_or_else(of_server)).filter(|every| !every.is_zero())
}

/// A session that begins now; `None` if its user has no name at the source any more.
fn open_session(
    source: &Source,
    user: &User,
    addresses: Addresses,
    accepted: Option<Accepted>,
) -> Option<OpenSession> {
    let (station, attributes) = accepted.map(|accepted| (accepted.station, accepted.attributes)).unzip();
    let AcceptAttributes { classes, interim_s, user: name, .. } = attributes.unwrap_or_default();
    let name = name.map_or_else(|| UserName::new(source.name_of(&user.name)), Ok);
    Some(OpenSession {
        source: SourceName::cut(&source.name),
        session: AccountedSession {
            id: Text::cut(&format!("{:016x}", rand::random::<u64>())),
            user: name.ok()?,
            station,
            ipv4: addresses.v4,
            ipv6: addresses.v6,
            classes,
        },
        interim_s,
        started_s: steady_s(),
    })
}

fn record(source: &str, event: AccountingEvent, session: Option<AccountedSession>) -> AccountingRecord {
    AccountingRecord { source: SourceName::cut(source), event, at_s: wall_s(), delay_s: 0, session }
}

fn usage(session: &OpenSession, traffic: Traffic) -> Usage {
    Usage { time_s: steady_s().saturating_sub(session.started_s), traffic }
}

#[cfg(any(test, feature = "testing"))]
impl Accounting {
    /// Identifies a session to the servers of its source.
    pub fn id_of(&self, source: &str, id: SessionId) -> Option<Text<32>> {
        let state = self.state();
        let running = state.open.get(&id).filter(|running| *running.session.source == *source)?;
        Some(running.session.session.id.clone())
    }
}

#[cfg(test)]
mod tests;
