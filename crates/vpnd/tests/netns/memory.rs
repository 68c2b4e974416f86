//! Behaviour: what memory is missing for is not done, and said; what can't go on without it ends as
//! a whole, leaves the machine as it was, and the next start finds everything that was
//! acknowledged.
//!
//! The limit is that of a process (`RLIMIT_DATA`), put on it while it works.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::cleanup::look_at;
use crate::client::{self, Client};
use crate::gateway::{Gateway, Login, VPND, must};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::privileges::Seen;
use crate::process::{self, Process};
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);
const MIB: u64 = 1 << 20;
/// Less than a password's hash takes (19 MiB), and enough for everything else.
const NO_ROOM_FOR_A_HASH: u64 = 8 * MIB;
/// Duration of the work at a process that gets no more memory.
const STARVED: Duration = Duration::from_secs(2);

/// Lets a process have this many bytes more than it has; `None` is without a limit.
fn allow(process: &Seen, more: Option<u64>) {
    let pid = process.pid();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    let limit = more.map_or("unlimited".to_owned(), |more| (field("VmData:") * 1024 + more).to_string());
    // Its own user may do this, where root has not all privileges.
    let mut command = Command::new("prlimit");
    command.uid(field("Uid:") as u32).gid(field("Gid:") as u32);
    command.args(["--pid", &pid.to_string(), &format!("--data={limit}:")]);
    must(process::run(command));
}

#[test]
fn a_login_that_lacks_memory_is_retried() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    let mut command = process::command(&lab, &lab.gateway, "prlimit");
    command.arg(format!("--data={}", 16 * MIB)).arg(VPND).args(["user", "passwd", "ann", "--config"]);
    command.arg(gateway.config()).arg("--password-file").arg(&ann.credentials);
    let output = process::run(command);
    let text = process::text(&output);
    assert!(output.status.code() == Some(1) && text.contains("no memory to hash a password"), "{text}");

    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let auth = Seen::parent(&gateway).child("auth");
    allow(&auth, Some(NO_ROOM_FOR_A_HASH));
    let mut two = Process::start(&lab, "two", client::command(&lab, 2, &bob, &[]));
    eventually("the gateway says what is missing, again and again", 30 * SECOND, || {
        (gateway.process().output().matches("no memory to hash a password").count() > 1).then_some(())
    });
    assert!(ping(one.namespace(), CAMPUS_V4.into(), 56, 2 * SECOND), "who is connected does not notice");
    two.assert_running();
    allow(&auth, None);
    eventually("the login that waited is through", 30 * SECOND, || {
        lab.clients[1].ip(&["-brief", "address", "show"]).contains("10.86.").then_some(())
    });
    ping_until(&lab.clients[1], CAMPUS_V4.into(), 5 * SECOND);
    let said = gateway.process().output();
    assert!(!said.contains("wrong-password") && !said.contains("throttled"), "no guess was counted: {said}");
}

#[test]
fn a_gateway_that_gets_no_memory_loses_nothing() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    let before = look_at(&lab, &lab.gateway);
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let address = one.v4();
    for part in ["worker", "auth"] {
        let starved = Seen::parent(&gateway).child(part);
        allow(&starved, Some(0));
        work_until(Instant::now() + STARVED, &lab, &mut gateway, &bob);
        if gateway.is_running() {
            println!("{part}: the gateway goes on without memory");
            gateway.terminate();
        }
        let said = gateway.process().output();
        let status = gateway.process().wait(10 * SECOND);
        println!("{part}: {status}, {}", said.lines().last().unwrap_or_default());
        // By itself it ends with a reason, for the service manager to start it again.
        assert!(status.success() || status.code() == Some(1) && said.contains("can't go on"), "{said}");
        gateway.tear_down();
        assert_eq!(look_at(&lab, &lab.gateway), before, "after the {part} process got no memory");
        gateway.start();
        ping_until(one.namespace(), CAMPUS_V4.into(), 60 * SECOND);
        assert_eq!(one.v4(), address, "the session is the same");
    }
    must(process::run(gateway.user(&["disable", "bob"])));
    let list = process::text(&must(process::run(gateway.user(&["list"]))));
    assert!(list.contains("ann") && list.contains("bob"), "{list}");
}

/// Logins, statuses and an administrator's changes, whatever comes of them.
fn work_until(over: Instant, lab: &Lab, gateway: &mut Gateway<'_>, login: &Login) {
    while Instant::now() < over && gateway.is_running() {
        let mut client = Process::start(lab, "work", client::command(lab, 2, login, &[]));
        for _ in 0..5 {
            let _ = gateway.ask(&["status", "--json"]);
            thread::sleep(SECOND / 5);
        }
        client.signal(Signal::INT);
        client.wait(20 * SECOND);
    }
}

#[test]
fn a_client_that_gets_no_memory_leaves_its_machine_as_it_was() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("timeouts.rekey_after_s", 1);
    let ann = gateway.add_user("ann");
    gateway.start();
    let before = look_at(&lab, &lab.clients[0]);
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let starved = Seen::of(client.process().id()).child("client");
    allow(&starved, Some(0));
    // Each second there are new keys.
    let over = Instant::now() + STARVED;
    while Instant::now() < over && client.process().ended().is_none() {
        ping(client.namespace(), CAMPUS_V4.into(), 1_200, SECOND / 5);
    }
    if client.process().ended().is_none() {
        println!("the client goes on without memory");
        client.interrupt();
    }
    let status = client.process().wait(10 * SECOND);
    println!("the client: {status}, {}", client.process().output().lines().last().unwrap_or_default());
    assert_eq!(look_at(&lab, &lab.clients[0]), before);
    let again = Client::connect(&lab, 1, &ann);
    ping_until(again.namespace(), CAMPUS_V4.into(), 5 * SECOND);
}
