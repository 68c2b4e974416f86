//! Behaviour: what the system takes away is missed in an orderly way. Without descriptors the
//! gateway refuses new work and goes on as soon as there are some; without its TUN device a daemon
//! ends, so that the service manager starts it again.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::cleanup::look_at;
use crate::client::{Client, TUN};
use crate::gateway::{Gateway, VPND};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::privileges::Seen;
use crate::process::{self, Process};
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);

/// `vpnd server` with this many descriptors for each of its processes, and none that the test
/// itself was started with.
fn limited(lab: &Lab, gateway: &Gateway<'_>, limit: usize) -> Command {
    let close =
        r#"for fd in /proc/self/fd/*; do fd=${fd##*/}; ((fd > 2)) && eval "exec $fd>&-"; done; exec "$@""#;
    let mut command = process::command(lab, &lab.gateway, "bash");
    command.args(["-c", close, "bash", "prlimit"]).arg(format!("--nofile={limit}"));
    command.arg(VPND).args(["server", "--config"]).arg(gateway.config());
    command
}

#[test]
fn a_denied_thread_priority_is_logged_once() {
    let Some(lab) = Lab::new(1) else { return };
    let gateway = Gateway::init(&lab);
    gateway.configure("server.shards", 2);
    let mut command = process::command(&lab, &lab.gateway, "prlimit");
    command.args(["--nice=0", "setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice", VPND]);
    command.args(["server", "--config"]).arg(gateway.config());
    let mut daemon = Process::start(&lab, "gateway", command);
    assert!(comes_up(&mut daemon));
    let output = eventually("it is said", SECOND * 10, || {
        Some(daemon.output()).filter(|output| output.contains("can't put shards before other work"))
    });
    assert_eq!(output.matches("can't put shards").count(), 1, "{output}");
    assert!(output.contains("LimitNICE=-20"), "{output}");
    let worker = Seen::of(daemon.id()).child("worker");
    assert!(worker.threads().iter().all(|thread| thread.nice() >= 0));
}

/// Whether it comes up; if it ends instead, it says why and has changed nothing.
fn comes_up(daemon: &mut Process) -> bool {
    let ended = eventually("it is up or has ended", 20 * SECOND, || match daemon.ended() {
        Some(status) => Some(Some(status)),
        None => daemon.output().contains("the gateway is up").then_some(None),
    });
    let Some(status) = ended else { return true };
    let output = daemon.output();
    assert_eq!(status.code(), Some(1), "{output}");
    assert!(output.contains("Too many open files") || output.contains("os error 24"), "{output}");
    assert!(!output.contains("panicked"), "{output}");
    false
}

fn descriptors(process: &Seen) -> usize {
    fs::read_dir(format!("/proc/{}/fd", process.pid())).unwrap().count()
}

#[test]
fn few_descriptors() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    let before = look_at(&lab, &lab.gateway);
    gateway.start();
    let used = descriptors(&Seen::parent(&gateway).child("worker"));
    gateway.terminate();
    gateway.tear_down();

    // Too few are refused; the first number that is enough leaves none for the control socket, two
    // more leave next to none.
    let mut refused = 0;
    let enough = (used / 2..used + 40).step_by(2).find(|limit| {
        let mut daemon = Process::start(&lab, "limited", limited(&lab, &gateway, *limit));
        if comes_up(&mut daemon) {
            daemon.signal(Signal::TERM);
            daemon.wait(10 * SECOND);
            return true;
        }
        refused += 1;
        assert_eq!(look_at(&lab, &lab.gateway), before, "with {limit} descriptors");
        false
    });
    assert!(refused > 0, "half of what it uses is too few");
    let limit = enough.expect("some number is enough") + 2;
    let mut daemon = Process::start(&lab, "limited", limited(&lab, &gateway, limit));
    assert!(comes_up(&mut daemon), "{}", daemon.output());
    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);

    // Some who wait in front of the control socket take the last ones.
    let worker = Seen::parent(&gateway).child("worker");
    let socket = gateway.file("state/admin.sock");
    let waiting: Vec<_> = (0..15).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    eventually("it says what is missing", 5 * SECOND, || {
        daemon.output().contains("can't accept on the control socket").then_some(())
    });
    assert!(daemon.output().contains("Too many open files"), "{}", daemon.output());
    // It does not spin: what it uses is far from a core, while clients don't notice.
    let ticks = worker.ticks();
    thread::sleep(SECOND);
    let spent = worker.ticks() - ticks;
    assert!(spent < 50, "{spent} ticks of 10 ms in 1 s");
    assert!(ping(one.namespace(), CAMPUS_V4.into(), 56, 2 * SECOND), "who is connected does not notice");
    let two = Client::connect(&lab, 2, &bob);
    ping_until(two.namespace(), CAMPUS_V4.into(), 5 * SECOND);

    drop(waiting);
    eventually("it answers again", 10 * SECOND, || {
        gateway.ask(&["status", "--json"]).status.success().then_some(())
    });
    assert_eq!(gateway.sessions().len(), 2);
    daemon.assert_running();
}

#[test]
fn the_gateways_device_is_deleted() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    let before = look_at(&lab, &lab.gateway);
    gateway.start();
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let address = client.v4();
    lab.gateway.ip(&["link", "delete", "vpnd0"]);
    let status = gateway.process().wait(10 * SECOND);
    assert_eq!(
        status.code(),
        Some(1),
        "the service manager starts it again:\n{}",
        gateway.process().output()
    );
    assert!(gateway.process().output().contains("a shard stopped"), "{}", gateway.process().output());
    gateway.tear_down();
    assert_eq!(look_at(&lab, &lab.gateway), before);
    gateway.start();
    ping_until(client.namespace(), CAMPUS_V4.into(), 20 * SECOND);
    assert_eq!(client.v4(), address, "the session is the same");
}

#[test]
fn a_clients_device_is_deleted() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let before = look_at(&lab, &lab.clients[0]);
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    lab.clients[0].ip(&["link", "delete", TUN]);
    let status = client.process().wait(10 * SECOND);
    assert_eq!(status.code(), Some(1), "{}", client.process().output());
    assert_eq!(look_at(&lab, &lab.clients[0]), before);
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
}
