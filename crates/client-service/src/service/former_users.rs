//! Removes what is kept for users whose accounts the machine has no more: keys and profiles.
//!
//! INVARIANT: a lookup that fails removes nothing. Where accounts are kept elsewhere than in files,
//! too, "there is none" may mean that the directory is out of reach: such an account has to be
//! missing for a month.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use vpnd_sys::account::{self, AccountError};

/// A file in the directory of a user whose account is missing: since its time.
const MISSING: &str = "account-missing";
/// The time for which an account that is kept elsewhere has to be missing.
const MONTH: Duration = Duration::from_secs(30 * 24 * 3_600);
/// The most directories that are looked at in one go.
const MAX_LOOKED_AT: usize = 4_096;

/// The machine's accounts.
pub(super) trait Accounts {
    /// Whether this user, or the user of this name, has an account.
    fn exists(&self, uid: u32, name: &str) -> Result<bool, AccountError>;
    /// Whether all accounts are kept on this machine.
    fn are_local(&self) -> bool;
}

pub(super) struct ThisMachine;

impl Accounts for ThisMachine {
    fn exists(&self, uid: u32, name: &str) -> Result<bool, AccountError> {
        account::exists(uid, name)
    }

    fn are_local(&self) -> bool {
        account::are_local()
    }
}

/// Removes the directories in `users` of those who have no account any more and no tunnel
/// (`has_tunnel`), and returns their names. May take long.
pub(super) fn remove(
    users: &Path,
    accounts: &impl Accounts,
    has_tunnel: impl Fn(u32) -> bool,
    now: SystemTime,
) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(users) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let wait = if accounts.are_local() { Duration::ZERO } else { MONTH };
    let mut removed = Vec::new();
    for entry in entries.take(MAX_LOOKED_AT) {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Directories are named by a number and a name; what else is there is not the service's.
        let Some((uid, user)) = name.split_once('-') else { continue };
        let Ok(uid) = uid.parse() else { continue };
        if !entry.file_type()?.is_dir() || has_tunnel(uid) {
            continue;
        }
        let mark = entry.path().join(MISSING);
        match accounts.exists(uid, user) {
            Ok(true) => match fs::remove_file(&mark) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            },
            Ok(false) => {
                if missing_for(&mark, now)? >= wait {
                    fs::remove_dir_all(entry.path())?;
                    removed.push(name);
                }
            }
            Err(error) => tracing::debug!(uid, %error, "whether this user is still there is not known"),
        }
    }
    Ok(removed)
}

/// The time since the account was missed first, which is now if it was not missed before.
fn missing_for(mark: &Path, now: SystemTime) -> io::Result<Duration> {
    match fs::metadata(mark) {
        Ok(found) => Ok(now.duration_since(found.modified()?).unwrap_or_default()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            File::create(mark)?.set_modified(now)?;
            Ok(Duration::ZERO)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `None` for a lookup that fails.
    struct Made {
        exists: Option<bool>,
        are_local: bool,
    }

    impl Accounts for Made {
        fn exists(&self, _: u32, _: &str) -> Result<bool, AccountError> {
            self.exists.ok_or_else(|| AccountError::NoSuchUser("a directory that does not answer".to_owned()))
        }

        fn are_local(&self) -> bool {
            self.are_local
        }
    }

    fn place() -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("1001-ann/profiles")).unwrap();
        fs::write(place.path().join("1001-ann/profiles/work.toml"), "x").unwrap();
        fs::create_dir(place.path().join("other")).unwrap();
        fs::write(place.path().join("1002-file"), "x").unwrap();
        place
    }

    fn removed(place: &tempfile::TempDir, accounts: &Made, days: u32) -> Vec<String> {
        let now = SystemTime::UNIX_EPOCH + MONTH + Duration::from_secs(24 * 3_600) * days;
        remove(place.path(), accounts, |uid| uid == 1_003, now).unwrap()
    }

    #[test]
    fn files_of_a_deleted_local_user_are_removed_at_once() {
        let place = place();
        fs::create_dir(place.path().join("1003-connected")).unwrap();
        let gone = Made { exists: Some(false), are_local: true };
        assert_eq!(removed(&place, &gone, 0), ["1001-ann"]);
        for kept in ["other", "1002-file", "1003-connected"] {
            assert!(place.path().join(kept).exists(), "{kept}");
        }
        assert!(remove(&place.path().join("none"), &gone, |_| false, SystemTime::now()).unwrap().is_empty());
    }

    #[test]
    fn a_lookup_that_fails_and_an_account_that_is_there_remove_nothing() {
        let place = place();
        for exists in [None, Some(true)] {
            for are_local in [true, false] {
                assert!(removed(&place, &Made { exists, are_local }, 100).is_empty());
            }
        }
        assert!(place.path().join("1001-ann/profiles/work.toml").exists());
    }

    #[test]
    fn an_account_that_is_kept_elsewhere_has_to_be_missing_for_a_month() {
        let place = place();
        let gone = Made { exists: Some(false), are_local: false };
        assert!(removed(&place, &gone, 0).is_empty());
        assert!(removed(&place, &gone, 29).is_empty());
        // It was there in between.
        assert!(removed(&place, &Made { exists: Some(true), ..gone }, 29).is_empty());
        assert!(removed(&place, &gone, 31).is_empty());
        assert!(removed(&place, &gone, 60).is_empty());
        assert_eq!(removed(&place, &gone, 61), ["1001-ann"]);
    }
}
