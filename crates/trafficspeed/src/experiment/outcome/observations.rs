//! The table of experiment 1: what each system carried with each number of clients, and what that
//! cost.

use super::{Campaign, Run, Taken};
use crate::experiment::figures::Figures;
use crate::experiment::quantities::of_cpu;
use crate::lab::cpu_limit::CpuLimit;
use crate::load::exchange::ANSWER_TIMEOUT;
use crate::observation::{Comparison, Measured, Observations, Quantity};
use crate::system::{Kind, Subject};

pub const GOODPUT: Quantity = Quantity::rate("goodput");
pub const COMMUNICATION: Quantity = Quantity::rate("communication");
pub const STREAM_FAIRNESS: Quantity = Quantity::new("fairness of connections", "");
pub const PAIR_FAIRNESS: Quantity = Quantity::new("fairness of pairs", "");
/// Cost of the gateway's VPN processes, and of all VPN processes.
pub const GATEWAY_COST: Quantity = Quantity::new("gateway CPU per Gbit", "s");
pub const VPN_COST: Quantity = Quantity::new("VPN CPU per Gbit", "s");
pub const PER_GATEWAY_SECOND: Quantity = Quantity::new("goodput per gateway CPU second", "Gbit");
/// Share of their CPU limit that the gateway's VPN processes used.
pub const LIMIT_USED: Quantity = Quantity::new("CPU limit used", "%").decimals(1);

/// Round trips of the probe under load, and its requests without an answer.
pub const ROUND_TRIP_50: Quantity = Quantity::time("round trip p50");
pub const ROUND_TRIP_99: Quantity = Quantity::time("round trip p99");
pub const UNANSWERED: Quantity = Quantity::new("unanswered", "%").decimals(2);

/// The share of all requests of each of the two.
const PERCENTILES: [(Quantity, f64); 2] = [(ROUND_TRIP_50, 0.5), (ROUND_TRIP_99, 0.99)];

/// The quantities by which systems are compared.
const COMPARED: [Quantity; 4] = [GOODPUT, GATEWAY_COST, ROUND_TRIP_50, ROUND_TRIP_99];

/// The name of a number of clients.
pub fn case(clients: u32) -> String {
    format!("{clients} clients")
}

/// The time in µs within which the share `share` of all requests was answered, and whether it is
/// only a lower bound: a request without an answer took longer than any with one.
fn round_trip(probe: &Figures, share: f64) -> Option<(f64, bool)> {
    let answered = 1.0 - probe.lost_percent.unwrap_or_default() / 100.0;
    let trips = probe.round_trip.as_ref();
    if share <= answered {
        return Some((trips?.at(share / answered), false));
    }
    let longest = trips.map_or(0.0, |trips| trips.max_us);
    Some((longest.max(ANSWER_TIMEOUT.as_secs_f64() * 1e6), true))
}

impl Run {
    /// The share of its CPU limit that the gateway's VPN processes used, in percent; `None` of a
    /// system without such processes.
    pub fn limit_percent(&self, limit: CpuLimit) -> Option<f64> {
        let cpu = self.cpu.filter(|cpu| cpu.seconds > 0.0 && cpu.gateway > 0.0)?;
        Some(100.0 * cpu.gateway / cpu.seconds / limit.cores())
    }
}

impl Campaign {
    /// The numbers of clients.
    pub fn counts(&self) -> Vec<u32> {
        let mut counts: Vec<u32> = self.runs.iter().map(|run| run.clients).collect();
        counts.sort_unstable();
        counts.dedup();
        counts
    }

    /// The names of the numbers of clients.
    pub fn cases(&self) -> Vec<String> {
        self.counts().into_iter().map(case).collect()
    }

    /// The label of plain routing, if it was measured.
    pub fn plain(&self) -> Option<&str> {
        let is_plain = |subject: Subject| subject.kind == Kind::None && !subject.again;
        let run = self.runs.iter().find(|run| run.subject.is_some_and(is_plain))?;
        Some(&run.label)
    }

    /// The system that the others are compared with besides plain routing: the one that the user
    /// has chosen, or, where no plain routing was measured with other systems, the first vpnd.
    pub fn baseline(&self) -> Option<&str> {
        let chosen = self.baseline.as_deref();
        let is_own = |subject: Subject| subject.kind == Kind::Vpnd && !subject.again;
        let first = self.runs.iter().find(|run| run.subject.is_some_and(is_own));
        let may_be = self.plain().is_none() && self.labels().len() > 1;
        chosen.or_else(|| first.filter(|_| may_be).map(|run| run.label.as_str()))
    }

    /// The measurements of a label's runs; `None` between real hosts.
    pub fn subject(&self, label: &str) -> Option<Subject> {
        self.runs.iter().find(|run| run.label == label)?.subject
    }

    /// Every system compared with plain routing, and with the baseline that has the same share of
    /// the CPU; a system alone has its A/A.
    pub fn comparisons(&self, table: &Observations) -> Vec<Vec<Comparison>> {
        let quantities =
            self.cases().into_iter().flat_map(|case| COMPARED.map(|quantity| (case.clone(), quantity)));
        let wanted: Vec<(String, Quantity)> = quantities.collect();
        let labels = self.labels();
        let share = |label: &str| self.subject(label).and_then(|subject| subject.gateway_cpu);
        let baseline = self.baseline();
        let alike = |label: &&String| {
            let subjects = baseline.and_then(|own| self.subject(own)).zip(self.subject(label));
            subjects.is_some_and(|(own, other)| Subject { gateway_cpu: own.gateway_cpu, ..other } == own)
        };
        let others = labels.iter().filter(alike).map(String::as_str).filter(|label| Some(*label) != baseline);
        let baselines: Vec<&str> = baseline.into_iter().chain(others).collect();
        if self.plain().is_none() && baselines.is_empty() {
            return vec![table.comparisons(&wanted)];
        }
        let of_baseline = |first: &str| {
            let mut found = table.compared_with(first, &wanted);
            let is_comparable = |label: &str| share(label) == share(first) || self.plain() == Some(label);
            found.retain(|one| is_comparable(&one.system));
            found
        };
        let to_plain = self.plain().map(|plain| table.compared_with(plain, &wanted));
        to_plain.into_iter().chain(baselines.into_iter().map(of_baseline)).collect()
    }

    pub fn observations(&self) -> Observations {
        let mut table = Observations::of_machine(self.environment.is_emulated());
        let congestion = self.settings.congestion.to_string();
        for label in self.labels() {
            table.name(&label, &congestion);
        }
        for run in &self.runs {
            let problem = match run.problems() {
                _ if run.is_whole() => String::new(),
                problems if problems.is_empty() => "incomplete".to_owned(),
                problems => problems.join("; "),
            };
            let measured = Measured {
                system: &run.label,
                congestion: &congestion,
                case: &case(run.clients),
                round: run.repeat,
                problem: &problem,
                is_disturbed: run.disturbance.is_some() || Taken::most(&run.cpu).is_disturbed(),
            };
            table.add(&measured, self.observed(run));
            for (quantity, share) in PERCENTILES {
                let found = run.probe.as_ref().and_then(|probe| round_trip(probe, share));
                if problem.is_empty() && found.is_some_and(|(_, is_bound)| is_bound) {
                    table.bound(&run.label, measured.case, quantity);
                }
            }
        }
        table
    }

    fn observed(&self, run: &Run) -> Vec<(Quantity, Option<f64>)> {
        // A run that went past the VPN gives no figure of it.
        if run.pairs.is_empty() || run.bypass().is_some() {
            return Vec::new();
        }
        let (gateway_cost, cost) = run.seconds_per_gbit().unzip();
        let share = run.subject.and_then(|subject| subject.gateway_cpu).or(self.environment.gateway_cpu);
        let probe = run.probe.as_ref();
        let of_all = |share: f64| Some(round_trip(probe?, share)?.0);
        let limit_used = share.and_then(|limit| run.limit_percent(limit));
        let mut all = vec![
            (GOODPUT, Some(run.goodput())),
            (COMMUNICATION, Some(run.communication())),
            (STREAM_FAIRNESS, run.stream_fairness()),
            (PAIR_FAIRNESS, run.pair_fairness()),
            (GATEWAY_COST, gateway_cost),
            (VPN_COST, cost),
            (PER_GATEWAY_SECOND, run.gbit_per_gateway_second()),
            (LIMIT_USED, limit_used),
            (ROUND_TRIP_50, of_all(0.5)),
            (ROUND_TRIP_99, of_all(0.99)),
            (UNANSWERED, probe.and_then(|probe| probe.lost_percent)),
        ];
        all.extend(of_cpu(run.cpu.as_ref()));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::samples;
    use crate::load::delays::Delays;
    use crate::observation::csv;
    use crate::stats::Spread;

    #[test]
    fn every_run_has_its_rows_and_one_that_broke_says_why() {
        let campaign = samples::campaign();
        let text = csv([(&campaign.observations(), ["links".into(), "machine".into()])]);
        let goodput: Vec<&str> = text.lines().filter(|line| line.contains(",goodput,bit/s,")).collect();
        assert_eq!(goodput.len(), 18, "{text}");
        assert!(goodput[1].starts_with("plain routing,2 clients,1,goodput,bit/s,24000000000,,cubic,links"));
        let broken = "\"vpnd, aes-256-gcm\",16 clients,1,,,,\"vpnd <did> not come up & \"\"died\"\"\",cubic,";
        assert!(text.contains(broken), "{text}");
        let mut limited = campaign.clone();
        limited.environment.gateway_cpu = Some("1".parse().unwrap());
        let used = limited.observations().values("vpnd, aes-256-gcm", "2 clients", LIMIT_USED);
        assert!(used.len() == 3 && (used[0] - 50.0).abs() < 1e-9, "{used:?}");
    }

    #[test]
    fn without_plain_routing_the_others_are_compared_with_vpnd_unless_the_user_chose_another() {
        let mut campaign = samples::campaign();
        assert_eq!((campaign.plain(), campaign.baseline()), (Some("plain routing"), None));
        campaign.runs.iter_mut().filter(|run| run.label == "plain routing").for_each(|run| {
            run.subject = Some(Subject::new(Kind::Openvpn, crate::system::Cipher::Auto));
            run.label = "OpenVPN".into();
        });
        assert_eq!(campaign.baseline(), Some("vpnd, aes-256-gcm"));
        let found = campaign.comparisons(&campaign.observations()).concat();
        assert!(found.iter().all(|one| one.system == "OpenVPN" && one.first == "vpnd, aes-256-gcm"));
        campaign.baseline = Some("OpenVPN".into());
        assert_eq!(campaign.baseline(), Some("OpenVPN"), "the user's choice");
        campaign.baseline = None;
        campaign.runs.retain(|run| run.label != "OpenVPN");
        assert_eq!(campaign.baseline(), None, "there is nothing to compare");
    }

    #[test]
    fn the_cost_of_a_gbit_is_that_of_the_gateway_and_of_all() {
        // 1 s of the gateway and 2 s of the clients for 16 Gbit.
        let run = samples::run(Kind::Vpnd, 2, 1, 2_000_000_000);
        let (gateway, all) = run.seconds_per_gbit().unwrap();
        assert!((gateway - 1.0 / 32.0).abs() < 1e-9 && (all - 3.0 / 32.0).abs() < 1e-9, "{gateway} {all}");
        let mut plain = samples::run(Kind::None, 2, 1, 1_000);
        plain.cpu.as_mut().unwrap().gateway = 0.0;
        assert_eq!(plain.limit_percent("1".parse().unwrap()), None, "it has no processes to limit");
    }

    #[test]
    fn a_request_without_an_answer_took_longer_than_any_with_one() {
        // The answered requests took 1 to 88 ms.
        let mut delays = Delays::default();
        (1..=88).for_each(|ms| delays.record(ms * 1_000_000));
        let found = |lost_percent: f64| {
            let mut campaign = samples::campaign();
            let run = &mut campaign.runs[0];
            let round_trip = delays.summary().filter(|_| lost_percent < 100.0);
            run.probe = Some(Figures { lost_percent: Some(lost_percent), round_trip, ..Figures::default() });
            let (label, case) = (run.label.clone(), case(run.clients));
            let table = campaign.observations();
            PERCENTILES.map(|(quantity, _)| {
                let ms = (table.values(&label, &case, quantity)[0] / 1e3).round();
                (ms, table.is_bound(&label, &case, quantity))
            })
        };
        assert_eq!(found(0.0), [(44.0, false), (88.0, false)]);
        assert_eq!(found(12.0), [(50.0, false), (1_000.0, true)], "12 of 100 were lost");
        assert_eq!((found(51.0), found(100.0)), ([(1_000.0, true); 2], [(1_000.0, true); 2]));
    }

    #[test]
    fn a_round_that_lost_most_requests_is_the_worst_and_not_absent() {
        let mut campaign = samples::campaign();
        let probe = campaign.runs[0].probe.as_mut().unwrap();
        probe.lost_percent = Some(60.0);
        let (label, case) = (campaign.runs[0].label.clone(), case(campaign.runs[0].clients));
        let table = campaign.observations();
        assert_eq!(table.values(&label, &case, ROUND_TRIP_50), [1e6, 2_000.0, 2_000.0]);
        let first = campaign.labels().into_iter().find(|other| *other != label).unwrap();
        let better = Some((Spread::of(&[0.1; 5]).unwrap(), Spread::of(&[1.0; 5]).unwrap()));
        let judged = |pair| table.judged(pair, &case, ROUND_TRIP_50, better);
        assert_eq!(judged((&label, &first)), None, "not shorter than another's");
        assert_eq!(judged((&first, &label)), Some(true));
    }

    #[test]
    fn an_attempt_that_another_stands_for_is_listed_and_does_not_count() {
        let mut campaign = samples::campaign();
        campaign.runs[0].superseded = true;
        campaign.runs[0].disturbance = Some("others used 30 %".into());
        let table = campaign.observations();
        let label = &campaign.runs[0].label;
        let case = case(campaign.runs[0].clients);
        assert_eq!(table.values(label, &case, GOODPUT).len(), 2);
        assert_eq!(table.broken_values(label, &case, GOODPUT).len(), 1);
        let text = csv([(&table, [String::new(), String::new()])]);
        assert!(text.contains("attempt rejected: others used 30 %"));
    }
}
