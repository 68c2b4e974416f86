//! The gateway's state for administrators.

use std::collections::BTreeMap;

use vpnd_proto::gateway::SessionStatus;
use vpnd_proto::plane::{Activity, Counters, Slot};

use super::Ended;
use super::drain::DrainState;
use vpnd_ipc::admin::status::RefusedDevice;
use vpnd_shard::{PollCounts, Report, TunWrites};
use vpnd_sys::udp::UdpOffloads;

/// The state of the gateway at one moment.
pub(crate) struct CoreSnapshot {
    pub sessions: Vec<SessionStatus>,
    /// The names of their access profiles, in the same order.
    pub profiles: Vec<Option<String>>,
    pub ended: Ended,
    pub shards: ShardFigures,
    pub drain: Option<DrainState>,
    /// Handshakes of WireGuard by their outcome.
    pub wireguard: BTreeMap<String, u64>,
    /// Its devices that got no session lately.
    pub refused_devices: Vec<RefusedDevice>,
}

/// The figures of all shards.
#[derive(Default)]
pub(crate) struct ShardFigures {
    pub counters: Counters,
    pub udp: Vec<UdpOffloads>,
    pub tun: Vec<TunWrites>,
    pub poll: PollCounts,
}

impl ShardFigures {
    /// Adds those of one more shard. Returns the traffic over it.
    pub(super) fn add(&mut self, report: Report) -> Vec<(Slot, Activity)> {
        self.counters.merge(&report.counters);
        self.udp.push(report.udp);
        self.tun.push(report.tun);
        self.poll = self.poll + report.poll;
        report.activities
    }
}
