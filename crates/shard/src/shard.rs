//! The state of a shard's thread: the two directions, between a TUN device and a tunnel.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use vpnd_proto::plane::{Command, Event, Plane, Role, Slot, WireGuardCommand};

use super::busy_poll::BusyPoll;
use super::devices::{DatagramSocket, PacketDevice};
use super::hand_off::HandOff;
use super::inbound::Inbound;
use super::marks::MarksLog;
use super::outbound::Outbound;
use super::tunnel::Tunnel;
use super::{Report, ShardMessage, now};
use vpnd_sys::tun::TunOffloads;

/// A shard. `inbound.rs` and `outbound.rs` have the steps of its two directions, `overload.rs`
/// those while it is behind.
pub(super) struct Shard<T, S> {
    pub(super) tun: T,
    pub(super) tunnel: Tunnel<S>,
    pub(super) hand_off: HandOff,
    pub(super) inbound: Inbound,
    pub(super) outbound: Outbound,
    pub(super) marks_log: MarksLog,
    pub(super) busy_poll: BusyPoll,
}

impl<T: PacketDevice, S: DatagramSocket> Shard<T, S> {
    /// A shard that passes nothing on and does not poll.
    pub(super) fn new(
        role: Role,
        plane: Plane,
        (tun_offloads, mtu): (TunOffloads, u16),
        tun: T,
        socket: S,
    ) -> Self {
        Self {
            tun,
            tunnel: Tunnel::new(role, plane, socket, mtu),
            hand_off: HandOff::default(),
            inbound: Inbound::new(tun_offloads),
            outbound: Outbound::new(),
            marks_log: MarksLog::default(),
            busy_poll: BusyPoll::new(Duration::ZERO),
        }
    }

    pub(super) fn handle(&mut self, message: ShardMessage) {
        match message {
            ShardMessage::Plane(command) => {
                let sealing = match &command {
                    Command::Install(spec) => Some(spec.slot),
                    Command::Reach { slot, .. } => Some(*slot),
                    Command::WireGuard(WireGuardCommand::Seal { slot, .. }) => Some(*slot),
                    _ => None,
                };
                if let Some(outgoing) = self.tunnel.plane.apply(command) {
                    self.tunnel.originate(now(), outgoing);
                }
                if let Some(slot) = sealing {
                    self.release(slot);
                }
            }
            ShardMessage::Barrier(done) => {
                // The caller may have given up waiting.
                let _ = done.send(());
            }
            ShardMessage::Mtu(mtu) => self.tunnel.mtu = mtu,
            ShardMessage::Report(reply) => {
                let _ = reply.send(self.report());
            }
        }
    }

    pub(super) fn report(&mut self) -> Report {
        Report {
            counters: self.tunnel.plane.counters().clone(),
            activities: self.tunnel.plane.take_activities(),
            udp: self.tunnel.socket.offloads(),
            tun: self.inbound.writes(),
            poll: self.busy_poll.counts(),
        }
    }

    /// Sends events to the control plane as far as it has room, and packets that waited for the
    /// cause of one.
    pub(super) fn report_events(&mut self, events: &mpsc::Sender<Event>) {
        while self.tunnel.plane.has_events() {
            match events.try_reserve() {
                Ok(room) => {
                    let Some(event) = self.poll_event() else { return };
                    room.send(event);
                }
                Err(TrySendError::Full(())) => return,
                // The control plane is gone only when the daemon ends.
                Err(TrySendError::Closed(())) => drop(self.poll_event()),
            }
        }
    }

    pub(super) fn poll_event(&mut self) -> Option<Event> {
        let event = self.tunnel.plane.poll_event()?;
        if let Event::Heard { slot, .. } = event {
            self.release(slot);
        }
        Some(event)
    }

    /// Sends the packets that waited for an epoch of this session.
    fn release(&mut self, slot: Slot) {
        let now = now();
        while let Some(packet) = self.tunnel.plane.poll_waiting(now, slot) {
            self.tunnel.send_waiting(now, slot, &packet, &self.tun);
        }
        self.tunnel.flush();
    }
}
