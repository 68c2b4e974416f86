//! Behaviour: a user's password is kept for the next login where the user wishes so: in the
//! session's keyring, here gnome-keyring's, or without one in a file that only the user can read.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use crate::client_service::{ANN, Machine, refused};
use crate::gateway::{Gateway, must, write_secret};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::process::{self, Process, text};
use crate::traffic::ping_until;

const TIMEOUT: Duration = Duration::from_secs(30);
const GATEWAY: &str = "198.18.0.2";

/// Ann's session, of which her programs know by these variables.
struct Session<'l> {
    lab: &'l Lab,
    machine: &'l Machine<'l>,
    home: PathBuf,
    bus: Option<String>,
}

impl<'l> Session<'l> {
    fn new(lab: &'l Lab, machine: &'l Machine<'l>) -> Self {
        let home = lab.path("home-of-ann");
        fs::create_dir(&home).unwrap();
        chown(&home, Some(ANN.uid), Some(ANN.uid)).unwrap();
        Self { lab, machine, home, bus: None }
    }

    fn within(&self, mut command: Command) -> Command {
        for variable in ["DISPLAY", "WAYLAND_DISPLAY", "XDG_CONFIG_HOME", "DBUS_SESSION_BUS_ADDRESS"] {
            command.env_remove(variable);
        }
        command.env("HOME", &self.home).env("XDG_RUNTIME_DIR", &self.home);
        command.envs(self.bus.iter().map(|bus| ("DBUS_SESSION_BUS_ADDRESS", bus)));
        command
    }

    /// Another program of ann's.
    fn program(&self, words: &[&str]) -> Command {
        let mut command = process::command(self.lab, self.machine.place(), "setpriv");
        let uid = ANN.uid.to_string();
        command.args(["--reuid", &uid, "--regid", &uid, "--clear-groups"]).args(words);
        self.within(command)
    }

    /// Starts a message bus and the keyring; both end with their values.
    fn begin_keyring(&mut self) -> [Process; 2] {
        let socket = self.home.join("bus");
        let address = format!("unix:path={}", socket.display());
        let option = format!("--address={address}");
        let bus = self.program(&["dbus-daemon", "--session", "--nofork", "--nosyslog", &option]);
        let bus = Process::start(self.lab, "bus", bus);
        eventually("the bus is there", TIMEOUT, || socket.exists().then_some(()));
        self.bus = Some(address);
        let daemon =
            self.program(&["gnome-keyring-daemon", "--foreground", "--unlock", "--components=secrets"]);
        let (daemon, mut words) = Process::start_at_terminal(self.lab, "keyring", daemon);
        words.write_all(b"the keyring's words").unwrap();
        drop(words);
        eventually("the keyring is there", TIMEOUT, || {
            let owner = ["dbus-send", "--session", "--print-reply", "--dest=org.freedesktop.DBus", "/"];
            let name = ["org.freedesktop.DBus.GetNameOwner", "string:org.freedesktop.secrets"];
            process::run(self.program(&[&owner[..], &name].concat())).status.success().then_some(())
        });
        [bus, daemon]
    }

    /// `vpnd WORDS`, without a terminal.
    fn vpnd(&self, words: &[&str]) -> Output {
        process::run(self.within(self.machine.command(ANN, words)))
    }

    /// Connects, and keeps the password in this place.
    fn save_in(&self, place: &str) {
        let password = self.machine.password(ANN, "ann's password");
        let said = text(&must(self.vpnd(&["up", "--credentials", &password, "--save-password"])));
        assert!(said.contains(&format!("the password is kept in {place}")), "{said}");
        must(self.vpnd(&["down"]));
        let said = text(&self.vpnd(&["password"]));
        assert!(said.contains(&format!("a password for {GATEWAY} is kept in {place}")), "{said}");
    }

    /// Connects by the password that is kept there.
    fn connects_by(&self, place: &str) {
        let said = text(&must(self.vpnd(&["up"])));
        assert!(said.contains(&format!("the password is that in {place}")), "{said}");
        ping_until(self.machine.place(), CAMPUS_V4.into(), TIMEOUT);
        must(self.vpnd(&["down"]));
        assert!(!self.machine.log().contains("ann's password"));
    }

    fn forgets(&self) {
        let said = text(&self.vpnd(&["password", "--forget"]));
        let words =
            if self.bus.is_some() { "no password is kept for" } else { "the keyring can't be reached" };
        assert!(said.contains(words), "{said}");
        refused(&self.vpnd(&["up"]), "there is no terminal to ask for a password");
        assert!(!text(&self.vpnd(&["password"])).contains("is kept in"));
    }
}

#[test]
fn without_a_keyring_a_file_that_only_the_user_can_read_has_the_password() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, login) = Gateway::for_ann(&lab);
    let machine = Machine::new(&lab, &login);
    let session = Session::new(&lab, &machine);
    refused(&session.vpnd(&["up"]), "there is no terminal to ask for a password");
    let wrong = machine.password(ANN, "wrong");
    assert!(!session.vpnd(&["up", "--credentials", &wrong, "--save-password"]).status.success());
    let file = session.home.join(format!(".config/vpnd/passwords/{GATEWAY}/ann"));
    assert!(!file.exists(), "only what has led to a tunnel is kept");
    let place = format!("{}, which only you can read", file.display());
    session.save_in(&place);
    let is_hers = |path: &Path, mode: u32| {
        let found = fs::metadata(path).unwrap();
        assert_eq!((found.uid(), found.mode() & 0o777), (ANN.uid, mode), "{}", path.display());
    };
    is_hers(&file, 0o600);
    is_hers(file.parent().unwrap(), 0o700);
    session.connects_by(&place);

    // It is another one at the gateway.
    let words = lab.path("new-password");
    write_secret(&words, "the new one\n");
    must(process::run(gateway.user(&["passwd", "ann", "--password-file", words.to_str().unwrap()])));
    let output = session.vpnd(&["up"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert!(text(&output).contains("`vpnd up --save-password` asks for another"), "{}", text(&output));
    session.forgets();
    assert!(!file.exists());
}

#[test]
fn the_sessions_keyring_has_the_password() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, login) = Gateway::for_ann(&lab);
    let machine = Machine::new(&lab, &login);
    let mut session = Session::new(&lab, &machine);
    let _programs = session.begin_keyring();
    session.save_in("the session's keyring");
    assert!(!session.home.join(".config/vpnd").exists());
    let lookup = ["secret-tool", "lookup", "application", "vpnd", "gateway", GATEWAY, "user", "ann"];
    assert_eq!(text(&must(process::run(session.program(&lookup)))), "ann's password");
    session.connects_by("the session's keyring");
    session.forgets();
    assert_eq!(text(&process::run(session.program(&lookup))), "");
}
