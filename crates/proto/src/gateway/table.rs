//! The gateway's sessions, found by slot, name, device, address or connection.
//!
//! INVARIANT: the five ways agree, and no two sessions have an address. Places are given out again,
//! each time with another generation.

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::control::UserName;
use crate::flows::Flows;
use crate::plane::{Slot, UserBuckets};
use crate::rate::Buckets;
use crate::session::{ConnectionId, DeviceId, SessionId};
use crate::time::Time;

use super::session::{Addresses, Session, SessionRecord};

/// One place of the table.
#[derive(Debug, Default)]
struct Place {
    generation: u32,
    session: Option<Box<Session>>,
}

/// All sessions.
#[derive(Debug, Default)]
pub(super) struct Table {
    places: Vec<Place>,
    free: Vec<u32>,
    by_id: BTreeMap<SessionId, Slot>,
    by_device: BTreeMap<(UserName, DeviceId), Slot>,
    by_address: BTreeMap<IpAddr, Slot>,
    by_connection: BTreeMap<ConnectionId, Slot>,
    /// Numbers of users' buckets: those that are free, and how many there are.
    free_users: Vec<u32>,
    users: u32,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Adds a session. If there is one of this name or device, or with one of its addresses, that
    /// one stays as it is, and nothing is added.
    pub(super) fn insert(
        &mut self,
        now: Time,
        shards: usize,
        record: SessionRecord,
        flows: Flows,
    ) -> Option<Slot> {
        let has_name = self.by_id(record.id).is_some();
        let has_device = self.by_device(&record.user, record.device).is_some();
        if has_name || has_device || self.by_address(record.addresses).is_some() {
            return None;
        }
        let user_buckets = self.user_buckets(now, shards, &record.user);
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            (self.places.len() - 1) as u32
        });
        let entry = &mut self.places[place as usize];
        let slot = Slot { index: place, generation: entry.generation };
        self.by_id.insert(record.id, slot);
        self.by_device.insert((record.user.clone(), record.device), slot);
        self.by_address.extend(record.addresses.iter().map(|address| (address, slot)));
        entry.session = Some(Box::new(Session::new(now, slot, shards, record, flows, user_buckets)));
        Some(slot)
    }

    /// The buckets that all sessions of the user share.
    fn user_buckets(&mut self, now: Time, shards: usize, user: &UserName) -> UserBuckets {
        if let Some(session) = self.of_user(user).next() {
            return session.user_buckets.clone();
        }
        let number = self.free_users.pop().unwrap_or_else(|| {
            self.users += 1;
            self.users - 1
        });
        UserBuckets { number, buckets: Arc::new(Buckets::new(now, shards)) }
    }

    pub(super) fn remove(&mut self, slot: Slot) -> Option<Box<Session>> {
        self.get(slot)?;
        let entry = self.places.get_mut(slot.index as usize)?;
        let session = entry.session.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(slot.index);
        self.by_id.remove(&session.record.id);
        self.by_device.remove(&(session.record.user.clone(), session.record.device));
        for address in session.record.addresses.iter() {
            self.by_address.remove(&address);
        }
        if self.of_user(&session.record.user).next().is_none() {
            self.free_users.push(session.user_buckets.number);
        }
        if let Some(connection) = session.connection {
            self.by_connection.remove(&connection);
        }
        Some(session)
    }

    pub(super) fn get(&self, slot: Slot) -> Option<&Session> {
        self.places.get(slot.index as usize)?.session.as_deref().filter(|session| session.slot == slot)
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut Session> {
        let session = self.places.get_mut(slot.index as usize)?.session.as_deref_mut();
        session.filter(|session| session.slot == slot)
    }

    pub(super) fn by_id(&self, id: SessionId) -> Option<Slot> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn by_device(&self, user: &UserName, device: DeviceId) -> Option<Slot> {
        self.by_device.get(&(user.clone(), device)).copied()
    }

    /// A session that has one of these addresses.
    pub(super) fn by_address(&self, addresses: Addresses) -> Option<Slot> {
        addresses.iter().find_map(|address| self.by_address.get(&address)).copied()
    }

    pub(super) fn by_connection(&self, connection: ConnectionId) -> Option<Slot> {
        self.by_connection.get(&connection).copied()
    }

    /// The sessions of one user.
    pub(super) fn of_user<'a>(&'a self, user: &'a UserName) -> impl Iterator<Item = &'a Session> {
        let from = (user.clone(), DeviceId([0; 16]));
        self.by_device
            .range(from..)
            .take_while(move |((name, _), _)| name == user)
            .filter_map(|(_, slot)| self.get(*slot))
    }

    /// All sessions, by place.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.places.iter().filter_map(|place| place.session.as_deref())
    }

    /// The slots of all sessions, by place.
    pub(super) fn slots(&self) -> Vec<Slot> {
        self.iter().map(|session| session.slot).collect()
    }

    /// Gives the session its connection and returns the one it had.
    pub(super) fn connect(&mut self, slot: Slot, connection: ConnectionId) -> Option<ConnectionId> {
        let before = self.get_mut(slot)?.connection.replace(connection);
        if let Some(before) = before {
            self.by_connection.remove(&before);
        }
        self.by_connection.insert(connection, slot);
        before
    }

    /// The connection is gone; returns whose it was.
    pub(super) fn disconnect(&mut self, connection: ConnectionId) -> Option<Slot> {
        let slot = self.by_connection.remove(&connection)?;
        if let Some(session) = self.get_mut(slot) {
            session.connection = None;
        }
        Some(slot)
    }
}
