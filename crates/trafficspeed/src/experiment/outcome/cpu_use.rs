//! The CPU time of a measurement, and how much of the machine it had for itself.

use serde::{Deserialize, Serialize};

use crate::observe::HostCpu;

/// CPU seconds within the measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuUse {
    /// CPU time of the gateway's VPN processes.
    pub gateway: f64,
    /// How often the threads of the gateway's VPN processes went to sleep, and so had to be woken.
    pub gateway_wakes: u64,
    /// CPU time of all clients' VPN processes.
    pub clients: f64,
    /// Times that their threads had to be woken. The sender pays for that.
    pub client_wakes: u64,
    pub generators: f64,
    /// The generators' ends apart: of the hosts that connect, and of those that listen.
    pub generator_ends: [f64; 2],
    /// CPU time of processes that have nothing to do with the measurement.
    pub foreign: f64,
    /// CPU time of the whole machine, by kind.
    pub host: HostCpu,
    /// The window between the two readings, in seconds.
    pub seconds: f64,
}

/// A measurement that lost more of the machine than this to the hypervisor, in percent, was
/// disturbed …
pub const MOST_STEAL_PERCENT: f64 = 5.0;
/// … and one that lost more than this to processes without a part in it.
pub const MOST_FOREIGN_PERCENT: f64 = 10.0;

/// The most of the machine's CPU time in percent, of several measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Taken {
    /// See [`CpuUse::steal_percent`].
    pub steal: Option<f64>,
    /// See [`CpuUse::foreign_percent`].
    pub others: Option<f64>,
}

impl Taken {
    /// Whether others took too much for a difference to be claimed.
    pub fn is_disturbed(self) -> bool {
        self.steal.is_some_and(|percent| percent > MOST_STEAL_PERCENT)
            || self.others.is_some_and(|percent| percent > MOST_FOREIGN_PERCENT)
    }

    /// The sum of both.
    pub fn sum(self) -> f64 {
        self.steal.unwrap_or_default() + self.others.unwrap_or_default()
    }

    pub fn most<'a>(uses: impl IntoIterator<Item = &'a CpuUse>) -> Self {
        uses.into_iter().fold(Self::default(), Self::with)
    }

    /// The most of these measurements and of one more.
    #[must_use]
    pub fn with(self, used: &CpuUse) -> Self {
        let most = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(f64::max);
        Self {
            steal: most(self.steal, used.steal_percent()),
            others: most(self.others, used.foreign_percent()),
        }
    }
}

impl CpuUse {
    /// The share of the machine's CPU time that went to other tenants, in percent.
    pub fn steal_percent(&self) -> Option<f64> {
        self.percent(self.host.steal)
    }

    /// The share of the machine's CPU time that processes without a part in the measurement used,
    /// in percent.
    pub fn foreign_percent(&self) -> Option<f64> {
        self.percent(self.foreign)
    }

    /// The share of the machine's CPU time that was used, in percent.
    pub fn busy_percent(&self) -> Option<f64> {
        self.percent(self.host.busy())
    }

    fn percent(&self, seconds: f64) -> Option<f64> {
        // A rounding error of the sums makes no more of it than there is.
        (self.host.total() > 0.0).then(|| (100.0 * seconds / self.host.total()).min(100.0))
    }
}
