//! `vpnd import` and `vpnd forget`: profiles that a user brings.
//!
//! INVARIANT: the file or the address is read by this process, as its user; the service gets the
//! text alone, and decides.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::bail;
use clap::Args;
use rustix::fs::OFlags;
use zeroize::Zeroizing;

use super::{ServiceClient, ServiceSocket, profile_name, say};
use vpnd_client::fetch::fetch;
use vpnd_client::user_messages::{Forget, Import, Lines, MAX_PROFILE, ProfileName, ProfileText, Request};
use vpnd_sys::account;
use vpnd_sys::text::harmless;

/// Arguments of `vpnd import`.
#[derive(Args, Debug)]
pub struct ImportArgs {
    /// The profile's file, or its address, which begins with https://
    #[arg(value_name = "FILE_OR_URL")]
    pub source: String,
    /// Its name here [default: the file's, without its ending]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    pub service: ServiceSocket,
}

/// Arguments of `vpnd forget`.
#[derive(Args, Debug)]
pub struct ForgetArgs {
    /// The profile, as `vpnd list` shows it
    pub profile: String,
    #[command(flatten)]
    pub service: ServiceSocket,
}

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("can't read {file}: {source}")]
    Read { file: String, source: io::Error },
    #[error("{0} is not a file")]
    NoFile(String),
    #[error(
        "{file} can be written by others than its owner (mode {mode:03o}), who could lead you to a gateway of theirs: see that it is \
         the one you got, then 'chmod go-w' it"
    )]
    Writable { file: String, mode: u32 },
    #[error(
        "{file} belongs to user {owner}, who could change it meanwhile: make a copy of your own, and import that"
    )]
    Foreign { file: String, owner: u32 },
    #[error("{0} is longer than {MAX_PROFILE} bytes, so it is no profile")]
    TooLong(String),
    #[error("{0} is not text, so it is no profile")]
    NoText(String),
}

/// `vpnd import`.
///
/// # Errors
/// The reason for which there is no such profile now, and what to do.
pub async fn import(args: &ImportArgs) -> anyhow::Result<()> {
    let name = args.name.as_deref().unwrap_or_else(|| stem(&args.source));
    let Ok(name) = ProfileName::new(name) else {
        bail!("'{}' is too long for a profile's name: give it another one with --name", harmless(name))
    };
    let text = match args.source.contains("://") {
        true => fetch(&args.source).await?,
        false => read(Path::new(&args.source))?,
    };
    lines(&args.service, Import { name, text: ProfileText::new(text.as_str())? }).await
}

/// `vpnd forget`.
///
/// # Errors
/// If there is no such profile, or it is not this user's.
pub async fn forget(args: &ForgetArgs) -> anyhow::Result<()> {
    lines(&args.service, Forget(profile_name(&args.profile)?)).await
}

async fn lines(service: &ServiceSocket, request: impl Request<Reply = Lines>) -> anyhow::Result<()> {
    let Lines(lines) = ServiceClient::connect(&service.socket).await?.request(request).await?;
    Ok(lines.iter().try_for_each(|line| say(line))?)
}

/// The name of a file or of an address's last part, without its ending.
fn stem(source: &str) -> &str {
    let path = source.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    let last = path.rsplit('/').next().unwrap_or_default();
    last.rsplit_once('.').map_or(last, |(stem, _)| stem)
}

fn read(path: &Path) -> Result<Zeroizing<String>, FileError> {
    let file = || harmless(&path.display().to_string());
    let failed = |source| FileError::Read { file: file(), source };
    // A pipe must not hold this up.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let metadata = opened.metadata().map_err(failed)?;
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o777);
    if !metadata.is_file() {
        return Err(FileError::NoFile(file()));
    }
    if mode & 0o022 != 0 {
        return Err(FileError::Writable { file: file(), mode });
    }
    let person = account::behind_sudo().map(|person| person.uid);
    if owner != 0 && owner != rustix::process::geteuid().as_raw() && Some(owner) != person {
        return Err(FileError::Foreign { file: file(), owner });
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_PROFILE + 1));
    opened.take(MAX_PROFILE as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > MAX_PROFILE {
        return Err(FileError::TooLong(file()));
    }
    match std::str::from_utf8(&bytes) {
        Ok(text) => Ok(Zeroizing::new(text.to_owned())),
        Err(_) => Err(FileError::NoText(file())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_profile_is_named_after_its_file() {
        for (source, name) in [
            ("ann.toml", "ann"),
            ("/files/uni.2026.toml", "uni.2026"),
            ("uni", "uni"),
            ("https://vpn.example/files/uni.toml?a=b/c.d#e", "uni"),
            ("https://vpn.example/profile/", "profile"),
            ("", ""),
        ] {
            assert_eq!(stem(source), name, "{source}");
        }
    }

    #[test]
    fn a_file_that_others_can_change_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ann.toml");
        fs::write(&path, "version = 1\n").unwrap();
        let with_mode = |mode| {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            read(&path)
        };
        for mode in [0o620, 0o602, 0o666] {
            let error = with_mode(mode).unwrap_err();
            assert!(error.to_string().contains("chmod go-w"), "{error}");
        }
        assert_eq!(with_mode(0o644).unwrap().as_str(), "version = 1\n");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65_533), None).unwrap();
            assert!(matches!(read(&path), Err(FileError::Foreign { owner: 65_533, .. })));
        }
    }

    #[test]
    fn what_is_no_file_or_no_text_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        let with = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            read(&path)
        };
        assert!(with(&vec![b'x'; MAX_PROFILE]).is_ok());
        assert!(matches!(with(&vec![b'x'; MAX_PROFILE + 1]), Err(FileError::TooLong(_))));
        assert!(matches!(with(&[0xFF, 0xFE]), Err(FileError::NoText(_))));
        fs::remove_file(&path).unwrap();
        assert!(matches!(read(&path), Err(FileError::Read { .. })));
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        assert!(matches!(read(&path), Err(FileError::NoFile(_))), "a pipe");
        assert!(matches!(read(directory.path()), Err(FileError::NoFile(_))), "a directory");
    }
}
