//! Orders of one gateway of a fleet to the others, which need no database: to end a user's
//! sessions.
//!
//! Everything here is a pure state machine: time, random bytes and datagrams are arguments
//! (PROTOCOL §19). [`seal`] makes and opens datagrams, [`orders`] sends each order until it is
//! confirmed and carries out none twice.
//!
//! | process | has |
//! |---|---|
//! | auth | the gateway's key, the public keys of the others, [`orders::Orders`] |
//! | worker | a [`seal::FilterKey`], with which no order can be made that a gateway carries out |
//!
//! This crate must not know how addresses and public keys become known, nor what a session is.
#![forbid(unsafe_code)]

pub mod orders;
pub mod seal;
