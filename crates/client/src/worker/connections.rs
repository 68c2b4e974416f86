//! The connections to gateways: those that are being made, those that the core uses, and those that
//! end.
//!
//! INVARIANT: each ends in the background, after what was sent on it has arrived; a request that is
//! given up is taken back at its gateway.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use vpnd_control_channel::login::Channel;
use vpnd_control_channel::stream::{Reader, StreamError, Writer, close, close_code};
use vpnd_crypto::EpochSecret;
use vpnd_proto::client::Purpose;
use vpnd_proto::control::{AsText, Code, Established, Message, Offer};
use vpnd_proto::session::ConnectionId;
use vpnd_proto::time::Time;

use super::dial::{DialError, DialOutcome, Dialer};
use super::over_tcp::{Carrier, gateway_of};
use crate::messages::Measured;
use vpnd_sys::clock::now;

/// Limit for sending the last message of a connection.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);
/// Datagrams of an epoch that is over may come so late over the TCP connection of that one.
const LINGER: Duration = Duration::from_secs(15);
/// Events that wait for the loop at most. More wait in the tasks that send them, and so does a
/// gateway that sends faster than its messages are handled; the loop itself brings none.
const QUEUE: usize = 64;

/// An event from a connection attempt or a connection.
pub(super) enum ConnectionEvent {
    Dialled(ConnectionId, Result<DialOutcome, DialError>),
    Message(ConnectionId, Message),
    Lost(ConnectionId, Option<Code>),
    /// UDP has worked for a while.
    UdpWorks,
}

pub(super) struct Connections {
    dialer: Arc<Dialer>,
    attempts: HashMap<ConnectionId, JoinHandle<()>>,
    /// When the last of them began.
    attempted_at: Time,
    live: HashMap<ConnectionId, LiveConnection>,
    /// The tasks of those that end.
    closing: Vec<JoinHandle<()>>,
    sender: mpsc::Sender<ConnectionEvent>,
    events: mpsc::Receiver<ConnectionEvent>,
}

/// A connection that the core uses.
struct LiveConnection {
    connection: quinn::Connection,
    endpoint: quinn::Endpoint,
    writer: Writer,
    /// The task that sends its events.
    reader: JoinHandle<()>,
    /// There only over TCP.
    carrier: Option<Carrier>,
}

impl Connections {
    pub(super) fn new(dialer: Dialer) -> Self {
        let (sender, events) = mpsc::channel(QUEUE);
        Self {
            dialer: Arc::new(dialer),
            attempts: HashMap::new(),
            attempted_at: now(),
            live: HashMap::new(),
            closing: Vec::new(),
            sender,
            events,
        }
    }

    /// For tasks that send other events.
    pub(super) fn sender(&self) -> mpsc::Sender<ConnectionEvent> {
        self.sender.clone()
    }

    /// The next event. Safe to cancel.
    pub(super) async fn next(&mut self) -> Option<ConnectionEvent> {
        let event = self.events.recv().await;
        if let Some(ConnectionEvent::Dialled(connection, _)) = &event {
            self.attempts.remove(connection);
        }
        event
    }

    /// Begins an attempt, whose outcome is an event.
    pub(super) fn dial(&mut self, id: ConnectionId, purpose: Purpose, offer: Offer, may_look_up: bool) {
        let (dialer, sender) = (Arc::clone(&self.dialer), self.sender.clone());
        let rtt = self.live.values().map(|live| live.connection.rtt()).min();
        let current = self.live.values().find_map(LiveConnection::gateway);
        let attempt = tokio::spawn(async move {
            let outcome = dialer.dial(&purpose, offer, current, rtt, may_look_up).await;
            let _ = sender.send(ConnectionEvent::Dialled(id, outcome)).await;
        });
        self.attempted_at = now();
        self.attempts.insert(id, attempt);
    }

    pub(super) fn is_dialling(&self) -> bool {
        !self.attempts.is_empty()
    }

    /// When the last attempt began.
    pub(super) fn attempted_at(&self) -> Time {
        self.attempted_at
    }

    /// Takes a connection that was made, whose messages and end are events from now on. Returns
    /// what the core needs: its other end, the gateway's grant, and the secret behind the keys.
    pub(super) fn add(
        &mut self,
        id: ConnectionId,
        channel: Channel,
        endpoint: quinn::Endpoint,
        carrier: Option<Carrier>,
    ) -> (SocketAddr, Established, EpochSecret) {
        let Channel { connection, reader, writer, established, secret } = channel;
        let remote = connection.remote_address();
        let reader = tokio::spawn(read(id, reader, connection.clone(), self.sender.clone()));
        self.live.insert(id, LiveConnection { connection, endpoint, writer, reader, carrier });
        (remote, established, secret)
    }

    /// All that the core uses.
    pub(super) fn ids(&self) -> Vec<ConnectionId> {
        self.live.keys().copied().collect()
    }

    /// The address of the gateway at the other end, if that can be told.
    pub(super) fn gateway(&self, id: ConnectionId) -> Option<SocketAddr> {
        self.live.get(&id).and_then(LiveConnection::gateway)
    }

    pub(super) async fn send(&mut self, id: ConnectionId, message: &Message) {
        if let Some(live) = self.live.get_mut(&id) {
            // If the connection is gone, its reader reports that.
            let _ = live.writer.send(message).await;
        }
    }

    /// A connection has ended by itself.
    pub(super) fn lost(&mut self, id: ConnectionId) {
        if let Some(live) = self.live.remove(&id) {
            linger(live.carrier);
        }
    }

    /// Ends a connection, or gives up its attempt.
    pub(super) fn disconnect(&mut self, id: ConnectionId, code: Code) {
        self.closing.retain(|task| !task.is_finished());
        if let Some(attempt) = self.attempts.remove(&id) {
            attempt.abort();
            let dialer = Arc::clone(&self.dialer);
            self.closing.push(tokio::spawn(async move {
                let _ = attempt.await;
                dialer.part(FINISH_TIMEOUT).await;
            }));
        }
        if let Some(live) = self.live.remove(&id) {
            live.reader.abort();
            self.closing.push(tokio::spawn(live.end(code)));
        }
    }

    /// Whether nothing is being made, and nothing ends.
    pub(super) fn are_settled(&mut self) -> bool {
        self.closing.retain(|task| !task.is_finished());
        self.attempts.is_empty() && self.closing.is_empty()
    }

    /// Waits for those that end.
    pub(super) async fn finish(&mut self) {
        for task in self.closing.drain(..) {
            let _ = task.await;
        }
    }

    /// What is known of the fastest connection, for the user.
    pub(super) fn measured(&self) -> Measured {
        let live = self.live.values().min_by_key(|live| live.connection.rtt());
        let path = live.map(|live| live.connection.stats().path);
        Measured {
            gateway: live.and_then(LiveConnection::gateway).map(|gateway| AsText(canonical(gateway))),
            rtt_us: path.map(|path| u64::try_from(path.rtt.as_micros()).unwrap_or(u64::MAX)),
            control_sent: path.map_or(0, |path| path.sent_packets),
            control_lost: path.map_or(0, |path| path.lost_packets),
            ..Measured::default()
        }
    }
}

impl LiveConnection {
    fn gateway(&self) -> Option<SocketAddr> {
        gateway_of(&self.connection, self.carrier.as_ref())
    }

    async fn end(mut self, code: Code) {
        let _ = timeout(FINISH_TIMEOUT, self.writer.finish()).await;
        close(&self.connection, code, "");
        let _ = timeout(FINISH_TIMEOUT, self.endpoint.wait_idle()).await;
        linger(self.carrier);
    }
}

/// Sends the messages of a connection, and its end, as events.
async fn read(
    id: ConnectionId,
    mut reader: Reader,
    connection: quinn::Connection,
    events: mpsc::Sender<ConnectionEvent>,
) {
    let code = loop {
        match reader.next().await {
            Ok(Some(message)) => {
                let _ = events.send(ConnectionEvent::Message(id, message)).await;
            }
            Ok(None) => break close_code(&connection.closed().await),
            Err(StreamError::Message(error)) => {
                tracing::warn!(%error, "the gateway broke the protocol");
                break None;
            }
            Err(_) => break close_code(&connection.closed().await),
        }
    };
    let _ = events.send(ConnectionEvent::Lost(id, code)).await;
}

/// Ends a carrier a while after its connection.
fn linger(carrier: Option<Carrier>) {
    if let Some(carrier) = carrier {
        tokio::spawn(async move {
            tokio::time::sleep(LINGER).await;
            drop(carrier);
        });
    }
}

/// An IPv4 address as people know it.
fn canonical(address: SocketAddr) -> SocketAddr {
    (address.ip().to_canonical(), address.port()).into()
}
