//! What a process can't do any more once it has shut itself in. Each case runs in a process of its own: this program again.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and helper functions of integration tests are not known as tests"
)]

use std::fs::Permissions;
use std::io::{ErrorKind, Write as _};
use std::net::{TcpListener, TcpStream, ToSocketAddrs as _, UdpSocket};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus};

use rustix::process::Signal;
use vpnd::journal::JournalDirectory;
use vpnd::sys::account::Identity;
use vpnd::sys::sandbox::{Confinement, Landlock, Protections, SandboxMode, enter};
use vpnd::sys::seccomp::SystemCalls;

const INSIDE: &str = "VPND_TEST_SANDBOX";
/// Readable by root alone, wherever there are passwords.
const SHADOW: &str = "/etc/shadow";

/// Runs `inside` in a process of its own; in that process, it does not return.
fn alone(test: &str, directory: Option<&Path>, inside: impl FnOnce(&Path)) -> ExitStatus {
    if let Some(directory) = std::env::var_os(INSIDE) {
        inside(Path::new(&directory));
        std::io::stderr().flush().unwrap();
        std::process::exit(0);
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(INSIDE, directory.unwrap_or(Path::new("/")));
    let output = command.output().unwrap();
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    output.status
}

fn confinement(system_calls: SystemCalls) -> Confinement {
    Confinement {
        mode: SandboxMode::On,
        identity: None,
        system_calls,
        readable: Vec::new(),
        writable: Vec::new(),
    }
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        assert!(std::env::var_os("CI").is_none(), "this test needs root");
        eprintln!("SKIPPED: only root has something to give up; run ./x test");
    }
    root
}

fn assert_shut_in(protections: &Protections) {
    assert!(protections.no_capabilities && protections.no_new_privs && protections.undumpable);
    assert!(protections.seccomp, "the kernel filters system calls");
}

#[test]
fn a_worker_opens_nothing_and_connects_nowhere() {
    if !is_root() {
        return;
    }
    let status = alone("a_worker_opens_nothing_and_connects_nowhere", None, |_| {
        std::fs::read(SHADOW).expect("root could read it before");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let identity = Identity::choose(None).unwrap();
        assert!(identity.is_some(), "root can become someone else");
        let confinement = Confinement { identity, ..confinement(SystemCalls::Descriptors) };
        let protections = enter(&confinement).unwrap();
        assert_shut_in(&protections);
        assert_ne!(protections.uid, 0);
        for path in [SHADOW, "/etc/passwd", "/proc/self/status", "/"] {
            assert!(std::fs::File::open(path).is_err(), "{path}");
        }
        assert!(std::fs::write("/tmp/vpnd-test-of-sandbox", "x").is_err());
        assert!(UdpSocket::bind("127.0.0.1:0").is_err());
        assert!(TcpListener::bind("127.0.0.1:0").is_err() && TcpStream::connect(address).is_err());
        std::thread::spawn(|| assert!(std::fs::File::open(SHADOW).is_err())).join().unwrap();
    });
    assert!(status.success(), "{status}");
}

#[test]
fn starting_a_program_is_the_end() {
    let status = alone("starting_a_program_is_the_end", None, |_| {
        let confinement = confinement(SystemCalls::Files);
        enter(&confinement).unwrap();
        // Without a new process, so that nothing but the system call itself can fail.
        let error = exec("/bin/true");
        panic!("it was refused only: {error}");
    });
    assert_eq!(status.signal(), Some(Signal::SYS.as_raw()), "{status}");
}

/// Replaces this process by a program.
fn exec(program: &str) -> std::io::Error {
    use std::os::unix::process::CommandExt as _;
    Command::new(program).exec()
}

#[test]
fn a_keeper_of_files_reaches_its_own_directory_alone() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("store"), "x").unwrap();
    let test = "a_keeper_of_files_reaches_its_own_directory_alone";
    let status = alone(test, Some(directory.path()), |directory| {
        let writable = vec![directory.to_owned()];
        let protections = enter(&Confinement { writable, ..confinement(SystemCalls::Files) }).unwrap();
        assert_shut_in(&protections);
        assert_eq!(std::fs::read(directory.join("store")).unwrap(), b"x");
        std::fs::write(directory.join("store-wal"), "y").unwrap();
        std::fs::rename(directory.join("store-wal"), directory.join("store-shm")).unwrap();
        std::fs::remove_file(directory.join("store-shm")).unwrap();
        assert!(UdpSocket::bind("127.0.0.1:0").is_err(), "no network");
        if protections.landlock == Landlock::Missing {
            eprintln!("SKIPPED in part: this kernel has no Landlock");
            return;
        }
        for path in [SHADOW, "/etc/passwd", "/root"] {
            let error = std::fs::File::open(path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "root itself may not read {path}");
        }
        assert!(std::fs::write(directory.parent().unwrap().join("vpnd-test-of-sandbox"), "x").is_err());
    });
    assert!(status.success(), "{status}");
}

/// What somebody who has taken over the auth process would try in order to have changes undone that were never made.
#[test]
fn a_keeper_of_files_plants_no_undo_journal_and_no_program_of_roots() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (state, journals) = (directory.path().join("state"), directory.path().join("journals"));
    std::fs::create_dir(&state).unwrap();
    let opened = JournalDirectory::create(&journals).unwrap();
    opened.stay_clear_of(&state).unwrap();
    let genuine = journals.join("1-0.journal");
    std::fs::write(&genuine, "genuine").unwrap();
    std::fs::set_permissions(&genuine, Permissions::from_mode(0o600)).unwrap();
    let look = || {
        let entries = std::fs::read_dir(&journals).unwrap().map(|entry| entry.unwrap().path());
        let entries: Vec<_> = entries.map(|path| (std::fs::read(&path).unwrap(), path)).collect();
        let metadata = std::fs::symlink_metadata(&journals).unwrap();
        (entries, metadata.mode(), metadata.uid(), metadata.ino())
    };
    let before = look();
    let test = "a_keeper_of_files_plants_no_undo_journal_and_no_program_of_roots";
    let status = alone(test, Some(directory.path()), |directory| {
        let writable = vec![directory.join("state")];
        let protections = enter(&Confinement { writable, ..confinement(SystemCalls::Files) }).unwrap();
        if protections.landlock == Landlock::Missing {
            eprintln!("SKIPPED: this kernel has no Landlock");
            return;
        }
        attack(&directory.join("state"), &directory.join("journals"));
    });
    assert!(status.success(), "{status}");
    assert_eq!(look(), before);
    // Nor does what lies in the state directory look like a journal to anybody.
    assert!(vpnd::journal::old_journals(&state).unwrap().contains("not undone"));
}

/// Tries it all, from inside.
fn attack(state: &Path, journals: &Path) {
    use std::fs;
    let forged = state.join("9-0.journal");
    fs::write(&forged, "forged").expect("the state directory is its own");
    let (target, genuine) = (journals.join("9-0.journal"), journals.join("1-0.journal"));
    assert!(fs::write(&target, "forged").is_err(), "a new file");
    assert!(fs::OpenOptions::new().append(true).open(&genuine).is_err(), "more of a file that is there");
    assert!(fs::rename(&forged, &target).is_err(), "a file that is moved there");
    assert!(fs::rename(&forged, &genuine).is_err(), "in place of another");
    assert!(fs::hard_link(&forged, &target).is_err(), "a second name there");
    assert!(symlink(&forged, &target).is_err(), "a link there");
    assert!(fs::hard_link(&genuine, state.join("x")).is_err(), "a second name of what is there");
    assert!(fs::remove_file(&genuine).is_err() && fs::read(&genuine).is_err());
    assert!(fs::read_dir(journals).is_err(), "not even a look");
    for (from, to) in [(journals, state.join("j")), (state, journals.with_file_name("s"))] {
        assert!(fs::rename(from, to).is_err(), "the directories change places");
    }
    assert!(fs::rename(state, journals).is_err());
    assert!(fs::set_permissions(journals, Permissions::from_mode(0o777)).is_err());
    assert!(std::os::unix::fs::chown(journals, Some(65_534), None).is_err());

    let program = state.join("program");
    let file = fs::File::create(&program).unwrap();
    for mode in [0o4755, 0o2755, 0o1755] {
        assert!(file.set_permissions(Permissions::from_mode(mode)).is_err(), "{mode:o}");
        let special =
            fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(state.join("special"));
        assert!(special.is_err(), "{mode:o}");
    }
    file.set_permissions(Permissions::from_mode(0o755)).expect("nothing is wrong with that");
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o755);
}

#[test]
fn a_resolver_looks_up_names_and_reads_nothing_secret() {
    if !is_root() {
        return;
    }
    let test = "a_resolver_looks_up_names_and_reads_nothing_secret";
    let status = alone(test, None, |_| {
        let readable = ["/etc", "/usr", "/lib"].map(Into::into).to_vec();
        let identity = Identity::choose(None).unwrap();
        let resolver = Confinement { identity, readable, ..confinement(SystemCalls::Resolver) };
        let protections = enter(&resolver).unwrap();
        assert_shut_in(&protections);
        assert!(("localhost", 1).to_socket_addrs().unwrap().next().is_some());
        for path in [SHADOW, "/root/.profile", "/proc/1/status"] {
            let permitted = protections.landlock == Landlock::Missing && path.starts_with("/proc");
            assert!(permitted || std::fs::File::open(path).is_err(), "{path}");
        }
        assert!(std::fs::write("/tmp/vpnd-test-of-sandbox", "x").is_err());
    });
    assert!(status.success(), "{status}");
}

#[test]
fn without_the_sandbox_privileges_are_given_up_all_the_same() {
    if !is_root() {
        return;
    }
    let test = "without_the_sandbox_privileges_are_given_up_all_the_same";
    let status = alone(test, None, |_| {
        let identity = Identity::choose(None).unwrap();
        let off = Confinement { mode: SandboxMode::Off, identity, ..confinement(SystemCalls::Descriptors) };
        let protections = enter(&off).unwrap();
        assert!(protections.no_capabilities && protections.no_new_privs && protections.undumpable);
        assert!(!protections.seccomp && protections.landlock == Landlock::Missing);
        assert_ne!(protections.uid, 0);
        std::fs::read("/etc/passwd").unwrap();
        assert!(std::fs::read(SHADOW).is_err());
    });
    assert!(status.success(), "{status}");
}
