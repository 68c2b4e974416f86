//! Behaviour: users who are not root connect through the client service, each by profiles that root
//! has placed on the machine, and none of them can do anything to another's tunnel or to the
//! service.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::{Gid, Pid, Signal, Uid, kill_process};
use serde_json::Value as Json;
use vpnd_client::user_messages::{Up, UserRequest};

use crate::client::{self, TUN};
use crate::gateway::{Gateway, Login, VPND, copy_program, must, write_secret};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::namespace::Namespace;
use crate::over_tcp;
use crate::process::{self, Process};
use crate::renewal::own_routes;
use crate::traffic::{ping, ping_until};
use crate::without_ipv6::switch_off;

const SOON: Duration = Duration::from_secs(30);
const GROUP: u32 = 61_500;
pub(crate) const ANN: User = User { uid: 61_501, name: "ann", is_member: true };
pub(crate) const BOB: User = User { uid: 61_502, name: "bob", is_member: true };
/// Not in the group.
const EVE: User = User { uid: 61_503, name: "eve", is_member: false };

/// A user of client 1's machine.
#[derive(Clone, Copy)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) name: &'static str,
    is_member: bool,
}

/// Client 1's machine with the service on it.
pub(crate) struct Machine<'l> {
    lab: &'l Lab,
    program: PathBuf,
    service: Process,
}

impl<'l> Machine<'l> {
    /// With a profile `work`, for `login`.
    pub(crate) fn new(lab: &'l Lab, login: &Login) -> Self {
        // Its users are not root, and have to reach a copy of the program and the socket.
        fs::set_permissions(lab.path(""), fs::Permissions::from_mode(0o711)).unwrap();
        let program = lab.path("vpnd-of-all");
        fs::hard_link(VPND, &program).unwrap_or_else(|_| copy_program(&program));
        let etc = process::etc(lab, &lab.clients[0]);
        for (file, lines) in [
            (
                "passwd",
                [ANN, BOB, EVE]
                    .map(|user| format!("{}:x:{1}:{1}::/:/bin/sh\n", user.name, user.uid))
                    .concat(),
            ),
            ("group", format!("vpnd-users:x:{GROUP}:ann,bob\n")),
        ] {
            let mut file = fs::OpenOptions::new().append(true).open(etc.join(file)).unwrap();
            file.write_all(lines.as_bytes()).unwrap();
        }
        let profiles = lab.path("profiles.d");
        fs::create_dir(&profiles).unwrap();
        fs::copy(&login.profile, profiles.join("work.toml")).unwrap();
        set_mode(&profiles.join("work.toml"), 0o600);
        let service = start(lab, &program);
        Self { lab, program, service }
    }

    fn socket(&self) -> PathBuf {
        self.lab.path("service/socket")
    }

    pub(crate) fn place(&self) -> &Namespace {
        &self.lab.clients[0]
    }

    pub(crate) fn profile(&self) -> PathBuf {
        self.lab.path("profiles.d/work.toml")
    }

    /// `vpnd WORDS` as this user.
    pub(crate) fn command(&self, user: User, words: &[&str]) -> Command {
        let mut command = process::command(self.lab, self.place(), "setpriv");
        let uid = user.uid.to_string();
        command.args(["--reuid", &uid, "--regid", &uid]);
        if user.is_member {
            command.args(["--groups", &GROUP.to_string()]);
        } else {
            command.arg("--clear-groups");
        }
        command.arg(&self.program).arg(words[0]).arg(option(words)).arg(self.socket()).args(&words[1..]);
        command
    }

    pub(crate) fn run(&self, user: User, words: &[&str]) -> Output {
        process::run(self.command(user, words))
    }

    /// Runs it at a terminal.
    pub(crate) fn at_terminal(&self, user: User, words: &[&str]) -> Command {
        let command = self.command(user, words);
        let words: Vec<_> = command.get_args().map(|word| format!("'{}'", word.to_str().unwrap())).collect();
        let program = words.iter().position(|word| word == "'setpriv'").unwrap();
        let mut command = process::command(self.lab, self.place(), "script");
        command.args(["-qefc", &words[program..].join(" "), "/dev/null"]).env("SHELL", "/bin/sh");
        command
    }

    /// Runs it as root.
    pub(crate) fn run_as_root(&self, words: &[&str]) -> Output {
        let mut command = process::command(self.lab, self.place(), &self.program);
        command.arg(words[0]).arg(option(words)).arg(self.socket()).args(&words[1..]);
        process::run(command)
    }

    /// A file of the user with this password.
    pub(crate) fn password(&self, user: User, text: &str) -> String {
        let path = self.lab.path(format!("{}-of-{}", "password", user.name));
        let _ = fs::remove_file(&path);
        write_secret(&path, &format!("{text}\n"));
        chown(&path, Some(user.uid), Some(user.uid)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// The service's process.
    pub(crate) fn id(&self) -> u32 {
        self.service.id()
    }

    /// The log of the service and its clients.
    pub(crate) fn log(&self) -> String {
        self.service.output()
    }

    /// Connects as ann, by her password.
    pub(crate) fn up(&self) -> String {
        let output = must(self.run(ANN, &["up", "--credentials", &self.password(ANN, "ann's password")]));
        ping_until(self.place(), CAMPUS_V4.into(), SOON);
        String::from_utf8(output.stdout).unwrap()
    }

    /// The tunnels that this user sees.
    pub(crate) fn tunnels(&self, user: User) -> Vec<Json> {
        let output = must(self.run(user, &["status", "--json"]));
        let status: Json = serde_json::from_slice(&output.stdout).unwrap();
        status["tunnels"].as_array().unwrap().clone()
    }

    /// The processes that the service has started, in whichever of its threads.
    pub(crate) fn clients(&self) -> Vec<u32> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.service.id())).unwrap();
        let lists =
            threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("children")).unwrap());
        lists
            .flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
            .collect()
    }

    /// Ends the service by this signal, and starts it again once its clients are gone.
    pub(crate) fn restart_service(&mut self, signal: Signal) {
        self.service.signal(signal);
        self.service.wait(SOON);
        self.is_down();
        self.service = start(self.lab, &self.program);
    }

    /// Waits until no tunnel is left.
    pub(crate) fn is_down(&self) {
        eventually("nothing is left of the tunnel", SOON, || {
            let links = self.place().ip(&["-br", "link"]);
            let routes = own_routes(self.place(), "-4");
            let journals = fs::read_dir(client::journal(self.lab, 1)).unwrap();
            let is_journal = |name: std::ffi::OsString| name.to_str().unwrap().ends_with(".journal");
            let journals = journals.filter(|entry| is_journal(entry.as_ref().unwrap().file_name())).count();
            (!links.contains(TUN) && routes.is_empty() && journals == 0).then_some(())
        });
    }

    /// Waits until nothing of a tunnel is left, and no kill switch.
    pub(crate) fn is_clean(&self) {
        self.is_down();
        let mut rules = process::command(self.lab, self.place(), "nft");
        rules.args(["list", "ruleset"]);
        assert_eq!(process::text(&process::run(rules)), "");
    }

    /// A connection of this user to the service, by hand.
    fn dial(&self, user: User) -> std::io::Result<UnixStream> {
        self.as_user(user, || UnixStream::connect(self.socket()))
    }

    /// Does this as the user.
    fn as_user<T: Send>(&self, user: User, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let worked = scope.spawn(|| {
                let groups = [Gid::from_raw(GROUP)];
                let groups = if user.is_member { &groups[..] } else { &[] };
                rustix::thread::set_thread_groups(groups).unwrap();
                let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.uid));
                rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
                work()
            });
            worked.join().unwrap()
        })
    }
}

fn option(words: &[&str]) -> &'static str {
    if words[0] == "status" { "--client-socket" } else { "--socket" }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn files_of_former_users_are_removed_and_those_of_users_stay() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, login) = Gateway::for_ann(&lab);
    let users = lab.path("state1/users");
    let place = |uid: u32, name: &str| users.join(format!("{uid}-{name}"));
    let (gone, kept) = (place(61_509, "gone"), [place(ANN.uid, ANN.name), place(BOB.uid, BOB.name)]);
    for directory in kept.iter().chain([&gone]) {
        fs::create_dir_all(directory.join("profiles")).unwrap();
    }
    // A directory of accounts that is kept elsewhere may be out of reach.
    let etc = process::etc(&lab, &lab.clients[0]);
    fs::write(etc.join("nsswitch.conf"), "passwd: files\ngroup: files\n").unwrap();
    let machine = Machine::new(&lab, &login);
    eventually("what was kept for a former user is gone", SOON, || (!gone.exists()).then_some(()));
    assert!(kept.iter().all(|directory| directory.exists()));
    must(machine.run(ANN, &["list"]));
    assert!(kept.iter().all(|directory| directory.exists()));
}

fn start(lab: &Lab, program: &Path) -> Process {
    let mut command = process::command(lab, &lab.clients[0], program);
    command.arg("client-service").arg("--socket").arg(lab.path("service/socket"));
    command.arg("--profiles").arg(lab.path("profiles.d")).arg("--state-dir").arg(lab.path("state1"));
    command.arg("--journal-dir").arg(client::journal(lab, 1));
    let mut service = Process::start(lab, "service", command);
    eventually("users may connect", SOON, || {
        service.assert_running();
        service.output().contains("users may connect").then_some(())
    });
    service
}

/// Whether a command was refused, with these words, and without playing with the terminal.
pub(crate) fn refused(output: &Output, words: &str) {
    let text = process::text(output);
    assert!(!output.status.success() && text.contains(words), "{}: {text}", output.status);
    assert!(!text.contains('\x1b') && text.lines().count() <= 2, "{text:?}");
}

/// `vpnd log --notify` in ann's session, once it has begun, and the file of what her desktop has
/// shown.
fn notifier(machine: &Machine<'_>) -> (PathBuf, Process) {
    let (shown, programs) = (machine.lab.path("shown"), machine.lab.path("programs"));
    fs::create_dir(&programs).unwrap();
    fs::set_permissions(&programs, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&shown, "").unwrap();
    chown(&shown, Some(ANN.uid), None).unwrap();
    let program = programs.join("notify-send");
    fs::write(&program, format!("#!/bin/sh\necho \"$*\" >>{}\n", shown.display())).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = machine.command(ANN, &["log", "--notify"]);
    command.env("PATH", format!("{}:{}", programs.display(), std::env::var("PATH").unwrap()));
    let notifier = Process::start(machine.lab, "notifier", command);
    eventually("it looks", SOON, || notifier.output().contains("are shown").then_some(()));
    (shown, notifier)
}

#[test]
fn a_user_connects_without_root_and_others_cannot_interfere() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, login) = Gateway::for_ann(&lab);
    let machine = Machine::new(&lab, &login);
    let listed = process::text(&must(machine.run(ANN, &["list"])));
    assert_eq!(listed, "work: 198.18.0.2\n");
    assert!(machine.tunnels(ANN).is_empty());
    let (shown, _notifier) = notifier(&machine);
    let said = machine.up();
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[..2], ["connecting over UDP", "connected over UDP"], "{said}");
    assert!(lines.len() == 3 && lines[2].starts_with("work: connected over UDP as 10.86."), "{said}");
    assert_eq!(gateway.sessions()[0]["user"], "ann");

    eventually("the ping is counted", SOON, || {
        (machine.tunnels(ANN)[0]["details"]["rx_packets"].as_u64() > Some(0)).then_some(())
    });
    let tunnels = machine.tunnels(ANN);
    let (tunnel, details) = (&tunnels[0], &tunnels[0]["details"]);
    assert!(tunnels.len() == 1 && tunnel["state"] == "connected" && tunnel["uid"] == ANN.uid, "{tunnel}");
    assert!(details["transport"] == "udp" && details["gateway_address"] == "198.18.0.2:4433", "{tunnel}");
    assert!(details["routes"].as_array().unwrap().contains(&"10.200.0.0/24".into()), "{tunnel}");
    assert!(details["rtt_us"].as_u64() > Some(0) && details["interface"] == TUN, "{tunnel}");
    let log = process::text(&must(machine.run(ANN, &["log"])));
    assert!(log.contains("work: connected over UDP"), "{log}");
    eventually("the desktop shows it", SOON, || {
        let shown = fs::read_to_string(&shown).unwrap();
        shown.contains("VPN work: connected over UDP").then_some(())
    });
    let again = process::text(&must(machine.run(ANN, &["up", "work"])));
    assert!(again.contains("work: connected over UDP as 10.86."), "{again}");

    // Another user of the group sees that the profile is in use, and nothing else.
    assert!(machine.tunnels(BOB).is_empty());
    assert_eq!(process::text(&must(machine.run(BOB, &["log"]))), "");
    refused(&machine.run(BOB, &["log", "work"]), "nothing to show");
    assert!(process::text(&must(machine.run(BOB, &["list"]))).contains("(in use by another user)"));
    assert!(process::text(&must(machine.run(BOB, &["down"]))).contains("nothing was connected"));
    refused(&machine.run(BOB, &["down", "work"]), "another user of this machine is connected");
    refused(&machine.run(BOB, &["up"]), "another user of this machine is connected");
    fs::copy(machine.profile(), lab.path("profiles.d/other.toml")).unwrap();
    refused(&machine.run(BOB, &["up", "other"]), "another user of this machine is connected");
    for words in [&["list"][..], &["status"], &["down"], &["up", "work"]] {
        refused(&machine.run(EVE, words), "not in the group");
    }
    assert_eq!(machine.tunnels(ANN).len(), 1);
    assert!(ping(machine.place(), CAMPUS_V4.into(), 56, SOON));
    assert_eq!(gateway.sessions().len(), 1);

    let ended = process::text(&must(machine.run(ANN, &["down"])));
    assert_eq!(ended, "work: ended\n");
    machine.is_clean();
    assert_eq!(machine.tunnels(ANN)[0]["state"], "ended");
    assert!(machine.tunnels(BOB).is_empty());
    eventually("the gateway was told", SOON, || gateway.sessions().is_empty().then_some(()));
    // The next user has the machine; root ends what any user began.
    refused(&machine.run(BOB, &["up"]), "there are several profiles: name one of other, work");
    let password = machine.password(BOB, "ann's password");
    must(machine.run(BOB, &["up", "work", "--credentials", &password]));
    refused(&machine.run(ANN, &["up", "work"]), "another user of this machine is connected");
    let ended = process::text(&must(machine.run_as_root(&["down"])));
    assert_eq!(ended, "work: ended\n");
    machine.is_clean();
}

#[test]
fn a_clients_arguments_name_neither_its_user_nor_the_profile() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, login) = Gateway::for_ann(&lab);
    let machine = Machine::new(&lab, &login);
    machine.up();
    let clients = machine.clients();
    assert!(!clients.is_empty());
    for client in clients {
        let words = fs::read(format!("/proc/{client}/cmdline")).unwrap();
        let words = String::from_utf8_lossy(&words);
        let (uid, profile) = (ANN.uid.to_string(), machine.profile());
        assert!(words.contains("--for-service"), "{words}");
        assert!(!words.contains(&uid) && !words.contains(profile.to_str().unwrap()), "{words}");
    }
    must(machine.run(ANN, &["down"]));
    machine.is_clean();
}

#[test]
fn a_network_that_passes_only_tcp_is_reported_to_the_user() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, login) = over_tcp::installation(&lab);
    over_tcp::drop_udp(&lab, "meta l4proto udp");
    let machine = Machine::new(&lab, &login);
    let said = machine.up();
    assert!(said.contains("passes only TCP 443: using that, slower"), "{said}");
    assert!(said.contains("connected over TCP"), "{said}");
    let tunnel = &machine.tunnels(ANN)[0];
    assert_eq!((&tunnel["state"], &tunnel["details"]["transport"]), (&"connected".into(), &"tcp".into()));
    let status = process::text(&must(machine.run(ANN, &["status"])));
    assert!(status.contains("work: connected over TCP"), "{status}");
    let has_ipv6 = || {
        let tunnel = &machine.tunnels(ANN)[0];
        let addresses = tunnel["details"]["addresses"].as_array()?;
        Some(addresses.iter().any(|address| address.as_str().unwrap().contains(':')))
    };
    eventually("IPv6 is shown", SOON, || (has_ipv6() == Some(true)).then_some(()));
    switch_off(machine.place());
    eventually("what is not in force is not shown", SOON, || (has_ipv6() == Some(false)).then_some(()));
    must(machine.run(ANN, &["down"]));
    machine.is_clean();
}

#[test]
fn a_refused_login_says_why_and_leaves_nothing() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, login) = Gateway::for_ann(&lab);
    let machine = Machine::new(&lab, &login);
    let output = machine.run(ANN, &["up", "--credentials", &machine.password(ANN, "wrong")]);
    assert_eq!(output.status.code(), Some(3), "{}", process::text(&output));
    assert!(process::text(&output).contains("check user name and password"), "{}", process::text(&output));
    machine.is_clean();
    assert!(gateway.sessions().is_empty());
    let ended = &machine.tunnels(ANN)[0];
    assert!(ended["state"] == "ended" && ended["said"].as_str().unwrap().contains("refused"), "{ended}");
    // No user to ask.
    refused(&machine.run(ANN, &["up"]), "there is no terminal to ask for a password");
    machine.is_clean();

    // At a terminal the password is asked, and not shown.
    let command = machine.at_terminal(ANN, &["up"]);
    let (mut up, mut keyboard) = Process::start_at_terminal(&lab, "terminal", command);
    eventually("the password is asked", SOON, || up.output().contains("Password of ann at ").then_some(()));
    keyboard.write_all(b"ann's password\n").unwrap();
    assert!(up.wait(SOON).success(), "{}", up.output());
    assert!(!up.output().contains("ann's password"), "{}", up.output());
    ping_until(machine.place(), CAMPUS_V4.into(), SOON);
    must(machine.run(ANN, &["down"]));

    // A user who leaves at the question leaves nothing either.
    let command = machine.at_terminal(ANN, &["up"]);
    let (mut up, _keyboard) = Process::start_at_terminal(&lab, "terminal", command);
    eventually("the password is asked", SOON, || up.output().contains("Password of ann at ").then_some(()));
    assert_eq!(machine.tunnels(ANN)[0]["state"], "connecting");
    up.kill();
    eventually("the client has ended", SOON, || (machine.tunnels(ANN)[0]["state"] == "ended").then_some(()));
    machine.is_clean();
}

#[test]
fn a_user_who_answers_nothing_keeps_no_other_from_connecting() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, login) = Gateway::for_ann(&lab);
    let machine = Machine::new(&lab, &login);
    let command = machine.at_terminal(BOB, &["up"]);
    let (mut bobs, mut keyboard) = Process::start_at_terminal(&lab, "terminal", command);
    eventually("the password is asked", SOON, || bobs.output().contains("Password of ann at ").then_some(()));
    machine.up();
    assert_eq!(gateway.sessions().len(), 1);
    keyboard.write_all(b"ann's password\n").unwrap();
    assert!(!bobs.wait(SOON).success(), "{}", bobs.output());
    assert!(bobs.output().contains("another user of this machine is connected"), "{}", bobs.output());
    must(machine.run(ANN, &["down"]));
    machine.is_clean();
}

#[test]
fn only_profiles_of_root_connect() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, login) = Gateway::for_ann(&lab);
    let machine = Machine::new(&lab, &login);
    fs::copy(machine.profile(), lab.path("outside.toml")).unwrap();
    let password = machine.password(ANN, "ann's password");
    for name in ["../outside", "..", "/etc/passwd", "work.toml/../work", "\x1b[2Jwork", "-x", "w\nork"] {
        refused(&machine.run(ANN, &["up", "--credentials", &password, "--", name]), "profile's name has");
    }
    refused(&machine.run(ANN, &["up", &"x".repeat(200)]), "longer than that of any profile");
    refused(&machine.run(ANN, &["up", "home"]), "there is no profile 'home'");
    // Profiles that another user could have written.
    let profile = machine.profile();
    set_mode(&profile, 0o666);
    refused(&machine.run(ANN, &["up", "--credentials", &password]), "no other user can write");
    set_mode(&profile, 0o644);
    chown(&profile, Some(ANN.uid), None).unwrap();
    refused(&machine.run(ANN, &["up", "--credentials", &password]), "belongs to user 61501");
    chown(&profile, Some(0), None).unwrap();
    // A fault in a file of root may reveal a secret.
    let good = fs::read_to_string(&profile).unwrap();
    fs::write(&profile, good.replace("version = 1", "version = 1\nhushhush = 3")).unwrap();
    let said = process::text(&machine.run(ANN, &["up", "--credentials", &password]));
    assert!(said.contains("'work' is wrong") && !said.contains("hushhush"), "{said}");
    assert!(process::text(&machine.run_as_root(&["list"])).contains("hushhush"));
    fs::write(&profile, good).unwrap();
    machine.is_clean();
    assert!(machine.tunnels(ANN).is_empty());
    let log = machine.service.output();
    assert!(log.contains("refused: a profile's name has") && log.contains("uid=61501"), "{log}");
}

/// All that a connection brings until it closes.
fn until_closed(stream: &mut UnixStream) -> Vec<u8> {
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        // Data that the other end has not read is no reason to answer.
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("it stays open: {error}"),
        _ => all,
    }
}

#[test]
fn arbitrary_requests_of_a_user_are_refused() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, login) = Gateway::for_ann(&lab);
    let mut machine = Machine::new(&lab, &login);
    for frame in
        [&[0xFF; 64][..], &[1, 0, 0, 0, 0xFF], &[2, 0, 0, 0, 1, 2], &[0, 0, 0, 0], b"GET / HTTP/1.1\r\n\r\n"]
    {
        let mut stream = machine.dial(ANN).unwrap();
        stream.write_all(frame).unwrap();
        assert_eq!(until_closed(&mut stream), b"", "{frame:?}");
    }
    assert!(machine.dial(EVE).is_err(), "who is not in the group gets no connection");
    // Not even by a mistake with the socket.
    set_mode(&machine.socket(), 0o666);
    let mut stream = machine.dial(EVE).unwrap();
    let answer = until_closed(&mut stream);
    assert!(String::from_utf8_lossy(&answer).contains("not in the group"), "{answer:?}");
    set_mode(&machine.socket(), 0o660);

    // Nor does a command tell its password to a socket of another user.
    let theirs = lab.path("theirs");
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(EVE.uid), None).unwrap();
    let listener = machine.as_user(EVE, || UnixListener::bind(theirs.join("socket"))).unwrap();
    let mut command = process::command(&lab, machine.place(), "timeout");
    command.arg("30").arg(&machine.program);
    let password = machine.password(ANN, "ann's password");
    command.args(["up", "--credentials", &password, "--socket"]).arg(theirs.join("socket"));
    refused(&process::run(command), "nothing was sent");
    drop(listener);

    // Half a message holds one of a few places for a while; others are served meanwhile.
    let mut held: Vec<_> = (0..8).map(|_| machine.dial(ANN).unwrap()).collect();
    held.iter_mut().for_each(|stream| stream.write_all(&[9, 0]).unwrap());
    let mut ninth = machine.dial(ANN).unwrap();
    assert_eq!(until_closed(&mut ninth), b"");
    must(machine.run(BOB, &["list"]));
    held.iter_mut().for_each(|stream| assert_eq!(until_closed(stream), b""));

    // Logins are not tried without end, and at most one at a time.
    let up = minicbor::to_vec(UserRequest::Up(Up { profile: None, login: Default::default() })).unwrap();
    let frame = [&u32::try_from(up.len()).unwrap().to_le_bytes(), up.as_slice()].concat();
    let mut first = machine.dial(ANN).unwrap();
    first.write_all(&frame).unwrap();
    first.set_read_timeout(Some(SOON)).unwrap();
    first.read_exact(&mut [0; 8]).unwrap();
    let mut others = machine.dial(ANN).unwrap();
    others.write_all(&frame.repeat(30)).unwrap();
    let mut said = String::new();
    eventually("there were too many attempts", SOON, || {
        let mut part = [0; 4_096];
        others.set_read_timeout(Some(SOON)).unwrap();
        let len = others.read(&mut part).unwrap();
        said.push_str(&String::from_utf8_lossy(&part[..len]));
        said.contains("too many attempts").then_some(())
    });
    assert!(said.contains("is being connected already"), "{said}");
    drop((first, others));
    eventually("the client has ended", SOON, || {
        machine.tunnels(ANN).iter().all(|tunnel| tunnel["state"] == "ended").then_some(())
    });
    machine.service.assert_running();
    machine.is_clean();
    let log = machine.service.output();
    assert!(log.contains("refused: this user has 8 connections already"), "{log}");
}

#[test]
fn a_tunnel_ends_with_its_service_and_is_no_orphan() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, login) = Gateway::for_ann(&lab);
    let mut machine = Machine::new(&lab, &login);
    machine.up();
    // Its client alone.
    let [client] = machine.clients()[..] else { panic!("one client: {:?}", machine.clients()) };
    kill_process(Pid::from_raw(client.cast_signed()).unwrap(), Signal::KILL).unwrap();
    eventually("the service notices", SOON, || (machine.tunnels(ANN)[0]["state"] == "ended").then_some(()));
    machine.is_clean();
    for signal in [Signal::KILL, Signal::TERM] {
        machine.up();
        machine.service.signal(signal);
        machine.service.wait(SOON);
        machine.is_clean();
        eventually("the gateway was told", SOON, || gateway.sessions().is_empty().then_some(()));
        let error = machine.run(ANN, &["list"]);
        refused(&error, "the client service does not run");
        machine.service = start(&lab, &machine.program);
        assert!(machine.tunnels(ANN).is_empty());
    }
    machine.up();
    must(machine.run(ANN, &["down", "work"]));
    machine.is_clean();

    // A question that is open goes away with the service.
    let mut up = Process::start_at_terminal(&lab, "terminal", machine.at_terminal(ANN, &["up"])).0;
    eventually("the password is asked", SOON, || up.output().contains("Password of ann at ").then_some(()));
    machine.service.signal(Signal::TERM);
    machine.service.wait(SOON);
    machine.is_clean();
    up.kill();
}
