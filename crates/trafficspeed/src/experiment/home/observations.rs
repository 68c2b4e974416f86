//! The table of real paths: for each flow with all others and alone what it observed, for each
//! case what it cost.

use super::flow::{Case, Flow};
use super::results::{CaseResult, HomeCampaign, LinkCounts};
use crate::experiment::outcome::Taken;
use crate::experiment::quantities::{DELAY_50, DELAY_99, PAGE_50, RECEIVED, of_cpu, of_drops, of_load};
use crate::observation::{Measured, Observations, Quantity, Rounds};

/// The share of the link's rate in that direction that arrived, percent.
pub const LINK_SHARE: Quantity = Quantity::new("share of the link", "%");
/// Lost because it was asked for, and dropped at the queue, up and down.
pub const LINK_LOST: [Quantity; 2] = [link("link lost up"), link("link lost down")];
pub const QUEUE_DROPPED: [Quantity; 2] = [link("queue dropped up"), link("queue dropped down")];

const fn link(name: &'static str) -> Quantity {
    Quantity::new(name, "%").decimals(2).together(Rounds::Median)
}

/// The quantities by which systems are compared.
pub fn compared() -> Vec<(String, Quantity)> {
    let all = [
        (Flow::Download, &[RECEIVED][..]),
        (Flow::Upload, &[RECEIVED]),
        (Flow::VoiceDown, &[DELAY_50, DELAY_99]),
        (Flow::VoiceUp, &[DELAY_50, DELAY_99]),
        (Flow::Pages, &[PAGE_50]),
    ];
    let wanted = all.into_iter().flat_map(|(flow, quantities)| {
        quantities.iter().map(move |quantity| (flow.in_case(Case::AtOnce), *quantity))
    });
    wanted.collect()
}

impl HomeCampaign {
    pub fn observations(&self) -> Observations {
        let mut table = Observations::of_machine(self.environment.is_emulated());
        let congestion = self.settings.congestion.to_string();
        for run in &self.runs {
            table.name(&run.label, &congestion);
            let (system, congestion) = (run.label.as_str(), congestion.as_str());
            let key = Measured {
                system,
                congestion,
                case: "",
                round: run.repeat,
                problem: "",
                is_disturbed: false,
            };
            if let Some(problem) = &run.error {
                table.add(&Measured { problem, ..key }, []);
            }
            run.cases.iter().for_each(|found| self.add(&mut table, key, found));
        }
        table
    }

    fn add(&self, table: &mut Observations, key: Measured<'_>, found: &CaseResult) {
        let problem = found.problems.join("; ");
        let is_disturbed = Taken::most(&found.cpu).is_disturbed();
        let key = Measured { case: found.case.name(), problem: &problem, is_disturbed, ..key };
        if found.flows.is_empty() {
            return table.add(&key, []);
        }
        for (flow, figures) in &found.flows {
            let [up, down] = self.settings.rate;
            let rate = match flow {
                Flow::Download => down,
                Flow::Upload => up,
                _ => None,
            };
            let share = rate.map(|rate| 100.0 * figures.received_bits_per_second / rate as f64);
            let values = of_load(figures).into_iter().chain([(LINK_SHARE, share)]);
            table.add(&Measured { case: &flow.in_case(found.case), ..key }, values);
        }
        let sum = |drops: &[u64; 2]| drops.iter().sum();
        let of_link = |share: fn(LinkCounts) -> Option<f64>| found.link.map(share);
        let lost = LINK_LOST.into_iter().zip(of_link(LinkCounts::lost_percent));
        let dropped = QUEUE_DROPPED.into_iter().zip(of_link(LinkCounts::dropped_percent));
        let costs = of_cpu(found.cpu.as_ref()).into_iter().chain(lost).chain(dropped);
        let drops = of_drops(sum(&found.socket_drops), sum(&found.generator_drops));
        table.add(&key, costs.chain(drops));
    }
}
