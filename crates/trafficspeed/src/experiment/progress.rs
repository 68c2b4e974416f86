//! Progress of a campaign for its user: on standard error, one live line on a terminal, elsewhere a
//! line at the start and the end of each run and each ten seconds; and, if asked for, every event
//! as a line on standard output.

use std::io::{IsTerminal, Write, stderr, stdout};
use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::compare::schedule::for_people;
use super::outcome::{Interval, Run, rate};
use crate::terminal;
use crate::unit::Unit;

/// Seconds between two lines of a run where no terminal shows each second.
const LINE_EVERY: usize = 10;

#[derive(Clone, Debug)]
pub struct Progress {
    live: bool,
    quiet: bool,
    events: bool,
    unit: Unit,
    /// Which part of the campaign this is.
    part: String,
}

impl Progress {
    /// Progress on standard error; `quiet` leaves only problems.
    pub fn new(quiet: bool) -> Self {
        let live = !quiet && stderr().is_terminal();
        Self { live, quiet, events: false, unit: Unit::default(), part: String::new() }
    }

    /// Writes every event to standard output, or none.
    #[must_use]
    pub fn with_events(self, events: bool) -> Self {
        Self { events, ..self }
    }

    /// Progress with throughput in `unit`.
    #[must_use]
    pub fn with_unit(self, unit: Unit) -> Self {
        Self { unit, ..self }
    }

    /// Progress of measurement `number` of `total`, when all that are left take `left`.
    #[must_use]
    pub fn part(&self, number: usize, total: usize, left: Duration) -> Self {
        Self { part: format!("[{number}/{total}, {} left]  ", for_people(left)), ..self.clone() }
    }

    /// Says something that is neither a result nor a problem.
    pub fn note(&self, what: &str) {
        if !self.quiet {
            let clear = if self.live { "\r\x1b[K" } else { "" };
            terminal::say(format_args!("{clear}{}{what}", self.part));
        }
    }

    pub fn starting(&self, what: &str, run: &Run) {
        self.event("run_start", run);
        if self.live {
            self.live(what);
        } else {
            self.note(&format!("{what} …"));
        }
    }

    /// Shows the present activity to a person at a terminal.
    pub fn live(&self, what: &str) {
        if self.live {
            terminal::show(format_args!("\r\x1b[K{}{what} …", self.part));
        }
    }

    /// A second of it is over.
    pub fn second(&self, what: &str, number: usize, of: usize, interval: Interval) {
        self.event("interval", &json!({ "number": number, "totals": interval }));
        let communication = rate(interval.received + interval.sent, 1.0);
        let figures = self.figures(communication, rate(interval.received, 1.0));
        if self.live {
            terminal::show(format_args!("\r\x1b[K{}{what}  {:>3}/{of} s  {figures}", self.part, number + 1));
        } else if (number + 1).is_multiple_of(LINE_EVERY) && number + 1 < of {
            self.note(&format!("{what}  {:>3}/{of} s  {figures}", number + 1));
        }
    }

    /// A run is over.
    pub fn finished(&self, what: &str, run: &Run) {
        self.event("run_end", run);
        let clear = if self.live { "\r\x1b[K" } else { "" };
        if !self.quiet && run.goodput() > 0.0 && run.bypass().is_none() {
            let figures = self.figures(run.communication(), run.goodput());
            terminal::say(format_args!("{clear}{}{what}  {figures}", self.part));
        } else if self.live {
            terminal::show(format_args!("{clear}"));
        }
        for problem in run.failures() {
            terminal::say(format_args!("trafficspeed: {what}: {problem}"));
        }
    }

    fn figures(&self, communication: f64, goodput: f64) -> String {
        let Self { unit, .. } = self;
        format!("{} {} ({} goodput)", unit.figure(communication), unit.name(), unit.figure(goodput))
    }

    /// Writes an event, if events are asked for.
    pub fn event(&self, name: &str, data: &impl Serialize) {
        if self.events {
            // A reader that has gone must not stop a measurement either.
            let _ = writeln!(stdout(), "{}", event(name, data));
        }
    }
}

/// An event as a line of JSON, as iperf3's `--json-stream` has it.
pub fn event(name: &str, data: &impl Serialize) -> String {
    json!({ "event": name, "data": data }).to_string()
}
