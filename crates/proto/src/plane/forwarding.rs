//! Where an inner packet goes: to another client, to the TUN device, or nowhere.
//!
//! This is apart from the sessions so that it can be read while the session of a packet is borrowed. That session is looked up
//! once; of the one at the other end of a packet between clients nothing is read here but its [`Principal`].

use core::net::IpAddr;
use std::sync::Arc;

use super::{DropReason, Role, SessionSpec, Slot};
use crate::packet::Packet;
use crate::policy::{Destination, Policy, Principal, Verdict};
use crate::route::RouteTable;

use super::session::Session;

/// Where an inner packet goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextHop {
    /// The TUN device.
    Tun,
    /// Another client.
    Client(Slot),
}

/// The tables that decide about inner packets, beside their own session.
#[derive(Debug)]
pub(super) struct Forwarding {
    pub(super) role: Role,
    pub(super) policy: Arc<Policy>,
    routes: RouteTable<Slot>,
    /// By the slots' indexes.
    principals: Vec<Option<(Slot, Arc<Principal>)>>,
}

impl Forwarding {
    /// Without sessions. The seed keys the route table's hashes.
    pub(super) fn new(role: Role, policy: Arc<Policy>, hash_seed: u64) -> Self {
        Self { role, policy, routes: RouteTable::new(hash_seed), principals: Vec::new() }
    }

    /// At a gateway: the session that `address` belongs to.
    #[inline]
    pub(super) fn session_of(&self, address: IpAddr) -> Option<Slot> {
        self.routes.lookup(address)
    }

    /// Adds a session. The one that was in its slot has been removed, as has any with one of its addresses.
    pub(super) fn insert(&mut self, spec: &SessionSpec, principal: Arc<Principal>) {
        let index = spec.slot.index as usize;
        if self.principals.len() <= index {
            self.principals.resize_with(index + 1, || None);
        }
        self.principals[index] = Some((spec.slot, principal));
        if self.role == Role::Gateway {
            for address in &spec.addresses {
                let before = self.routes.insert(*address, spec.slot);
                debug_assert!(before.is_none_or(|before| before == spec.slot), "{address} has two sessions");
            }
        }
    }

    /// Policy takes a session for somebody else from now on.
    pub(super) fn set_principal(&mut self, slot: Slot, principal: Arc<Principal>) {
        let entry = self.principals.get_mut(slot.index as usize).and_then(Option::as_mut);
        if let Some((_, current)) = entry.filter(|(owner, _)| *owner == slot) {
            *current = principal;
        }
    }

    /// Removes a session.
    pub(super) fn remove(&mut self, session: &Session) {
        if let Some(entry) = self.principals.get_mut(session.slot.index as usize) {
            entry.take_if(|(slot, _)| *slot == session.slot);
        }
        for address in &session.addresses {
            // Another session may have the address by now.
            if self.routes.exact(*address) == Some(session.slot) {
                self.routes.remove(*address);
            }
        }
    }

    /// At a gateway: where a packet of `source` goes, if policy allows.
    #[inline]
    pub(super) fn next_hop(&self, source: &Session, packet: &Packet<'_>) -> Result<NextHop, DropReason> {
        let Some(to) = self.routes.lookup(packet.dst()) else {
            return match self.policy.evaluate(&source.principal, Destination::Campus, packet) {
                Verdict::Allow => Ok(NextHop::Tun),
                Verdict::Deny => Err(DropReason::Policy),
            };
        };
        let target = self.principal(to).ok_or(DropReason::NoSession)?;
        match self.policy.evaluate(&source.principal, Destination::Client(target), packet) {
            Verdict::Allow => Ok(NextHop::Client(to)),
            Verdict::Deny => Err(DropReason::Policy),
        }
    }

    #[inline]
    fn principal(&self, slot: Slot) -> Option<&Principal> {
        let (owner, principal) = self.principals.get(slot.index as usize)?.as_ref()?;
        (*owner == slot).then_some(principal)
    }
}
