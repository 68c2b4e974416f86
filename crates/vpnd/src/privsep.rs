//! Separation of privileges: one daemon, several processes, each with no more than it needs.
//!
//! ```text
//!   gateway                                         client
//!   opener (privileged) ──── auth (the store)       opener (privileged)
//!      └── worker (network) ────┘                      └── worker (network)
//! ```
//!
//! The *opener* is what the administrator starts. It opens devices and sockets, changes the machine's network through the
//! undo journal, and starts the other *parts* from its own program with one channel each on standard input. The *worker*
//! talks to the network. The *auth process* keeps the store. Invariants: a part shuts itself in before it reads anything
//! that an outsider could have written; all parts end together: one that loses its opener ends at once, and an opener
//! that loses a part undoes its changes and ends; what a part reads from a channel is bounded and checked.

pub(crate) mod allowance;
pub(crate) mod channel;
pub(crate) mod launch;
pub mod part;
pub(crate) mod spawn;
mod stderr;
pub mod store;
