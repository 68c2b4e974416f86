//! WireGuard's protocol, for a gateway that stock clients connect to.
//!
//! Everything here is a pure state machine, as in `vpnd-proto`: time, random bytes and datagrams
//! are arguments. The protocol is that of the paper (Donenfeld, "WireGuard: Next Generation Kernel
//! Network Tunnel", revision of 2020-06-01), whose sections the modules cite.
//!
//! Code is divided by what a process may know:
//!
//! ```text
//! process with the static key        worker                                shards of the worker
//!   handshakes::Handshakes   <---->    peers::Peers           ------->       transport::{Sealer, Opener}
//!   static key, preshared keys         cookies, timers, roaming, indexes     keys of one session
//! ```
//!
//! | module | what | section |
//! |---|---|---|
//! | [`message`] | the four messages as bytes | 5.4.1 to 5.4.7 |
//! | [`key`] | keys of peers, and how they are printed | 2 |
//! | [`noise`] | Noise_IKpsk2: the two messages of a handshake, and the keys that they give | 5.4.2, 5.4.3, 5.4.5 |
//! | [`timestamp`] | TAI64N, which orders the handshakes of a peer | 5.1 |
//! | [`handshakes`] | the static key's answers: to known peers with later timestamps | 5.1, 5.2 |
//! | [`mac`] | the two MACs of each message of a handshake | 5.4.4 |
//! | [`cookie`] | proofs of an address | 5.3, 5.4.7, 6.6 |
//! | [`gate`] | which messages are worth the static key's time | 5.3 |
//! | [`transport`] | sealing and opening data, by counters that shards share: `vpnd_proto`'s, whose planes use it | 5.4.6, 6.2 |
//! | [`timers`] | when a peer needs a handshake or a keepalive | 6.1 to 6.5 |
//! | [`endpoint`] | where a peer is, and whether it is in two places | 2.1 |
//! | [`turns`] | which steps the process with the static key is asked for when | |
//! | [`peers`] | all peers of a worker: their sessions, by key and by index | 6.3 |
//!
//! Invariants of the crate:
//!
//! - Bytes from outside never panic and never allocate before their first MAC is right.
//! - The worker's half needs no static private key and no preshared key.
//! - No counter is sealed twice with a key, whichever shard seals.
//! - A handshake is answered only if its timestamp is later than any that the peer has shown
//!   before.
//! - The inner packet is not looked at: whether its source address belongs to the peer is the data
//!   path's check.
#![forbid(unsafe_code)]

pub mod cookie;
pub mod endpoint;
pub mod gate;
pub mod handshakes;
mod hash;
pub mod key;
pub mod mac;
pub mod message;
pub mod noise;
pub mod peers;
pub mod timers;
pub mod timestamp;
pub mod turns;

pub use handshakes::Handshakes;
pub use key::PublicKey;
pub use peers::Peers;
pub use vpnd_proto::wireguard as transport;
