//! The record of what a run made, kept where it survives the run but not a reboot.
//!
//! One file per run names its owner (process id and start time) and its namespaces. `trafficspeed
//! cleanup` removes what belongs to owners that are gone. A namespace is touched only if its name
//! is one that this owner can have given, and, once recorded, only if it is still the same
//! namespace.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::namespace::Namespace;
use super::{LabError, cpu_limit};
use crate::observe::ProcessStat;

pub const RECORDS: &str = "/run/trafficspeed";
/// Larger files are no records.
const MAX_RECORD_BYTES: u64 = 1 << 20;

#[derive(Debug)]
pub struct Record {
    content: Content,
    path: PathBuf,
    directory: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    pid: u32,
    started: u64,
    namespaces: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    identity: Option<u64>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Cleanup {
    /// Namespaces that are gone now.
    pub removed: Vec<String>,
    /// Namespaces that stay, and why.
    pub kept: Vec<String>,
    /// Namespaces that could not be removed.
    pub problems: Vec<String>,
}

impl Record {
    /// Records that this process is about to make namespaces of these names.
    pub fn open(names: Vec<String>) -> Result<Self, LabError> {
        let pid = std::process::id();
        let started = ProcessStat::read(pid).map_or(0, |stat| stat.started);
        let namespaces = names.into_iter().map(|name| Entry { name, identity: None }).collect();
        let content = Content { pid, started, namespaces };
        let record = Self::at(Path::new(RECORDS), content);
        let make = || {
            fs::create_dir_all(RECORDS)?;
            match fs::create_dir(&record.directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            fs::set_permissions(&record.directory, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
            record.write()
        };
        make().map_err(|source| LabError::System {
            action: format!("writing {}", record.path.display()),
            source,
        })?;
        Ok(record)
    }

    fn at(base: &Path, content: Content) -> Self {
        let stem = format!("{}-{}", content.pid, content.started);
        Self { path: base.join(format!("{stem}.json")), directory: base.join(stem), content }
    }

    /// The run's own directory, for root only.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Records which namespaces stand behind the names.
    pub fn note_identities(&mut self) -> Result<(), LabError> {
        for entry in &mut self.content.namespaces {
            entry.identity = Namespace::unmade(&entry.name).identity();
        }
        self.write()
            .map_err(|source| LabError::System { action: format!("writing {}", self.path.display()), source })
    }

    fn write(&self) -> io::Result<()> {
        // A rename is whole or not at all: a crash never leaves half a record.
        let fresh = self.path.with_extension("new");
        fs::write(&fresh, serde_json::to_vec_pretty(&self.content)?)?;
        fs::rename(fresh, &self.path)
    }

    /// Ends what runs in the namespaces and removes them, the directory and the record; says what
    /// went wrong.
    pub fn remove_all(&self) -> Vec<String> {
        let mut outcome = Cleanup::default();
        self.remove_into(&mut outcome);
        outcome.problems
    }

    fn remove_into(&self, outcome: &mut Cleanup) {
        for entry in &self.content.namespaces {
            remove_namespace(&self.content, entry, outcome);
        }
        if outcome.problems.is_empty() {
            // The directory may never have been made; a record that stays is found by the next
            // cleanup.
            let _ = fs::remove_dir_all(&self.directory);
            let _ = fs::remove_file(&self.path);
        }
    }

    fn read(path: &Path) -> Result<Self, String> {
        let unusable = |reason: String| format!("{}: {reason}", path.display());
        let meta = fs::symlink_metadata(path).map_err(|error| unusable(error.to_string()))?;
        if !meta.is_file() || meta.len() > MAX_RECORD_BYTES {
            return Err(unusable("not a record of trafficspeed".into()));
        }
        let bytes = fs::read(path).map_err(|error| unusable(error.to_string()))?;
        let content: Content = serde_json::from_slice(&bytes).map_err(|error| unusable(error.to_string()))?;
        let record = Self::at(path.parent().unwrap_or(Path::new("/")), content);
        if record.path == path { Ok(record) } else { Err(unusable("its name and its content differ".into())) }
    }

    fn owner_lives(&self) -> bool {
        ProcessStat::read(self.content.pid).is_some_and(|stat| stat.started == self.content.started)
    }
}

/// Removes what runs that are gone left behind in `base` (see [`RECORDS`]).
pub fn cleanup(base: &Path) -> Cleanup {
    let mut outcome = Cleanup::default();
    let Ok(entries) = fs::read_dir(base) else { return outcome };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "json")) {
        match Record::read(path) {
            Err(problem) => outcome.kept.push(problem),
            Ok(record) if record.owner_lives() => {
                outcome.kept.push(format!("the lab of process {}, which still runs", record.content.pid));
            }
            Ok(record) => record.remove_into(&mut outcome),
        }
    }
    outcome
}

/// Whether `name` is one that the owner `pid` can have given to a namespace.
fn is_own_name(name: &str, pid: u32) -> bool {
    let Some(rest) = name.strip_prefix(&format!("ts{pid}")) else { return false };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    rest == "g" || ['c', 'h'].into_iter().any(|kind| rest.strip_prefix(kind).is_some_and(is_number))
}

fn remove_namespace(owner: &Content, entry: &Entry, outcome: &mut Cleanup) {
    let namespace = Namespace::unmade(&entry.name);
    if !is_own_name(&entry.name, owner.pid) {
        outcome.kept.push(format!("namespace {}: no name that trafficspeed gives", entry.name));
        return;
    }
    let present = namespace.identity();
    if present.is_some() && entry.identity.is_some_and(|recorded| Some(recorded) != present) {
        outcome.kept.push(format!("namespace {}: not the one that was made", entry.name));
        return;
    }
    end_processes(&namespace);
    // It may have outlasted its namespace.
    if let Err(error) = cpu_limit::remove(&entry.name) {
        outcome.problems.push(format!("removing the CPU limit of {}: {error}", entry.name));
    }
    if present.is_none() {
        return;
    }
    match namespace.remove() {
        Ok(()) => outcome.removed.push(entry.name.clone()),
        Err(error) => outcome.problems.push(error.to_string()),
    }
}

/// Ends the processes inside a namespace, which can only be ours; the caller itself is never
/// inside.
fn end_processes(namespace: &Namespace) {
    let deadline = Instant::now() + Duration::from_secs(3);
    let mut signal = Signal::TERM;
    loop {
        let inside = namespace.processes();
        if inside.is_empty() || Instant::now() > deadline {
            return;
        }
        for pid in inside.into_iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
            // Failure means that the process has just ended.
            let _ = kill_process(pid, signal);
        }
        // One polite request, then the other kind.
        std::thread::sleep(Duration::from_millis(if signal == Signal::TERM { 300 } else { 20 }));
        signal = Signal::KILL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(base: &Path, content: Content) -> PathBuf {
        let record = Record::at(base, content);
        record.write().unwrap();
        record.path
    }

    #[test]
    fn names_are_the_owners_only() {
        assert!(is_own_name("ts12g", 12) && is_own_name("ts12c3", 12) && is_own_name("ts12h0", 12));
        for foreign in
            ["ts12", "ts12c", "ts12h", "ts12ch1", "ts12x", "ts123g", "ts12c3x", "ts13g", "eth0", ""]
        {
            assert!(!is_own_name(foreign, 12), "{foreign}");
        }
    }

    #[test]
    fn records_of_the_living_and_foreign_names_are_left_alone() {
        let base = tempfile::tempdir().unwrap();
        let pid = std::process::id();
        let started = ProcessStat::read(pid).unwrap().started;
        let entry = |name: &str| Entry { name: name.into(), identity: None };
        let living = record(base.path(), Content { pid, started, namespaces: vec![entry("x")] });
        // Same id, other start: that process is gone and its number was given again.
        let gone = Content { pid, started: started + 1, namespaces: vec![entry("precious"), entry("ts1g")] };
        let gone = record(base.path(), gone);

        let outcome = cleanup(base.path());
        assert!(living.exists() && !gone.exists());
        assert!(outcome.removed.is_empty() && outcome.problems.is_empty());
        assert_eq!(outcome.kept.len(), 3, "{outcome:?}");
        assert!(outcome.kept.iter().any(|line| line.contains("which still runs")));
        assert!(outcome.kept.iter().any(|line| line.contains("precious")));
    }

    #[test]
    fn what_is_no_record_is_named_and_kept() {
        let base = tempfile::tempdir().unwrap();
        fs::write(base.path().join("a.json"), "{}").unwrap();
        std::os::unix::fs::symlink("/etc/hostname", base.path().join("b.json")).unwrap();
        let path = record(base.path(), Content { pid: 1, started: 2, namespaces: vec![] });
        fs::rename(&path, base.path().join("c.json")).unwrap();
        let outcome = cleanup(base.path());
        assert_eq!(outcome.kept.len(), 3, "{outcome:?}");
        assert!(cleanup(Path::new("/nonexistent")).kept.is_empty());
    }
}
