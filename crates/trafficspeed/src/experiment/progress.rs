//! Progress of a campaign for its user, on standard error: one live line on a terminal, elsewhere a
//! line at the start and the end of each run and each ten seconds.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

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
    unit: Unit,
    /// Which part of the campaign this is.
    part: String,
}

impl Progress {
    /// Progress on standard error; `quiet` leaves only problems.
    pub fn new(quiet: bool) -> Self {
        let live = !quiet && stderr().is_terminal();
        Self { live, quiet, unit: Unit::default(), part: String::new() }
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
    pub fn note(&self, text: &str) {
        if !self.quiet {
            let clear = if self.live { "\r\x1b[K" } else { "" };
            terminal::say(format_args!("{clear}{}{text}", self.part));
        }
    }

    pub fn starting(&self, title: &str) {
        if self.live {
            self.live(title);
        } else {
            self.note(&format!("{title} …"));
        }
    }

    /// Shows the present activity to a person at a terminal.
    pub fn live(&self, title: &str) {
        if self.live {
            terminal::show(format_args!("\r\x1b[K{}{title} …", self.part));
        }
    }

    /// `passed` of its `seconds` are over.
    pub fn second(&self, title: &str, passed: usize, seconds: usize, interval: Interval) {
        let communication = rate(interval.received + interval.sent, 1.0);
        let figures = self.figures(communication, rate(interval.received, 1.0));
        if self.live {
            terminal::show(format_args!("\r\x1b[K{}{title}  {passed:>3}/{seconds} s  {figures}", self.part));
        } else if passed.is_multiple_of(LINE_EVERY) && passed < seconds {
            self.note(&format!("{title}  {passed:>3}/{seconds} s  {figures}"));
        }
    }

    /// A run is over.
    pub fn finished(&self, title: &str, run: &Run) {
        let clear = if self.live { "\r\x1b[K" } else { "" };
        if !self.quiet && run.goodput() > 0.0 && run.bypass().is_none() {
            let figures = self.figures(run.communication(), run.goodput());
            terminal::say(format_args!("{clear}{}{title}  {figures}", self.part));
        } else if self.live {
            terminal::show(format_args!("{clear}"));
        }
        for problem in run.failures() {
            terminal::say(format_args!("trafficspeed: {title}: {problem}"));
        }
    }

    fn figures(&self, communication: f64, goodput: f64) -> String {
        let Self { unit, .. } = self;
        format!("{} {} ({} goodput)", unit.figure(communication), unit.name(), unit.figure(goodput))
    }
}
