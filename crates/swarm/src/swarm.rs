//! Many sessions in one process, without a TUN device for each: few sockets, one thread.
//!
//! The owner of all sessions of the process is [`Swarm`]; connections and sockets have tasks that
//! only pass on to it what arrives. A datagram finds its session by the receive index that the
//! session chose.

mod gateways;
mod lifecycle;
mod load;
mod sockets;
mod watch;

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use quinn::Connection;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
use tokio::task::AbortHandle;
use vpnd_control_channel::login::Channel;
use vpnd_control_channel::stream::{Writer, close, close_code};
use vpnd_crypto::{Preference, Suite, backend};
use vpnd_proto::control::{Code, Message, Refused, SecretText, TooLong, UserName};
use vpnd_proto::plane::Endpoint;
use vpnd_proto::session::{ConnectionId, LocalSuite};
use vpnd_proto::time::Time;
use vpnd_proto::timer::TimerQueue;
use vpnd_proto::wire::Header;

use crate::dial::{self, DialError, DialOutcome, SetUpError, bind, local};
use crate::load::Load;
use crate::member::{Member, Task};
use crate::message::{Command, Job, Report};
use crate::{now_ns, wireguard};
use lifecycle::{Churning, Lifecycle};
use sockets::Sockets;
pub(crate) use watch::{PACE, Watch};

/// Sockets for data, and as many for control, that the sessions of a process share.
const SOCKETS: usize = 8;
/// Datagrams that wait for the thread at most.
const QUEUE: usize = 4_096;
pub(crate) const MAX_DATAGRAM: usize = 2_048;
/// Interval at which sessions count their traffic, and unanswered pings are sent again.
pub(crate) const TICK: Duration = Duration::from_secs(1);
/// How often traffic that sends by the clock is looked after, at least.
const BEAT: Duration = Duration::from_millis(1);
/// Limit for sending the last message of a connection.
const LAST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(2);

/// An error that ends a process of sessions.
#[derive(Debug, thiserror::Error)]
pub enum SwarmError {
    /// No runtime or socket.
    #[error("the sessions' process can't start: {0}")]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    SetUp(#[from] SetUpError),
    /// A user's name or password is longer than the protocol allows.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// No suite, or nothing that can be offered.
    #[error("no cipher suite: {0}")]
    Suite(String),
    #[error("no job came on standard input")]
    NoJob,
}

/// Holds sessions by the commands on standard input, until it ends.
///
/// # Errors
/// [`SwarmError`], which is also the last report.
pub fn run() -> Result<(), SwarmError> {
    let (sender, commands) = unbounded_channel();
    std::thread::spawn(move || read_commands(&sender));
    let result = runtime()?.block_on(serve(commands));
    if let Err(error) = &result {
        write(&[Report::Broken(error.to_string())]);
    }
    result
}

/// Holds the sessions of `job` in this thread and its network namespace, by the commands that
/// follow, until their sender is gone. `write` gets the reports.
///
/// # Errors
/// [`SwarmError`].
pub fn hold(
    job: Job,
    commands: UnboundedReceiver<Command>,
    write: impl FnMut(&[Report]),
) -> Result<(), SwarmError> {
    runtime()?.block_on(serve_job(job, commands, write))
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

fn read_commands(sender: &UnboundedSender<Command>) {
    for line in BufReader::new(stdin()).lines() {
        let command = line.ok().and_then(|line| serde_json::from_str(&line).ok());
        let Some(command) = command else { return };
        if sender.send(command).is_err() {
            return;
        }
    }
}

pub(crate) fn write(reports: &[Report]) {
    let mut text = Vec::new();
    for report in reports {
        serde_json::to_writer(&mut text, report).expect("a report is plain data");
        text.push(b'\n');
    }
    // A coordinator that is gone takes this process with it.
    let _ = stdout().write_all(&text).and_then(|()| stdout().flush());
}

async fn serve(mut commands: UnboundedReceiver<Command>) -> Result<(), SwarmError> {
    match commands.recv().await {
        Some(Command::Open(job)) => serve_job(job, commands, write).await,
        Some(Command::OpenWireGuard(job)) => wireguard::serve(job, commands).await,
        _ => Err(SwarmError::NoJob),
    }
}

async fn serve_job(
    job: Job,
    commands: UnboundedReceiver<Command>,
    write: impl FnMut(&[Report]),
) -> Result<(), SwarmError> {
    let (sender, datagrams) = channel(QUEUE);
    let (swarm, events) = Swarm::new(job, &sender).await?;
    swarm.run(commands, events, datagrams, write).await
}

/// From a connection's task to the owner.
enum ConnectionEvent {
    Dialled(usize, ConnectionId, Result<DialOutcome, DialError>),
    Message(usize, ConnectionId, Message),
    Lost(usize, ConnectionId, Option<Code>),
}

/// A datagram and where it came from.
type Received = (Vec<u8>, SocketAddr);

/// A connection in use.
struct LiveConnection {
    connection: Connection,
    writer: Writer,
    reader: AbortHandle,
}

/// All sessions of the process.
struct Swarm {
    job: Job,
    suites: Vec<LocalSuite>,
    requests: Vec<(UserName, SecretText<1024>)>,
    members: Vec<Member>,
    /// One for each member.
    lifecycles: Vec<Lifecycle>,
    churning: Churning,
    endpoints: Vec<quinn::Endpoint>,
    sockets: Sockets,
    server_name: Arc<str>,
    indexes: BTreeSet<(u32, usize)>,
    timers: TimerQueue<usize>,
    attempts: HashMap<(usize, ConnectionId), AbortHandle>,
    live: HashMap<(usize, ConnectionId), LiveConnection>,
    events: UnboundedSender<ConnectionEvent>,
    /// First logins under way.
    opening: BTreeSet<usize>,
    /// Sessions whose ping was not answered yet.
    verifying: BTreeSet<usize>,
    talkers: usize,
    talked: (u64, u64),
    watch: Watch,
    load: Option<Load>,
    reports: Vec<Report>,
}

impl Swarm {
    async fn new(
        job: Job,
        datagrams: &Sender<Received>,
    ) -> Result<(Self, UnboundedReceiver<ConnectionEvent>), SwarmError> {
        let (events, event_queue) = unbounded_channel();
        let mut endpoints = Vec::new();
        for number in 0..SOCKETS {
            endpoints.push(dial::endpoint(&job.ca_pem, bind(local(job.gateway, source(&job, number)))?)?);
        }
        let sockets = Sockets::new(&job, datagrams)?;
        let requests = job
            .users
            .iter()
            .map(|user| Ok((UserName::new(user.user.as_str())?, SecretText::new(user.password.as_str())?)));
        let requests = requests.collect::<Result<Vec<_>, TooLong>>()?;
        let swarm = Self {
            suites: suites()?,
            requests,
            members: Vec::new(),
            lifecycles: Vec::new(),
            churning: Churning::none(),
            endpoints,
            sockets,
            server_name: job.server_name.as_str().into(),
            job,
            indexes: BTreeSet::new(),
            timers: TimerQueue::new(),
            attempts: HashMap::new(),
            live: HashMap::new(),
            events,
            opening: BTreeSet::new(),
            verifying: BTreeSet::new(),
            talkers: 0,
            talked: (0, 0),
            watch: Watch::default(),
            load: None,
            reports: Vec::new(),
        };
        Ok((swarm, event_queue))
    }

    async fn run(
        mut self,
        mut commands: UnboundedReceiver<Command>,
        mut events: UnboundedReceiver<ConnectionEvent>,
        mut datagrams: Receiver<Received>,
        mut write: impl FnMut(&[Report]),
    ) -> Result<(), SwarmError> {
        let mut ready = Vec::new();
        let mut tick = tokio::time::interval(TICK);
        let mut pulse = tokio::time::interval(PACE);
        let mut beat = tokio::time::interval(BEAT);
        for pace in [&mut tick, &mut pulse, &mut beat] {
            pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        }
        loop {
            self.open_more()?;
            if !self.reports.is_empty() {
                write(&std::mem::take(&mut self.reports));
            }
            let due = self.timers.poll_timeout().map(|(at, _)| at.since(now()));
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.handle_command(command),
                    None => return Ok(()),
                },
                Some(event) = events.recv() => self.handle_event(event),
                Some((datagram, from)) = datagrams.recv() => self.handle_datagram(&datagram, from),
                () = tokio::time::sleep(due.unwrap_or(TICK)) => self.handle_timeouts(),
                _ = tick.tick() => self.tick()?,
                () = self.sockets.ready(&mut ready) => self.receive(&ready),
                _ = pulse.tick(), if self.watch.is_on() || self.load.is_some() => self.pulse(),
                _ = beat.tick(), if self.load.as_ref().is_some_and(Load::is_timed) => self.send_turns(),
            }
        }
    }

    /// Begins first logins, as many at once as allowed.
    fn open_more(&mut self) -> Result<(), SwarmError> {
        while self.members.len() < self.job.count as usize && self.opening.len() < self.job.at_once as usize {
            let number = self.members.len();
            self.members.push(self.member(number)?);
            self.lifecycles.push(Lifecycle::new(self.sockets.of(number), self.job.gateway, now()));
            self.opening.insert(number);
            self.with(number, |member, tasks| member.timeout(now(), tasks));
        }
        Ok(())
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            // A process has one job.
            Command::Open(_) | Command::OpenWireGuard(_) => {}
            Command::Verify(count) => {
                self.verifying = (0..self.members.len().min(count as usize)).collect();
                self.ping_unverified();
            }
            Command::Talk(talkers) => self.set_talkers(talkers as usize),
            Command::Watch(count) => self.watch(count as usize),
            Command::Churn(plan) => self.set_churn(plan),
            Command::Load(plan) => self.set_load(plan),
            Command::CountLoad => self.count_load(),
        }
    }

    fn handle_event(&mut self, event: ConnectionEvent) {
        match event {
            ConnectionEvent::Dialled(number, id, result) => {
                self.attempts.remove(&(number, id));
                self.dialled(number, id, result);
            }
            ConnectionEvent::Message(number, id, message) => {
                self.with(number, |member, tasks| member.message(now(), id, message, tasks));
            }
            ConnectionEvent::Lost(number, id, code) => {
                self.connection_ended(number, id, code);
                self.live.remove(&(number, id));
                self.with(number, |member, tasks| member.lost(now(), id, code, tasks));
            }
        }
    }

    fn dialled(&mut self, number: usize, id: ConnectionId, result: Result<DialOutcome, DialError>) {
        match result {
            Ok(DialOutcome::Established(channel)) => self.established(number, id, *channel),
            Ok(DialOutcome::Refused(Refused { code, text, retry_after_ms })) => {
                self.failed(number, format!("refused: {code}"));
                let retry_after = Duration::from_millis(retry_after_ms.unwrap_or(0).into());
                self.with(number, |m, tasks| {
                    m.refused(now(), id, (code, &text.to_string(), retry_after), tasks);
                });
            }
            Err(error) => {
                self.failed(number, error.to_string());
                let failed = if error.is_full() { Member::turned_away } else { Member::failed };
                self.with(number, |member, tasks| failed(member, now(), id, tasks));
            }
        }
    }

    fn failed(&mut self, number: usize, reason: String) {
        // A session that waits to try again makes room for others.
        self.opening.remove(&number);
        self.churning.counts.failed += 1;
        let session = self.session(number);
        self.reports.push(Report::Failed { session, at_ns: now_ns(), reason });
    }

    fn established(&mut self, number: usize, id: ConnectionId, channel: Channel) {
        let Channel { connection, mut reader, writer, established, secret } = channel;
        let gateway = Endpoint { remote: connection.remote_address(), local: None };
        self.lifecycles[number].gateway = gateway.remote;
        let (events, watched) = (self.events.clone(), connection.clone());
        let reader = tokio::spawn(async move {
            while let Ok(Some(message)) = reader.next().await {
                // The owner is gone only with the process.
                let _ = events.send(ConnectionEvent::Message(number, id, message));
            }
            let code = close_code(&watched.closed().await);
            let _ = events.send(ConnectionEvent::Lost(number, id, code));
        });
        self.live.insert((number, id), LiveConnection { connection, writer, reader: reader.abort_handle() });
        self.with(number, |member, tasks| {
            member.established(now(), id, &established, secret, gateway, tasks);
        });
    }

    fn handle_datagram(&mut self, datagram: &[u8], from: SocketAddr) {
        let Ok(header) = Header::parse(datagram) else { return };
        let from = Endpoint { remote: from, local: None };
        let index = header.index.0;
        let candidates: Vec<usize> =
            self.indexes.range((index, 0)..=(index, usize::MAX)).map(|(_, number)| *number).collect();
        for number in candidates {
            // Opening works in place, and two sessions may have chosen one index.
            let mut copy = datagram.to_vec();
            let mut is_own = false;
            self.with(number, |member, tasks| is_own = member.datagram(now(), &mut copy, from, tasks));
            if is_own {
                return;
            }
        }
    }

    fn handle_timeouts(&mut self) {
        while let Some(number) = self.timers.pop(now()) {
            self.with(number, |member, tasks| member.timeout(now(), tasks));
        }
    }

    fn tick(&mut self) -> Result<(), SwarmError> {
        for number in 0..self.members.len() {
            let talks = number < self.talkers && self.is_up(number);
            self.talked.0 += u64::from(talks);
            self.churning.counts.sent += u64::from(talks);
            self.with(number, |member, tasks| {
                member.tick(now(), tasks);
                if talks {
                    member.ping(now(), 0, tasks);
                }
            });
        }
        self.ping_unverified();
        let (sent, answered) = std::mem::take(&mut self.talked);
        if self.talkers > 0 {
            self.reports.push(Report::Talked { sent, answered });
        }
        self.churn()
    }

    fn ping_unverified(&mut self) {
        for number in self.verifying.clone() {
            self.with(number, |member, tasks| member.ping(now(), 0, tasks));
        }
    }

    /// Passes an event to a session by `handle`, and performs the tasks that follow from it.
    fn with(&mut self, number: usize, handle: impl FnOnce(&mut Member, &mut Vec<Task>)) {
        let mut tasks = Vec::new();
        handle(&mut self.members[number], &mut tasks);
        for task in tasks {
            self.perform(number, task);
        }
        match self.members[number].due() {
            Some(at) => self.timers.set(number, at),
            None => self.timers.cancel(number),
        }
    }

    fn perform(&mut self, number: usize, task: Task) {
        match task {
            Task::Dial { connection, purpose, offer } => self.dial(number, connection, purpose, offer),
            Task::Datagram { bytes, to } => {
                self.sockets.send(self.lifecycles[number].socket, &bytes, to.remote);
            }
            Task::AddIndex(index) => {
                self.indexes.insert((index.0, number));
            }
            Task::RemoveIndex(index) => {
                self.indexes.remove(&(index.0, number));
            }
            Task::SendAndClose(id, message) => self.send_and_close(number, id, message),
            Task::Close(id, code) => self.close(number, id, code),
            Task::Up { by, took } => {
                self.opening.remove(&number);
                self.came_up(number, by);
                let (session, took_ns) = (self.session(number), took.as_nanos() as u64);
                self.reports.push(Report::Up { session, at_ns: now_ns(), by, took_ns });
            }
            Task::Answered(mark) => self.answered(number, mark),
            Task::GaveUp(reason) => {
                self.opening.remove(&number);
                self.gave_up(number, &reason);
                let session = self.session(number);
                self.reports.push(Report::GaveUp { session, at_ns: now_ns(), reason });
            }
        }
    }

    fn send_and_close(&mut self, number: usize, id: ConnectionId, message: Message) {
        let Some(mut live) = self.live.remove(&(number, id)) else { return };
        live.reader.abort();
        tokio::spawn(async move {
            let last = async {
                // If the connection is gone, there is nothing to send.
                let _ = live.writer.send(&message).await;
                live.writer.finish().await;
            };
            let _ = tokio::time::timeout(LAST_MESSAGE_TIMEOUT, last).await;
            close(&live.connection, Code::from(0), "");
        });
    }

    fn close(&mut self, number: usize, id: ConnectionId, code: Code) {
        if let Some(attempt) = self.attempts.remove(&(number, id)) {
            attempt.abort();
        }
        if let Some(live) = self.live.remove(&(number, id)) {
            live.reader.abort();
            close(&live.connection, code, "");
        }
    }

    /// The number of a session in the whole measurement.
    fn session(&self, number: usize) -> u32 {
        self.job.first + number as u32
    }
}

fn suites() -> Result<Vec<LocalSuite>, SwarmError> {
    let measured = Suite::STANDARD.iter().map(|&suite| {
        let choice = backend::choose(suite, Preference::Auto);
        let choice = choice.map_err(|error| SwarmError::Suite(error.to_string()))?;
        Ok(LocalSuite { suite, backend: choice.backend, mbps: choice.speed() })
    });
    measured.collect()
}

/// The address that socket `number` sends from, if not any.
fn source(job: &Job, number: usize) -> Option<IpAddr> {
    job.sources.get(number % job.sources.len().max(1)).copied()
}

pub(crate) fn now() -> Time {
    Time::from_nanos(now_ns())
}
