//! Drives pairs of agents through the tasks of one measurement.
//!
//! Stages: the far ends listen, the near ends connect one pair after the other, all begin at one
//! instant, all report samples and then what they found. Every stage has a deadline. An end that
//! fails or is lost takes its pair out; what its partner measured until then is kept, and the other
//! pairs go on.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::clock;
use crate::coordinate::agent::DRAIN_TIMEOUT;
use crate::coordinate::fleet::{Event, Fleet};
use crate::coordinate::message::{Command, MAX_CONNECT_MS, Measurement, Report, Sample};
use crate::interrupt::Interrupt;
use crate::load::task::Task;
use crate::unit::rate;

mod stall;

/// Time that connecting may take, and what each stream of each pair adds: pairs connect one after
/// the other, and a stream takes a round trip. An end may first have to wait for 31 s
/// ([`crate::load::fragments`]).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(45);
const CONNECT_TIMEOUT_EACH: Duration = Duration::from_millis(200);
/// Time that a coordinator waits longer than the hosts, whose own words say more.
const CONNECT_GRACE: Duration = Duration::from_secs(15);
/// Grace for the reports after the last drain.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// From the last connection to the start, where commands arrive at once.
pub const LEAD: Duration = Duration::from_millis(150);
/// How often the coordinator looks up while it waits.
const TICK: Duration = Duration::from_millis(100);

/// Two agents and their work.
#[derive(Clone, Copy, Debug)]
pub struct PairRun<'a> {
    /// The agent that connects.
    pub near: usize,
    /// The agent that listens.
    pub far: usize,
    /// Where the near agent reaches the far one.
    pub address: IpAddr,
    /// Where the far agent listens: there, unless a router translates its address.
    pub bind: IpAddr,
    /// The work of both.
    pub tasks: &'a [Task],
}

/// The times of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    pub warmup: Duration,
    pub duration: Duration,
    pub interval: Duration,
}

/// An instant that bounds a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Begin,
    End,
}

/// Follows a measurement while it runs.
pub trait Observer {
    /// An instant has come.
    fn mark(&mut self, _mark: Mark) {}
    /// Both ends of a pair have reported interval `number`.
    fn interval(&mut self, _number: usize, _moment: &IntervalSamples) {}
    /// This number of pairs measure; called again whenever one fails.
    fn pairs_left(&mut self, _count: usize) {}
}

/// Follows nothing.
impl Observer for () {}

/// The reports of both ends: the near one, then the far one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EndReports {
    pub ends: [Measurement; 2],
    /// Interval by interval, what each end's tasks did in it.
    pub samples: Vec<IntervalSamples>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct IntervalSamples {
    /// Its length at each end, in seconds.
    pub seconds: [f64; 2],
    /// Task by task, at each end.
    pub tasks: [Vec<Sample>; 2],
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// An end could not do it.
    #[error("{end}: {reason}")]
    End { end: String, reason: String },
    /// Something took too long.
    #[error("{0} in time")]
    Late(&'static str),
    /// The user ended it before there was anything.
    #[error("stopped before the start")]
    Stopped,
}

#[derive(Debug, Default)]
pub struct PairResult {
    /// The reports of its ends; without an error, both of them all of it.
    pub reports: EndReports,
    /// Why it is not whole.
    pub error: Option<PairError>,
}

/// Makes one measurement with all pairs at once, `lead` after the last of them is connected.
pub fn run_pairs(
    fleet: &mut Fleet,
    pairs: &[PairRun<'_>],
    times: Times,
    lead: Duration,
    observer: &mut dyn Observer,
    interrupt: &Interrupt,
) -> Vec<PairResult> {
    let states = pairs.iter().map(|pair| PairState::new(*pair, fleet)).collect();
    let mut drive = Drive { fleet, states };
    drive.connect(interrupt);
    if drive.states.iter().any(PairState::is_sound) {
        drive.measure(times, lead, observer, interrupt);
    }
    drive.states.into_iter().map(|state| PairResult { reports: state.reports, error: state.error }).collect()
}

/// One pair, and how far it is.
struct PairState<'a> {
    pair: PairRun<'a>,
    /// Where the far end listens, until the near end has been sent there.
    ports: Option<Vec<Vec<u16>>>,
    connected: [bool; 2],
    /// Ends that have reported all, or never will.
    done: [bool; 2],
    reported: usize,
    reports: EndReports,
    error: Option<PairError>,
}

impl<'a> PairState<'a> {
    fn new(pair: PairRun<'a>, fleet: &Fleet) -> Self {
        let lost = [pair.near, pair.far].into_iter().find(|&agent| fleet.is_lost(agent));
        let error = lost.map(|agent| PairError::End {
            end: fleet.name(agent).to_owned(),
            reason: "it was lost earlier".to_owned(),
        });
        Self {
            pair,
            ports: None,
            connected: [false; 2],
            done: [false; 2],
            reported: 0,
            reports: EndReports::default(),
            error,
        }
    }

    fn agents(&self) -> [usize; 2] {
        [self.pair.near, self.pair.far]
    }

    fn is_sound(&self) -> bool {
        self.error.is_none()
    }

    fn is_connected(&self) -> bool {
        self.connected == [true; 2]
    }
}

struct Drive<'a, 'b> {
    fleet: &'a mut Fleet,
    states: Vec<PairState<'b>>,
}

impl Drive<'_, '_> {
    /// The next report of an end: the number of its pair, its side, and the report or why there is
    /// none.
    fn receive(&mut self, timeout: Duration) -> Option<(usize, usize, Result<Report, String>)> {
        let (agent, event) = self.fleet.next(timeout)?;
        let at = self.states.iter().position(|state| state.agents().contains(&agent))?;
        let side = usize::from(agent == self.states[at].pair.far);
        Some((
            at,
            side,
            match event {
                Event::Report(Report::Failed { why: reason }) | Event::Lost(reason) => Err(reason),
                Event::Report(report) => Ok(report),
            },
        ))
    }

    /// Takes a pair out; its ends are reported to end what they do.
    fn fail(&mut self, at: usize, error: PairError) {
        self.states[at].error.get_or_insert(error);
        for agent in self.states[at].agents() {
            self.fleet.send(agent, &Command::Stop);
        }
    }

    fn fail_end(&mut self, at: usize, side: usize, reason: String) {
        let end = self.fleet.name(self.states[at].agents()[side]).to_owned();
        self.fail(at, PairError::End { end, reason });
    }

    /// Takes out every pair that `still` holds for.
    fn fail_all(&mut self, still: impl Fn(&PairState<'_>) -> bool, error: impl Fn() -> PairError) {
        for at in 0..self.states.len() {
            if self.states[at].is_sound() && still(&self.states[at]) {
                self.fail(at, error());
            }
        }
    }

    fn connect(&mut self, interrupt: &Interrupt) {
        let streams: u32 = self.states.iter().flat_map(|state| state.pair.tasks).map(Task::streams).sum();
        let timeout = CONNECT_TIMEOUT + CONNECT_TIMEOUT_EACH * streams;
        let timeout_ms = (timeout.as_millis() as u64).min(MAX_CONNECT_MS);
        for state in self.states.iter().filter(|state| state.is_sound()) {
            let PairRun { far, bind, tasks, .. } = state.pair;
            self.fleet.send(far, &Command::Prepare { tasks: tasks.to_vec(), bind, timeout_ms });
        }
        let deadline = Instant::now() + Duration::from_millis(timeout_ms) + CONNECT_GRACE;
        while self.states.iter().any(|state| state.is_sound() && !state.is_connected()) {
            if interrupt.is_set() {
                return self.fail_all(|_| true, || PairError::Stopped);
            }
            if Instant::now() > deadline {
                let late = || PairError::Late("the connections were not made");
                return self.fail_all(|state| !state.is_connected(), late);
            }
            self.connect_next();
            let Some((at, side, report)) = self.receive(TICK) else { continue };
            match report {
                Ok(Report::Prepared { ports }) if side == 1 => self.states[at].ports = Some(ports),
                Ok(Report::Connected) => self.states[at].connected[side] = true,
                // Late words of an earlier measurement that was ended.
                Ok(_) => {}
                Err(reason) => self.fail_end(at, side, reason),
            }
        }
    }

    /// Has the next pair connect once those before it are settled. Linux sizes a connection's
    /// bursts by the shortest round trip it ever saw (`tcp_tso_rtt_log`); if a thousand connections
    /// were made at once, each would remember the rush for the whole measurement.
    fn connect_next(&mut self) {
        let Some(state) = self.states.iter_mut().find(|state| state.is_sound() && !state.is_connected())
        else {
            return;
        };
        if let Some(ports) = state.ports.take() {
            let PairRun { near, address, tasks, .. } = state.pair;
            self.fleet.send(near, &Command::Reach { tasks: tasks.to_vec(), peer: address, ports });
        }
    }

    fn begin(&mut self, times: Times, at_ns: u64) {
        let millis = |duration: Duration| duration.as_millis() as u64;
        let (warmup_ms, duration_ms) = (millis(times.warmup), millis(times.duration));
        let interval_ms = millis(times.interval).max(1);
        for state in self.states.iter().filter(|state| state.is_sound()) {
            let [near, far] = state.agents();
            for (agent, peer) in [(near, far), (far, near)] {
                let own = self.fleet.offset(agent);
                let peer_ahead_ns = self.fleet.offset(peer).ns - own.ns;
                let at_ns = own.translate(at_ns);
                let command = Command::Begin { at_ns, warmup_ms, duration_ms, interval_ms, peer_ahead_ns };
                self.fleet.send(agent, &command);
            }
        }
    }

    fn measure(&mut self, times: Times, lead: Duration, observer: &mut dyn Observer, interrupt: &Interrupt) {
        // A pair that is out already will say no more.
        self.states.iter_mut().filter(|state| !state.is_sound()).for_each(|state| state.done = [true; 2]);
        let mut sound = self.sound();
        observer.pairs_left(sound);
        let at_ns = clock::now_ns() + lead.as_nanos() as u64;
        self.begin(times, at_ns);
        let nanos = |duration: Duration| duration.as_nanos() as u64;
        let mut marks = Marks::new(at_ns + nanos(times.warmup), nanos(times.duration));
        let mut deadline = Instant::now() + clock::until(marks.end_ns) + DRAIN_TIMEOUT + REPORT_TIMEOUT;
        let mut stopping = false;
        while self.states.iter().any(|state| state.done != [true; 2]) {
            if Instant::now() > deadline {
                self.fail_all(|state| state.done != [true; 2], || PairError::Late("no report came"));
                break;
            }
            marks.pass(observer);
            if !stopping && self.fleet.stop_if(interrupt, &mut stopping) {
                marks.finish(observer);
                deadline = deadline.min(Instant::now() + DRAIN_TIMEOUT + REPORT_TIMEOUT);
            }
            if let Some((at, side, report)) = self.receive(marks.wait()) {
                self.take(at, side, report, times);
                self.report_intervals(at, observer);
                if self.sound() < sound {
                    sound = self.sound();
                    observer.pairs_left(sound);
                }
            }
        }
        marks.finish(observer);
    }

    /// The number of pairs that have not failed.
    fn sound(&self) -> usize {
        self.states.iter().filter(|state| state.is_sound()).count()
    }

    fn take(&mut self, at: usize, side: usize, report: Result<Report, String>, times: Times) {
        let state = &mut self.states[at];
        match report {
            Ok(Report::Sample { number, seconds, tasks }) => {
                state.reports.add(side, number as usize, seconds, tasks, times);
            }
            Ok(Report::Measured(measurement)) => {
                state.reports.ends[side] = measurement;
                state.done[side] = true;
            }
            Ok(_) => {}
            Err(reason) => {
                state.done[side] = true;
                self.fail_end(at, side, reason);
            }
        }
    }

    /// Tells every interval that both ends have reported by now.
    fn report_intervals(&mut self, at: usize, observer: &mut dyn Observer) {
        let state = &mut self.states[at];
        while let Some(moment) = state.reports.samples.get(state.reported) {
            if moment.tasks.iter().any(Vec::is_empty) {
                return;
            }
            observer.interval(state.reported, moment);
            state.reported += 1;
        }
    }
}

impl EndReports {
    fn add(&mut self, side: usize, number: usize, seconds: f64, tasks: Vec<Sample>, times: Times) {
        // More samples than the measurement has intervals would be an agent's error; they must not
        // grow memory.
        if number as u128 > times.duration.as_nanos() / times.interval.as_nanos().max(1) {
            return;
        }
        if self.samples.len() <= number {
            self.samples.resize(number + 1, IntervalSamples::default());
        }
        self.samples[number].seconds[side] = seconds;
        self.samples[number].tasks[side] = tasks;
    }

    /// Whether an end stopped before its time.
    pub fn stopped_early(&self) -> bool {
        self.ends.iter().any(|end| end.stopped_early)
    }

    /// Words that the pair received nothing for seconds: what carried it stood still, so that
    /// its figures are no result.
    pub fn stall(&self) -> Option<String> {
        let (second, best) = stall::standstill(&self.samples)?;
        Some(format!("stalled: nothing from second {second} on, {} in the best second", rate(None, best)))
    }

    /// Connections of bulk data that broke at neither end and yet lost bytes, in words.
    fn incomplete(&self) -> Vec<String> {
        let ends = self.ends[0].tasks.iter().zip(&self.ends[1].tasks);
        let streams = ends.flat_map(|(near, far)| near.found.streams.iter().zip(&far.found.streams));
        let directed = streams.map(|(near, far)| if near.sends { (near, far) } else { (far, near) });
        let lost = directed.filter(|(sender, receiver)| {
            let is_whole = sender.bytes == receiver.bytes && receiver.complete;
            !is_whole && sender.fault.is_none() && receiver.fault.is_none()
        });
        lost.map(|(sender, receiver)| {
            format!("stream {}: {} bytes sent, {} received", sender.index, sender.bytes, receiver.bytes)
        })
        .collect()
    }

    /// Reasons that it is no result, in words: faults that the ends reported, bytes that were lost,
    /// and a stall.
    pub fn faults(&self) -> Vec<String> {
        let late = self.ends.iter().filter(|end| end.is_void()).map(|end| {
            format!("nothing was measured: an end was {:.0} ms late, its machine is too busy", end.late_ms)
        });
        let found = self.ends.iter().flat_map(|end| &end.tasks).flat_map(|task| &task.found.faults);
        // An end that stops early does not wait for what is under way.
        let incomplete = if self.stopped_early() { Vec::new() } else { self.incomplete() };
        found.cloned().chain(incomplete).chain(late).chain(self.stall()).collect()
    }
}

/// The two instants, and which of them have been reported.
struct Marks {
    begin_ns: u64,
    end_ns: u64,
    reported: u8,
}

impl Marks {
    fn new(begin_ns: u64, duration_ns: u64) -> Self {
        Self { begin_ns, end_ns: begin_ns + duration_ns, reported: 0 }
    }

    fn pass(&mut self, observer: &mut dyn Observer) {
        let now = clock::now_ns();
        if self.reported == 0 && now >= self.begin_ns {
            self.reported = 1;
            observer.mark(Mark::Begin);
        }
        if self.reported == 1 && now >= self.end_ns {
            self.finish(observer);
        }
    }

    fn finish(&mut self, observer: &mut dyn Observer) {
        if self.reported == 1 {
            self.reported = 2;
            observer.mark(Mark::End);
        }
    }

    fn wait(&self) -> Duration {
        let next = match self.reported {
            0 => self.begin_ns,
            1 => self.end_ns,
            _ => u64::MAX,
        };
        clock::until(next).clamp(Duration::from_millis(1), TICK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinate::message::TaskEnd;
    use crate::load::task::Findings;
    use crate::load::tcp::StreamTotal;

    #[test]
    fn a_connection_that_lost_bytes_or_did_not_end_in_order_is_a_fault() {
        let faults = |received: u64, complete: bool, fault: Option<&str>, stopped_early: bool| {
            let end = |stream: StreamTotal| {
                let faults = stream.fault.iter().cloned().collect();
                let found = Findings { streams: vec![stream], faults, ..Findings::default() };
                let tasks = vec![TaskEnd { found, ..TaskEnd::default() }];
                Measurement { seconds: 1.0, stopped_early, tasks, ..Measurement::default() }
            };
            let fault = fault.map(str::to_owned);
            let receiver = StreamTotal { index: 3, sends: false, bytes: received, complete, fault };
            let sender = StreamTotal { index: 3, sends: true, bytes: 100, complete: true, fault: None };
            EndReports { ends: [end(receiver), end(sender)], ..EndReports::default() }.faults()
        };
        assert_eq!(faults(100, true, None, false), [""; 0]);
        assert_eq!(faults(99, true, None, false), ["stream 3: 100 bytes sent, 99 received"]);
        assert_eq!(faults(100, false, None, false), ["stream 3: 100 bytes sent, 100 received"]);
        assert_eq!(faults(99, false, Some("reset"), false), ["reset"], "said once");
        assert_eq!(faults(99, false, None, true), [""; 0], "it did not wait for the rest");
    }
}
