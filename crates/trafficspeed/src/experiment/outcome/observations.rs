//! The table of experiment 1: what each system carried with each number of clients, and what that
//! cost.

use super::{Campaign, Run, Taken};
use crate::experiment::quantities::of_cpu;
use crate::lab::cpu_limit::CpuLimit;
use crate::observation::{Measured, Observations, Quantity};

pub const GOODPUT: Quantity = Quantity::rate("goodput");
pub const COMMUNICATION: Quantity = Quantity::rate("communication");
pub const STREAM_FAIRNESS: Quantity = Quantity::new("fairness of connections", "");
pub const PAIR_FAIRNESS: Quantity = Quantity::new("fairness of pairs", "");
/// Of the gateway's VPN processes, and of all VPN processes.
pub const GATEWAY_COST: Quantity = Quantity::new("gateway CPU per Gbit", "s");
pub const VPN_COST: Quantity = Quantity::new("VPN CPU per Gbit", "s");
pub const PER_GATEWAY_SECOND: Quantity = Quantity::new("goodput per gateway CPU second", "Gbit");
/// What the gateway's VPN processes used of their CPU limit.
pub const LIMIT_USED: Quantity = Quantity::new("CPU limit used", "%");

/// The name of a number of clients.
pub fn case(clients: u32) -> String {
    format!("{clients} clients")
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
        }
        table
    }

    fn observed(&self, run: &Run) -> Vec<(Quantity, Option<f64>)> {
        if run.pairs.is_empty() {
            return Vec::new();
        }
        let (gateway_cost, cost) = run.seconds_per_gbit().unzip();
        let limit_used = self.environment.gateway_cpu.and_then(|limit| run.limit_percent(limit));
        let mut all = vec![
            (GOODPUT, Some(run.goodput())),
            (COMMUNICATION, Some(run.communication())),
            (STREAM_FAIRNESS, run.stream_fairness()),
            (PAIR_FAIRNESS, run.pair_fairness()),
            (GATEWAY_COST, gateway_cost),
            (VPN_COST, cost),
            (PER_GATEWAY_SECOND, run.gbit_per_gateway_second()),
            (LIMIT_USED, limit_used),
        ];
        all.extend(of_cpu(run.cpu.as_ref()));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::outcome::samples;
    use crate::observation::csv;

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
