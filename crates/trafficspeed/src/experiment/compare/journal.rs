//! The measurements of a comparison in a file: one JSON value per line, a header first, then every
//! attempt.
//!
//! INVARIANT: a line is written whole and reaches the disk before the next measurement begins, so
//! whatever kills the program costs at most the measurement that was running. A last line without
//! its end is what such a kill left and is cut off; any other line that cannot be read is damage
//! and refused.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::same::Identity;
use crate::experiment::environment::Environment;
use crate::experiment::outcome::{Pair, Run, Settings};

/// The file's name in the output directory.
pub const FILE: &str = "measurements.jsonl";
/// The version of the file's layout.
const FORMAT: u32 = 1;
/// The largest file that is read: some 10,000 measurements with many connections.
const MOST_BYTES: u64 = 1 << 30;

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Reading or writing failed.
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// There is one already.
    #[error(
        "{} holds measurements already; `trafficspeed compare --resume {}` goes on with them, \
         or choose another directory with --out", path.display(), directory.display()
    )]
    Exists { path: PathBuf, directory: PathBuf },
    #[error("{} is not there: this directory holds no comparison", path.display())]
    Absent {
        /// Where it should be.
        path: PathBuf,
    },
    /// It is not what was written.
    #[error("{}, line {line}: {reason}; move the file away to start again", path.display())]
    Damaged {
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        reason: String,
    },
    /// Another process is writing it.
    #[error("{} is in use by another trafficspeed", path.display())]
    InUse { path: PathBuf },
}

/// The first line: what is measured, with what, where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// See [`FORMAT`].
    pub format: u32,
    /// The words of the command line after the program, to go on with the same.
    pub words: Vec<String>,
    /// Must be the same for results to belong together.
    pub identity: Identity,
    pub settings: Settings,
    pub environment: Environment,
    /// The label of the chosen baseline.
    pub baseline: Option<String>,
}

impl Header {
    /// A header of the present format.
    pub fn new(
        words: Vec<String>,
        identity: Identity,
        settings: Settings,
        environment: Environment,
        baseline: Option<String>,
    ) -> Self {
        Self { format: FORMAT, words, identity, settings, environment, baseline }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line<H, R> {
    Header(H),
    Run(R),
}

/// A journal that can be written.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
}

#[derive(Debug)]
pub struct Contents {
    pub header: Header,
    /// All attempts in the order they were made; none is marked yet as superseded.
    pub runs: Vec<Run>,
    /// The length of the whole lines in bytes.
    whole: u64,
}

impl Journal {
    /// Makes the journal of a new comparison in `directory`. The file appears whole or not at all.
    ///
    /// # Errors
    /// [`JournalError`], [`JournalError::Exists`] above all.
    pub fn create(directory: &Path, header: &Header) -> Result<Self, JournalError> {
        let path = directory.join(FILE);
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AlreadyExists => {
                JournalError::Exists { path: path.clone(), directory: directory.to_owned() }
            }
            _ => JournalError::Io { path: path.clone(), source },
        };
        let mut file = tempfile::NamedTempFile::new_in(directory).map_err(failed)?;
        file.write_all(&line(&Line::<_, &Run>::Header(header))).map_err(failed)?;
        // Temporary files are for their owner only; results for all who may see the directory.
        file.as_file().set_permissions(Permissions::from_mode(0o644)).map_err(failed)?;
        file.as_file().sync_all().map_err(failed)?;
        file.persist_noclobber(&path).map_err(|error| failed(error.error))?;
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
        Ok(Self::open(directory)?.0)
    }

    /// Opens the journal in `directory` to go on with it, and cuts off what a kill left of its last
    /// line.
    pub fn open(directory: &Path) -> Result<(Self, Contents), JournalError> {
        let path = directory.join(FILE);
        let file = OpenOptions::new().read(true).append(true).open(&path);
        let file = file.map_err(|source| unopened(&path, source))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(JournalError::InUse { path }),
            Err(TryLockError::Error(source)) => return Err(JournalError::Io { path, source }),
        }
        let contents = contents(&path, &file)?;
        file.set_len(contents.whole).map_err(|source| JournalError::Io { path: path.clone(), source })?;
        Ok((Self { file, path }, contents))
    }

    /// Adds a result; it is on the disk when this returns.
    pub fn append(&mut self, run: &Run) -> Result<(), JournalError> {
        let line = line(&Line::<&Header, _>::Run(run));
        let written = self.file.write_all(&line).and_then(|()| self.file.sync_data());
        written.map_err(|source| JournalError::Io { path: self.path.clone(), source })
    }
}

impl Contents {
    /// Whether the comparison ended before all of its plan was tried, or still runs: there are
    /// measurements without any attempt, or the last attempt was broken off. One that failed for
    /// another reason was tried, and is a failure, not an interruption.
    pub fn is_unfinished(&self) -> bool {
        let tried: HashSet<_> = self.runs.iter().map(|run| (run.subject, run.clients, run.repeat)).collect();
        let per_round = self.header.identity.measurements_per_round().unwrap_or(1);
        let stopped = |run: &Run| {
            let mut outcomes = run.pairs.iter().flat_map(Pair::outcomes);
            run.interrupted || outcomes.any(|outcome| outcome.stopped_early)
        };
        tried.len() < per_round * self.header.settings.repeats as usize
            || self.runs.last().is_some_and(stopped)
    }
}

/// Reads the journal in `directory` and leaves it as it is, also while it is being written.
pub fn read(directory: &Path) -> Result<Contents, JournalError> {
    let path = directory.join(FILE);
    let file = File::open(&path).map_err(|source| unopened(&path, source))?;
    contents(&path, &file)
}

/// Whether `directory` holds a journal.
pub fn is_in(directory: &Path) -> bool {
    fs::exists(directory.join(FILE)).unwrap_or(false)
}

impl Drop for Journal {
    fn drop(&mut self) {
        // A child that is just being started by another thread shares the file until it becomes its
        // program, and closing would leave the lock with it. Failure means that closing releases it
        // a moment later.
        let _ = self.file.unlock();
    }
}

fn unopened(path: &Path, source: io::Error) -> JournalError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound => JournalError::Absent { path },
        _ => JournalError::Io { path, source },
    }
}

fn line(value: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).expect("results have string keys and nothing that refuses");
    line.push(b'\n');
    line
}

fn contents(path: &Path, file: &File) -> Result<Contents, JournalError> {
    let damaged =
        |line, reason: &str| JournalError::Damaged { path: path.to_owned(), line, reason: reason.to_owned() };
    let mut bytes = Vec::new();
    let read = file.take(MOST_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|source| JournalError::Io { path: path.to_owned(), source })?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(damaged(1, "the file is too large to be a comparison"));
    }
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    let mut lines = bytes[..whole].split_inclusive(|byte| *byte == b'\n').zip(1..);
    let (first, _) = lines.next().ok_or_else(|| damaged(1, "there is no whole line"))?;
    let header = match serde_json::from_slice(first) {
        Ok(Line::<Header, Run>::Header(header)) => header,
        Ok(Line::Run(_)) => return Err(damaged(1, "the header is missing")),
        Err(error) => return Err(damaged(1, &error.to_string())),
    };
    if header.format != FORMAT {
        return Err(damaged(
            1,
            &format!("format {} is not {FORMAT}, which this version reads", header.format),
        ));
    }
    let mut runs = Vec::new();
    for (text, number) in lines {
        match serde_json::from_slice(text) {
            Ok(Line::<Header, Run>::Run(run)) => runs.push(run),
            Ok(Line::Header(_)) => return Err(damaged(number, "a second header")),
            Err(error) => return Err(damaged(number, &error.to_string())),
        }
    }
    Ok(Contents { header, runs, whole: whole as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::compare::same::tests::identity;
    use crate::experiment::outcome::samples;
    use crate::system::Kind;

    fn header() -> Header {
        let campaign = samples::campaign();
        Header::new(vec!["compare".into()], identity(), campaign.settings, campaign.environment, None)
    }

    /// A journal with two results.
    fn journal() -> (tempfile::TempDir, Vec<Run>) {
        let directory = tempfile::tempdir().unwrap();
        let runs = vec![samples::run(Kind::Vpnd, 4, 1, 1_234_567), samples::run(Kind::None, 4, 1, 7_654_321)];
        let mut journal = Journal::create(directory.path(), &header()).unwrap();
        runs.iter().for_each(|run| journal.append(run).unwrap());
        (directory, runs)
    }

    fn as_json(runs: &[Run]) -> String {
        serde_json::to_string(runs).unwrap()
    }

    #[test]
    fn what_was_appended_is_read_again() {
        let (directory, runs) = journal();
        let contents = read(directory.path()).unwrap();
        assert_eq!(contents.header, header());
        assert_eq!(as_json(&contents.runs), as_json(&runs));
        assert!((contents.runs[0].goodput() - runs[0].goodput()).abs() < 1e-6);
        assert!(is_in(directory.path()) && !is_in(Path::new("/proc/self")));
    }

    #[test]
    fn a_comparison_is_unfinished_until_every_measurement_of_its_plan_was_tried() {
        let mut header = header();
        header.settings.repeats = 2;
        let mut runs = Vec::new();
        for (repeat, clients) in [(1, 2), (1, 4), (2, 2), (2, 4)] {
            runs.extend([Kind::Vpnd, Kind::None].map(|kind| samples::run(kind, clients, repeat, 1_000)));
        }
        runs[7].error = Some("did not come up".into());
        let whole = Contents { header, runs, whole: 0 };
        assert!(!whole.is_unfinished(), "a failure is no interruption");
        let with = |change: fn(&mut Vec<Run>)| {
            let mut runs = whole.runs.clone();
            change(&mut runs);
            Contents { header: whole.header.clone(), runs, whole: 0 }.is_unfinished()
        };
        assert!(with(Vec::clear) && with(|runs| runs.truncate(4)), "a round is left");
        assert!(with(|runs| runs.truncate(7)), "one measurement is left");
        assert!(with(|runs| runs[7] = runs[6].clone()), "another attempt is no other measurement");
        let stopped = |runs: &mut Vec<Run>| {
            let outcome = runs[7].pairs[0].ends[0].outcome.as_mut();
            outcome.unwrap().stopped_early = true;
        };
        assert!(with(stopped), "the last attempt was broken off");
        assert!(with(|runs| runs[7].interrupted = true), "while it came up");
    }

    #[test]
    fn a_truncated_journal_loses_at_most_its_last_line() {
        let (directory, runs) = journal();
        let path = directory.path().join(FILE);
        let bytes = fs::read(&path).unwrap();
        let ends: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] == b'\n').map(|at| at + 1).collect();
        for cut in [ends[0], ends[0] + 1, ends[1] - 1, ends[1], ends[1] + 20, ends[2] - 1] {
            fs::write(&path, &bytes[..cut]).unwrap();
            let (mut journal, contents) = Journal::open(directory.path()).unwrap();
            let expected = ends.iter().filter(|end| **end <= cut).count() - 1;
            assert_eq!(contents.runs.len(), expected, "cut at {cut}");
            journal.append(&runs[1]).unwrap();
            drop(journal);
            let after = read(directory.path()).unwrap();
            assert_eq!(after.runs.len(), expected + 1, "cut at {cut}");
            assert_eq!(as_json(&after.runs[expected..]), as_json(&runs[1..]));
        }
    }

    #[test]
    fn damage_elsewhere_is_refused_with_its_line() {
        let (directory, _) = journal();
        let path = directory.path().join(FILE);
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for (damaged, expected) in [
            (format!("{}\n{{\"run\":\n{}\n", lines[0], lines[2]), "line 2: "),
            (format!("{}\n{}\n", lines[0], lines[0]), "line 2: a second header"),
            (format!("{}\n", lines[1]), "line 1: the header is missing"),
            (String::new(), "line 1: there is no whole line"),
            (lines[0].to_owned(), "line 1: there is no whole line"),
            (text.replacen("\"format\":1", "\"format\":2", 1), "format 2 is not 1"),
        ] {
            fs::write(&path, damaged).unwrap();
            let error = Journal::open(directory.path()).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("start again"), "{error}");
        }
    }

    #[test]
    fn a_journal_is_never_overwritten_shared_or_made_up() {
        let (directory, _) = journal();
        let error = Journal::create(directory.path(), &header()).unwrap_err();
        assert!(error.to_string().contains("--resume"), "{error}");
        let _open = Journal::open(directory.path()).unwrap();
        assert!(matches!(Journal::open(directory.path()), Err(JournalError::InUse { .. })));
        let empty = tempfile::tempdir().unwrap();
        assert!(matches!(Journal::open(empty.path()), Err(JournalError::Absent { .. })));
        assert!(matches!(read(empty.path()), Err(JournalError::Absent { .. })));
    }
}
