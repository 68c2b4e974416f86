//! The experiments with sessions that processes of `vpnd_swarm` hold.

pub mod capacity;
pub mod devices;
pub mod held_sessions;
pub mod sessions;
pub mod soak;
pub mod wireguard;
