//! Behaviour: what the system takes away is missed in an orderly way. Without descriptors the
//! gateway refuses new work and goes on as soon as there are some; without its TUN device a daemon
//! ends, so that the service manager starts it again; without room on the disk a full tunnel stays
//! as it is.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::cleanup::look_at;
use crate::client::{self, Client, TUN};
use crate::full::{in_clear, speak, watch};
use crate::gateway::{Gateway, Login, VPND, must, strings};
use crate::kill_switch::rules;
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

/// The routes of a full tunnel.
const EVERYTHING: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// A gateway whose only user has a full tunnel.
fn of_full_tunnel(lab: &Lab) -> (Gateway<'_>, Login) {
    let mut gateway = Gateway::init(lab);
    gateway.configure("nat.mode", "nftables");
    gateway.configure("push.routes", strings(&EVERYTHING));
    let ann = gateway.add_user("ann");
    gateway.start();
    (gateway, ann)
}

/// A connected client whose journals are on a small disk, and the path of a file there.
fn on_small_disk(lab: &Lab, login: &Login) -> (Process, PathBuf) {
    let journal = client::journal(lab, 1);
    fs::create_dir(&journal).unwrap();
    let mut command = process::command(lab, &lab.clients[0], "sh");
    command.args(["-c", "mount -t tmpfs -o size=64k,mode=0700 tmpfs \"$0\" && exec \"$@\""]);
    command.arg(&journal).args(client::arguments(lab, 1, login));
    let mut client = Process::start(lab, "client1", command);
    eventually("the client is connected", 20 * SECOND, || {
        client.assert_running();
        client.output().contains(": connected").then_some(())
    });
    ping_until(&lab.clients[0], CAMPUS_V4.into(), 10 * SECOND);
    // The disk is mounted for the client alone.
    let seen = Path::new("/proc").join(client.id().to_string()).join("root");
    let file = seen.join(journal.strip_prefix("/").unwrap()).join("filler");
    (client, file)
}

/// Takes the room that is left on a disk.
fn fill(file: &Path) {
    let mut file = File::create(file).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
}

/// The client goes on, and so does its tunnel, though it has logged this.
fn stays_closed(lab: &Lab, client: &mut Process, logged: &str) {
    eventually(logged, 20 * SECOND, || {
        client.assert_running();
        let output = client.output();
        (output.contains(logged) && output.contains("they are tried again")).then_some(())
    });
    speak(&lab.clients[0]);
    ping_until(&lab.clients[0], CAMPUS_V4.into(), 5 * SECOND);
    client.assert_running();
    assert_eq!(in_clear(lab), 0, "the tunnel is for everything");
}

/// Ends the client, without which packets leave in clear.
fn opens_at_its_end(lab: &Lab, client: &mut Process) {
    client.signal(Signal::INT);
    let status = client.wait(10 * SECOND);
    assert!(status.success(), "{status}: {}", client.output());
    speak(&lab.clients[0]);
    assert!(in_clear(lab) > 0, "without the tunnel it is a leak");
}

#[test]
fn routes_that_cannot_be_written_down_open_no_full_tunnel() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, ann) = of_full_tunnel(&lab);
    let (mut client, filler) = on_small_disk(&lab, &ann);
    watch(&lab);
    fill(&filler);
    // There is room for some of them in the last block that the journal has.
    let more: Vec<String> = (0..64).map(|n| format!("10.201.{n}.0/24")).collect();
    let routes: Vec<&str> = EVERYTHING.into_iter().chain(more.iter().map(String::as_str)).collect();
    gateway.configure("push.routes", strings(&routes));
    must(gateway.ask(&["reload"]));
    stays_closed(&lab, &mut client, "No space left on device");

    fs::remove_file(&filler).unwrap();
    eventually("the routes come once there is room", 30 * SECOND, || {
        client.assert_running();
        let routes = lab.clients[0].ip(&["route", "show", "table", "all"]);
        more.iter().all(|route| routes.contains(route)).then_some(())
    });
    speak(&lab.clients[0]);
    assert_eq!(in_clear(&lab), 0, "nor with the new routes");
    opens_at_its_end(&lab, &mut client);
}

#[test]
fn a_required_kill_switch_that_cannot_be_written_down_opens_no_full_tunnel() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, ann) = of_full_tunnel(&lab);
    let (mut client, filler) = on_small_disk(&lab, &ann);
    watch(&lab);
    fill(&filler);
    gateway.configure("push.kill_switch", "on");
    must(gateway.ask(&["reload"]));
    stays_closed(&lab, &mut client, "requires a kill switch, and this machine can't have it");
    assert!(rules(&lab).is_none());
    let times = |client: &Process| client.output().matches("closes this machine's network").count();
    assert_eq!(times(&client), 0, "it does not: {}", client.output());

    fs::remove_file(&filler).unwrap();
    eventually("the kill switch is on once there is room", 30 * SECOND, || rules(&lab));
    assert_eq!(times(&client), 1, "{}", client.output());
    speak(&lab.clients[0]);
    assert_eq!(in_clear(&lab), 0, "nor with the kill switch");
    opens_at_its_end(&lab, &mut client);
}
