//! The results of a soak test, as plain data.

use std::collections::BTreeMap;

use serde::Serialize;
use vpnd_swarm::churn::Counts;

use super::SoakPlan;
use super::judgement::{Judgement, judge};
use super::sample::Sample;
use trafficspeed::experiment::environment::Environment;
use trafficspeed::system::SystemInfo;
use trafficspeed::system::vpnd::Counters;

#[derive(Clone, Debug, Serialize)]
pub struct SoakResults {
    /// Sessions that were wanted.
    pub clients: u32,
    /// Processes that held them.
    pub processes: u32,
    /// Decided which session acted when and how.
    pub seed: u64,
    pub environment: Environment,
    pub facts: SystemInfo,
    /// The actions of the sessions, and their traffic.
    pub done: Counts,
    /// Processes killed with all their sessions.
    pub kills: u32,
    /// Incidents: something happened to a session that it did not do itself.
    pub unexplained: u32,
    /// Incidents where the process that held the session had been stopped, or the whole machine.
    pub after_stalls: u32,
    /// The first of both kinds.
    pub events: Vec<Incident>,
    /// Attempts that came to nothing, by cause; the clients tried again by themselves.
    pub failures: BTreeMap<String, u32>,
    /// The gateway's own counters.
    pub counters: Counters,
    pub samples: Vec<Sample>,
    pub verdict: Judgement,
    /// The user ended it.
    pub interrupted: bool,
    /// Anything else that went wrong.
    pub problems: Vec<String>,
}

/// Something that a session did not do itself.
#[derive(Clone, Debug, Serialize)]
pub struct Incident {
    /// Seconds since the first login.
    pub second: f64,
    pub session: u32,
    pub what: String,
    /// Seconds for which its process had stood still.
    pub after_stall_s: Option<f64>,
}

impl SoakResults {
    pub fn new(plan: &SoakPlan, environment: Environment, facts: SystemInfo) -> Self {
        Self {
            clients: plan.clients,
            processes: plan.processes,
            seed: plan.seed,
            environment,
            facts,
            done: Counts::default(),
            kills: 0,
            unexplained: 0,
            after_stalls: 0,
            events: Vec::new(),
            failures: BTreeMap::new(),
            counters: Counters::default(),
            samples: Vec::new(),
            verdict: Judgement::default(),
            interrupted: false,
            problems: Vec::new(),
        }
    }

    /// Judges the samples from second `from` on.
    pub fn judge(&mut self, from: f64) {
        self.verdict = judge(&self.samples, from);
    }

    /// Whether nothing grew, and nothing happened to a session without its doing.
    pub fn is_whole(&self) -> bool {
        self.unexplained == 0 && self.problems.is_empty() && self.verdict.problems.is_empty()
    }

    /// The state of a test that goes on, in a line.
    pub fn line(&self) -> String {
        let last = self.samples.last().cloned().unwrap_or_default();
        format!(
            "second {:.0}: {} up, {} away, gateway: {} sessions, {:.1} MiB, {} descriptors, {:.0} s CPU; \
             {} left, {} roamed, {} rekeyed, {} processes killed, {} unexplained",
            last.second,
            last.up,
            last.away,
            last.sessions,
            last.memory.pss_kib as f64 / 1024.0,
            last.descriptors,
            last.cpu_seconds,
            self.done.left,
            self.done.roamed,
            self.done.attaches,
            self.kills,
            self.unexplained
        )
    }
}

#[cfg(test)]
pub(crate) mod samples {
    use super::*;
    use trafficspeed::observe::memory::Memory;

    pub(crate) fn results() -> SoakResults {
        let sample = |n: u32| Sample {
            second: f64::from(n),
            memory: Memory { rss_kib: 90_000, pss_kib: 61_440 },
            descriptors: 70,
            sessions: 5,
            ..Sample::default()
        };
        SoakResults {
            clients: 5,
            processes: 1,
            seed: 3,
            environment: Environment::default(),
            facts: SystemInfo::default(),
            done: Counts { left: 2, ..Counts::default() },
            kills: 1,
            unexplained: 0,
            after_stalls: 0,
            events: Vec::new(),
            failures: BTreeMap::new(),
            counters: Counters::default(),
            samples: (0..2_000).map(sample).collect(),
            verdict: Judgement::default(),
            interrupted: false,
            problems: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_means_nothing_unexplained_and_nothing_that_grows() {
        let mut whole = samples::results();
        whole.judge(60.0);
        assert!(whole.is_whole(), "{whole:?}");
        let spoilt: [fn(&mut SoakResults); 3] = [
            |results| results.unexplained = 1,
            |results| results.problems.push("x".into()),
            |results| results.verdict.problems.push("x".into()),
        ];
        for spoil in spoilt {
            let mut results = whole.clone();
            spoil(&mut results);
            assert!(!results.is_whole());
        }
    }
}
