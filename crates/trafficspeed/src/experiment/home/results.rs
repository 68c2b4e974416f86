//! The results of the measurement of real paths, as plain data.

use serde::{Deserialize, Serialize};

use super::flow::{Case, Flow};
use crate::experiment::environment::Environment;
use crate::experiment::figures::Figures;
use crate::experiment::link_check::LinkChecked;
use crate::experiment::outcome::CpuUse;
use crate::experiment::problems::said_once;
use crate::lab::emulator::{self, Observed};
use crate::load::congestion::CongestionControl;
use crate::system::{Subject, SystemInfo};

/// The work as reports record it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HomeSettings {
    /// IP version inside.
    pub ip: u8,
    /// The time of everything at once.
    pub seconds: f64,
    pub warmup_seconds: f64,
    /// The time of each part alone; zero for none.
    pub alone_seconds: f64,
    pub repeats: u32,
    /// TCP connections of the download, and of the upload.
    pub streams: u32,
    /// The congestion control of all measured connections.
    pub congestion: CongestionControl,
    /// Seed of the payload.
    pub seed: u64,
    /// The link's rate up and down, bit/s of frames.
    pub rate: [Option<u64>; 2],
    /// The longest queue in front of it up and down, in words.
    pub queue: [Option<String>; 2],
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HomeCampaign {
    pub settings: HomeSettings,
    pub environment: Environment,
    /// The link alone, asked for and got.
    pub link: Option<LinkChecked>,
    /// Round by round, in the order of reports.
    pub runs: Vec<HomeRun>,
    /// The user ended it early.
    pub interrupted: bool,
}

/// One system in one round.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HomeRun {
    pub subject: Option<Subject>,
    /// Its name in the report.
    pub label: String,
    /// Which round, from 1.
    pub repeat: u32,
    /// When it began, UTC.
    pub started: String,
    /// The system's own account.
    pub facts: SystemInfo,
    pub cases: Vec<CaseResult>,
    /// The emulator's own account of all cases.
    pub link: LinkUses,
    /// Why nothing was measured any more.
    pub error: Option<String>,
}

/// The accounts of one lab after the other; a second one is made where a measurement broke.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkUses(pub Vec<LinkUse>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkUse {
    pub up: emulator::Figures,
    pub down: emulator::Figures,
}

/// Flows that ran at the same time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CaseResult {
    pub case: Case,
    pub flows: Vec<(Flow, Figures)>,
    pub cpu: Option<CpuUse>,
    /// The link's counts of frames meanwhile, up and down; the warm-up's included.
    pub link: [LinkCounts; 2],
    /// Datagrams that the kernels of the client and the gateway dropped at full sockets, the VPN's
    /// and the generators'.
    pub socket_drops: [u64; 2],
    /// Those of them that the generators did not take in time.
    pub generator_drops: [u64; 2],
    /// Its faults, or the reason that there is nothing.
    pub problems: Vec<String>,
}

/// Frames at one direction of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCounts {
    pub entered: u64,
    /// Lost because it was asked for.
    pub lost: u64,
    /// Dropped because the queue was full.
    pub queue_full: u64,
    /// Dropped by the emulator's own fault.
    pub spoilt: u64,
}

impl LinkUses {
    pub(super) fn add(&mut self, account: Option<LinkUse>) {
        self.0.extend(account);
    }

    fn ways(&self) -> impl Iterator<Item = &emulator::Figures> {
        self.0.iter().flat_map(|account| [&account.up, &account.down])
    }

    /// How late the emulator let frames leave: 99 % of one direction's were at most so late, of the
    /// later direction, µs.
    pub fn late_p99_us(&self) -> Option<f64> {
        self.ways().map(|way| way.late_p99_us).reduce(f64::max)
    }

    /// CPU seconds of the emulator.
    pub fn cpu_seconds(&self) -> f64 {
        self.ways().map(|way| way.cpu_seconds).sum()
    }
}

impl LinkCounts {
    pub(super) fn of(observed: &Observed) -> Self {
        Self {
            entered: observed.entered,
            lost: observed.lost,
            queue_full: observed.queue_full,
            spoilt: observed.overrun + observed.refused,
        }
    }

    /// The counts after `earlier`.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            entered: self.entered - earlier.entered,
            lost: self.lost - earlier.lost,
            queue_full: self.queue_full - earlier.queue_full,
            spoilt: self.spoilt - earlier.spoilt,
        }
    }

    /// Lost as asked for, percent of those that entered.
    pub fn lost_percent(self) -> Option<f64> {
        self.percent(self.lost)
    }

    /// Dropped at the queue, percent of those that entered.
    pub fn dropped_percent(self) -> Option<f64> {
        self.percent(self.queue_full)
    }

    fn percent(self, part: u64) -> Option<f64> {
        (self.entered > 0).then(|| 100.0 * part as f64 / self.entered as f64)
    }
}

impl HomeRun {
    /// A case that stands.
    pub fn case(&self, case: Case) -> Option<&CaseResult> {
        self.cases.iter().find(|found| found.case == case && found.problems.is_empty())
    }

    /// The figures of a flow in a case that stands.
    pub fn figures(&self, case: Case, flow: Flow) -> Option<&Figures> {
        Some(&self.case(case)?.flows.iter().find(|(known, _)| *known == flow)?.1)
    }

    /// Everything that went wrong, in words.
    pub fn problems(&self) -> Vec<String> {
        let cases = self.cases.iter().flat_map(|found| {
            found.problems.iter().map(|problem| format!("{}: {problem}", found.case.name()))
        });
        self.error.iter().cloned().chain(cases).collect()
    }
}

impl HomeCampaign {
    /// Everything that went wrong, in words.
    pub fn problems(&self) -> Vec<String> {
        let problems_of = |run: &HomeRun| {
            let (label, place) = (run.label.clone(), format!("round {}", run.repeat));
            run.problems().into_iter().map(move |problem| (label.clone(), place.clone(), problem))
        };
        said_once(self.runs.iter().flat_map(problems_of))
    }

    /// Whether all that was asked for was measured as it should be.
    pub fn is_whole(&self) -> bool {
        !self.interrupted && !self.runs.is_empty() && self.problems().is_empty()
    }
}

#[cfg(test)]
pub(crate) mod samples {
    use super::*;
    use crate::load::delays::Delays;
    use crate::system::{Cipher, Kind};

    pub(crate) fn settings() -> HomeSettings {
        HomeSettings {
            ip: 4,
            seconds: 15.0,
            warmup_seconds: 2.0,
            alone_seconds: 3.0,
            repeats: 3,
            streams: 1,
            congestion: CongestionControl::default(),
            seed: 1,
            rate: [Some(40_000_000), Some(100_000_000)],
            queue: [Some("100 ms".into()), Some("100 ms".into())],
        }
    }

    fn figures(flow: Flow, slow: f64) -> Figures {
        let mut delays = Delays::default();
        (1..=100).for_each(|n| delays.record((18e6 * slow) as u64 + n * 10_000));
        let delay = delays.summary();
        match flow {
            Flow::Download | Flow::Upload => {
                Figures { received_bits_per_second: 20e6 / slow, ..Figures::default() }
            }
            Flow::Pages => {
                let pages_ms = (1..=10).map(|n| (200.0 + f64::from(n)) * slow).collect();
                Figures { pages_ms, round_trip: delay, timeouts: Some(0), ..Figures::default() }
            }
            _ => Figures {
                messages: Some(1_000),
                lost: Some(2),
                lost_percent: Some(0.2),
                late: Some(3),
                missed_percent: Some(0.5),
                reordered: Some(0),
                lateness: delay.clone(),
                variation: delay.clone(),
                delay,
                ..Figures::default()
            },
        }
    }

    pub(crate) fn run(subject: Subject, repeat: u32, slow: f64) -> HomeRun {
        let case = |case: Case| CaseResult {
            case,
            flows: case.flows().iter().map(|flow| (*flow, figures(*flow, slow))).collect(),
            cpu: Some(CpuUse { gateway: 0.1 * slow, clients: 0.2, seconds: 1.0, ..CpuUse::default() }),
            link: [LinkCounts { entered: 10_000, lost: 10, queue_full: 50, spoilt: 0 }; 2],
            socket_drops: [0, 7],
            generator_drops: [0, 2],
            problems: Vec::new(),
        };
        let cases = if subject.again { vec![Case::AtOnce] } else { Case::ALL.to_vec() };
        let way = emulator::Figures { late_p99_us: 80.0, cpu_seconds: 0.5, ..emulator::Figures::default() };
        let (version, cipher) = ("vpnd <9>".into(), "AES".into());
        HomeRun {
            subject: Some(subject),
            label: subject.label(),
            repeat,
            facts: SystemInfo { version, cipher, mtu: Some(1_420), notes: Vec::new() },
            cases: cases.into_iter().map(case).collect(),
            link: LinkUses(vec![LinkUse { up: way, down: way }]),
            ..HomeRun::default()
        }
    }

    /// Two systems and a control in three rounds; the second is twice as slow.
    pub(crate) fn campaign() -> HomeCampaign {
        let vpnd = Subject::new(Kind::Vpnd, Cipher::Auto);
        let other = Subject::new(Kind::Openvpn, Cipher::Auto);
        let round = |repeat: u32| {
            let drift = 1.0 + 0.01 * f64::from(repeat);
            [
                run(vpnd, repeat, drift),
                run(other, repeat, 2.0 * drift),
                run(vpnd.again(), repeat, 1.02 * drift),
            ]
        };
        HomeCampaign {
            settings: settings(),
            environment: Environment::default(),
            link: None,
            runs: (1..=5).flat_map(round).collect(),
            interrupted: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_with_a_problem_has_no_figures_and_the_others_stay() {
        let mut campaign = samples::campaign();
        assert!(campaign.is_whole());
        campaign.runs[0].cases[0].problems.push("went past the tunnel".into());
        let run = &campaign.runs[0];
        assert!(run.figures(Case::AtOnce, Flow::Download).is_none());
        assert!(run.figures(Case::Download, Flow::Download).is_some());
        assert_eq!(campaign.problems(), ["vpnd, round 1: all at once: went past the tunnel"]);
        assert!(!campaign.is_whole());
    }

    #[test]
    fn counts_are_of_the_time_between_two_readings() {
        let earlier = LinkCounts { entered: 100, lost: 1, queue_full: 2, spoilt: 0 };
        let later = LinkCounts { entered: 1_100, lost: 2, queue_full: 12, spoilt: 3 };
        let between = later.since(earlier);
        assert_eq!(between, LinkCounts { entered: 1_000, lost: 1, queue_full: 10, spoilt: 3 });
        assert_eq!((between.lost_percent(), between.dropped_percent()), (Some(0.1), Some(1.0)));
        assert_eq!(LinkCounts::default().lost_percent(), None);
    }
}
