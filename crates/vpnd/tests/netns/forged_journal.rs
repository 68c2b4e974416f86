//! Behaviour: undo journals that a user without privileges may have written are not undone,
//! wherever they lie.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};

use crate::client;
use crate::gateway::{Gateway, VPND, must};
use crate::lab::Lab;
use crate::namespace::Namespace;
use crate::process;

const NOBODY: u32 = 65_534;
const SETTING: &str = "net/ipv4/ip_forward";

/// A line of a journal.
fn line(record: &Json) -> String {
    let json = record.to_string();
    let mut sum = String::new();
    for byte in &Sha256::digest(&json)[..8] {
        write!(sum, "{byte:02x}").unwrap();
    }
    format!("{sum} {json}\n")
}

/// The first line, of a process in this namespace that has ended.
fn owner(namespace: &Namespace) -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let found = fs::metadata(Path::new("/run/netns").join(namespace.name())).unwrap();
    line(&json!({"start": {"pid": 4_194_304, "boot": boot.trim(), "namespace": [found.dev(), found.ino()]}}))
}

fn change(number: u64, change: &Json) -> String {
    line(&json!({"change": {"id": number, "change": change}}))
}

/// Traces of a journal that was undone: a setting that is switched off again, and a program of
/// root's.
struct Bait<'l> {
    namespace: &'l Namespace,
    program: PathBuf,
}

impl<'l> Bait<'l> {
    fn new(lab: &Lab, namespace: &'l Namespace) -> Self {
        namespace.sysctl(SETTING, "1");
        Self { namespace, program: lab.path("program") }
    }

    /// A change that vpnd makes itself, and so undoes.
    fn honest(&self) -> String {
        let set = json!({"key": SETTING, "value": "1"});
        owner(self.namespace) + &change(0, &json!({"sysctl": {"set": set, "before": "0", "dependent": []}}))
    }

    /// A change that makes a program which runs as root for any user.
    fn dishonest(&self) -> String {
        let before = json!({"file": {"content": "eA==", "mode": 0o4755, "uid": 0, "gid": 0}});
        let file = json!({"path": self.program, "before": before, "after": "y"});
        owner(self.namespace) + &change(0, &json!({"dns": {"file": file}}))
    }

    /// Whether the setting is as it was; the program was not made.
    fn is_untouched(&self) -> bool {
        assert!(!self.program.exists(), "{} was made", self.program.display());
        let path = Path::new("/proc/sys").join(SETTING);
        self.namespace.within(|| fs::read_to_string(path).unwrap()).trim() == "1"
    }
}

/// A file as the privileged process writes it.
fn plant(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

fn cleanup(lab: &Lab, directory: &Path) -> Output {
    let mut command = process::command(lab, &lab.clients[0], VPND);
    command.arg("cleanup").arg("--journal-dir").arg(directory);
    process::run(command)
}

/// A directory with one journal in it.
struct Planted {
    above: PathBuf,
    directory: PathBuf,
    journal: PathBuf,
}

/// A fault of a journal or its directory, and the function that makes it; with the directory's
/// path.
type Fault = (&'static str, fn(&Planted) -> PathBuf);

const FAULTS: [Fault; 8] = [
    ("of nobody", |at| {
        chown(&at.journal, Some(NOBODY), None).unwrap();
        at.directory.clone()
    }),
    ("others may write it", |at| {
        fs::set_permissions(&at.journal, Permissions::from_mode(0o620)).unwrap();
        at.directory.clone()
    }),
    ("a second name", |at| {
        fs::hard_link(&at.journal, at.above.join("second")).unwrap();
        at.directory.clone()
    }),
    ("a link", |at| {
        fs::rename(&at.journal, at.above.join("elsewhere")).unwrap();
        symlink(at.above.join("elsewhere"), &at.journal).unwrap();
        at.directory.clone()
    }),
    ("no owner", |at| {
        let text = fs::read_to_string(&at.journal).unwrap();
        plant(&at.journal, text.split_once('\n').unwrap().1);
        at.directory.clone()
    }),
    ("a directory that others write", |at| {
        fs::set_permissions(&at.directory, Permissions::from_mode(0o770)).unwrap();
        at.directory.clone()
    }),
    ("a directory of nobody", |at| {
        chown(&at.directory, Some(NOBODY), None).unwrap();
        at.directory.clone()
    }),
    ("a linked directory", |at| {
        let link = at.above.join("link");
        symlink(&at.directory, &link).unwrap();
        link
    }),
];

#[test]
fn cleanup_undoes_only_what_its_own_user_has_written() {
    let Some(lab) = Lab::new(1) else { return };
    let bait = Bait::new(&lab, &lab.clients[0]);
    let directory = lab.path("journals");
    let at = Planted { above: lab.path(""), journal: directory.join("1-0.journal"), directory };
    for (what, make_wrong) in FAULTS {
        fs::create_dir(&at.directory).unwrap();
        plant(&at.journal, &bait.honest());
        let output = cleanup(&lab, &make_wrong(&at));
        assert_eq!(output.status.code(), Some(1), "{what}: {}", process::text(&output));
        assert!(bait.is_untouched(), "{what} was undone: {}", process::text(&output));
        fs::remove_dir_all(&at.directory).unwrap();
        let _ = fs::remove_file(at.above.join("second"));
    }
    fs::create_dir(&at.directory).unwrap();
    plant(&at.journal, &bait.honest());
    must(cleanup(&lab, &at.directory));
    assert!(!bait.is_untouched(), "but with nothing wrong it is, so the above means something");
    assert!(!at.journal.exists());
}

#[test]
fn foreign_files_in_the_state_directory_are_not_undone() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("nat.mode", "none");
    let bait = Bait::new(&lab, &lab.gateway);
    // The auth process may write this, which is root by its user.
    let forged = [gateway.file("state/1-0.journal"), gateway.file("state/2-0.journal")];
    for (path, text) in forged.iter().zip([bait.honest(), bait.dishonest()]) {
        plant(path, &text);
    }
    gateway.start();
    gateway.terminate();
    assert!(bait.is_untouched());
    assert!(forged.iter().all(|path| path.exists()), "it is left to people");

    // And no place can have both.
    for journals in ["state", "state/journals"] {
        gateway.configure("server.journal_dir", gateway.file(journals).to_str().unwrap());
        let output = process::run(gateway.server(&[]));
        assert_eq!(output.status.code(), Some(1), "{}", process::text(&output));
        assert!(process::text(&output).contains("journal_dir") && bait.is_untouched());
    }
    symlink(gateway.file("state"), lab.path("alias")).unwrap();
    fs::create_dir(gateway.file("state/journals")).unwrap();
    gateway.configure("server.journal_dir", gateway.file("state/journals").to_str().unwrap());
    gateway.configure("server.state_dir", lab.path("alias").to_str().unwrap());
    let output = process::run(gateway.server(&[]));
    assert_eq!(output.status.code(), Some(1), "{}", process::text(&output));
    assert!(process::text(&output).contains("less privileged processes write") && bait.is_untouched());
}

#[test]
fn a_start_undoes_what_the_last_run_left_and_nothing_else() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let bait = Bait::new(&lab, &lab.clients[0]);
    let directory = client::journal(&lab, 1);
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, Permissions::from_mode(0o700)).unwrap();
    let journal = directory.join("1-0.journal");
    plant(&journal, &bait.honest());
    chown(&journal, Some(NOBODY), None).unwrap();
    let mut client = client::Client::connect(&lab, 1, &ann);
    assert!(bait.is_untouched() && journal.exists(), "it connects all the same");
    assert!(client.process().output().contains("65534"), "and says whose it is");
    client.interrupt();
    chown(&journal, Some(0), None).unwrap();
    let client = client::Client::connect(&lab, 1, &ann);
    assert!(!bait.is_untouched() && !journal.exists());
    drop(client);
}
