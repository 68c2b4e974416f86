//! `trafficspeed doctor`: which systems this machine can measure, and what installs the others.
//!
//! Looking changes nothing. Installing runs the very commands that are shown, one after the other,
//! and says which.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use crate::report::grid::NARROW;
use crate::system::generator::{self, Generator};
use crate::system::install::{Step, steps};
use crate::system::{Cipher, Kind, Programs, Subject, SystemError, install};

/// Why a system was not installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// It needs rights that this process does not have.
    #[error("installing {0} needs root; run it again with `sudo`")]
    NotRoot(String),
    /// It is nothing that is installed.
    #[error("{0} has no separate program; there is nothing to install")]
    Nothing(String),
    /// A command could not be started.
    #[error("`{command}` could not be started: {source}{hint}")]
    Start {
        command: String,
        /// Why.
        source: std::io::Error,
        /// The next step, with its punctuation.
        hint: &'static str,
    },
    /// A command failed; its own words are above.
    #[error("`{command}` failed ({status}); its own words are above{hint}")]
    Failed {
        command: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// The next step, with its punctuation.
        hint: &'static str,
    },
    /// Everything succeeded and the system still cannot run.
    #[error("{0}")]
    StillMissing(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its name for `--vpn`.
    pub system: String,
    /// Whether it can be measured.
    pub ready: bool,
    /// Its version in its own words.
    pub version: Option<String>,
    /// Its program.
    pub path: Option<PathBuf>,
    /// Ciphers that `--cipher` can ask it for.
    pub ciphers: Vec<&'static str>,
    pub problem: Option<String>,
    /// The command that installs it.
    pub install: Option<String>,
}

/// Looks at every system. One of the user's own is not looked at: it comes with its measurement.
pub fn examine(programs: &Programs) -> Vec<Finding> {
    Kind::value_variants()
        .iter()
        .filter(|kind| **kind != Kind::Command)
        .map(|kind| finding(*kind, programs))
        .collect()
}

fn finding(kind: Kind, programs: &Programs) -> Finding {
    let profile = kind.profile();
    let absent = profile.programs.iter().find(|program| programs.find(program).is_err());
    let first = profile.programs.first();
    let path = first.and_then(|program| programs.find(program).ok());
    let version = match (first, &path) {
        (Some(program), Some(path)) => Some(program.version_of(path)),
        _ => None,
    };
    let checked = (profile.adapter)(programs, Subject::new(kind, Cipher::Auto)).check();
    // No program helps where the kernel lacks its part.
    let absent = absent.filter(|_| !matches!(checked, Err(SystemError::NoModule(_))));
    Finding {
        system: kind.name(),
        ready: checked.is_ok(),
        version,
        path,
        ciphers: profile.ciphers.iter().map(|cipher| cipher.name()).collect(),
        problem: checked.err().map(|error| error.to_string()),
        install: absent.map(|program| install::line(program)),
    }
}

/// A generator that `trafficspeed verify` compares with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GeneratorFinding {
    pub name: &'static str,
    /// Its version in its own words.
    pub version: Option<String>,
    pub path: Option<PathBuf>,
    /// The command that installs it.
    pub install: Option<String>,
}

/// Looks at every generator.
pub fn examine_generators(programs: &Programs) -> Vec<GeneratorFinding> {
    let finding = |generator: &&Generator| {
        let program = &generator.program;
        let path = programs.find(program).ok();
        GeneratorFinding {
            name: program.name,
            version: path.as_ref().map(|path| program.version_of(path)),
            install: path.is_none().then(|| install::line(program)),
            path,
        }
    };
    generator::ALL.iter().map(finding).collect()
}

/// The findings as JSON.
pub fn json(findings: &[Finding], generators: &[GeneratorFinding]) -> serde_json::Value {
    serde_json::json!({ "format": 1, "systems": findings, "generators": generators })
}

/// The findings for people.
pub fn table(findings: &[Finding]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    if table.width().is_none() {
        table.set_width(NARROW as u16);
    }
    table.set_header(["system", "ready", "version", "program", "ciphers to choose from"]);
    for finding in findings {
        table.add_row([
            finding.system.clone(),
            if finding.ready { "yes".into() } else { "no".into() },
            finding.version.clone().unwrap_or_else(|| "–".into()),
            finding.path.as_ref().map_or("–".into(), |path| path.display().to_string()),
            finding.ciphers.join(", "),
        ]);
    }
    let mut text = format!("{table}\n");
    for finding in findings.iter().filter(|finding| !finding.ready) {
        let line = match (&finding.install, &finding.problem) {
            (Some(install), _) => format!("install it with: {install}"),
            (None, problem) => problem.clone().unwrap_or_default(),
        };
        writeln!(text, "{}: {line}", finding.system).expect("writing to a string");
    }
    text
}

/// The generators for people, a line for each.
pub fn generator_lines(findings: &[GeneratorFinding]) -> String {
    let line = |finding: &GeneratorFinding| {
        let said = match (&finding.version, &finding.install) {
            (Some(version), _) => version.lines().next().unwrap_or_default().to_owned(),
            (None, install) => format!("install it with: {}", install.as_deref().unwrap_or_default()),
        };
        format!("{} (for `trafficspeed verify`; no system needs it): {said}\n", finding.name)
    };
    findings.iter().map(line).collect()
}

/// Installs the programs of a system that are missing; `on_step` gets every command before it
/// runs.
pub fn install(kind: Kind, programs: &Programs, on_step: impl Fn(&str)) -> Result<Finding, InstallError> {
    let profile = kind.profile();
    if profile.programs.is_empty() {
        return Err(InstallError::Nothing(kind.name()));
    }
    let absent: Vec<Step> = profile
        .programs
        .iter()
        .filter(|program| programs.find(program).is_err())
        .flat_map(|program| steps(program))
        .collect();
    if !absent.is_empty() && !rustix::process::geteuid().is_root() {
        return Err(InstallError::NotRoot(kind.name()));
    }
    for (at, step) in absent.iter().enumerate() {
        // Two programs of one system often come from the same packages.
        if !absent[..at].contains(step) {
            on_step(&step.line());
            run(step)?;
        }
    }
    let finding = finding(kind, programs);
    match &finding.problem {
        Some(problem) => Err(InstallError::StillMissing(problem.clone())),
        None => Ok(finding),
    }
}

fn run(step: &Step) -> Result<(), InstallError> {
    let (program, arguments) = step.words.split_first().expect("a step has a program");
    let mut command = Command::new(program);
    command.args(arguments).envs(step.environment.iter().map(|(name, value)| (*name, value)));
    let status = command.status().map_err(|source| {
        let hint = match program.as_str() {
            "go" => "; install Go first (https://go.dev/doc/install)",
            "cargo" => "; install Rust first (https://rustup.rs)",
            _ => "",
        };
        InstallError::Start { command: step.line(), source, hint }
    })?;
    if status.success() {
        return Ok(());
    }
    let hint =
        if program == "apt-get" { "; if it knows no such package, run `apt-get update` first" } else { "" };
    Err(InstallError::Failed { command: step.line(), status, hint })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_system_is_looked_at_and_what_is_missing_says_how_to_get_it() {
        let findings = examine(&Programs::default().with("gotatun", "/nonexistent/gotatun".into()));
        assert_eq!(findings.len(), Kind::value_variants().len() - 1);
        let finding =
            |name: &str| findings.iter().find(|finding| finding.system == name).expect("it is listed");
        assert!(finding("none").ready && finding("none").install.is_none());
        let missing = finding("gotatun");
        assert!(!missing.ready && missing.version.is_none(), "{missing:?}");
        assert_eq!(missing.install.as_deref(), Some("trafficspeed doctor --install gotatun"));
        // Nothing installs a part of the kernel, whatever programs are missing as well.
        let in_kernel = |finding: &&Finding| {
            finding.problem.as_ref().is_some_and(|reason| reason.contains("is a part of the kernel"))
        };
        assert!(findings.iter().filter(in_kernel).all(|finding| finding.install.is_none()), "{findings:?}");
        let text = table(&findings);
        assert!(text.contains("gotatun: install it with: trafficspeed doctor --install gotatun"), "{text}");
        let generators =
            examine_generators(&Programs::default().with("nuttcp", "/nonexistent/nuttcp".into()));
        let lines = generator_lines(&generators);
        assert!(
            lines.contains("nuttcp (for `trafficspeed verify`; no system needs it): install it with: "),
            "{lines}"
        );
        let json = json(&findings, &generators);
        assert_eq!(
            (&json["systems"][0]["system"], &json["generators"][0]["name"]),
            (&"vpnd".into(), &"iperf3".into())
        );
        assert!(json["generators"][1]["version"].is_null() && json["generators"][1]["install"].is_string());
    }

    #[test]
    fn a_system_without_programs_cannot_be_installed() {
        let on_step = |line: &str| panic!("nothing runs: {line}");
        let said = install(Kind::None, &Programs::default(), on_step).unwrap_err().to_string();
        assert!(said.starts_with("none has no separate program"), "{said}");
    }

    #[test]
    fn a_command_that_fails_or_is_not_there_is_named() {
        let step = |words: &[&str]| Step {
            environment: vec![("X", "1".into())],
            words: words.iter().map(|word| (*word).to_owned()).collect(),
        };
        assert!(run(&step(&["sh", "-c", "test $X = 1"])).is_ok());
        let said = run(&step(&["false"])).unwrap_err().to_string();
        assert!(said.contains("`X=1 false` failed"), "{said}");
        let said = run(&step(&["no-such-program-here"])).unwrap_err().to_string();
        assert!(said.contains("could not be started"), "{said}");
    }
}
