//! The daemon's library: everything behind the `vpnd` command line; `main.rs` is thin.
//!
//! These modules are the I/O shell around `vpnd-proto`, which has no sockets, clock or randomness, and
//! `vpnd-crypto`, the ciphers. Nothing points back from those crates to this one.
#![deny(unsafe_code)]
// A library in form only: its users are this crate's binary and tests.
#![allow(missing_docs)]

pub mod admin_store;
mod backup;
pub mod cli;
pub mod commands;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;

use std::pin::Pin;

/// Runs as a child of `vpnd server` or `vpnd connect` until the parent is gone or ends it. All that goes wrong is reported to the
/// parent.
///
/// # Errors
/// Only what can't be reported there: this process was started by somebody else.
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
        ChildRole::Acme => vpnd_gateway::acme::run(parent),
    }
}

/// Why a server of a directory can't be asked, if it can't.
#[must_use]
pub fn directory_fault<'a>(
    source: &'a vpnd_config::source::Source,
    server: &'a vpnd_config::source::SourceServer,
) -> Pin<Box<dyn Future<Output = Option<String>> + 'a>> {
    Box::pin(vpnd_idp::trial::fault(source, server))
}

/// The source and groups of a user as the directory has them now; `None` if none can be asked about the name, the inner error if it gives no answer.
#[must_use]
pub fn directory_groups(
    config: &vpnd_config::ServerConfig,
    user: &str,
) -> Option<Result<(String, Vec<String>), String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return Some(Err(error.to_string())),
    };
    let asked = runtime.block_on(vpnd_idp::trial::groups(config, user))?;
    Some(asked.map(|(source, identity)| (source, identity.groups.iter().map(ToString::to_string).collect())))
}
