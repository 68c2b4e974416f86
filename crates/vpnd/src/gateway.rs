//! The gateway, a folder for each of its processes: [`parent`] is what an administrator starts, and the only one with
//! privileges; [`worker`] has the network; [`auth`] has the store and the TLS key; [`idp`] asks directories, where there are any.
//!
//! The other modules here are known to more than one of them and have no rights of their own.

pub(crate) mod acme;
pub mod auth;
pub(crate) mod idp;
pub(crate) mod messages;
pub mod parent;
pub(crate) mod quic_keys;
pub(crate) mod signing;
pub(crate) mod worker;

use crate::config::ServerConfig;
use crate::sys::udp::SocketOptions;

/// The sockets' settings, for who binds and who takes over.
fn socket_options(config: &ServerConfig) -> SocketOptions {
    SocketOptions { gro: config.offload.udp_gro, gso: config.offload.udp_gso, ..SocketOptions::default() }
}
