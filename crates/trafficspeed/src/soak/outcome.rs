//! What a soak test found: as plain data, in words, and as a picture.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::SoakPlan;
use super::sample::Sample;
use super::trend::Trend;
use super::verdict::{Verdict, judge};
use crate::observe::HostFacts;
use crate::report::chart::{Point, Series, TimeChart, standalone};
use crate::sessions::churn::Done;
use crate::system::Facts;
use crate::system::vpnd::Counters;

/// Points of a line in the picture.
const MAX_POINTS: usize = 600;

/// Everything that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Sessions that were wanted.
    pub clients: u32,
    /// Processes that held them.
    pub processes: u32,
    /// What decided who does what.
    pub seed: u64,
    pub host: HostFacts,
    pub facts: Facts,
    /// What the sessions did.
    pub done: Done,
    /// Processes killed with all their sessions.
    pub kills: u32,
    /// Sessions that something happened to which they did not do.
    pub unexplained: u32,
    /// The same where the process that held the session had been stopped, or the whole machine.
    pub after_stalls: u32,
    /// The first of both.
    pub events: Vec<Event>,
    /// Attempts that came to nothing, by cause; the clients tried again by themselves.
    pub failures: BTreeMap<String, u32>,
    /// What the gateway counted.
    pub counters: Counters,
    pub samples: Vec<Sample>,
    pub verdict: Verdict,
    /// The user ended it.
    pub interrupted: bool,
    /// What else went wrong.
    pub problems: Vec<String>,
}

/// Something that a session did not do itself.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    /// Seconds since the first login.
    pub second: f64,
    pub session: u32,
    pub what: String,
    /// Its process had stood still for so many seconds.
    pub after_stall_s: Option<f64>,
}

impl Outcome {
    /// Nothing was found yet.
    pub fn new(plan: &SoakPlan, host: HostFacts, facts: Facts) -> Self {
        Self {
            clients: plan.clients,
            processes: plan.processes,
            seed: plan.seed,
            host,
            facts,
            done: Done::default(),
            kills: 0,
            unexplained: 0,
            after_stalls: 0,
            events: Vec::new(),
            failures: BTreeMap::new(),
            counters: Counters::default(),
            samples: Vec::new(),
            verdict: Verdict::default(),
            interrupted: false,
            problems: Vec::new(),
        }
    }

    /// Judges what was seen from second `from` on.
    pub fn judge(&mut self, from: f64) {
        self.verdict = judge(&self.samples, from);
    }

    /// Whether nothing grew, and nothing happened that nobody did.
    pub fn is_whole(&self) -> bool {
        self.unexplained == 0 && self.problems.is_empty() && self.verdict.problems.is_empty()
    }

    /// How it is going, in a line.
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

    /// The outcome for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |words: String| {
            writeln!(text, "{words}").expect("writing to a string");
        };
        let (done, verdict) = (&self.done, &self.verdict);
        line(format!("{} sessions in {} processes, seed {}", self.clients, self.processes, self.seed));
        line(format!(
            "Done: {} left and came back, {} moved, {} lost their control connection, {} sockets with all their \
             connections moved, {} processes killed",
            done.left, done.roamed, done.rekeyed, done.rebound, self.kills
        ));
        line(format!(
            "Keys: {} by password, {} by token; {} attempts repeated; packets: {} sent, {} answered",
            done.logins, done.attaches, done.failed, done.sent, done.answered
        ));
        line(format!("Judged: {:.0} s after the warm-up", verdict.seconds));
        line(format!("Memory: {}", words(verdict.kib_an_hour, 1024.0, "MiB an hour")));
        if let Some(kib) = verdict.kib_grown {
            line(format!("Lowest memory of the last third less that of the first: {:.2} MiB", kib / 1024.0));
        }
        line(format!("Descriptors: {}", words(verdict.descriptors_an_hour, 1.0, "an hour")));
        line(format!("Threads: {}", words(verdict.threads_an_hour, 1.0, "an hour")));
        line(format!("Unexplained: {}", self.unexplained));
        if self.after_stalls > 0 {
            line(format!("After a standstill of the machine or of a process: {} more", self.after_stalls));
        }
        for (why, count) in &self.failures {
            line(format!("{count} attempts were repeated: {why}"));
        }
        for problem in self.problems.iter().chain(&verdict.problems) {
            line(format!("Problem: {problem}"));
        }
        for doubt in &verdict.doubts {
            line(format!("Not sure: {doubt}"));
        }
        if self.interrupted {
            line("Interrupted: the figures are of what was seen until then.".into());
        }
        text
    }

    /// Memory, sessions and descriptors over time, as a file of its own.
    pub fn picture(&self) -> Option<String> {
        let stride = self.samples.len().div_ceil(MAX_POINTS).max(1);
        let series = |label: &str, style, of: fn(&Sample) -> f64| {
            let samples = self.samples.iter().step_by(stride);
            let points = samples.map(|sample| Point { x: sample.second, y: of(sample), range: None });
            Series { label: label.into(), style, points: points.collect() }
        };
        let chart = TimeChart {
            title: "A gateway over time".into(),
            x_label: "seconds since the first login".into(),
            end: self.samples.last().map_or(0.0, |sample| sample.second),
            left_label: "MiB, descriptors".into(),
            left: vec![
                series("memory, MiB", 0, |sample| sample.memory.pss_kib as f64 / 1024.0),
                series("descriptors", 1, |sample| sample.descriptors.into()),
            ],
            right_label: "sessions".into(),
            right: vec![
                series("sessions", 2, |sample| sample.sessions.into()),
                series("away", 3, |sample| sample.away.into()),
            ],
        };
        Some(standalone::svg(&chart.svg()?))
    }
}

fn words(trend: Option<Trend>, unit: f64, name: &str) -> String {
    let Some(Trend { slope, low, high }) = trend else { return "too few samples".into() };
    format!("{:+.3} {name} (95 %: {:+.3} to {:+.3})", slope / unit, low / unit, high / unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::memory::Memory;

    fn outcome() -> Outcome {
        let sample = |n: u32| Sample {
            second: f64::from(n),
            memory: Memory { rss_kib: 90_000, pss_kib: 61_440 },
            descriptors: 70,
            sessions: 5,
            ..Sample::default()
        };
        Outcome {
            clients: 5,
            processes: 1,
            seed: 3,
            host: HostFacts::read(),
            facts: Facts::default(),
            done: Done { left: 2, ..Done::default() },
            kills: 1,
            unexplained: 0,
            after_stalls: 0,
            events: Vec::new(),
            failures: BTreeMap::new(),
            counters: Counters::default(),
            samples: (0..2_000).map(sample).collect(),
            verdict: Verdict::default(),
            interrupted: false,
            problems: Vec::new(),
        }
    }

    #[test]
    fn whole_means_nothing_unexplained_and_nothing_that_grows() {
        let mut whole = outcome();
        whole.judge(60.0);
        assert!(whole.is_whole(), "{}", whole.text());
        let spoilt: [fn(&mut Outcome); 3] = [
            |outcome| outcome.unexplained = 1,
            |outcome| outcome.problems.push("x".into()),
            |outcome| outcome.verdict.problems.push("x".into()),
        ];
        for spoil in spoilt {
            let mut outcome = whole.clone();
            spoil(&mut outcome);
            assert!(!outcome.is_whole());
        }
    }

    #[test]
    fn it_is_told_in_words_in_a_line_and_as_a_picture_with_few_points() {
        let mut outcome = outcome();
        outcome.judge(60.0);
        outcome.failures.insert("refused: busy".into(), 3);
        let text = outcome.text();
        for expected in
            ["seed 3", "+0.000 MiB an hour", "3 attempts were repeated: refused: busy", "Judged: 1939 s"]
        {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert!(outcome.line().contains("second 1999: 0 up") && outcome.line().contains("60.0 MiB"));
        let svg = outcome.picture().unwrap();
        crate::report::chart::markup::assert_well_formed(&svg);
        assert!(svg.len() < 60_000, "{}", svg.len());
        assert_eq!(Outcome { samples: vec![], ..outcome }.picture(), None);
    }
}
