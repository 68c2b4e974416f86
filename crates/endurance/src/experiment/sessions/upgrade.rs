//! An upgrade of the gateway while some sessions are watched: all go on, and the longest gap
//! counts.
//!
//! Control connections don't outlive the old process, so each session of vpnd's own client gets a
//! new one by attaching; the phase counts those. WireGuard devices have none: it counts those that
//! are answered.

use std::time::{Duration, Instant};

use vpnd_swarm::message::Command;
use vpnd_swarm::tally::{Tally, Watched};

use super::results::{Beside, Restarted};
use super::{Measurement, Restart};
use crate::experiment::held_sessions::{SessionsError, share_of, take_reports};
use trafficspeed::clock;

/// Sessions that are watched, in all processes together: few, so that the measurement takes little
/// of the machine.
const WATCHED: u32 = 32;
/// Time for which they are watched while nothing happens, and again after that before the upgrade
/// begins.
const CALM: Duration = Duration::from_secs(3);
/// Time for processes to report their watched sessions.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

impl Measurement<'_> {
    /// Upgrades the gateway, and waits until each session that had a control connection has one
    /// again.
    pub(super) fn upgrade(&mut self) -> Result<(), SessionsError> {
        // A reading while sessions are watched could be a gap of theirs. The gateway's parent goes
        // on, so its old children's time stays with it and counts for no other process.
        let meter = self.meter();
        self.watch(WATCHED);
        self.wait(&mut Tally::new(clock::now_ns()), CALM);
        let before = self.watched(WATCHED);
        self.wait(&mut Tally::new(clock::now_ns()), CALM);
        let mut tally = Tally::new(clock::now_ns());
        let begun = Instant::now();
        self.system.upgrade()?;
        let gateway_back_seconds = begun.elapsed().as_secs_f64();
        if self.plan.wireguard {
            self.wait(&mut tally, CALM);
        } else {
            self.wait_until_up(&mut tally, "sessions attached", &mut Vec::new())?;
        }
        let meanwhile = self.watched(0);
        // The old processes end meanwhile and take along what they used, so there is no figure of
        // both.
        let mut phase = self.phase(&mut tally, None, meter)?;
        if self.plan.wireguard {
            phase.storm.up = phase.answered;
        }
        let watched = Some(Beside { before, meanwhile });
        let how = Restart::Upgrade;
        self.results.restarts.push(Restarted { how, gateway_back_seconds, watched, phase });
        Ok(())
    }

    fn watch(&mut self, count: u32) {
        let processes = self.plan.processes;
        self.processes.send_each(|number| Command::Watch(share_of(count, processes, number as u32)));
    }

    /// The reports of the sessions that were watched until now; from now on `count` are.
    fn watched(&mut self, count: u32) -> Watched {
        let mut tally = Tally::new(clock::now_ns());
        self.watch(count);
        let deadline = Instant::now() + REPORT_TIMEOUT;
        while tally.watched.processes < self.watching() && !self.over(&mut tally, deadline) {
            take_reports(&self.processes, &mut tally, super::POLL);
        }
        tally.watched
    }

    /// Processes that have a session to watch.
    fn watching(&self) -> u32 {
        self.plan.processes.min(WATCHED)
    }
}
