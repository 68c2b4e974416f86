//! Behaviour: what another program removes or changes of the gateway's firewall is in force again before long, so that the gateway's
//! machine is no router for strangers and clients go on.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::cleanup::look_at;
use crate::client::Client;
use crate::continuity::behind_nat;
use crate::gateway::{Gateway, must};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, eventually};
use crate::namespace::Namespace;
use crate::process;
use crate::traffic::ping_until;

const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(60);
const TABLE: &str = "inet vpnd_vpnd0";
const FORWARDING: [&str; 2] = ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"];
/// The address of `net` on the gateway's WAN.
const STRANGER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// As Debian's package nftables installs it.
const DEBIAN: &str = "flush ruleset\n\
    table inet filter {\n\
    chain input {\n type filter hook input priority filter;\n }\n\
    chain forward {\n type filter hook forward priority filter;\n }\n\
    chain output {\n type filter hook output priority filter;\n }\n\
    }\n";

/// The gateway's table with the handles of its rules; nothing if there is none.
fn table(lab: &Lab, arguments: &[&str]) -> String {
    let mut nft = process::command(lab, &lab.gateway, "nft");
    nft.args(arguments).args(["list", "table"]).args(TABLE.split(' '));
    String::from_utf8(process::run(nft).stdout).expect("nft prints text")
}

/// Its lines in some order: that of chains depends on which were there before.
fn lines(lab: &Lab) -> Vec<String> {
    let mut lines: Vec<String> = table(lab, &["--stateless"]).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// The number of one of its rules.
fn handle(lab: &Lab, rule: &str) -> String {
    let listed = table(lab, &["--handle"]);
    let line = listed.lines().find(|line| line.contains(rule)).unwrap_or_else(|| panic!("{rule}: {listed}"));
    line.rsplit(' ').next().expect("it ends with its handle").to_owned()
}

fn settings(namespace: &Namespace) -> [String; 2] {
    let read = |key: &str| std::fs::read_to_string(format!("/proc/sys/{key}")).expect("a setting");
    namespace.within(|| FORWARDING.map(|key| read(key).trim().to_owned()))
}

/// A laboratory in which a host on the gateway's WAN knows the way to the campus.
fn lab_with_stranger() -> Option<Lab> {
    let lab = Lab::new(1)?;
    for interface in ["all", "default", "up0", "campus0"] {
        lab.gateway.sysctl(&format!("net/ipv4/conf/{interface}/rp_filter"), "0");
    }
    lab.net.ip_batch(&format!("route add 10.200.0.0/24 via {GATEWAY_V4}\n"));
    Some(lab)
}

/// Ends a thread, also if a test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What arrives at the campus of what a stranger sends there without a pause.
struct Stranger {
    receiver: UdpSocket,
}

impl Stranger {
    fn during(lab: &Lab, work: impl FnOnce(&Self)) {
        let receiver = lab.campus.within(|| UdpSocket::bind((CAMPUS_V4, 7_001))).expect("its address");
        receiver.set_nonblocking(true).expect("a socket");
        let sender = lab.net.within(|| UdpSocket::bind((STRANGER, 0))).expect("its address");
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let _ = sender.send_to(b"hello", SocketAddr::from((CAMPUS_V4, 7_001)));
                    thread::sleep(Duration::from_millis(1));
                }
            });
            let _end = End(&is_over);
            work(&Self { receiver });
        });
    }

    /// Packets that have arrived since the last call.
    fn arrived(&self) -> usize {
        std::iter::from_fn(|| self.receiver.recv(&mut [0; 16]).ok()).count()
    }

    /// Whether nothing arrives for a while, from now on.
    fn is_kept_out(&self) -> bool {
        self.arrived();
        thread::sleep(SECOND / 2);
        self.arrived() == 0
    }
}

#[test]
fn what_another_program_removes_is_back_and_nobody_gets_through() {
    let Some(lab) = lab_with_stranger() else { return };
    let mut gateway = behind_nat(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);
    let rules = lines(&lab);
    let drop = handle(&lab, "ip saddr != 10.86.0.0/16 drop");
    let scripts = [
        "flush ruleset\n".to_owned(),
        DEBIAN.to_owned(),
        format!("delete table {TABLE}\n"),
        format!("flush table {TABLE}\n"),
        format!("flush chain {TABLE} forward\n"),
        format!("flush chain {TABLE} postrouting\n"),
        format!("delete rule {TABLE} forward handle {drop}\n"),
        format!("insert rule {TABLE} forward accept\n"),
        format!("add chain {TABLE} early {{ type filter hook prerouting priority -400; policy drop; }}\n"),
        format!("add table {TABLE} {{ flags dormant; }}\n"),
    ];
    Stranger::during(&lab, |stranger| {
        assert!(stranger.is_kept_out());
        for script in scripts {
            // The handle of a rule that was made again is another.
            let script = script.replace(&drop, &handle(&lab, "ip saddr != 10.86.0.0/16 drop"));
            lab.gateway.nft(&script);
            eventually(&script, LIMIT, || (lines(&lab) == rules).then_some(()));
            assert!(stranger.is_kept_out(), "{script}");
            ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);
        }
    });
    let log = gateway.process().output();
    assert!(log.contains("it is in force again") && log.contains("program=\"nft\""), "{log}");
}

#[test]
fn forwarding_is_taken_back_after_every_flush() {
    let Some(lab) = Lab::new(0) else { return };
    let mut gateway = behind_nat(&lab);
    let before = (look_at(&lab, &lab.gateway), settings(&lab.gateway));
    assert_eq!(before.1, ["0", "0"]);
    gateway.start();
    let rules = lines(&lab);
    let flush = || {
        lab.gateway.nft("flush ruleset\n");
        eventually("the rules are back", LIMIT, || (lines(&lab) == rules).then_some(()));
    };
    flush();
    must(gateway.ask(&["reload"]));
    gateway.terminate();
    gateway.tear_down();
    assert_eq!((look_at(&lab, &lab.gateway), settings(&lab.gateway)), before, "flushed, reloaded, stopped");

    // The journal alone knows, and after that the table alone.
    gateway.start();
    gateway.kill();
    lab.gateway.nft("flush ruleset\n");
    gateway.start();
    flush();
    gateway.kill();
    std::fs::remove_dir_all(gateway.journal()).expect("the gateway has made it");
    gateway.start();
    gateway.terminate();
    gateway.tear_down();
    assert_eq!((look_at(&lab, &lab.gateway), settings(&lab.gateway)), before, "its journal was lost");
}

/// Another program owns a table of that name, which nobody else can change then.
#[test]
fn without_its_table_a_gateway_forwards_nothing() {
    let Some(lab) = lab_with_stranger() else { return };
    let mut gateway = behind_nat(&lab);
    gateway.start();
    let rules = lines(&lab);
    let mut nft = process::command(&lab, &lab.gateway, "nft");
    let mut owner = nft.arg("-i").stdin(Stdio::piped()).spawn().expect("nft is installed");
    let mut commands = owner.stdin.take().expect("it is a pipe");
    writeln!(commands, "delete table {TABLE}; add table {TABLE} {{ flags owner; }}").expect("it reads");
    eventually("forwarding is off", LIMIT, || (settings(&lab.gateway) == ["0", "0"]).then_some(()));
    Stranger::during(&lab, |stranger| assert!(stranger.is_kept_out()));
    eventually("it is logged", LIMIT, || {
        let log = gateway.process().output();
        log.contains("can't be put back: forwarding, which vpnd had switched on, is off").then_some(())
    });
    drop(commands);
    owner.wait().expect("it ends with its input");
    eventually("all is as before", LIMIT, || {
        (lines(&lab) == rules && settings(&lab.gateway) == ["1", "1"]).then_some(())
    });
}

#[test]
fn a_program_that_goes_on_is_named_with_what_to_do() {
    let Some(lab) = Lab::new(0) else { return };
    let mut gateway = behind_nat(&lab);
    gateway.start();
    let rules = lines(&lab);
    eventually("it is logged", LIMIT, || {
        lab.gateway.nft("flush ruleset\n");
        eventually("the rules are back", LIMIT, || (lines(&lab) == rules).then_some(()));
        gateway.process().output().contains("again and again").then_some(())
    });
}

#[test]
fn a_gateway_without_a_firewall_leaves_tables_alone() {
    let Some(lab) = Lab::new(0) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("nat.mode", "none");
    gateway.start();
    lab.gateway.nft(&format!("add table {TABLE}\n"));
    lab.gateway.nft("flush ruleset\n");
    // A reload is handled after whatever was reported before.
    must(gateway.ask(&["reload"]));
    assert_eq!(lines(&lab), Vec::<String>::new());
    assert!(!gateway.process().output().contains("firewall"), "{}", gateway.process().output());
}
