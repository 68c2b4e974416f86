use std::time::SystemTime;

use clap::Parser as _;

use super::*;
use crate::admin_store::InThisProcess;
use crate::cli::{Cli, Command};
use crate::commands::{init, users};

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
        let said =
            place.run(&["backup", &place.text("file"), "--config", &place.text("one/server.toml")]).unwrap();
        assert!(said.contains("1 users"), "{said}");
        place
    }

    fn add(&self, name: &str, gateway: &str) {
        fs::write(self.path("password"), "a password\n").unwrap();
        let config = self.text(&format!("{gateway}/server.toml"));
        let words = ["user", "add", name, "--password-file", &self.text("password"), "--config", &config];
        self.run(&words).unwrap();
    }

    fn restore(&self, gateway: &str, force: bool) -> Result<String, String> {
        let (file, config) = (self.text("file"), self.text(&format!("{gateway}/server.toml")));
        let words = ["restore", &file, "--config", &config, "--force"];
        self.run(&words[..if force { 5 } else { 4 }])
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
fn a_gateway_comes_back_elsewhere_as_it_was() {
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
    // As for any store, the gateway checks it when it opens.
    let config = ServerConfig::load(&place.path("two/server.toml")).unwrap();
    drop(crate::store::sqlite::Sqlite::open(&config.server.store_path()).unwrap());
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
    for (bytes, hint) in [(&whole[..whole.len() / 2], "damaged"), (&b"hello"[..], "no backup of vpnd")] {
        fs::write(place.path("file"), bytes).unwrap();
        let error = place.restore("one", true).unwrap_err();
        assert!(error.contains(hint), "{error}");
    }
    assert_eq!((place.files("one"), place.users("one")), before);
}

#[test]
fn a_store_that_is_newer_or_none_is_refused_and_the_old_state_goes_on() {
    let place = Place::with_backup();
    let (_, mut contents) = backup::read(&fs::read(place.path("file")).unwrap()).unwrap();
    let before = (place.files("one"), place.users("one"));
    let newer = place.path("newer.db");
    fs::write(&newer, &*contents[STORE]).unwrap();
    rusqlite::Connection::open(&newer).unwrap().pragma_update(None, "user_version", 1_000).unwrap();
    for (store, hint) in [(fs::read(&newer).unwrap(), "install the newer vpnd"), (vec![3; 9_000], "damaged")]
    {
        contents.insert(STORE.to_owned(), Zeroizing::new(store));
        fs::write(place.path("file"), &*backup::write(&contents, NOW_S).unwrap()).unwrap();
        let error = place.restore("one", true).unwrap_err();
        assert!(error.contains(hint), "{error}");
        assert_eq!((place.files("one"), place.users("one")), before);
        let left = fs::read_dir(place.path("one/state")).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert!(left.iter().all(|name| !name.contains("restore")), "{left:?}");
    }
}

#[test]
fn the_secrets_of_sources_of_users_come_along() {
    let place = Place::new();
    place.run(&["init", "--dir", &place.text("one"), "--name", "vpn.example"]).unwrap();
    fs::write(place.path("one/radius.secret"), "a shared secret\n").unwrap();
    let config = fs::read_to_string(place.path("one/server.toml")).unwrap();
    let source = "[[source]]\nname = \"campus\"\nkind = \"radius\"\nrealm = \"uni.example\"\nservers = [\"radius://192.0.2.1\"]\n\
                  secret_file = \"radius.secret\"\n";
    fs::write(place.path("one/server.toml"), config + source).unwrap();
    place.run(&["backup", &place.text("file"), "--config", &place.text("one/server.toml")]).unwrap();
    place.restore("two", false).unwrap();
    assert_eq!(fs::read_to_string(place.path("two/radius.secret")).unwrap(), "a shared secret\n");
}

#[test]
fn a_backup_never_replaces_a_file() {
    let place = Place::with_backup();
    let error =
        place.run(&["backup", &place.text("file"), "--config", &place.text("one/server.toml")]).unwrap_err();
    assert!(error.contains("exists already"), "{error}");
}

#[test]
fn an_authoritys_key_that_is_elsewhere_is_left_out_and_said() {
    let place = Place::new();
    place.run(&["init", "--dir", &place.text("one"), "--name", "vpn.example"]).unwrap();
    fs::remove_file(place.path("one/ca-key.pem")).unwrap();
    let said =
        place.run(&["backup", &place.text("file"), "--config", &place.text("one/server.toml")]).unwrap();
    assert!(said.contains("without") && said.contains("ca-key.pem"), "{said}");
    place.restore("two", false).unwrap();
    fs::remove_file(place.path("one/server-key.pem")).unwrap();
    let error =
        place.run(&["backup", &place.text("other"), "--config", &place.text("one/server.toml")]).unwrap_err();
    assert!(error.contains("server-key.pem"), "{error}");
}
