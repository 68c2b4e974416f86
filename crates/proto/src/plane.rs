//! One shard's data plane: tables of indexes, sessions and routes, and what becomes of packets.
//!
//! Pure: bytes and time come in as arguments, packets are opened and sealed in the caller's
//! buffers. A gateway has one plane for each shard, a client too; nothing is shared between them.
//! Between the control plane and a plane there are only [`Command`]s one way and [`Event`]s the
//! other.
//!
//! Both directions have the same shape. A datagram: [`Plane::open`] looks its session up, opens it,
//! and parses and checks its packet, which [`Opened`] carries with the result. A packet from the
//! TUN device: [`Plane::route`] checks it, looks its session up and returns the [`Sender`] that
//! seals it. A packet between clients goes through both, with [`Plane::sender`] for the other
//! client.
//!
//! INVARIANTS: nothing changes before a datagram has proved authentic, but for counters of drops
//! and failed opens. Each packet leaves the plane, waits in it, or is counted in [`Counters`],
//! once.

mod command;
mod count;
mod forwarding;
mod halves;
mod hash;
mod limiter;
mod outgoing;
mod path;
mod receive;
mod reports;
mod session;
mod shared_path;
mod wireguard;

use core::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use minicbor::{Decode, Encode};

use crate::flows::Opener;
use crate::policy::Policy;
use crate::time::Time;
use crate::wire::Index;
use vpnd_packet::{Packet, Version};

pub use command::{
    Access, Activity, Command, EpochSpec, Event, GroupLimits, Heard, Limits, Progress, ReceiveSpec,
    SessionSpec, Slot, UserBuckets,
};
pub use count::{Counters, DropReason, Dropped};
use forwarding::{Forwarding, Opens};
use halves::MAX_JOINED;
pub use hash::IndexHasher;
use limiter::Shared;
pub use outgoing::Outgoing;
pub use receive::{Claim, DataHeader, Opened, Origin};
use reports::Reports;
pub use session::{NoSender, Outer, PacketQueue, Sealed, Sender};
use session::{Receivers, Session};
pub(crate) use shared_path::AVOID_BATCHES;
pub use shared_path::SharedPath;
pub use wireguard::WireGuardCommand;
use wireguard::WireGuardReceivers;

/// Where a peer is: its outer address, and the local address it talks to, of several perhaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub struct Endpoint {
    /// The peer's address and port.
    #[n(0)]
    pub remote: SocketAddr,
    /// The local address to answer from; `None` leaves it to the routing table.
    #[n(1)]
    pub local: Option<IpAddr>,
}

/// Which end of a tunnel a plane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Many sessions; sources are checked, packets are routed among clients and the TUN device.
    Gateway,
    /// One session; packets must be for one of its addresses.
    Client,
}

/// One shard's data plane.
#[derive(Debug)]
pub struct Plane {
    /// By the slots' indexes.
    sessions: Vec<Option<Box<Session>>>,
    receivers: Receivers,
    wireguard: WireGuardReceivers,
    forwarding: Forwarding,
    copies_dscp: bool,
    /// Rate limits that sessions share.
    shared: Shared,
    reports: Reports,
    /// Sessions in use since activities were taken last.
    used: Vec<Slot>,
    /// The packet that was joined last.
    joined: Box<[u8; MAX_JOINED]>,
}

impl Plane {
    /// A plane without sessions. `hash_seed` should be random: it keys the route table's hashes.
    #[must_use]
    pub fn new(role: Role, policy: Arc<Policy>, hash_seed: u64) -> Self {
        Self {
            sessions: Vec::new(),
            receivers: Receivers::default(),
            wireguard: WireGuardReceivers::default(),
            forwarding: Forwarding::new(role, policy, hash_seed),
            copies_dscp: false,
            shared: Shared::default(),
            reports: Reports::default(),
            used: Vec::new(),
            joined: Box::new([0; MAX_JOINED]),
        }
    }

    /// Whether the DSCP of packets is copied to the outer headers, in the epochs that are installed
    /// from now on. It is not by default: it shows the path which kind of traffic is inside.
    pub fn set_copies_dscp(&mut self, copies_dscp: bool) {
        self.copies_dscp = copies_dscp;
    }

    /// Carries out a command. Probes and keepalives come back as the [`Outgoing`] to send.
    pub fn apply(&mut self, command: Command) -> Option<Outgoing> {
        match command {
            Command::Open(spec) => self.open_session(spec),
            Command::Install(spec) => self.install(&spec),
            Command::Resume(progress) => self.resume(&progress),
            Command::Reach { slot, epoch, lane, endpoint } => {
                if let Some(session) = self.session_mut(slot) {
                    session.reach(epoch, lane, endpoint);
                }
            }
            Command::Probe { slot, id, size } => return Some(Outgoing::Probe { slot, id, size }),
            Command::PathProbe { slot, id, size, known } => {
                return Some(Outgoing::PathProbe { slot, id, size, known });
            }
            Command::ProbeByBatch { slot, id, size } => {
                return Some(Outgoing::Batch { slot, id, size, replies: false });
            }
            Command::BatchProbe { slot, id, size } => return Some(Outgoing::BatchProbe { slot, id, size }),
            Command::BatchesLost(slot) => return Some(Outgoing::BatchesLost(slot)),
            Command::AvoidBatches { slot, until } => {
                if let Some(session) = find(&mut self.sessions, slot) {
                    session.path.avoid_batches(until);
                }
            }
            Command::PathSize { slot, size } => self.set_path_size(slot, size),
            Command::Keepalive(slot) => return Some(Outgoing::Keepalive(slot)),
            Command::Retire { slot, epoch } => self.retire(slot, epoch),
            Command::Close(slot) => self.close_session(slot),
            Command::Access(access) => self.set_access(access),
            Command::Limit { slot, limits } => {
                if let Some(session) = find(&mut self.sessions, slot) {
                    session.limit(limits, &mut self.shared);
                }
            }
            Command::Groups(limits) => self.shared.set_groups(&limits),
            Command::WireGuard(command) => self.apply_wireguard(command),
        }
        None
    }

    /// The lane that seals a packet of the TUN device: that of its session, if it may go there.
    ///
    /// # Errors
    /// If the packet was dropped, or has to wait for an epoch.
    #[inline]
    pub fn route(&mut self, now: Time, packet: &Packet<'_>) -> Result<Sender<'_>, NoSender<'_>> {
        match self.forwarding.role {
            Role::Gateway => self.route_to_client(now, packet),
            Role::Client => self.route_to_gateway(now, packet),
        }
    }

    /// At a gateway: the session that a packet of the TUN device is for.
    ///
    /// # Errors
    /// The reason for which [`Plane::route`] would drop it now.
    pub fn recipient(&mut self, now: Time, packet: &Packet<'_>) -> Result<Slot, DropReason> {
        find_recipient(&mut self.sessions, &self.forwarding, now, packet).map(|(session, _)| session.slot)
    }

    /// The lane that seals for a session now.
    ///
    /// # Errors
    /// If the session is gone, or has no epoch that may seal: then one is requested, once.
    #[inline]
    pub fn sender(&mut self, now: Time, slot: Slot) -> Result<Sender<'_>, NoSender<'_>> {
        let Some(session) = find(&mut self.sessions, slot) else {
            return Err(NoSender::Dropped(self.reports.drop(DropReason::NoSession)));
        };
        session.sender(now, &mut self.used, &mut self.shared, &mut self.reports)
    }

    /// Writes and seals the reply to a probe, or a probe or keepalive of our own, into `datagram`.
    ///
    /// # Errors
    /// If it was dropped.
    pub fn originate(
        &mut self,
        now: Time,
        outgoing: Outgoing,
        datagram: &mut [u8],
    ) -> Result<Sealed, Dropped> {
        let mut sender = self.sender(now, outgoing.slot()).map_err(NoSender::give_up)?;
        sender.seal_outgoing(outgoing, datagram)
    }

    /// The next packet that waited for an epoch which is there now.
    pub fn poll_waiting(&mut self, now: Time, slot: Slot) -> Option<Box<[u8]>> {
        find(&mut self.sessions, slot).and_then(|session| session.poll_waiting(now))
    }

    /// The next event for the control plane, oldest first.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.reports.pop()
    }

    /// Whether [`Plane::poll_event`] has an event.
    #[inline]
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.reports.is_empty()
    }

    /// A session's traffic over this shard since [`Plane::take_activities`].
    #[must_use]
    pub fn activity(&self, slot: Slot) -> Option<Activity> {
        let session = self.sessions.get(slot.index as usize)?.as_deref()?;
        (session.slot == slot).then_some(session.activity)
    }

    /// The traffic of the sessions in use since the last call; those that were not cost nothing.
    pub fn take_activities(&mut self) -> Vec<(Slot, Activity)> {
        let sessions = &mut self.sessions;
        let taken = self.used.drain(..).filter_map(|slot| {
            let session = find(sessions, slot)?;
            session.in_use = false;
            Some((slot, core::mem::take(&mut session.activity)))
        });
        taken.collect()
    }

    /// How far the lanes of all epochs have come. After this the caller must not seal or open.
    #[must_use]
    pub fn progress(&self) -> Vec<Progress> {
        self.sessions.iter().flatten().flat_map(|session| session.progress(&self.receivers)).collect()
    }

    /// The highest counter that was opened for each index of stock WireGuard clients.
    pub fn opened_by_wireguard(&self) -> impl Iterator<Item = (Index, u64)> {
        self.wireguard.iter().filter_map(|(index, receiver)| Some((*index, receiver.highest()?)))
    }

    /// Drops by reason.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.reports.counters
    }

    /// The counters, to count packets that the caller had to drop.
    pub fn counters_mut(&mut self) -> &mut Counters {
        &mut self.reports.counters
    }

    /// At a gateway: its own inner address of an IP version, from which it sends ICMP errors.
    #[must_use]
    pub fn own_address(&self, version: Version) -> Option<IpAddr> {
        self.forwarding.policy.own_address(version)
    }

    /// At a gateway: the response of a web site that sends clients to another one.
    #[must_use]
    pub fn redirect(&self) -> Option<Arc<[u8]>> {
        self.forwarding.policy.redirect().cloned()
    }

    #[inline]
    fn route_to_client(&mut self, now: Time, packet: &Packet<'_>) -> Result<Sender<'_>, NoSender<'_>> {
        let Self { sessions, forwarding, reports, used, shared, .. } = self;
        match find_recipient(sessions, forwarding, now, packet) {
            Ok((session, Opens(opens))) => {
                if opens {
                    session.flows.enter(now, Opener::Campus, packet);
                }
                session.sender(now, used, shared, reports)
            }
            Err(reason) => Err(NoSender::Dropped(reports.drop(reason))),
        }
    }

    /// A client has one session at most.
    #[inline]
    fn route_to_gateway(&mut self, now: Time, packet: &Packet<'_>) -> Result<Sender<'_>, NoSender<'_>> {
        let Some(session) = self.sessions.iter_mut().flatten().next() else {
            return Err(NoSender::Dropped(self.reports.drop(DropReason::NoSession)));
        };
        if packet.is_from_one_link() {
            return Err(NoSender::Dropped(self.reports.drop(DropReason::ForeignSource)));
        }
        session.sender(now, &mut self.used, &mut self.shared, &mut self.reports)
    }

    fn open_session(&mut self, spec: SessionSpec) {
        let index = spec.slot.index as usize;
        if self.sessions.len() <= index {
            self.sessions.resize_with(index + 1, || None);
        }
        if let Some(old) = self.sessions[index].take() {
            self.forget(&old);
        }
        let principal = Arc::new(spec.principal.clone());
        if self.forwarding.insert(&spec, Arc::clone(&principal)).is_err() {
            self.reports.drop(DropReason::AddressTaken);
            return;
        }
        self.sessions[index] = Some(Box::new(Session::new(spec, principal, &mut self.shared)));
    }

    fn set_access(&mut self, access: Access) {
        if let Some(policy) = access.policy {
            self.forwarding.policy = policy;
        }
        for (slot, principal) in access.principals.iter() {
            let Some(session) = find(&mut self.sessions, *slot) else { continue };
            session.principal = Arc::new(principal.clone());
            self.forwarding.set_principal(*slot, Arc::clone(&session.principal));
        }
    }

    fn install(&mut self, spec: &EpochSpec) {
        let Some(session) = find(&mut self.sessions, spec.slot) else { return };
        let Ok(receivers) = session.install(self.forwarding.role, spec, self.copies_dscp) else {
            self.reports.drop(DropReason::BadEpoch);
            return;
        };
        for (index, receiver) in receivers {
            self.receivers.insert(index, receiver);
        }
    }

    fn resume(&mut self, progress: &Progress) {
        if let Some(session) = find(&mut self.sessions, progress.slot) {
            session.resume(progress);
        }
        for heard in &progress.heard {
            if let Some(receiver) = self.receivers.get_mut(&heard.index) {
                receiver.resume(progress, heard);
            }
        }
    }

    fn retire(&mut self, slot: Slot, epoch: u32) {
        let Some(session) = find(&mut self.sessions, slot) else { return };
        let indexes = session.retire(epoch);
        let alone = session.halves.forget(&indexes);
        self.reports.counters.count(DropReason::HalfAlone, alone);
        self.stop_receiving(indexes);
    }

    fn close_session(&mut self, slot: Slot) {
        let Some(entry) = self.sessions.get_mut(slot.index as usize) else { return };
        if let Some(session) = entry.take_if(|session| session.slot == slot) {
            self.forget(&session);
        }
    }

    fn forget(&mut self, session: &Session) {
        self.reports.counters.count(DropReason::HalfAlone, session.halves.len());
        self.reports.counters.count(DropReason::NoSession, session.waiting());
        self.stop_receiving(session.indexes());
        for index in &session.wireguard_indexes {
            self.wireguard.remove(index);
        }
        self.forwarding.remove(session);
    }

    fn stop_receiving(&mut self, indexes: impl IntoIterator<Item = Index>) {
        for index in indexes {
            self.receivers.remove(&index);
        }
    }

    fn session_mut(&mut self, slot: Slot) -> Option<&mut Session> {
        find(&mut self.sessions, slot)
    }
}

/// A session by its slot; a free function so that other fields of the plane stay usable.
#[inline]
fn find(sessions: &mut [Option<Box<Session>>], slot: Slot) -> Option<&mut Session> {
    sessions.get_mut(slot.index as usize)?.as_deref_mut().filter(|session| session.slot == slot)
}

/// At a gateway: the session that a packet of the TUN device is for, if it may go there.
#[inline]
fn find_recipient<'a>(
    sessions: &'a mut [Option<Box<Session>>],
    forwarding: &Forwarding,
    now: Time,
    packet: &Packet<'_>,
) -> Result<(&'a mut Session, Opens), DropReason> {
    let slot = forwarding.session_of(packet.dst()).ok_or(DropReason::NoRoute)?;
    let session = find(sessions, slot).ok_or(DropReason::NoSession)?;
    let opens = forwarding.admit_from_campus(now, session, packet)?;
    Ok((session, opens))
}

#[cfg(test)]
mod tests;
