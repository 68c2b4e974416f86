//! Where an inner packet goes: to another client, to the TUN device, or nowhere.
//!
//! This is apart from the sessions so that it can be read while the session of a packet is
//! borrowed. That session is looked up once; of the one at the other end of a packet between
//! clients nothing is read here but its [`Principal`] and its [`Flows`].

use core::net::IpAddr;
use std::sync::Arc;

use super::{DropReason, Role, SessionSpec, Slot};
use crate::flows::{Flows, Opener, known};
use crate::policy::{Destination, Policy, Principal, Verdict};
use crate::route::{RouteTable, RouteTaken};
use crate::time::Time;
use vpnd_packet::Packet;

use super::session::Session;

/// Where an inner packet goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextHop {
    /// The TUN device.
    Tun,
    /// Another client.
    Client(Slot),
    /// None: its sender is sent to another web site.
    Redirect,
    /// None: its sender is to know that at once.
    Refuse,
}

/// Whether a packet's flow is to be remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opens(pub(super) bool);

/// The tables that decide about inner packets, beside their own session.
#[derive(Debug)]
pub(super) struct Forwarding {
    pub(super) role: Role,
    pub(super) policy: Arc<Policy>,
    routes: RouteTable<Slot>,
    /// By the slots' indexes.
    members: Vec<Option<Member>>,
}

/// The facts about a session that policy needs.
#[derive(Debug)]
struct Member {
    slot: Slot,
    principal: Arc<Principal>,
    flows: Arc<Flows>,
}

impl Forwarding {
    /// Without sessions. The seed keys the route table's hashes.
    pub(super) fn new(role: Role, policy: Arc<Policy>, hash_seed: u64) -> Self {
        Self { role, policy, routes: RouteTable::new(hash_seed), members: Vec::new() }
    }

    /// At a gateway: the session that `address` belongs to.
    #[inline]
    pub(super) fn session_of(&self, address: IpAddr) -> Option<Slot> {
        self.routes.lookup(address)
    }

    /// Adds a session. The one that was in its slot has been removed.
    ///
    /// # Errors
    /// If another session has one of its addresses: that one keeps all of its routes, and nothing
    /// is added.
    pub(super) fn insert(&mut self, spec: &SessionSpec, principal: Arc<Principal>) -> Result<(), RouteTaken> {
        if self.role == Role::Gateway {
            for (added, address) in spec.addresses.iter().enumerate() {
                if let Err(taken) = self.routes.insert(*address, spec.slot) {
                    for address in &spec.addresses[..added] {
                        self.routes.remove(*address);
                    }
                    return Err(taken);
                }
            }
        }
        let index = spec.slot.index as usize;
        if self.members.len() <= index {
            self.members.resize_with(index + 1, || None);
        }
        self.members[index] = Some(Member { slot: spec.slot, principal, flows: Arc::clone(&spec.flows) });
        Ok(())
    }

    /// Changes the principal of a session.
    pub(super) fn set_principal(&mut self, slot: Slot, principal: Arc<Principal>) {
        let entry = self.members.get_mut(slot.index as usize).and_then(Option::as_mut);
        if let Some(member) = entry.filter(|member| member.slot == slot) {
            member.principal = principal;
        }
    }

    /// Removes a session.
    pub(super) fn remove(&mut self, session: &Session) {
        if let Some(entry) = self.members.get_mut(session.slot.index as usize) {
            entry.take_if(|member| member.slot == session.slot);
        }
        for address in &session.addresses {
            self.routes.remove(*address);
        }
    }

    /// At a gateway: where a packet of `source` goes, if policy allows.
    #[inline]
    pub(super) fn next_hop(
        &self,
        now: Time,
        source: &Session,
        packet: &Packet<'_>,
    ) -> Result<NextHop, DropReason> {
        let (next_hop, decision) = match self.routes.lookup(packet.dst()) {
            None => {
                let known = known(now, (&source.flows, Opener::Client), (&source.flows, Opener::Campus));
                let decision = self.policy.decide(&source.principal, Destination::Campus, packet, &known);
                (NextHop::Tun, decision)
            }
            Some(to) => {
                let target = self.member(to).ok_or(DropReason::NoSession)?;
                let known = known(now, (&source.flows, Opener::Client), (&target.flows, Opener::Client));
                let destination = Destination::Client(&target.principal);
                (NextHop::Client(to), self.policy.decide(&source.principal, destination, packet, &known))
            }
        };
        if decision.verdict == Verdict::Deny {
            return self.denied(&source.principal, packet);
        }
        if decision.opens {
            source.flows.enter(now, Opener::Client, packet);
        }
        source.flows.note_passed(now, Opener::Client, packet);
        Ok(next_hop)
    }

    #[cold]
    fn denied(&self, from: &Principal, packet: &Packet<'_>) -> Result<NextHop, DropReason> {
        if self.policy.redirects(from, packet) {
            Ok(NextHop::Redirect)
        } else if self.policy.refuses(from, packet) {
            Ok(NextHop::Refuse)
        } else {
            Err(DropReason::Policy)
        }
    }

    /// At a gateway: whether a packet of the TUN device may go to this session and opens a flow.
    #[inline]
    pub(super) fn admit_from_campus(
        &self,
        now: Time,
        to: &Session,
        packet: &Packet<'_>,
    ) -> Result<Opens, DropReason> {
        let known = known(now, (&to.flows, Opener::Campus), (&to.flows, Opener::Client));
        let decision = self.policy.decide_from_campus(&to.principal, packet, &known);
        match decision.verdict {
            Verdict::Allow => {
                // Here and not with the flow: while a first fragment waits for its turn, the others
                // are asked about.
                to.flows.note_passed(now, Opener::Campus, packet);
                Ok(Opens(decision.opens))
            }
            Verdict::Deny => Err(DropReason::Policy),
        }
    }

    #[inline]
    fn member(&self, slot: Slot) -> Option<&Member> {
        self.members.get(slot.index as usize)?.as_ref().filter(|member| member.slot == slot)
    }
}
