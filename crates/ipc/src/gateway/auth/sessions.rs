//! Sessions of the store, to which clients attach that this worker does not know; and those that
//! move between the gateways of a fleet.

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};
use vpnd_proto::attach::Token;
use vpnd_proto::time::Time;

use super::{Account, Leased, TokenHashes};
use vpnd_config::factor::Factors;

/// A session of an earlier run.
#[derive(Debug, Encode, Decode)]
pub struct SessionQuery(#[n(0)] pub ByteArray<16>);

/// A session of an earlier run.
#[derive(Debug, Encode, Decode)]
pub struct StoredSession {
    #[n(0)]
    pub account: Account,
    #[n(1)]
    pub device: ByteArray<16>,
    #[n(2)]
    pub addresses: Leased,
    #[n(3)]
    pub epoch: u32,
    #[n(4)]
    pub tokens: TokenHashes,
    #[n(5)]
    pub expires_s: u64,
    #[n(6)]
    pub started_s: u64,
    #[n(7)]
    pub factors: Factors,
    /// In a fleet, that of its last move; else 0.
    #[n(8)]
    pub generation: u64,
}

/// A client claims a session, which moves to this gateway if it is another one's and the claim is
/// good.
#[derive(Debug, Encode, Decode)]
pub struct SessionClaim {
    #[n(0)]
    pub session: ByteArray<16>,
    #[n(1)]
    pub token: Token,
    /// The device that has proved itself.
    #[n(2)]
    pub device: ByteArray<16>,
    /// It moves nothing after this moment, at which its client goes elsewhere.
    #[n(3)]
    pub until: Time,
}

/// A session that another gateway has taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TakenAway {
    #[n(0)]
    pub session: ByteArray<16>,
    /// The latest one when it was taken.
    #[n(1)]
    pub generation: u64,
}

impl TakenAway {
    /// Whether it is the stay that began with this generation: a later one has come back.
    #[must_use]
    pub const fn ends(&self, since: u64) -> bool {
        since <= self.generation
    }
}

/// The worker has dropped these sessions. The reply names those that it is to drop next,
/// [`super::MAX_WRITES`] at most.
#[derive(Debug, Encode, Decode)]
pub struct Dropped(#[n(0)] pub Vec<TakenAway>);

/// Which of these sessions the store does not have.
#[derive(Debug, Encode, Decode)]
pub struct MissingQuery(#[n(0)] pub Vec<ByteArray<16>>);
