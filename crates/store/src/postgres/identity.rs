//! The identity of a gateway: a random number in its state directory, by which a database knows
//! whose it is.
//!
//! INVARIANT: it is on the disk before it is used, and is never replaced by another one.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use rustix::fs::{FlockOperation, fcntl_lock};

use super::Holder;
use vpnd_config::fleet::Fleet;
use vpnd_sys::own_file;
use vpnd_sys::secret_file::parent;

/// Its name.
const FILE_NAME: &str = "gateway.id";
const LENGTH: usize = 16;

impl Holder {
    /// The gateway of this state directory, which gets an identity if it has none; `instance` is
    /// its present start, for one of its processes.
    ///
    /// # Errors
    /// If the file can't be read or made.
    pub fn of_state_dir(state_dir: &Path, instance: Option<[u8; 16]>) -> io::Result<Self> {
        let path = state_dir.join(FILE_NAME);
        let explain = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let gateway = open_or_create(&path).map_err(explain)?;
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Ok(Self { gateway, instance, fleet: None, name: vpnd_sys::text::plain(&name) })
    }

    /// This gateway as one of a fleet, if it is of one.
    #[must_use]
    pub fn of_fleet(self, fleet: Option<&Fleet>) -> Self {
        match fleet {
            Some(Fleet { id, name, .. }) => Self { fleet: Some(id.clone()), name: name.clone(), ..self },
            None => self,
        }
    }

    /// Reads the gateway without making an identity: if there is none, it is one that no database
    /// knows.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn look_up(state_dir: &Path) -> io::Result<Self> {
        let path = state_dir.join(FILE_NAME);
        let gateway = match own_file::read(&path, LENGTH as u64) {
            Ok(bytes) => bytes.try_into().map_err(|_| damaged())?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => rand::random(),
            Err(error) => return Err(error),
        };
        Ok(Self { gateway, instance: None, fleet: None, name: String::new() })
    }
}

fn damaged() -> io::Error {
    io::Error::other("it is no identity of a gateway; put the one of a backup in its place")
}

fn open_or_create(path: &Path) -> io::Result<[u8; LENGTH]> {
    let mut file = own_file::open_or_create(path)?;
    // Another process may be making it at the same time.
    fcntl_lock(&file, FlockOperation::LockExclusive)?;
    let mut bytes = Vec::new();
    (&mut file).take(LENGTH as u64 + 1).read_to_end(&mut bytes)?;
    if let Ok(identity) = <[u8; LENGTH]>::try_from(bytes.as_slice()) {
        return Ok(identity);
    }
    if !bytes.is_empty() {
        return Err(damaged());
    }
    let identity: [u8; LENGTH] = rand::random();
    file.write_all(&identity)?;
    file.sync_all()?;
    File::open(parent(path))?.sync_all()?;
    Ok(identity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_stays_and_others_have_another() {
        let [one, other] = [0, 1].map(|_| tempfile::tempdir().unwrap());
        let identity_of =
            |directory: &tempfile::TempDir| Holder::of_state_dir(directory.path(), None).unwrap().gateway;
        assert_eq!(identity_of(&one), identity_of(&one));
        assert_ne!(identity_of(&one), identity_of(&other));
        std::fs::write(one.path().join(FILE_NAME), "cut").unwrap();
        assert!(Holder::of_state_dir(one.path(), None).is_err());
    }
}
