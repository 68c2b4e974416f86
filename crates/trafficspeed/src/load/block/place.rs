//! Where blocks go: a file of this program's own, a new file of a given name, or something that may
//! be overwritten.
//!
//! INVARIANT: nothing that was there before is touched unless the user said that it may be, nor
//! what an attacker can put there.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, TempPath};

/// How the names of this program's own files begin.
const OWN_PREFIX: &str = "trafficspeed-blocks-";

/// The place that the user asked for.
#[derive(Clone, Debug, Default)]
pub struct PlaceOptions {
    /// A file or block device, or a directory for a file that is removed at the end; the directory
    /// for temporary files if absent.
    pub path: Option<PathBuf>,
    /// Existing contents may be overwritten.
    pub overwrite: bool,
}

/// Why there is no place.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// It would destroy something.
    #[error("{0} holds data, which block writes would destroy; say --overwrite if it may be")]
    Precious(PathBuf),
    /// Another user can put something else there.
    #[error(
        "{0}: choose a place for blocks that is yours or root's alone, or take the others' right away with chmod go-w"
    )]
    Untrusted(#[from] trusted_path::Untrusted),
    /// The system said no.
    #[error("{action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

impl PlaceError {
    /// An error of reading from `path`.
    pub fn reading(path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        Self::io("reading", path)
    }

    fn io(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { action, path: path.clone(), source }
    }
}

/// A file or device that is ready for block writes.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    reader: File,
    is_device: bool,
    bytes: u64,
    /// Removes the file at the end.
    own: Option<TempPath>,
}

impl Place {
    /// Makes it ready: a file gets `bytes` of zeros on disk, so that later writes change data and
    /// nothing else.
    pub fn prepare(options: &PlaceOptions, bytes: u64) -> Result<Self, PlaceError> {
        let path = options.path.clone().unwrap_or_else(std::env::temp_dir);
        trusted_path::check(&path)?;
        if path.is_dir() {
            let own = NamedTempFile::with_prefix_in(OWN_PREFIX, &path);
            let own = own.map_err(PlaceError::io("making a file in", &path))?;
            let path = own.path().to_owned();
            fill(&path, bytes, false).map_err(PlaceError::io("writing", &path))?;
            return Self::open(path, false, Some(own.into_temp_path()));
        }
        let (exists, is_device, empty) = match path.metadata() {
            Ok(meta) => (true, meta.file_type().is_block_device(), meta.is_file() && meta.len() == 0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (false, false, true),
            Err(error) => return Err(PlaceError::io("looking at", &path)(error)),
        };
        if exists && !empty && !options.overwrite {
            return Err(PlaceError::Precious(path));
        }
        if !is_device {
            fill(&path, bytes, !exists).map_err(PlaceError::io("writing", &path))?;
        }
        Self::open(path, is_device, None)
    }

    /// A place that another process of this program has made ready.
    pub fn ready(path: &Path) -> Result<Self, PlaceError> {
        let meta = path.metadata().map_err(PlaceError::io("looking at", path))?;
        Self::open(path.to_owned(), meta.file_type().is_block_device(), None)
    }

    fn open(path: PathBuf, is_device: bool, own: Option<TempPath>) -> Result<Self, PlaceError> {
        let opened = File::open(&path).and_then(|mut file| Ok((file.seek(SeekFrom::End(0))?, file)));
        let (bytes, reader) = opened.map_err(PlaceError::io("opening", &path))?;
        Ok(Self { path, reader, is_device, bytes, own })
    }

    /// Removes a file of this program's own when it is dropped: for a caller that ends before this
    /// value does.
    pub fn removal(&mut self) -> Option<TempPath> {
        self.own.take()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its description in the report.
    pub fn describe(&self) -> String {
        let kind = if self.is_device { "block device" } else { "file" };
        format!("{kind} {}, written through the page cache", self.path.display())
    }

    /// Reads what it holds.
    pub fn read_at(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.reader.read_exact_at(data, offset)
    }
}

/// Writes zeros. A `new` file is none that another process has made meanwhile.
fn fill(path: &Path, bytes: u64, new: bool) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(new).open(path)?;
    let zeros = vec![0; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let part = left.min(zeros.len() as u64) as usize;
        file.write_all(&zeros[..part])?;
        left -= part as u64;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_data_is_overwritten_only_with_leave() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let options = |overwrite| PlaceOptions { path: Some(path.clone()), overwrite };
        let place = Place::prepare(&options(false), 4096).unwrap();
        let mut data = [1; 4096];
        place.read_at(0, &mut data).unwrap();
        assert_eq!(data, [0; 4096]);
        assert!(matches!(Place::prepare(&options(false), 4096), Err(PlaceError::Precious(_))));
        assert!(Place::prepare(&options(true), 4096).is_ok());
    }

    #[test]
    fn a_temporary_block_file_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        for (wanted, parent) in
            [(None, std::env::temp_dir()), (Some(directory.path().to_owned()), directory.path().to_owned())]
        {
            let place = Place::prepare(&PlaceOptions { path: wanted, overwrite: false }, 512).unwrap();
            let path = place.path().to_owned();
            assert_eq!((path.parent(), place.bytes()), (Some(parent.as_path()), 512));
            drop(place);
            assert!(!path.exists());
        }
    }
}
