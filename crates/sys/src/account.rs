//! Users of the machine: who an unprivileged process becomes.

use std::collections::HashSet;
use std::ffi::CString;
use std::io;

use minicbor::{Decode, Encode};
use nix::unistd::{Gid, Group, Uid, User, getgrouplist, setgroups, setresgid, setresuid};
use rustix::thread::CapabilitySet;

/// The user that is taken if nothing else is configured and the machine has it.
pub const DEFAULT_USER: &str = "vpnd";
/// Numbers that systemd reserves for services while they run (`DynamicUser=` of systemd.exec(5)).
const DYNAMIC: std::ops::RangeInclusive<u32> = 61_184..=65_519;

/// The person behind this process, as far as the machine knows: its user, and who logged in or
/// called sudo as that user. For records, not for decisions: root can set both.
pub fn invoker() -> String {
    let name = |uid: u32| match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    };
    let this = name(nix::unistd::getuid().as_raw());
    // 4294967295 without a login, as for a service.
    let login = std::fs::read_to_string("/proc/self/loginuid").ok().and_then(|text| text.trim().parse().ok());
    let login = login.filter(|uid| *uid != u32::MAX).map(name);
    let sudo = std::env::var("SUDO_USER").ok().filter(|user| user.len() <= 64);
    match login.or(sudo) {
        Some(person) if person != this => crate::text::plain(&format!("{this} ({person})")),
        _ => this,
    }
}

/// A user with a home on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    pub uid: u32,
    pub gid: u32,
    pub name: String,
    pub home: String,
}

/// The person who has called sudo for this process, which is root's. `None` without sudo, or for
/// root.
pub fn behind_sudo() -> Option<Person> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let uid = std::env::var("SUDO_UID").ok()?.parse().ok().filter(|uid| *uid != 0)?;
    let user = User::from_uid(Uid::from_raw(uid)).ok()??;
    let home = user.dir.to_str()?.to_owned();
    Some(Person { uid, gid: user.gid.as_raw(), name: user.name, home })
}

/// The number of the group of this name, if there is one.
///
/// # Errors
/// If the machine's groups can't be read.
pub fn group_of(name: &str) -> Result<Option<u32>, AccountError> {
    Ok(Group::from_name(name)?.map(|group| group.gid.as_raw()))
}

/// The name of the user of this number, if there is one.
///
/// # Errors
/// If the machine's users can't be read.
pub fn name_of(uid: u32) -> Result<Option<String>, AccountError> {
    Ok(User::from_uid(Uid::from_raw(uid))?.map(|user| user.name))
}

/// Whether there is a user of this number, or of this name.
///
/// # Errors
/// If the machine's users can't be read.
pub fn exists(uid: u32, name: &str) -> Result<bool, AccountError> {
    Ok(User::from_uid(Uid::from_raw(uid))?.is_some() || User::from_name(name)?.is_some())
}

/// Whether all users are kept in files of this machine, as nsswitch.conf(5) says. If not, one that
/// is not found may be one whose directory is out of reach: some modules answer so, and
/// nss-systemd(8) while systemd-homed does not run.
pub fn are_local() -> bool {
    match std::fs::read_to_string("/etc/nsswitch.conf") {
        Ok(text) => has_local_users_alone(&text),
        // The C library looks at files then.
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

fn has_local_users_alone(nsswitch: &str) -> bool {
    const LOCAL: [&str; 5] = ["files", "compat", "db", "altfiles", "extrausers"];
    let lines = nsswitch.lines().map(|line| line.split('#').next().unwrap_or_default());
    let sources = lines.filter_map(|line| line.trim().strip_prefix("passwd:"));
    // Brackets hold the actions after a source.
    let mut sources = sources.flat_map(str::split_whitespace).filter(|word| !word.contains(['[', ']', '=']));
    sources.all(|source| LOCAL.contains(&source))
}

/// Whether the user is in the group, as its own or as one of its others. May take long where users
/// are kept elsewhere.
///
/// # Errors
/// If the machine's users can't be read.
pub fn is_member(uid: u32, gid: u32) -> Result<bool, AccountError> {
    let Some(user) = User::from_uid(Uid::from_raw(uid))? else { return Ok(false) };
    let Ok(name) = CString::new(user.name) else { return Ok(false) };
    Ok(getgrouplist(&name, user.gid)?.contains(&Gid::from_raw(gid)))
}

/// A user and its group.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct UnixUser {
    #[n(0)]
    uid: u32,
    #[n(1)]
    gid: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    #[error(
        "there is no user '{0}' on this machine: make it (`useradd --system --no-create-home {0}`) or name another"
    )]
    NoSuchUser(String),
    /// The configured one may do everything, which is what is to be given up.
    #[error("'{0}' is root: unprivileged processes need a user without rights, such as vpnd")]
    Root(String),
    #[error("the machine's users can't be looked up: {0}")]
    LookUp(#[from] nix::Error),
    /// An unused number could not be found.
    #[error(
        "no unused user number was found; make a user for vpnd: `useradd --system --no-create-home vpnd`"
    )]
    NoneFree,
}

impl UnixUser {
    /// The user of unprivileged processes: `configured`, else `vpnd`, else an unused number. `None`
    /// if this process may not change its user; then it has no privileges already.
    pub fn choose(configured: Option<&str>) -> Result<Option<Self>, AccountError> {
        if let Some(name) = configured {
            let identity = Self::of(name)?;
            return Ok(may_change_user().then_some(identity));
        }
        if !may_change_user() {
            return Ok(None);
        }
        match Self::of(DEFAULT_USER) {
            Err(AccountError::NoSuchUser(_)) => {
                let uid = unused_number()?;
                tracing::warn!(
                    uid,
                    "there is no user 'vpnd', so unprivileged processes run under an unused number; better \
                     make one: useradd --system --no-create-home vpnd"
                );
                Ok(Some(Self { uid, gid: uid }))
            }
            found => found.map(Some),
        }
    }

    /// The user of this name, who must not be root.
    pub fn of(name: &str) -> Result<Self, AccountError> {
        let user = User::from_name(name)?.ok_or_else(|| AccountError::NoSuchUser(name.to_owned()))?;
        if user.uid.is_root() {
            return Err(AccountError::Root(name.to_owned()));
        }
        Ok(Self { uid: user.uid.as_raw(), gid: user.gid.as_raw() })
    }

    /// The user of a process that works on files of `owner`. `None` if it is that user, or may not
    /// change its user.
    ///
    /// # Errors
    /// If the machine's users can't be read.
    pub fn to_become(owner: u32) -> Result<Option<Self>, AccountError> {
        if owner == rustix::process::geteuid().as_raw() || !may_change_user() {
            return Ok(None);
        }
        let user = User::from_uid(Uid::from_raw(owner))?;
        Ok(Some(Self { uid: owner, gid: user.map_or(owner, |user| user.gid.as_raw()) }))
    }

    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid
    }

    #[must_use]
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// Becomes that user, in all threads and for good.
    pub(crate) fn assume(&self) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        setgroups(&[])?;
        setresgid(gid, gid, gid)?;
        setresuid(uid, uid, uid)?;
        Ok(())
    }
}

fn may_change_user() -> bool {
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

/// A number that no user has and no process runs under. Two daemons that start at the same moment
/// begin their search at different places.
fn unused_number() -> Result<u32, AccountError> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten();
    let taken: HashSet<u32> = processes.filter_map(|entry| owner(&entry.ok()?.path())).collect();
    let count = DYNAMIC.end() - DYNAMIC.start() + 1;
    let first = std::process::id() % count;
    for step in 0..count {
        let number = DYNAMIC.start() + (first + step) % count;
        if !taken.contains(&number) && User::from_uid(Uid::from_raw(number))?.is_none() {
            return Ok(number);
        }
    }
    Err(AccountError::NoneFree)
}

/// The real user of a process. The owner of its directory would be root for one that can't be
/// dumped.
fn owner(process: &std::path::Path) -> Option<u32> {
    let status = std::fs::read_to_string(process.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unused_uid_has_no_account() {
        let number = unused_number().unwrap();
        assert!(DYNAMIC.contains(&number));
        assert!(User::from_uid(Uid::from_raw(number)).unwrap().is_none());
    }

    #[test]
    fn a_configured_user_must_exist_and_not_be_root() {
        let missing = UnixUser::choose(Some("no-such-user-of-vpnd"));
        assert!(matches!(missing, Err(AccountError::NoSuchUser(_))), "{missing:?}");
        let root = UnixUser::choose(Some("root"));
        assert!(matches!(root, Err(AccountError::Root(_))), "{root:?}");
        assert_eq!(UnixUser::choose(Some("nobody")).unwrap().is_some(), may_change_user());
    }

    #[test]
    fn users_who_are_kept_elsewhere_are_noticed() {
        for (text, are_local) in [
            ("", true),
            ("passwd: files extrausers\ngroup: files ldap\n", true),
            ("passwd: files systemd\n", false),
            ("  passwd:\tfiles [NOTFOUND=return] # sss\n", true),
            ("passwd: files sss\n", false),
            ("passwd:files ldap [UNAVAIL=return] systemd\n", false),
            ("passwd: winbind\n", false),
        ] {
            assert_eq!(has_local_users_alone(text), are_local, "{text:?}");
        }
        assert!(exists(0, "no-such-user-of-vpnd").unwrap() && exists(3_999_999, "root").unwrap());
        assert!(!exists(3_999_999, "no-such-user-of-vpnd").unwrap());
    }

    #[test]
    fn members_of_a_group_are_known() {
        let nobody = UnixUser::of("nobody").unwrap();
        assert_eq!(group_of("root").unwrap(), Some(0));
        assert_eq!(group_of("no-such-group-of-vpnd").unwrap(), None);
        assert!(is_member(nobody.uid(), nobody.gid()).unwrap());
        assert!(!is_member(nobody.uid(), 0).unwrap() && !is_member(3_999_999, 0).unwrap());
    }

    #[test]
    fn the_owner_of_a_process_is_known() {
        let this = rustix::process::getuid().as_raw();
        assert_eq!(owner(std::path::Path::new("/proc/self")), Some(this));
    }
}
