use std::time::SystemTime;

use clap::Parser as _;

use super::*;
use crate::admin_store::InThisProcess;
use crate::cli::{Cli, Command};
use crate::commands::{init, users};
use vpnd_store::password::Password;

const NOW_S: u64 = 1_900_000_000;

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Runs one command; its output.
    fn run(&self, words: &[&str]) -> Result<String, String> {
        let cli = Cli::try_parse_from([&["vpnd"], words].concat()).unwrap();
        let mut out = Vec::new();
        let done = match cli.command {
            Command::Init(args) => init::init(&args, &InThisProcess, SystemTime::now())
                .map(drop)
                .map_err(|error| error.to_string()),
            Command::User(command) => {
                users::run(&command, &InThisProcess, NOW_S, &mut out).map_err(|error| error.to_string())
            }
            Command::Backup(args) => {
                backup(&args, &InThisProcess, NOW_S, &mut out).map_err(|error| error.to_string())
            }
            Command::Restore(args) => {
                restore(&args, &InThisProcess, NOW_S, &mut out).map_err(|error| error.to_string())
            }
            _ => unreachable!("no other command is tested here"),
        };
        done.map(|()| String::from_utf8(out).unwrap())
    }

    /// A gateway with one user, and its backup.
    fn with_backup() -> Self {
        let place = Self::new();
        place.run(&["init", "--dir", &place.text("one"), "--name", "vpn.example"]).unwrap();
        place.add("ann", "one");
        let said = place.backup("file").unwrap();
        assert!(said.contains("1 users"), "{said}");
        place
    }

    fn passphrase(&self) -> String {
        fs::write(self.path("passphrase"), "four random words\n").unwrap();
        self.text("passphrase")
    }

    /// A backup of gateway `one` in the file `name`.
    fn backup(&self, name: &str) -> Result<String, String> {
        let (file, config) = (self.text(name), self.text("one/server.toml"));
        self.run(&["backup", &file, "--passphrase-file", &self.passphrase(), "--config", &config])
    }

    /// Changes what is in the backup as a person who knows its passphrase can.
    fn forge(&self, change: impl FnOnce(&mut Contents)) {
        let passphrase = Password::new("four random words".to_owned());
        let archive = sealed::open(&fs::read(self.path("file")).unwrap(), &passphrase).unwrap();
        let (_, mut contents) = backup::read(&archive).unwrap();
        change(&mut contents);
        let archive = backup::write(&contents, NOW_S).unwrap();
        fs::write(self.path("file"), sealed::seal(&archive, &passphrase).unwrap()).unwrap();
    }

    /// Replaces `old` by `new` in the configuration in the backup.
    fn reconfigure(&self, old: &str, new: &str) {
        self.forge(|contents| {
            let text = String::from_utf8(contents[CONFIGURATION].to_vec()).unwrap();
            assert!(text.contains(old), "{text}");
            contents
                .insert(CONFIGURATION.to_owned(), Zeroizing::new(text.replacen(old, new, 1).into_bytes()));
        });
    }

    fn add(&self, name: &str, gateway: &str) {
        fs::write(self.path("password"), "a password\n").unwrap();
        let config = self.text(&format!("{gateway}/server.toml"));
        let words = ["user", "add", name, "--password-file", &self.text("password"), "--config", &config];
        self.run(&words).unwrap();
    }

    fn restore(&self, gateway: &str, force: bool) -> Result<String, String> {
        let (file, config) = (self.text("file"), self.text(&format!("{gateway}/server.toml")));
        let passphrase = self.passphrase();
        let words = ["restore", &file, "--passphrase-file", &passphrase, "--config", &config, "--force"];
        self.run(&words[..if force { 7 } else { 6 }])
    }

    fn users(&self, gateway: &str) -> String {
        self.run(&["user", "list", "--json", "--config", &self.text(&format!("{gateway}/server.toml"))])
            .unwrap()
    }

    fn files(&self, gateway: &str) -> Vec<(String, Vec<u8>)> {
        let names = ["server.toml", "ca.pem", "ca-key.pem", "server.pem", "server-key.pem"];
        names
            .map(|name| (name.to_owned(), fs::read(self.path(gateway).join(name)).unwrap_or_default()))
            .into()
    }
}

#[test]
fn a_backup_restores_the_gateway_on_another_machine() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::with_backup();
    let mode = |name: &str| fs::metadata(place.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("file"), 0o600);
    let said = place.restore("two", false).unwrap();
    assert!(said.contains("with 1 users"), "{said}");
    assert_eq!(place.files("two"), place.files("one"));
    assert_eq!(place.users("two"), place.users("one"));
    assert_eq!(
        (mode("two/ca-key.pem"), mode("two/server-key.pem"), mode("two/ca.pem")),
        (0o600, 0o600, 0o644)
    );
    // The gateway checks it when it opens, like any store.
    let config = ServerConfig::load(&place.path("two/server.toml")).unwrap();
    drop(vpnd_store::sqlite::Sqlite::open(&config.server.store_path()).unwrap());
}

#[test]
fn nothing_that_is_there_is_replaced_unless_asked_and_the_old_store_stays() {
    let place = Place::with_backup();
    place.add("bob", "one");
    let before = place.users("one");
    let error = place.restore("one", false).unwrap_err();
    assert!(error.contains("server-key.pem") && error.contains("vpnd.db"), "{error}");
    assert_eq!(place.users("one"), before);
    let said = place.restore("one", true).unwrap();
    assert!(said.contains("vpnd.db.replaced"), "{said}");
    assert!(!place.users("one").contains("bob"), "he came later");
    fs::rename(place.path("one/state/vpnd.db.replaced"), place.path("one/state/vpnd.db")).unwrap();
    assert_eq!(place.users("one"), before, "and that is whole");
}

#[test]
fn no_gateway_runs_or_starts_while_a_backup_is_restored() {
    let place = Place::with_backup();
    place.reconfigure("# socket = \"state/admin.sock\"", "socket = \"state/other.sock\"");
    let sockets = ["one/state/admin.sock", "one/state/other.sock"].map(|name| place.path(name));
    let refused = || place.restore("one", true).unwrap_err().contains("stop it first");
    for socket in &sockets {
        // One that is busy, or has only begun, does not answer.
        let starting = LockedFile::of_socket(socket).unwrap();
        assert!(starting.is_some() && refused(), "{}", socket.display());
        drop(starting);
        // The worker of one that was killed.
        let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        assert!(refused(), "{}", socket.display());
        drop(listener);
        fs::remove_file(socket).unwrap();
    }
    let path = place.path("one/server.toml");
    let mut config = ServerConfig::load(&path).unwrap();
    config.admin.socket = sockets[1].clone();
    let held = locks(&config, &path, &Places::new(&place.path("one"), &[]).unwrap()).unwrap();
    assert!(sockets.iter().all(|socket| LockedFile::of_socket(socket).unwrap().is_none()));
    drop(held);
    place.restore("one", true).unwrap();

    // The backup does not have a file made outside.
    let elsewhere = place.path("elsewhere/admin.sock");
    place.reconfigure("state/other.sock", &elsewhere.display().to_string());
    place.restore("two", false).unwrap();
    assert!(!place.path("elsewhere").exists());
}

#[test]
fn a_damaged_store_is_no_obstacle() {
    let place = Place::with_backup();
    fs::write(place.path("one/state/vpnd.db"), [0x55; 8192]).unwrap();
    place.restore("one", true).unwrap();
    assert!(place.users("one").contains("ann"));
}

#[test]
fn a_damaged_or_foreign_file_changes_nothing() {
    let place = Place::with_backup();
    let whole = fs::read(place.path("file")).unwrap();
    let before = (place.files("one"), place.users("one"));
    for (bytes, hint) in
        [(&whole[..whole.len() / 2], "passphrase is wrong"), (&b"hello"[..], "not a backup of vpnd")]
    {
        fs::write(place.path("file"), bytes).unwrap();
        let error = place.restore("one", true).unwrap_err();
        assert!(error.contains(hint), "{error}");
    }
    assert_eq!((place.files("one"), place.users("one")), before);
}

#[test]
fn a_newer_or_invalid_store_is_refused_and_the_old_one_stays() {
    let place = Place::with_backup();
    let mut contents = Contents::new();
    place.forge(|read| contents = read.clone());
    let before = (place.files("one"), place.users("one"));
    let newer = place.path("newer.db");
    fs::write(&newer, &*contents[STORE]).unwrap();
    rusqlite::Connection::open(&newer).unwrap().pragma_update(None, "user_version", 1_000).unwrap();
    for (store, hint) in [(fs::read(&newer).unwrap(), "install the newer vpnd"), (vec![3; 9_000], "damaged")]
    {
        place.forge(|contents| drop(contents.insert(STORE.to_owned(), Zeroizing::new(store))));
        let error = place.restore("one", true).unwrap_err();
        assert!(error.contains(hint), "{error}");
        assert_eq!((place.files("one"), place.users("one")), before);
        let left = fs::read_dir(place.path("one/state")).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert!(left.iter().all(|name| !name.contains("restore")), "{left:?}");
    }
}

#[test]
fn secrets_of_user_sources_are_in_the_backup() {
    let place = Place::new();
    place.run(&["init", "--dir", &place.text("one"), "--name", "vpn.example"]).unwrap();
    fs::write(place.path("one/radius.secret"), "a shared secret\n").unwrap();
    let config = fs::read_to_string(place.path("one/server.toml")).unwrap();
    let source = "[[source]]\nname = \"campus\"\nkind = \"radius\"\nrealm = \"uni.example\"\nservers = [\"radius://192.0.2.1\"]\n\
                  secret_file = \"radius.secret\"\n";
    fs::write(place.path("one/server.toml"), config + source).unwrap();
    place.backup("file").unwrap();
    place.restore("two", false).unwrap();
    assert_eq!(fs::read_to_string(place.path("two/radius.secret")).unwrap(), "a shared secret\n");
}

#[test]
fn files_of_the_web_pages_are_in_the_backup() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    place.run(&["init", "--dir", &place.text("one"), "--name", "vpn.example"]).unwrap();
    let config = fs::read_to_string(place.path("one/server.toml")).unwrap();
    let pages = "[portal]\nenabled = true\nacme = true\nurl = \"https://vpn.example\"\nlogo = \"logo.png\"\n";
    let config = config.replacen("[portal]\n", pages, 1);
    let authority = "[acme]\ndirectory = \"https://ca.example/d\"\nterms_of_service_agreed = true\n";
    fs::write(place.path("one/server.toml"), config + authority).unwrap();
    let logo = b"\x89PNG\r\n\x1a\n...";
    fs::write(place.path("one/logo.png"), logo).unwrap();
    let said = place.backup("before").unwrap();
    assert!(!said.contains("portal"), "they are not ordered yet: {said}");
    // Any certificate and key do.
    fs::copy(place.path("one/ca.pem"), place.path("one/portal.pem")).unwrap();
    fs::copy(place.path("one/ca-key.pem"), place.path("one/portal-key.pem")).unwrap();
    place.backup("file").unwrap();
    place.restore("two", false).unwrap();
    let read = |name: &str| fs::read(place.path(name)).unwrap();
    assert_eq!(read("two/portal.pem"), read("one/ca.pem"));
    assert_eq!(read("two/portal-key.pem"), read("one/ca-key.pem"));
    let mode = fs::metadata(place.path("two/portal-key.pem")).unwrap().permissions().mode();
    assert_eq!((mode & 0o777, read("two/logo.png")), (0o600, logo.to_vec()));
    for entry in ["portal-certificate.pem", "portal-key.pem", "portal-logo"] {
        place.forge(|contents| drop(contents.insert(entry.to_owned(), Zeroizing::new(b"* * *".to_vec()))));
        let error = place.restore("three", false).unwrap_err();
        assert!(error.contains(entry) && !place.path("three").exists(), "{error}");
        fs::remove_file(place.path("file")).unwrap();
        place.backup("file").unwrap();
    }
}

#[test]
fn a_backup_never_replaces_a_file() {
    let place = Place::with_backup();
    let error = place.backup("file").unwrap_err();
    assert!(error.contains("exists already"), "{error}");
}

#[test]
fn an_authority_key_kept_elsewhere_is_left_out_and_reported() {
    let place = Place::new();
    place.run(&["init", "--dir", &place.text("one"), "--name", "vpn.example"]).unwrap();
    fs::remove_file(place.path("one/ca-key.pem")).unwrap();
    let said = place.backup("file").unwrap();
    assert!(said.contains("without") && said.contains("ca-key.pem"), "{said}");
    place.restore("two", false).unwrap();
    fs::remove_file(place.path("one/server-key.pem")).unwrap();
    let error = place.backup("other").unwrap_err();
    assert!(error.contains("server-key.pem"), "{error}");
}

#[test]
fn a_backup_is_restored_with_its_passphrase_alone() {
    let place = Place::with_backup();
    fs::write(place.path("wrong"), "four other words\n").unwrap();
    let (file, config, wrong) = (place.text("file"), place.text("two/server.toml"), place.text("wrong"));
    let error = place.run(&["restore", &file, "--passphrase-file", &wrong, "--config", &config]).unwrap_err();
    assert!(error.contains("passphrase is wrong"), "{error}");
    assert!(!place.path("two").exists());
    fs::write(place.path("wrong"), "short\n").unwrap();
    let error = place
        .run(&["backup", &place.text("other"), "--passphrase-file", &wrong, "--config", &config])
        .unwrap_err();
    assert!(!place.path("other").exists(), "{error}");
}

#[test]
fn a_backup_writes_nothing_outside_the_configurations_directory_unless_it_is_named() {
    let place = Place::with_backup();
    let outside = place.path("etc/cron.d");
    for (old, new) in [
        ("key = \"server-key.pem\"", format!("key = \"{}/job\"", outside.display())),
        ("key = \"server-key.pem\"", "key = \"../etc/cron.d/job\"".to_owned()),
        ("# state_dir = \"state\"", format!("state_dir = \"{}\"", outside.display())),
    ] {
        fs::remove_file(place.path("file")).unwrap();
        place.backup("file").unwrap();
        place.reconfigure(old, &new);
        let error = place.restore("two", true).unwrap_err();
        assert!(error.contains("outside") && error.contains("--outside"), "{new}: {error}");
        assert!(!outside.exists() && !place.path("two").exists(), "{new}");
    }
    let (file, config, named) = (place.text("file"), place.text("two/server.toml"), place.text("etc/cron.d"));
    let passphrase = place.passphrase();
    let words =
        ["restore", &file, "--passphrase-file", &passphrase, "--config", &config, "--outside", &named];
    let said = place.run(&words).unwrap();
    assert!(said.contains(&format!("wrote {named}/vpnd.db")), "each path is printed: {said}");
    assert!(said.contains(&format!("wrote {config}")), "{said}");
}

#[test]
fn a_backup_writes_no_file_through_a_link() {
    let place = Place::with_backup();
    fs::create_dir_all(place.path("victim")).unwrap();
    fs::create_dir_all(place.path("two")).unwrap();
    std::os::unix::fs::symlink(place.path("victim"), place.path("two/state")).unwrap();
    let error = place.restore("two", true).unwrap_err();
    assert!(error.contains("symbolic link"), "{error}");
    assert_eq!(fs::read_dir(place.path("victim")).unwrap().count(), 0);
}

#[test]
fn each_file_of_a_backup_must_be_of_its_kind() {
    for entry in ["certificate.pem", "key.pem", "ca.pem", "ca-key.pem"] {
        let place = Place::with_backup();
        let job = b"* * * * * root true\n";
        place.forge(|contents| drop(contents.insert(entry.to_owned(), Zeroizing::new(job.to_vec()))));
        let error = place.restore("two", true).unwrap_err();
        assert!(error.contains(entry), "{error}");
        assert!(!place.path("two").exists(), "{entry}");
    }
}

#[test]
fn the_certificate_for_pinning_clients_is_restored() {
    let place = Place::with_backup();
    fs::copy(place.path("one/server.pem"), place.path("one/server.local.pem")).unwrap();
    let said = place.backup("with").unwrap();
    assert!(!said.contains("without"), "{said}");
    fs::rename(place.path("with"), place.path("file")).unwrap();
    place.restore("two", false).unwrap();
    let read = |name: &str| fs::read(place.path(name)).unwrap();
    assert_eq!(read("two/server.local.pem"), read("one/server.local.pem"));
}
