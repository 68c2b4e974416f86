//! A gateway in its box: initialised, configured, started, asked.
//!
//! Invariants: what a test does not configure is what `vpnd init` writes; each start gets the
//! configuration as it is then. This module must not know how the gateway works inside.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value as Json;
use toml::Value;

use crate::lab::{GATEWAY_V4, GATEWAY_V6, Lab, eventually};
use crate::namespace::Namespace;
use crate::process::{self, Process};

/// The gateway's inner addresses, the first of each pool.
pub(crate) const INNER_V4: &str = "10.86.0.1";
pub(crate) const INNER_V6: &str = "fd86::1";

/// The binary under test.
pub(crate) const VPND: &str = env!("CARGO_BIN_EXE_vpnd");

/// Copies the program, by another process: what this one has open for writing can't be started, and
/// programs that other tests start meanwhile have it open for a moment, too.
pub(crate) fn copy_program(to: &Path) {
    must(process::run({
        let mut command = Command::new("cp");
        command.arg("--preserve=mode").arg(VPND).arg(to);
        command
    }));
}

const STARTS: Duration = Duration::from_secs(15);

/// A gateway, running or not.
pub(crate) struct Gateway<'l> {
    lab: &'l Lab,
    place: &'l Namespace,
    directory: PathBuf,
    program: PathBuf,
    process: Option<Process>,
}

/// A user's profile and credentials, as given out by the administrator.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) profile: PathBuf,
    pub(crate) credentials: PathBuf,
}

impl<'l> Gateway<'l> {
    /// `vpnd init` and what every test wants: the campus pushed to clients and reachable by plain
    /// routing.
    pub(crate) fn init(lab: &'l Lab) -> Self {
        Self::init_in(lab, "gateway")
    }

    /// Makes one in a directory of another name.
    pub(crate) fn init_in(lab: &'l Lab, directory: &str) -> Self {
        Self::init_elsewhere(
            lab,
            directory,
            &lab.gateway,
            &[&GATEWAY_V4.to_string(), &GATEWAY_V6.to_string()],
        )
    }

    /// Makes one in another box, where it has these outer addresses.
    pub(crate) fn init_elsewhere(
        lab: &'l Lab,
        directory: &str,
        place: &'l Namespace,
        names: &[&str],
    ) -> Self {
        let gateway = Self { place, directory: lab.path(directory), ..Self::unmade(lab) };
        let mut command = gateway.vpnd(&["init", "--pool-v4", "10.86.0.0/16", "--pool-v6", "fd86::/64"]);
        for name in names {
            command.args(["--name", name]);
        }
        command.arg("--dir").arg(&gateway.directory);
        must(process::run(command));
        // The pools too: whether clients reach each other is then a matter of policy alone.
        gateway
            .configure("push.routes", strings(&["10.200.0.0/24", "fd20::/64", "10.86.0.0/16", "fd86::/64"]));
        gateway.configure("nat.mode", "route");
        gateway
            .configure("server.journal_dir", gateway.journal().to_str().expect("a temporary path is text"));
        gateway
    }

    /// One of which there is nothing yet.
    pub(crate) fn unmade(lab: &'l Lab) -> Self {
        let directory = lab.path("gateway");
        Self { lab, place: &lab.gateway, directory, program: VPND.into(), process: None }
    }

    /// One that runs as `init` makes it, with a user `ann`.
    pub(crate) fn for_ann(lab: &'l Lab) -> (Self, Login) {
        let mut gateway = Self::init(lab);
        let ann = gateway.add_user("ann");
        gateway.start();
        (gateway, ann)
    }

    /// Sets `section.key` of the configuration; counts from the next start or reload.
    pub(crate) fn configure(&self, path: &str, value: impl Into<Value>) {
        let (section, key) = path.split_once('.').expect("a section and a key");
        edit_toml(&self.config(), |table| {
            let section = table.entry(section).or_insert_with(|| Value::Table(toml::Table::new()));
            section.as_table_mut().expect("a section").insert(key.to_owned(), value.into());
        });
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.directory.join("server.toml")
    }

    /// A file of the directory that `vpnd init` has filled.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Path of its undo journal.
    pub(crate) fn journal(&self) -> PathBuf {
        self.file("journal")
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("state/admin.sock")
    }

    /// Adds a user whose password is `NAME's password`.
    pub(crate) fn add_user(&self, name: &str) -> Login {
        let credentials = self.lab.path(format!("{name}.credentials"));
        write_secret(&credentials, &format!("{name}'s password\n"));
        let profile = self.lab.path(format!("{name}.toml"));
        let mut command = self.user(&["add", name]);
        command.arg("--password-file").arg(&credentials).arg("--profile-out").arg(&profile);
        must(process::run(command));
        Login { profile, credentials }
    }

    /// `vpnd user ARGUMENTS`, on this gateway's store.
    pub(crate) fn user(&self, arguments: &[&str]) -> Command {
        let mut command = self.vpnd(&["user"]);
        command.args(arguments).arg("--config").arg(self.config());
        command
    }

    /// `vpnd` in the gateway's box.
    pub(crate) fn vpnd(&self, arguments: &[&str]) -> Command {
        let mut command = process::command(self.lab, self.place, VPND);
        command.args(arguments);
        command
    }

    /// `vpnd server`, not started.
    pub(crate) fn server(&self, arguments: &[&str]) -> Command {
        let mut command = process::command(self.lab, self.place, &self.program);
        command.args(["server", "--config"]).arg(self.config()).args(arguments);
        command
    }

    /// Takes the daemon from a copy of the program from now on; where it is.
    pub(crate) fn install(&mut self) -> PathBuf {
        self.program = self.lab.path("vpnd");
        copy_program(&self.program);
        self.program.clone()
    }

    /// `vpnd server --upgrade`.
    pub(crate) fn upgrade(&self) -> Output {
        let mut command = self.vpnd(&["server", "--upgrade", "--config"]);
        command.arg(self.config());
        process::run(command)
    }

    /// Starts it and waits until it says that it is up.
    pub(crate) fn start(&mut self) {
        self.start_with(&[]);
    }

    pub(crate) fn start_with(&mut self, arguments: &[&str]) {
        let command = self.server(arguments);
        self.process = Some(Process::start(self.lab, "gateway", command));
        eventually("the gateway is up", STARTS, || {
            self.process().assert_running();
            self.process().output().contains("the gateway is up").then_some(())
        });
    }

    /// The running daemon.
    pub(crate) fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("the test has started it")
    }

    /// Whether it was started and has not ended.
    pub(crate) fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| process.ended().is_none())
    }

    /// Ends it as a power cut would.
    pub(crate) fn kill(&mut self) {
        self.process().kill();
    }

    /// Ends it as the system does.
    pub(crate) fn terminate(&mut self) {
        self.process().signal(Signal::TERM);
        self.process().wait(Duration::from_secs(10));
    }

    /// `vpnd server --teardown`, which must find everything to be taken back.
    pub(crate) fn tear_down(&self) {
        let mut command = self.vpnd(&["server", "--teardown", "--config"]);
        command.arg(self.config());
        must(process::run(command));
    }

    /// `vpnd check` on its configuration.
    pub(crate) fn check(&self) -> Output {
        let mut command = self.vpnd(&["check"]);
        command.arg(self.config());
        process::run(command)
    }

    /// Runs an admin command on the running daemon.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Output {
        let mut command = self.vpnd(arguments);
        command.arg("--socket").arg(self.socket());
        process::run(command)
    }

    /// `vpnd status --json`.
    pub(crate) fn status(&self) -> Json {
        let output = must(self.ask(&["status", "--json"]));
        serde_json::from_slice(&output.stdout).expect("status prints JSON")
    }

    /// The sessions of `vpnd status`.
    pub(crate) fn sessions(&self) -> Vec<Json> {
        self.status()["sessions"].as_array().expect("a list of sessions").clone()
    }

    /// Packets and datagrams dropped for a reason, as `vpnd status` counts them.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let status = self.status();
        let drops = &status["counters"]["drops"];
        drops[name].as_u64().unwrap_or_else(|| panic!("no counter {name} in {drops}"))
    }

    /// Waits until a counter has grown above `before`.
    pub(crate) fn counter_above(&self, name: &str, before: u64) -> u64 {
        let grown = || Some(self.counter(name)).filter(|now| *now > before);
        eventually(&format!("{name} grows above {before}"), Duration::from_secs(5), grown)
    }
}

/// A list for the configuration.
pub(crate) fn strings(list: &[&str]) -> Value {
    Value::Array(list.iter().map(|text| Value::from(*text)).collect())
}

/// The output of a command that must succeed.
pub(crate) fn must(output: Output) -> Output {
    assert!(output.status.success(), "{}\n{}", output.status, process::text(&output));
    output
}

/// Writes a file that only its owner can read.
pub(crate) fn write_secret(path: &Path, text: &str) {
    fs::write(path, text).expect("the laboratory's directory is writable");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("it is our file");
}

/// Changes a TOML file in place.
pub(crate) fn edit_toml(path: &Path, edit: impl FnOnce(&mut toml::Table)) {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut table: toml::Table = text.parse().expect("vpnd wrote it");
    edit(&mut table);
    // Writing into the file that is there keeps its mode.
    fs::write(path, table.to_string()).expect("the laboratory's directory is writable");
}
