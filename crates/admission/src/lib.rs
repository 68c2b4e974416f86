//! Decides who is let into a gateway, and with what: users and their sources, limits of guesses,
//! access profiles, addresses, WireGuard devices, accounting.
//!
//! INVARIANT: it decides by the store and by what the sources' process replies alone. Which message
//! asked, and what is done about the decision, is for the auth process.
#![deny(unsafe_code)]
// A library in form only: its users are the daemon's other crates.
#![allow(missing_docs)]

pub mod access;
pub mod accounting;
pub mod authenticator;
pub mod ending;
pub mod idp_client;
pub mod keeper;
pub mod lease;
pub mod notices;
pub mod whois;
pub mod wireguard;
