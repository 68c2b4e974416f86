//! Peers on their way to a session: each has shown its key, and waits for the word of the auth
//! process, then for its session to be in force.
//!
//! Invariants: for each peer its last reply waits, and the auth process is asked about it once
//! meanwhile; about no more peers at a time than that process has room for. Logins have turns
//! separate from these.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use vpnd_proto::plane::Endpoint;
use vpnd_proto::session::SessionId;
use vpnd_proto::time::Time;
use vpnd_wireguard::PublicKey;
use vpnd_wireguard::handshakes::Reply;
use vpnd_wireguard::peers::RequestId;

use super::refusals::Refusals;
use crate::worker::releases::RELEASE_TIMEOUT;
use vpnd_ipc::admin::status::RefusedDevice;

/// Admissions under way. Each may wait for a directory.
const ADMISSIONS: usize = 24;
/// Time between two looks whether the kernel has forgotten the connections of an address.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// A peer that waits for its addresses.
pub(super) struct Unreleased {
    pub(super) peer: PublicKey,
    pub(super) session: SessionId,
    pub(super) until: Time,
}

/// The peers that wait, and those that were refused.
pub(super) struct Admissions {
    /// Whether peers get sessions.
    is_open: bool,
    /// The last reply for each peer that waits until its session is in force.
    waiting: HashMap<PublicKey, (RequestId, Reply)>,
    /// Those that the auth process is to be asked about, and where they are.
    unasked: VecDeque<(PublicKey, Endpoint)>,
    under_way: usize,
    /// The peers that have sessions, which are not in force yet.
    unreleased: Vec<Unreleased>,
    refusals: Refusals,
}

impl Admissions {
    pub(super) fn new() -> Self {
        Self {
            is_open: true,
            waiting: HashMap::new(),
            unasked: VecDeque::new(),
            under_way: 0,
            unreleased: Vec::new(),
            refusals: Refusals::default(),
        }
    }

    /// Whether peers get sessions from now on.
    pub(super) fn open(&mut self, is_open: bool) {
        self.is_open = is_open;
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether the peer may get a session, and was not refused a moment ago.
    pub(super) fn takes(&self, now: Time, peer: &PublicKey) -> bool {
        self.is_open && !self.refusals.is_recent(now, peer)
    }

    pub(super) fn has(&self, peer: &PublicKey) -> bool {
        self.waiting.contains_key(peer)
    }

    /// How many peers wait.
    pub(super) fn count(&self) -> usize {
        self.waiting.len()
    }

    /// The peer, which is at `outer`, waits with this reply. Returns the request whose reply it has
    /// waited with before.
    pub(super) fn add(
        &mut self,
        peer: PublicKey,
        request: RequestId,
        reply: Reply,
        outer: Endpoint,
    ) -> Option<RequestId> {
        let before = self.waiting.insert(peer, (request, reply));
        if before.is_none() {
            self.unasked.push_back((peer, outer));
        }
        before.map(|(request, _)| request)
    }

    /// The next peer to ask about, and where it is.
    pub(super) fn next_question(&mut self) -> Option<(PublicKey, Endpoint)> {
        if self.under_way >= ADMISSIONS {
            return None;
        }
        let next = self.unasked.pop_front()?;
        self.under_way += 1;
        Some(next)
    }

    /// The auth process has decided about a peer.
    pub(super) fn decided(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// The peer's session has begun, and waits for its addresses.
    pub(super) fn begin(&mut self, now: Time, peer: PublicKey, session: SessionId) {
        self.unreleased.push(Unreleased { peer, session, until: now + RELEASE_TIMEOUT });
    }

    /// Whether the session waits for its addresses.
    pub(super) fn is_beginning(&self, session: SessionId) -> bool {
        self.unreleased.iter().any(|unreleased| unreleased.session == session)
    }

    /// The peers that have sessions, each of which is answered or refused now, or waits longer.
    pub(super) fn take_unreleased(&mut self) -> Vec<Unreleased> {
        std::mem::take(&mut self.unreleased)
    }

    pub(super) fn wait_longer(&mut self, waiting: Unreleased) {
        self.unreleased.push(waiting);
    }

    /// When to look whether addresses are released.
    pub(super) fn poll_timeout(&self, now: Time) -> Option<Time> {
        (!self.unreleased.is_empty()).then(|| now + LOOK_INTERVAL)
    }

    /// The peer has a session. Returns the reply that waits for it.
    pub(super) fn admitted(&mut self, peer: &PublicKey) -> Option<(RequestId, Reply)> {
        self.forget_refusal(peer);
        self.waiting.remove(peer)
    }

    /// The peer gets no session; `is_walled` if a renewal changes that. Returns the request that
    /// gets no reply.
    pub(super) fn refused(
        &mut self,
        now: Time,
        peer: PublicKey,
        why: &str,
        is_walled: bool,
    ) -> Option<RequestId> {
        self.refusals.note(now, peer, why, is_walled);
        self.waiting.remove(&peer).map(|(request, _)| request)
    }

    /// The peer has changed, or is none any more.
    pub(super) fn forget_refusal(&mut self, peer: &PublicKey) {
        self.refusals.forget(peer);
    }

    /// Devices that got no session lately.
    pub(super) fn refused_devices(&self, now: Time) -> Vec<RefusedDevice> {
        self.refusals.shown(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admissions_wait_for_their_turn() {
        let mut admissions = Admissions::new();
        let from = Endpoint { remote: ([192, 0, 2, 1], 1).into(), local: None };
        for number in 0..100 {
            admissions.unasked.push_back((PublicKey([number; 32]), from));
        }
        assert_eq!(std::iter::from_fn(|| admissions.next_question()).count(), ADMISSIONS);
        admissions.decided();
        assert_eq!(std::iter::from_fn(|| admissions.next_question()).count(), 1);
    }
}
