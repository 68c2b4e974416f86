//! The auth process of a gateway: the only one that opens the store and sees password hashes and the secrets of one-time
//! codes.
//!
//! The network worker asks it by [`message::Request`]s. INVARIANT: the worker never names a user. A session can be kept
//! only for the user who has just logged in for it, so a worker that was taken over gains nobody's identity.

pub(crate) mod client;
pub(crate) mod message;
pub(crate) mod service;
