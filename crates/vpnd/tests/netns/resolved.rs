//! systemd-resolved in the box of a client, with its own bus: the machine's is neither seen
//! nor needed.
//!
//! The programs are the system's, or those that `./x setup` has unpacked: to install the package
//! would give the machine another `/etc/resolv.conf`.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::lab::{Lab, UPLINK, eventually};
use crate::namespace::Namespace;
use crate::process::{self, Process};

const SECOND: Duration = Duration::from_secs(1);
/// Directory into which `./x setup` unpacks the packages.
const UNPACKED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/unpacked");
const DAEMON: &str = "lib/systemd/systemd-resolved";
/// The address that it answers at.
const STUB: &str = "127.0.0.53";
/// User of the daemon.
const USER: &str = "systemd-resolve";
const USER_ID: u32 = 64_990;

const BUS: &str = r#"<busconfig>
<type>system</type>
<listen>unix:path=/run/dbus/system_bus_socket</listen>
<auth>EXTERNAL</auth>
<policy context="default">
<allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/>
</policy>
</busconfig>
"#;

const SETTINGS: &str = "[Resolve]\nLLMNR=no\nMulticastDNS=no\nDNSSEC=no\nCache=no\n";

/// Returns the root of the tree that has a program. `None`, and a loud word, if it is not there; a
/// failure instead where `CI` is set.
pub(crate) fn programs(path: &str) -> Option<PathBuf> {
    let found = [UNPACKED, "/", "/usr"].iter().map(PathBuf::from).find(|root| root.join(path).exists());
    if found.is_none() {
        let message = format!("SKIPPED: {path} is missing; run ./x setup\n");
        assert!(std::env::var_os("CI").is_none(), "{message}");
        std::io::stderr().write_all(message.as_bytes()).expect("standard error is open");
    }
    found
}

/// A running systemd-resolved; ends with its value.
pub(crate) struct Resolved<'l> {
    lab: &'l Lab,
    namespace: &'l Namespace,
    program: PathBuf,
    /// `None` while it is stopped.
    daemon: Option<Process>,
    name_servers: Vec<String>,
    _bus: Process,
}

impl<'l> Resolved<'l> {
    /// Starts it as the resolver of a box, whose uplink has these name servers. Everything that
    /// runs there afterwards shares its `/run`. `None`, and a loud word, if it is not there; a
    /// failure instead where `CI` is set.
    pub(crate) fn start(lab: &'l Lab, namespace: &'l Namespace, name_servers: &[&str]) -> Option<Self> {
        let root = programs(DAEMON)?;
        prepare(lab, namespace, &root);
        let bus = bus(lab, namespace);
        let name_servers = name_servers.iter().map(|server| (*server).to_owned()).collect();
        let program = root.join(DAEMON);
        let mut resolved = Self { lab, namespace, program, daemon: None, name_servers, _bus: bus };
        resolved.run();
        Some(resolved)
    }

    /// Starts it (again).
    pub(crate) fn run(&mut self) {
        let (lab, namespace) = (self.lab, self.namespace);
        let command = process::command(lab, namespace, &self.program);
        let mut daemon = Process::start(lab, "resolved", command);
        eventually("systemd-resolved answers", 10 * SECOND, || {
            daemon.assert_running();
            process::run(resolvectl(lab, namespace, &["status"])).status.success().then_some(())
        });
        self.daemon = Some(daemon);
        let servers: Vec<&str> = self.name_servers.iter().map(String::as_str).collect();
        self.set(&[&["dns", UPLINK], &servers[..]].concat());
        self.set(&["default-route", UPLINK, "yes"]);
    }

    /// Stops it, as `systemctl stop` does: its directory stays.
    pub(crate) fn stop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.signal(Signal::TERM);
            daemon.wait(10 * SECOND);
        }
    }

    /// Changes a setting, as other programs do.
    pub(crate) fn set(&self, arguments: &[&str]) {
        let output = process::run(resolvectl(self.lab, self.namespace, arguments));
        assert!(output.status.success(), "resolvectl {arguments:?}: {}", process::text(&output));
    }

    /// The name servers of an interface.
    pub(crate) fn servers(&self, interface: &str) -> String {
        process::text(&process::run(resolvectl(self.lab, self.namespace, &["dns", interface])))
    }

    /// The domains of an interface.
    pub(crate) fn domains(&self, interface: &str) -> String {
        process::text(&process::run(resolvectl(self.lab, self.namespace, &["domain", interface])))
    }
}

/// Starts a message bus for the programs of a namespace, which share `/run`.
pub(crate) fn bus(lab: &Lab, namespace: &Namespace) -> Process {
    let run = process::run_of(lab, namespace);
    fs::create_dir_all(run.join("dbus")).expect("it is writable");
    fs::write(process::etc(lab, namespace).join("bus.conf"), BUS).expect("it is writable");
    let mut bus = process::command(lab, namespace, "dbus-daemon");
    bus.args(["--config-file=/etc/bus.conf", "--nofork", "--nopidfile"]);
    let bus = Process::start(lab, "bus", bus);
    eventually("the bus is there", 10 * SECOND, || run.join("dbus/system_bus_socket").exists().then_some(()));
    bus
}

fn resolvectl(lab: &Lab, namespace: &Namespace, arguments: &[&str]) -> Command {
    let mut command = process::command(lab, namespace, "resolvectl");
    command.args(arguments);
    command
}

/// Its settings, its user, its directories.
fn prepare(lab: &Lab, namespace: &Namespace, root: &Path) {
    let etc = process::etc(lab, namespace);
    let append = |file: &str, line: String| {
        let path = etc.join(file);
        let text = fs::read_to_string(&path).expect("it was copied");
        if !text.lines().any(|line| line.starts_with(&format!("{USER}:"))) {
            fs::write(&path, format!("{text}{line}\n")).expect("it is ours");
        }
    };
    append("passwd", format!("{USER}:x:{USER_ID}:{USER_ID}::/:/usr/sbin/nologin"));
    append("group", format!("{USER}:x:{USER_ID}:"));
    fs::create_dir_all(etc.join("systemd")).expect("it is writable");
    fs::write(etc.join("systemd/resolved.conf"), SETTINGS).expect("it is writable");
    fs::write(etc.join("resolv.conf"), format!("nameserver {STUB}\n")).expect("it is writable");
    let run = process::share_run(lab, namespace, root);
    fs::create_dir_all(run.join("systemd/resolve")).expect("it is writable");
    // The daemon writes there as its user, whose number the machine may have given already.
    let passwd = fs::read_to_string(etc.join("passwd")).expect("it is readable");
    let line = passwd.lines().find(|line| line.starts_with(&format!("{USER}:"))).expect("it is there now");
    let mut ids = line.split(':').skip(2).map(|id| id.parse().ok());
    let (user, group) = (ids.next().flatten(), ids.next().flatten());
    std::os::unix::fs::chown(run.join("systemd/resolve"), user, group).expect("root may");
}

/// The variables that programs below `root` need.
pub(crate) fn library_path(root: &Path) -> Option<OsString> {
    let libraries = root.join("usr/lib/x86_64-linux-gnu/systemd");
    let libraries =
        if libraries.exists() { libraries } else { root.join("usr/lib/aarch64-linux-gnu/systemd") };
    // The C library's module lies above.
    let module = libraries.parent().filter(|_| root == Path::new(UNPACKED)).unwrap_or(&libraries);
    let path = std::env::join_paths([libraries.as_path(), module]).expect("no path has a colon");
    libraries.exists().then_some(path)
}
