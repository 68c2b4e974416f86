//! Gateways that share a store: which of them carries a session.
//!
//! INVARIANT: a session has one carrier by the store, which changes only by [`Fleet::move_here`]; of two
//! moves from the same generation one succeeds. Clocks play no part.

use vpnd_proto::session::SessionId;

use crate::StoreError;

/// The carrier of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carrier {
    /// Grows with each move, over all sessions.
    pub generation: u64,
    /// Whether it is this gateway.
    pub is_here: bool,
}

/// A session that another gateway has taken over, and the generation in which it was here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenAway {
    pub session: SessionId,
    pub generation: u64,
}

/// The sessions of a fleet. In the embedded store none moves: to change a carrier is an error.
pub trait Fleet: Send + Sync {
    /// A generation for a session that begins.
    fn next_generation(&self) -> Result<u64, StoreError>;
    /// The carrier of a session, if it is known.
    fn carrier(&self, session: SessionId) -> Result<Option<Carrier>, StoreError>;
    /// Moves a session to this gateway: its new generation, or `None` if it has moved since it had
    /// this one.
    fn move_here(&self, session: SessionId, generation: u64) -> Result<Option<u64>, StoreError>;
    /// The sessions that other gateways have taken over from this one.
    fn taken_away(&self) -> Result<Vec<TakenAway>, StoreError>;
    /// This gateway has dropped these: their addresses may be any device's again.
    fn dropped(&self, sessions: &[TakenAway]) -> Result<(), StoreError>;
}
