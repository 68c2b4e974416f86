//! The table of peers: by number, by key, and by the time at which a timer of theirs is due.
//!
//! INVARIANT: a key is that of one peer at most, and finds it until the peer is removed. No number
//! is given twice.

use std::collections::{BTreeMap, HashMap};

use vpnd_proto::time::Time;
use vpnd_proto::timer::TimerQueue;
use vpnd_proto::wire::Index;

use super::PeerId;
use super::session::Sessions;
use crate::cookie::CookieJar;
use crate::endpoint::Roaming;
use crate::key::PublicKey;
use crate::mac::Mac1Key;
use crate::timers::Timers;

/// One peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) key: PublicKey,
    pub(super) mac1: Mac1Key,
    pub(super) shard: usize,
    pub(super) roaming: Roaming,
    pub(super) cookies: CookieJar,
    pub(super) timers: Timers,
    pub(super) sessions: Sessions,
    pub(super) begun: Option<Begun>,
    /// The process with the static key is asked for a first message.
    pub(super) is_asked: bool,
}

/// The last first message to a peer, until it is answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub(super) index: Index,
    /// Responses that were passed on without asking the gate.
    pub(super) responses: u8,
}

/// All peers.
#[derive(Debug, Default)]
pub(super) struct Table {
    peers: BTreeMap<PeerId, Peer>,
    by_key: HashMap<PublicKey, PeerId>,
    /// The next of each peer's timers, as [`Table::set_timer`] has found it.
    timers: TimerQueue<PeerId>,
    next: u64,
}

impl Table {
    /// Adds a peer whose key no other has, and sets its timer. The `shards` take turns.
    pub(super) fn insert(
        &mut self,
        key: PublicKey,
        shards: usize,
        roaming: Roaming,
        timers: Timers,
    ) -> PeerId {
        let id = PeerId(self.next);
        self.next += 1;
        let peer = Peer {
            key,
            mac1: Mac1Key::new(key),
            shard: id.0 as usize % shards,
            roaming,
            cookies: CookieJar::default(),
            timers,
            sessions: Sessions::default(),
            begun: None,
            is_asked: false,
        };
        self.peers.insert(id, peer);
        let other = self.by_key.insert(key, id);
        debug_assert!(other.is_none(), "a key is that of one peer");
        self.set_timer(id);
        id
    }

    /// Removes a peer with its timer.
    pub(super) fn remove(&mut self, id: PeerId) {
        self.timers.cancel(id);
        if let Some(peer) = self.peers.remove(&id) {
            self.by_key.remove(&peer.key);
        }
    }

    /// Sets the peer's timer to the next one of [`Peer::timers`]: to be called after they change.
    pub(super) fn set_timer(&mut self, id: PeerId) {
        match self.peers.get(&id).and_then(|peer| peer.timers.poll_timeout()) {
            Some(at) => self.timers.set(id, at),
            None => self.timers.cancel(id),
        }
    }

    /// Takes out the next peer of which a timer is due. Its timer is to be set again.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<PeerId> {
        self.timers.pop(now)
    }

    pub(super) fn get_mut(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.peers.get_mut(&id)
    }

    pub(super) fn get(&self, id: PeerId) -> Option<&Peer> {
        self.peers.get(&id)
    }

    pub(super) fn by_key(&self, key: &PublicKey) -> Option<PeerId> {
        self.by_key.get(key).copied()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = PeerId> {
        self.peers.keys().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.peers.len()
    }

    /// The next time at which a timer of a peer is due.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        Some(self.timers.poll_timeout()?.0)
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    const fn s(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    /// Adds a peer to which something is sent every `interval` seconds; 0 is never.
    fn add(table: &mut Table, key: u8, interval: u64) -> PeerId {
        let timers = Timers::new(s(0), Some(Duration::from_secs(interval)));
        table.insert(PublicKey([key; 32]), 2, Roaming::default(), timers)
    }

    #[test]
    fn a_removed_peer_leaves_neither_key_nor_timer_and_its_number_is_not_given_again() {
        let mut table = Table::default();
        let [one, other] = [1, 2].map(|key| add(&mut table, key, 10));
        table.remove(one);
        assert!(table.get(one).is_none() && table.by_key(&PublicKey([1; 32])).is_none());
        assert_eq!((table.pop_due(s(10)), table.pop_due(s(10))), (Some(other), None));
        let again = add(&mut table, 1, 0);
        assert_eq!(table.by_key(&PublicKey([1; 32])), Some(again));
        assert_eq!(table.ids().collect::<Vec<_>>(), [other, again]);
        assert_ne!(again, one);
    }

    #[test]
    fn peers_take_turns_on_the_shards() {
        let mut table = Table::default();
        let ids = [1, 2, 3].map(|key| add(&mut table, key, 0));
        assert_eq!(ids.map(|id| table.get(id).map(|peer| peer.shard)), [Some(0), Some(1), Some(0)]);
    }

    #[test]
    fn the_peer_of_the_earliest_timer_is_due_first() {
        let mut table = Table::default();
        let [late, early, never] =
            [(1, 30), (2, 20), (3, 0)].map(|(key, interval)| add(&mut table, key, interval));
        assert_eq!((table.poll_timeout(), table.pop_due(s(19))), (Some(s(20)), None));
        assert_eq!([table.pop_due(s(30)), table.pop_due(s(30))], [Some(early), Some(late)]);
        assert_eq!((table.poll_timeout(), table.pop_due(s(1_000))), (None, None), "they are to be set again");
        [late, early, never].into_iter().for_each(|id| table.set_timer(id));
        assert_eq!(table.poll_timeout(), Some(s(20)));
        table.get_mut(early).expect("it is there").timers.set_interval(s(20), Some(Duration::from_secs(60)));
        table.set_timer(early);
        assert_eq!(table.poll_timeout(), Some(s(30)), "its timer has moved");
    }
}
