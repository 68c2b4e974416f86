//! The `vpnd` command line, the administrator's commands, and the dispatch of a daemon's roles to
//! the crates of its processes; `main.rs` is thin.
#![deny(unsafe_code)]
// A library in form only: its users are this crate's binary and tests.
#![allow(missing_docs)]

pub mod admin_store;
mod backup;
pub mod cli;
pub mod commands;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;

/// Runs as a child of `vpnd server` or `vpnd connect` until the parent is gone or ends it. All that
/// goes wrong is reported to the parent.
///
/// # Errors
/// Only what can't be reported there: another program started this process.
pub fn run_child(role: vpnd_ipc::child::ChildRole) -> anyhow::Result<()> {
    use vpnd_ipc::child::ChildRole;
    let parent = vpnd_ipc::child::enter()?;
    match role {
        ChildRole::Auth => vpnd_auth::run(parent),
        ChildRole::Worker => vpnd_gateway::worker::run(parent),
        ChildRole::Client => vpnd_client::worker::run(parent),
        ChildRole::Lookup => vpnd_client::lookup::run(parent),
        ChildRole::Store => admin_store::run(parent),
        ChildRole::Idp => vpnd_idp::run(parent),
        ChildRole::Acme => vpnd_acme::run(parent),
        ChildRole::Portal => vpnd_portal::run(parent),
    }
}
