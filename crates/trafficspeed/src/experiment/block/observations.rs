//! The table of block writes: what each way carried at each delay and block size, and what that
//! cost.

use super::{BlockReport, Case, Route, Way};
use crate::experiment::outcome::Taken;
use crate::experiment::quantities::of_cpu;
use crate::observation::{Measured, Observations, Quantity};
use crate::unit::significant;

pub const THROUGHPUT: Quantity = Quantity::new("throughput", "bytes/s");
const TARGET_CPU: Quantity = Quantity::new("CPU at the target", "%");
const ACKNOWLEDGED: Quantity = Quantity::count("blocks acknowledged");
const VERIFIED: Quantity = Quantity::count("blocks verified");
const PER_SYNC: Quantity = Quantity::new("blocks for each sync", "");
/// CPU time of both ends, and of the VPN's programs where they carried the blocks.
const ENDS_CPU: [Quantity; 2] = [Quantity::new("writer CPU", "s"), Quantity::new("target CPU", "s")];
const VPN_CPU: [Quantity; 2] =
    [Quantity::new("writer's VPN CPU", "s"), Quantity::new("gateway's VPN CPU", "s")];

impl BlockReport {
    pub fn observations(&self) -> Observations {
        let mut table = Observations::of_machine(self.environment.is_emulated());
        let (congestion, limits) = (self.congestion.to_string(), self.limits_in_words());
        for case in &self.cases {
            let name = format!("{limits}{} ms, {} bytes", case.delay_ms, case.block_bytes);
            let measured = Measured {
                system: &self.protected(case.way),
                congestion: &congestion,
                case: &name,
                round: case.repeat,
                problem: case.problem.as_deref().unwrap_or_default(),
                is_disturbed: Taken::most(&case.cpu).is_disturbed(),
            };
            table.add(&measured, observed(case));
        }
        table
    }

    /// A way with the cipher that protects its blocks, if one does.
    fn protected(&self, way: Way) -> String {
        match way.route {
            Route::Plain => way.name(),
            Route::Tunnel if self.facts.cipher.is_empty() => way.name(),
            Route::Tunnel => format!("{}, {}", way.name(), self.facts.cipher),
            Route::Sealed => format!("{}, {}", way.name(), self.sealing.name()),
        }
    }

    /// Other limits under which a case was measured.
    fn limits_in_words(&self) -> String {
        let rate = self.rate_bits.map(|bits| format!("link of {} Mbit/s, ", significant(bits as f64 / 1e6)));
        let cores = self.cores.map(|cores| format!("{} % of a core, ", significant(cores * 100.0)));
        let trips = self.ready_first.then(|| "two round trips, ".to_owned());
        [rate, cores, trips].into_iter().flatten().collect()
    }
}

fn observed(case: &Case) -> Vec<(Quantity, Option<f64>)> {
    if case.bytes_per_second.is_none() && case.problem.is_some() {
        return Vec::new();
    }
    let vpn = case.vpn_cpu_seconds().filter(|_| case.way.route == Route::Tunnel);
    let pair = |names: [Quantity; 2], seconds: Option<[f64; 2]>| {
        names.into_iter().zip([0, 1].map(|end| seconds.map(|seconds| seconds[end])))
    };
    let mut all = vec![
        (THROUGHPUT, case.bytes_per_second),
        (TARGET_CPU, case.target_cpu_percent),
        (ACKNOWLEDGED, Some(case.acknowledged as f64)),
        (VERIFIED, Some(case.verified as f64)),
        (PER_SYNC, Some(case.blocks_per_sync)),
    ];
    all.extend(pair(ENDS_CPU, case.ends_cpu_seconds).chain(pair(VPN_CPU, vpn)));
    all.extend(of_cpu(case.cpu.as_ref()));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::block::tests::{repeated, sample};
    use crate::load::block::seal::Sealing;
    use crate::observation::csv;

    #[test]
    fn each_case_has_cipher_limits_and_cpu_time() {
        let mut report = repeated(sample(), 3);
        (report.sealing, report.facts.cipher) = (Sealing::ChaCha20Poly1305, "aes-128-gcm".into());
        (report.ready_first, report.rate_bits) = (true, Some(100_000_000));
        let table = report.observations();
        let case = "link of 100 Mbit/s, two round trips, 0 ms, 8192 bytes";
        let seconds = |system: &str, quantity: Quantity| table.values(system, case, quantity);
        assert_eq!(seconds("tunnel, aes-128-gcm", THROUGHPUT), [81_920.0; 3]);
        assert_eq!(seconds("tunnel, aes-128-gcm", VPN_CPU[1]), [0.04; 3]);
        assert_eq!(seconds("OP-2, chacha20-poly1305", ENDS_CPU[0]), [0.01; 3]);
        assert_eq!((seconds("plain", ENDS_CPU[1]), seconds("plain", VPN_CPU[0])), (vec![0.02; 3], vec![]));
        report.cases[0].problem = Some("it \"broke\"".into());
        let text = csv([(&report.observations(), [String::new(), String::new()])]);
        assert!(text.contains(",\"it \"\"broke\"\"\",cubic,"), "{text}");
    }
}
