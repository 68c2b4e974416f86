//! `vpnd check`: a configuration held against this machine and the store.

use std::io::Write;
use std::path::Path;

use crate::admin_store::{Opening, Stores, UserSummary};
use vpnd_config::access_profile::{Who, is_in};
use vpnd_config::check;
use vpnd_config::local_ports::LocalPorts;
use vpnd_config::review::{Findings, Machine, Review};
use vpnd_config::{AccessProfile, ConfigError, Invalid, Selector, ServerConfig};
use vpnd_store::StoreError;
use vpnd_sys::clock::wall_s;
use vpnd_sys::sysctl;

/// `vpnd check`: looks at the configuration at `path`, at this machine and at the store. Warnings
/// are written to `out` in any case.
///
/// # Errors
/// Everything for which a gateway would not start.
pub fn report(
    path: &Path,
    stores: &dyn Stores,
    insecure_lab: bool,
    out: &mut dyn Write,
) -> Result<(), ConfigError> {
    let config = ServerConfig::load(path)?;
    let mut review = of_machine(&config, stores, insecure_lab);
    for warning in &mut review.warnings {
        warning.message.insert_str(0, "warning: ");
    }
    let count = review.warnings.len();
    let warnings = Invalid::new(&config.file, std::mem::take(&mut review.warnings));
    // A reader that closes early still gets the exit code.
    if count > 0 {
        let _ = writeln!(out, "{warnings}");
    }
    review.into_result(&config.file)?;
    if config.profiles.are_configured() {
        for profile in config.profiles.iter() {
            let _ = writeln!(out, "{}: {profile}", config.file);
        }
    }
    let verdict = match count {
        0 => "no problem found".to_owned(),
        1 => "no error, 1 warning".to_owned(),
        count => format!("no error, {count} warnings"),
    };
    let _ = writeln!(out, "{}: {verdict}", config.file);
    Ok(())
}

/// Looks at the configuration, at this machine and at the store.
pub(crate) fn of_machine(config: &ServerConfig, stores: &dyn Stores, insecure_lab: bool) -> Review {
    let machine = Machine {
        interfaces: &check::interfaces(),
        networks: &check::local_networks(),
        ports: &LocalPorts::read(),
        ipv6: sysctl::has_ipv6(&config.tunnel.name),
        now_s: wall_s(),
    };
    let mut review = config.review(&machine, insecure_lab);
    let users = stores.open(config, Opening::Inspect).and_then(|mut store| store.users());
    let of_users = of_users(config, users.as_deref());
    review.errors.extend(of_users.errors);
    review.warnings.extend(of_users.warnings);
    review
}

/// Looks at what the store has to do with this configuration. `users` is what became of reading it.
fn of_users(config: &ServerConfig, users: Result<&[UserSummary], &StoreError>) -> Review {
    let mut findings = Findings { config, review: Review::default() };
    match users {
        Ok(users) => names(&mut findings, users),
        // The gateway itself may be allowed to.
        Err(error @ StoreError::Unreadable { .. }) if !rustix::process::geteuid().is_root() => {
            findings.warning("server.state_dir", format!("not looked into: {error}"));
        }
        Err(error @ StoreError::Database { .. }) => findings.error("store", error.to_string()),
        Err(error) => findings.error("server.state_dir", error.to_string()),
    }
    findings.review
}

fn fixed_addresses(findings: &mut Findings<'_>, users: &[UserSummary]) {
    let config = findings.config;
    for user in users {
        let who = Who { user: &user.name, source: &user.source, groups: &user.groups };
        for fixed in &user.fixed_addresses {
            if let Some(reason) = config.unleasable(who, fixed.address) {
                let message = format!(
                    "the user '{}' never gets the fixed address {}: {reason}",
                    user.name, fixed.address
                );
                findings.warning("tunnel", message);
            }
        }
    }
}

fn names(findings: &mut Findings<'_>, users: &[UserSummary]) {
    // Users of a source need no record before their first login.
    if users.is_empty() && findings.config.sources.is_empty() {
        findings.warning("server.state_dir", "there is no user yet: 'vpnd user add' makes one".to_owned());
    }
    for group in &findings.config.limits.rates.groups {
        if !users.iter().any(|user| is_in(&group.name, &user.groups)) {
            let groups = users.iter().flat_map(|user| &user.groups).map(String::as_str);
            let message = format!(
                "no user is in the group '{}' of a rate limit{}",
                group.name,
                meant(&group.name, groups)
            );
            findings.warning("limits.groups", message);
        }
    }
    fixed_addresses(findings, users);
    let config = findings.config;
    let own = |profile: &'_ AccessProfile| profile.rules[..profile.own_rules].to_vec();
    let rules: Vec<_> =
        config.policy.rules.iter().cloned().chain(config.profiles.iter().flat_map(own)).collect();
    for selector in rules.iter().flat_map(|rule| rule.from.iter().chain(&rule.to)) {
        let message = match selector {
            Selector::Group(group) if !users.iter().any(|user| is_in(group, &user.groups)) => {
                let groups = users.iter().flat_map(|user| &user.groups).map(String::as_str);
                format!("no user is in the group '{group}' of a rule{}", meant(group, groups))
            }
            Selector::User(name) if !users.iter().any(|user| user.name == *name) => {
                let names = users.iter().map(|user| user.name.as_str());
                format!("there is no user '{name}', whom a rule is about{}", meant(name, names))
            }
            _ => continue,
        };
        if !findings.review.warnings.iter().any(|known| known.message == message) {
            findings.warning("policy.rules", message);
        }
    }
}

/// A suggestion of the known name nearest to `name`.
fn meant<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> String {
    let near = known.map(|other| (strsim::osa_distance(name, other), other)).min();
    near.filter(|(distance, _)| *distance <= 2)
        .map(|(_, other)| format!("; did you mean '{other}'?"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
