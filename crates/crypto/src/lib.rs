//! Cipher suites of vpnd: which there are, what runs them fastest on this machine, and the keys
//! they use.
//!
//! The path of a key is one way, each type made from the one before:
//!
//! ```text
//! TLS exporter --> EpochSecret --lane_key()--> LaneKey --> SealKey (sender)
//!                                                     \--> OpenKey (receiver)
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`suite`] | the closed set of cipher suites, their numbers, sizes and limits of use |
//! | [`backend`] | the libraries and our own code that implement them, and the measurement that picks one |
//! | [`schedule`] | from the secret of a TLS handshake to the key of one lane |
//! | [`aead`] | sealing and opening one packet in place |
//! | [`device`] | the key by which a device proves that a connection is its own |
//! | [`x25519`] | secrets that two key pairs share |
//! | [`secret`] | bytes that are erased when dropped and never printed |
//!
//! Invariants of the crate:
//!
//! - Nothing here remembers which counters were used. The holder of a [`SealKey`] must never pass a
//!   counter twice; the keys only refuse counters beyond the suite's limit.
//! - No function draws randomness, and only [`backend`] reads a clock.
//! - Suites for the laboratory cannot be used without a [`LabPermit`], which only
//!   [`LabPermit::insecure`] makes.
//! - No secret can be printed, compared in variable time, or serialised.
//!
//! This crate must not know of sessions, packets, sockets or the wire format around a sealed
//! packet. The values it fixes (suite numbers, key derivation, nonces, limits) are sections 6 and
//! 11 of `docs/PROTOCOL.md`.

#![forbid(unsafe_code)]

pub mod aead;
pub mod backend;
pub mod device;
pub mod schedule;
pub mod secret;
pub mod suite;
pub mod x25519;

pub use aead::noise::NoiseKey;
pub use aead::{KeyError, OpenError, OpenKey, SealError, SealKey};
pub use backend::{Backend, Choice, Preference};
pub use device::{BINDING_LABEL, Binding, DeviceKey};
pub use schedule::{Direction, EXPORTER_LABEL, EpochSecret, LaneKey};
pub use secret::Secret;
pub use suite::{LabPermit, Limits, Suite};
