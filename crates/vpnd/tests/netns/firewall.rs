//! Behaviour: what another program removes or changes of the gateway's firewall, forwarding and
//! routes is in force again before long, so that the gateway's machine is no router for strangers
//! and clients go on; and no client takes all of the kernel's connections.

use std::collections::HashSet;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::cleanup::look_at;
use crate::client::Client;
use crate::continuity::behind_nat;
use crate::gateway::{Gateway, INNER_V4, INNER_V6, must};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, GATEWAY_V4, Lab, eventually};
use crate::namespace::Namespace;
use crate::process;
use crate::traffic::ping_until;

const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(60);
const TABLE: &str = "inet vpnd_vpnd0";
const FORWARDING: [&str; 2] = ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"];
/// The address of `net` on the gateway's WAN.
const STRANGER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The file that Debian's package nftables installs.
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
pub(crate) fn lines(lab: &Lab) -> Vec<String> {
    let mut lines: Vec<String> = table(lab, &["--stateless", "--terse"]).lines().map(str::to_owned).collect();
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
pub(crate) fn lab_with_stranger() -> Option<Lab> {
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

/// Counts what arrives at the campus of a stranger's packets, sent without a pause.
pub(crate) struct Stranger {
    receiver: UdpSocket,
}

impl Stranger {
    pub(crate) fn during(lab: &Lab, work: impl FnOnce(&Self)) {
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
    pub(crate) fn arrived(&self) -> usize {
        std::iter::from_fn(|| self.receiver.recv(&mut [0; 16]).ok()).count()
    }

    /// Whether nothing arrives for a while, from now on.
    pub(crate) fn is_kept_out(&self) -> bool {
        self.arrived();
        thread::sleep(SECOND / 2);
        self.arrived() == 0
    }
}

#[test]
fn removed_firewall_rules_are_restored_and_nothing_passes() {
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
    eventually("the status counts it", LIMIT, || {
        (gateway.status()["firewall"]["renewals"].as_u64()? >= 10).then_some(())
    });
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

/// Another program owns a table of that name, which no other program can change then.
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
    // Longer than the gateway takes to look at settings.
    thread::sleep(6 * SECOND);
    assert_eq!(settings(&lab.gateway), ["0", "0"]);
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
fn a_program_that_keeps_removing_rules_is_named_with_a_remedy() {
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

#[test]
fn forwarding_addresses_and_routes_are_restored_and_finally_undone() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = behind_nat(&lab);
    let ann = gateway.add_user("ann");
    let before = (look_at(&lab, &lab.gateway), settings(&lab.gateway));
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);
    for key in FORWARDING {
        lab.gateway.sysctl(key, "0");
    }
    eventually("it is on again", LIMIT, || (settings(&lab.gateway) == ["1", "1"]).then_some(()));
    for batch in ["addr flush dev vpnd0\n", "link set vpnd0 down\n", "route del unreachable 10.86.0.0/16\n"] {
        lab.gateway.ip_batch(batch);
        eventually(batch, LIMIT, || {
            let addresses = lab.gateway.ip(&["addr", "show", "dev", "vpnd0", "up"]);
            let routes = lab.gateway.ip(&["route", "show"]);
            (addresses.contains(INNER_V4)
                && addresses.contains(INNER_V6)
                && routes.contains("10.86.0.0/16 dev vpnd0")
                && routes.contains("unreachable 10.86.0.0/16"))
            .then_some(())
        });
        for to in [CAMPUS_V4.into(), CAMPUS_V6.into()] {
            ping_until(one.namespace(), to, LIMIT);
        }
    }
    let log = gateway.process().output();
    for change in
        ["kernel setting net/ipv4/ip_forward", "address 10.86.0.1/16 on vpnd0", "route to 10.86.0.0/16"]
    {
        assert!(log.contains(&format!("another program has removed or changed this: {change}")), "{log}");
    }
    drop(one);
    gateway.terminate();
    gateway.tear_down();
    assert_eq!((look_at(&lab, &lab.gateway), settings(&lab.gateway)), before);
}

/// The machine's own forwarding is for everybody, and vpnd's rules let it be.
#[test]
fn forwarding_that_was_not_vpnds_stays_off() {
    let Some(lab) = Lab::new(0) else { return };
    lab.gateway.sysctl(FORWARDING[0], "1");
    let mut gateway = behind_nat(&lab);
    gateway.start();
    lab.gateway.sysctl(FORWARDING[0], "0");
    eventually("it is logged", LIMIT, || {
        gateway.process().output().contains("has switched forwarding of IPv4 off").then_some(())
    });
    assert_eq!(settings(&lab.gateway), ["0", "1"]);
}

/// This many flows of a client to a host, each with a packet.
fn flows(client: &Client<'_>, count: usize, to: SocketAddr) -> Vec<UdpSocket> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    client.namespace().within(|| {
        let mut flows = Vec::new();
        for _ in 0..count {
            let flow = UdpSocket::bind((any, 0)).expect("a socket");
            flow.send_to(b"hello", to).expect("there is a route");
            flows.push(flow);
        }
        flows
    })
}

/// Waits until a packet of each of these sources, and no more, has come; returns how many sources
/// that were.
fn sources(receiver: &UdpSocket, least: usize) -> usize {
    let mut seen = HashSet::new();
    receiver.set_read_timeout(Some(SECOND)).expect("a socket");
    eventually("packets arrive", LIMIT, || {
        while let Ok((_, from)) = receiver.recv_from(&mut [0; 16]) {
            seen.insert(from);
        }
        (seen.len() >= least).then_some(())
    });
    seen.len()
}

#[test]
fn a_client_gets_no_more_connections_than_it_may_have_and_others_get_theirs() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = behind_nat(&lab);
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    gateway.configure("limits.max_connections_per_address", 1_000);
    gateway.start();
    let (one, two) = (Client::connect(&lab, 1, &ann), Client::connect(&lab, 2, &bob));
    for (campus, port) in [(IpAddr::from(CAMPUS_V4), 7_002), (CAMPUS_V6.into(), 7_003)] {
        ping_until(one.namespace(), campus, LIMIT);
        let receiver = lab.campus.within(|| UdpSocket::bind((campus, port))).expect("its address");
        let to = receiver.local_addr().expect("it is bound");
        let _few = flows(&one, 20, to);
        assert_eq!(sources(&receiver, 20), 20);
        gateway.configure("limits.max_connections_per_address", 100);
        must(gateway.ask(&["reload"]));
        let many = flows(&one, 300, to);
        let admitted = sources(&receiver, 1);
        assert!((90..=100).contains(&admitted), "{admitted} connections");
        // Those that are there go on, however many packets they have; and no other client notices.
        for _ in 0..10 {
            many[0].send_to(b"more", to).expect("there is a route");
        }
        assert_eq!(sources(&receiver, 1), 1);
        let _others = flows(&two, 50, to);
        assert_eq!(sources(&receiver, 50), 50);
        gateway.configure("limits.max_connections_per_address", 1_000);
        must(gateway.ask(&["reload"]));
    }
    eventually("drops are counted", LIMIT, || {
        (gateway.status()["firewall"]["over_limit"].as_u64()? >= 400).then_some(())
    });
}

#[test]
fn connections_to_the_gateway_itself_count_too() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = behind_nat(&lab);
    gateway.configure("limits.max_connections_per_address", 100);
    gateway.configure("policy.client_to_gateway", true);
    let ann = gateway.add_user("ann");
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);
    let receiver = lab.gateway.within(|| UdpSocket::bind((INNER_V4, 7_004))).expect("its address");
    let _many = flows(&one, 300, receiver.local_addr().expect("it is bound"));
    let admitted = sources(&receiver, 1);
    assert!((90..=100).contains(&admitted), "{admitted} connections");
}
