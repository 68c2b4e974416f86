//! The costs of the stages, summed over what passed.
//!
//! TCP streams go from a client to a host behind the gateway. What passes for a Gbit is counted in
//! the run that the sum is compared with. It predicts no other run: how often the ends sleep and
//! acknowledge follows from the speed that would be predicted.

use serde::{Deserialize, Serialize};

use super::costs::{Cost, End, Kind};
use super::counts::Counts;

/// The name of sealing and opening together: they would be removed together.
pub const CIPHER: &str = "cipher (seal and open)";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    pub stage: String,
    pub end: End,
    pub kind: Kind,
    /// CPU seconds for a Gbit of payload.
    pub seconds: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sum {
    /// The counts that the costs are multiplied by.
    pub counts: Counts,
    pub parts: Vec<Part>,
}

/// CPU time outside the VPN's processes while such a load is carried, and the share of the machine
/// in use.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beside {
    /// CPU seconds of the generators for a Gbit.
    pub generators: f64,
    /// CPU time of kernel threads and interrupts that are charged to no process.
    pub kernel: f64,
    /// The share of the available CPU time that was used.
    pub in_use: f64,
}

impl Sum {
    /// Sums the costs of `suite` over `counts`.
    pub fn make(costs: &[Cost], suite: &str, counts: Counts) -> Self {
        let applicable = costs.iter().filter(|cost| cost.suite.as_deref().is_none_or(|own| own == suite));
        let parts = applicable.map(|cost| Part {
            stage: cost.stage.clone(),
            end: cost.end,
            kind: cost.kind,
            seconds: cost.ns(&counts) / 1e9,
        });
        Self { counts, parts: parts.collect() }
    }

    /// CPU seconds of one end's VPN processes for a Gbit.
    pub fn end(&self, end: End) -> f64 {
        self.parts.iter().filter(|part| part.end == end).map(|part| part.seconds).sum()
    }

    /// Those of stages of one kind, at both ends.
    pub fn kind(&self, kind: Kind) -> f64 {
        self.parts.iter().filter(|part| part.kind == kind).map(|part| part.seconds).sum()
    }

    /// CPU seconds of both ends for a Gbit.
    pub fn seconds_per_gbit(&self) -> f64 {
        self.parts.iter().map(|part| part.seconds).sum()
    }

    /// The share of all CPU time that is saved without each stage, the largest first; sealing and
    /// opening as one.
    pub fn savings(&self, beside: Beside) -> Vec<Saving> {
        let whole = self.seconds_per_gbit() + beside.generators + beside.kernel;
        let saving = |stage: String, seconds: f64| Saving { stage, share: seconds / whole };
        let mut savings: Vec<Saving> = self
            .parts
            .iter()
            .filter(|part| part.kind != Kind::Cipher)
            .map(|part| saving(format!("{} ({})", part.stage, part.end.name()), part.seconds))
            .collect();
        let cipher = self.kind(Kind::Cipher);
        if cipher > 0.0 {
            savings.push(saving(CIPHER.into(), cipher));
        }
        savings.sort_by(|a, b| b.share.total_cmp(&a.share));
        savings
    }

    /// The cost of each stage that a rate needs. `unexplained` is what was measured beyond the sum,
    /// so that what is said here starts from what was measured.
    pub fn target(&self, bits_per_second: f64, cpus: f64, beside: Beside, unexplained: f64) -> Target {
        let budget = cpus * beside.in_use * 1e9 / bits_per_second;
        let fixed = beside.generators + beside.kernel;
        let own = self.seconds_per_gbit() + unexplained;
        let needs = self.parts.iter().map(|part| {
            let alone = part.seconds - (own + fixed - budget);
            Need {
                stage: part.stage.clone(),
                end: part.end,
                now: part.seconds,
                all_alike: part.seconds * ((budget - fixed) / own).clamp(0.0, 1.0),
                alone: (alone > 0.0).then(|| alone.min(part.seconds)),
            }
        });
        let now = own + fixed;
        Target {
            bits_per_second,
            budget,
            now,
            fixed,
            unexplained,
            reached: now <= budget,
            needs: needs.collect(),
        }
    }
}

/// The saving without a stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saving {
    pub stage: String,
    /// Share of the CPU time of everything that the load needs.
    pub share: f64,
}

/// The answer for one rate, in CPU seconds for a Gbit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    pub bits_per_second: f64,
    /// The most that everything together may take.
    pub budget: f64,
    /// The present need, as measured if it was.
    pub now: f64,
    /// The part that is not the VPN's: generators and the rest of the kernel.
    pub fixed: f64,
    /// Measured beyond the sum of the stages; negative if they sum to more.
    pub unexplained: f64,
    /// The rate is reached as it is.
    pub reached: bool,
    pub needs: Vec<Need>,
}

/// The cost that one stage must reach, in CPU seconds for a Gbit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Need {
    pub stage: String,
    pub end: End,
    pub now: f64,
    /// If all stages of the VPN get cheaper by the same factor.
    pub all_alike: f64,
    /// If the others stay as they are; `None` if even nothing would not be enough.
    pub alone: Option<f64>,
}

/// The model of 2001: nanoseconds for a packet of `blocks` blocks of 64 bits through the crypto
/// board. `transfer` is the time of one block over the bus, `cipher` of one block through 3DES,
/// `hash` of 512 bits through SHA-1. Kasai, Watanabe, Nakano (Hitachi), 2001; valid while `cipher >
/// 4 transfer` and `hash > 16 transfer`.
pub fn board_ns(blocks: f64, transfer: f64, cipher: f64, hash: f64) -> f64 {
    blocks * (4.0 * transfer + cipher + hash / 8.0) + 26.0 * transfer
}

#[cfg(test)]
mod tests {
    use super::super::counts::Unit;
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    fn cost(stage: &str, end: End, kind: Kind, suite: Option<&str>, terms: &[(Unit, f64)]) -> Cost {
        let (stage, suite, terms) = (stage.into(), suite.map(str::to_owned), terms.to_vec());
        Cost { stage, end, kind, suite, terms, spread: 0.0, worst: 0.0, sizes: 3, runs: 3 }
    }

    /// A Gbit of 125,000 packets in 5,000 super-packets.
    fn counts() -> Counts {
        Counts { bytes: 125e6, datagrams: 125_000.0, reads: 5000.0, writes: 10_000.0, ..Counts::default() }
    }

    fn sum(suite: &str) -> Sum {
        let costs = [
            cost("read", End::Client, Kind::Kernel, None, &[(Unit::Reads, 4000.0), (Unit::Bytes, 0.16)]),
            cost("write", End::Gateway, Kind::Kernel, None, &[(Unit::Writes, 3000.0)]),
            cost("seal", End::Client, Kind::Cipher, Some("aes"), &[(Unit::Datagrams, 160.0)]),
            cost("open", End::Gateway, Kind::Cipher, Some("aes"), &[(Unit::Datagrams, 160.0)]),
            cost("seal", End::Client, Kind::Cipher, Some("chacha"), &[(Unit::Datagrams, 9999.0)]),
        ];
        Sum::make(&costs, suite, counts())
    }

    const BESIDE: Beside = Beside { generators: 0.05, kernel: 0.01, in_use: 1.0 };

    #[test]
    fn costs_times_counts_are_summed_for_the_suite_alone() {
        let made = sum("aes");
        // 5,000 reads of 4 µs and 125 MB at 0.16 ns; 10,000 writes of 3 µs; 125,000 packets of 160
        // ns at each end.
        assert!(near(made.end(End::Client), 0.02 + 0.02 + 0.02) && near(made.end(End::Gateway), 0.03 + 0.02));
        assert!(near(made.seconds_per_gbit(), 0.11) && near(sum("none").seconds_per_gbit(), 0.07));
    }

    #[test]
    fn the_bottleneck_is_what_saves_most_and_both_halves_of_a_cipher_go_together() {
        let savings = sum("aes").savings(BESIDE);
        // Reading costs as much as the cipher at both ends, each alone less than writing.
        let share_of =
            |name: &str| savings.iter().find(|saving| saving.stage == name).map(|saving| saving.share);
        assert!(
            near(share_of(CIPHER).unwrap(), 0.04 / 0.17)
                && near(share_of("write (gateway)").unwrap(), 0.03 / 0.17)
        );
        assert!(savings.windows(2).all(|pair| pair[0].share >= pair[1].share));
        let without = sum("none").savings(BESIDE);
        assert_eq!(without[0].stage, "read (client)");
        assert!(without.iter().all(|saving| saving.stage != CIPHER));
    }

    #[test]
    fn a_target_starts_from_what_was_measured() {
        let made = sum("aes");
        // Measured: 0.20 in all, of which 0.03 beyond the sum: 10 Gbit/s on two cores as it is.
        let reached = made.target(10e9, 2.0, BESIDE, 0.03);
        assert!(reached.reached && near(reached.now, 0.2) && near(reached.budget, 0.2), "{reached:?}");
        assert!(reached.needs.iter().all(|need| near(need.now, need.all_alike)), "{reached:?}");
        let twice = made.target(20e9, 2.0, BESIDE, 0.03);
        assert!(!twice.reached);
        // 0.10 in all leaves 0.04 to what takes 0.14 now.
        assert!(near(twice.needs[0].all_alike, 0.04 * 0.04 / 0.14) && twice.needs[0].alone.is_none());
        let little = made.target(10e9, 1.99, BESIDE, 0.03);
        assert!(near(little.needs[0].alone.unwrap(), 0.039), "{little:?}");
    }

    #[test]
    fn the_originals_model_gives_the_originals_answer() {
        // 100 Mbit/s is 640 ns for 64 bits; with a transfer of 30 ns and hash and cipher as 162 to
        // 36, 332.8 ns are left.
        let cipher = 332.8;
        let block = board_ns(1.0, 30.0, cipher, cipher * 162.0 / 36.0) - 26.0 * 30.0;
        assert!((block - 640.0).abs() < 1e-9, "{block}");
    }
}
