//! Certificates, keys and TLS of both ends: authorities, revocation lists, the chain that a gateway
//! presents.
//!
//! INVARIANT: keys are erased from memory when they are dropped. This crate must not know the
//! configuration.
#![deny(unsafe_code)]
// A library in form only: its users are the daemon's other crates.
#![allow(missing_docs)]

pub mod authority;
pub mod challenge;
pub mod dns_name;
pub mod key_file;
pub mod leaf;
pub mod revocation_list;
pub mod tls;
pub mod wireguard_key;
