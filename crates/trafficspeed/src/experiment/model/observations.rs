//! The table of the model: what each cipher's run took, round by round, and the sum of
//! its stages, which is of no round.

use super::Model;
use super::sum::Sum;
use crate::experiment::quantities::{OTHERS, STEAL};
use crate::observation::{AGAIN, Measured, Observations, Quantity};

/// The VPN's CPU time for a Gbit and throughput, as measured.
const MEASURED: [Quantity; 2] = [Quantity::new("VPN CPU per Gbit", "s"), Quantity::rate("throughput")];
/// The sum of the stages over what passed, and the share by which it is off.
const SUM: Quantity = Quantity::new("sum of stages", "s");
const ERROR: Quantity = Quantity::new("error of the sum", "");

impl Model {
    pub fn observations(&self) -> Observations {
        let mut table = Observations::of_machine(self.environment.is_emulated());
        let congestion = self.congestion.map_or_else(String::new, |congestion| congestion.to_string());
        let first = self.sums.iter().map(|one| (one.suite.clone(), one.case, &one.real, &one.error));
        let again = self
            .control
            .iter()
            .map(|again| (format!("{}{AGAIN}", again.suite), again.case, &again.real, &again.error));
        for (suite, case, real, error) in first.chain(again) {
            let case = format!("{} bytes, streams: {}", case.packet, case.streams);
            let problem = error.as_deref().unwrap_or_default();
            let (congestion, case) = (congestion.as_str(), case.as_str());
            let is_disturbed = real.as_ref().is_some_and(|real| real.taken.is_disturbed());
            let mut key = Measured { system: &suite, congestion, case, round: 1, problem, is_disturbed };
            let Some(real) = real else {
                table.add(&key, []);
                continue;
            };
            for (cpu, rate) in real.cpu_each.iter().zip(&real.each) {
                table.add(&key, MEASURED.into_iter().zip([Some(*cpu), Some(*rate)]));
                key.round += 1;
            }
            table
                .add(&Measured { round: 0, ..key }, [(STEAL, real.taken.steal), (OTHERS, real.taken.others)]);
        }
        for one in &self.sums {
            let case = format!("{} bytes, streams: {}", one.case.packet, one.case.streams);
            let (system, congestion) = (one.suite.as_str(), congestion.as_str());
            let key =
                Measured { system, congestion, case: &case, round: 0, problem: "", is_disturbed: false };
            table.add(&key, [(SUM, one.sum.as_ref().map(Sum::seconds_per_gbit)), (ERROR, one.off())]);
        }
        for row in &self.original {
            let case = format!("as the original, links of {} Mbit/s", row.link_bits_per_second / 1_000_000);
            let (system, problem) = (row.system.as_str(), row.error.as_deref().unwrap_or_default());
            let (congestion, is_disturbed) = (congestion.as_str(), row.taken.is_disturbed());
            let mut key = Measured { system, congestion, case: &case, round: 1, problem, is_disturbed };
            table.add(&key, []);
            for rate in &row.each {
                table.add(&key, [(MEASURED[1], Some(*rate))]);
                key.round += 1;
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::model::made_up;

    #[test]
    fn each_round_is_a_row_and_each_sum_has_its_error() {
        let table = made_up::model(&[0.05, -0.16]).observations();
        let case = "1408 bytes, streams: 1";
        for (suite, error) in [("none", 0.05), ("aes-256-gcm", -0.16)] {
            let found = table.values(suite, case, ERROR);
            assert!(found.len() == 1 && (found[0] - error).abs() < 1e-9, "{found:?}");
            assert_eq!(table.values(suite, case, MEASURED[1]), [1e9, 1.1e9, 1.2e9, 1.1e9, 1.1e9]);
        }
        assert_eq!(table.control("cubic", "", case, MEASURED[1]).map(|same| same.n), Some(5));
        assert_eq!(table.values("none", case, OTHERS), [2.5]);
    }
}
