//! The file with the gateway's static WireGuard key, in the state directory, as `wg genkey` writes
//! one.
//!
//! INVARIANT: a key that devices know is never replaced by another one in silence: they would all
//! be cut off. The file is durable before its key is used.

use std::io;
use std::path::{Path, PathBuf};

use vpnd_sys::own_file;
use vpnd_wireguard::key::StaticKey;
use zeroize::Zeroizing;

use crate::key_file::{self, Content, MAX_BYTES, parse};

/// Its name.
pub const FILE_NAME: &str = "wireguard.key";

/// An error of the file; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error("the gateway's WireGuard key {} can't be used: {source}", path.display())]
    Failed { path: PathBuf, source: io::Error },
    #[error(
        "{} is no WireGuard key (44 characters of base64): put the one of a backup in its place ('vpnd restore')",
        path.display()
    )]
    Damaged { path: PathBuf },
    #[error(
        "the gateway's WireGuard key {} is missing, and {devices} devices know its public half: put the one of a backup in \
         its place ('vpnd restore'), or in a fleet a copy of the file of that name of another gateway's state directory; or remove \
         these devices ('vpnd device list') and give their users other configurations",
        path.display()
    )]
    Lost { path: PathBuf, devices: usize },
    #[error(
        "the other gateways of the fleet have another WireGuard key than {}: put a copy of the file of that name of \
         another gateway's state directory in its place",
        path.display()
    )]
    OfNoOther { path: PathBuf },
}

/// The key of this state directory; one is made if there is none yet. `devices`: how many know it.
///
/// # Errors
/// [`KeyFileError`].
pub fn open_or_create(state_dir: &Path, devices: usize) -> Result<StaticKey, KeyFileError> {
    let path = state_dir.join(FILE_NAME);
    let failed = |source| KeyFileError::Failed { path: path.clone(), source };
    if devices > 0 && !path.exists() {
        return Err(KeyFileError::Lost { path, devices });
    }
    let (mut file, content) = key_file::open_or_create(&path).map_err(failed)?;
    match content {
        Content::Key(key) => Ok(StaticKey::new(key)),
        Content::Damaged => Err(KeyFileError::Damaged { path }),
        Content::Nothing if devices > 0 => Err(KeyFileError::Lost { path, devices }),
        Content::Nothing => key_file::make(&mut file, &path).map(StaticKey::new).map_err(failed),
    }
}

/// The file's bytes, for a backup; `None` if there is none.
///
/// # Errors
/// [`KeyFileError`].
pub fn back_up(state_dir: &Path) -> Result<Option<Zeroizing<Vec<u8>>>, KeyFileError> {
    let path = state_dir.join(FILE_NAME);
    match own_file::read(&path, MAX_BYTES).map(Zeroizing::new) {
        Ok(text) if parse(&text).is_some() => Ok(Some(text)),
        Ok(_) => Err(KeyFileError::Damaged { path }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(KeyFileError::Failed { path, source }),
    }
}

/// Puts the bytes of a backup in place of what is there.
///
/// # Errors
/// [`KeyFileError`].
pub fn restore(state_dir: &Path, text: &[u8]) -> Result<(), KeyFileError> {
    let path = state_dir.join(FILE_NAME);
    let Some(key) = parse(text) else { return Err(KeyFileError::Damaged { path }) };
    let failed = |source| KeyFileError::Failed { path: path.clone(), source };
    let mut file = own_file::open_or_create(&path).map_err(failed)?;
    file.set_len(0).and_then(|()| key_file::write(&mut file, &path, &key)).map_err(failed)
}

/// Whether these are the bytes of such a file.
#[must_use]
pub fn is_key(text: &[u8]) -> bool {
    parse(text).is_some()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_never_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE_NAME);
        assert!(back_up(directory.path()).unwrap().is_none());
        let key = open_or_create(directory.path(), 0).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(open_or_create(directory.path(), 3).unwrap().public(), key.public());
        let kept = back_up(directory.path()).unwrap().expect("there is one");
        for text in [&b"short"[..], &[b'A'; 64]] {
            fs::write(&path, text).unwrap();
            let error = open_or_create(directory.path(), 0).unwrap_err();
            assert!(matches!(error, KeyFileError::Damaged { .. }), "{error}");
            assert!(matches!(back_up(directory.path()), Err(KeyFileError::Damaged { .. })));
        }
        fs::write(&path, "").unwrap();
        assert!(matches!(open_or_create(directory.path(), 1), Err(KeyFileError::Lost { devices: 1, .. })));
        fs::remove_file(&path).unwrap();
        let error = open_or_create(directory.path(), 2).unwrap_err();
        assert!(matches!(error, KeyFileError::Lost { devices: 2, .. }) && !path.exists(), "{error}");
        assert!(error.to_string().contains("of another gateway's state directory"), "{error}");
        assert!(restore(directory.path(), b"no key").is_err());
        restore(directory.path(), &kept).unwrap();
        assert_eq!(open_or_create(directory.path(), 2).unwrap().public(), key.public());
    }
}
