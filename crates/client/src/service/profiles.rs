//! The profiles by which users may connect: files that an administrator or the management of devices
//! has placed in one directory.
//!
//! INVARIANT: a user's word names a file of that directory and no other; one that somebody other
//! than root could have written is not used. What a profile permits is not known here.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use vpnd_config::ConfigError;
use vpnd_config::profile::Profile;

/// The longest name.
const MAX_NAME: usize = 64;
/// Profiles that are listed.
const MAX_LISTED: usize = 256;
const EXTENSION: &str = "toml";

/// Why a profile is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProfileError {
    #[error("a profile's name has 1 to {MAX_NAME} letters, digits and . _ -, and does not begin with a dot")]
    Name,
    #[error("there is no profile '{0}': `vpnd list` shows those of this machine")]
    Missing(String),
    #[error("this machine has no profile: an administrator puts one into {}", .0.display())]
    NoneAtAll(PathBuf),
    #[error("there are several profiles: name one of {}", .0.join(", "))]
    Several(Vec<String>),
    #[error("the profiles in {} can't be read: {source}", directory.display())]
    Directory { directory: PathBuf, source: io::Error },
    #[error("the profile '{name}' is not used: {source}")]
    Untrusted { name: String, source: trusted_path::Untrusted },
    #[error(
        "the profile '{name}' is not used: {} has to be a file of root that nobody else can write (mode 600 or 644)",
        path.display()
    )]
    Exposed { name: String, path: PathBuf },
    #[error("the profile '{name}' is wrong: {source}")]
    Wrong { name: String, source: ConfigError },
}

/// A profile that may be used.
pub(super) struct Found {
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// The gateway's name.
    pub(super) gateway: String,
}

/// The directory of profiles.
pub(super) struct Profiles {
    directory: PathBuf,
}

impl Profiles {
    pub(super) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// The profile of this name, or the only one.
    ///
    /// # Errors
    /// If there is none, or it is not to be used.
    pub(super) fn find(&self, name: Option<&str>) -> Result<Found, ProfileError> {
        match name {
            Some(name) => self.named(name),
            None => match self.names()?.as_slice() {
                [] => Err(ProfileError::NoneAtAll(self.directory.clone())),
                [only] => self.named(only),
                several => Err(ProfileError::Several(several.to_vec())),
            },
        }
    }

    /// The names of all of them, sorted.
    ///
    /// # Errors
    /// If the directory can't be read; one that is missing is empty.
    pub(super) fn names(&self) -> Result<Vec<String>, ProfileError> {
        let failed = |source| ProfileError::Directory { directory: self.directory.clone(), source };
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut names = Vec::new();
        for entry in entries.take(MAX_LISTED) {
            let file_name = entry.map_err(failed)?.file_name();
            let name = file_name.to_str().and_then(|name| name.strip_suffix(EXTENSION)?.strip_suffix('.'));
            names.extend(name.filter(|name| is_name(name)).map(ToOwned::to_owned));
        }
        names.sort();
        Ok(names)
    }

    fn named(&self, name: &str) -> Result<Found, ProfileError> {
        if !is_name(name) {
            return Err(ProfileError::Name);
        }
        let path = self.directory.join(format!("{name}.{EXTENSION}"));
        let metadata = match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ProfileError::Missing(name.to_owned()));
            }
            found => found.map_err(|source| ProfileError::Directory { directory: path.clone(), source })?,
        };
        trusted_path::check(&path)
            .map_err(|source| ProfileError::Untrusted { name: name.to_owned(), source })?;
        let is_roots = [0, rustix::process::geteuid().as_raw()].contains(&metadata.uid());
        if !metadata.is_file() || !is_roots || metadata.mode() & 0o022 != 0 {
            return Err(ProfileError::Exposed { name: name.to_owned(), path });
        }
        let profile =
            Profile::load(&path).map_err(|source| ProfileError::Wrong { name: name.to_owned(), source })?;
        Ok(Found { name: name.to_owned(), path, gateway: profile.server_name })
    }
}

/// Whether it can be a profile's name: so it is no path, and no option on a command line.
fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=MAX_NAME).contains(&name.len()) && name.chars().all(is_plain) && !name.starts_with(['.', '-'])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    const PROFILE: &str = "version = 1\n[server]\naddresses = [\"vpn.example\"]\ntrust = \"system\"\n";

    fn profiles() -> (tempfile::TempDir, Profiles) {
        let place = tempfile::tempdir().unwrap();
        let profiles = Profiles::new(&place.path().join("profiles.d"));
        (place, profiles)
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn write(profiles: &Profiles, name: &str) -> PathBuf {
        fs::create_dir_all(&profiles.directory).unwrap();
        set_mode(&profiles.directory, 0o755);
        let path = profiles.directory.join(name);
        fs::write(&path, PROFILE).unwrap();
        set_mode(&path, 0o644);
        path
    }

    #[test]
    fn the_only_profile_needs_no_name() {
        let (_place, profiles) = profiles();
        assert!(matches!(profiles.find(None), Err(ProfileError::NoneAtAll(_))));
        write(&profiles, "work.toml");
        for ignored in ["README", ".hidden.toml", "x y.toml", ".toml", "toml"] {
            write(&profiles, ignored);
        }
        let found = profiles.find(None).unwrap();
        assert_eq!((found.name.as_str(), found.gateway.as_str()), ("work", "vpn.example"));
        write(&profiles, "home.toml");
        assert_eq!(profiles.names().unwrap(), ["home", "work"]);
        assert!(
            matches!(profiles.find(None), Err(ProfileError::Several(names)) if names == ["home", "work"])
        );
        assert_eq!(profiles.find(Some("home")).unwrap().name, "home");
        assert!(matches!(profiles.find(Some("lab")), Err(ProfileError::Missing(_))));
    }

    #[test]
    fn a_word_of_a_user_is_no_path() {
        let (place, profiles) = profiles();
        write(&profiles, "work.toml");
        fs::write(place.path().join("outside.toml"), PROFILE).unwrap();
        let long = "x".repeat(MAX_NAME + 1);
        for word in
            ["../outside", "..", ".", "", "/etc/passwd", "a/b", "-x", "--help", "work\0", "w\n", &long]
        {
            assert!(matches!(profiles.find(Some(word)), Err(ProfileError::Name)), "{word:?}");
        }
    }

    #[test]
    fn a_profile_that_others_could_write_is_not_used() {
        let (_place, profiles) = profiles();
        let path = write(&profiles, "work.toml");
        for mode in [0o664, 0o646, 0o666] {
            set_mode(&path, mode);
            assert!(matches!(profiles.find(None), Err(ProfileError::Exposed { .. })), "{mode:o}");
        }
        set_mode(&path, 0o600);
        assert!(profiles.find(None).is_ok());
        set_mode(&profiles.directory, 0o777);
        assert!(matches!(profiles.find(None), Err(ProfileError::Untrusted { .. })));
        set_mode(&profiles.directory, 0o755);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(matches!(profiles.find(None), Err(ProfileError::Exposed { .. })), "a directory");
    }

    #[test]
    fn a_profile_of_another_user_is_not_used() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root can give files away");
            return;
        }
        let (place, profiles) = profiles();
        let path = write(&profiles, "work.toml");
        let others = place.path().join("others");
        fs::create_dir(&others).unwrap();
        fs::copy(&path, others.join("x.toml")).unwrap();
        chown(&others, Some(1_000), None).unwrap();
        symlink(others.join("x.toml"), profiles.directory.join("linked.toml")).unwrap();
        assert!(matches!(profiles.find(Some("linked")), Err(ProfileError::Untrusted { .. })));
        chown(&path, Some(1_000), None).unwrap();
        assert!(profiles.find(Some("work")).is_err());
    }

    #[test]
    fn a_wrong_profile_is_said_to_be_wrong() {
        let (_place, profiles) = profiles();
        let path = write(&profiles, "work.toml");
        fs::write(&path, "version = 9\n").unwrap();
        assert!(matches!(profiles.find(None), Err(ProfileError::Wrong { .. })));
    }
}
