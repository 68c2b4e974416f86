//! The key of this device, by which a gateway recognises it: it gives a returning user the same
//! inner addresses, and takes an attach token from no other device (PROTOCOL §4.1).
//!
//! Invariants: the key is in a file that only its owner can read, or it is not used; two
//! clients of one machine never use one key at the same time. It leaves this process only as
//! signatures over bindings. Keys are few, however many names a user types.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rand::TryRng as _;
use rand::rngs::SysRng;
use rustix::fs::OFlags;
use sha2::{Digest, Sha256};
use vpnd_crypto::device::PKCS8_LEN;
use vpnd_crypto::{DeviceKey, Secret};
use zeroize::Zeroizing;

use vpnd_sys::lock::LockedFile;
use vpnd_sys::secret_file::SECRET_MODE;

/// Clients of one user and gateway on one machine at the same time, at most.
const MAX_INSTANCES: usize = 64;
/// Keys in one directory, besides those of running clients.
const MAX_KEYS: usize = 256;
/// Begins the names of their files.
const PREFIX: &str = "device-";

#[derive(Debug, thiserror::Error)]
pub(super) enum DeviceError {
    #[error("the device's key can't be kept in {}: {source}", path.display())]
    Os { path: PathBuf, source: io::Error },
    #[error(
        "the device's key in {} is not used, for {problem}, and others may have it: remove the file, and the next login \
         makes a new key",
        path.display()
    )]
    Exposed { path: PathBuf, problem: &'static str },
    #[error("{MAX_INSTANCES} clients of this user and gateway run on this machine already: end one of them")]
    TooMany,
}

/// A name for a file that belongs to all of these together.
pub(super) fn file_name<'p>(parts: impl IntoIterator<Item = &'p str>) -> String {
    let mut hash = Sha256::new();
    for (place, part) in parts.into_iter().enumerate() {
        if place > 0 {
            hash.update([0]);
        }
        hash.update(part);
    }
    hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The key of a device while a client uses it: a second client on the machine gets another one.
#[derive(Debug)]
pub(super) struct Device {
    key: DeviceKey,
    /// Holds the lock.
    _file: LockedFile,
}

impl Device {
    /// Takes the first key in `directory` that no other client of this user and gateway uses; makes
    /// one if need be.
    ///
    /// # Errors
    /// If the directory can't be written, others may have the key, or all are in use.
    pub(super) fn take(directory: &Path, user: &str, gateway: &str) -> Result<Self, DeviceError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|source| DeviceError::Os { path: directory.to_owned(), source })?;
        let name = file_name([user, gateway]);
        for instance in 0..MAX_INSTANCES {
            let path = directory.join(format!("{PREFIX}{name}-{instance}"));
            if !path.exists() {
                forget_oldest(directory)
                    .map_err(|source| DeviceError::Os { path: directory.to_owned(), source })?;
            }
            let Some(file) = lock(&path).map_err(|source| DeviceError::Os { path: path.clone(), source })?
            else {
                continue;
            };
            return Self::of_file(file, path);
        }
        Err(DeviceError::TooMany)
    }

    /// The key, which signs and names the device.
    #[must_use]
    pub(super) fn key(&self) -> &DeviceKey {
        &self.key
    }

    fn of_file(mut file: LockedFile, path: PathBuf) -> Result<Self, DeviceError> {
        match exposure(&file).and_then(|problem| match problem {
            None => read_or_make(&mut file).map(Ok),
            Some(problem) => Ok(Err(problem)),
        }) {
            Ok(Ok(key)) => Ok(Self { key, _file: file }),
            Ok(Err(problem)) => Err(DeviceError::Exposed { path, problem }),
            Err(source) => Err(DeviceError::Os { path, source }),
        }
    }
}

/// Removes keys that were used longest ago until there is a place for another one.
fn forget_oldest(directory: &Path) -> io::Result<()> {
    let mut kept = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // Another client may have removed it.
        let Ok(used) = entry.metadata().and_then(|metadata| metadata.modified()) else { continue };
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            kept.push((used, entry.path()));
        }
    }
    kept.sort();
    let mut surplus = (kept.len() + 1).saturating_sub(MAX_KEYS);
    for (_, path) in kept {
        if surplus == 0 {
            break;
        }
        // A directory stays, and so does a key that a client holds.
        if let Ok(Some(_held)) = lock(&path) {
            fs::remove_file(&path)?;
            surplus -= 1;
        }
    }
    Ok(())
}

/// The file, unless another client holds it. A link is not followed: what it names is no file of
/// ours.
fn lock(path: &Path) -> io::Result<Option<LockedFile>> {
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(SECRET_MODE).custom_flags(flags);
    let file = options.open(path)?;
    LockedFile::try_lock(file)
}

/// The reason why others may have read the file, if there is one.
fn exposure(file: &File) -> io::Result<Option<&'static str>> {
    let metadata = file.metadata()?;
    Ok(if !metadata.is_file() || metadata.nlink() != 1 {
        Some("it is not a file with one name")
    } else if metadata.uid() != rustix::process::geteuid().as_raw() {
        Some("it belongs to another user")
    } else if metadata.mode() & 0o077 != 0 {
        Some("other users may read or write it")
    } else {
        None
    })
}

/// The key in the file. One that is new or was cut by a crash gets a new key: that costs the
/// addresses of before, and a login.
fn read_or_make(file: &mut File) -> io::Result<DeviceKey> {
    // With its full size at once: growing would leave a copy behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(2 * PKCS8_LEN));
    Read::by_ref(file).take(PKCS8_LEN as u64 + 1).read_to_end(&mut bytes)?;
    if let Some(key) = DeviceKey::from_pkcs8(&bytes) {
        // The keys that were used longest ago are forgotten first.
        file.set_modified(SystemTime::now())?;
        return Ok(key);
    }
    let seed = Secret::try_fill(|seed| SysRng.try_fill_bytes(seed)).map_err(io::Error::other)?;
    let key = DeviceKey::from_seed(seed);
    file.set_len(0)?;
    io::Seek::rewind(file)?;
    file.write_all(&key.to_pkcs8()[..])?;
    file.sync_all()?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use super::*;

    fn take(directory: &Path, user: &str) -> Result<Device, DeviceError> {
        Device::take(directory, user, "vpn.example.org")
    }

    /// The only file of the directory.
    fn file(directory: &Path) -> PathBuf {
        fs::read_dir(directory).unwrap().next().unwrap().unwrap().path()
    }

    #[test]
    fn each_running_client_has_its_own_device_key() {
        let dir = tempfile::tempdir().unwrap();
        let take = |user| take(dir.path(), user).unwrap();
        let first = take("ann");
        let second = take("ann");
        assert_ne!(first.key().public(), second.key().public());
        assert_ne!(first.key().public(), take("bob").key().public());
        let public = first.key().public();
        drop(first);
        assert_eq!(take("ann").key().public(), public, "the same key after a restart");
    }

    #[test]
    fn keys_for_names_that_are_not_used_any_more_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let anns = take(dir.path(), "ann").unwrap();
        let used = file(dir.path());
        let set_used = |file: &File, seconds| {
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        };
        set_used(&File::options().write(true).open(&used).unwrap(), 0);
        let path = |number: usize| dir.path().join(format!("{PREFIX}{number}-0"));
        for (number, seconds) in (1..2 * MAX_KEYS).zip(1..) {
            set_used(&File::create(path(number)).unwrap(), seconds);
        }
        fs::write(dir.path().join("addresses"), "").unwrap();
        let count = || fs::read_dir(dir.path()).unwrap().count();
        drop(take(dir.path(), "bob").unwrap());
        assert_eq!(count(), MAX_KEYS + 1);
        assert!(dir.path().join("addresses").exists() && path(2 * MAX_KEYS - 1).exists());
        assert!(used.exists() && !path(1).exists(), "the oldest that no client holds are gone");
        drop(anns);
        drop(take(dir.path(), "ann").unwrap());
        drop(take(dir.path(), "eve").unwrap());
        assert_eq!(count(), MAX_KEYS + 1);
        assert!(used.exists(), "it was used since");
    }

    #[test]
    fn a_file_that_holds_no_key_gets_one() {
        let dir = tempfile::tempdir().unwrap();
        let public = take(dir.path(), "ann").unwrap().key().public();
        let file = file(dir.path());
        for content in [&[1; 3][..], &[2; 16], &[3; PKCS8_LEN], &[4; 100]] {
            fs::write(&file, content).unwrap();
            let made = take(dir.path(), "ann").unwrap().key().public();
            assert_ne!(made, public);
            assert_eq!(take(dir.path(), "ann").unwrap().key().public(), made, "and keeps it");
            assert_eq!(fs::read(&file).unwrap().len(), PKCS8_LEN);
        }
    }

    #[test]
    fn a_key_is_its_owners_alone_or_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        drop(take(dir.path(), "ann").unwrap());
        let file = file(dir.path());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        for mode in [0o640, 0o604, 0o620, 0o602, 0o644] {
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let error = take(dir.path(), "ann").unwrap_err();
            assert!(matches!(error, DeviceError::Exposed { .. }), "{mode:o}: {error}");
        }
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        drop(take(dir.path(), "ann").unwrap());
        fs::hard_link(&file, dir.path().join("copy")).unwrap();
        assert!(matches!(take(dir.path(), "ann"), Err(DeviceError::Exposed { .. })), "a second name");
        fs::rename(&file, dir.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &file).unwrap();
        assert!(matches!(take(dir.path(), "ann"), Err(DeviceError::Os { .. })), "a link");
    }

    #[test]
    fn another_users_key_is_not_used() {
        // Only root can give files away.
        let dir = tempfile::tempdir().unwrap();
        drop(take(dir.path(), "ann").unwrap());
        if std::os::unix::fs::chown(file(dir.path()), Some(65_534), None).is_ok() {
            assert!(matches!(take(dir.path(), "ann"), Err(DeviceError::Exposed { .. })));
        }
    }
}
