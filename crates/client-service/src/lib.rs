//! Services for users without root, which run clients and browsers for them: [`service`] and
//! [`captive_portal`], and the commands that use these, [`user_commands`].
//!
//! This crate must not know what a client does with the network: the clients are separate
//! processes, and their messages are in `vpnd_client::user_messages`.
#![deny(unsafe_code)]
// A library in form only: its user is the daemon's binary.
#![allow(missing_docs)]

pub mod captive_portal;
mod members;
pub mod options;
pub mod service;
pub mod user_commands;
mod user_socket;
