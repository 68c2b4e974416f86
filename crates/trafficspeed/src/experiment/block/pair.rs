//! A writer and a target, agents of a fleet, and the connections between them, one at a time.
//!
//! Whether they stand in a lab or on real hosts makes no difference here.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::outcome::{Case, Way};
use super::tally::{Side, Work, rate};
use super::{CALIBRATION_AHEAD, Writes};
use crate::coordinate::fleet::{Event, Fleet, FleetError};
use crate::coordinate::message::{Command, Report};
use crate::interrupt::Interrupt;
use crate::lab::emulator::impairment::Span;
use crate::load::block::content::Verified;
use crate::load::block::target::Received;
use crate::load::block::writer::Wrote;
use crate::load::block::{Blocks, IDLE_TIMEOUT, Protection, WriterJob};

/// Time that an end may take for what needs no work.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Time that a connection may last beyond the time that it was given, and comparing afterwards.
const END_TIMEOUT: Duration = Duration::from_secs(180);
/// Time that one end may take to notice that the other is gone.
const ALONE_TIMEOUT: Duration = IDLE_TIMEOUT.saturating_add(Duration::from_secs(10));
const POLL: Duration = Duration::from_millis(100);

/// The two agents at work.
pub struct BlockPair<'a> {
    pub fleet: &'a mut Fleet,
    /// The writer's number in the fleet, and the target's.
    pub near: usize,
    pub far: usize,
    pub writes: &'a Writes,
    pub interrupt: &'a Interrupt,
}

/// The user ended it.
pub struct Interrupted;

/// The reports of one connection.
#[derive(Default)]
pub struct Connected {
    wrote: Option<Wrote>,
    received: Option<Received>,
    verified: Verified,
    /// Failures of the ends, and their loss.
    faults: Vec<String>,
}

impl BlockPair<'_> {
    /// The permission of the target's owner.
    pub fn place(&mut self) -> Result<String, FleetError> {
        self.fleet.send(self.far, &Command::BlockPlace);
        let reason = match self.answer(self.far, ANSWER_TIMEOUT) {
            Ok(Ok(Report::BlockPlace { description, .. })) => return Ok(description),
            Ok(Ok(other)) => format!("unexpected answer {other:?}"),
            Ok(Err(reason)) => reason,
            Err(Interrupted) => "interrupted".into(),
        };
        Err(FleetError::Agent { name: self.fleet.name(self.far).to_owned(), reason })
    }

    /// The network's rate without encryption and without waiting in bytes per second, and its
    /// one-way delay; `None` if the user ended it.
    pub fn calibrate(
        &mut self,
        outer: IpAddr,
        times: (Duration, Duration),
    ) -> Result<Option<(f64, Span)>, FleetError> {
        let blocks = self.writes.blocks(self.writes.largest(), Protection::Plain);
        let Ok(connected) = self.connection(&blocks, (outer, CALIBRATION_AHEAD), times) else {
            return Ok(None);
        };
        let fault = connected.faults.into_iter().next();
        match (connected.wrote, fault) {
            (Some(wrote), None) => {
                let delay = Span { ns: wrote.connect_ns / 2 / 1000 * 1000 };
                Ok(Some((rate(&blocks, &wrote).unwrap_or(0.0), delay)))
            }
            (_, fault) => {
                let (name, reason) = (self.fleet.name(self.far).to_owned(), fault.unwrap_or_default());
                Err(FleetError::Agent { name, reason: format!("no blocks could be written there: {reason}") })
            }
        }
    }

    /// Makes one connection, and compares what the target holds with what was acknowledged.
    pub fn connect(
        &mut self,
        way: Way,
        delay: Span,
        blocks: &Blocks,
        address: IpAddr,
    ) -> Result<Connected, Interrupted> {
        let times = (Writes::warmup(delay), self.writes.duration);
        let mut connected = self.connection(blocks, (address, way.ahead), times)?;
        // Where the writer cannot say any more what was acknowledged, the target's word is taken
        // for it.
        let (acknowledged, sent) = match (&connected.wrote, &connected.received) {
            (Some(wrote), _) => (wrote.acknowledged, wrote.sent),
            (None, Some(received)) => (received.acknowledged, received.written + u64::from(way.ahead)),
            (None, None) => (0, 0),
        };
        match self.verify(blocks, acknowledged, sent)? {
            Ok(verified) => connected.verified = verified,
            Err(reason) => connected.faults.push(reason),
        }
        connected.wrote.get_or_insert(Wrote { sent, acknowledged, ..Wrote::default() });
        Ok(connected)
    }

    /// After a case with a problem: late reports of its connection must not be taken for those of
    /// the next.
    pub fn settle(&mut self) {
        for end in [self.near, self.far] {
            // One that is lost shows when it is needed next.
            let _ = self.fleet.compare_clocks(end);
        }
    }

    /// The agent that is gone, if one is.
    pub fn lost(&self) -> Option<&str> {
        let lost = [self.near, self.far].into_iter().find(|&end| self.fleet.is_lost(end));
        lost.map(|end| self.fleet.name(end))
    }

    fn connection(
        &mut self,
        blocks: &Blocks,
        (address, ahead): (IpAddr, u32),
        (warmup, duration): (Duration, Duration),
    ) -> Result<Connected, Interrupted> {
        let Writes { sync, seed, .. } = *self.writes;
        self.fleet.send(self.far, &Command::TakeBlocks { blocks: blocks.clone(), sync, bind: address });
        let refused = |reason| Ok(Connected { faults: vec![reason], ..Connected::default() });
        let port = match self.answer(self.far, ANSWER_TIMEOUT)? {
            Ok(Report::Listening { port }) => port,
            Ok(other) => return refused(format!("unexpected answer {other:?}")),
            Err(reason) => return refused(reason),
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
    fn outcomes(&mut self, timeout: Duration) -> Result<Connected, Interrupted> {
        let mut connected = Connected::default();
        let mut deadline = Instant::now() + timeout;
        let mut waiting = vec![self.near, self.far];
        while !waiting.is_empty() {
            let Some((host, event)) = self.event(deadline)? else {
                let late =
                    waiting.iter().map(|&host| format!("{}: no answer in time", self.fleet.name(host)));
                connected.faults.extend(late);
                break;
            };
            match event {
                Event::Report(Report::WroteBlocks(wrote)) => connected.wrote = Some(wrote),
                Event::Report(Report::TookBlocks(received)) => connected.received = Some(received),
                Event::Report(Report::Failed { why: reason }) | Event::Lost(reason) => {
                    connected.faults.push(format!("{}: {reason}", self.fleet.name(host)));
                    // The other end may wait for a connection that never comes.
                    waiting.iter().filter(|&&other| other != host).for_each(|&other| {
                        self.fleet.send(other, &Command::Stop);
                    });
                }
                Event::Report(_) => continue,
            }
            waiting.retain(|&other| other != host);
            deadline = deadline.min(Instant::now() + ALONE_TIMEOUT);
        }
        Ok(connected)
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
            Err(reason) => Err(reason),
        })
    }

    /// The next word of one host; in words why there is none.
    fn answer(&mut self, host: usize, timeout: Duration) -> Result<Result<Report, String>, Interrupted> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.event(deadline)? {
                Some((from, Event::Report(Report::Failed { why: reason }) | Event::Lost(reason)))
                    if from == host =>
                {
                    return Ok(Err(reason));
                }
                Some((from, Event::Report(report))) if from == host => return Ok(Ok(report)),
                Some(_) => {}
                None => return Ok(Err("no answer in time".into())),
            }
        }
    }

    /// The next event until `deadline`. Once the user interrupts, both hosts stop.
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

impl Connected {
    /// Blocks that the target wrote, and CPU time of both ends.
    pub fn moved(&self) -> (u64, f64) {
        let (wrote, received) = (self.wrote.as_ref(), self.received.as_ref());
        let cpu_ns = wrote.map_or(0, |wrote| wrote.cpu_ns) + received.map_or(0, |received| received.cpu_ns);
        (received.map_or(0, |received| received.written), cpu_ns as f64 / 1e9)
    }

    /// The case of a one-way delay, a way of writing and a repetition, added to `work`.
    pub fn case(
        self,
        (delay, way, repeat): (Span, Way, u32),
        blocks: &Blocks,
        vpn_cpu_seconds: f64,
        work: &mut Work,
    ) -> Case {
        let (wrote, received) = (self.wrote.unwrap_or_default(), self.received.unwrap_or_default());
        work.add(blocks, &wrote, &received);
        let side = Side { received: &received, verified: self.verified, vpn_cpu_seconds };
        let mut case = Case::measured((milliseconds(delay), way, repeat), blocks, &wrote, &side);
        if self.verified.wrong == 0 && !self.faults.is_empty() {
            // An end that went away is why the other's connection broke.
            case.problem = Some(self.faults.join("; "));
        }
        case
    }
}

/// A delay as reports have it.
pub fn milliseconds(delay: Span) -> f64 {
    delay.ns as f64 / 1e6
}
