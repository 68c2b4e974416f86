//! The stages of the data path, each set up once for its users: the criterion benchmarks
//! next to this library, and the program `vpnd-stages`, whose figures `trafficspeed model` reads.
//!
//! INVARIANT: a stage runs the code that the daemon runs, with the daemon's types; what is made up
//! is only what surrounds it. This crate may know the inside of vpnd. It must not know experiments,
//! reports or other VPNs.

pub mod aead;
pub mod devices;
pub mod handover;
pub mod live;
pub mod offload;
pub mod packet;
pub mod sample;
pub mod shard;
pub mod stage;
pub mod traffic;
