//! The control channel of vpnd's protocol (PROTOCOL §3): QUIC's settings, messages over its one
//! stream, and a client's way from an address to an answered login.
//!
//! Gateway, client and measuring load share it, so that no two of them drift apart. It must not
//! know where sockets come from, whom TLS trusts, or what a session does with its keys.

mod icmp;
pub mod login;
pub mod quic;
pub mod stream;
pub mod tls;
