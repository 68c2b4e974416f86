//! The results of a measurement of capacity, as plain data.

use serde::Serialize;
use vpnd_swarm::load::{AcknowledgementCounts, CallCounts, Direction, USUAL_ACK_DELAY_MS, USUAL_ACKNOWLEDGE};
use vpnd_swarm::tally::Percentiles;

use trafficspeed::experiment::environment::Environment;
use trafficspeed::experiment::outcome::Taken;
use trafficspeed::lab::cpu_limit::CpuLimit;
use trafficspeed::observation::{ByRound, ratio};
use trafficspeed::stats::Spread;
use trafficspeed::system::{Subject, SystemInfo};

/// One point of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// Sessions of one process without devices, in pairs.
    Made {
        /// Sessions that send.
        sessions: u32,
        traffic: Traffic,
        /// CPU of the gateway's programs, if it is limited.
        gateway_cpu: Option<CpuLimit>,
    },
    /// Real clients with TCP connections in pairs.
    Real { clients: u32, gateway_cpu: Option<CpuLimit> },
}

/// Made traffic, whatever the number of sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Traffic {
    pub direction: Direction,
    /// Bytes of an inner packet, if not as long as the tunnel takes.
    pub packet: Option<u16>,
    /// Packets that a session sends at once.
    pub burst: u16,
    /// Bits of inner packets that each session sends in a second; as fast as it can if absent.
    pub rate: Option<u64>,
    /// Bursts of small packets, out of a hundred.
    pub small: u32,
    /// The first session has as much on its way as this number of others.
    pub greedy: u32,
    /// Sessions with calls beside.
    pub calls: u32,
    /// Merged runs in pairs that are acknowledged, out of a hundred.
    pub acknowledge: u32,
    /// Milliseconds for which an acknowledgement waits at most until others go with it.
    pub ack_delay_ms: u32,
}

impl Traffic {
    /// The share of runs that are acknowledged, in percent, if it is not the usual one of traffic
    /// that has acknowledgements.
    pub fn unusual_acknowledge(self) -> Option<u32> {
        let is_unusual = self.direction == Direction::Pairs && self.acknowledge != USUAL_ACKNOWLEDGE;
        is_unusual.then_some(self.acknowledge)
    }

    /// The delay of acknowledgements in milliseconds, if there are any and it is not the usual one.
    pub fn unusual_ack_delay_ms(self) -> Option<u32> {
        (self.acknowledge > 0 && self.ack_delay_ms != USUAL_ACK_DELAY_MS).then_some(self.ack_delay_ms)
    }
}

impl Case {
    /// Made traffic, but for the sessions.
    pub fn traffic(self) -> Option<Traffic> {
        match self {
            Self::Made { traffic, .. } => Some(traffic),
            Self::Real { .. } => None,
        }
    }

    /// Sessions that carry traffic.
    pub fn sessions(self) -> u32 {
        match self {
            Self::Made { sessions, .. } => sessions,
            Self::Real { clients, .. } => clients,
        }
    }

    /// CPU of the gateway's programs, if it is limited.
    pub fn gateway_cpu(self) -> Option<CpuLimit> {
        match self {
            Self::Made { gateway_cpu, .. } | Self::Real { gateway_cpu, .. } => gateway_cpu,
        }
    }
}

/// The sessions of the cases that others are compared with: 8 if some have as many, else the
/// fewest.
pub fn base_sessions(cases: impl IntoIterator<Item = Case>) -> Option<u32> {
    let made = cases.into_iter().filter(|case| case.traffic().is_some());
    // Every kind of case is measured with each count.
    made.map(Case::sessions).min_by_key(|&sessions| (sessions != BASE_SESSIONS, sessions))
}

/// The count of sessions that costs are compared with, if it is among those measured. So few that
/// all they touch is in the core's cache.
const BASE_SESSIONS: u32 = 8;
/// A gateway that used this share of its quota was the bottleneck: the rest is what the kernel does
/// not give out evenly.
pub const SATURATED_PERCENT: f64 = 95.0;

/// The figures of one measurement of a case.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// The round in which they were measured; one that failed has none.
    pub round: u32,
    /// Payload bits per second that arrived, of all sessions.
    pub goodput: f64,
    /// Bytes of an inner packet; of made traffic alone.
    pub packet: Option<u16>,
    /// Inner packets that arrived.
    pub packets_per_second: Option<f64>,
    /// CPU seconds of the gateway for each Gbit of payload.
    pub gateway_seconds_per_gbit: f64,
    /// Bytes that came to the gateway's links at once, in super-packets, on average;
    /// acknowledgements and the time before and after the measurement count.
    pub received_at_once: Option<f64>,
    /// How often the gateway's threads were woken, for each Gbit.
    pub gateway_wakes_per_gbit: f64,
    /// CPU seconds that the gateway used in a second.
    pub gateway_cores: f64,
    /// Percent of its quota, if it has one.
    pub quota_percent: Option<f64>,
    /// Seconds for each Gbit in which the gateway looked for packets instead of sleeping, part of
    /// its CPU seconds; other threads' turns in between count, so it is an upper bound. Of made
    /// traffic alone, with polling.
    pub polling_seconds_per_gbit: Option<f64>,
    /// CPU seconds of sender and receiver, without the generators of real clients.
    pub load_seconds_per_gbit: f64,
    /// How often their threads were woken, for each Gbit: by the gateway, while it sends.
    pub load_wakes_per_gbit: f64,
    /// Jain's index over the sessions' goodputs.
    pub fairness: Option<f64>,
    /// Throughput of the first session, relative to the others' median, if it was greedy.
    pub greedy_share: Option<f64>,
    /// Share of the rate that was to be sent which arrived, percent.
    pub delivered_percent: Option<f64>,
    /// The calls beside.
    pub calls: Option<CallCounts>,
    pub acknowledgements: Option<AcknowledgementCounts>,
    /// Acknowledgements that arrived, for each Gbit.
    pub acknowledgements_per_gbit: Option<f64>,
    /// Packets that were lost on the way, in percent.
    pub lost_percent: Option<f64>,
    /// From sealing to receiving.
    pub delay_ms: Option<Percentiles>,
    /// Packets that were authenticated and opened, of those that arrived.
    pub opened: Option<(u64, u64)>,
    /// Packets that the kernel of the sender did not take.
    pub refused: u64,
    /// The share of the machine's CPU time that the hypervisor gave to others, in percent.
    pub steal_percent: Option<f64>,
    /// The share that processes without a part in it used, in percent.
    pub foreign_percent: Option<f64>,
}

/// A case with all its measurements.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub case: Case,
    /// The second measurement of this case in each round, a control (A/A).
    pub again: bool,
    /// Bytes that were on their way at most, of made traffic.
    pub in_flight: Option<u64>,
    /// One for each round, in the order of the rounds.
    pub runs: Vec<Figures>,
}

impl Row {
    /// The spread of one figure over the measurements that have it.
    pub fn spread(&self, figure: impl Fn(&Figures) -> Option<f64>) -> Option<Spread> {
        Spread::of(&self.runs.iter().filter_map(figure).collect::<Vec<_>>())
    }

    /// One figure relative to that of another row, in each round that has both.
    fn times(&self, other: &Self, figure: fn(&Figures) -> f64) -> Option<Spread> {
        let by_round = |row: &Self| -> ByRound {
            let values = row.runs.iter().map(|figures| (figures.round, figure(figures)));
            values.filter(|(_, value)| *value > 0.0).collect()
        };
        ratio(&by_round(self), &by_round(other))
    }

    /// CPU seconds of the gateway for each Gbit.
    pub fn cost(&self) -> Option<Spread> {
        self.spread(|figures| Some(cost(figures)))
    }
}

fn cost(figures: &Figures) -> f64 {
    figures.gateway_seconds_per_gbit
}

/// The cost of a case relative to that of another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RelativeCost {
    /// One for each round.
    pub ratio: Spread,
    /// Whether that is a difference: beyond the ratios of a case to itself, in all rounds on the
    /// same side of 1. `None` where nothing shows it: of few rounds, without a case measured twice,
    /// on a disturbed machine or an emulated one.
    pub differs: Option<bool>,
}

#[derive(Clone, Debug, Serialize)]
pub struct CapacityResults {
    pub subject: Subject,
    /// Microseconds for which the gateway and real clients polled, if that was set.
    pub busy_poll_us: Option<u32>,
    /// Sessions that were up all the time, those without traffic included.
    pub sessions: u32,
    /// Merged runs of a flow for each one that was authenticated.
    pub sample: u32,
    pub seconds: f64,
    pub repeats: u32,
    pub environment: Environment,
    pub facts: SystemInfo,
    pub rows: Vec<Row>,
    pub interrupted: bool,
    pub problems: Vec<String>,
}

impl CapacityResults {
    /// Whether everything was measured that was wanted.
    pub fn is_whole(&self) -> bool {
        let complete = self.rows.iter().all(|row| row.runs.len() == self.repeats as usize);
        self.problems.is_empty() && complete && !self.rows.is_empty()
    }

    /// See [`base_sessions`].
    pub fn base_sessions(&self) -> Option<u32> {
        base_sessions(self.rows.iter().map(|row| row.case))
    }

    /// The first measurement of each case in a round.
    pub fn first_rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| !row.again)
    }

    /// The case that was measured twice in each round, and what its second measurement was of the
    /// first: of the gateway's cost and of throughput.
    pub fn against_itself(&self) -> Option<(&Row, [Spread; 2])> {
        let again = self.rows.iter().find(|row| row.again)?;
        let first = self.first_rows().find(|row| row.case == again.case)?;
        Some((first, [again.times(first, cost)?, again.times(first, |figures| figures.goodput)?]))
    }

    /// The cost, relative to the case with [`CapacityResults::base_sessions`], among those
    /// that are alike otherwise. None of that case itself, but of its second measurement.
    pub fn relative_cost(&self, row: &Row) -> Option<RelativeCost> {
        let kind = |case: Case| Some((case.traffic()?, case.gateway_cpu()));
        let (own, sessions) = (kind(row.case)?, self.base_sessions()?);
        let is_base = |other: &&Row| kind(other.case) == Some(own) && other.case.sessions() == sessions;
        let base = self.first_rows().find(is_base)?;
        if row.case == base.case && !row.again {
            return None;
        }
        self.compared(row, base)
    }

    /// The cost of a row relative to that of another, with the ratios of a case to itself.
    fn compared(&self, row: &Row, other: &Row) -> Option<RelativeCost> {
        let ratio = row.times(other, cost)?;
        let is_quiet =
            !self.environment.is_emulated() && [row, other].iter().all(|row| !Self::is_disturbed(row));
        let same = self.against_itself().filter(|_| is_quiet).map(|(_, [same, _])| same);
        Some(RelativeCost { ratio, differs: same.and_then(|same| ratio.differs_beyond(same)) })
    }

    fn is_disturbed(row: &Row) -> bool {
        let taken =
            |figures: &Figures| Taken { steal: figures.steal_percent, others: figures.foreign_percent };
        row.runs.iter().any(|figures| taken(figures).is_disturbed())
    }

    /// Rows in which the gateway was limited, but not the bottleneck, with the share of its quota
    /// that it used.
    pub fn unsaturated(&self) -> Vec<(&Row, f64)> {
        let shares = self.rows.iter().filter_map(|row| {
            let share = row.spread(|figures| figures.quota_percent)?;
            Some((row, share.median))
        });
        shares.filter(|(_, percent)| *percent < SATURATED_PERCENT).collect()
    }

    /// The cost of as many real clients, relative to that of made traffic: 1 if the load is a
    /// fair stand-in.
    pub fn against_real(&self, row: &Row) -> Option<RelativeCost> {
        self.compared(row, self.real_row(row)?)
    }

    /// The row of as many real clients in this setting, if generated traffic has the form of
    /// theirs.
    pub fn real_row(&self, row: &Row) -> Option<&Row> {
        let Case::Made { sessions, traffic, gateway_cpu } = row.case else { return None };
        let is_alike = matches!(
            traffic,
            Traffic {
                direction: Direction::Pairs,
                packet: None,
                rate: None,
                small: 0,
                greedy: 1,
                calls: 0,
                ..
            }
        );
        let alike = Case::Real { clients: sessions, gateway_cpu };
        self.first_rows().find(|row| is_alike && row.case == alike)
    }
}

#[cfg(test)]
pub(crate) mod samples {
    use super::*;
    use trafficspeed::system::{Cipher, Kind};

    /// Full packets in pairs.
    pub(crate) fn traffic() -> Traffic {
        Traffic {
            direction: Direction::Pairs,
            packet: None,
            burst: 44,
            rate: None,
            small: 0,
            greedy: 1,
            calls: 0,
            acknowledge: 100,
            ack_delay_ms: 5,
        }
    }

    /// Two counts of sessions, real clients for the smaller one, and that one a second time.
    pub(crate) fn results() -> CapacityResults {
        let figures = |(round, cost)| Figures {
            round,
            goodput: 5e9,
            packet: Some(1_412),
            gateway_seconds_per_gbit: cost,
            gateway_wakes_per_gbit: 1e4 * cost,
            load_seconds_per_gbit: 0.05,
            fairness: Some(0.99),
            lost_percent: Some(0.0),
            delay_ms: Some(Percentiles { p50: 1.0, p90: 2.0, p99: 3.0, max: 4.0 }),
            opened: Some((10, 1_000)),
            ..Figures::default()
        };
        let made = |sessions| Case::Made { sessions, traffic: traffic(), gateway_cpu: None };
        let row = |case: Case, costs: [f64; 2]| {
            let in_flight = case.traffic().map(|_| 4 << 20);
            Row { case, again: false, in_flight, runs: (1..).zip([costs; 3].concat()).map(figures).collect() }
        };
        CapacityResults {
            subject: Subject::new(Kind::Vpnd, Cipher::Auto),
            busy_poll_us: None,
            sessions: 1_024,
            sample: 8,
            seconds: 2.0,
            repeats: 6,
            environment: Environment::default(),
            facts: SystemInfo::default(),
            rows: vec![
                row(made(8), [0.1, 0.1]),
                row(made(1_024), [0.11, 0.13]),
                row(Case::Real { clients: 8, gateway_cpu: None }, [0.08, 0.08]),
                Row { again: true, ..row(made(8), [0.1, 0.104]) },
            ],
            interrupted: false,
            problems: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_compared_with_8_sessions_and_with_as_many_real_clients() {
        let mut results = samples::results();
        let close = |found: Option<RelativeCost>, to: f64| {
            found.is_some_and(|found| (found.ratio.median - to).abs() < 1e-9)
        };
        assert_eq!(results.relative_cost(&results.rows[0]), None, "it is what the others are compared with");
        assert!(close(results.relative_cost(&results.rows[1]), 1.2));
        assert!(close(results.against_real(&results.rows[0]), 1.25));
        assert_eq!(results.against_real(&results.rows[1]), None, "nobody ran 1,024 real clients");
        assert_eq!(results.relative_cost(&results.rows[2]), None);
        assert!(close(results.relative_cost(&results.rows[3]), 1.02), "the control by its case");
        // Two sessions cost less, and a limited gateway is another matter.
        let limit = "0.5".parse().ok();
        for (sessions, gateway_cpu, cost) in [(2, None, 0.05), (8, limit, 0.2), (1_024, limit, 0.3)] {
            let mut row = results.rows[0].clone();
            row.case = Case::Made { sessions, traffic: samples::traffic(), gateway_cpu };
            row.runs.iter_mut().for_each(|figures| figures.gateway_seconds_per_gbit = cost);
            results.rows.push(row);
        }
        assert_eq!(results.base_sessions(), Some(8));
        for (row, relative) in [(1, 1.2), (4, 0.5), (6, 1.5)] {
            assert!(close(results.relative_cost(&results.rows[row]), relative), "{row}");
        }
        assert_eq!(results.against_real(&results.rows[5]), None, "real clients had the whole gateway");
        results.rows.retain(|row| row.case.sessions() != 8);
        assert_eq!(results.base_sessions(), Some(2));
    }

    #[test]
    fn a_ratio_is_a_difference_only_beyond_that_of_a_case_to_itself_and_within_each_round() {
        let mut results = samples::results();
        let differs =
            |results: &CapacityResults| results.relative_cost(&results.rows[1]).map(|found| found.differs);
        let (row, [cost, goodput]) = results.against_itself().unwrap();
        assert_eq!((row.case, row.again, goodput.median), (results.rows[0].case, false, 1.0));
        assert!((cost.low - 1.0).abs() < 1e-9 && (cost.high - 1.04).abs() < 1e-9, "{cost:?}");
        assert_eq!(differs(&results), Some(Some(true)));
        // A machine that is three times as slow in one round is so for both, and takes nothing
        // away.
        for row in &mut results.rows {
            row.runs[1].gateway_seconds_per_gbit *= 3.0;
        }
        assert_eq!(differs(&results), Some(Some(true)));
        results.rows[3].runs[1].gateway_seconds_per_gbit *= 1.2;
        assert_eq!(differs(&results), Some(Some(false)), "the control went as far");
        results.rows[3].runs.clear();
        assert_eq!(differs(&results), Some(None), "nothing is known without a control");
        let mut single = samples::results();
        single.rows.iter_mut().for_each(|row| row.runs.truncate(4));
        assert_eq!(differs(&single), Some(None), "four rounds show nothing");
        let mut emulated = samples::results();
        emulated.environment.host.cpu = "QEMU TCG CPU version 2.5+".into();
        assert_eq!(differs(&emulated), Some(None), "nothing is claimed of it");
    }

    #[test]
    fn a_round_that_failed_is_compared_with_no_other_round() {
        let mut results = samples::results();
        for row in &mut results.rows {
            row.runs[1].gateway_seconds_per_gbit *= 3.0;
        }
        let cost = |results: &CapacityResults| results.relative_cost(&results.rows[1]).unwrap().ratio;
        results.rows[1].runs.remove(0);
        let failed = cost(&results);
        results.rows.iter_mut().for_each(|row| row.runs.retain(|figures| figures.round > 1));
        assert_eq!(failed, cost(&results));
    }

    #[test]
    fn a_gateway_that_leaves_some_of_its_quota_was_not_the_bottleneck() {
        let mut results = samples::results();
        assert!(results.unsaturated().is_empty());
        for (row, percent) in [(0, 96.0), (1, 94.0)] {
            results.rows[row].runs.iter_mut().for_each(|figures| figures.quota_percent = Some(percent));
        }
        let found: Vec<_> =
            results.unsaturated().into_iter().map(|(row, percent)| (row.case, percent)).collect();
        assert_eq!(found, [(results.rows[1].case, 94.0)]);
    }

    #[test]
    fn a_missing_measurement_or_a_problem_is_no_whole_result() {
        let whole = samples::results();
        assert!(whole.is_whole());
        let spoilt: [fn(&mut CapacityResults); 3] = [
            |results| results.rows[1].runs.truncate(1),
            |results| results.problems.push("x".into()),
            |results| results.rows.clear(),
        ];
        for spoil in spoilt {
            let mut results = whole.clone();
            spoil(&mut results);
            assert!(!results.is_whole());
        }
    }
}
