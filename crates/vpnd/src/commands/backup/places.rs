//! Where a restore may write.
//!
//! INVARIANT: the configuration inside a backup chooses the places of its files, so a restore
//! writes nothing outside the directory of the configuration unless the administrator named the
//! directory, and follows no symbolic link below it.

use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error(
        "the configuration in the backup puts a file outside {}: {}; if you want that, add: --outside {}",
        directory.display(), path.display(), path.parent().unwrap_or(path).display()
    )]
    Outside { path: PathBuf, directory: PathBuf },
    #[error("{} is or leads through a symbolic link; remove the link, then restore again", .0.display())]
    Link(PathBuf),
    #[error("can't look at {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// The directories below which a restore may write.
pub(super) struct Places(Vec<PathBuf>);

impl Places {
    /// `directory` is that of the configuration; the administrator has named the others.
    pub(super) fn new(directory: &Path, others: &[PathBuf]) -> Result<Self, PlaceError> {
        let all = std::iter::once(directory).chain(others.iter().map(PathBuf::as_path));
        Ok(Self(all.map(absolute).collect::<Result<_, _>>()?))
    }

    /// Checks that `path` lies below one of the directories.
    pub(super) fn check(&self, path: &Path) -> Result<(), PlaceError> {
        let below = |root: &PathBuf| Some((root.clone(), path.strip_prefix(root).ok()?.to_owned()));
        let is_plain = |rest: &Path| {
            rest.file_name().is_some() && rest.components().all(|part| matches!(part, Component::Normal(_)))
        };
        let place = self.0.iter().filter_map(below).find(|(_, rest)| is_plain(rest));
        let (root, rest) = place
            .ok_or_else(|| PlaceError::Outside { path: path.to_owned(), directory: self.0[0].clone() })?;
        match existing(&root, &rest) {
            Ok(()) => Ok(()),
            Err(Errno::LOOP) => Err(PlaceError::Link(path.to_owned())),
            Err(errno) => Err(PlaceError::Io { path: path.to_owned(), source: errno.into() }),
        }
    }
}

/// `path` as seen from the root directory.
pub(super) fn absolute(path: &Path) -> Result<PathBuf, PlaceError> {
    std::path::absolute(path).map_err(|source| PlaceError::Io { path: path.to_owned(), source })
}

/// Looks up `rest` below `root` without following a link, as far as it exists.
fn existing(root: &Path, rest: &Path) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = match rustix::fs::openat(CWD, root, flags | OFlags::DIRECTORY, Mode::empty()) {
        Ok(root) => root,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    for part in rest.ancestors().filter(|part| !part.as_os_str().is_empty()) {
        match rustix::fs::openat2(&root, part, flags, Mode::empty(), resolve) {
            Ok(_) => return Ok(()),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_plain_paths_below_the_named_directories_pass() {
        let dir = tempfile::tempdir().unwrap();
        let (etc, other) = (dir.path().join("etc"), dir.path().join("other"));
        let alone = Places::new(&etc, &[]).unwrap();
        let places = Places::new(&etc, std::slice::from_ref(&other)).unwrap();
        for path in ["etc/server.toml", "etc/state/vpnd.db", "etc/./key.pem"] {
            alone.check(&dir.path().join(path)).unwrap();
        }
        for path in ["other/key.pem", "etc2/key.pem", "etc", "key.pem"] {
            let error = alone.check(&dir.path().join(path)).unwrap_err();
            assert!(matches!(error, PlaceError::Outside { .. }), "{path}: {error}");
        }
        places.check(&other.join("key.pem")).unwrap();
        for path in ["other/../key.pem", "etc/../other/key.pem"] {
            assert!(places.check(&dir.path().join(path)).is_err(), "{path}");
        }
    }

    #[test]
    fn no_link_below_the_directory_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let etc = dir.path().join("etc");
        fs::create_dir_all(etc.join("inner")).unwrap();
        symlink(dir.path(), etc.join("elsewhere")).unwrap();
        symlink("inner", etc.join("alias")).unwrap();
        symlink("missing", etc.join("key.pem")).unwrap();
        let places = Places::new(&etc, &[]).unwrap();
        places.check(&etc.join("inner/key.pem")).unwrap();
        places.check(&etc.join("new/inner/key.pem")).unwrap();
        for path in ["elsewhere/key.pem", "alias/key.pem", "alias/new/key.pem", "key.pem"] {
            let error = places.check(&etc.join(path)).unwrap_err();
            assert!(matches!(error, PlaceError::Link(_)), "{path}: {error}");
        }
    }
}
