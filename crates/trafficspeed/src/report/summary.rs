//! Repetitions of the same measurement drawn together.

use serde::Serialize;

use crate::experiment::outcome::Campaign;
use crate::experiment::outcome::observations::{
    COMMUNICATION, GATEWAY_COST, GOODPUT, LIMIT_USED, PAIR_FAIRNESS, PER_GATEWAY_SECOND, STREAM_FAIRNESS,
    VPN_COST, case,
};
use crate::experiment::quantities::{BUSY, CLIENT_CPU, GATEWAY_CPU, OTHERS, STEAL};
use crate::observation::{self, Observations, Quantity};
use crate::stats::Spread;
use crate::system::{AGAIN, Kind, Subject};

/// A gateway that used less of its CPU limit, in percent, was held back by something else.
const LIMITED_FROM_PERCENT: f64 = 90.0;

/// The whole runs of one system at one number of clients.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub label: String,
    pub clients: u32,
    pub repeats: u32,
    /// Communication throughput in bit/s: median, lowest, highest.
    pub communication: Spread,
    /// Goodput in bit/s: median, lowest, highest.
    pub goodput: Spread,
    /// Median of Jain's index over all connections.
    pub stream_fairness: Option<f64>,
    /// Median of Jain's index over the pairs.
    pub pair_fairness: Option<f64>,
    /// Median CPU seconds per second of the gateway's VPN processes.
    pub gateway_cpus: Option<f64>,
    /// The same of all clients' VPN processes.
    pub client_cpus: Option<f64>,
    /// Median share of the gateway's CPU limit that its VPN processes used, in percent; `None`
    /// without a limit or processes.
    pub gateway_limit_percent: Option<f64>,
    /// Median Gbit of goodput per CPU second of the gateway.
    pub gbit_per_gateway_second: Option<f64>,
    /// Median share of the machine that was in use, in percent.
    pub busy_percent: Option<f64>,
    /// Highest share of the machine that other tenants took, in percent.
    pub steal_percent: Option<f64>,
    /// CPU seconds of the gateway's VPN processes per Gbit of goodput: median, lowest, highest.
    pub gateway_seconds_per_gbit: Option<Spread>,
    /// The same of all VPN processes.
    pub vpn_seconds_per_gbit: Option<Spread>,
    /// Highest share of the machine that processes without a part in the measurement used, in
    /// percent.
    pub foreign_percent: Option<f64>,
    /// Goodput divided by that of plain routing in the same round: median, lowest, highest of the
    /// rounds.
    pub ratio_to_plain: Option<Spread>,
    /// The same for the chosen baseline.
    pub ratio_to_baseline: Option<Spread>,
    /// A system against itself at this number of clients (A/A): goodput of its second measurement
    /// in a round divided by that of the first.
    pub control: Option<Spread>,
    /// Others took so much of the machine at this number of clients that nothing is claimed.
    pub is_disturbed: bool,
}

impl Summary {
    /// Whether `ratio` is a difference beyond the A/A spread; `None` if there is no ratio or
    /// nothing to judge it by.
    pub fn differs(&self, ratio: Option<Spread>) -> Option<bool> {
        observation::differs(ratio, self.control).filter(|_| !self.is_disturbed)
    }

    /// The judgements of its ratios.
    pub fn judged(&self) -> impl Iterator<Item = Option<bool>> {
        let is_control = self.label.contains(AGAIN);
        let ratios = [self.ratio_to_plain, self.ratio_to_baseline].map(|ratio| ratio.filter(|_| !is_control));
        // What is compared with itself has a ratio of 1 in each round.
        let others = ratios.into_iter().flatten().filter(|ratio| ratio.low != ratio.high || ratio.low != 1.0);
        others.map(|ratio| self.differs(Some(ratio)))
    }

    /// Whether the gateway had a CPU limit that was not what held it back.
    pub fn is_below_limit(&self) -> bool {
        self.gateway_limit_percent.is_some_and(|percent| percent < LIMITED_FROM_PERCENT)
    }
}

/// One summary per system and number of clients, in the order they first appear. Broken runs do not
/// count.
pub fn summarise(campaign: &Campaign) -> Vec<Summary> {
    let table = campaign.observations();
    let mut counts: Vec<u32> = campaign.runs.iter().map(|run| run.clients).collect();
    counts.sort_unstable();
    counts.dedup();
    let each = labels(campaign).into_iter().flat_map(|label| counts.iter().map(move |&n| (label.clone(), n)));
    each.filter_map(|(label, clients)| summary(&label, clients, &table, campaign)).collect()
}

/// See [`Campaign::labels`].
pub fn labels(campaign: &Campaign) -> Vec<String> {
    campaign.labels()
}

/// The system that the others are compared with besides plain routing: the one that the user has
/// chosen, or, where no plain routing was measured beside other systems, the first vpnd.
pub fn baseline(campaign: &Campaign) -> Option<String> {
    if campaign.baseline.is_some() {
        return campaign.baseline.clone();
    }
    let systems = || campaign.runs.iter().filter_map(|run| Some((run, run.subject?)));
    let is_plain = systems().any(|(_, subject)| subject.kind == Kind::None);
    let is_alone = labels(campaign).len() < 2;
    let mut vpnds = systems().filter(|(_, subject)| subject.kind == Kind::Vpnd && !subject.again);
    vpnds.next().filter(|_| !is_plain && !is_alone).map(|(run, _)| run.label.clone())
}

/// `None` if nothing whole was measured.
fn summary(label: &str, clients: u32, table: &Observations, campaign: &Campaign) -> Option<Summary> {
    let case = case(clients);
    let spread = |quantity: Quantity| table.spread(label, &case, quantity);
    let median = |quantity| spread(quantity).map(|spread| spread.median);
    let highest = |quantity| spread(quantity).map(|spread| spread.high);
    let cpus = |quantity| median(quantity).map(|percent| percent / 100.0);
    let ratio_to = |other: String| table.ratio((label, &other), &case, GOODPUT);
    let is_plain = |subject: Subject| subject.kind == Kind::None && !subject.again;
    let plain = campaign.runs.iter().find(|run| run.subject.is_some_and(is_plain));
    let goodput = spread(GOODPUT)?;
    Some(Summary {
        label: label.to_owned(),
        clients,
        repeats: goodput.n as u32,
        communication: spread(COMMUNICATION).unwrap_or_default(),
        goodput,
        stream_fairness: median(STREAM_FAIRNESS),
        pair_fairness: median(PAIR_FAIRNESS),
        gateway_cpus: cpus(GATEWAY_CPU),
        client_cpus: cpus(CLIENT_CPU),
        gateway_limit_percent: median(LIMIT_USED),
        gbit_per_gateway_second: median(PER_GATEWAY_SECOND),
        busy_percent: median(BUSY),
        steal_percent: highest(STEAL),
        foreign_percent: highest(OTHERS),
        gateway_seconds_per_gbit: spread(GATEWAY_COST),
        vpn_seconds_per_gbit: spread(VPN_COST),
        ratio_to_plain: plain.and_then(|run| ratio_to(run.label.clone())),
        ratio_to_baseline: baseline(campaign).and_then(ratio_to),
        control: table.control(&campaign.settings.congestion.to_string(), &case, GOODPUT),
        is_disturbed: table.is_disturbed(&case),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::{Run, samples};

    #[test]
    fn repeats_are_drawn_together_and_compared_with_plain_routing() {
        let summaries = summarise(&samples::campaign());
        let order: Vec<_> = summaries.iter().map(|s| (s.label.as_str(), s.clients, s.repeats)).collect();
        assert_eq!(
            order,
            [
                ("vpnd, aes-256-gcm", 2, 3),
                ("vpnd, aes-256-gcm", 4, 3),
                ("vpnd, aes-256-gcm", 8, 3),
                ("plain routing", 2, 3),
                ("plain routing", 4, 3),
                ("plain routing", 8, 3),
            ],
            "the failed run at 16 clients has no place"
        );
        let two = &summaries[0];
        assert!((two.goodput.median - 8.16e9).abs() < 1.0 && (two.goodput.low - 8.08e9).abs() < 1.0);
        assert!((two.communication.high - 16.48e9).abs() < 1.0);
        let ratio = two.ratio_to_plain.unwrap();
        assert!((ratio.median - 1.02 / 3.0).abs() < 1e-9 && (ratio.high - 1.03 / 3.0).abs() < 1e-9);
        assert_eq!(two.ratio_to_baseline, None);
        assert!((two.gateway_cpus.unwrap() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn without_plain_routing_the_others_are_compared_with_vpnd() {
        let mut campaign = samples::campaign();
        assert_eq!(baseline(&campaign), None, "plain routing is there");
        campaign.runs.iter_mut().filter(|run| run.label == "plain routing").for_each(|run| {
            run.subject = Some(Subject::new(Kind::Openvpn, crate::system::Cipher::Auto));
            run.label = "OpenVPN".into();
        });
        assert_eq!(baseline(&campaign).as_deref(), Some("vpnd, aes-256-gcm"));
        let openvpn = summarise(&campaign).into_iter().find(|s| s.label == "OpenVPN").unwrap();
        assert!(openvpn.ratio_to_baseline.is_some() && openvpn.ratio_to_plain.is_none());
        campaign.baseline = Some("OpenVPN".into());
        assert_eq!(baseline(&campaign).as_deref(), Some("OpenVPN"), "the user's choice");
        campaign.baseline = None;
        campaign.runs.retain(|run| run.label != "OpenVPN");
        assert_eq!(baseline(&campaign), None, "there is nothing to compare");
    }

    #[test]
    fn ratios_are_formed_within_a_round_so_drift_of_the_machine_is_not_in_them() {
        let mut campaign = samples::campaign();
        campaign.baseline = Some("vpnd, aes-256-gcm".into());
        // The machine is three times as slow in the second round, and half as slow again in the
        // third.
        campaign.runs = [(1, 900), (2, 300), (3, 600)]
            .into_iter()
            .flat_map(|(round, speed)| {
                let bytes = speed * 1_000_000;
                let quirk = if round == 3 { bytes / 100 } else { 0 };
                [
                    samples::run(Kind::Vpnd, 2, round, bytes / 2 + quirk),
                    samples::run(Kind::None, 2, round, bytes),
                ]
            })
            .collect();
        let summaries = summarise(&campaign);
        let close = |spread: Option<Spread>, median: f64, low: f64, high: f64| {
            let spread = spread.unwrap();
            let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
            assert!(
                near(spread.median, median) && near(spread.low, low) && near(spread.high, high),
                "{spread:?}"
            );
        };
        close(summaries[0].ratio_to_plain, 0.5, 0.5, 0.51);
        close(summaries[0].ratio_to_baseline, 1.0, 1.0, 1.0);
        close(summaries[1].ratio_to_baseline, 2.0, 1.0 / 0.51, 2.0);
        // A round without its partner gives no ratio rather than one with another round's.
        campaign.runs.retain(|run| run.repeat != 1 || run.label != "plain routing");
        close(summarise(&campaign)[0].ratio_to_plain, 0.505, 0.5, 0.51);
    }

    #[test]
    fn a_difference_within_the_spread_of_a_system_against_itself_is_none() {
        let mut campaign = samples::campaign_of(5);
        campaign.baseline = Some("vpnd, aes-256-gcm".into());
        let again = |repeat: u32, share: f64| {
            let first = campaign.runs.iter().find(|run| run.clients == 2 && run.repeat == repeat);
            let bytes = first.unwrap().received() as f64 * share / 2.0;
            let mut run = samples::run(Kind::Vpnd, 2, repeat, bytes as u64);
            run.subject = run.subject.map(Subject::again);
            run.label = run.subject.unwrap().label();
            run
        };
        let shares = [0.5, 1.0, 1.2, 1.0, 1.0];
        let runs: Vec<Run> = (1..).zip(shares).map(|(repeat, share)| again(repeat, share)).collect();
        campaign.runs.extend(runs);
        let summaries = summarise(&campaign);
        let same = summaries[0].control.unwrap();
        assert!((same.low - 0.5).abs() < 1e-6 && (same.high - 1.2).abs() < 1e-6 && same.n == 5, "{same:?}");
        let plain = summaries.iter().find(|s| s.label == "plain routing" && s.clients == 2).unwrap();
        assert_eq!(plain.differs(plain.ratio_to_baseline), Some(true), "three times as much");
        let mut close = *plain.ratio_to_baseline.as_ref().unwrap();
        (close.low, close.median, close.high) = (1.5, 1.7, 1.9);
        assert_eq!(plain.differs(Some(close)), Some(false), "it was twice as much as itself once");
        let four = summaries.iter().find(|s| s.clients == 4).unwrap();
        assert_eq!(four.differs(four.ratio_to_plain), None, "there was no control");
    }

    #[test]
    fn a_gateway_that_did_not_use_up_its_limit_is_told_from_one_that_did() {
        // The gateway's processes used 1 s of 2 s.
        let with = |limit: Option<&str>| {
            let mut campaign = samples::campaign();
            campaign.environment.gateway_cpu = limit.map(|limit| limit.parse().unwrap());
            let summary = summarise(&campaign).swap_remove(0);
            (summary.gateway_limit_percent, summary.is_below_limit())
        };
        assert_eq!(with(None), (None, false));
        for (limit, percent, is_below) in [("0.5", 100.0, false), ("0.55", 90.9, false), ("1", 50.0, true)] {
            let (found, below) = with(Some(limit));
            assert!((found.unwrap() - percent).abs() < 0.1 && below == is_below, "{limit}: {found:?}");
        }
        let mut plain = samples::run(Kind::None, 2, 1, 1_000);
        plain.cpu.as_mut().unwrap().gateway = 0.0;
        assert_eq!(plain.limit_percent("1".parse().unwrap()), None, "it has no processes to limit");
    }

    #[test]
    fn the_cost_of_a_gbit_is_that_of_the_gateway_and_of_all() {
        // 1 s of the gateway and 2 s of the clients for 16 Gbit.
        let summary = &summarise(&samples::campaign())[3];
        assert_eq!(summary.label, "plain routing");
        let run = samples::run(Kind::Vpnd, 2, 1, 2_000_000_000);
        let (gateway, all) = run.seconds_per_gbit().unwrap();
        assert!((gateway - 1.0 / 32.0).abs() < 1e-9 && (all - 3.0 / 32.0).abs() < 1e-9, "{gateway} {all}");
    }
}
