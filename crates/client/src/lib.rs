//! The client, a module for each of its processes: [`parent`] is what a user starts, and the only
//! one with privileges; [`worker`] has the network; [`lookup`] looks up one name and ends.
#![deny(unsafe_code)]
// A library in form only: its users are the daemon's other crates.
#![allow(missing_docs)]

pub mod args;
pub mod capport;
pub mod fetch;
pub mod frames;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod lookup;
pub mod messages;
pub mod parent;
pub mod person;
mod servers;
pub mod user_messages;
pub mod worker;

use vpnd_proto::client::DEFAULT_MTU;

use vpnd_config::Offload;
use vpnd_sys::udp::SocketOptions;

/// MTU of the TUN device until the core names one.
const INITIAL_MTU: u16 = DEFAULT_MTU;

/// The gateway refuses this client, or is not the one that the profile names: trying again is of no
/// use until a person has done something.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// The gateway was out of reach for as long as the user's limit allows.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unreached(pub String);

/// The sockets' options, for the process that binds them and the one that adopts them. The mark is
/// set at binding only.
fn socket_options(offload: &Offload, mark: Option<u32>) -> SocketOptions {
    SocketOptions { mark, gro: offload.udp_gro, gso: offload.udp_gso, ..SocketOptions::default() }
}
