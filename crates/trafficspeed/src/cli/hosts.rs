//! Measuring between real hosts instead of in the lab. The command that takes these arguments says which of its
//! others are about the lab and so exclude them.

use std::path::PathBuf;

use clap::Args;

use crate::experiment::hosts::PairSpec;
use crate::experiment::hosts::host_pairs::HostPairsPlan;

/// Real hosts instead of the lab.
#[derive(Clone, Debug, Args)]
pub struct HostsArgs {
    /// Two hosts, each CONTROL[:PORT][/DATA-ADDRESS], instead of the lab; the second one is the client; may be given
    /// again.
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
    /// Who meets; `None`: the lab is meant.
    pub fn host_pairs(&self) -> Option<HostPairsPlan> {
        let token_file = self.token_file.clone()?;
        let (pairs, label) = (self.pairs.clone(), self.label.clone());
        (!pairs.is_empty()).then_some(HostPairsPlan { pairs, label, token_file })
    }
}
