//! Experiment 4 between real hosts: one pair; the far host holds the target, in the place that its owner allows.
//!
//! ```text
//!   near: writer ═══ the network ═══ far: target          the blocks that wait go to its address inside the VPN,
//!            └────── the VPN ────────┘                    all others to the one that its agent is reached by
//! ```
//!
//! The delay is what the network has: half of the time in which a connection is made. A host that is lost ends the
//! experiment; what was acknowledged until then is compared as far as the other host can tell, and is in the report.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::PairSpec;
use super::host_pairs::{HostEnd, HostPairsPlan};
use crate::coordinate::fleet::{Event, Fleet, FleetError};
use crate::coordinate::message::{Command, Report};
use crate::coordinate::token::Token;
use crate::experiment::block::tally::{Side, Work, rate};
use crate::experiment::block::{BlockReport, CALIBRATION_AHEAD, Case, Route, Way, Writes};
use crate::experiment::progress::Progress;
use crate::interrupt::Interrupt;
use crate::lab::emulator::impairment::Span;
use crate::load::block::content::Verified;
use crate::load::block::target::Received;
use crate::load::block::writer::Wrote;
use crate::load::block::{Blocks, IDLE_TIMEOUT, Protection, WriterJob};

/// How long a host may take for what needs no work.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a connection may last beyond the time that it was given, and comparing afterwards.
const END_TIMEOUT: Duration = Duration::from_secs(180);
/// How long one end may take to notice that the other is gone.
const ALONE_TIMEOUT: Duration = IDLE_TIMEOUT.saturating_add(Duration::from_secs(10));
const POLL: Duration = Duration::from_millis(100);
/// Warm-up while the delay is not known yet.
const FIRST_WARMUP: Duration = Duration::from_secs(1);
/// Counted time of measuring without waiting.
const MOST_CALIBRATION: Duration = Duration::from_secs(2);

/// Runs all of it with the only pair of the plan, whose far host has an address inside the VPN (see [`check`]).
///
/// # Errors
/// When nothing at all can be measured; what fails later is in the report.
pub fn run(
    writes: &Writes,
    hosts_plan: &HostPairsPlan,
    token: &Token,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<BlockReport, FleetError> {
    let pair = &hosts_plan.pairs[0];
    let outer = pair.a.control_address()?;
    let inner = pair.a.data.unwrap_or(outer);
    let mut fleet = Fleet::default();
    let far = fleet.add_host(&pair.a.text, &pair.a.control, token)?;
    let near = fleet.add_host(&pair.b.text, &pair.b.control, token)?;
    let mut table = Table { fleet, near, far, writes, interrupt };
    let place = table.place()?;
    let mut report = BlockReport::begin(writes, hosts_plan.label.clone(), place, Vec::new());
    report.hosts = [near, far].map(|host| HostEnd::of(&table.fleet, host)).into();
    report.links = vec![format!("The tunnel was reached at {inner}, everything else went to {outer}.")];
    let mut work = Work::default();
    if let Some((lower, delay)) = table.calibrate(outer)? {
        work.lower = lower;
        report.asked.0 = vec![milliseconds(delay)];
        progress.note(&format!("one-way delay {delay}, about {} s", writes.estimate(delay).as_secs()));
        table.run_all(delay, (outer, inner), &mut report, &mut work, progress);
    }
    report.parameters = work.parameters();
    report.interrupted = interrupt.is_set();
    Ok(report)
}

/// Says what is wrong with the pairs.
///
/// # Errors
/// In words, for people.
pub fn check(pairs: &[PairSpec]) -> Result<(), String> {
    let [pair] = pairs else { return Err("a target takes one writer: give --pair once".into()) };
    if pair.a.data.is_none() {
        let far = &pair.a.text;
        return Err(format!(
            "the blocks that wait go through a tunnel: name the address of {far} inside it, as in \
             --pair {far}/10.0.0.1={}",
            pair.b.text
        ));
    }
    Ok(())
}

fn milliseconds(delay: Span) -> f64 {
    delay.ns as f64 / 1e6
}

/// The two hosts at work.
struct Table<'a> {
    fleet: Fleet,
    near: usize,
    far: usize,
    writes: &'a Writes,
    interrupt: &'a Interrupt,
}

/// The user ended it.
struct Interrupted;

/// The reports of one connection.
#[derive(Default)]
struct ConnectionReports {
    wrote: Option<Wrote>,
    received: Option<Received>,
    /// Failures of hosts, and their loss.
    faults: Vec<String>,
}

impl Table<'_> {
    /// The permission of the target's owner.
    fn place(&mut self) -> Result<String, FleetError> {
        self.fleet.send(self.far, &Command::BlockPlace);
        let why = match self.answer(self.far, ANSWER_TIMEOUT) {
            Ok(Ok(Report::BlockPlace { description, .. })) => return Ok(description),
            Ok(Ok(other)) => format!("unexpected answer {other:?}"),
            Ok(Err(why)) => why,
            Err(Interrupted) => "interrupted".into(),
        };
        Err(FleetError::Agent { name: self.fleet.name(self.far).to_owned(), why })
    }

    /// The network's rate without encryption and without waiting in bytes per second, and its one-way delay;
    /// `None` if the user ended it.
    fn calibrate(&mut self, outer: IpAddr) -> Result<Option<(f64, Span)>, FleetError> {
        let blocks = self.writes.blocks(self.writes.largest(), Protection::Plain);
        let times = (FIRST_WARMUP, self.writes.duration.min(MOST_CALIBRATION));
        let Ok(heard) = self.connection(&blocks, (outer, CALIBRATION_AHEAD), times) else {
            return Ok(None);
        };
        let fault = heard.faults.into_iter().next();
        match (heard.wrote, fault) {
            (Some(wrote), None) => {
                let delay = Span { ns: wrote.connect_ns / 2 / 1000 * 1000 };
                Ok(Some((rate(&blocks, &wrote).unwrap_or(0.0), delay)))
            }
            (_, fault) => {
                let (name, why) = (self.fleet.name(self.far).to_owned(), fault.unwrap_or_default());
                Err(FleetError::Agent { name, why: format!("no blocks could be written there: {why}") })
            }
        }
    }

    fn run_all(
        &mut self,
        delay: Span,
        (outer, inner): (IpAddr, IpAddr),
        report: &mut BlockReport,
        work: &mut Work,
        progress: &Progress,
    ) {
        for (block_bytes, way, repeat) in self.writes.cases() {
            if self.interrupt.is_set() {
                return;
            }
            progress.live(&format!("run {repeat}, blocks of {block_bytes} bytes, {}", way.name()));
            let blocks = self.writes.blocks(block_bytes, way.protection());
            let address = if way.route == Route::Tunnel { inner } else { outer };
            let Ok(case) = self.case((delay, way, repeat), &blocks, address, work) else { return };
            report.cases.push(case);
            let lost = [self.near, self.far].into_iter().find(|&host| self.fleet.is_lost(host));
            if let Some(host) = lost {
                let name = self.fleet.name(host);
                report.problems.push(format!("{name} dropped out; nothing more was measured"));
                return;
            }
        }
    }

    fn case(
        &mut self,
        (delay, way, repeat): (Span, Way, u32),
        blocks: &Blocks,
        address: IpAddr,
        work: &mut Work,
    ) -> Result<Case, Interrupted> {
        let ConnectionReports { wrote, received, mut faults } =
            self.connection(blocks, (address, way.ahead), (Writes::warmup(delay), self.writes.duration))?;
        // Where the writer cannot say any more what was acknowledged, the target's word is taken for it.
        let (acknowledged, sent) = match (&wrote, &received) {
            (Some(wrote), _) => (wrote.acknowledged, wrote.sent),
            (None, Some(received)) => (received.acknowledged, received.written + u64::from(way.ahead)),
            (None, None) => (0, 0),
        };
        let verified = match self.verify(blocks, acknowledged, sent)? {
            Ok(verified) => verified,
            Err(why) => {
                faults.push(why);
                Verified::default()
            }
        };
        let wrote = wrote.unwrap_or(Wrote { sent, acknowledged, ..Wrote::default() });
        let received = received.unwrap_or_default();
        work.add(blocks, &wrote, &received);
        let side = Side { received: &received, verified, vpn_cpu_seconds: 0.0 };
        let mut case = Case::measured((milliseconds(delay), way, repeat), blocks, &wrote, &side);
        if verified.wrong == 0 && !faults.is_empty() {
            // A host that went away is why the other's connection broke.
            case.problem = Some(faults.join("; "));
        }
        if case.problem.is_some() {
            for host in [self.near, self.far] {
                // Late reports of this connection must not be taken for those of the next.
                let _ = self.fleet.compare_clocks(host);
            }
        }
        Ok(case)
    }

    fn connection(
        &mut self,
        blocks: &Blocks,
        (address, ahead): (IpAddr, u32),
        (warmup, duration): (Duration, Duration),
    ) -> Result<ConnectionReports, Interrupted> {
        let Writes { sync, seed, .. } = *self.writes;
        self.fleet.send(self.far, &Command::TakeBlocks { blocks: blocks.clone(), sync, bind: address });
        let refused = |why| Ok(ConnectionReports { faults: vec![why], ..ConnectionReports::default() });
        let port = match self.answer(self.far, ANSWER_TIMEOUT)? {
            Ok(Report::Listening { port }) => port,
            Ok(other) => return refused(format!("unexpected answer {other:?}")),
            Err(why) => return refused(why),
        };
        self.fleet.send(
            self.near,
            &Command::WriteBlocks(WriterJob {
                blocks: blocks.clone(),
                seed,
                ahead,
                warmup_ms: warmup.as_millis() as u64,
                duration_ms: duration.as_millis() as u64,
                most_blocks: None,
                peer: SocketAddr::new(address, port),
            }),
        );
        self.outcomes(warmup + duration + END_TIMEOUT)
    }

    /// Waits for what both ends say of their connection.
    fn outcomes(&mut self, timeout: Duration) -> Result<ConnectionReports, Interrupted> {
        let mut heard = ConnectionReports::default();
        let mut deadline = Instant::now() + timeout;
        let mut waiting = vec![self.near, self.far];
        while !waiting.is_empty() {
            let Some((host, event)) = self.event(deadline)? else {
                let late =
                    waiting.iter().map(|&host| format!("{}: no answer in time", self.fleet.name(host)));
                heard.faults.extend(late);
                break;
            };
            match event {
                Event::Report(Report::WroteBlocks(wrote)) => heard.wrote = Some(wrote),
                Event::Report(Report::TookBlocks(received)) => heard.received = Some(received),
                Event::Report(Report::Failed { why }) | Event::Lost(why) => {
                    heard.faults.push(format!("{}: {why}", self.fleet.name(host)));
                    // The other end may wait for a connection that nobody makes.
                    waiting.iter().filter(|&&other| other != host).for_each(|&other| {
                        self.fleet.send(other, &Command::Stop);
                    });
                }
                Event::Report(_) => continue,
            }
            waiting.retain(|&other| other != host);
            deadline = deadline.min(Instant::now() + ALONE_TIMEOUT);
        }
        Ok(heard)
    }

    fn verify(
        &mut self,
        blocks: &Blocks,
        acknowledged: u64,
        sent: u64,
    ) -> Result<Result<Verified, String>, Interrupted> {
        if self.fleet.is_lost(self.far) {
            return Ok(Err("the target cannot be compared with what was acknowledged".into()));
        }
        let (blocks, seed) = (blocks.clone(), self.writes.seed);
        self.fleet.send(self.far, &Command::VerifyBlocks { blocks, seed, acknowledged, sent });
        Ok(match self.answer(self.far, END_TIMEOUT)? {
            Ok(Report::VerifiedBlocks(verified)) => Ok(verified),
            Ok(other) => Err(format!("unexpected answer {other:?}")),
            Err(why) => Err(why),
        })
    }

    /// The next word of one host; in words why there is none.
    fn answer(&mut self, host: usize, timeout: Duration) -> Result<Result<Report, String>, Interrupted> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.event(deadline)? {
                Some((from, Event::Report(Report::Failed { why }) | Event::Lost(why))) if from == host => {
                    return Ok(Err(why));
                }
                Some((from, Event::Report(report))) if from == host => return Ok(Ok(report)),
                Some(_) => {}
                None => return Ok(Err("no answer in time".into())),
            }
        }
    }

    /// The next event until `deadline`. Once the user interrupts, both hosts are told to stop.
    fn event(&mut self, deadline: Instant) -> Result<Option<(usize, Event)>, Interrupted> {
        loop {
            if self.interrupt.is_set() {
                self.fleet.stop_all();
                return Err(Interrupted);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.fleet.next(left.min(POLL)) {
                None if left.is_zero() => return Ok(None),
                None => {}
                event => return Ok(event),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pair_with_an_address_inside_the_tunnel_is_needed() {
        let pairs =
            |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<PairSpec>>();
        assert_eq!(check(&pairs(&["a/10.0.0.1=b"])), Ok(()));
        assert!(check(&pairs(&["a=b"])).unwrap_err().contains("--pair a/10.0.0.1=b"));
        assert!(check(&pairs(&["a/10.0.0.1=b", "c/10.0.0.2=d"])).unwrap_err().contains("once"));
    }
}
