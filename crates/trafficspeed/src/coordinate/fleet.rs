//! The coordinator's hold on all agents of a measurement: children in the lab's namespaces or real
//! hosts.
//!
//! Every agent has a reader thread that turns its lines into events; the coordinator waits for
//! events with a deadline, so that no agent can hang it. An agent that is lost stays in the fleet
//! as lost: its number, and what the others report, remain valid.

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Command as Process, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::message::{Command, Report, VERSION};
use super::serve::keep_alive;
use super::token::{Token, TokenError, prove};
use crate::clock;
use crate::interrupt::Interrupt;
use crate::line::{LineReader, LineWriter};
use crate::observe::HostInfo;

/// Time that an agent may take for an answer that needs no work.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Round trips that the estimate of a clock's offset is chosen from.
const CLOCK_ROUNDS: u32 = 15;

/// Why an agent could not be had.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The child process could not be started.
    #[error("cannot start the generator for {name}: {source}")]
    Spawn { name: String, source: std::io::Error },
    /// The host could not be reached.
    #[error("cannot reach {name}: {source}; is `trafficspeed serve` running there?")]
    Reach { name: String, source: std::io::Error },
    /// The host and the coordinator do not hold the same token.
    #[error("{name}: {source}")]
    Token { name: String, source: TokenError },
    /// The agent is of no use.
    #[error("{name}: {reason}")]
    Agent { name: String, reason: String },
}

/// Something an agent said, or that it is gone.
#[derive(Debug)]
pub enum Event {
    Report(Report),
    /// The agent is lost.
    Lost(String),
}

/// How an agent's clock relates to the coordinator's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Offset {
    /// The agent's clock less the coordinator's, in nanoseconds.
    pub ns: i64,
    /// The true offset lies within this of `ns`, in nanoseconds.
    pub uncertainty_ns: u64,
}

struct Member {
    name: String,
    writer: LineWriter<Box<dyn Write + Send>>,
    child: Option<Child>,
    host: HostInfo,
    offset: Offset,
    lost: Option<String>,
}

/// All agents of a measurement, numbered in the order they joined.
pub struct Fleet {
    members: Vec<Member>,
    events: Receiver<(usize, Event)>,
    sender: Sender<(usize, Event)>,
}

impl Default for Fleet {
    fn default() -> Self {
        let (sender, events) = channel();
        Self { members: Vec::new(), events, sender }
    }
}

impl Fleet {
    /// Adds a child process that is an agent on its standard input and output. It shares the
    /// coordinator's clock.
    pub fn add_child(&mut self, name: &str, mut process: Process) -> Result<usize, FleetError> {
        process.stdin(Stdio::piped()).stdout(Stdio::piped());
        let spawn = |source| FleetError::Spawn { name: name.to_owned(), source };
        let mut child = process.spawn().map_err(spawn)?;
        let output = child.stdin.take().expect("its standard input is piped");
        let input = child.stdout.take().expect("its standard output is piped");
        let reader = LineReader::new(BufReader::new(input), None);
        self.join(name, reader, LineWriter::new(Box::new(output), None), Some(child))
    }

    /// Adds a host where `trafficspeed serve` runs, and compares clocks with it.
    pub fn add_host(&mut self, name: &str, address: &str, token: &Token) -> Result<usize, FleetError> {
        let reach = |source| FleetError::Reach { name: name.to_owned(), source };
        let socket = connect(address).map_err(reach)?;
        socket.set_nodelay(true).map_err(reach)?;
        keep_alive(&socket).map_err(reach)?;
        socket.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(reach)?;
        socket.set_write_timeout(Some(ANSWER_TIMEOUT)).map_err(reach)?;
        let mut input = BufReader::new(socket.try_clone().map_err(reach)?);
        let mut output = socket.try_clone().map_err(reach)?;
        let keys = prove(token, &mut input, &mut output)
            .map_err(|source| FleetError::Token { name: name.to_owned(), source })?;
        socket.set_read_timeout(None).map_err(reach)?;
        let reader = LineReader::new(input, Some(keys.read));
        let member = self.join(name, reader, LineWriter::new(Box::new(output), Some(keys.write)), None)?;
        self.compare_clocks(member)?;
        Ok(member)
    }

    fn join<R: std::io::BufRead + Send + 'static>(
        &mut self,
        name: &str,
        reader: LineReader<R>,
        writer: LineWriter<Box<dyn Write + Send>>,
        child: Option<Child>,
    ) -> Result<usize, FleetError> {
        let number = self.members.len();
        let sender = self.sender.clone();
        std::thread::spawn(move || relay(number, reader, &sender));
        self.members.push(Member {
            name: name.to_owned(),
            writer,
            child,
            host: HostInfo::default(),
            offset: Offset::default(),
            lost: None,
        });
        match self.ask(number, &Command::Hello { version: VERSION })? {
            Report::Hello { host, .. } => self.members[number].host = host,
            Report::Failed { why: reason } => return Err(self.useless(number, reason)),
            other => return Err(self.useless(number, format!("unexpected answer {other:?}"))),
        }
        Ok(number)
    }

    fn useless(&self, number: usize, reason: String) -> FleetError {
        FleetError::Agent { name: self.members[number].name.clone(), reason }
    }

    /// Asks one agent and waits for its answer; only while no other agent has anything to say.
    fn ask(&mut self, number: usize, command: &Command) -> Result<Report, FleetError> {
        self.send(number, command);
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            match self.next(deadline.saturating_duration_since(Instant::now())) {
                Some((from, Event::Report(report))) if from == number => return Ok(report),
                Some((from, Event::Lost(reason))) if from == number => {
                    return Err(self.useless(number, reason));
                }
                Some(_) => {}
                None => return Err(self.useless(number, "no answer".into())),
            }
        }
    }

    /// Compares clocks with a host. Takes the exchange with the shortest round trip: the offset's
    /// error is at most half of it. What the host still had to say of an earlier measurement is
    /// passed over, so that it cannot be taken for words of the next.
    pub fn compare_clocks(&mut self, number: usize) -> Result<(), FleetError> {
        let mut best = Offset { ns: 0, uncertainty_ns: u64::MAX };
        for _ in 0..CLOCK_ROUNDS {
            let asked = clock::now_ns();
            let now_ns = self.ask_clock(number)?;
            let offset = Offset::from_exchange(asked, now_ns, clock::now_ns());
            if offset.uncertainty_ns < best.uncertainty_ns {
                best = offset;
            }
        }
        self.members[number].offset = best;
        Ok(())
    }

    fn ask_clock(&mut self, number: usize) -> Result<u64, FleetError> {
        self.send(number, &Command::Clock);
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            match self.next(deadline.saturating_duration_since(Instant::now())) {
                Some((from, Event::Report(Report::Clock { now_ns }))) if from == number => return Ok(now_ns),
                Some((from, Event::Lost(reason))) if from == number => {
                    return Err(self.useless(number, reason));
                }
                Some(_) => {}
                None => return Err(self.useless(number, "does not tell its clock".into())),
            }
        }
    }

    /// Sends a command. A broken connection shows as the agent's loss.
    pub fn send(&mut self, number: usize, command: &Command) {
        let member = &mut self.members[number];
        if member.lost.is_none()
            && let Err(error) = member.writer.write(command)
        {
            // The receiver lives in `self`, so the message cannot fail to be taken.
            self.sender.send((number, Event::Lost(error.to_string()))).expect("own receiver");
        }
    }

    /// The next event within `timeout`.
    pub fn next(&mut self, timeout: Duration) -> Option<(usize, Event)> {
        loop {
            let (number, event) = match self.events.recv_timeout(timeout) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            };
            if let Event::Lost(reason) = &event {
                // A loss is reported once, whichever of reader and writer saw it first.
                if self.members[number].lost.is_some() {
                    continue;
                }
                self.members[number].lost = Some(reason.clone());
            }
            return Some((number, event));
        }
    }

    pub fn name(&self, number: usize) -> &str {
        &self.members[number].name
    }

    pub fn host(&self, number: usize) -> &HostInfo {
        &self.members[number].host
    }

    /// How the agent's clock relates to ours.
    pub fn offset(&self, number: usize) -> Offset {
        self.members[number].offset
    }

    /// Whether the agent is gone.
    pub fn is_lost(&self, number: usize) -> bool {
        self.members[number].lost.is_some()
    }

    /// Tells every agent to end what it does, and reports true, once the user interrupts.
    pub fn stop_if(&mut self, interrupt: &Interrupt, has_stopped: &mut bool) -> bool {
        if interrupt.is_set() && !*has_stopped {
            *has_stopped = true;
            self.stop_all();
        }
        *has_stopped
    }

    /// Tells every agent to end what it does.
    pub fn stop_all(&mut self) {
        for number in 0..self.members.len() {
            self.send(number, &Command::Stop);
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for member in &mut self.members {
            // Closing its input ends a child. One that does not end is killed: it is ours.
            member.writer = LineWriter::new(Box::new(std::io::sink()), None);
        }
        let deadline = Instant::now() + Duration::from_secs(2);
        for child in self.members.iter_mut().filter_map(|member| member.child.as_mut()) {
            while Instant::now() < deadline && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(5));
            }
            if matches!(child.try_wait(), Ok(None)) {
                // Failure means that it has just ended.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

impl Offset {
    /// From one exchange: asked and answered on our clock, and what the agent's clock said between.
    pub fn from_exchange(asked: u64, theirs: u64, answered: u64) -> Self {
        let half = (answered - asked) / 2;
        Self { ns: theirs.cast_signed() - (asked + half).cast_signed(), uncertainty_ns: half }
    }

    /// An instant of ours on the agent's clock.
    pub fn translate(self, instant_ns: u64) -> u64 {
        instant_ns.saturating_add_signed(self.ns)
    }
}

fn connect(address: &str) -> std::io::Result<TcpStream> {
    use std::net::ToSocketAddrs;
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    for candidate in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&candidate, ANSWER_TIMEOUT) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn relay<R: std::io::BufRead>(number: usize, mut reader: LineReader<R>, sender: &Sender<(usize, Event)>) {
    loop {
        let (event, over) = match reader.read() {
            Ok(Some(report)) => (Event::Report(report), false),
            Ok(None) => (Event::Lost("ended unexpectedly".into()), true),
            Err(error) => (Event::Lost(error.to_string()), true),
        };
        if sender.send((number, event)).is_err() || over {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_the_middle_of_the_exchange_in_both_directions() {
        let ahead = Offset::from_exchange(1_000, 51_100, 1_200);
        assert_eq!(ahead, Offset { ns: 50_000, uncertainty_ns: 100 });
        assert_eq!(ahead.translate(2_000), 52_000);
        let behind = Offset::from_exchange(51_000, 1_100, 51_200);
        assert_eq!(behind.ns, -50_000);
        assert_eq!(behind.translate(60_000), 10_000);
    }

    #[test]
    fn a_child_that_is_no_agent_is_an_error_not_a_hang() {
        let mut silent = Process::new("true");
        silent.stderr(Stdio::null());
        let error = Fleet::default().add_child("c1", silent).unwrap_err();
        assert!(error.to_string().contains("c1"), "{error}");
        let error = Fleet::default().add_child("c1", Process::new("/nonexistent")).unwrap_err();
        assert!(matches!(error, FleetError::Spawn { .. }), "{error}");
    }
}
