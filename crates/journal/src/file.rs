//! The file of a running process's journal: records are appended and durable, and it never grows
//! past what is read.
//!
//! INVARIANT: at every moment the file under the journal's name holds all records of changes that
//! may be in force. It is locked as long as its process lives, however that ends, and by that
//! others distinguish a journal in use from an abandoned one.

use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;

use super::directory::{JournalDirectory, MAX_LEN};
use super::{EXTENSION, UNFINISHED_SUFFIX};
use vpnd_sys::lock::LockedFile;

/// The length from which a journal is rewritten without its finished changes.
const COMPACTED_FROM: u64 = 1 << 20;
/// The longest journal that is written.
pub(super) const MAX_WRITTEN: u64 = MAX_LEN / 2;
/// Bytes that changes in force may take, so that room is left to note down that they are undone.
pub(super) const MAX_IN_FORCE: u64 = MAX_WRITTEN / 2;

/// Names that are tried: another network namespace may have a process of the same number, or an
/// earlier boot.
const NAMES: usize = 10_000;

#[derive(Debug)]
pub(super) struct JournalFile {
    directory: JournalDirectory,
    name: String,
    file: LockedFile,
    /// Bytes of whole records.
    len: u64,
    /// Its length when it was last rewritten.
    compacted_len: u64,
    /// Whether its name stands in the directory also after a power cut.
    is_named: bool,
}

impl JournalFile {
    /// Creates one that begins with `header`.
    pub(super) fn create(directory: &JournalDirectory, header: &str) -> io::Result<Self> {
        let pid = std::process::id();
        for number in 0..NAMES {
            let name = format!("{pid}-{number}.{EXTENSION}");
            let mut file = match directory.create_file(&name) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                file => file?,
            };
            // A process that dies now leaves a file without a record, which the next one that looks
            // removes.
            file.write_all(header.as_bytes())?;
            file.sync_all()?;
            directory.sync()?;
            let len = header.len() as u64;
            let directory = directory.try_clone()?;
            return Ok(Self { directory, name, file, len, compacted_len: len, is_named: true });
        }
        Err(io::Error::new(io::ErrorKind::AlreadyExists, "too many journals of earlier processes are there"))
    }

    /// The directory that it lies in.
    pub(super) fn directory(&self) -> &JournalDirectory {
        &self.directory
    }

    /// Its name without the ending, which no other journal of the directory has.
    pub(super) fn stem(&self) -> &str {
        self.name.split('.').next().unwrap_or(&self.name)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.directory.path_of(&self.name)
    }

    /// Whether `more` bytes should not be appended before the file is rewritten.
    pub(super) fn is_due(&self, more: usize) -> bool {
        let limit = COMPACTED_FROM.max(2 * self.compacted_len).min(MAX_WRITTEN);
        self.len + more as u64 > limit
    }

    /// Appends a line and waits until it is durable. A line that could not be written in full is
    /// cut off again, so that the next one starts on a new line.
    pub(super) fn append(&mut self, line: &str) -> io::Result<()> {
        self.make_name_durable()?;
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => {
                self.len += line.len() as u64;
                Ok(())
            }
            Err(error) => {
                let position = self.file.seek(SeekFrom::Start(self.len));
                let _ = position.and_then(|_| self.file.set_len(self.len));
                Err(error)
            }
        }
    }

    /// Puts a file with this text in its place, in one step.
    pub(super) fn rewrite(&mut self, text: &str) -> io::Result<()> {
        let unfinished = format!("{}{UNFINISHED_SUFFIX}", self.name);
        // It may be left of an attempt that failed.
        let _ = self.directory.remove(&unfinished);
        let mut file = self.directory.create_file(&unfinished)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        self.directory.rename(&unfinished, &self.name)?;
        let len = text.len() as u64;
        (self.file, self.len, self.compacted_len, self.is_named) = (file, len, len, false);
        self.make_name_durable()
    }

    fn make_name_durable(&mut self) -> io::Result<()> {
        if !self.is_named {
            self.directory.sync()?;
            self.is_named = true;
        }
        Ok(())
    }

    /// Takes the file apart: its directory, its name there, and the file, still locked.
    pub(super) fn into_parts(self) -> (JournalDirectory, String, LockedFile) {
        (self.directory, self.name, self.file)
    }
}

#[cfg(test)]
impl JournalFile {
    /// Lets every write fail from now on.
    pub(super) fn break_for_test(&mut self) {
        *self.file = std::fs::File::open("/dev/null").expect("it is there");
    }
}
