//! Requests to the process with the static key, from their start until their reply.
//!
//! INVARIANT: `responding` and `finishing` count the requests that take room: those for messages of
//! peers that have neither been taken out nor been set aside.

use std::collections::BTreeMap;

use vpnd_proto::plane::Endpoint;
use vpnd_proto::wire::Index;

use super::{Dropped, PeerId, RequestId};

/// Responses of peers that wait for the process with the static key at once, and places for first
/// messages, which networks share ([`Turns`](crate::turns::Turns)); more are dropped, and their
/// peers begin again after 5 s. Handshakes of ours are not among them: each peer has one at most.
/// A gateway that begins many at once has to leave room for the responses.
pub const MAX_WAITING: usize = 256;
/// First messages at once: those with a place, those under way, and a batch that comes before it is
/// decided which of them have places.
const MAX_FIRST: usize = 480;

/// State of a request until its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    /// A first message, from the sender's index.
    Respond { from: Endpoint, theirs: Index },
    /// A handshake of ours.
    Initiate(PeerId),
    /// A response to our index, from the sender's.
    Finish { peer: PeerId, from: Endpoint, ours: Index, theirs: Index },
}

/// All requests that have no reply yet.
#[derive(Debug, Default)]
pub(super) struct Requests {
    waiting: BTreeMap<RequestId, Waiting>,
    /// First messages of peers among them that take room.
    responding: usize,
    /// Responses of peers among them that take room.
    finishing: usize,
    next: u64,
}

#[derive(Debug)]
struct Waiting {
    pending: Pending,
    /// It waits for others than the process with the static key.
    is_aside: bool,
}

impl Requests {
    /// Adds a request for a message of a peer.
    ///
    /// # Errors
    /// If too many of its kind wait.
    pub(super) fn add(&mut self, pending: Pending) -> Result<RequestId, Dropped> {
        if let Some((taken, most)) = self.room(pending) {
            if *taken >= most {
                return Err(Dropped::Busy);
            }
            *taken += 1;
        }
        Ok(self.insert(pending))
    }

    /// Adds a request for a handshake of ours. It needs no room: each peer has one at most.
    pub(super) fn add_own(&mut self, peer: PeerId) -> RequestId {
        self.insert(Pending::Initiate(peer))
    }

    /// Sets a request aside: it takes no room until its reply.
    pub(super) fn set_aside(&mut self, id: RequestId) {
        let Some(waiting) = self.waiting.get_mut(&id) else { return };
        if !core::mem::replace(&mut waiting.is_aside, true) {
            let pending = waiting.pending;
            self.make_room(pending);
        }
    }

    /// Takes out a request.
    pub(super) fn take(&mut self, id: RequestId) -> Option<Pending> {
        let Waiting { pending, is_aside } = self.waiting.remove(&id)?;
        if !is_aside {
            self.make_room(pending);
        }
        Some(pending)
    }

    /// Responses of peers that take room, of [`MAX_WAITING`].
    pub(super) const fn finishing(&self) -> usize {
        self.finishing
    }

    /// Where the message came from for which the request was made.
    pub(super) fn source(&self, id: RequestId) -> Option<Endpoint> {
        match self.waiting.get(&id)?.pending {
            Pending::Respond { from, .. } | Pending::Finish { from, .. } => Some(from),
            Pending::Initiate(_) => None,
        }
    }

    /// The peer with which the request ends a handshake.
    pub(super) fn finishes_with(&self, id: RequestId) -> Option<PeerId> {
        match self.waiting.get(&id)?.pending {
            Pending::Finish { peer, .. } => Some(peer),
            Pending::Respond { .. } | Pending::Initiate(_) => None,
        }
    }

    fn insert(&mut self, pending: Pending) -> RequestId {
        let id = RequestId(self.next);
        self.next += 1;
        self.waiting.insert(id, Waiting { pending, is_aside: false });
        id
    }

    /// The room that requests of this kind have taken, and how much they may.
    fn room(&mut self, pending: Pending) -> Option<(&mut usize, usize)> {
        match pending {
            Pending::Respond { .. } => Some((&mut self.responding, MAX_FIRST)),
            Pending::Finish { .. } => Some((&mut self.finishing, MAX_WAITING)),
            Pending::Initiate(_) => None,
        }
    }

    fn make_room(&mut self, pending: Pending) {
        if let Some((taken, _)) = self.room(pending) {
            *taken -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> Endpoint {
        Endpoint { remote: ([192, 0, 2, 1], port).into(), local: None }
    }

    fn first() -> Pending {
        Pending::Respond { from: at(1), theirs: Index(1) }
    }

    fn response() -> Pending {
        Pending::Finish { peer: PeerId(7), from: at(2), ours: Index(2), theirs: Index(3) }
    }

    #[test]
    fn each_kind_has_room_of_its_own_and_own_handshakes_need_none() {
        let mut requests = Requests::default();
        for (pending, most) in [(first(), MAX_FIRST), (response(), MAX_WAITING)] {
            for _ in 0..most {
                requests.add(pending).expect("there is room");
            }
            assert_eq!(requests.add(pending), Err(Dropped::Busy));
        }
        let own = requests.add_own(PeerId(7));
        assert_eq!((requests.responding, requests.finishing), (MAX_FIRST, MAX_WAITING));
        assert_eq!(requests.waiting.len(), MAX_FIRST + MAX_WAITING + 1);
        assert_eq!(requests.take(own), Some(Pending::Initiate(PeerId(7))));
        assert_eq!(requests.add(first()), Err(Dropped::Busy), "it has made no room");
    }

    #[test]
    fn a_request_makes_room_once() {
        let mut requests = Requests::default();
        let ids = [first(), response()].map(|pending| requests.add(pending).expect("there is room"));
        let own = requests.add_own(PeerId(7));
        for id in ids.into_iter().chain(ids).chain([own]) {
            requests.set_aside(id);
        }
        assert_eq!((requests.responding, requests.finishing), (0, 0));
        let later = requests.add(first()).expect("there is room");
        assert_eq!(ids.map(|id| requests.take(id)), [Some(first()), Some(response())]);
        assert_eq!((requests.responding, requests.finishing), (1, 0), "those two took no room");
        assert_eq!([requests.take(later), requests.take(later)], [Some(first()), None]);
        assert_eq!((requests.responding, requests.finishing), (0, 0));
    }

    #[test]
    fn a_request_is_known_until_it_is_taken_out() {
        let mut requests = Requests::default();
        let [first, response] =
            [first(), response()].map(|pending| requests.add(pending).expect("there is room"));
        let own = requests.add_own(PeerId(8));
        assert_eq!([first, response, own].map(|id| requests.source(id)), [Some(at(1)), Some(at(2)), None]);
        let peers = [first, response, own].map(|id| requests.finishes_with(id));
        assert_eq!(peers, [None, Some(PeerId(7)), None]);
        requests.set_aside(response);
        assert_eq!(requests.source(response), Some(at(2)));
        requests.take(response);
        assert_eq!((requests.source(response), requests.finishes_with(response)), (None, None));
    }
}
