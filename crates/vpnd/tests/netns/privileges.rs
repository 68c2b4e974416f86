//! Behaviour: of the processes of a gateway or client only the first has privileges, only the auth
//! process sees password hashes, and all of them end together.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::client::Client;
use crate::gateway::{Gateway, edit_toml, strings};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, eventually};
use crate::process::Process;
use crate::traffic::ping_until;

const SECOND: Duration = Duration::from_secs(1);

/// A process, by its directory below `/proc`.
pub(crate) struct Seen(PathBuf);

impl Seen {
    pub(crate) fn of(pid: u32) -> Self {
        Self(PathBuf::from(format!("/proc/{pid}")))
    }

    /// The gateway's first process.
    pub(crate) fn parent(gateway: &Gateway<'_>) -> Self {
        Self::of(u32::try_from(gateway.status()["pid"].as_u64().unwrap()).unwrap())
    }

    /// The child that it has started in this role.
    pub(crate) fn child(&self, name: &str) -> Self {
        self.child_if_any(name).unwrap_or_else(|| panic!("there is a process {name}"))
    }

    /// The child of this name, if it is there.
    pub(crate) fn child_if_any(&self, name: &str) -> Option<Self> {
        let is_ours = |seen: &Self| {
            seen.status("PPid").as_deref() == self.0.file_name().and_then(|pid| pid.to_str())
                && seen.bytes("cmdline").split(|byte| *byte == 0).any(|word| word == name.as_bytes())
        };
        let all =
            fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        all.map(Self::of).find(is_ours)
    }

    fn bytes(&self, file: &str) -> Vec<u8> {
        fs::read(self.0.join(file)).unwrap_or_default()
    }

    /// A line of its status.
    fn status(&self, key: &str) -> Option<String> {
        let status = String::from_utf8_lossy(&self.bytes("status")).into_owned();
        let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.map(|value| value.trim().to_owned())
    }

    /// The number of its threads that write many packets at once: each has memory for the results
    /// of Linux AIO.
    fn writers_of_many(&self) -> usize {
        let maps = self.bytes("maps");
        assert!(!maps.is_empty());
        String::from_utf8_lossy(&maps).lines().filter(|line| line.contains("/[aio]")).count()
    }

    /// Its threads that move packets.
    fn shards(&self) -> usize {
        self.threads().iter().filter(|thread| thread.name().starts_with("shard-")).count()
    }

    /// It and each of its threads.
    pub(crate) fn threads(&self) -> Vec<Self> {
        let tasks = fs::read_dir(self.0.join("task")).unwrap();
        tasks.map(|task| Self(task.unwrap().path())).collect()
    }

    fn name(&self) -> String {
        self.status("Name").unwrap_or_default()
    }

    /// Field 19 of `/proc/PID/stat`.
    pub(crate) fn nice(&self) -> i32 {
        let stat = String::from_utf8_lossy(&self.bytes("stat")).into_owned();
        let mut fields = stat.rsplit(')').next().unwrap().split_whitespace();
        fields.nth(16).unwrap().parse().unwrap()
    }

    /// Its session and the number of the terminal that controls it, 0 for none: fields 6 and 7 of
    /// `/proc/PID/stat`.
    fn session_and_terminal(&self) -> (i32, i32) {
        let stat = String::from_utf8_lossy(&self.bytes("stat")).into_owned();
        let mut fields = stat.rsplit(')').next().unwrap().split_whitespace().skip(3);
        let mut next = || fields.next().unwrap().parse().unwrap();
        (next(), next())
    }

    /// The files behind its descriptors.
    fn open_files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.0.join("fd")).unwrap();
        entries.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok()).collect()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.0.file_name().unwrap().to_str().unwrap().parse().unwrap()).unwrap()
    }

    fn kill(&self) {
        kill_process(self.pid(), Signal::KILL).unwrap();
    }

    /// Resident memory.
    pub(crate) fn memory_kib(&self) -> u64 {
        let line = self.status("VmRSS").unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// CPU time that it has used, in clock ticks of 10 ms: fields 14 and 15 of `/proc/PID/stat`.
    pub(crate) fn ticks(&self) -> u64 {
        let stat = String::from_utf8_lossy(&self.bytes("stat")).into_owned();
        let fields = stat.rsplit(')').next().unwrap().split_whitespace();
        fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
    }

    fn is_gone(&self) -> bool {
        self.status("State").is_none_or(|state| state.starts_with('Z'))
    }

    /// Whether its memory holds these bytes anywhere.
    pub(crate) fn remembers(&self, wanted: &[u8]) -> bool {
        let memory = File::open(self.0.join("mem")).expect("root may look");
        let maps = String::from_utf8(self.bytes("maps")).unwrap();
        let mut looked_at = 0;
        let mut found = false;
        for line in maps.lines().filter(|line| line.contains(" rw")) {
            let (start, end) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
            let address = |text: &str| u64::from_str_radix(text, 16).unwrap();
            let (start, end) = (address(start), address(end));
            let mut block = vec![0; 1 << 20];
            let mut at = start;
            while at < end {
                let room = block.len().min(usize::try_from(end - at).unwrap());
                let Ok(len @ 1..) = memory.read_at(&mut block[..room], at) else { break };
                looked_at += len;
                found |= block[..len].windows(wanted.len()).any(|window| window == wanted);
                // A match across the border of two blocks is seen with the second one.
                let last = at + len as u64 >= end;
                at += if last { len } else { len.saturating_sub(wanted.len()).max(1) } as u64;
            }
        }
        assert!(looked_at > 100_000, "its memory can be read: {looked_at} bytes");
        found
    }
}

pub(crate) fn assert_shut_in(process: &Seen) {
    for thread in process.threads() {
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd"] {
            assert_eq!(thread.status(set).unwrap(), "0000000000000000", "{set} of {}", thread.name());
        }
        assert_eq!(thread.status("NoNewPrivs").unwrap(), "1", "{}", thread.name());
        assert_eq!(thread.status("Seccomp").unwrap(), "2", "{}", thread.name());
    }
    assert_eq!(
        process.session_and_terminal(),
        (process.pid().as_raw_nonzero().get(), 0),
        "a session of its own"
    );
    for file in process.open_files() {
        assert!(!file.starts_with("/dev/pts") && !file.starts_with("/dev/tty"), "{}", file.display());
    }
    // A process whose memory can't be dumped belongs to root in /proc, whatever its user.
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&fs::metadata(process.0.join("mem")).unwrap()), 0);
}

#[test]
fn the_worker_and_the_auth_process_are_shut_in() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let parent = Seen::parent(&gateway);
    let (worker, auth) = (parent.child("worker"), parent.child("auth"));
    assert_shut_in(&worker);
    assert_shut_in(&auth);

    let uids = worker.status("Uid").unwrap();
    assert!(uids.split_whitespace().all(|uid| uid != "0"), "{uids}");
    assert_eq!(worker.status("Groups").unwrap(), "", "no group is left");
    for target in worker.open_files() {
        let state = gateway.file("state");
        assert!(!target.starts_with(&state) && !target.starts_with("/etc"), "{}", target.display());
    }

    // Shards go before other work, and nothing else does.
    let usual = parent.nice();
    let (shards, others): (Vec<_>, Vec<_>) =
        worker.threads().into_iter().partition(|thread| thread.name().starts_with("shard-"));
    assert!(!shards.is_empty() && shards.iter().all(|shard| shard.nice() == -10));
    assert!(others.iter().all(|thread| thread.nice() >= 0));
    assert!(auth.threads().iter().all(|thread| thread.nice() == usual.max(0)));
    // Where the kernel schedules sessions against each other, the worker's goes first too.
    if worker.0.join("autogroup").exists() {
        let group = |process: &Seen| String::from_utf8(process.bytes("autogroup")).unwrap();
        assert!(group(&worker).ends_with("nice -10\n"), "{}", group(&worker));
        assert!(group(&auth).ends_with("nice 0\n"), "{}", group(&auth));
    }

    let status = gateway.status();
    for process in status["processes"].as_array().unwrap() {
        assert_eq!(
            (&process["no_capabilities"], &process["seccomp"]),
            (&true.into(), &true.into()),
            "{process}"
        );
    }
}

#[test]
fn without_the_sandbox_the_worker_has_no_privileges_either() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start_with(&["--sandbox", "off"]);
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    assert!(gateway.process().output().contains("THE SANDBOX IS OFF"));
    let worker = Seen::parent(&gateway).child("worker");
    assert_eq!(
        (worker.status("Seccomp").unwrap(), worker.status("CapEff").unwrap()),
        ("0".into(), "0".repeat(16))
    );
    assert_eq!(gateway.status()["processes"][0]["seccomp"], false, "and the status says so");
    // It writes packets one by one, although nothing would keep it from writing many at once.
    assert_eq!(worker.writers_of_many(), 0);
}

#[test]
fn secrets_stay_where_they_belong() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.configure("log.level", "trace");
    let hash = stored_hash(&gateway);
    gateway.start();
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let parent = Seen::parent(&gateway);
    let (worker, auth) = (parent.child("worker"), parent.child("auth"));
    assert!(auth.remembers(hash.as_bytes()), "it has just checked a password, so this test can find a hash");
    assert!(!worker.remembers(hash.as_bytes()), "the worker has the hash of a password");
    assert!(!parent.remembers(hash.as_bytes()), "the parent has the hash of a password");

    let key = fs::read_to_string(gateway.file("server-key.pem")).unwrap();
    let key_line = key.lines().nth(1).unwrap();
    for process in [&parent, &worker, &auth] {
        for file in ["cmdline", "environ"] {
            let text = String::from_utf8_lossy(&process.bytes(file)).into_owned();
            assert!(!text.contains("ann's password") && !text.contains(key_line), "{file}: {text}");
        }
    }
    let log = gateway.process().output();
    assert!(log.contains("TRACE"), "everything was logged");
    // Worker and auth compare times that the other has written, so they count from one moment.
    let clocks: Vec<&str> = log
        .lines()
        .filter(|line| line.contains(" started role="))
        .filter_map(|line| line.split_once("clock=").map(|(_, clock)| clock))
        .collect();
    assert!(clocks.len() >= 2 && clocks.iter().all(|clock| *clock == clocks[0]), "{clocks:?}");
    for secret in ["ann's password", key_line, &hash] {
        assert!(!log.contains(secret), "the log has a secret");
    }
}

/// The last part of the password hash in the store: what the argon2 function gave, in base64.
fn stored_hash(gateway: &Gateway<'_>) -> String {
    let mut bytes = fs::read(gateway.file("state/vpnd.db")).unwrap();
    bytes.extend(fs::read(gateway.file("state/vpnd.db-wal")).unwrap_or_default());
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let start = text.rfind("$argon2id$").expect("the store has a user");
    let hash = text[start..].split('$').nth(5).expect("the hash comes after its salt");
    let hash: String =
        hash.chars().take_while(|c| c.is_ascii_alphanumeric() || "+/".contains(*c)).take(43).collect();
    assert_eq!(hash.len(), 43, "32 bytes");
    hash
}

#[test]
fn a_part_that_is_killed_ends_the_daemon() {
    for name in ["auth", "worker"] {
        let Some(lab) = Lab::new(1) else { return };
        let mut gateway = Gateway::init(&lab);
        gateway.start();
        let parent = Seen::parent(&gateway);
        let other = parent.child(if name == "auth" { "worker" } else { "auth" });
        parent.child(name).kill();
        let status = gateway.process().wait(10 * SECOND);
        assert_eq!(status.code(), Some(1), "the service manager starts it again");
        assert!(other.is_gone());
        let links = lab.gateway.ip(&["-brief", "link", "show"]);
        assert!(!links.contains("vpnd0"), "no device is left: {links}");
        gateway.tear_down();
        let forwarding = lab.gateway.within(|| fs::read_to_string("/proc/sys/net/ipv4/ip_forward")).unwrap();
        assert_eq!(forwarding.trim(), "0", "what was changed is as before");
        gateway.start();
    }
}

#[test]
fn parts_end_with_the_first_process() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.start();
    let parent = Seen::parent(&gateway);
    let parts = [parent.child("auth"), parent.child("worker")];
    gateway.kill();
    eventually("they are gone", 2 * SECOND, || parts.iter().all(Seen::is_gone).then_some(()));
    gateway.start();
}

#[test]
fn a_clients_worker_is_shut_in_and_looks_up_names() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    // The box of the client knows the gateway by a name.
    let hosts = crate::process::etc(&lab, &lab.clients[0]).join("hosts");
    fs::write(hosts, format!("{GATEWAY_V4} gateway.example\n")).unwrap();
    edit_toml(&ann.profile, |profile| {
        profile["server"]["addresses"] = strings(&["gateway.example:4433"]);
    });
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let parent = Seen::of(client.process().id());
    let worker = parent.child("client");
    assert_shut_in(&worker);
    assert!(worker.status("Uid").unwrap().split_whitespace().all(|uid| uid != "0"));
    assert!(worker.shards() > 0);
    assert_eq!(worker.writers_of_many(), worker.shards());
    for process in [&parent, &worker] {
        for file in ["cmdline", "environ"] {
            assert!(!String::from_utf8_lossy(&process.bytes(file)).contains("ann's password"));
        }
    }
    assert!(!client.process().output().contains("ann's password"));
}

#[test]
fn a_clients_worker_has_no_terminal_and_nothing_that_was_left_open() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let left_open = lab.path("left-open");
    fs::write(&left_open, "a secret of the shell").unwrap();
    let words = crate::client::arguments(&lab, 1, &ann);
    let words: Vec<_> = words.iter().map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let mut command = crate::process::command(&lab, &lab.clients[0], "script");
    let line = format!("exec 7<'{}'; exec {}", left_open.display(), words.join(" "));
    command.args(["--quiet", "--flush", "--return", "--command", &line, "/dev/null"]);
    let mut script = Process::start(&lab, "terminal", command);
    // The worker's own words, which come through its parent.
    eventually("the client is connected", 20 * SECOND, || {
        script.assert_running();
        script.output().contains("connected").then_some(())
    });
    let parent = Seen::of(script.children()[0]);
    assert_ne!(parent.session_and_terminal().1, 0, "the parent runs at a terminal");
    assert!(parent.open_files().contains(&left_open));
    let worker = parent.child("client");
    assert_shut_in(&worker);
    assert!(!worker.open_files().contains(&left_open));
}

#[test]
fn a_client_whose_worker_is_killed_leaves_the_machine_as_it_was() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let rules = || lab.clients[0].ip(&["rule", "show"]);
    let before = rules();
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    assert_ne!(rules(), before);
    Seen::of(client.process().id()).child("client").kill();
    assert_eq!(client.process().wait(10 * SECOND).code(), Some(1));
    assert_eq!(rules(), before);
    assert!(!lab.clients[0].ip(&["-brief", "link", "show"]).contains(crate::client::TUN));
}

#[test]
fn a_part_is_for_the_daemon_alone() {
    let Some(lab) = Lab::new(1) else { return };
    let gateway = Gateway::init(&lab);
    let output = crate::process::run(gateway.vpnd(&["part", "worker"]));
    assert_eq!(output.status.code(), Some(1));
    assert!(crate::process::text(&output).contains("is for vpnd itself"));
}
