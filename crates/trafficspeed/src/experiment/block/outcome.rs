//! The results of the block experiment as plain data, and the means that its tables show.

use serde::{Deserialize, Serialize};

use super::Writes;
use super::model::Parameters;
use crate::experiment::environment::Environment;
use crate::experiment::hosts::host_pairs::HostEnd;
use crate::load::block::Protection;
use crate::system::SystemInfo;

/// How blocks are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Without a VPN and without encryption, waiting for each answer.
    Plain,
    /// Through the tunnel, waiting for each answer.
    Tunnel,
    /// Without a VPN, sealed above TCP, with this many in progress.
    Ahead(u32),
}

impl Way {
    /// Whether the blocks are sealed above TCP.
    pub fn protection(self) -> Protection {
        if matches!(self, Self::Ahead(_)) { Protection::Sealed } else { Protection::Plain }
    }

    pub fn ahead(self) -> u32 {
        if let Self::Ahead(ahead) = self { ahead } else { 1 }
    }

    /// Its name in the report.
    pub fn name(self) -> String {
        match self {
            Self::Plain => "plain".into(),
            Self::Tunnel => "tunnel".into(),
            Self::Ahead(ahead) => format!("OP-{ahead}"),
        }
    }
}

/// One case: what was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    /// One-way delay asked for, ms.
    pub delay_ms: f64,
    /// Bytes of a block.
    pub block_bytes: u32,
    pub way: Way,
    /// Bytes of acknowledged blocks per second.
    pub bytes_per_second: Option<f64>,
    /// CPU use at the target in percent of one core: its process and, with the tunnel, the VPN's on that side.
    pub target_cpu_percent: Option<f64>,
    /// Acknowledged blocks of the whole connection.
    pub acknowledged: u64,
    /// Places of the target that were compared with what was acknowledged.
    pub verified: u64,
    /// Blocks answered by one sync, mean.
    pub blocks_per_sync: f64,
    /// Why there is no figure, or it is not to be trusted.
    pub problem: Option<String>,
}

/// Everything that came out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BlockReport {
    pub environment: Environment,
    /// The machines of the writer and of the target, if they are real hosts.
    #[serde(default)]
    pub hosts: Vec<HostEnd>,
    /// The name of the system with the tunnel.
    pub system: String,
    /// Its own account.
    pub facts: SystemInfo,
    pub target: String,
    /// The meaning of an answer.
    pub synced: bool,
    /// Counted seconds of each case.
    pub seconds: f64,
    /// Largest TCP window, bytes; 0: whatever the hosts have.
    pub window_bytes: u32,
    /// Delays in ms, block sizes and blocks in progress, as asked for.
    pub asked: (Vec<f64>, Vec<u32>, Vec<u32>),
    pub cases: Vec<Case>,
    /// The model's parameters, measured here.
    pub parameters: Parameters,
    /// The accounts of the emulated links, delay by delay.
    pub links: Vec<String>,
    /// Labs that could not be had.
    pub problems: Vec<String>,
    /// The user ended it early.
    pub interrupted: bool,
}

impl BlockReport {
    /// A report of `writes` in which nothing is measured yet.
    pub fn begin(writes: &Writes, system: String, target: String, delays_ms: Vec<f64>) -> Self {
        Self {
            environment: Environment::read(None),
            hosts: Vec::new(),
            system,
            facts: SystemInfo::default(),
            target,
            synced: writes.sync,
            seconds: writes.duration.as_secs_f64(),
            window_bytes: 0,
            asked: (delays_ms, writes.sizes.clone(), writes.ahead.clone()),
            cases: Vec::new(),
            parameters: Parameters::default(),
            links: Vec::new(),
            problems: Vec::new(),
            interrupted: false,
        }
    }

    /// The case of a delay, block size and way, if it has a figure to be trusted.
    pub fn rate(&self, delay_ms: f64, block_bytes: u32, way: Way) -> Option<f64> {
        self.find(delay_ms, block_bytes, way)?.bytes_per_second
    }

    fn find(&self, delay_ms: f64, block_bytes: u32, way: Way) -> Option<&Case> {
        let same =
            |case: &&Case| case.delay_ms == delay_ms && case.block_bytes == block_bytes && case.way == way;
        self.cases.iter().find(same).filter(|case| case.problem.is_none())
    }

    /// Throughput as a multiple of that through the tunnel, mean over block sizes.
    pub fn ratio(&self, delay_ms: f64, way: Way) -> Option<f64> {
        let of =
            |&size: &u32| Some(self.rate(delay_ms, size, way)? / self.rate(delay_ms, size, Way::Tunnel)?);
        mean(self.asked.1.iter().filter_map(of))
    }

    /// Best throughput of any block size.
    pub fn peak(&self, delay_ms: f64, way: Way) -> Option<f64> {
        self.asked.1.iter().filter_map(|&size| self.rate(delay_ms, size, way)).reduce(f64::max)
    }

    /// CPU use at the target in percent of one core, mean over block sizes.
    pub fn cpu(&self, delay_ms: f64, way: Way) -> Option<f64> {
        mean(self.asked.1.iter().filter_map(|&size| self.find(delay_ms, size, way)?.target_cpu_percent))
    }

    /// Whether everything that was asked for was measured and is right.
    pub fn is_whole(&self) -> bool {
        let (delays, sizes, ahead) = &self.asked;
        let sound = |case: &Case| case.problem.is_none() && case.bytes_per_second.is_some();
        self.problems.is_empty()
            && !delays.is_empty()
            && self.cases.len() == delays.len() * sizes.len() * (ahead.len() + 2)
            && self.cases.iter().all(sound)
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    (count > 0.0).then(|| sum / count)
}
