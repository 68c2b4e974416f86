//! Whether another user can put something else at a path: a program to start, a file to write as
//! root.
//!
//! INVARIANT: each directory and link on the way, through all links, and what is at its end,
//! belongs to root or to this user, and others can't write in a directory, unless only owners can
//! rename and remove what is in it, as in /tmp. This crate must not know what the path is for, nor
//! change anything.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Bits of a directory's mode that let others put something in it.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Only the owner of an entry of a directory with this bit may rename or remove it.
const STICKY: u32 = 0o1000;
/// Links that are followed, as many as the kernel does.
const MAX_LINKS: usize = 40;

/// Why others may put something else at a path.
#[derive(Debug, thiserror::Error)]
pub enum Untrusted {
    /// The path belongs to this user.
    #[error("{} belongs to user {uid}, who could put something else there", path.display())]
    Foreign {
        /// Which directory, link or file.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// The directory is open to others.
    #[error("others can write in {} and put something else there", path.display())]
    Open {
        /// Which directory.
        path: PathBuf,
    },
    /// The link leads to itself.
    #[error("{} is a link that leads in circles", path.display())]
    Circle {
        /// Which link.
        path: PathBuf,
    },
    /// It can't be looked at.
    #[error("can't look at {}: {error}", path.display())]
    Unknown {
        /// Which directory, link or file.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
}

/// Checks the way to `path`, at whose end there may be nothing yet.
///
/// # Errors
/// [`Untrusted`].
pub fn check(path: &Path) -> Result<(), Untrusted> {
    let mut rest = names(&std::path::absolute(path).map_err(unknown(path))?);
    // Without links in it.
    let mut at = PathBuf::from("/");
    let mut links = 0;
    while let Some(name) = rest.pop() {
        check_one(&at, &at.metadata().map_err(unknown(&at))?)?;
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        let found = match next.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound && rest.is_empty() => {
                // In a directory for all, anybody can put something there after this.
                let is_open = at.metadata().map_err(unknown(&at))?.mode() & WRITABLE_BY_OTHERS != 0;
                return if is_open { Err(Untrusted::Open { path: at }) } else { Ok(()) };
            }
            found => found.map_err(unknown(&next))?,
        };
        if !found.is_symlink() {
            at = next;
            continue;
        }
        check_one(&next, &found)?;
        links += 1;
        if links > MAX_LINKS {
            return Err(Untrusted::Circle { path: next });
        }
        let target = next.read_link().map_err(unknown(&next))?;
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        rest.extend(names(&target));
    }
    check_one(&at, &at.metadata().map_err(unknown(&at))?)
}

fn unknown(path: &Path) -> impl FnOnce(io::Error) -> Untrusted {
    let path = path.to_owned();
    |error| Untrusted::Unknown { path, error }
}

/// The components but for the root, last one first.
fn names(path: &Path) -> Vec<OsString> {
    let name = |component: Component<'_>| match component {
        Component::Normal(_) | Component::ParentDir => Some(component.as_os_str().to_owned()),
        _ => None,
    };
    path.components().rev().filter_map(name).collect()
}

fn check_one(path: &Path, found: &Metadata) -> Result<(), Untrusted> {
    let (us, uid) = (rustix::process::geteuid().as_raw(), found.uid());
    if ![0, us].contains(&uid) {
        return Err(Untrusted::Foreign { path: path.to_owned(), uid });
    }
    if found.is_dir() && found.mode() & WRITABLE_BY_OTHERS != 0 && found.mode() & STICKY == 0 {
        return Err(Untrusted::Open { path: path.to_owned() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    use super::*;

    #[test]
    fn a_way_that_others_can_change_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let [own, open] = ["own", "open"].map(|name| place.path().join(name));
        let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        for directory in [&own, &open] {
            fs::create_dir(directory).unwrap();
            mode(directory, 0o755);
        }
        let disk = own.join("disk");
        // The last of three links is in a directory that neither the path's name nor the true path
        // has.
        let links = [place.path().join("first"), open.join("second")];
        symlink(&links[1], &links[0]).unwrap();
        symlink("../own/disk", &links[1]).unwrap();
        let ways = || {
            [check(&disk), check(&links[0]), check(&own.join("../open/../own/disk"))]
                .map(|found| found.is_ok())
        };
        assert_eq!(ways(), [true; 3], "nothing is there yet");
        fs::write(&disk, "").unwrap();
        assert_eq!(ways(), [true; 3]);
        for writable in [0o775, 0o757] {
            mode(&open, writable);
            assert_eq!(ways(), [true, false, false], "{writable:o}");
        }
        let refused = check(&links[0]).unwrap_err().to_string();
        assert!(
            refused.contains("others can write in") && refused.contains("open and put something else there"),
            "{refused}"
        );
        mode(&open, 0o1777);
        assert_eq!(ways(), [true; 3]);
        mode(&own, 0o777);
        assert_eq!(ways(), [false; 3]);
        mode(&own, 0o755);
        fs::remove_file(&links[1]).unwrap();
        symlink(&links[1], &links[1]).unwrap();
        assert!(check(&links[0]).is_err(), "it has no end");
    }

    #[test]
    fn what_belongs_to_others_is_refused_in_a_directory_for_all() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), Permissions::from_mode(0o1777)).unwrap();
        let [disk, link] = ["disk", "link"].map(|name| place.path().join(name));
        assert!(check(&disk).is_err(), "anybody could put something there");
        fs::write(&disk, "").unwrap();
        symlink(&disk, &link).unwrap();
        assert!(check(&link).is_ok());
        lchown(&link, Some(65534), None).unwrap();
        assert!(check(&disk).is_ok() && check(&link).is_err());
        lchown(&disk, Some(65534), None).unwrap();
        let refused = check(&disk).unwrap_err().to_string();
        assert!(refused.contains("belongs to user 65534"), "{refused}");
    }
}
