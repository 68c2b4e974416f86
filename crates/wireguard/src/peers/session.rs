//! The sessions of one peer: previous, current and next (§6.3).
//!
//! A responder must not send with new keys before the initiator has shown that it has them, so its
//! session waits as *next* until the first message. What is still on its way with old keys is
//! opened by *previous*.

use core::time::Duration;
use std::sync::Arc;

use vpnd_proto::time::Time;
use vpnd_proto::wire::Index;

use crate::noise::SessionKeys;
use crate::transport::Sealer;

/// Which end has begun the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Initiator,
    Responder,
}

/// The keys of one handshake. What opens with them is in the shard that owns the index.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) index: Index,
    /// Kept for the next process of the gateway.
    pub(super) keys: SessionKeys,
    pub(super) sealer: Arc<Sealer>,
    pub(super) role: Role,
    pub(super) since: Time,
}

impl Session {
    pub(super) fn is_initiator_older_than(&self, now: Time, age: Duration) -> bool {
        self.role == Role::Initiator && now.since(self.since) >= age
    }
}

/// All sessions of a peer.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    pub(super) previous: Option<Session>,
    pub(super) current: Option<Session>,
    pub(super) next: Option<Session>,
}

impl Sessions {
    /// Takes in a session that was just made. Returns the indexes of those that have ended by that.
    pub(super) fn insert(&mut self, session: Session) -> Vec<Index> {
        let ended = match session.role {
            Role::Initiator => {
                // An unconfirmed session may be the one that the peer sends with.
                let previous = match self.next.take() {
                    Some(next) => [self.previous.replace(next), self.current.take()],
                    None => [core::mem::replace(&mut self.previous, self.current.take()), None],
                };
                self.current = Some(session);
                previous
            }
            Role::Responder => [self.next.replace(session), self.previous.take()],
        };
        ended.into_iter().flatten().map(|session| session.index).collect()
    }

    /// A message to `index` was opened. If that is the next session, it is the current one from now
    /// on.
    pub(super) fn confirm(&mut self, index: Index) -> Option<Confirmed> {
        let next = self.next.take_if(|next| next.index == index)?;
        let ended = core::mem::replace(&mut self.previous, self.current.replace(next));
        Some(Confirmed { ended: ended.map(|session| session.index) })
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.previous.is_none() && self.current.is_none() && self.next.is_none()
    }

    /// Takes out all sessions; returns their indexes.
    pub(super) fn take_all(&mut self) -> Vec<Index> {
        let all = [self.previous.take(), self.current.take(), self.next.take()];
        all.into_iter().flatten().map(|session| session.index).collect()
    }
}

/// The next session is the current one now.
#[derive(Debug)]
pub(super) struct Confirmed {
    /// The index of the session that has ended by that.
    pub(super) ended: Option<Index>,
}
