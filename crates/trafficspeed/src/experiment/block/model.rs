//! The throughput that the waiting and the work for a block predict, in bytes per second.
//!
//! The first two are the original's. They take a write to cost two round trips without overlap, as
//! iSCSI's does (command, ready to transfer, data, status). Ours costs one: the data go with the
//! command. So the same model is also given with the round trips of our protocol, and with the time
//! that the disk takes to have the block.

use serde::{Deserialize, Serialize};

/// Measured on this host, in bytes per second and seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    /// Everything below encryption: many large plain blocks in progress, at the smallest delay.
    pub lower: f64,
    /// Sealing on one core, with the cipher of the sealed blocks: from the cases of OP-n
    /// themselves.
    pub encrypt: f64,
    /// Opening on one core, likewise.
    pub decrypt: f64,
    /// Writing one block and syncing it, mean.
    pub commit_seconds: f64,
}

impl Parameters {
    /// The original's formula without overlap: block / (2·RTT + block/lower + block/encrypt +
    /// block/decrypt).
    pub fn without_overlap(&self, block: f64, rtt: f64) -> f64 {
        block / (2.0 * rtt + block / self.lower + block / self.encrypt + block / self.decrypt)
    }

    /// The original's formula for two blocks in progress: block / (RTT + block/lower +
    /// block/encrypt).
    pub fn two_in_progress(&self, block: f64, rtt: f64) -> f64 {
        block / (rtt + block / self.lower + block / self.encrypt)
    }

    /// Our protocol with `ahead` blocks in progress: that many for each round trip and its work,
    /// but no more than the slowest stage carries.
    pub fn one_round_trip(&self, block: f64, rtt: f64, ahead: u32) -> f64 {
        let work = block / self.lower + block / self.encrypt + block / self.decrypt + self.commit_seconds;
        let waiting = f64::from(ahead) * block / (rtt + work);
        waiting.min(self.lower).min(self.encrypt).min(self.decrypt)
    }
}

#[cfg(test)]
mod tests {
    use super::super::original::{ENCRYPT, LOWER, MODEL_16_MS};
    use super::*;

    #[test]
    fn the_originals_parameters_reproduce_its_predictions() {
        let parameters = Parameters {
            lower: LOWER * 1e6,
            encrypt: ENCRYPT * 1e6,
            decrypt: ENCRYPT * 1e6,
            commit_seconds: 0.0,
        };
        for (block, [without, _, two, _]) in MODEL_16_MS {
            let near = |value: f64, printed: f64| {
                assert!((value / 1e6 / printed - 1.0).abs() < 0.07, "{block}: {value} {printed}");
            };
            near(parameters.without_overlap(f64::from(block), 0.032), without);
            near(parameters.two_in_progress(f64::from(block), 0.032), two);
        }
    }

    #[test]
    fn blocks_in_progress_multiply_until_a_stage_is_full() {
        let parameters = Parameters { lower: 1e9, encrypt: 5e9, decrypt: 5e9, commit_seconds: 0.0 };
        let one = parameters.one_round_trip(1e4, 0.1, 1);
        assert!((parameters.one_round_trip(1e4, 0.1, 8) / one - 8.0).abs() < 1e-9);
        assert_eq!(parameters.one_round_trip(1e9, 0.0001, 8), 1e9);
    }
}
