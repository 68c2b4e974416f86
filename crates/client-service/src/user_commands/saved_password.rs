//! A password that a user has had kept for the next login: in the session's keyring (Secret
//! Service), to which libsecret's `secret-tool` leads, or without one in a file that only the user
//! can read.
//!
//! Invariants: it is kept after a login that has succeeded with it, and given to no other gateway
//! and for no other user than then; it is in no argument and no environment of a process.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;
use zeroize::Zeroizing;

use vpnd_client::person::credentials::{self, CredentialsError, Source};
use vpnd_sys::secret_file::{self, Existing, SECRET_MODE};

/// The program that asks the keyring.
const TOOL: &str = "secret-tool";
/// Time for it: a keyring that is locked asks its user first.
const TOOL_TIMEOUT: Duration = Duration::from_secs(60);

/// Where a password is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Keyring,
    File(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keyring => f.write_str("the session's keyring"),
            Self::File(path) => write!(f, "{}, which only you can read", path.display()),
        }
    }
}

/// The result of asking the keyring.
enum Reply {
    Said(Zeroizing<Vec<u8>>),
    /// It has nothing, or can't be reached.
    Failed,
    NoProgram,
}

impl Reply {
    fn said(self) -> Option<Zeroizing<Vec<u8>>> {
        if let Self::Said(said) = self { Some(said) } else { None }
    }
}

/// A user's account at a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) gateway: String,
    pub(super) user: String,
}

/// The kept passwords of this process's user.
pub(super) struct Passwords {
    tool: OsString,
    /// The directory of files; `None` if the user has no home.
    files: Option<PathBuf>,
}

impl Passwords {
    pub(super) fn of_session() -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = || Some(variable("HOME")?.join(".config"));
        let files = variable("XDG_CONFIG_HOME").or_else(home).map(|place| place.join("vpnd/passwords"));
        Self { tool: TOOL.into(), files }
    }

    /// The password of an account, and its place.
    ///
    /// # Errors
    /// If others can read its file, or it can't be read.
    pub(super) async fn find(
        &self,
        account: &Account,
    ) -> Result<Option<(Place, Zeroizing<String>)>, CredentialsError> {
        let words = [&["lookup"][..], attributes(&account.gateway, Some(&account.user)).as_slice()].concat();
        let found = self.ask_keyring(&words, None).await.said().filter(|found| !found.is_empty());
        let password = found.and_then(|found| Some(Zeroizing::new(str::from_utf8(&found).ok()?.to_owned())));
        if let Some(password) = password {
            return Ok(Some((Place::Keyring, password)));
        }
        match self.file(account).filter(|file| file.exists()) {
            Some(file) => Ok(Some((Place::File(file.clone()), credentials::read(&Source::File(file))?))),
            None => Ok(None),
        }
    }

    /// Keeps a password; its place.
    ///
    /// # Errors
    /// If there is no keyring, and it can't be written to a file either.
    pub(super) async fn keep(&self, account: &Account, password: &str) -> anyhow::Result<Place> {
        let Account { gateway, user } = account;
        let label = format!("vpnd: {user} at {gateway}");
        let words = [&["store", "--label", &label][..], attributes(gateway, Some(user)).as_slice()].concat();
        let file = self.file(account);
        if self.ask_keyring(&words, Some(password)).await.said().is_some() {
            // It may be from a time without a keyring.
            let _ = file.map(fs::remove_file);
            return Ok(Place::Keyring);
        }
        let file = file.context(
            "this session has no keyring (Secret Service, by 'secret-tool' of libsecret-tools), and no file can have the name of \
             this user and gateway",
        )?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(secret_file::parent(&file))?;
        let line = Zeroizing::new(format!("{password}\n"));
        secret_file::write(&file, line.as_bytes(), SECRET_MODE, Existing::Replace)?;
        Ok(Place::File(file))
    }

    /// The place of passwords for this gateway, if one is kept.
    pub(super) async fn place(&self, gateway: &str) -> Option<Place> {
        let words = [&["lookup"][..], attributes(gateway, None).as_slice()].concat();
        if self.ask_keyring(&words, None).await.said().is_some_and(|found| !found.is_empty()) {
            return Some(Place::Keyring);
        }
        let mut files = fs::read_dir(self.directory(gateway)?).ok()?;
        files.find_map(|entry| Some(Place::File(entry.ok()?.path())))
    }

    /// Removes all that is kept for this gateway.
    ///
    /// # Errors
    /// If some of it is still there, or may be.
    pub(super) async fn forget(&self, gateway: &str) -> anyhow::Result<()> {
        if let Some(directory) = self.directory(gateway).filter(|directory| directory.exists()) {
            fs::remove_dir_all(&directory)
                .with_context(|| format!("can't remove {}", directory.display()))?;
        }
        let words = [&["clear"][..], attributes(gateway, None).as_slice()].concat();
        ensure!(
            !matches!(self.ask_keyring(&words, None).await, Reply::Failed),
            "no file has a password for {gateway} any more, but the keyring can't be reached: run this in the session that has it"
        );
        let left = self.place(gateway).await;
        ensure!(left.is_none(), "the keyring does not remove the password: do so in its own program");
        Ok(())
    }

    async fn ask_keyring(&self, words: &[&str], secret: Option<&str>) -> Reply {
        let mut tool = Command::new(&self.tool);
        tool.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut tool = match tool.kill_on_drop(true).spawn() {
            Ok(tool) => tool,
            Err(_) => return Reply::NoProgram,
        };
        let asked = async {
            let mut input = tool.stdin.take()?;
            input.write_all(secret.unwrap_or_default().as_bytes()).await.ok()?;
            drop(input);
            let output = tool.wait_with_output().await.ok()?;
            let said = Zeroizing::new(output.stdout);
            output.status.success().then_some(said)
        };
        timeout(TOOL_TIMEOUT, asked).await.ok().flatten().map_or(Reply::Failed, Reply::Said)
    }

    fn directory(&self, gateway: &str) -> Option<PathBuf> {
        Some(self.files.as_ref()?.join(plain(gateway)?))
    }

    /// The file of an account; `None` if none can have its name.
    fn file(&self, account: &Account) -> Option<PathBuf> {
        Some(self.directory(&account.gateway)?.join(plain(&account.user)?))
    }
}

/// The attributes of what is kept in the keyring.
fn attributes<'n>(gateway: &'n str, user: Option<&'n str>) -> Vec<&'n str> {
    let all = [Some(["application", "vpnd"]), Some(["gateway", gateway]), user.map(|user| ["user", user])];
    all.into_iter().flatten().flatten().collect()
}

/// The name as that of a file, if it is one that leads nowhere else.
fn plain(name: &str) -> Option<&Path> {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.@:+".contains(c);
    (!name.is_empty() && !name.starts_with('.') && name.chars().all(is_plain)).then_some(Path::new(name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn account(gateway: &str, user: &str) -> Account {
        Account { gateway: gateway.to_owned(), user: user.to_owned() }
    }

    async fn found(passwords: &Passwords, account: &Account) -> Option<(Place, String)> {
        let found = passwords.find(account).await.unwrap();
        found.map(|(place, password)| (place, password.as_str().to_owned()))
    }

    #[tokio::test]
    async fn without_a_keyring_a_file_of_the_user_has_it() {
        let place = tempfile::tempdir().unwrap();
        let files = Some(place.path().join("vpnd/passwords"));
        let passwords = Passwords { tool: "/nonexistent/secret-tool".into(), files };
        let ann = account("vpn.example", "ann@uni.example");
        assert_eq!(found(&passwords, &ann).await, None);
        let kept = passwords.keep(&ann, "open sesame").await.unwrap();
        let file = place.path().join("vpnd/passwords/vpn.example/ann@uni.example");
        assert_eq!(kept, Place::File(file.clone()));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
        assert_eq!(found(&passwords, &ann).await, Some((kept.clone(), "open sesame".to_owned())));
        assert_eq!(passwords.place("vpn.example").await, Some(kept));
        for other in [account("vpn.other", "ann@uni.example"), account("vpn.example", "bob")] {
            assert_eq!(found(&passwords, &other).await, None, "{other:?}");
        }
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(passwords.find(&ann).await, Err(CredentialsError::Exposed { .. })));
        passwords.forget("vpn.other").await.unwrap();
        assert!(file.exists());
        passwords.forget("vpn.example").await.unwrap();
        assert_eq!((file.exists(), passwords.place("vpn.example").await), (false, None));
    }

    #[tokio::test]
    async fn no_name_leads_to_another_file() {
        let place = tempfile::tempdir().unwrap();
        let files = Some(place.path().join("passwords"));
        let passwords = Passwords { tool: "/nonexistent/secret-tool".into(), files };
        for (gateway, user) in [("..", "ann"), ("vpn.example", "../ann"), ("vpn/example", "ann"), ("", "ann")]
        {
            let error = passwords.keep(&account(gateway, user), "words").await.unwrap_err();
            assert!(error.to_string().contains("no file can have the name"), "{gateway} {user}: {error}");
        }
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    /// A keyring with one item, which has the words of its attributes in the file's name.
    #[tokio::test]
    async fn a_keyring_is_preferred_and_gets_the_password_by_a_pipe() {
        let place = tempfile::tempdir().unwrap();
        let tool = place.path().join("secret-tool");
        let script = "#!/bin/sh\ncd \"${0%/*}\" || exit 1\nverb=$1; shift\n[ \"$1\" = --label ] && shift 2\nfile=\"$*\"\n\
                      case $verb in\nstore) cat >\"$file\" ;;\nlookup) for f in \"$file\"*; do cat \"$f\" && exit; done ;;\n\
                      clear) rm -f \"$file\"* ;;\nesac\n";
        fs::write(&tool, script).unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        let files = Some(place.path().join("passwords"));
        let without = Passwords { tool: "/nonexistent/secret-tool".into(), files: files.clone() };
        let passwords = Passwords { tool: tool.into(), files };
        let ann = account("vpn.example", "ann");
        without.keep(&ann, "from before").await.unwrap();
        assert_eq!(passwords.keep(&ann, "öpen").await.unwrap(), Place::Keyring);
        assert_eq!(found(&without, &ann).await, None, "it is in one place");
        let item = place.path().join("application vpnd gateway vpn.example user ann");
        assert_eq!(fs::read_to_string(item).unwrap(), "öpen");
        assert_eq!(found(&passwords, &ann).await, Some((Place::Keyring, "öpen".to_owned())));
        assert_eq!(passwords.place("vpn.example").await, Some(Place::Keyring));
        passwords.forget("vpn.example").await.unwrap();
        assert_eq!(found(&passwords, &ann).await, None);
        let out_of_reach = Passwords { tool: "false".into(), files: None };
        let error = out_of_reach.forget("vpn.example").await.unwrap_err().to_string();
        assert!(error.contains("can't be reached"), "{error}");
    }
}
