//! What the user sees while a campaign runs: on standard error, one live line on a terminal, one line per run
//! elsewhere.

use std::io::{IsTerminal, Write, stderr};

use super::outcome::{Interval, Run, rate};
use crate::report::gbit;

/// Where progress goes.
pub struct Progress {
    live: bool,
    quiet: bool,
}

impl Progress {
    /// Progress on standard error; `quiet` leaves only problems.
    pub fn new(quiet: bool) -> Self {
        Self { live: !quiet && stderr().is_terminal(), quiet }
    }

    /// A run begins.
    pub fn starting(&self, what: &str) {
        if self.live {
            eprint!("\r\x1b[K{what} …");
            // Progress that cannot be shown must not stop a measurement.
            let _ = stderr().flush();
        }
    }

    /// A second of it is over.
    pub fn second(&self, what: &str, number: usize, of: usize, interval: Interval) {
        if self.live {
            let communication = gbit(rate(interval.received + interval.sent, 1.0));
            let goodput = gbit(rate(interval.received, 1.0));
            eprint!("\r\x1b[K{what}  {:>3}/{of} s  {communication} Gbit/s ({goodput} goodput)", number + 1);
            // As above.
            let _ = stderr().flush();
        }
    }

    /// A run is over.
    pub fn finished(&self, what: &str, run: &Run) {
        let clear = if self.live { "\r\x1b[K" } else { "" };
        if !self.quiet && run.goodput() > 0.0 && run.bypass().is_none() {
            let (communication, goodput) = (gbit(run.communication()), gbit(run.goodput()));
            eprintln!("{clear}{what}  {communication} Gbit/s ({goodput} goodput)");
        } else if self.live {
            eprint!("{clear}");
        }
        for problem in run.problems() {
            eprintln!("trafficspeed: {what}: {problem}");
        }
    }
}
