//! Requests of RADIUS servers about sessions (RFC 5176): received, checked and passed on to the
//! auth process, which decides.
//!
//! Invariants: only a configured address is answered, and only a request that is made and signed
//! with that server's secret, is not older than [`WINDOW_S`] and was made since this process began;
//! each is passed on once, and its repetitions get the first reply. Whether it has come to another
//! gateway, or after a later one, the auth process knows. Requests are bounded in rate and number,
//! whatever their sender, and hold up no login.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::{mpsc, oneshot};
use vpnd_proto::control::List;
use zeroize::Zeroizing;

use super::radius::packet::dynamic::{Demand, Request};
use super::radius::packet::{MAX_PACKET, NoReply};
use super::radius::{group, kind};
use vpnd_config::secret_place;
use vpnd_config::source::{Source, SourceKind};
use vpnd_ipc::gateway::idp::{
    DynamicAction, DynamicRequest, DynamicResult, ErrorCause, GroupName, SourceName,
};
use vpnd_ipc::request::Reason;
use vpnd_sys::allowance::Allowance;
use vpnd_sys::clock::{now, wall_s};

/// How far a server's clock may be from this machine's, seconds; RFC 5176 §6.3 recommends it.
const WINDOW_S: u64 = 300;
/// Requests that are remembered: more than come in twice the window at the largest rate.
const MAX_SEEN: usize = 16_384;
/// Requests that are passed on: this number at once, and then one in each interval.
const BURST: u32 = 100;
const INTERVAL: Duration = Duration::from_millis(50);
/// Datagrams whose signature is looked at, the same way. Further ones are dropped: source addresses
/// of datagrams can be forged.
const CHECKS: u32 = 500;
const CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// Lines about datagrams that were dropped.
const LINES: u32 = 10;
const LINE_INTERVAL: Duration = Duration::from_secs(10);
/// Requests on their way to the auth process.
const QUEUE: usize = 64;
/// Limit for the auth process. A server asks again after a few seconds.
const DECISION_TIMEOUT: Duration = Duration::from_secs(10);

/// The outcome of a request: why it is not done, if it is not.
type Decision = Option<ErrorCause>;
type Passed = (DynamicRequest, oneshot::Sender<Decision>);

/// Where requests wait for the auth process.
pub(super) struct Inbox {
    sender: mpsc::Sender<Passed>,
    receiver: tokio::sync::Mutex<mpsc::Receiver<Passed>>,
    /// The one that the auth process has.
    open: Mutex<Option<(u64, oneshot::Sender<Decision>)>>,
    last: AtomicU64,
}

/// How requests to one source are checked.
pub(super) struct Listener {
    source: SourceName,
    clients: Vec<IpAddr>,
    secret: Zeroizing<String>,
    nas_identifier: String,
    group_kinds: Vec<u8>,
    max_groups: usize,
    started_s: u64,
    seen: Mutex<HashMap<[u8; 16], Seen>>,
    limits: Mutex<Limits>,
}

struct Limits {
    checks: Allowance,
    requests: Allowance,
    lines: Allowance,
}

/// A request that has come.
struct Seen {
    made_s: u64,
    /// `None` while it is decided.
    reply: Option<Vec<u8>>,
}

/// How to go on with a datagram.
#[derive(Debug, PartialEq, Eq)]
enum Handling {
    Drop,
    Reply(Vec<u8>),
    Decide(Box<(Request, DynamicAction, Demand)>),
}

impl Inbox {
    pub(super) fn new() -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let receiver = tokio::sync::Mutex::new(receiver);
        Self { sender, receiver, open: Mutex::default(), last: AtomicU64::new(0) }
    }

    /// Takes the result of the request before, and waits for the next one.
    pub(super) async fn next(&self, result: Option<DynamicResult>) -> Result<DynamicRequest, Reason> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(result), Some((number, decided))) = (result, open)
            && result.number == number
        {
            let _ = decided.send(result.error);
        }
        // The sender is in here, too.
        let Some((request, decided)) = self.receiver.lock().await.recv().await else {
            return super::unavailable("there is no listener for requests about sessions");
        };
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = Some((request.number, decided));
        Ok(request)
    }

    /// Has the auth process decide.
    async fn decide(
        &self,
        source: &SourceName,
        request: &Request,
        action: DynamicAction,
        demand: Demand,
    ) -> Decision {
        let passed = DynamicRequest {
            number: self.last.fetch_add(1, Ordering::Relaxed) + 1,
            source: source.clone(),
            action,
            which: demand.which,
            made_s: request.made_s().unwrap_or_default(),
            authenticator: request.authenticator().into(),
        };
        let (decided, decision) = oneshot::channel();
        if self.sender.try_send((passed, decided)).is_err() {
            return Some(ErrorCause::Resources);
        }
        match tokio::time::timeout(DECISION_TIMEOUT, decision).await {
            Ok(Ok(decision)) => decision,
            _ => Some(ErrorCause::Resources),
        }
    }
}

impl Listener {
    /// For a source that is configured for it; reads the secret.
    pub(super) fn prepare(source: &Source) -> anyhow::Result<Option<Self>> {
        let (Some(dynamic), SourceKind::Radius(radius)) = (source.dynamic(), &source.kind) else {
            return Ok(None);
        };
        Ok(Some(Self {
            source: SourceName::cut(&source.name),
            clients: dynamic.clients.clone(),
            secret: secret_place::read(&dynamic.secret)?,
            nas_identifier: radius.nas_identifier.clone(),
            group_kinds: radius.group_attributes.iter().map(|attribute| kind(*attribute)).collect(),
            max_groups: source.max_groups,
            started_s: wall_s(),
            seen: Mutex::default(),
            limits: Mutex::new(Limits {
                checks: Allowance::new(CHECKS, CHECK_INTERVAL),
                requests: Allowance::new(BURST, INTERVAL),
                lines: Allowance::new(LINES, LINE_INTERVAL),
            }),
        }))
    }

    /// Answers requests at the socket; never returns.
    pub(super) async fn listen(self: Arc<Self>, socket: OwnedFd, inbox: Arc<Inbox>) -> std::io::Result<()> {
        let socket = Arc::new(UdpSocket::from_std(socket.into())?);
        let mut buffer = vec![0; MAX_PACKET];
        loop {
            let (len, from) = match socket.recv_from(&mut buffer).await {
                Ok(received) => received,
                // A reply to a peer that is gone, for example.
                Err(error) => {
                    tracing::debug!(%error, "a request about sessions can't be received");
                    tokio::time::sleep(INTERVAL).await;
                    continue;
                }
            };
            match self.handle(&buffer[..len], from, wall_s()) {
                Handling::Drop => {}
                Handling::Reply(reply) => send(&socket, &reply, from).await,
                Handling::Decide(decided) => {
                    let (this, socket, inbox) = (Arc::clone(&self), Arc::clone(&socket), Arc::clone(&inbox));
                    tokio::spawn(async move {
                        let (request, action, demand) = *decided;
                        let decision = inbox.decide(&this.source, &request, action, demand).await;
                        send(&socket, &this.replied(&request, decision), from).await;
                    });
                }
            }
        }
    }

    fn handle(&self, packet: &[u8], from: SocketAddr, now_s: u64) -> Handling {
        if !self.clients.contains(&from.ip().to_canonical()) {
            return self.dropped(from, "it comes from an address that is not among coa_clients");
        }
        if !self.limits().checks.take(now()) {
            return Handling::Drop;
        }
        let request = match Request::decode(packet, self.secret.as_bytes()) {
            Ok(request) => request,
            Err(NoReply::Unsigned) => {
                return self.dropped(from, "it has no Message-Authenticator; the server must send one");
            }
            Err(reason) => return self.dropped(from, &reason.to_string()),
        };
        if let Some(seen) = self.seen().get(&request.authenticator()) {
            return seen.reply.clone().map_or(Handling::Drop, Handling::Reply);
        }
        let Some(made_s) = request.made_s() else {
            return Handling::Reply(self.reply(&request, Some(ErrorCause::MissingAttribute)));
        };
        if made_s.abs_diff(now_s) > WINDOW_S {
            return self.dropped(from, "its Event-Timestamp is more than 300 s off: compare the clocks");
        }
        // This process does not know which it has had before it began.
        if made_s <= self.started_s {
            return self.dropped(from, "it was made before the gateway, or its idp process, began");
        }
        if !self.limits().requests.take(now()) {
            return self.dropped(from, "there are too many");
        }
        if !self.remember(request.authenticator(), made_s, now_s) {
            return Handling::Reply(self.reply(&request, Some(ErrorCause::Resources)));
        }
        match self.wanted(&request) {
            Ok((action, demand)) => Handling::Decide(Box::new((request, action, demand))),
            Err(error) => Handling::Reply(self.replied(&request, Some(error))),
        }
    }

    fn wanted(&self, request: &Request) -> Result<(DynamicAction, Demand), ErrorCause> {
        let demand = request.demand(&self.nas_identifier, &self.group_kinds)?;
        if request.is_disconnect {
            return Ok((DynamicAction::Disconnect, demand));
        }
        let name = |value: &Vec<u8>| GroupName::new(group(value)?).ok();
        let groups: Option<Vec<_>> = demand.groups.iter().map(name).collect();
        let mut groups = groups.ok_or(ErrorCause::InvalidValue)?;
        groups.sort_unstable();
        groups.dedup();
        if groups.len() > self.max_groups {
            return Err(ErrorCause::InvalidValue);
        }
        let groups = List::new(groups).map_err(|_| ErrorCause::InvalidValue)?;
        Ok((DynamicAction::Regroup(groups), demand))
    }

    /// Notes a request that is new; `false` if there is no room.
    fn remember(&self, authenticator: [u8; 16], made_s: u64, now_s: u64) -> bool {
        let mut seen = self.seen();
        if seen.len() >= MAX_SEEN {
            seen.retain(|_, seen| seen.made_s.saturating_add(WINDOW_S) >= now_s);
        }
        let has_room = seen.len() < MAX_SEEN;
        if has_room {
            seen.insert(authenticator, Seen { made_s, reply: None });
        }
        has_room
    }

    /// The recorded reply to a request, for each repetition of it.
    fn replied(&self, request: &Request, decision: Decision) -> Vec<u8> {
        let reply = self.reply(request, decision);
        if let Some(seen) = self.seen().get_mut(&request.authenticator()) {
            seen.reply = Some(reply.clone());
        }
        reply
    }

    fn reply(&self, request: &Request, decision: Decision) -> Vec<u8> {
        request.reply(decision, self.secret.as_bytes())
    }

    fn dropped(&self, from: SocketAddr, reason: &str) -> Handling {
        if self.limits().lines.take(now()) {
            tracing::warn!(source = &*self.source, %from, reason, "a request about sessions does not count");
        }
        Handling::Drop
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<[u8; 16], Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn limits(&self) -> MutexGuard<'_, Limits> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn send(socket: &UdpSocket, reply: &[u8], to: SocketAddr) {
    if let Err(error) = socket.send_to(reply, to).await {
        tracing::debug!(%error, "a reply about sessions can't be sent");
    }
}

#[cfg(test)]
mod tests;
