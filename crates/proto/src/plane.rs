//! One shard's data plane: tables of receive indexes, sessions and routes, and what happens to each packet.
//!
//! Pure: bytes and time come in as arguments, packets are opened and sealed in the caller's buffers. A gateway has one
//! plane for each shard, a client too; nothing is shared between them. The control plane speaks to a plane only by
//! [`Command`]s and hears only [`Event`]s.
//!
//! The way of a datagram: [`Plane::open`] checks and opens it and says where its packet goes; the caller hands it to the
//! TUN device, or seals it again for another client with [`Plane::forward`]. The way of a packet from the TUN device:
//! [`Plane::route`] finds its session, [`Plane::sender`] the lane that seals it.
//!
//! INVARIANT: nothing changes before a datagram has proved authentic, but for counters of drops and failed opens.

mod command;
mod count;
mod events;
mod halves;
mod hash;
mod outgoing;
mod path;
mod receive;
mod session;

use core::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use minicbor::{Decode, Encode};

use crate::packet::{Packet, Version};
use crate::policy::{Policy, Verdict};
use crate::route::RouteTable;
use crate::time::Time;
use crate::wire::HEADER_LEN;

pub use command::{Activity, Command, EpochSpec, Event, Heard, Progress, ReceiveSpec, SessionSpec, Slot};
pub use count::{Counters, DropReason};
use events::Events;
use halves::MAX_JOINED;
pub use hash::IndexHasher;
pub use outgoing::Outgoing;
pub use receive::Opened;
pub use session::{Outer, Sealed, Sender};
use session::{Receivers, Session};

/// Where a peer is: its outer address, and the local address it talks to (a gateway may have several).
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
    /// One session; packets must be for one of its own addresses.
    Client,
}

/// One shard's data plane.
#[derive(Debug)]
pub struct Plane {
    role: Role,
    sessions: Vec<Option<Box<Session>>>,
    receivers: Receivers,
    routes: RouteTable<Slot>,
    policy: Arc<Policy>,
    copies_dscp: bool,
    events: Events,
    /// Sessions in use since activities were taken last.
    used: Vec<Slot>,
    counters: Counters,
    /// The packet that was joined last.
    joined: Box<[u8; MAX_JOINED]>,
}

impl Plane {
    /// A plane without sessions. `hash_seed` should be random: it keys the route table's hashes.
    #[must_use]
    pub fn new(role: Role, policy: Arc<Policy>, hash_seed: u64) -> Self {
        Self {
            role,
            sessions: Vec::new(),
            receivers: Receivers::default(),
            routes: RouteTable::new(hash_seed),
            policy,
            copies_dscp: false,
            events: Events::default(),
            used: Vec::new(),
            counters: Counters::default(),
            joined: Box::new([0; MAX_JOINED]),
        }
    }

    /// Whether the DSCP of packets is copied to the outer headers, in the epochs that are installed from now on. It is not unless
    /// this says so: it shows the path which kind of traffic is inside.
    pub fn set_copies_dscp(&mut self, copies_dscp: bool) {
        self.copies_dscp = copies_dscp;
    }

    /// Carries out an order of the control plane. Probes and keepalives are not orders to the tables: they come back as
    /// the [`Outgoing`] to send.
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
            Command::PathSize { slot, size } => self.set_path_size(slot, size),
            Command::Keepalive(slot) => return Some(Outgoing::Keepalive(slot)),
            Command::Retire { slot, epoch } => self.retire(slot, epoch),
            Command::Close(slot) => self.close_session(slot),
            Command::Policy(policy) => self.policy = policy,
        }
        None
    }

    /// Finds the session that a packet of the TUN device is for.
    ///
    /// # Errors
    /// Why there is none; the drop is counted already.
    #[inline]
    pub fn route(&mut self, packet: &Packet<'_>) -> Result<Slot, DropReason> {
        let routed = self.try_route(packet);
        if let Err(reason) = routed {
            self.counters.drop(reason);
        }
        routed
    }

    /// The lane that seals for a session now.
    ///
    /// # Errors
    /// If the session is gone, or has no epoch that may seal (which asks the control plane for one, once). Counted only
    /// if the caller gives the packet up: see [`Plane::wait`].
    #[inline]
    pub fn sender(&mut self, now: Time, slot: Slot) -> Result<Sender<'_>, DropReason> {
        let session = find(&mut self.sessions, slot).ok_or(DropReason::NoSession)?;
        if session.can_seal(now) {
            note_use(&mut self.used, session);
            return Ok(session.sender(now, &mut self.events));
        }
        session.want_epoch(&mut self.events);
        Err(DropReason::NoEpoch)
    }

    /// Seals a packet of one client for another, in the buffer in which it was opened.
    ///
    /// # Errors
    /// Why it was dropped; the drop is counted already, but for two reasons that leave the packet untouched.
    /// [`DropReason::TooLong`]: the target's suite needs more room than the datagram has, and the caller can seal it elsewhere.
    /// [`DropReason::TooBig`]: the path to the target does not carry it, and the caller answers or cuts it.
    #[inline]
    pub fn forward(
        &mut self,
        now: Time,
        to: Slot,
        datagram: &mut [u8],
        len: usize,
    ) -> Result<Sealed, DropReason> {
        let sealed = match self.sender(now, to) {
            Ok(sender) if sender.exceeds_path(len) => return Err(DropReason::TooBig),
            Ok(sender) if sender.datagram_len(len) > datagram.len() => return Err(DropReason::TooLong),
            Ok(mut sender) => {
                let packet = &mut datagram[HEADER_LEN..HEADER_LEN + len];
                sender.suit(packet).and_then(|()| sender.seal(datagram, len))
            }
            Err(DropReason::NoEpoch) => {
                return self.wait(to, &datagram[HEADER_LEN..HEADER_LEN + len]).and(Err(DropReason::NoEpoch));
            }
            Err(reason) => Err(reason),
        };
        if let Err(reason) = sealed {
            self.counters.drop(reason);
        }
        sealed
    }

    /// Writes and seals the reply to a probe, or a probe or keepalive of our own, into `datagram`.
    ///
    /// # Errors
    /// Why it was dropped; the drop is counted already.
    pub fn originate(
        &mut self,
        now: Time,
        what: Outgoing,
        datagram: &mut [u8],
    ) -> Result<Sealed, DropReason> {
        let sealed = match what.write(&mut datagram[HEADER_LEN..]) {
            Some(len) => {
                self.sender(now, what.slot()).and_then(|mut sender| sender.seal_inband(datagram, len))
            }
            None => Err(DropReason::TooLong),
        };
        if let Err(reason) = sealed {
            self.counters.drop(reason);
        }
        sealed
    }

    /// Keeps a packet until its session has an epoch; the oldest make room.
    ///
    /// # Errors
    /// If it is too long to keep or the session is gone; the drop is counted already.
    pub fn wait(&mut self, slot: Slot, packet: &[u8]) -> Result<(), DropReason> {
        let dropped = match find(&mut self.sessions, slot) {
            Some(session) => session.wait(packet),
            None => Some(DropReason::NoSession),
        };
        match dropped {
            Some(reason) => {
                self.counters.drop(reason);
                Err(reason)
            }
            None => Ok(()),
        }
    }

    /// The next packet that waited for an epoch which is there now.
    pub fn poll_waiting(&mut self, now: Time, slot: Slot) -> Option<Box<[u8]>> {
        find(&mut self.sessions, slot).and_then(|session| session.poll_waiting(now))
    }

    /// What the control plane must hear, oldest first.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.counters.add(DropReason::EventQueue, self.events.take_refused());
        self.events.pop()
    }

    /// Whether [`Plane::poll_event`] has something.
    #[inline]
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// What this shard saw of a session's traffic since [`Plane::take_activities`].
    #[must_use]
    pub fn activity(&self, slot: Slot) -> Option<Activity> {
        let session = self.sessions.get(slot.place as usize)?.as_deref()?;
        (session.slot == slot).then_some(session.activity)
    }

    /// What the sessions did that were in use since the last call; those that were not cost nothing.
    pub fn take_activities(&mut self) -> Vec<(Slot, Activity)> {
        let sessions = &mut self.sessions;
        let taken = self.used.drain(..).filter_map(|slot| {
            let session = find(sessions, slot)?;
            session.in_use = false;
            Some((slot, core::mem::take(&mut session.activity)))
        });
        taken.collect()
    }

    /// How far the lanes of all epochs have come. Whoever passes this on seals and opens no more.
    #[must_use]
    pub fn progress(&self) -> Vec<Progress> {
        self.sessions.iter().flatten().flat_map(|session| session.progress(&self.receivers)).collect()
    }

    /// What was dropped, and why.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// At a gateway: its own inner address of an IP version, from which it sends ICMP errors as a router.
    #[must_use]
    pub fn own_address(&self, version: Version) -> Option<IpAddr> {
        self.policy.own_address(version)
    }

    /// Counts a packet that the caller had to drop.
    pub fn count_drop(&mut self, reason: DropReason) {
        self.counters.drop(reason);
    }

    #[inline]
    fn try_route(&self, packet: &Packet<'_>) -> Result<Slot, DropReason> {
        match self.role {
            Role::Gateway => {
                let slot = self.routes.lookup(packet.dst()).ok_or(DropReason::NoRoute)?;
                let target = self.session(slot).ok_or(DropReason::NoSession)?;
                match self.policy.evaluate_from_campus(&target.principal, packet) {
                    Verdict::Allow => Ok(slot),
                    Verdict::Deny => Err(DropReason::Policy),
                }
            }
            Role::Client => {
                let session = self.sessions.iter().flatten().next().ok_or(DropReason::NoSession)?;
                if packet.is_from_one_link() {
                    return Err(DropReason::ForeignSource);
                }
                Ok(session.slot)
            }
        }
    }

    fn open_session(&mut self, spec: SessionSpec) {
        let place = spec.slot.place as usize;
        if self.sessions.len() <= place {
            self.sessions.resize_with(place + 1, || None);
        }
        if let Some(old) = self.sessions[place].take() {
            self.forget(&old);
        }
        if self.role == Role::Gateway {
            for address in &spec.addresses {
                self.routes.insert(*address, spec.slot);
            }
        }
        self.sessions[place] = Some(Box::new(Session::new(spec)));
    }

    fn install(&mut self, spec: &EpochSpec) {
        let Some(session) = find(&mut self.sessions, spec.slot) else { return };
        let Ok(receivers) = session.install(self.role, spec, self.copies_dscp) else {
            self.counters.drop(DropReason::BadEpoch);
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
        self.counters.add(DropReason::HalfAlone, session.halves.forget(&indexes) as u64);
        for index in indexes {
            self.receivers.remove(&index);
        }
    }

    fn close_session(&mut self, slot: Slot) {
        let Some(place) = self.sessions.get_mut(slot.place as usize) else { return };
        if let Some(session) = place.take_if(|session| session.slot == slot) {
            self.forget(&session);
        }
    }

    fn forget(&mut self, session: &Session) {
        for index in session.indexes() {
            self.receivers.remove(&index);
        }
        if self.role == Role::Gateway {
            for address in &session.addresses {
                // Another session may have the address by now.
                if self.routes.lookup(address.addr()) == Some(session.slot) {
                    self.routes.remove(*address);
                }
            }
        }
    }

    fn session(&self, slot: Slot) -> Option<&Session> {
        self.sessions.get(slot.place as usize)?.as_deref().filter(|session| session.slot == slot)
    }

    fn session_mut(&mut self, slot: Slot) -> Option<&mut Session> {
        find(&mut self.sessions, slot)
    }
}

/// A session by its slot; a free function so that other fields of the plane stay usable.
#[inline]
fn find(sessions: &mut [Option<Box<Session>>], slot: Slot) -> Option<&mut Session> {
    sessions.get_mut(slot.place as usize)?.as_deref_mut().filter(|session| session.slot == slot)
}

/// Its activity is to be told, once.
#[inline]
fn note_use(used: &mut Vec<Slot>, session: &mut Session) {
    if !core::mem::replace(&mut session.in_use, true) {
        used.push(session.slot);
    }
}

#[cfg(test)]
mod tests;
