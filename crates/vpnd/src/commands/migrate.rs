//! `vpnd migrate openvpn`: the configuration of an OpenVPN server as one of vpnd, and what of it
//! has no counterpart.
//!
//! Invariants: nothing is changed, and what is printed is a configuration that
//! [`ServerConfig::parse`] takes, or says why not; each option of the file is either in it or named
//! below it with its line.

mod openvpn;
mod plan;

use std::fs;
use std::io::{Read as _, Write};
use std::path::Path;

use crate::cli::MigrateOpenvpnArgs;
use openvpn::Directive;
use plan::{Plan, word};
use vpnd_config::ServerConfig;
use vpnd_config::access_profile::Who;
use vpnd_store::LOCAL;

/// Bytes of one file at most.
const MAX_BYTES: u64 = 1 << 20;
/// Files of a directory of users at most.
const MAX_USERS: usize = 100_000;

#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    #[error("can't read {path}: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("can't print the configuration: {0}")]
    Print(#[from] std::io::Error),
}

/// Prints the configuration, and below it, as comments, what is to be done and what has no
/// counterpart.
///
/// # Errors
/// If a file can't be read.
pub fn openvpn(args: &MigrateOpenvpnArgs, out: &mut dyn Write) -> Result<(), MigrateError> {
    let mut plan = Plan::default();
    let directives = openvpn::directives(&read(&args.file)?);
    for directive in &directives {
        plan.take(directive);
    }
    let named = |directive: &&Directive| directive.name() == "client-config-dir";
    let directory = directives.iter().rfind(named).and_then(|directive| directive.argument(0));
    let beside = args.file.parent().unwrap_or(Path::new(""));
    let files = match (&args.ccd, directory) {
        (Some(directory), _) => users(directory)?,
        (None, Some(directory)) => users(&beside.join(directory)).unwrap_or_else(|error| {
            plan.notes.push(format!("client-config-dir: {error}; name its directory as the second argument"));
            Vec::new()
        }),
        (None, None) => Vec::new(),
    };
    for (user, text) in files {
        plan.take_user(&user, &openvpn::directives(&text));
    }
    let Plan { notes, users, .. } = &plan;
    let text = plan.to_toml();
    let title = vpnd_sys::text::plain(&args.file.display().to_string());
    writeln!(
        out,
        "# Made of {title} by 'vpnd migrate openvpn'. 'vpnd init' makes the certificate and keys.\n\n{text}"
    )?;
    list(out, "Without a counterpart, or to do by hand:", notes)?;
    let mut commands = Vec::new();
    let parsed = ServerConfig::parse(&text, "server.toml", beside);
    for (name, address) in users {
        let who = Who { user: name, source: LOCAL, groups: &[] };
        let reason = parsed.as_ref().ok().and_then(|config| config.unleasable(who, *address));
        let reason = reason.map_or_else(String::new, |reason| format!("   # refused: {reason}"));
        commands.push(format!("vpnd user modify {} --address {address}{reason}", word(name)));
    }
    list(out, "Addresses of users, once they are there ('vpnd user add' or 'vpnd user import'):", &commands)?;
    if let Err(problems) = &parsed {
        let problems: Vec<String> = problems.to_string().lines().map(str::to_owned).collect();
        list(out, "'vpnd check' will find:", &problems)?;
    }
    Ok(())
}

fn list(out: &mut dyn Write, title: &str, lines: &[String]) -> std::io::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n# {title}")?;
    lines.iter().try_for_each(|line| writeln!(out, "#   {}", vpnd_sys::text::plain(line)))
}

fn read(path: &Path) -> Result<String, MigrateError> {
    let failed = |source| MigrateError::Read { path: path.display().to_string(), source };
    let mut bytes = Vec::new();
    fs::File::open(path).map_err(failed)?.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(failed(std::io::Error::other("it is too long for a configuration")));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The users of a directory with a file for each, by name.
fn users(directory: &Path) -> Result<Vec<(String, String)>, MigrateError> {
    let failed = |source| MigrateError::Read { path: directory.display().to_string(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // A pipe would be waited for.
        if entry.file_type().map_err(failed)?.is_file() {
            files.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
        }
        if files.len() > MAX_USERS {
            return Err(failed(std::io::Error::other("it has more files than a gateway has users")));
        }
    }
    files.sort();
    files.into_iter().map(|(name, path)| Ok((name, read(&path)?))).collect()
}

#[cfg(test)]
mod tests;
