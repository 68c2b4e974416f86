//! The files of one system in one lab: a directory for root only, whose files no reader ever sees
//! half-written.
//!
//! The lab removes it with everything in it, so no adapter cleans up its own files.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::SystemError;
use crate::lab::Lab;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes the directory `name` of `lab`.
    pub fn make(lab: &Lab, name: &str) -> Result<Self, SystemError> {
        Self(lab.directory().to_owned()).sub(name)
    }

    /// Makes a directory inside it; `name` may hold slashes.
    pub fn sub(&self, name: &str) -> Result<Self, SystemError> {
        let path = self.0.join(name);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .map_err(|source| SystemError::Io { action: format!("making {}", path.display()), source })?;
        Ok(Self(path))
    }

    pub fn directory(&self) -> &Path {
        &self.0
    }

    /// Where its file `name` is.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file that is not there yet.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf, SystemError> {
        let path = self.path(name);
        let write = || {
            let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(text.as_bytes())
        };
        write()
            .map_err(|source| SystemError::Io { action: format!("writing {}", path.display()), source })?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn files_and_directories_are_their_owners_only_and_never_overwritten() {
        let base = tempfile::tempdir().unwrap();
        let folder = Folder(base.path().to_owned()).sub("a/b").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let secret = folder.write("secret", "x").unwrap();
        assert_eq!((mode(folder.directory()), mode(&secret)), (0o700, 0o600));
        assert!(folder.write("secret", "y").unwrap_err().to_string().contains("writing"));
        assert_eq!(fs::read_to_string(folder.path("secret")).unwrap(), "x");
    }
}
