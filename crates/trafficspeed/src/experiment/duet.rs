//! Drives two agents through the tasks of one measurement.
//!
//! Stages: the far end opens its doors, the near end comes to them, both begin at one instant, both report samples
//! and then what they found. Every stage has a deadline; an end that fails or is lost ends the measurement.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::clock;
use crate::coordinate::agent::DRAIN_PATIENCE;
use crate::coordinate::fleet::{Event, Fleet};
use crate::coordinate::message::{Command, Measurement, Report, Sample};
use crate::interrupt::Interrupt;
use crate::load::task::Task;

/// How long connecting may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(45);
/// Grace for the reports after the last drain.
const REPORT_PATIENCE: Duration = Duration::from_secs(10);
/// From the last connection to the start.
const LEAD: Duration = Duration::from_millis(150);
/// How often the coordinator looks up while it waits.
const TICK: Duration = Duration::from_millis(100);

/// Who plays what.
#[derive(Debug)]
pub struct Duet<'a> {
    /// The agent that connects.
    pub near: usize,
    /// The agent that listens.
    pub far: usize,
    /// Where it listens.
    pub address: IpAddr,
    /// The work of both.
    pub tasks: &'a [Task],
}

/// The times of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// Before counting.
    pub warmup: Duration,
    /// Counting.
    pub duration: Duration,
    /// Between samples.
    pub interval: Duration,
}

/// An instant that a watcher is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Counting begins.
    Begin,
    /// Counting ends.
    End,
}

/// What both ends reported: the near one, then the far one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Heard {
    /// What each found at its end.
    pub ends: [Measurement; 2],
    /// Interval by interval, what each end's tasks did in it.
    pub samples: Vec<Moment>,
}

/// One interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Moment {
    /// How long it was at each end, in seconds.
    pub seconds: [f64; 2],
    /// Task by task, at each end.
    pub tasks: [Vec<Sample>; 2],
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum DuetError {
    /// An end could not do it.
    #[error("{end}: {why}")]
    End {
        /// Which.
        end: String,
        /// Why.
        why: String,
    },
    /// Something took too long.
    #[error("{0} in time")]
    Late(&'static str),
    /// The user ended it before there was anything.
    #[error("stopped before the start")]
    Stopped,
}

/// Makes one measurement.
///
/// # Errors
/// Any of [`DuetError`]; both ends are then told to stop.
pub fn drive(
    fleet: &mut Fleet,
    duet: &Duet<'_>,
    times: Times,
    mark: &mut dyn FnMut(Mark),
    interrupt: &Interrupt,
) -> Result<Heard, DuetError> {
    let mut drive = Drive { fleet, duet };
    let heard = drive.connect(interrupt).and_then(|()| drive.measure(times, mark, interrupt));
    if heard.is_err() {
        drive.tell_both(&Command::Stop);
    }
    heard
}

struct Drive<'a> {
    fleet: &'a mut Fleet,
    duet: &'a Duet<'a>,
}

impl Drive<'_> {
    fn tell_both(&mut self, command: &Command) {
        for agent in [self.duet.near, self.duet.far] {
            self.fleet.tell(agent, command);
        }
    }

    /// What an end says next; `None` if nothing was said for a moment.
    fn hear(&mut self, patience: Duration) -> Result<Option<(usize, Report)>, DuetError> {
        let Some((agent, event)) = self.fleet.next(patience) else { return Ok(None) };
        let side = usize::from(agent == self.duet.far);
        match event {
            Event::Said(Report::Failed { why }) | Event::Lost(why) => {
                Err(DuetError::End { end: self.fleet.name(agent).to_owned(), why })
            }
            Event::Said(report) => Ok(Some((side, report))),
        }
    }

    fn connect(&mut self, interrupt: &Interrupt) -> Result<(), DuetError> {
        let Duet { near, far, address, tasks } = *self.duet;
        self.fleet.tell(far, &Command::Prepare { tasks: tasks.to_vec(), bind: address });
        let deadline = Instant::now() + CONNECT_PATIENCE;
        let mut connected = [false; 2];
        while connected != [true; 2] {
            if interrupt.is_set() {
                return Err(DuetError::Stopped);
            }
            if Instant::now() > deadline {
                return Err(DuetError::Late("the connections were not made"));
            }
            match self.hear(TICK)? {
                Some((1, Report::Prepared { ports })) => {
                    self.fleet.tell(near, &Command::Reach { tasks: tasks.to_vec(), peer: address, ports });
                }
                Some((side, Report::Connected)) => connected[side] = true,
                // Late words of an earlier measurement that was ended.
                Some(_) | None => {}
            }
        }
        Ok(())
    }

    fn measure(
        &mut self,
        times: Times,
        mark: &mut dyn FnMut(Mark),
        interrupt: &Interrupt,
    ) -> Result<Heard, DuetError> {
        let millis = |duration: Duration| duration.as_millis() as u64;
        let (warmup_ms, duration_ms) = (millis(times.warmup), millis(times.duration));
        let at_ns = clock::now_ns() + LEAD.as_nanos() as u64;
        for agent in [self.duet.near, self.duet.far] {
            let at_ns = self.fleet.offset(agent).translate(at_ns);
            let interval_ms = millis(times.interval).max(1);
            self.fleet.tell(agent, &Command::Begin { at_ns, warmup_ms, duration_ms, interval_ms });
        }
        let mut marks = Marks::new(at_ns + warmup_ms * 1_000_000, duration_ms * 1_000_000);
        let mut deadline = Instant::now() + clock::until(marks.end_ns) + DRAIN_PATIENCE + REPORT_PATIENCE;
        let mut heard = Heard::default();
        let mut done = [false; 2];
        let mut stopping = false;
        while done != [true; 2] {
            if Instant::now() > deadline {
                return Err(DuetError::Late("no report came"));
            }
            marks.pass(mark);
            if !stopping && self.fleet.stop_if(interrupt, &mut stopping) {
                marks.finish(mark);
                deadline = deadline.min(Instant::now() + DRAIN_PATIENCE + REPORT_PATIENCE);
            }
            match self.hear(marks.wait())? {
                Some((side, Report::Sample { number, seconds, tasks })) => {
                    heard.add(side, number as usize, seconds, tasks, times);
                }
                Some((side, Report::Measured(measurement))) => {
                    heard.ends[side] = measurement;
                    done[side] = true;
                }
                Some(_) | None => {}
            }
        }
        marks.finish(mark);
        Ok(heard)
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

    fn pass(&mut self, mark: &mut dyn FnMut(Mark)) {
        let now = clock::now_ns();
        if self.told == 0 && now >= self.begin_ns {
            self.told = 1;
            mark(Mark::Begin);
        }
        if self.told == 1 && now >= self.end_ns {
            self.finish(mark);
        }
    }

    fn finish(&mut self, mark: &mut dyn FnMut(Mark)) {
        if self.told == 1 {
            self.told = 2;
            mark(Mark::End);
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
