//! The limits of a confined process. Each case runs in its own process: this program again.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and helper functions of integration tests are not known as tests"
)]

use std::fs::Permissions;
use std::io::{ErrorKind, Write as _};
use std::net::{TcpListener, TcpStream, ToSocketAddrs as _, UdpSocket};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::Signal;
use vpnd_journal::JournalDirectory;
use vpnd_sys::account::UnixUser;
use vpnd_sys::sandbox::{Confinement, Landlock, Protections, SandboxMode, enter};
use vpnd_sys::seccomp::SystemCalls;

const INSIDE: &str = "VPND_TEST_SANDBOX";
/// Readable by root alone, wherever there are passwords.
const SHADOW: &str = "/etc/shadow";

const VPND: &str = env!("CARGO_BIN_EXE_vpnd");
const NOBODY: u32 = 65_534;
/// Limit for a command, beside whatever else the machine does.
const LIMIT: Duration = Duration::from_secs(100);

/// Runs `inside` in its own process; in that process, it does not return.
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
        tcp_ports: Vec::new(),
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
        let identity = UnixUser::choose(None).unwrap();
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
fn starting_a_program_kills_a_confined_process() {
    let status = alone("starting_a_program_kills_a_confined_process", None, |_| {
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

/// The attempts of an attacker in the auth process to have changes undone that were never made.
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
        let identity = UnixUser::choose(None).unwrap();
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
        let identity = UnixUser::choose(None).unwrap();
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

/// A gateway's directory with a user, made by the commands themselves.
struct Administered {
    directory: tempfile::TempDir,
}

impl Administered {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let this = Self { directory };
        let mut init = Command::new(VPND);
        init.args(["init", "--name", "vpn.example.org", "--dir"]).arg(this.path("v"));
        assert!(init.output().unwrap().status.success());
        std::fs::write(this.path("password"), "correct horse\n").unwrap();
        let password = this.path("password");
        let added = this.command(&["user", "add", "ann", "--password-file", password.to_str().unwrap()]);
        assert!(finish(added).0.success());
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Makes the user `nobody` the owner of the state directory.
    fn give_to_nobody(&self) -> PathBuf {
        let state = self.path("v/state");
        for path in [&state, &state.join("vpnd.db"), &state.join("audit.sqlite")] {
            std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        std::fs::set_permissions(self.directory.path(), Permissions::from_mode(0o755)).unwrap();
        state
    }

    /// A command of root's on this gateway, started.
    fn command(&self, words: &[&str]) -> Child {
        let mut command = Command::new(VPND);
        command.args(words);
        match words {
            ["check"] => command.arg(self.path("v/server.toml")),
            _ => command.arg("--config").arg(self.path("v/server.toml")),
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

/// Waits for the end of a command; with it what it says.
fn finish(mut child: Child) -> (ExitStatus, String) {
    let deadline = Instant::now() + LIMIT;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("the command waits for something: {}", said(child));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let status = child.wait().unwrap();
    (status, said(child))
}

fn said(child: Child) -> String {
    String::from_utf8_lossy(&child.wait_with_output().unwrap().stderr).into_owned()
}

/// Writes a rollback journal next to the store which says that it belongs to a change of several
/// databases, and their list, which names a file elsewhere
/// (<https://www.sqlite.org/fileformat.html>, section 3;
/// <https://www.sqlite.org/atomiccommit.html>, section 5.5). A process that opens the store then
/// opens that file, too.
fn plant_journal(state: &Path, elsewhere: &Path) {
    const MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
    let database = std::fs::read(state.join("vpnd.db")).unwrap();
    let page = u32::from(u16::from_be_bytes([database[16], database[17]]));
    let pages = database.len() as u32 / page;
    let list = state.join("vpnd.db-mj000000912");
    let name = list.to_str().unwrap().as_bytes();
    let mut journal = MAGIC.to_vec();
    for word in [0, 0, pages, 512, page] {
        journal.extend_from_slice(&word.to_be_bytes());
    }
    journal.resize(512, 0);
    journal.extend_from_slice(&(0x4000_0000 / page + 1).to_be_bytes());
    journal.extend_from_slice(name);
    let sum: u32 = name.iter().map(|byte| u32::from(*byte)).sum();
    for word in [name.len() as u32, sum] {
        journal.extend_from_slice(&word.to_be_bytes());
    }
    journal.extend_from_slice(&MAGIC);
    std::fs::write(state.join("vpnd.db-journal"), journal).unwrap();
    let names = [state.join("vpnd.db-journal"), elsewhere.to_owned()];
    let names: String = names.iter().map(|name| format!("{}\0", name.display())).collect();
    std::fs::write(list, names).unwrap();
}

/// Whether a process has opened this pipe for reading, or is about to.
fn has_reader(pipe: &Path) -> bool {
    rustix::fs::openat(CWD, pipe, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).is_ok()
}

#[test]
fn what_a_keeper_of_files_writes_leads_no_command_of_roots_elsewhere() {
    if !is_root() {
        return;
    }
    let test = "what_a_keeper_of_files_writes_leads_no_command_of_roots_elsewhere";
    let plant = |directory: &Path| {
        let state = directory.join("v/state");
        let writable = vec![state.clone()];
        let protections = enter(&Confinement { writable, ..confinement(SystemCalls::Files) }).unwrap();
        if protections.landlock == Landlock::Missing {
            eprintln!("SKIPPED: this kernel has no Landlock");
            return;
        }
        plant_journal(&state, &directory.join("pipe"));
    };
    if std::env::var_os(INSIDE).is_some() {
        alone(test, None, plant);
    }
    let gateway = Administered::new();
    // A file of root's that shows whether it was opened, as a device would, by more than a look.
    let pipe = gateway.path("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    assert!(!has_reader(&pipe));
    for words in [&["user", "list"][..], &["check"], &["revoke", "ann"], &["user", "disable", "ann"]] {
        let status = alone(test, Some(gateway.directory.path()), plant);
        assert!(status.success(), "{status}");
        if !gateway.path("v/state/vpnd.db-journal").exists() {
            return;
        }
        let mut command = gateway.command(words);
        let deadline = Instant::now() + LIMIT;
        while command.try_wait().unwrap().is_none() {
            let led_astray = has_reader(&pipe);
            if led_astray || Instant::now() > deadline {
                command.kill().unwrap();
                command.wait().unwrap();
            }
            assert!(!led_astray, "{words:?} has opened a file that the store's journal names");
            assert!(Instant::now() < deadline, "{words:?} has no end");
            std::thread::sleep(Duration::from_millis(5));
        }
        let (status, said) = finish(command);
        assert!(!status.success() && said.contains("vpnd.db"), "{words:?}: {said}");
        for name in ["vpnd.db-journal", "vpnd.db-mj000000912"] {
            let _ = std::fs::remove_file(gateway.path("v/state").join(name));
        }
    }
    let (status, said) = finish(gateway.command(&["user", "list"]));
    assert!(status.success(), "without what was planted all is well: {said}");
}

/// The process that a command has started to open the store, by its directory below `/proc`.
fn store_process(command: &Child) -> PathBuf {
    let parent = format!("PPid:\t{}\n", command.id());
    let deadline = Instant::now() + LIMIT;
    loop {
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
        let is_it = |process: &PathBuf| {
            let status = std::fs::read_to_string(process.join("status")).unwrap_or_default();
            // Its own user is the last thing but the filters that it takes on.
            status.contains(&parent) && status.contains("Seccomp:\t2\n")
        };
        if let Some(found) = { processes }.find(is_it) {
            return found;
        }
        assert!(Instant::now() < deadline, "no process opens the store");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_command_of_roots_opens_a_store_as_its_owner() {
    if !is_root() {
        return;
    }
    let gateway = Administered::new();
    let state = gateway.give_to_nobody();

    // While it waits for a password, the store is open.
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut passwd = Command::new(VPND);
    passwd
        .args(["user", "passwd", "ann", "--password-fd", "0", "--config"])
        .arg(gateway.path("v/server.toml"));
    let passwd = passwd.stdin(reader).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let status = std::fs::read_to_string(store_process(&passwd).join("status")).unwrap();
    let nobody = format!("{NOBODY}\t{NOBODY}\t{NOBODY}\t{NOBODY}");
    for line in [
        &format!("Uid:\t{nobody}"),
        "CapPrm:\t0000000000000000",
        "CapEff:\t0000000000000000",
        "NoNewPrivs:\t1",
    ] {
        assert!(status.contains(line), "{line}: {status}");
    }
    for descriptor in std::fs::read_dir(format!("/proc/{}/fd", passwd.id())).unwrap() {
        let open = std::fs::read_link(descriptor.unwrap().path()).unwrap_or_default();
        assert!(!open.starts_with(&state), "root itself has opened {}", open.display());
    }
    writeln!(writer, "another password").unwrap();
    drop(writer);
    let (status, said) = finish(passwd);
    assert!(status.success(), "{said}");
    let strangers = |path: &Path| std::fs::symlink_metadata(path).unwrap().uid() != NOBODY;
    let entries = std::fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(entries.filter(|path| strangers(path)).count(), 0, "no file there is root's");
}

#[test]
fn a_command_of_roots_follows_nothing_that_lies_in_the_place_of_a_store() {
    if !is_root() {
        return;
    }
    let gateway = Administered::new();
    let state = gateway.give_to_nobody();
    // The directory's owner could put this there to lead a process that has more rights.
    let secret = gateway.path("secret");
    std::fs::write(&secret, "").unwrap();
    std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    type Trap = (&'static str, fn(&Path, &Path));
    const TRAPS: [Trap; 3] = [
        ("is a symbolic link", |at, secret| symlink(secret, at).unwrap()),
        ("is a symbolic link", |at, secret| symlink(secret.with_extension("new"), at).unwrap()),
        ("is no regular file", |at, _| {
            mknodat(CWD, at, FileType::Fifo, Mode::RWXU, 0).unwrap();
            std::os::unix::fs::chown(at, Some(NOBODY), None).unwrap();
        }),
    ];
    for name in ["vpnd.db", "vpnd.db-wal", "vpnd.db-journal", "vpnd.db-shm"] {
        let (path, kept) = (state.join(name), state.join("kept"));
        let was_there = std::fs::rename(&path, &kept).is_ok();
        for (hint, trap) in TRAPS {
            trap(&path, &secret);
            for words in [&["user", "list"][..], &["user", "disable", "ann"], &["check"]] {
                let (status, said) = finish(gateway.command(words));
                assert!(
                    !status.success() && said.contains(hint),
                    "{name}, {words:?}, wanted {hint:?}: {said}"
                );
                assert!(said.contains(name), "it names the file: {said}");
            }
            std::fs::remove_file(&path).unwrap();
        }
        if was_there {
            std::fs::rename(&kept, &path).unwrap();
        }
    }
    assert!(!secret.with_extension("new").exists(), "a file was made elsewhere");
    assert_eq!(secret.metadata().unwrap().len(), 0, "a file elsewhere was written to");
    // A second name of a file of root's is no way to it either: the owner of the directory may not
    // open it.
    std::fs::rename(state.join("vpnd.db"), state.join("kept")).unwrap();
    std::fs::hard_link(&secret, state.join("vpnd.db")).unwrap();
    let (status, said) = finish(gateway.command(&["user", "list"]));
    assert!(!status.success() && said.contains("can't be opened"), "{said}");
    let found = secret.metadata().unwrap();
    assert_eq!((found.len(), found.uid(), found.mode() & 0o7777), (0, 0, 0o600));
}
