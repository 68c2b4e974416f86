//! The daemon's library: everything behind the `vpnd` command line; `main.rs` is thin.
//!
//! These modules are the I/O shell around `vpnd-proto`, which has no sockets, clock or randomness, and
//! `vpnd-crypto`, the ciphers. Nothing points back from those crates to this one.
#![deny(unsafe_code)]

pub mod admin;
pub mod auth;
pub mod cli;
pub mod client;
pub mod config;
pub mod control;
pub mod credentials;
pub mod init;
pub mod journal;
pub mod lease;
pub mod logging;
pub mod metrics;
pub mod privsep;
pub mod profile;
pub mod secret_file;
pub mod server;
pub mod shard;
pub mod store;
pub mod suites;
pub mod sys;
pub mod tls;
pub mod users;

/// The error and its causes, without those that the sentence before quotes already.
#[must_use]
pub fn told(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match text.as_str() {
        "" => cause,
        told if told.contains(&cause) => text,
        _ => format!("{text}: {cause}"),
    })
}
