//! Drives pairs of agents through the tasks of one measurement.
//!
//! Stages: the far ends listen, the near ends connect one pair after the other, all begin at one instant, all report
//! samples and then what they found. Every stage has a deadline. An end that fails or is lost takes its pair out; what
//! its partner measured until then is kept, and the other pairs go on.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::clock;
use crate::coordinate::agent::DRAIN_TIMEOUT;
use crate::coordinate::fleet::{Event, Fleet};
use crate::coordinate::message::{Command, Measurement, Report, Sample};
use crate::interrupt::Interrupt;
use crate::load::task::Task;

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(45);
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
    pub address: IpAddr,
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
    /// Both ends of pair number `pair` have reported interval `number`.
    fn interval(&mut self, pair: usize, number: usize, moment: &Moment);
    /// So many pairs measure; again whenever one fails.
    fn pairs_left(&mut self, _count: usize) {}
}

/// Calls a function for each interval, with the number of the pair and of the interval.
pub struct OnInterval<F>(pub F);

impl<F: FnMut(usize, usize, &Moment)> Observer for OnInterval<F> {
    fn interval(&mut self, pair: usize, number: usize, moment: &Moment) {
        (self.0)(pair, number, moment);
    }
}

/// What both ends reported: the near one, then the far one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Heard {
    /// What each found at its end.
    pub ends: [Measurement; 2],
    /// Interval by interval, what each end's tasks did in it.
    pub samples: Vec<Moment>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Moment {
    /// How long it was at each end, in seconds.
    pub seconds: [f64; 2],
    /// Task by task, at each end.
    pub tasks: [Vec<Sample>; 2],
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// An end could not do it.
    #[error("{end}: {why}")]
    End { end: String, why: String },
    /// Something took too long.
    #[error("{0} in time")]
    Late(&'static str),
    /// The user ended it before there was anything.
    #[error("stopped before the start")]
    Stopped,
}

/// What one pair gave.
#[derive(Debug, Default)]
pub struct PairResult {
    /// What its ends reported; without an error, both of them all of it.
    pub heard: Heard,
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
    let parts = pairs.iter().map(|pair| Part::new(*pair, fleet)).collect();
    let mut drive = Drive { fleet, parts };
    drive.connect(interrupt);
    if drive.parts.iter().any(Part::is_sound) {
        drive.measure(times, lead, observer, interrupt);
    }
    drive.parts.into_iter().map(|part| PairResult { heard: part.heard, error: part.error }).collect()
}

/// One pair, and how far it is.
struct Part<'a> {
    pair: PairRun<'a>,
    /// Where the far end listens, until the near end has been sent there.
    ports: Option<Vec<Vec<u16>>>,
    connected: [bool; 2],
    /// Ends that have reported all, or never will.
    done: [bool; 2],
    told: usize,
    heard: Heard,
    error: Option<PairError>,
}

impl<'a> Part<'a> {
    fn new(pair: PairRun<'a>, fleet: &Fleet) -> Self {
        let lost = [pair.near, pair.far].into_iter().find(|&agent| fleet.is_lost(agent));
        let error = lost.map(|agent| PairError::End {
            end: fleet.name(agent).to_owned(),
            why: "it was lost earlier".to_owned(),
        });
        Self {
            pair,
            ports: None,
            connected: [false; 2],
            done: [false; 2],
            told: 0,
            heard: Heard::default(),
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
    parts: Vec<Part<'b>>,
}

impl Drive<'_, '_> {
    /// What an end says next: the number of its pair, its side, and its words or why there are none.
    fn receive(&mut self, patience: Duration) -> Option<(usize, usize, Result<Report, String>)> {
        let (agent, event) = self.fleet.next(patience)?;
        let at = self.parts.iter().position(|part| part.agents().contains(&agent))?;
        let side = usize::from(agent == self.parts[at].pair.far);
        Some((
            at,
            side,
            match event {
                Event::Report(Report::Failed { why }) | Event::Lost(why) => Err(why),
                Event::Report(report) => Ok(report),
            },
        ))
    }

    /// Takes a pair out; its ends are told to end what they do.
    fn fail(&mut self, at: usize, error: PairError) {
        self.parts[at].error.get_or_insert(error);
        for agent in self.parts[at].agents() {
            self.fleet.send(agent, &Command::Stop);
        }
    }

    fn fail_end(&mut self, at: usize, side: usize, why: String) {
        let end = self.fleet.name(self.parts[at].agents()[side]).to_owned();
        self.fail(at, PairError::End { end, why });
    }

    /// Takes out every pair that `still` holds for.
    fn fail_all(&mut self, still: impl Fn(&Part<'_>) -> bool, error: impl Fn() -> PairError) {
        for at in 0..self.parts.len() {
            if self.parts[at].is_sound() && still(&self.parts[at]) {
                self.fail(at, error());
            }
        }
    }

    fn connect(&mut self, interrupt: &Interrupt) {
        for part in self.parts.iter().filter(|part| part.is_sound()) {
            let PairRun { far, address, tasks, .. } = part.pair;
            self.fleet.send(far, &Command::Prepare { tasks: tasks.to_vec(), bind: address });
        }
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        while self.parts.iter().any(|part| part.is_sound() && !part.is_connected()) {
            if interrupt.is_set() {
                return self.fail_all(|_| true, || PairError::Stopped);
            }
            if Instant::now() > deadline {
                let late = || PairError::Late("the connections were not made");
                return self.fail_all(|part| !part.is_connected(), late);
            }
            self.connect_next();
            let Some((at, side, said)) = self.receive(TICK) else { continue };
            match said {
                Ok(Report::Prepared { ports }) if side == 1 => self.parts[at].ports = Some(ports),
                Ok(Report::Connected) => self.parts[at].connected[side] = true,
                // Late words of an earlier measurement that was ended.
                Ok(_) => {}
                Err(why) => self.fail_end(at, side, why),
            }
        }
    }

    /// Has the next pair connect once those before it are settled. Linux sizes a connection's bursts by the shortest
    /// round trip it ever saw (`tcp_tso_rtt_log`); if a thousand connections were made at once, each would remember
    /// the rush for the whole measurement.
    fn connect_next(&mut self) {
        let Some(part) = self.parts.iter_mut().find(|part| part.is_sound() && !part.is_connected()) else {
            return;
        };
        if let Some(ports) = part.ports.take() {
            let PairRun { near, address, tasks, .. } = part.pair;
            self.fleet.send(near, &Command::Reach { tasks: tasks.to_vec(), peer: address, ports });
        }
    }

    fn begin(&mut self, times: Times, at_ns: u64) {
        let millis = |duration: Duration| duration.as_millis() as u64;
        let (warmup_ms, duration_ms) = (millis(times.warmup), millis(times.duration));
        let interval_ms = millis(times.interval).max(1);
        for part in self.parts.iter().filter(|part| part.is_sound()) {
            let [near, far] = part.agents();
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
        self.parts.iter_mut().filter(|part| !part.is_sound()).for_each(|part| part.done = [true; 2]);
        let mut sound = self.sound();
        observer.pairs_left(sound);
        let at_ns = clock::now_ns() + lead.as_nanos() as u64;
        self.begin(times, at_ns);
        let nanos = |duration: Duration| duration.as_nanos() as u64;
        let mut marks = Marks::new(at_ns + nanos(times.warmup), nanos(times.duration));
        let mut deadline = Instant::now() + clock::until(marks.end_ns) + DRAIN_TIMEOUT + REPORT_TIMEOUT;
        let mut stopping = false;
        while self.parts.iter().any(|part| part.done != [true; 2]) {
            if Instant::now() > deadline {
                self.fail_all(|part| part.done != [true; 2], || PairError::Late("no report came"));
                break;
            }
            marks.pass(observer);
            if !stopping && self.fleet.stop_if(interrupt, &mut stopping) {
                marks.finish(observer);
                deadline = deadline.min(Instant::now() + DRAIN_TIMEOUT + REPORT_TIMEOUT);
            }
            if let Some((at, side, said)) = self.receive(marks.wait()) {
                self.take(at, side, said, times);
                self.tell_moments(at, observer);
                if self.sound() < sound {
                    sound = self.sound();
                    observer.pairs_left(sound);
                }
            }
        }
        marks.finish(observer);
    }

    /// How many pairs have not failed.
    fn sound(&self) -> usize {
        self.parts.iter().filter(|part| part.is_sound()).count()
    }

    fn take(&mut self, at: usize, side: usize, said: Result<Report, String>, times: Times) {
        let part = &mut self.parts[at];
        match said {
            Ok(Report::Sample { number, seconds, tasks }) => {
                part.heard.add(side, number as usize, seconds, tasks, times);
            }
            Ok(Report::Measured(measurement)) => {
                part.heard.ends[side] = measurement;
                part.done[side] = true;
            }
            Ok(_) => {}
            Err(why) => {
                part.done[side] = true;
                self.fail_end(at, side, why);
            }
        }
    }

    /// Tells every interval that both ends have reported by now.
    fn tell_moments(&mut self, at: usize, observer: &mut dyn Observer) {
        let part = &mut self.parts[at];
        while let Some(moment) = part.heard.samples.get(part.told) {
            if moment.tasks.iter().any(Vec::is_empty) {
                return;
            }
            observer.interval(at, part.told, moment);
            part.told += 1;
        }
    }
}

impl Heard {
    fn add(&mut self, side: usize, number: usize, seconds: f64, tasks: Vec<Sample>, times: Times) {
        // More samples than the measurement has intervals would be an agent's error; they must not grow memory.
        if number as u128 > times.duration.as_nanos() / times.interval.as_nanos().max(1) {
            return;
        }
        if self.samples.len() <= number {
            self.samples.resize(number + 1, Moment::default());
        }
        self.samples[number].seconds[side] = seconds;
        self.samples[number].tasks[side] = tasks;
    }

    /// Whether an end stopped before its time.
    pub fn stopped_early(&self) -> bool {
        self.ends.iter().any(|end| end.stopped_early)
    }

    /// What the ends found wrong, in words.
    pub fn faults(&self) -> Vec<String> {
        let late = self.ends.iter().filter(|end| end.is_void()).map(|end| {
            format!("nothing was measured: an end was {:.0} ms late, its machine is too busy", end.late_ms)
        });
        let found = self.ends.iter().flat_map(|end| &end.tasks).flat_map(|task| &task.found.faults);
        found.cloned().chain(late).collect()
    }
}

/// The two instants, and which of them have been told.
struct Marks {
    begin_ns: u64,
    end_ns: u64,
    told: u8,
}

impl Marks {
    fn new(begin_ns: u64, duration_ns: u64) -> Self {
        Self { begin_ns, end_ns: begin_ns + duration_ns, told: 0 }
    }

    fn pass(&mut self, observer: &mut dyn Observer) {
        let now = clock::now_ns();
        if self.told == 0 && now >= self.begin_ns {
            self.told = 1;
            observer.mark(Mark::Begin);
        }
        if self.told == 1 && now >= self.end_ns {
            self.finish(observer);
        }
    }

    fn finish(&mut self, observer: &mut dyn Observer) {
        if self.told == 1 {
            self.told = 2;
            observer.mark(Mark::End);
        }
    }

    fn wait(&self) -> Duration {
        let next = match self.told {
            0 => self.begin_ns,
            1 => self.end_ns,
            _ => u64::MAX,
        };
        clock::until(next).clamp(Duration::from_millis(1), TICK)
    }
}
