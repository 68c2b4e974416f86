//! The agent: does what its coordinator says, one job at a time.
//!
//! Commands come through a channel and reports leave through another; whether pipes or an
//! authenticated connection are behind them is not its business. When the coordinator is gone, it
//! stops moving data.

pub mod blocks;
mod tasks;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::Duration;

use self::blocks::BlockPermission;
use self::tasks::Times;
use super::message::{Command, MAX_CONNECT_MS, Report, VERSION};
use crate::clock;
use crate::load::task::Ready;
use crate::observe::HostInfo;

/// Time that the connections of a job may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that data under way may take to arrive after the end.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(15);
/// How far ahead a start may lie.
const MAX_LEAD: Duration = Duration::from_secs(60);

/// One session with a coordinator.
pub struct Agent {
    commands: Receiver<Command>,
    reports: Sender<Report>,
    /// The connected tasks that wait for their beginning.
    tasks: Vec<Ready>,
    /// The permission of its host's owner to write blocks.
    permission: Option<Arc<BlockPermission>>,
}

/// The coordinator is gone.
struct Gone;

impl Agent {
    /// An agent that takes `commands` and answers in `reports`.
    pub fn new(commands: Receiver<Command>, reports: Sender<Report>) -> Self {
        Self { commands, reports, tasks: Vec::new(), permission: None }
    }

    /// It may also take and write blocks.
    #[must_use]
    pub fn with_block_permission(self, permission: Arc<BlockPermission>) -> Self {
        Self { permission: Some(permission), ..self }
    }

    /// Serves until the coordinator closes.
    pub fn run(mut self) {
        while let Ok(command) = self.commands.recv() {
            if self.handle(command).is_err() {
                return;
            }
        }
    }

    fn handle(&mut self, command: Command) -> Result<(), Gone> {
        let report = match command {
            Command::Hello { version: VERSION } => Report::Hello { version: VERSION, host: HostInfo::read() },
            Command::Hello { version } => failed(format!(
                "coordinator speaks version {version}, this agent {VERSION}; use the same release"
            )),
            Command::Clock => Report::Clock { now_ns: clock::now_ns() },
            Command::Prepare { tasks, bind, timeout_ms } => {
                let timeout = Duration::from_millis(timeout_ms.min(MAX_CONNECT_MS));
                return self.prepare(tasks, bind, timeout);
            }
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
                self.tasks.clear();
                return Ok(());
            }
        };
        self.send(report)
    }

    fn send(&self, report: Report) -> Result<(), Gone> {
        self.reports.send(report).map_err(|_| Gone)
    }

    /// Whether the coordinator asks for an end, by word or by leaving. No other command is due
    /// meanwhile.
    fn stopped(&self) -> bool {
        !matches!(self.commands.try_recv(), Err(TryRecvError::Empty))
    }
}

fn failed(reason: String) -> Report {
    Report::Failed { why: reason }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::coordinate::message::Measurement;

    use crate::load::task::Task;
    use crate::load::tcp::Job;

    /// An agent in its own thread, and both ends of its channel.
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

        pub(super) fn send(&self, command: Command) {
            self.commands.send(command).unwrap();
        }

        pub(super) fn receive(&self) -> Report {
            self.reports.recv_timeout(Duration::from_secs(20)).unwrap()
        }

        fn measured(&self) -> Measurement {
            loop {
                match self.receive() {
                    Report::Sample { .. } => {}
                    Report::Measured(measurement) => return measurement,
                    other => panic!("{other:?}"),
                }
            }
        }

        fn begin(&self, at_ns: u64, warmup_ms: u64, duration_ms: u64) {
            self.send(Command::Begin { at_ns, warmup_ms, duration_ms, interval_ms: 1_000, peer_ahead_ns: 0 });
        }
    }

    fn host() -> Host {
        Host::start(|agent| agent)
    }

    fn job() -> Job {
        Job { run_id: 77, streams: 4, write_bytes: 65536, verify: true, ..Job::default() }
    }

    fn pair() -> (Host, Host) {
        let (a, b) = (host(), host());
        let (tasks, address) = (vec![Task::Bulk(job())], Ipv4Addr::LOCALHOST.into());
        a.send(Command::Prepare { tasks: tasks.clone(), bind: address, timeout_ms: 10_000 });
        let Report::Prepared { ports } = a.receive() else { panic!("not prepared") };
        b.send(Command::Reach { tasks, peer: address, ports });
        assert_eq!(a.receive(), Report::Connected);
        assert_eq!(b.receive(), Report::Connected);
        (a, b)
    }

    #[test]
    fn two_agents_measure_the_same_window_and_lose_nothing() {
        let (a, b) = pair();
        let at_ns = clock::now_ns() + 20_000_000;
        for host in [&a, &b] {
            host.begin(at_ns, 400, 300);
        }
        let (a, b) = (a.measured(), b.measured());
        for (a, b) in a.tasks[0].found.streams.iter().zip(&b.tasks[0].found.streams) {
            assert_eq!((a.index, a.sends, a.bytes), (b.index, !b.sends, b.bytes));
            assert!(a.complete && b.complete && a.fault.is_none() && b.fault.is_none());
        }
        let end = &a.tasks[0];
        assert_eq!((end.found.streams.len(), end.stream_bytes.len()), (4, 4));
        let counted = |sends: bool| -> u64 {
            let streams = end.found.streams.iter().zip(&end.stream_bytes);
            streams.filter(|(stream, _)| stream.sends == sends).map(|(_, bytes)| bytes).sum()
        };
        assert_eq!((counted(true), counted(false)), (end.window.sent_bytes, end.window.received_bytes));
        assert!(counted(true) < end.found.bytes_sent, "the warm-up is not counted: {a:?}");
        // A busy machine may read the counters late; the window says how late and how long it
        // really was.
        assert!(a.seconds + a.late_ms / 1e3 >= 0.3, "{a:?}");
        assert!(counted(true) > 0 && counted(false) > 0 && !a.stopped_early);
    }

    #[test]
    fn stopping_early_still_reports_what_was_measured() {
        let (a, b) = pair();
        let at_ns = clock::now_ns();
        for host in [&a, &b] {
            host.begin(at_ns, 0, 60_000);
        }
        assert!(matches!(a.receive(), Report::Sample { .. }), "it is going on");
        a.send(Command::Stop);
        b.send(Command::Stop);
        let end = a.measured();
        assert!(end.stopped_early && end.seconds < 50.0, "{end:?}");
        assert!(end.tasks[0].window.received_bytes > 0, "{end:?}");
    }

    #[test]
    fn impossible_agent_requests_are_reported() {
        let agent = host();
        agent.begin(0, 0, 1);
        agent.send(Command::Hello { version: 999 });
        let tasks = vec![Task::Bulk(Job { streams: 0, ..job() })];
        agent.send(Command::Prepare { tasks, bind: Ipv4Addr::LOCALHOST.into(), timeout_ms: 10_000 });
        for expected in ["before the tasks were connected", "use the same release", "streams asked for"] {
            let Report::Failed { why: reason } = agent.receive() else { panic!("not refused") };
            assert!(reason.contains(expected), "{reason}");
        }
    }
}
