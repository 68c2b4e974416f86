//! Where blocks go: a file of this program's own, a new file of a given name, or something that may be overwritten.
//!
//! INVARIANT: nothing that was there before is touched unless the user said that it may be.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// What the user wants.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// A file or block device; a file that is removed at the end if absent.
    pub path: Option<PathBuf>,
    /// What is there may be overwritten.
    pub overwrite: bool,
}

/// Why there is no place.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// It would destroy something.
    #[error("{0} holds data, which block writes would destroy; say --overwrite if it may be")]
    Precious(PathBuf),
    /// The system said no.
    #[error("{what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl PlaceError {
    /// An error of reading from `path`.
    pub fn reading(path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        Self::io("reading", path)
    }

    fn io(what: &'static str, path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { what, path: path.clone(), source }
    }
}

/// A file or device that is ready for block writes.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    reader: File,
    is_device: bool,
    // Removes the file at the end.
    _own: Option<NamedTempFile>,
}

impl Place {
    /// Makes it ready: a file gets `bytes` of zeros on disk, so that later writes change data and nothing else.
    ///
    /// # Errors
    /// [`PlaceError`].
    pub fn prepare(wish: &Wish, bytes: u64) -> Result<Self, PlaceError> {
        let Some(path) = wish.path.clone() else {
            let directory = std::env::temp_dir();
            let own =
                NamedTempFile::new_in(&directory).map_err(PlaceError::io("making a file in", &directory))?;
            let path = own.path().to_owned();
            fill(&path, bytes).map_err(PlaceError::io("writing", &path))?;
            return Self::open(path, false, Some(own));
        };
        let (exists, is_device, empty) = match path.metadata() {
            Ok(meta) => (true, meta.file_type().is_block_device(), meta.is_file() && meta.len() == 0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (false, false, true),
            Err(error) => return Err(PlaceError::io("looking at", &path)(error)),
        };
        if exists && !empty && !wish.overwrite {
            return Err(PlaceError::Precious(path));
        }
        if !is_device {
            fill(&path, bytes).map_err(PlaceError::io("writing", &path))?;
        }
        Self::open(path, is_device, None)
    }

    fn open(path: PathBuf, is_device: bool, own: Option<NamedTempFile>) -> Result<Self, PlaceError> {
        let reader = File::open(&path).map_err(PlaceError::io("opening", &path))?;
        Ok(Self { path, reader, is_device, _own: own })
    }

    /// Its name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the report says of it.
    pub fn describe(&self) -> String {
        let kind = if self.is_device { "block device" } else { "file" };
        format!("{kind} {}, written through the page cache", self.path.display())
    }

    /// Reads what it holds.
    ///
    /// # Errors
    /// What the system says.
    pub fn read_at(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.reader.read_exact_at(data, offset)
    }
}

fn fill(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
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
        let wish = |overwrite| Wish { path: Some(path.clone()), overwrite };
        let place = Place::prepare(&wish(false), 4096).unwrap();
        let mut data = [1; 4096];
        place.read_at(0, &mut data).unwrap();
        assert_eq!(data, [0; 4096]);
        assert!(matches!(Place::prepare(&wish(false), 4096), Err(PlaceError::Precious(_))));
        assert!(Place::prepare(&wish(true), 4096).is_ok());
    }

    #[test]
    fn a_file_of_our_own_goes_away() {
        let place = Place::prepare(&Wish::default(), 512).unwrap();
        let path = place.path().to_owned();
        assert!(path.exists());
        drop(place);
        assert!(!path.exists());
    }
}
