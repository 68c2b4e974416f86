//! `vpnd source test`: the whole way of a login by a source, step by step.

use std::io::Write;

use anyhow::bail;

use crate::admin_store::{Opening, Stores, UserSummary};
use crate::cli::SourceTestArgs;
use vpnd_config::ServerConfig;
use vpnd_config::access_profile::Who;
use vpnd_config::source::Source;
use vpnd_idp::trial::{Steps, ask, named};
use vpnd_ipc::gateway::idp::Identity;

/// Runs the command. Whether the way did not end before its end.
///
/// # Errors
/// If there is no such source, or the configuration can't be read.
pub fn test(args: &SourceTestArgs, stores: &dyn Stores, out: &mut dyn Write) -> anyhow::Result<bool> {
    let config = ServerConfig::load(&args.config)?;
    let Some(source) = config.sources.iter().find(|source| source.name == args.name) else {
        let names: Vec<&str> = config.sources.iter().map(|source| source.name.as_str()).collect();
        let others = match &names[..] {
            [] => "it has none at all: docs/IDENTITY.md says how to write one".to_owned(),
            names => format!("there are: {}", names.join(", ")),
        };
        bail!("there is no [[source]] named '{}' in {}; {others}", args.name, config.file);
    };
    let name = match args.user.as_deref().map(|typed| named(&config, source, typed)).transpose() {
        Ok(name) => name,
        Err(reason) => {
            writeln!(out, "{}", vpnd_sys::text::plain(&reason))?;
            return Ok(false);
        }
    };
    // The store's process needs this one to have no threads yet.
    let record = name.as_ref().and_then(|name| {
        let mut store = stores.open(&config, Opening::Inspect).ok()?;
        store.user(name).ok().flatten()
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut is_good, mut is_shown) = (true, false);
    for server in &source.servers {
        writeln!(out, "{server}")?;
        let mut steps = Steps::default();
        let identity = runtime.block_on(ask(source, server, name.as_deref(), &mut steps));
        is_shown |= identity.is_some();
        if let (Some(identity), Some(name)) = (&identity, &name) {
            here(&config, source, name, identity, record.as_ref(), &mut steps);
        }
        write!(out, "{steps}")?;
        is_good &= steps.end_of().is_none();
    }
    let verdict = match (is_good, &name) {
        (true, Some(name)) if is_shown => format!("{name} gets in with the right password"),
        // OpenID providers and RADIUS servers answer logins alone.
        (true, Some(name)) => {
            format!("the source {} can be asked; whether {name} gets in shows a login", source.name)
        }
        (true, None) => format!("the source {} can be asked; --user NAME asks about a user", source.name),
        (false, _) => "it ends above: look there".to_owned(),
    };
    writeln!(out, "{verdict}")?;
    Ok(is_good)
}

/// Adds the steps at this gateway, for a user whom the source shows.
fn here(
    config: &ServerConfig,
    source: &Source,
    name: &str,
    identity: &Identity,
    record: Option<&UserSummary>,
    steps: &mut Steps,
) {
    match record {
        None => steps.good("record", "none here yet: the first login makes it"),
        Some(user) if user.source != source.name => {
            steps.end(("record", format!("the name is that of a user of '{}' here", user.source)));
        }
        Some(user) if !user.enabled => {
            steps.end(("record", format!("disabled here; take it back by: vpnd user enable {name}")));
        }
        Some(_) => steps.good("record", "here, and not disabled"),
    }
    let groups: Vec<String> = identity.groups.iter().map(ToString::to_string).collect();
    match config.profiles.of(Who { user: name, source: &source.name, groups: &groups }) {
        Some(profile) => steps.good("profile", profile.title()),
        None => {
            steps.end(("profile", "no [[profile]] matches these groups, so the login is refused".to_owned()))
        }
    }
}
