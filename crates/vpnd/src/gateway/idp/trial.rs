//! `vpnd source test`: a source asked step by step, by the code that asks it for logins, and where that ends.
//!
//! Invariants: no password of a user is asked for or sent, and nothing is changed; each step is reported as it was found, and none after the one
//! that failed. It runs as who calls it, with the files of the configuration as they are now: a gateway that runs may have others.

use std::fmt;
use std::io::Write;
use std::time::Duration;

use anyhow::bail;
use tokio::time::timeout;

use super::ldap::Directory;
use super::servers::ServerError;
use crate::address_race;
use crate::admin_store::{Opening, Stores, UserSummary};
use crate::cli::SourceTestArgs;
use crate::config::ServerConfig;
use crate::config::access_profile::Who;
use crate::config::source::{RadiusTls, Source, SourceKind, SourceServer};
use crate::gateway::messages::idp::Identity;
use crate::user_name;

/// The steps that were made, the last of which may have failed.
#[derive(Debug, Default)]
pub(super) struct Steps(Vec<Step>);

#[derive(Debug)]
struct Step {
    name: &'static str,
    found: Result<String, String>,
}

/// The end of the way: the step, and why.
pub(super) type End = (&'static str, String);

impl Steps {
    pub(super) fn good(&mut self, name: &'static str, found: impl Into<String>) {
        self.0.push(Step { name, found: Ok(found.into()) });
    }

    fn end(&mut self, (name, why): End) {
        self.0.push(Step { name, found: Err(why) });
    }

    fn end_of(&self) -> Option<(&'static str, &str)> {
        self.0.iter().find_map(|step| Some((step.name, step.found.as_ref().err()?.as_str())))
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Step { name, found } in &self.0 {
            let (mark, text) = match found {
                Ok(text) => ("ok", text),
                Err(why) => ("ENDS", why),
            };
            writeln!(f, "  {mark:4}  {name:10}  {}", crate::harmless(text))?;
        }
        Ok(())
    }
}

/// Runs the command. Whether the way did not end before its end.
///
/// # Errors
/// If there is no such source, or the configuration can't be read.
pub(crate) fn test(args: &SourceTestArgs, stores: &dyn Stores, out: &mut dyn Write) -> anyhow::Result<bool> {
    let config = ServerConfig::load(&args.config)?;
    let Some(source) = config.sources.iter().find(|source| source.name == args.name) else {
        let names: Vec<&str> = config.sources.iter().map(|source| source.name.as_str()).collect();
        bail!(
            "there is no [[source]] named '{}' in {}; there are: {}",
            args.name,
            config.file,
            names.join(", ")
        );
    };
    let name = match args.user.as_deref().map(|typed| named(&config, source, typed)).transpose() {
        Ok(name) => name,
        Err(why) => {
            writeln!(out, "{}", crate::plain(&why))?;
            return Ok(false);
        }
    };
    // The store's process needs this one to have no threads yet.
    let record = name.as_ref().and_then(|name| {
        let mut store = stores.open(&config, Opening::Inspect).ok()?;
        store.user(name).ok().flatten()
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut is_good = true;
    for server in &source.servers {
        writeln!(out, "{server}")?;
        let mut steps = Steps::default();
        let identity = runtime.block_on(ask(source, server, name.as_deref(), &mut steps));
        if let (Some(identity), Some(name)) = (&identity, &name) {
            here(&config, source, name, identity, record.as_ref(), &mut steps);
        }
        write!(out, "{steps}")?;
        is_good &= steps.end_of().is_none();
    }
    let verdict = match (is_good, &name) {
        (true, Some(name)) => format!("{name} gets in with the right password"),
        (true, None) => format!("the source {} can be asked; --user NAME asks about somebody", source.name),
        (false, _) => "it ends above: look there".to_owned(),
    };
    writeln!(out, "{verdict}")?;
    Ok(is_good)
}

/// Why this server of a directory can't be asked, if it can't.
pub(crate) async fn fault(source: &Source, server: &SourceServer) -> Option<String> {
    let mut steps = Steps::default();
    ask(source, server, None, &mut steps).await;
    steps.end_of().map(|(step, why)| format!("{server} ({step}: {why})"))
}

/// Groups of a user who may never have been here, and the source; `None` if no directory can be asked about the name.
///
/// # Errors
/// Where that ends.
pub(crate) async fn groups(config: &ServerConfig, typed: &str) -> Option<Result<(String, Identity), String>> {
    let (name, source) = config.source_of(typed)?;
    if !matches!(source.kind, SourceKind::Ldap(_)) {
        return None;
    }
    let mut why = String::new();
    for server in &source.servers {
        let mut steps = Steps::default();
        if let Some(identity) = ask(source, server, Some(&name), &mut steps).await {
            return Some(Ok((source.name.clone(), identity)));
        }
        if let Some((step, end)) = steps.end_of() {
            why = format!("the directory '{}' at {server} ends at '{step}': {end}", source.name);
        }
    }
    Some(Err(why))
}

/// The canonical name of the source's user.
fn named(config: &ServerConfig, source: &Source, typed: &str) -> Result<String, String> {
    let full = source.full_name(typed);
    let names = [typed, full.as_str()].map(user_name::canonical);
    let Some(name) = names.iter().flatten().find(|name| source.rule.matches(name)) else {
        return Err(format!(
            "a login as '{typed}' is not tried at the source '{}': its rule is another",
            source.name
        ));
    };
    match config.source_of(name) {
        Some((_, first)) if first.name != source.name => {
            Err(format!("a login as '{name}' is tried at the source '{}', which comes before", first.name))
        }
        _ => Ok(name.clone()),
    }
}

/// Asks one server.
async fn ask(
    source: &Source,
    server: &SourceServer,
    user: Option<&str>,
    steps: &mut Steps,
) -> Option<Identity> {
    let limit = source.timeout.max(Duration::from_secs(1));
    let asked = async {
        let addresses = address_race::look_up(&server.host, server.port).await;
        let addresses = addresses.map_err(|error| ("name", error.to_string()))?;
        let addresses: Vec<String> = addresses.iter().map(|address| address.ip().to_string()).collect();
        steps.good("name", format!("{} is {}", server.host, addresses.join(", ")));
        match &source.kind {
            SourceKind::Ldap(ldap) => {
                let directory =
                    Directory::prepare(ldap).map_err(|error| ("files", crate::format_chain(&error)))?;
                directory.trial(source, server, user, steps).await
            }
            SourceKind::Radius(radius) => {
                let tls = radius.tls().ok_or((
                    "answer",
                    "a RADIUS server by UDP answers logins alone: log in as one of its users".to_owned(),
                ))?;
                handshake(server, tls, steps).await?;
                Ok(None)
            }
        }
    };
    match timeout(limit, asked).await {
        Ok(Ok(identity)) => identity,
        Ok(Err(end)) => {
            steps.end(end);
            None
        }
        Err(_) => {
            steps.end(("answer", format!("none within {} ms (timeout_ms)", limit.as_millis())));
            None
        }
    }
}

async fn handshake(server: &SourceServer, tls: &RadiusTls, steps: &mut Steps) -> Result<(), End> {
    let tls = crate::source_tls::read(tls).map_err(|error| ("files", crate::format_chain(&error)))?;
    let addresses = address_race::look_up(&server.host, server.port).await;
    let stream = address_race::connect(addresses.map_err(|error| ("name", error.to_string()))?).await;
    let stream = stream.map_err(|error| ("connection", error.to_string()))?;
    let secured = crate::source_tls::secure(stream, &server.host, std::sync::Arc::new(tls)).await;
    secured.map_err(|error| ("tls", error.to_string()))?;
    steps.good("tls", format!("its certificate is good for {}", server.host));
    steps.good("answer", "RADIUS has no question without a password: the rest shows a login");
    Ok(())
}

/// The step at which a connection has ended.
pub(super) fn end_of_connection(error: ServerError) -> End {
    let step = match error {
        ServerError::Name(_) => "name",
        ServerError::Connect(_) => "connection",
        _ => "tls",
    };
    (step, error.to_string())
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
        None => steps.end((
            "profile",
            "no [[profile]] is for somebody of these groups, so the login is refused".to_owned(),
        )),
    }
}
