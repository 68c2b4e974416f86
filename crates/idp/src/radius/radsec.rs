//! RADIUS in TLS (RadSec, RFC 6614): one connection to each server, which all requests to it share.
//!
//! Invariants: nothing is sent before the server has proved its name; a reply goes to the request
//! with its number and to no other, and the number of a request that was given up is
//! not given again before its reply has come; whatever is no reply to a request under way ends the
//! connection, and the requests on it with it. What a server sends is kept for one packet at a
//! time. One attempt to connect is under way at a time, and after a failure there is a pause before
//! the next one.

mod watchdog;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Notify, OwnedMutexGuard, Semaphore, mpsc, oneshot};
use zeroize::Zeroizing;

use super::packet::{self, MAX_PACKET, NoReply};
use crate::servers::{Answered, ServerError};
use vpnd_config::source::SourceServer;
use vpnd_config::source_tls::SourceTls;
pub(super) use watchdog::Options;
use watchdog::Watchdog;

/// The shared secret of all servers: the protection is that of TLS (RFC 6614 §2.3).
pub(super) const SECRET: &str = "radsec";
/// Numbers of requests. The watchdog has the first for itself.
const NUMBERS: usize = 256;
/// Requests without an answer after which a connection is good for nothing.
const MAX_ABANDONED: usize = 64;
/// Limit for TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit for a server to take a packet in.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after a first failure; each further one doubles it up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

type Packet = Zeroizing<Vec<u8>>;

/// The connections to the servers of a source.
pub(super) struct Connections {
    tls: SourceTls,
    options: Options,
    /// By their names. There is one for each that is configured.
    places: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Place>>>>,
    answered: Arc<Answered>,
}

/// The connection to one server, if there is one.
#[derive(Default)]
struct Place {
    connection: Option<Arc<Connection>>,
    /// Attempts without an answer since the last with one.
    failures: u32,
    not_before: Option<Instant>,
}

/// Requests on their way over one connection. A separate task reads and writes until the connection
/// ends.
struct Connection {
    outgoing: mpsc::Sender<Packet>,
    /// Numbers that are free.
    free: Semaphore,
    table: Mutex<Table>,
    /// Wakes the task when the connection is over.
    over: Notify,
    /// Wakes it when a request has got no reply.
    suspicion: Notify,
}

struct Table {
    numbers: [Number; NUMBERS],
    last: usize,
    abandoned: usize,
    has_replied: bool,
    /// When and why the connection ended.
    over: Option<(Instant, String)>,
}

/// The state of one number.
#[derive(Default)]
enum Number {
    #[default]
    Free,
    Awaited(oneshot::Sender<Packet>),
    /// The request was given up; its reply may still arrive.
    Abandoned,
}

/// A number that belongs to a request; one that is not answered is abandoned with it.
struct Awaiting<'c> {
    connection: &'c Connection,
    number: u8,
}

/// Why an exchange has failed.
enum Failure {
    /// The connection was over before there was a reply.
    Over(ServerError),
    /// The reply does not count.
    Reply(NoReply),
}

impl Connections {
    pub(super) fn new(tls: SourceTls, options: Options) -> Self {
        Self { tls, options, places: Mutex::default(), answered: Arc::default() }
    }

    /// Sends a packet to a server; the reply to it as `check` has it.
    pub(super) async fn exchange<T>(
        &self,
        server: &SourceServer,
        encode: impl Fn(u8) -> Packet,
        check: impl Fn(&[u8], &[u8]) -> Result<T, NoReply>,
    ) -> Result<T, ServerError> {
        let (connection, is_new) = self.connection(server).await?;
        let outcome = match connection.exchange(&encode, &check).await {
            // A server may end a connection whenever it likes, most likely before the request was
            // there; but a person must not be asked twice.
            Err(Failure::Over(_)) if !is_new && !self.options.may_wait => {
                self.connection(server).await?.0.exchange(&encode, &check).await
            }
            outcome => outcome,
        };
        outcome.map_err(|failure| match failure {
            Failure::Over(error) => error,
            Failure::Reply(reason) => ServerError::Answer(format!("its reply does not count: {reason}")),
        })
    }

    /// The connection to a server, and whether it was made for this.
    async fn connection(&self, server: &SourceServer) -> Result<(Arc<Connection>, bool), ServerError> {
        let mut place = self.place(server).lock_owned().await;
        if let Some(connection) = place.open() {
            return Ok((connection, false));
        }
        if let Some(pause) = place.pause() {
            let reason = format!("it has failed just now; the next attempt is in {} ms", pause.as_millis());
            return Err(ServerError::Connect(io::Error::other(reason)));
        }
        let watchdog = Watchdog::new(&self.options);
        // A separate task: the attempt and what it teaches must not end with a request that has
        // waited for too long.
        let (tls, answered) = (self.tls.clone(), Arc::clone(&self.answered));
        let opening = tokio::spawn(open(place, server.clone(), tls, watchdog, answered));
        let opened = opening.await.unwrap_or_else(|error| Err(ServerError::Connect(io::Error::other(error))));
        opened.map(|connection| (connection, true))
    }

    fn place(&self, server: &SourceServer) -> Arc<tokio::sync::Mutex<Place>> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(places.entry(server.to_string()).or_default())
    }
}

async fn open(
    mut place: OwnedMutexGuard<Place>,
    server: SourceServer,
    tls: SourceTls,
    watchdog: Watchdog,
    answered: Arc<Answered>,
) -> Result<Arc<Connection>, ServerError> {
    let secure = async |tcp| tls.secure(tcp, &server.host).await.map_err(ServerError::Tls);
    let opened = tokio::time::timeout(CONNECT_TIMEOUT, answered.connect(&server, secure)).await;
    match opened.unwrap_or_else(|_| Err(ServerError::Connect(io::ErrorKind::TimedOut.into()))) {
        Ok(stream) => {
            let connection = Connection::over(stream, watchdog);
            place.connection = Some(Arc::clone(&connection));
            Ok(connection)
        }
        Err(error) => {
            place.failed(Instant::now());
            Err(error)
        }
    }
}

impl Place {
    /// The connection, if it is not over.
    fn open(&mut self) -> Option<Arc<Connection>> {
        let connection = self.connection.as_ref()?;
        let (over, has_replied) = {
            let table = connection.table();
            (table.over.as_ref().map(|(at, _)| *at), table.has_replied)
        };
        if has_replied {
            (self.failures, self.not_before) = (0, None);
        }
        let Some(at) = over else { return Some(Arc::clone(connection)) };
        self.connection = None;
        // In TLS 1.3 a server that refuses the gateway's certificate does so behind the handshake.
        if !has_replied {
            self.failed(at);
        }
        None
    }

    fn failed(&mut self, at: Instant) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(8)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(at + pause);
    }

    /// Time to the next attempt.
    fn pause(&self) -> Option<Duration> {
        self.not_before?.checked_duration_since(Instant::now()).filter(|pause| !pause.is_zero())
    }
}

impl Connection {
    fn over<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, watchdog: Watchdog) -> Arc<Self> {
        let (outgoing, packets) = mpsc::channel(NUMBERS);
        let table = Table {
            numbers: std::array::from_fn(|_| Number::Free),
            last: 0,
            abandoned: 0,
            has_replied: false,
            over: None,
        };
        let connection = Arc::new(Self {
            outgoing,
            free: Semaphore::new(NUMBERS - 1),
            table: Mutex::new(table),
            over: Notify::new(),
            suspicion: Notify::new(),
        });
        tokio::spawn(Arc::clone(&connection).carry(stream, packets, watchdog));
        connection
    }

    async fn exchange<T>(
        &self,
        encode: impl Fn(u8) -> Packet,
        check: impl Fn(&[u8], &[u8]) -> Result<T, NoReply>,
    ) -> Result<T, Failure> {
        let Ok(permit) = self.free.acquire().await else { return Err(self.failure()) };
        // It comes back with the number.
        permit.forget();
        let Some((awaiting, reply)) = self.take_number() else { return Err(self.failure()) };
        let packet = encode(awaiting.number);
        // There is room for all numbers.
        if self.outgoing.try_send(packet.clone()).is_err() {
            return Err(self.failure());
        }
        let Ok(reply) = reply.await else { return Err(self.failure()) };
        check(&packet, &reply).map_err(|reason| {
            self.end(&format!("a packet that does not count: {reason}"));
            Failure::Reply(reason)
        })
    }

    fn take_number(&self) -> Option<(Awaiting<'_>, oneshot::Receiver<Packet>)> {
        let mut table = self.table();
        if table.over.is_some() {
            return None;
        }
        // The one that was free for longest.
        let after = table.last;
        let found = (1..NUMBERS).map(|step| (after + step) % NUMBERS).find(|number| {
            *number != usize::from(watchdog::NUMBER) && matches!(table.numbers[*number], Number::Free)
        })?;
        let (sender, receiver) = oneshot::channel();
        table.numbers[found] = Number::Awaited(sender);
        table.last = found;
        Some((Awaiting { connection: self, number: found as u8 }, receiver))
    }

    /// Reads and writes until the connection is over.
    async fn carry<S: AsyncRead + AsyncWrite + Unpin>(
        self: Arc<Self>,
        mut stream: S,
        mut packets: mpsc::Receiver<Packet>,
        mut watchdog: Watchdog,
    ) {
        let mut received = Vec::with_capacity(2 * MAX_PACKET);
        let reason = loop {
            let step = tokio::select! {
                read = stream.read_buf(&mut received) => self.received(read, &mut received, &mut watchdog),
                Some(packet) = packets.recv() => write(&mut stream, &packet).await,
                () = tokio::time::sleep_until(watchdog.due()) => match watchdog.next(self.is_awaited()) {
                    Ok(Some(packet)) => write(&mut stream, &packet).await,
                    Ok(None) => Ok(()),
                    Err(reason) => Err(reason),
                },
                () = self.suspicion.notified() => {
                    watchdog.suspect();
                    Ok(())
                }
                () = self.over.notified() => break "it does not count any more".to_owned(),
            };
            if let Err(reason) = step {
                break reason;
            }
        };
        self.end(&reason);
        let _ = tokio::time::timeout(WRITE_TIMEOUT, stream.shutdown()).await;
    }

    /// Gives complete packets to the requests that wait for them.
    fn received(
        &self,
        read: io::Result<usize>,
        received: &mut Vec<u8>,
        watchdog: &mut Watchdog,
    ) -> Result<(), String> {
        if read.map_err(|error| error.to_string())? == 0 {
            return Err("the server has closed the connection".to_owned());
        }
        while let Some(len) = packet::len(received).map_err(|reason| reason.to_string())? {
            if len > received.len() {
                break;
            }
            let packet: Packet = Zeroizing::new(received.drain(..len).collect());
            if packet[1] == watchdog::NUMBER {
                watchdog.reply(&packet)?;
            } else {
                self.arrived(packet)?;
            }
            watchdog.is_alive();
            self.table().has_replied = true;
        }
        Ok(())
    }

    fn arrived(&self, packet: Packet) -> Result<(), String> {
        let mut table = self.table();
        match std::mem::take(&mut table.numbers[usize::from(packet[1])]) {
            Number::Free => return Err("an unexpected reply".to_owned()),
            // The waiting task may have ended in this moment.
            Number::Awaited(waiting) => drop(waiting.send(packet)),
            Number::Abandoned => table.abandoned -= 1,
        }
        self.free.add_permits(1);
        Ok(())
    }

    fn is_awaited(&self) -> bool {
        self.table().numbers.iter().any(|number| matches!(number, Number::Awaited(_)))
    }

    /// Ends the connection, and with it the requests on it.
    fn end(&self, reason: &str) {
        let mut table = self.table();
        if table.over.is_none() {
            table.over = Some((Instant::now(), reason.to_owned()));
        }
        table.numbers.fill_with(Number::default);
        self.free.close();
        self.over.notify_one();
    }

    fn failure(&self) -> Failure {
        let reason = self.table().over.as_ref().map_or_else(String::new, |(_, reason)| reason.clone());
        Failure::Over(ServerError::Answer(format!("the connection is over: {reason}")))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Awaiting<'_> {
    fn drop(&mut self) {
        let mut table = self.connection.table();
        let number = &mut table.numbers[usize::from(self.number)];
        if !matches!(number, Number::Awaited(waiting) if waiting.is_closed()) {
            return;
        }
        *number = Number::Abandoned;
        table.abandoned += 1;
        let is_useless = table.abandoned >= MAX_ABANDONED;
        drop(table);
        if is_useless {
            self.connection.end("too many requests have got no reply");
        } else {
            self.connection.suspicion.notify_one();
        }
    }
}

async fn write(stream: &mut (impl AsyncWrite + Unpin), packet: &[u8]) -> Result<(), String> {
    let written = tokio::time::timeout(WRITE_TIMEOUT, async {
        stream.write_all(packet).await?;
        stream.flush().await
    });
    let written = written.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    written.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
