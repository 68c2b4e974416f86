//! Secrets that the configuration names by their places: files, and credentials of the service
//! manager.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use zeroize::Zeroizing;

use crate::source::SecretPlace;

/// The longest secret, bytes.
const MAX_SECRET: u64 = 4096;
/// Set by the service manager: the directory of the service's credentials.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";
/// Bits of a file's mode by which others read it.
const READABLE_BY_OTHERS: u32 = 0o077;

/// Reads a secret, without the end of its line. Only the owner of the file may be able to.
pub fn read(place: &SecretPlace) -> anyhow::Result<Zeroizing<String>> {
    let text = read_all(place)?;
    let secret = Zeroizing::new(text.lines().next().unwrap_or_default().to_owned());
    if secret.is_empty() {
        bail!("{} holds no secret in its first line", name(place));
    }
    Ok(secret)
}

fn name(place: &SecretPlace) -> String {
    match place {
        SecretPlace::File(path) => path.display().to_string(),
        SecretPlace::Credential(name) => format!("the credential '{name}'"),
    }
}

/// Reads a secret of several lines, such as a key.
pub(crate) fn read_all(place: &SecretPlace) -> anyhow::Result<Zeroizing<String>> {
    let read = |path: &Path, is_checked: bool| {
        let mut text = Zeroizing::new(String::with_capacity(MAX_SECRET as usize + 1));
        let file = std::fs::File::open(path).with_context(|| format!("can't open {}", path.display()))?;
        if is_checked && file.metadata()?.mode() & READABLE_BY_OTHERS != 0 {
            bail!("{0} holds a secret and others can read it: chmod 600 {0}", path.display());
        }
        let len = file.take(MAX_SECRET + 1).read_to_string(&mut text);
        let len = len.with_context(|| format!("can't read {}", path.display()))?;
        if len as u64 > MAX_SECRET {
            bail!("{} holds more than {MAX_SECRET} bytes, so no secret", path.display());
        }
        Ok(text)
    };
    match place {
        SecretPlace::File(path) => read(path, true),
        SecretPlace::Credential(name) => {
            let directory = std::env::var_os(CREDENTIALS).with_context(|| {
                format!("there is no credential '{name}': LoadCredential={name}:FILE in the unit gives it")
            })?;
            read(&Path::new(&directory).join(name), false)
        }
    }
}
