//! The profiles by which users may connect: files that an administrator or the management of
//! devices has placed in one directory, and those that a user has brought, in one of that user's.
//!
//! INVARIANT: a user's word names a file of these directories and no other; one that a user other
//! than root could have written is not used. What a user's own profile may say is decided each
//! time it is used ([`own_profile`]); what one permits otherwise is not known here.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::own_profile::{self, NotImported};
use vpnd_config::ConfigError;
use vpnd_config::profile::{KillSwitchMode, Profile, ServerAddress};
use vpnd_sys::secret_file::{self, Existing, SECRET_MODE, WriteError};
use zeroize::Zeroizing;

/// The longest name.
const MAX_NAME: usize = 64;
/// Profiles that are listed.
const MAX_LISTED: usize = 256;
/// Profiles that a user may bring.
const MAX_OWN: usize = 16;
const EXTENSION: &str = "toml";
const HTTPS_PORT: u16 = 443;

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
        "the profile '{name}' is not used: {} has to be a file of root that no other user can write (mode 600 or 644)",
        path.display()
    )]
    Exposed { name: String, path: PathBuf },
    #[error("the profile '{name}' is wrong: {source}")]
    Wrong { name: String, source: ConfigError },
    #[error(transparent)]
    NotImported(#[from] NotImported),
    #[error(
        "there is a profile '{0}' already: give this one another name with --name, or `vpnd forget {0}` first"
    )]
    Taken(String),
    #[error("you have {MAX_OWN} profiles already: `vpnd forget NAME` removes one")]
    TooMany,
    #[error("'{0}' is a profile of this machine: an administrator removes it (`sudo vpnd forget {0}`)")]
    Machines(String),
    #[error(
        "'{0}' is for this machine itself, which is connected by it while no user is: name another profile (`vpnd list`)"
    )]
    NoUsers(String),
    #[error(
        "the profile '{name}' of yours can't be used ({source}): `vpnd forget {name}`, and import it again"
    )]
    OwnWrong { name: String, source: ConfigError },
    #[error("the profile can't be kept: {0}")]
    Write(#[from] WriteError),
    #[error("the profile '{name}' can't be removed: {source}")]
    Remove { name: String, source: io::Error },
}

/// A profile that may be used.
pub(super) struct Found {
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// The gateway's name.
    pub(super) gateway: String,
    /// The address of its web pages, if the profile names their port.
    pub(super) pages: Option<String>,
    /// Whether the machine logs in by it, and no user.
    pub(super) is_machines: bool,
    /// Whether it asks for a kill switch.
    pub(super) has_kill_switch: bool,
}

/// A profile of the list, which may be one that can't be used.
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) is_own: bool,
    pub(super) found: Result<Found, ProfileError>,
}

/// The profiles that one user may use.
pub(super) struct Profiles {
    /// Those of the machine.
    directory: PathBuf,
    /// Those that this user has brought; `None` for root, whose are the machine's.
    own: Option<PathBuf>,
}

impl Profiles {
    pub(super) fn new(directory: &Path, own: Option<PathBuf>) -> Self {
        Self { directory: directory.to_owned(), own }
    }

    /// The profile of this name, or the only one that is for users.
    ///
    /// # Errors
    /// If there is none, or it is not to be used.
    pub(super) fn find(&self, name: Option<&str>) -> Result<Found, ProfileError> {
        if let Some(name) = name {
            return self.named(name);
        }
        let mut names = self.names()?;
        names.retain(|(name, is_own)| *is_own || !load(&self.directory, name).is_ok_and(is_machines));
        match names.as_slice() {
            [] => Err(ProfileError::NoneAtAll(self.directory.clone())),
            [(only, _)] => self.named(only),
            several => Err(ProfileError::Several(several.iter().map(|(name, _)| name.clone()).collect())),
        }
    }

    /// The first profile by which this machine itself logs in, by name.
    ///
    /// # Errors
    /// If the directory can't be read.
    pub(super) fn of_this_machine(&self) -> Result<Option<Found>, ProfileError> {
        let mut names = names_in(&self.directory)?.into_iter();
        Ok(names.find_map(|name| self.named(&name).ok().filter(|found| found.is_machines)))
    }

    /// All of them, sorted by name.
    ///
    /// # Errors
    /// If a directory can't be read; one that is missing is empty.
    pub(super) fn list(&self) -> Result<Vec<Listed>, ProfileError> {
        let machines = self.machines()?;
        let listed = self.names()?.into_iter().map(|(name, is_own)| {
            let found = match &self.own {
                Some(own) if is_own => own_named(own, &name, &machines),
                _ => self.named(&name),
            };
            Listed { name, is_own, found }
        });
        Ok(listed.collect())
    }

    /// Adds a profile, for this user or as root for all; a line about that.
    ///
    /// # Errors
    /// If it is none, or not one that this user may bring; nothing has changed then.
    pub(super) fn import(&self, name: &str, text: &str) -> Result<String, ProfileError> {
        let profile = own_profile::read(text)?;
        if self.names()?.iter().any(|(taken, _)| taken == name) {
            return Err(ProfileError::Taken(name.to_owned()));
        }
        let Some(own) = &self.own else {
            keep(&self.directory, 0o755, name, &profile.to_toml(), Existing::Refuse)?;
            return Ok(format!("'{name}' is a profile of this machine now"));
        };
        if names_in(own)?.len() >= MAX_OWN {
            return Err(ProfileError::TooMany);
        }
        let machines = self.machines()?;
        let (profile, of) = own_profile::of_machine(&profile, &machines, None)?;
        keep(own, 0o700, name, &own_profile::text(&profile, of), Existing::Refuse)?;
        Ok(format!(
            "'{name}' is a profile of yours now: it logs in as [user] says, and all else is as in '{of}'"
        ))
    }

    /// The profile of this name, without what is secret in it.
    ///
    /// # Errors
    /// If there is none, or it is not to be used.
    pub(super) fn gateway(&self, name: &str) -> Result<Profile, ProfileError> {
        let Found { name, path, .. } = self.find(Some(name))?;
        let profile = Profile::load(&path).map_err(|source| ProfileError::Wrong { name, source })?;
        Ok(profile.without_secrets())
    }

    /// Removes a profile of this user, or as root one of the machine.
    ///
    /// # Errors
    /// If there is none, or it is not this user's.
    pub(super) fn forget(&self, name: &str) -> Result<(), ProfileError> {
        let directory = self.own.as_ref().unwrap_or(&self.directory);
        match fs::remove_file(file(directory, name)?) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let is_machines = self.own.is_some() && file(&self.directory, name)?.exists();
                let (name, why) = (
                    name.to_owned(),
                    if is_machines { ProfileError::Machines } else { ProfileError::Missing },
                );
                Err(why(name))
            }
            removed => removed.map_err(|source| ProfileError::Remove { name: name.to_owned(), source }),
        }
    }

    /// The names of all of them, sorted, and whether each is the user's own. The machine's comes
    /// before one of the same name.
    fn names(&self) -> Result<Vec<(String, bool)>, ProfileError> {
        let mut names: Vec<_> = names_in(&self.directory)?.into_iter().map(|name| (name, false)).collect();
        if let Some(own) = &self.own {
            names.extend(names_in(own)?.into_iter().map(|name| (name, true)));
        }
        names.sort();
        names.dedup_by(|(later, _), (name, _)| later == name);
        Ok(names)
    }

    fn named(&self, name: &str) -> Result<Found, ProfileError> {
        match (load(&self.directory, name), &self.own) {
            (Err(ProfileError::Missing(_)), Some(own)) => own_named(own, name, &self.machines()?),
            (loaded, _) => loaded.map(|(path, profile)| found(name, path, &profile)),
        }
    }

    /// Those of the machine that users can use, sorted by name.
    fn machines(&self) -> Result<Vec<(String, Profile)>, ProfileError> {
        let names = names_in(&self.directory)?.into_iter();
        let loaded = names.filter_map(|name| Some((load(&self.directory, &name).ok()?.1, name)));
        Ok(loaded.filter(|(profile, _)| !profile.machine).map(|(profile, name)| (name, profile)).collect())
    }
}

/// A user's own profile, as the machine's profiles say now.
fn own_named(directory: &Path, name: &str, machines: &[(String, Profile)]) -> Result<Found, ProfileError> {
    let (path, profile) = load(directory, name).map_err(|error| match error {
        ProfileError::Wrong { name, source } => ProfileError::OwnWrong { name, source },
        error => error,
    })?;
    let kept = Zeroizing::new(fs::read_to_string(&path).unwrap_or_default());
    let (now, followed) = own_profile::of_machine(&profile, machines, own_profile::followed(&kept))?;
    let text = own_profile::text(&now, followed);
    if text != kept {
        keep(directory, 0o700, name, &text, Existing::Replace)?;
    }
    Ok(found(name, path, &now))
}

fn found(name: &str, path: PathBuf, profile: &Profile) -> Found {
    let gateway = profile.server_name.clone();
    let pages = profile.tcp_port.map(|port| {
        let at = ServerAddress { host: gateway.clone(), port }.to_string();
        let usual = format!(":{HTTPS_PORT}");
        format!("https://{}", at.strip_suffix(&usual).unwrap_or(&at))
    });
    let has_kill_switch = profile.kill_switch.mode.is_some_and(|mode| mode != KillSwitchMode::Off);
    let is_machines = profile.machine;
    Found { name: name.to_owned(), path, gateway, pages, is_machines, has_kill_switch }
}

fn is_machines((_, profile): (PathBuf, Profile)) -> bool {
    profile.machine
}

/// Writes a profile, and makes its directory with this mode.
fn keep(directory: &Path, mode: u32, name: &str, text: &str, existing: Existing) -> Result<(), ProfileError> {
    let path = file(directory, name)?;
    let made = DirBuilder::new().recursive(true).mode(mode).create(directory);
    made.map_err(|source| ProfileError::Directory { directory: directory.to_owned(), source })?;
    trusted_path::check(&path).map_err(|source| ProfileError::Untrusted { name: name.to_owned(), source })?;
    Ok(secret_file::write(&path, text.as_bytes(), SECRET_MODE, existing)?)
}

/// The file of a profile, if that can be its name.
fn file(directory: &Path, name: &str) -> Result<PathBuf, ProfileError> {
    if !is_name(name) {
        return Err(ProfileError::Name);
    }
    Ok(directory.join(format!("{name}.{EXTENSION}")))
}

/// The names of the profiles in a directory, sorted; one that is missing is empty.
fn names_in(directory: &Path) -> Result<Vec<String>, ProfileError> {
    let failed = |source| ProfileError::Directory { directory: directory.to_owned(), source };
    let entries = match fs::read_dir(directory) {
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

/// The profile of this name in a directory, and its path.
fn load(directory: &Path, name: &str) -> Result<(PathBuf, Profile), ProfileError> {
    let path = file(directory, name)?;
    let metadata = match fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(ProfileError::Missing(name.to_owned()));
        }
        found => found.map_err(|source| ProfileError::Directory { directory: path.clone(), source })?,
    };
    trusted_path::check(&path).map_err(|source| ProfileError::Untrusted { name: name.to_owned(), source })?;
    let is_roots = [0, rustix::process::geteuid().as_raw()].contains(&metadata.uid());
    if !metadata.is_file() || !is_roots || metadata.mode() & 0o022 != 0 {
        return Err(ProfileError::Exposed { name: name.to_owned(), path });
    }
    let profile =
        Profile::load(&path).map_err(|source| ProfileError::Wrong { name: name.to_owned(), source })?;
    Ok((path, profile))
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
    use vpnd_config::profile::ClientIdentity;

    const PROFILE: &str = "version = 1\n[server]\naddresses = [\"vpn.example\"]\ntrust = \"system\"\n";

    fn profiles() -> (tempfile::TempDir, Profiles) {
        let place = tempfile::tempdir().unwrap();
        let profiles = Profiles::new(&place.path().join("profiles.d"), None);
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
        assert_eq!(names_in(&profiles.directory).unwrap(), ["home", "work"]);
        assert!(
            matches!(profiles.find(None), Err(ProfileError::Several(names)) if names == ["home", "work"])
        );
        assert_eq!(profiles.find(Some("home")).unwrap().name, "home");
        assert!(matches!(profiles.find(Some("lab")), Err(ProfileError::Missing(_))));
    }

    #[test]
    fn a_profile_name_from_a_user_is_no_path() {
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
    fn an_invalid_profile_is_reported() {
        let (_place, profiles) = profiles();
        let path = write(&profiles, "work.toml");
        fs::write(&path, "version = 9\n").unwrap();
        assert!(matches!(profiles.find(None), Err(ProfileError::Wrong { .. })));
    }

    #[test]
    fn the_machines_own_profile_is_no_users() {
        let (place, machine) = profiles();
        let work = write(&machine, "work.toml");
        assert!(machine.of_this_machine().unwrap().is_none());
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(vec!["kiosk".to_owned()]).unwrap();
        let identity = ClientIdentity {
            certificate_pem: certificate.self_signed(&key).unwrap().pem(),
            key_pem: Zeroizing::new(key.serialize_pem()),
        };
        let base = Profile::load(&work).unwrap();
        let (user, identity) = (Some("kiosk".to_owned()), Some(identity));
        let text = Profile { user, identity, machine: true, ..base }.to_toml();
        machine.import("kiosk", &text).unwrap();
        assert_eq!(machine.of_this_machine().unwrap().unwrap().name, "kiosk");
        assert_eq!(machine.find(None).unwrap().name, "work", "the only one for users");
        assert!(machine.find(Some("kiosk")).unwrap().is_machines);
        // No user's own is a machine's, nor follows that of one.
        let ann = of_user(&machine, &place);
        let refused = ann.import("mine", &text);
        assert!(
            matches!(refused, Err(ProfileError::NotImported(NotImported::Machine))),
            "{:?}",
            refused.err()
        );
        fs::remove_file(&work).unwrap();
        let refused = ann.import("mine", PROFILE);
        assert!(matches!(refused, Err(ProfileError::NotImported(NotImported::Foreign(_)))));
    }

    /// The profiles of a user on the machine.
    fn of_user(machine: &Profiles, place: &tempfile::TempDir) -> Profiles {
        Profiles::new(&machine.directory, Some(place.path().join("users/1000-ann/profiles")))
    }

    #[test]
    fn a_users_own_profile_follows_the_machines_and_ends_with_it() {
        let (place, machine) = profiles();
        let work = write(&machine, "work.toml");
        let ann = of_user(&machine, &place);
        let text = format!("{PROFILE}[user]\nname = \"ann\"\n[tunnel]\nroutes = \"all\"\n");
        let said = ann.import("mine", &text).unwrap();
        assert!(said.contains("all else is as in 'work'"), "{said}");
        let path = ann.find(Some("mine")).unwrap().path;
        let kept = || Profile::load(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(
            (kept().user.as_deref(), kept().routes),
            (Some("ann"), Profile::load(&work).unwrap().routes)
        );
        assert!(matches!(ann.find(None), Err(ProfileError::Several(names)) if names == ["mine", "work"]));
        let owns: Vec<_> =
            ann.list().unwrap().into_iter().map(|listed| (listed.name, listed.is_own)).collect();
        assert_eq!(owns, [("mine".to_owned(), true), ("work".to_owned(), false)]);
        assert!(matches!(machine.find(Some("mine")), Err(ProfileError::Missing(_))), "it is nobody else's");

        fs::write(&work, format!("{PROFILE}[tunnel]\ndns = false\n")).unwrap();
        ann.find(Some("mine")).unwrap();
        assert!(!kept().dns, "as the machine's says from now on");
        fs::write(&work, PROFILE.replace("vpn.example", "vpn.other")).unwrap();
        assert!(matches!(ann.find(Some("mine")), Err(ProfileError::NotImported(NotImported::Gone(_)))));
    }

    #[test]
    fn what_a_user_may_not_bring_changes_nothing() {
        let (place, machine) = profiles();
        write(&machine, "work.toml");
        let ann = of_user(&machine, &place);
        assert!(matches!(ann.import("../mine", PROFILE), Err(ProfileError::Name)));
        assert!(matches!(ann.import("work", PROFILE), Err(ProfileError::Taken(_))));
        let foreign = PROFILE.replace("vpn.example", "vpn.other");
        for refused in [foreign.as_str(), "<html>", "[Interface]\n", "version = 7\n", ""] {
            assert!(matches!(ann.import("mine", refused), Err(ProfileError::NotImported(_))), "{refused:?}");
        }
        assert!(!place.path().join("users").exists());
        for n in 0..MAX_OWN {
            ann.import(&format!("p{n}"), PROFILE).unwrap();
        }
        assert!(matches!(ann.import("mine", PROFILE), Err(ProfileError::TooMany)));
        assert!(matches!(ann.import("p3", PROFILE), Err(ProfileError::Taken(_))));
    }

    #[test]
    fn users_remove_their_own_profiles_and_root_the_machines() {
        let (place, machine) = profiles();
        let ann = of_user(&machine, &place);
        machine.import("work", PROFILE).unwrap();
        ann.import("mine", PROFILE).unwrap();
        assert!(matches!(ann.forget("work"), Err(ProfileError::Machines(_))));
        assert!(matches!(ann.forget("../profiles.d/work"), Err(ProfileError::Name)));
        assert!(matches!(ann.forget("none"), Err(ProfileError::Missing(_))));
        assert!(machine.forget("mine").is_err() && ann.forget("mine").is_ok() && ann.forget("mine").is_err());
        // One that the machine gets later comes before the user's of that name, who may still
        // remove it.
        ann.import("home", PROFILE).unwrap();
        machine.import("home", PROFILE).unwrap();
        assert!(ann.find(Some("home")).unwrap().path.starts_with(&machine.directory));
        assert!(ann.forget("home").is_ok() && machine.find(Some("home")).is_ok());
        assert!(machine.forget("home").is_ok() && machine.forget("work").is_ok());
        assert!(matches!(ann.find(None), Err(ProfileError::NoneAtAll(_))));
    }

    #[test]
    fn the_web_pages_are_where_the_profile_has_its_tcp_port() {
        let (_place, profiles) = profiles();
        let path = write(&profiles, "work.toml");
        let pages = |server: &str| {
            fs::write(&path, format!("version = 1\n[server]\ntrust = \"system\"\n{server}\n")).unwrap();
            profiles.find(None).unwrap().pages
        };
        assert_eq!(pages("addresses = [\"vpn.example\"]"), None);
        let origin = |address: &str| Some(address.to_owned());
        assert_eq!(
            pages("addresses = [\"a.example\"]\nname = \"vpn.example\"\ntcp_port = 443"),
            origin("https://vpn.example")
        );
        assert_eq!(
            pages("addresses = [\"[2001:db8::1]:4433\"]\ntcp_port = 8443"),
            origin("https://[2001:db8::1]:8443")
        );
    }
}
