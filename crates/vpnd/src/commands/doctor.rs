//! `vpnd doctor`: everything that a gateway needs of its machine and network, looked at, each
//! finding with what to do.
//!
//! INVARIANT: looking changes nothing that stays. A TUN device and sockets are made for a moment,
//! and a request goes to each pushed name server. A check that can't be made never
//! counts as good. `vpnd check` judges the configuration alone; its findings come first here.

mod database;
mod firewall;
mod gateway;
mod identity;
pub(super) mod machine;
pub(super) mod names;
mod nat;
pub(super) mod passage;

use std::fmt::Write as _;
use std::io::{self, Write};

use crate::admin_store::Stores;
use crate::cli::DoctorArgs;
use crate::commands::check;
use vpnd_config::{ConfigError, Invalid, ServerConfig};
use vpnd_ipc::health::plural;
pub use vpnd_ipc::health::{Finding, Verdict};

/// The label of a verdict in the report.
const fn label(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Good => "ok",
        Verdict::Unknown => "?",
        Verdict::Warning => "warning",
        Verdict::Problem => "PROBLEM",
    }
}

/// Why the report could not be written, or what it means for the exit code.
#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    #[error("{0}: each has its next step above")]
    Problems(String),
    #[error("can't write the report: {0}")]
    Output(#[from] io::Error),
}

/// Looks at everything and writes the report.
///
/// # Errors
/// [`DoctorError::Problems`] if there are some; warnings are no error.
pub fn doctor(args: &DoctorArgs, stores: &dyn Stores, out: &mut dyn Write) -> Result<(), DoctorError> {
    let findings = examine(args, stores)?;
    let text = if args.json {
        serde_json::to_string_pretty(&findings).map_err(io::Error::from)? + "\n"
    } else {
        render(&findings)
    };
    out.write_all(text.as_bytes())?;
    let problems = count(&findings, Verdict::Problem);
    if problems == 0 { Ok(()) } else { Err(DoctorError::Problems(plural(problems, "problem"))) }
}

fn examine(args: &DoctorArgs, stores: &dyn Stores) -> io::Result<Vec<Finding>> {
    let config = match ServerConfig::load(&args.config) {
        Ok(config) => config,
        Err(error) => {
            let mut findings = unusable(&error);
            findings.extend(machine::kernel());
            findings.push(machine::clock());
            return Ok(findings);
        }
    };
    let mut findings = configuration(&config, stores);
    findings.extend(database::findings(&config, stores));
    let running = gateway::running(&config);
    findings.extend(running.findings);
    findings.extend(machine::kernel());
    findings.push(machine::clock());
    findings.push(machine::port(&config, running.status.as_deref()));
    findings.extend(machine::overflows(&config, running.status.as_deref()));
    findings.extend(machine::mtu(&config));
    findings.extend(machine::forwarding(&config, running.status.is_some()));
    findings.extend(firewall::connections(&config));
    findings.extend(nat::blocks(&config));
    findings.extend(machine::disks(&config));
    findings.push(machine::memory(&config));
    findings.extend(gateway::pools(&config, running.status.as_deref()));
    findings.push(gateway::certificate(&config));
    findings.extend(gateway::portal_certificate(&config));
    // The store's process has its own runtime by now, which can't be inside of another.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        findings.extend(firewall::own(running.status.as_deref()).await);
        findings.extend(passage::findings(&config).await);
        findings.extend(names::gateway_names(&config).await);
        findings.extend(names::device_endpoint(&config).await);
        findings.extend(names::name_servers(&config).await);
        findings.extend(identity::sources(&config, vpnd_idp::trial::fault).await);
    });
    Ok(findings)
}

/// Findings of `vpnd check`, with their lines.
fn configuration(config: &ServerConfig, stores: &dyn Stores) -> Vec<Finding> {
    let review = check::of_machine(config, stores, false);
    let advice = "correct it there; 'vpnd check' repeats this, 'vpnd reload' takes most keys over";
    let said = |problem| Invalid::new(&config.file, vec![problem]).to_string();
    let errors =
        review.errors.into_iter().map(|error| Finding::problem("configuration", said(error), advice));
    let mut findings: Vec<_> = errors.collect();
    let warnings = review.warnings.into_iter();
    findings.extend(warnings.map(|warning| Finding::warning("configuration", said(warning), advice)));
    if findings.is_empty() {
        findings.push(Finding::good("configuration", format!("{}: no problem found", config.file)));
    }
    findings
}

fn unusable(error: &ConfigError) -> Vec<Finding> {
    let advice =
        "name another file with --config, or make one with 'vpnd init'; the rest needs a configuration";
    match error {
        ConfigError::Invalid(invalid) => {
            let said = |problem: &_| Invalid::new(&invalid.file, vec![Clone::clone(problem)]).to_string();
            let advice = "correct it there; the rest needs a configuration that can be read";
            let finding = |problem: &_| Finding::problem("configuration", said(problem), advice);
            invalid.problems.iter().map(finding).collect()
        }
        ConfigError::Read { .. } => vec![Finding::problem("configuration", error.to_string(), advice)],
    }
}

fn count(findings: &[Finding], verdict: Verdict) -> usize {
    findings.iter().filter(|finding| finding.verdict == verdict).count()
}

/// The worst first, each with its next step below.
pub(super) fn render(findings: &[Finding]) -> String {
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|finding| std::cmp::Reverse(finding.verdict));
    let widest = |of: fn(&Finding) -> usize| sorted.iter().map(|finding| of(finding)).max().unwrap_or(0);
    let (width, check) =
        (widest(|finding| label(finding.verdict).len()), widest(|finding| finding.check.len()));
    let mut text = String::new();
    for Finding { check: name, verdict, found, advice } in sorted {
        let found = vpnd_sys::text::plain(found).replace('\n', "; ");
        // Writing to a string can't fail.
        let _ = writeln!(text, "{:width$}  {name:check$}  {found}", label(*verdict));
        if let Some(advice) = advice {
            let _ = writeln!(text, "{:width$}  {:check$}  -> {}", "", "", vpnd_sys::text::plain(advice));
        }
    }
    let [problems, warnings, unknown, good] =
        [Verdict::Problem, Verdict::Warning, Verdict::Unknown, Verdict::Good]
            .map(|each| count(findings, each));
    let _ = writeln!(
        text,
        "{}, {}, {unknown} not looked at, {good} good",
        plural(problems, "problem"),
        plural(warnings, "warning")
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gravest_finding_is_first_with_its_next_step() {
        let findings = [
            Finding::good("clock", "set by the network"),
            Finding::problem("network.port", "taken\x1b[2J", "stop it"),
            Finding::warning("disk", "nearly full", "make room"),
        ];
        let text = render(&findings);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("PROBLEM  network.port  taken?[2J"), "{text}");
        assert!(lines[1].trim_start().starts_with("-> stop it"), "{text}");
        assert!(lines[2].starts_with("warning"), "{text}");
        assert_eq!(lines[5], "1 problem, 1 warning, 0 not looked at, 1 good");
        let json = serde_json::to_value(&findings).unwrap();
        assert_eq!(json[1]["verdict"], "problem");
        assert_eq!((&json[0]["check"], json[0]["advice"].is_null()), (&"clock".into(), true));
    }
}
