//! The daemon's library: everything behind the `vpnd` command line; `main.rs` is thin.
//!
//! These modules are the I/O shell around `vpnd-proto`, which has no sockets, clock or randomness, and
//! `vpnd-crypto`, the ciphers. Nothing points back from those crates to this one.
#![deny(unsafe_code)]
// A library in form only: its users are this crate's binary and tests.
#![allow(missing_docs)]

mod address_race;
pub mod admin;
pub mod admin_store;
mod audit;
pub mod authority;
mod backup;
pub mod certificate;
pub mod cli;
pub mod client;
pub mod clock;
pub mod commands;
pub mod config;
pub mod control;
pub mod date;
pub mod factor;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod gateway;
pub mod journal;
pub mod ldap_filter;
mod log_limit;
pub mod logging;
mod own_file;
pub mod password;
mod policy;
pub mod port_blocks;
pub mod privsep;
pub mod profile;
mod renewal_log;
pub mod revocation_list;
pub mod secret_file;
mod secret_place;
pub mod shard;
mod source_files;
mod source_tls;
pub mod store;
pub mod suites;
pub mod sys;
mod terminal;
pub mod tls;
pub mod totp;
pub mod user_name;

use std::pin::Pin;

/// Runs as a child of `vpnd server` or `vpnd connect` until the parent is gone or ends it. All that goes wrong is reported to the
/// parent.
///
/// # Errors
/// Only what can't be reported there: this process was started by somebody else.
pub fn run_child(role: privsep::child::ChildRole) -> anyhow::Result<()> {
    use privsep::child::ChildRole;
    let parent = privsep::child::enter()?;
    match role {
        ChildRole::Auth => gateway::auth::run(parent),
        ChildRole::Worker => gateway::worker::run(parent),
        ChildRole::Client => client::worker::run(parent),
        ChildRole::Lookup => client::lookup::run(parent),
        ChildRole::Store => admin_store::run(parent),
        ChildRole::Idp => gateway::idp::run(parent),
        ChildRole::Acme => gateway::acme::run(parent),
    }
}

/// `vpnd source test`: whether the way to the source does not end before its end.
///
/// # Errors
/// If the configuration can't be read, or has no such source.
pub fn test_source(
    args: &cli::SourceTestArgs,
    stores: &dyn admin_store::Stores,
    out: &mut dyn std::io::Write,
) -> anyhow::Result<bool> {
    gateway::idp::trial::test(args, stores, out)
}

/// Why a server of a directory can't be asked, if it can't.
#[must_use]
pub fn directory_fault<'a>(
    source: &'a config::source::Source,
    server: &'a config::source::SourceServer,
) -> Pin<Box<dyn Future<Output = Option<String>> + 'a>> {
    Box::pin(gateway::idp::trial::fault(source, server))
}

/// The source and groups of a user as the directory has them now; `None` if none can be asked about the name, the inner error if it gives no answer.
#[must_use]
pub fn directory_groups(
    config: &config::ServerConfig,
    user: &str,
) -> Option<Result<(String, Vec<String>), String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return Some(Err(error.to_string())),
    };
    let asked = runtime.block_on(gateway::idp::trial::groups(config, user))?;
    Some(asked.map(|(source, identity)| (source, identity.groups.iter().map(ToString::to_string).collect())))
}

/// The error and its causes, without those that the sentence before quotes already, for a person's terminal.
#[must_use]
pub fn format_chain(error: &anyhow::Error) -> String {
    let text =
        error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match text.as_str() {
            "" => cause,
            written if written.contains(&cause) => text,
            _ => format!("{text}: {cause}"),
        });
    plain(&text)
}

/// Text without what would play with a terminal: some of it comes from others, as a gateway's reason does.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if is_deceptive(c) && !matches!(c, '\n' | '\t') { '?' } else { c }).collect()
}

/// Whether it is a control character, or one that changes the direction of text or hides in it.
pub(crate) fn is_deceptive(c: char) -> bool {
    c.is_control() || is_hidden(c)
}

fn is_hidden(c: char) -> bool {
    matches!(c, '\u{AD}' | '\u{61C}' | '\u{180E}' | '\u{FEFF}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}')
        || matches!(c, '\u{2060}'..='\u{206F}' | '\u{FFF0}'..='\u{FFFB}' | '\u{E0000}'..='\u{E0FFF}')
}

/// One line of a stranger's text, for a terminal and logs: without control characters, and without those that change the direction
/// of text or hide in it.
pub(crate) fn harmless(text: &str) -> String {
    let visible = text.chars().filter(|c| !is_hidden(*c));
    let line: String = visible.map(|c| if c.is_control() { ' ' } else { c }).collect();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_does_not_play_with_the_terminal() {
        let error = anyhow::anyhow!("\x1b[2J\rall is well\u{9b}m").context("the gateway refuses this client");
        assert_eq!(format_chain(&error), "the gateway refuses this client: ?[2J?all is well?m");
        assert_eq!(plain("line 3:\n\tä"), "line 3:\n\tä");
        assert_eq!(plain("ann\u{202e}gro\u{200b}.elpmaxe"), "ann?gro?.elpmaxe");
    }

    #[test]
    fn a_strangers_text_is_one_line_that_reads_as_it_is() {
        assert_eq!(harmless(" Code \x1b[31m(SMS)\r\npassword\u{9b}2J: "), "Code [31m(SMS) password 2J:");
        assert_eq!(harmless("abc\u{202e}def\u{200b}g\u{feff}\u{2069}\u{e0041}ä"), "abcdefgä");
        assert_eq!(harmless("\n\t"), "");
    }
}
