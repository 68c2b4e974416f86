//! `vpnd source test`: a source asked step by step, by the code that asks it for logins, and where
//! that ends.
//!
//! Invariants: no password of a user is asked for or sent, and nothing is changed; each step is
//! reported as it was found, and none after the one that failed. It runs as who calls it, with the
//! files of the configuration as they are now: a gateway that runs may have others.

use std::fmt;
use std::time::Duration;

use tokio::time::timeout;

use super::ldap::Directory;
use super::oidc::Provider;
use super::servers::{Answered, ServerError};
use vpnd_config::ServerConfig;
use vpnd_config::source::{RadiusTls, Source, SourceKind, SourceServer};
use vpnd_config::source_tls::SourceTls;
use vpnd_config::user_name;
use vpnd_ipc::gateway::idp::Identity;
use vpnd_sys::address_race;

/// The steps that were made, the last of which may have failed.
#[derive(Debug, Default)]
pub struct Steps(Vec<Step>);

#[derive(Debug)]
struct Step {
    name: &'static str,
    found: Result<String, String>,
}

/// The end of the way: the step, and why.
pub type End = (&'static str, String);

impl Steps {
    pub fn good(&mut self, name: &'static str, found: impl Into<String>) {
        self.0.push(Step { name, found: Ok(found.into()) });
    }

    pub fn end(&mut self, (name, reason): End) {
        self.0.push(Step { name, found: Err(reason) });
    }

    pub fn end_of(&self) -> Option<(&'static str, &str)> {
        self.0.iter().find_map(|step| Some((step.name, step.found.as_ref().err()?.as_str())))
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Step { name, found } in &self.0 {
            let (mark, text) = match found {
                Ok(text) => ("ok", text),
                Err(reason) => ("ENDS", reason),
            };
            writeln!(f, "  {mark:4}  {name:10}  {}", vpnd_sys::text::harmless(text))?;
        }
        Ok(())
    }
}

/// Why this server of a directory can't be asked, if it can't.
pub async fn fault(source: &Source, server: &SourceServer) -> Option<String> {
    let mut steps = Steps::default();
    ask(source, server, None, &mut steps).await;
    steps.end_of().map(|(step, reason)| format!("{server} ({step}: {reason})"))
}

/// Groups of a user who may never have been here, and the source; `None` if no directory can be
/// asked about the name.
///
/// # Errors
/// Where that ends.
pub async fn groups(config: &ServerConfig, typed: &str) -> Option<Result<(String, Identity), String>> {
    let (name, source) = config.source_of(typed)?;
    if !matches!(source.kind, SourceKind::Ldap(_)) {
        return None;
    }
    let mut reason = String::new();
    for server in &source.servers {
        let mut steps = Steps::default();
        if let Some(identity) = ask(source, server, Some(&name), &mut steps).await {
            return Some(Ok((source.name.clone(), identity)));
        }
        if let Some((step, end)) = steps.end_of() {
            reason = format!("the directory '{}' at {server} ends at '{step}': {end}", source.name);
        }
    }
    Some(Err(reason))
}

/// The canonical name of the source's user.
pub fn named(config: &ServerConfig, source: &Source, typed: &str) -> Result<String, String> {
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
pub async fn ask(
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
                let directory = Directory::prepare(ldap)
                    .map_err(|error| ("files", vpnd_sys::text::format_chain(&error)))?;
                directory.trial(source, server, user, steps).await
            }
            SourceKind::Oidc(oidc) => {
                let files = |error: anyhow::Error| ("files", vpnd_sys::text::format_chain(&error));
                let provider = Provider::prepare(oidc).map_err(files)?;
                provider.trial(steps).await?;
                Ok(None)
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
    let tls = SourceTls::radius(tls).map_err(|error| ("files", vpnd_sys::text::format_chain(&error)))?;
    let secure = async |tcp| tls.secure(tcp, &server.host).await.map_err(ServerError::Tls);
    Answered::default().connect(server, secure).await.map_err(end_of_connection)?;
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
