//! The name of this device, by which the gateway gives a returning user the same inner addresses (PROTOCOL §4).

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use vpnd_proto::session::DeviceId;

/// Clients of one user and gateway on one machine at the same time, at most.
const MAX_INSTANCES: usize = 64;
const ID_LEN: usize = 16;

/// Why there is no device name.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeviceError {
    /// The file can't be used.
    #[error("the device's name can't be kept in {}: {source}", path.display())]
    Os {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// All names are in use.
    #[error("{MAX_INSTANCES} clients of this user and gateway run on this machine already: end one of them")]
    TooMany,
}

/// The name of a device while a client uses it: a second client on the machine gets another one.
#[derive(Debug)]
pub(super) struct Device {
    id: DeviceId,
    /// Holds the lock.
    _file: File,
}

impl Device {
    /// Takes the first name in `directory` that no other client of this user and gateway uses; makes one if need be.
    ///
    /// # Errors
    /// If the directory can't be written, or all names are in use.
    pub(super) fn take(directory: &Path, user: &str, gateway: &str) -> Result<Self, DeviceError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|source| DeviceError::Os { path: directory.to_owned(), source })?;
        let mut hash = Sha256::new();
        hash.update(user);
        hash.update([0]);
        hash.update(gateway);
        let key: String = hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        for instance in 0..MAX_INSTANCES {
            let path = directory.join(format!("device-{key}-{instance}"));
            match Self::lock(&path) {
                Ok(Some(device)) => return Ok(device),
                Ok(None) => {}
                Err(source) => return Err(DeviceError::Os { path, source }),
            }
        }
        Err(DeviceError::TooMany)
    }

    /// The name.
    #[must_use]
    pub(super) fn id(&self) -> DeviceId {
        self.id
    }

    fn lock(path: &Path) -> io::Result<Option<Self>> {
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        let mut id = Vec::new();
        Read::by_ref(&mut file).take(ID_LEN as u64 + 1).read_to_end(&mut id)?;
        let id = match <[u8; ID_LEN]>::try_from(id) {
            Ok(id) => id,
            // New, or cut by a crash: a new name only costs the old addresses.
            Err(_) => {
                let id: [u8; ID_LEN] = rand::random();
                file.set_len(0)?;
                io::Seek::rewind(&mut file)?;
                file.write_all(&id)?;
                file.sync_all()?;
                id
            }
        };
        Ok(Some(Self { id: DeviceId(id), _file: file }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_keeps_its_name_and_shares_it_with_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let take = |user| Device::take(dir.path(), user, "vpn.example.org").unwrap();
        let first = take("ann");
        let second = take("ann");
        assert_ne!(first.id(), second.id());
        assert_ne!(first.id(), take("bob").id());
        let name = first.id();
        drop(first);
        assert_eq!(take("ann").id(), name, "the same name after a restart");
    }

    #[test]
    fn a_cut_file_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let name = Device::take(dir.path(), "ann", "gw").unwrap().id();
        let file = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
        std::fs::write(&file, [1, 2, 3]).unwrap();
        assert_ne!(Device::take(dir.path(), "ann", "gw").unwrap().id(), name);
        assert_eq!(std::fs::read(&file).unwrap().len(), ID_LEN);
    }
}
