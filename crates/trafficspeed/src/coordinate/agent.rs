//! The agent: does what its coordinator says, one job at a time.
//!
//! Commands come through a channel and reports leave through another; whether pipes or an authenticated
//! connection are behind them is not its business. When the coordinator is gone, it stops moving data.

pub mod blocks;
mod tasks;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::Duration;

use self::blocks::Leave;
use self::tasks::Times;
use super::message::{Command, MAX_DURATION_MS, Outcome, Report, StreamOutcome, VERSION};
use crate::clock;
use crate::load::task::Ready;
use crate::load::tcp::{Job, Listener, Stream, StreamTotal, Transfer, connect_all};
use crate::observe;
use crate::observe::HostFacts;

/// How long the connections of a job may take to be made.
const CONNECT_PATIENCE: Duration = Duration::from_secs(30);
/// How long data under way may take to arrive after the end.
pub const DRAIN_PATIENCE: Duration = Duration::from_secs(15);
/// How far ahead a start may lie.
const MAX_LEAD: Duration = Duration::from_secs(60);

/// One session with a coordinator.
pub struct Agent {
    commands: Receiver<Command>,
    reports: Sender<Report>,
    /// The connected job that waits for its start.
    ready: Option<(Job, Vec<Stream>)>,
    /// The connected tasks that wait for their beginning.
    tasks: Vec<Ready>,
    /// What its host's owner lets the coordinator do with blocks.
    leave: Option<Arc<Leave>>,
}

/// The coordinator is gone.
struct Gone;

impl Agent {
    /// An agent that takes `commands` and answers in `reports`.
    pub fn new(commands: Receiver<Command>, reports: Sender<Report>) -> Self {
        Self { commands, reports, ready: None, tasks: Vec::new(), leave: None }
    }

    /// It may also take and write blocks.
    #[must_use]
    pub fn with_leave(self, leave: Arc<Leave>) -> Self {
        Self { leave: Some(leave), ..self }
    }

    /// Serves until the coordinator closes.
    pub fn run(mut self) {
        while let Ok(command) = self.commands.recv() {
            if self.obey(command).is_err() {
                return;
            }
        }
    }

    fn obey(&mut self, command: Command) -> Result<(), Gone> {
        let report = match command {
            Command::Hello { version: VERSION } => {
                Report::Hello { version: VERSION, host: HostFacts::read() }
            }
            Command::Hello { version } => failed(format!(
                "coordinator speaks version {version}, this agent {VERSION}; use the same release"
            )),
            Command::Clock => Report::Clock { now_ns: clock::now_ns() },
            Command::Listen { job, bind } => return self.listen(job, bind),
            Command::Connect { job, peer } => self.connect(job, peer)?,
            Command::Start { at_ns, warmup_ms, duration_ms } => {
                self.measure(at_ns, warmup_ms, duration_ms)?
            }
            Command::Prepare { tasks, bind } => return self.prepare(tasks, bind),
            Command::Reach { tasks, peer, ports } => self.reach(tasks, peer, &ports),
            Command::Begin { at_ns, warmup_ms, duration_ms, interval_ms, peer_ahead_ns } => {
                self.work(&Times { at_ns, warmup_ms, duration_ms, interval_ms, peer_ahead_ns })?
            }
            Command::BlockPlace => self.block_place(),
            Command::TakeBlocks { blocks, sync, bind } => return self.take_blocks(&blocks, sync, bind),
            Command::WriteBlocks(job) => self.write_blocks(&job),
            Command::VerifyBlocks { blocks, seed, acknowledged, sent } => {
                self.verify_blocks(&blocks, seed, acknowledged, sent)
            }
            Command::Stop => {
                self.ready = None;
                self.tasks.clear();
                return Ok(());
            }
        };
        self.say(report)
    }

    fn say(&self, report: Report) -> Result<(), Gone> {
        self.reports.send(report).map_err(|_| Gone)
    }

    fn listen(&mut self, job: Job, bind: IpAddr) -> Result<(), Gone> {
        if let Some(problem) = job.problem() {
            return self.say(failed(problem));
        }
        let bound = Listener::bind(SocketAddr::new(bind, 0), &job)
            .and_then(|listener| Ok((listener.port()?, listener)));
        let (port, listener) = match bound {
            Ok(bound) => bound,
            Err(error) => return self.say(failed(error.to_string())),
        };
        self.say(Report::Listening { port })?;
        let made = listener.accept_all(&job, CONNECT_PATIENCE, &mut || self.stopped());
        let report = self.keep(job, made.map_err(|error| error.to_string()));
        self.say(report)
    }

    fn connect(&mut self, job: Job, peer: SocketAddr) -> Result<Report, Gone> {
        if let Some(problem) = job.problem() {
            return Ok(failed(problem));
        }
        let made = connect_all(peer, &job, CONNECT_PATIENCE, &mut || self.stopped());
        Ok(self.keep(job, made.map_err(|error| error.to_string())))
    }

    fn keep(&mut self, job: Job, made: Result<Vec<Stream>, String>) -> Report {
        match made {
            Ok(streams) => {
                self.ready = Some((job, streams));
                Report::Connected
            }
            Err(why) => failed(why),
        }
    }

    /// Whether the coordinator asks for an end, by word or by leaving. No other command is due meanwhile.
    fn stopped(&self) -> bool {
        !matches!(self.commands.try_recv(), Err(TryRecvError::Empty))
    }

    fn measure(&mut self, at_ns: u64, warmup_ms: u64, duration_ms: u64) -> Result<Report, Gone> {
        let Some((job, streams)) = self.ready.take() else {
            return Ok(failed("told to start before the connections were made".into()));
        };
        if clock::until(at_ns) > MAX_LEAD {
            return Ok(failed(format!("told to start more than {} s ahead", MAX_LEAD.as_secs())));
        }
        if duration_ms == 0 || duration_ms > MAX_DURATION_MS || warmup_ms > MAX_DURATION_MS {
            return Ok(failed(format!("told to measure for {duration_ms} ms after {warmup_ms} ms")));
        }
        let begin_ns = at_ns + warmup_ms * 1_000_000;
        let end_ns = begin_ns + duration_ms * 1_000_000;
        let sending: Vec<bool> = streams.iter().map(|stream| stream.sends).collect();
        match Transfer::begin(streams, &job, at_ns) {
            Ok(transfer) => self.watch(transfer, &sending, begin_ns, end_ns),
            Err(error) => Ok(failed(format!("cannot start the generator: {error}"))),
        }
    }

    /// Reads the counters at the instants that matter, then ends the transfer.
    fn watch(
        &self,
        transfer: Transfer,
        sending: &[bool],
        begin_ns: u64,
        end_ns: u64,
    ) -> Result<Report, Gone> {
        let stopped_in_warmup = self.wait_until(begin_ns, &transfer);
        let first = Reading::take(&transfer);
        let mut previous = first.clone();
        let mut stopped_early = stopped_in_warmup;
        let mut number = 0;
        while !stopped_early && previous.at_ns < end_ns {
            let next = (begin_ns + (u64::from(number) + 1) * 1_000_000_000).min(end_ns);
            stopped_early = self.wait_until(next, &transfer);
            let reading = Reading::take(&transfer);
            let (received, sent) = reading.since(&previous, sending);
            self.say(Report::Interval { number, received, sent })?;
            previous = reading;
            number += 1;
        }
        let totals = transfer.finish(DRAIN_PATIENCE);
        let elapsed = previous.at_ns - first.at_ns;
        Ok(Report::Done(Outcome {
            seconds: elapsed as f64 / 1e9,
            late_ms: first.at_ns.saturating_sub(begin_ns) as f64 / 1e6,
            stopped_early,
            cpu_seconds: previous.cpu_seconds - first.cpu_seconds,
            streams: outcomes(&first, &previous, totals),
        }))
    }

    /// Waits for an instant; true if the coordinator or a broken transfer ends the wait early.
    fn wait_until(&self, instant_ns: u64, transfer: &Transfer) -> bool {
        loop {
            let left = clock::until(instant_ns);
            if left.is_zero() {
                return false;
            }
            match self.commands.recv_timeout(left.min(Duration::from_millis(100))) {
                Err(RecvTimeoutError::Timeout) if transfer.broke_down() => return true,
                Err(RecvTimeoutError::Timeout) => {}
                Ok(_) | Err(RecvTimeoutError::Disconnected) => return true,
            }
        }
    }
}

/// The counters at one instant.
#[derive(Clone)]
struct Reading {
    at_ns: u64,
    bytes: Vec<u64>,
    cpu_seconds: f64,
}

impl Reading {
    fn take(transfer: &Transfer) -> Self {
        let bytes = transfer.snapshot();
        Self { at_ns: clock::now_ns(), bytes, cpu_seconds: observe::own_cpu_seconds() }
    }

    /// Bytes (received, sent) since an earlier reading.
    fn since(&self, earlier: &Self, sending: &[bool]) -> (u64, u64) {
        let mut moved = (0, 0);
        for ((now, then), sends) in self.bytes.iter().zip(&earlier.bytes).zip(sending) {
            *(if *sends { &mut moved.1 } else { &mut moved.0 }) += now - then;
        }
        moved
    }
}

fn outcomes(first: &Reading, last: &Reading, totals: Vec<StreamTotal>) -> Vec<StreamOutcome> {
    let counted = last.bytes.iter().zip(&first.bytes).map(|(last, first)| last - first);
    totals
        .into_iter()
        .zip(counted)
        .map(|(total, bytes)| StreamOutcome {
            index: total.index,
            sends: total.sends,
            bytes,
            total_bytes: total.bytes,
            complete: total.complete,
            fault: total.fault,
        })
        .collect()
}

fn failed(why: String) -> Report {
    Report::Failed { why }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::load::tcp::Shape;

    /// An agent in a thread of its own, and both ends of what it hears and says.
    pub(super) struct Host {
        commands: Sender<Command>,
        reports: Receiver<Report>,
    }

    impl Host {
        pub(super) fn start(equip: impl FnOnce(Agent) -> Agent + Send + 'static) -> Self {
            let (commands, inbox) = channel();
            let (outbox, reports) = channel();
            std::thread::spawn(move || equip(Agent::new(inbox, outbox)).run());
            Self { commands, reports }
        }

        pub(super) fn tell(&self, command: Command) {
            self.commands.send(command).unwrap();
        }

        pub(super) fn hear(&self) -> Report {
            self.reports.recv_timeout(Duration::from_secs(20)).unwrap()
        }

        fn outcome(&self) -> Outcome {
            loop {
                match self.hear() {
                    Report::Interval { .. } => {}
                    Report::Done(outcome) => return outcome,
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn host() -> Host {
        Host::start(|agent| agent)
    }

    fn job() -> Job {
        Job {
            run_id: 77,
            seed: 1,
            streams: 4,
            threads: 1,
            write_bytes: 65536,
            verify: true,
            congestion: None,
            shape: Shape::default(),
        }
    }

    fn pair() -> (Host, Host) {
        let (a, b) = (host(), host());
        a.tell(Command::Listen { job: job(), bind: Ipv4Addr::LOCALHOST.into() });
        let Report::Listening { port } = a.hear() else { panic!("not listening") };
        b.tell(Command::Connect { job: job(), peer: (Ipv4Addr::LOCALHOST, port).into() });
        assert_eq!(a.hear(), Report::Connected);
        assert_eq!(b.hear(), Report::Connected);
        (a, b)
    }

    #[test]
    fn two_agents_measure_the_same_window_and_lose_nothing() {
        let (a, b) = pair();
        let at_ns = clock::now_ns() + 20_000_000;
        for host in [&a, &b] {
            host.tell(Command::Start { at_ns, warmup_ms: 400, duration_ms: 300 });
        }
        let (a, b) = (a.outcome(), b.outcome());
        for (a, b) in a.streams.iter().zip(&b.streams) {
            assert_eq!(a.total_bytes, b.total_bytes);
            assert!(a.complete && b.complete && a.fault.is_none() && b.fault.is_none());
        }
        let total: u64 =
            a.streams.iter().filter(|stream| stream.sends).map(|stream| stream.total_bytes).sum();
        assert!(a.sent() < total, "the warm-up is not counted: {a:?}");
        // A busy machine may read the counters late; the window says how late and how long it really was.
        assert!(a.seconds + a.late_ms / 1e3 >= 0.3, "{a:?}");
        assert!(a.received() > 0 && a.sent() > 0 && !a.stopped_early);
    }

    #[test]
    fn stopping_early_still_reports_what_was_measured() {
        let (a, b) = pair();
        let at_ns = clock::now_ns();
        for host in [&a, &b] {
            host.tell(Command::Start { at_ns, warmup_ms: 0, duration_ms: 60_000 });
        }
        assert!(matches!(a.hear(), Report::Interval { .. }), "it is going on");
        a.tell(Command::Stop);
        b.tell(Command::Stop);
        let outcome = a.outcome();
        assert!(outcome.stopped_early && outcome.seconds < 50.0 && outcome.received() > 0, "{outcome:?}");
    }

    #[test]
    fn what_cannot_be_done_is_said() {
        let agent = host();
        agent.tell(Command::Start { at_ns: 0, warmup_ms: 0, duration_ms: 1 });
        agent.tell(Command::Hello { version: 999 });
        agent.tell(Command::Listen { job: Job { streams: 0, ..job() }, bind: Ipv4Addr::LOCALHOST.into() });
        for expected in ["before the connections", "use the same release", "streams asked for"] {
            let Report::Failed { why } = agent.hear() else { panic!("not refused") };
            assert!(why.contains(expected), "{why}");
        }
    }
}
