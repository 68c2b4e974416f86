//! The two processes that every gateway has, a module for each: [`parent`] is what an administrator
//! starts, and the only one with privileges; [`worker`] has the network.
//!
//! INVARIANT: the store and its library are out of reach here: auth has them, and is asked by
//! messages of `vpnd-ipc`.
#![deny(unsafe_code)]
// A library in form only: its users are the daemon's other crates.
#![allow(missing_docs)]

pub mod args;
pub mod parent;
pub(crate) mod quic_keys;
pub mod worker;

use vpnd_config::ServerConfig;
use vpnd_sys::udp::SocketOptions;

/// The sockets' settings, for who binds and who takes over.
fn socket_options(config: &ServerConfig) -> SocketOptions {
    SocketOptions { gro: config.offload.udp_gro, gso: config.offload.udp_gso, ..SocketOptions::default() }
}
