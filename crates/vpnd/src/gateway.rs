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

/// Receive buffer of a shard without priority: 2 Gbit/s for a quarter of a second, in which it waits for its turn beside clients or other
/// work on the same cores. What overflows there makes every sender halve its window, and small windows make each packet dear.
const RECV_BUFFER_WITHOUT_PRIORITY: usize = 64 << 20;

/// The sockets' settings, for who binds and who takes over.
fn socket_options(config: &ServerConfig) -> SocketOptions {
    let usual = SocketOptions::default();
    let recv_buffer =
        if config.server.priority == 0 { RECV_BUFFER_WITHOUT_PRIORITY } else { usual.recv_buffer };
    SocketOptions { recv_buffer, gro: config.offload.udp_gro, gso: config.offload.udp_gso, ..usual }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_without_priority_has_longer_receive_buffers() {
        let buffer = |priority: u8| {
            let mut config = crate::config::testing::smallest("");
            config.server.priority = priority;
            socket_options(&config).recv_buffer
        };
        let usual = SocketOptions::default().recv_buffer;
        assert_eq!([0, 1, 10].map(buffer), [RECV_BUFFER_WITHOUT_PRIORITY, usual, usual]);
    }
}
