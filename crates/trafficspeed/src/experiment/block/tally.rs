//! From what both ends of a connection say to one case of the report, and to the parameters of the
//! model.
//!
//! It does not know whether the ends stood in a lab or on real hosts.

use super::model::Parameters;
use super::outcome::{Case, Way};
use crate::load::block::content::Verified;
use crate::load::block::target::Received;
use crate::load::block::writer::Wrote;
use crate::load::block::{Blocks, Protection};

/// The blocks at the target.
#[derive(Debug)]
pub struct Side<'a> {
    /// By the target's own account.
    pub received: &'a Received,
    /// By its file or device.
    pub verified: Verified,
    /// CPU time of the VPN's processes on its side, as far as they carried the blocks.
    pub vpn_cpu_seconds: f64,
}

/// Bytes of acknowledged blocks per second; absent if too few were answered.
pub fn rate(blocks: &Blocks, wrote: &Wrote) -> Option<f64> {
    wrote.blocks_per_second.map(|rate| rate * f64::from(blocks.block_bytes))
}

impl Case {
    /// The case of a one-way delay in ms, a way of writing and a repetition.
    pub fn measured(
        (delay_ms, way, repeat): (f64, Way, u32),
        blocks: &Blocks,
        wrote: &Wrote,
        side: &Side<'_>,
    ) -> Self {
        let Side { received, verified, vpn_cpu_seconds } = side;
        let cpu_each = (received.cpu_ns as f64 / 1e9 + vpn_cpu_seconds) / received.written.max(1) as f64;
        let wrong = || {
            format!(
                "{} places of the target do not hold the block that was acknowledged there",
                verified.wrong
            )
        };
        Self {
            delay_ms,
            block_bytes: blocks.block_bytes,
            way,
            repeat,
            bytes_per_second: rate(blocks, wrote),
            target_cpu_percent: wrote.blocks_per_second.map(|rate| 100.0 * rate * cpu_each),
            acknowledged: wrote.acknowledged,
            verified: verified.right,
            ends_cpu_seconds: Some([wrote.cpu_ns, received.cpu_ns].map(|ns| ns as f64 / 1e9)),
            cpu: None,
            blocks_per_sync: received.acknowledged as f64 / received.syncs.max(1) as f64,
            problem: (verified.wrong > 0)
                .then(wrong)
                .or_else(|| wrote.fault.clone())
                .or_else(|| received.fault.clone()),
        }
    }
}

/// The times of the stages, over all cases.
#[derive(Debug, Default)]
pub struct Work {
    /// The rate of the host without encryption and without waiting, bytes per second.
    pub lower: f64,
    sealed_bytes: f64,
    seal_seconds: f64,
    opened_bytes: f64,
    open_seconds: f64,
    write_seconds: f64,
    written: f64,
    sync_seconds: f64,
    syncs: f64,
}

impl Work {
    /// Whether [`Work::lower`] is known.
    pub fn is_calibrated(&self) -> bool {
        self.lower > 0.0
    }

    pub fn add(&mut self, blocks: &Blocks, wrote: &Wrote, received: &Received) {
        let bytes = |count: u64| count as f64 * f64::from(blocks.block_bytes);
        if blocks.protection == Protection::Sealed {
            self.sealed_bytes += bytes(wrote.sent);
            self.seal_seconds += wrote.seal_ns as f64 / 1e9;
            self.opened_bytes += bytes(received.written);
            self.open_seconds += received.open_ns as f64 / 1e9;
        }
        self.written += received.written as f64;
        self.write_seconds += received.write_ns as f64 / 1e9;
        self.syncs += received.syncs as f64;
        self.sync_seconds += received.sync_ns as f64 / 1e9;
    }

    pub fn parameters(&self) -> Parameters {
        let mean = |part: f64, count: f64| if count > 0.0 { part / count } else { 0.0 };
        Parameters {
            lower: self.lower,
            encrypt: mean(self.sealed_bytes, self.seal_seconds),
            decrypt: mean(self.opened_bytes, self.open_seconds),
            commit_seconds: mean(self.write_seconds, self.written) + mean(self.sync_seconds, self.syncs),
        }
    }
}
