//! Separation of privileges: one daemon, several processes, each with no more than it needs.
//!
//! ```text
//!   gateway                                         client
//!   parent (privileged) ──── auth (the store)       parent (privileged)
//!      └── worker (network) ────┘                      ├── worker (network)
//!                                                      └── look-up of a name (short-lived)
//! ```
//!
//! The *privileged parent* is what the administrator starts. It opens devices and sockets, changes
//! the machine's network through the undo journal, and starts its *children* from its own program
//! with one channel each on standard input. The *worker* has the network. The *auth process* keeps
//! the store. Invariants: a child shuts itself in before it reads anything that an outsider could
//! have written; all end together: a child that loses its parent ends at once, and a parent that
//! loses a child undoes its changes and ends; what is read from a channel is bounded and checked.
//! The modules [`gateway`], [`admin`] and [`signing`] have the messages of a gateway's processes; a
//! client's are in its own crate.
#![deny(unsafe_code)]
// A library in form only: its users are the daemon's other crates.
#![allow(missing_docs)]

pub mod admin;
pub mod channel;
pub mod child;
pub mod gateway;
pub mod health;
pub mod messages;
pub mod request;
pub mod requests;
pub mod signing;
pub mod spawn;
mod stderr;
pub mod together;
pub mod turns;
