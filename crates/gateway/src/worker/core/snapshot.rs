//! Reports of the shards: traffic for the core, and the gateway's state for administrators.

use std::collections::BTreeMap;

use vpnd_proto::gateway::SessionStatus;
use vpnd_proto::plane::Counters;

use super::drain::DrainState;
use super::{CoreTask, Ended};
use crate::worker::wireguard::WireGuard;
use vpnd_ipc::admin::status::RefusedDevice;
use vpnd_shard::{PollCounts, TunWrites};
use vpnd_sys::udp::UdpOffloads;

/// The state of the gateway at one moment.
pub(crate) struct CoreSnapshot {
    pub sessions: Vec<SessionStatus>,
    /// The names of their access profiles, in the same order.
    pub profiles: Vec<Option<String>>,
    pub counters: Counters,
    pub ended: Ended,
    pub udp: Vec<UdpOffloads>,
    pub tun: Vec<TunWrites>,
    pub poll: PollCounts,
    pub drain: Option<DrainState>,
    /// Handshakes of WireGuard by their outcome.
    pub wireguard: BTreeMap<String, u64>,
    /// Its devices that got no session lately.
    pub refused_devices: Vec<RefusedDevice>,
}

impl CoreTask {
    /// Adds up the shards' traffic since the last report: only of sessions that were in use.
    pub(super) async fn collect_activity(&mut self) {
        for report in self.shards.report().await {
            for (slot, activity) in report.activities {
                self.handle_activity(slot, activity);
            }
        }
        self.registry.note_late_addresses();
    }

    pub(super) async fn snapshot(&mut self) -> CoreSnapshot {
        let mut counters = Counters::default();
        let (mut udp, mut tun, mut poll) = (Vec::new(), Vec::new(), PollCounts::default());
        for report in self.shards.report().await {
            counters.merge(&report.counters);
            udp.push(report.udp);
            tun.push(report.tun);
            poll = poll + report.poll;
            for (slot, activity) in report.activities {
                self.handle_activity(slot, activity);
            }
        }
        let drain = self.drain_state();
        let stock = self.wireguard.as_ref();
        let wireguard = stock.map(WireGuard::counts).unwrap_or_default();
        let refused_devices = stock.map(WireGuard::refused_devices).unwrap_or_default();
        let sessions: Vec<_> = self.gateway.sessions().collect();
        let profiles = self.registry.access().names_of(&sessions);
        let ended = self.endings.ended().clone();
        CoreSnapshot {
            sessions,
            profiles,
            counters,
            ended,
            udp,
            tun,
            poll,
            drain,
            wireguard,
            refused_devices,
        }
    }
}
