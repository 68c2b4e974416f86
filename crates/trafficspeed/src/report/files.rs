//! A campaign in a directory: the reports that are written there, and the measurements from which
//! they can be made again.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use super::results::Results;
use crate::experiment::compare::journal::{self, JournalError};
use crate::experiment::compare::quiet::settle;
use crate::experiment::outcome::Campaign;

/// A campaign of experiment 1 that has no journal.
const CAMPAIGN: &str = "campaign.json";
/// The results of an experiment other than the first.
const MEASUREMENTS: &str = "measurements.json";
/// The largest file of measurements that is read.
const MOST_BYTES: u64 = 1 << 30;

/// Why a directory cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The system said no.
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The measurements are not what was written.
    #[error("{}: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
    /// There are no measurements.
    #[error("{} holds no measurements: none of {}, {CAMPAIGN} and {MEASUREMENTS} is there", directory.display(), journal::FILE)]
    Absent { directory: PathBuf },
    /// There are measurements already.
    #[error("{} holds the measurements of an earlier run: give another --out, or replace them with --force{}", path.display(), resumption(path))]
    Exists { path: PathBuf },
    /// The journal cannot be read.
    #[error("{0}")]
    Journal(#[from] JournalError),
}

fn resumption(path: &Path) -> String {
    match (path.file_name(), path.parent()) {
        (Some(name), Some(directory)) if name == journal::FILE => {
            format!("; `trafficspeed compare --resume {}` goes on with them", directory.display())
        }
        _ => String::new(),
    }
}

/// Sees to it that `directory` holds no measurements: with `force` by removing them.
///
/// # Errors
/// [`FilesError::Exists`] without, [`FilesError::Io`].
pub fn make_room(directory: &Path, force: bool) -> Result<(), FilesError> {
    [journal::FILE, CAMPAIGN, MEASUREMENTS].iter().try_for_each(|name| vacate(&directory.join(name), force))
}

/// Sees to it that no file with measurements is at `path`: with `force` by removing it.
///
/// # Errors
/// [`FilesError::Exists`] without, [`FilesError::Io`].
pub fn vacate(path: &Path, force: bool) -> Result<(), FilesError> {
    let path = path.to_owned();
    match fs::exists(&path) {
        Ok(false) => Ok(()),
        Ok(true) if !force => Err(FilesError::Exists { path }),
        Ok(true) => fs::remove_file(&path).map_err(|source| FilesError::Io { path, source }),
        Err(source) => Err(FilesError::Io { path, source }),
    }
}

/// Writes report.json, report.csv and report.html into `directory`.
pub fn write_reports(directory: &Path, results: &Results) -> Result<(), FilesError> {
    let json = serde_json::to_string_pretty(&results.json()).expect("keys are strings");
    write(directory, "report.json", (json + "\n").as_bytes())?;
    write(directory, "report.csv", results.csv().as_bytes())?;
    write(directory, "report.html", results.document(None).page().as_bytes())
}

/// Writes the measurements themselves into `directory`.
pub fn write_measurements(directory: &Path, results: &Results) -> Result<(), FilesError> {
    let (name, bytes) = match results {
        Results::Traffic(campaign) => (CAMPAIGN, serde_json::to_vec(campaign)),
        others => (MEASUREMENTS, serde_json::to_vec(others)),
    };
    write(directory, name, &bytes.expect("keys are strings"))
}

/// Reads the measurements in `directory`.
pub fn read(directory: &Path) -> Result<Results, FilesError> {
    if let Some(results) = read_file(&directory.join(MEASUREMENTS))? {
        return Ok(results);
    }
    if journal::is_in(directory) {
        let contents = journal::read(directory)?;
        let interrupted = contents.is_unfinished();
        let journal::Contents { header, mut runs, .. } = contents;
        settle(&mut runs);
        let (settings, environment, baseline) = (header.settings, header.environment, header.baseline);
        let campaign = Campaign::new(settings, environment, runs, interrupted, baseline);
        return Ok(Results::Traffic(Box::new(campaign)));
    }
    let campaign = read_file(&directory.join(CAMPAIGN))?.map(Results::Traffic);
    campaign.ok_or_else(|| FilesError::Absent { directory: directory.to_owned() })
}

/// Reads a file of measurements; `None` if there is none.
fn read_file<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, FilesError> {
    let path = path.to_owned();
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(FilesError::Io { path, source }),
    };
    let mut bytes = Vec::new();
    if let Err(source) = file.take(MOST_BYTES + 1).read_to_end(&mut bytes) {
        return Err(FilesError::Io { path, source });
    }
    if bytes.len() as u64 > MOST_BYTES {
        return Err(FilesError::Damaged { path, reason: "too large to be measurements".into() });
    }
    let read = serde_json::from_slice(&bytes);
    read.map(Some).map_err(|error| FilesError::Damaged { path, reason: error.to_string() })
}

/// Writes a file so that no reader sees it half-written.
pub fn write(directory: &Path, name: &str, bytes: &[u8]) -> Result<(), FilesError> {
    let path = directory.join(name);
    let put = || {
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(bytes)?;
        // Temporary files are for their owner only; reports for all who may see the directory.
        let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        fs::set_permissions(file.path(), readable)?;
        file.persist(&path).map_err(|error| error.error)?;
        Ok(())
    };
    put().map_err(|source| FilesError::Io { path: path.clone(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::compare::ComparePlan;
    use crate::experiment::compare::journal::{Header, Journal};
    use crate::experiment::compare::quiet::Limits;
    use crate::experiment::compare::same::Identity;
    use crate::experiment::outcome::samples;
    use crate::experiment::traffic::TrafficPlan;
    use crate::lab::LinkSettings;
    use crate::system::{Cipher, Kind, Programs, Subject};

    #[test]
    fn measurements_are_replaced_only_if_the_user_says_so() {
        for name in [journal::FILE, CAMPAIGN, MEASUREMENTS] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join(name);
            make_room(directory.path(), false).unwrap();
            fs::write(&path, "an hour's work").unwrap();
            let error = make_room(directory.path(), false).unwrap_err().to_string();
            assert!(
                error.contains("--force") && error.contains("--resume") == (name == journal::FILE),
                "{error}"
            );
            assert!(path.exists());
            make_room(directory.path(), true).unwrap();
            assert!(!path.exists());
        }
    }

    #[test]
    fn an_unfinished_comparison_is_shown_as_interrupted() {
        let Campaign { mut settings, environment, .. } = samples::campaign();
        settings.repeats = 2;
        let traffic = TrafficPlan {
            subjects: Subject::all(&[Kind::Vpnd, Kind::None], &[Cipher::Aes256Gcm], 0),
            clients: vec![2],
            settings: settings.clone(),
            links: LinkSettings::default(),
            programs: Programs::default(),
        };
        let limits = Limits { steal_percent: 5.0, foreign_percent: 10.0, attempts: 1 };
        let plan = ComparePlan { traffic, limits, baseline: None };
        let identity = Identity::of(&plan, &environment);
        let directory = tempfile::tempdir().unwrap();
        let header = Header::new(Vec::new(), identity, settings, environment, None);
        let mut journal = Journal::create(directory.path(), &header).unwrap();
        for slot in plan.traffic.slots() {
            let found = read(directory.path()).unwrap();
            assert!(found.is_interrupted(), "before {slot:?}");
            let shown = found.document(None);
            assert!(
                [shown.text(false, true), shown.page()].iter().all(|text| text.contains("Interrupted: "))
            );
            assert_eq!(found.json()["interrupted"], true);
            journal.append(&samples::run(slot.subject.kind, slot.clients, slot.repeat, 1_000)).unwrap();
        }
        let found = read(directory.path()).unwrap();
        assert!(!found.is_interrupted() && found.is_whole());
        let shown = found.document(None);
        assert!([shown.text(false, true), shown.page()].iter().all(|text| !text.contains("Interrupted")));
    }

    #[test]
    fn a_directory_without_measurements_or_with_damaged_ones_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let error = read(directory.path()).unwrap_err().to_string();
        assert!(
            error.contains("none of measurements.jsonl, campaign.json and measurements.json is there"),
            "{error}"
        );
        for (name, text, expected) in
            [(CAMPAIGN, "{\"settings\":", "EOF"), (MEASUREMENTS, "{\"experiment\":\"moon\"}", "moon")]
        {
            fs::write(directory.path().join(name), text).unwrap();
            let error = read(directory.path()).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(expected), "{error}");
        }
    }
}
