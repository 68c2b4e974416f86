//! Measuring between real hosts instead of in the lab, and serving those who do. The command that
//! takes these arguments says which of its others are about the lab and so exclude them.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::experiment::hosts::PairSpec;
use crate::experiment::hosts::host_pairs::HostPairsPlan;
use crate::load::block::place::PlaceOptions;

/// Real hosts instead of the lab.
#[derive(Clone, Debug, Args)]
pub struct HostsArgs {
    /// Two hosts, each CONTROL[:PORT][/DATA-ADDRESS], instead of a lab; the second one is the
    /// client; may be given again.
    #[arg(long = "pair", value_name = "HOSTA=HOSTB", requires = "token_file")]
    pub pairs: Vec<PairSpec>,
    /// The shared token (see `trafficspeed token`).
    #[arg(long, value_name = "FILE", requires = "pairs")]
    pub token_file: Option<PathBuf>,
    /// Name of the network between the hosts in the report.
    #[arg(long, default_value = "network between the hosts", requires = "pairs")]
    pub label: String,
}

impl HostsArgs {
    /// The pairs of hosts that meet; `None`: the lab is meant.
    pub fn host_pairs(&self) -> Option<HostPairsPlan> {
        let token_file = self.token_file.clone()?;
        let (pairs, label) = (self.pairs.clone(), self.label.clone());
        (!pairs.is_empty()).then_some(HostPairsPlan { pairs, label, token_file })
    }
}

/// Serving a coordinator.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The shared token (see `trafficspeed token`).
    #[arg(long, value_name = "FILE")]
    pub token_file: PathBuf,
    /// Where to wait for the coordinator.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:5206")]
    pub listen: SocketAddr,
    /// Let the coordinator write blocks here: a directory, for a file that is removed at the end,
    /// or a file or block device. Without it, nothing is written.
    #[arg(long, value_name = "PATH")]
    pub block_target: Option<PathBuf>,
    /// The contents of a file or device of --block-target may be destroyed.
    #[arg(long, requires = "block_target")]
    pub block_overwrite: bool,
    /// MiB of --block-target that may be written, again and again; taken on the disk when it
    /// starts.
    #[arg(long, value_name = "MIB", default_value_t = 64, requires = "block_target", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub block_space: u32,
}

impl ServeArgs {
    /// Where blocks may be written, and how many bytes.
    pub fn block_place(&self) -> Option<(PlaceOptions, u64)> {
        let (path, overwrite) = (self.block_target.clone(), self.block_overwrite);
        path.is_some().then(|| (PlaceOptions { path, overwrite }, u64::from(self.block_space) << 20))
    }
}
