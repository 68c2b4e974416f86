//! Behaviour: what another program removes from a machine with a tunnel is put back, and a full
//! tunnel stays full meanwhile.
//!
//! A program sends to hosts of the Internet all the while, by old sockets and by new ones; `net`
//! counts what arrives there in clear. `VPND_RENEWALS=20` repeats each removal as often; the times
//! and counts are printed.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use socket2::{Domain, Socket, Type};

use crate::cleanup::look_at;
use crate::client::{Client, TUN};
use crate::full::{carries_one_version, check_sources, in_clear, ordinary, speak, watch};
use crate::healing::Form;
use crate::lab::{CAMPUS_V4, CAMPUS_V6, GATEWAY_V6, Lab, UPLINK, eventually};
use crate::namespace::Namespace;
use crate::ordinary::{Over, leaks, watch_for_leaks};
use crate::traffic::ping_until;

const SECOND: Duration = Duration::from_secs(1);
/// Limit for what is promised within a second, on a machine that is slow and busy.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(20);
const STRANGERS: [&str; 2] = ["203.0.113.9:9", "[2001:db8::9]:9"];

/// Everything that the tunnel has made in the kernel, but for the guard.
fn tunnel(machine: &Namespace) -> String {
    let mut all = String::new();
    for version in ["-4", "-6"] {
        all += &own_rules(machine, version).join("\n");
        let mut routes = own_routes(machine, version);
        routes.sort_unstable();
        all += &routes.join("\n");
    }
    let addresses = machine.ip(&["-o", "address", "show", "dev", TUN, "scope", "global"]);
    let mut addresses: Vec<_> = addresses.lines().collect();
    addresses.sort_unstable();
    all + &addresses.join("\n")
}

/// The kernel's own, which have the same origin, are for no marks and no users.
pub(crate) fn own_rules(machine: &Namespace, version: &str) -> Vec<String> {
    let rules = machine.ip(&[version, "rule", "show"]);
    let is_own = |line: &&str| line.contains(" fwmark ") || line.contains(" uidrange ");
    rules.lines().filter(is_own).map(str::to_owned).collect()
}

/// The routes in tunnels' tables, which have the kernel's origin.
pub(crate) fn own_routes(machine: &Namespace, version: &str) -> Vec<String> {
    let routes = machine.ip(&[version, "route", "show", "table", "all", "proto", "kernel"]);
    let is_own = |line: &&str| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "table");
        words.nth(1).and_then(|table| table.parse::<u32>().ok()).is_some_and(|table| table > 30_000)
    };
    routes.lines().filter(is_own).map(str::to_owned).collect()
}

/// The word after this one.
fn word_after<'a>(text: &'a str, word: &str) -> &'a str {
    let mut words = text.split_whitespace().skip_while(|found| *found != word);
    words.nth(1).unwrap_or_else(|| panic!("no {word} in {text}"))
}

fn remove_first_rule(machine: &Namespace, version: &str) {
    remove_rule(machine, version, &own_rules(machine, version)[0]);
}

/// Removes rules as other programs may, which have not made them.
fn remove_all_rules(machine: &Namespace) {
    for version in ["-4", "-6"] {
        remove_rules(machine, version);
    }
}

/// Removes those of one IP version.
pub(crate) fn remove_rules(machine: &Namespace, version: &str) {
    for rule in own_rules(machine, version) {
        remove_rule(machine, version, &rule);
    }
}

fn remove_rule(machine: &Namespace, version: &str, rule: &str) {
    let (priority, _) = rule.split_once(':').expect("a rule begins with its priority");
    machine.ip(&[version, "rule", "del", "priority", priority]);
}

fn flush_table(machine: &Namespace, version: &str) {
    let table = word_after(&own_rules(machine, version)[0], "lookup").to_owned();
    machine.ip(&[version, "route", "flush", "table", &table]);
}

type Removal = (&'static str, fn(&Namespace));

const REMOVALS: [Removal; 7] = [
    ("rule of IPv4", |machine| remove_first_rule(machine, "-4")),
    ("rule of IPv6", |machine| remove_first_rule(machine, "-6")),
    ("table of IPv4", |machine| flush_table(machine, "-4")),
    ("table of IPv6", |machine| flush_table(machine, "-6")),
    ("addresses", |machine| drop(machine.ip(&["address", "flush", "dev", TUN]))),
    ("link down", |machine| drop(machine.ip(&["link", "set", TUN, "down"]))),
    ("link down and up", |machine| {
        machine.ip_batch(&format!("link set {TUN} down\nlink set {TUN} up\n"));
    }),
];

/// Sends to strangers until it is over: by a connected socket, by one that is not, and by new ones.
/// Counts what was sent.
fn speak_to_strangers(machine: &Namespace, over: &AtomicBool, sent: &AtomicU64) {
    machine.within(|| {
        let strangers = STRANGERS.map(|text| text.parse::<SocketAddr>().expect("an address"));
        let any = |to: &SocketAddr| UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" });
        let sockets = strangers.map(|to| {
            let connected = any(&to).expect("a port is free");
            connected.connect(to).expect("the tunnel is up");
            (to, connected, any(&to).expect("a port is free"))
        });
        while !over.load(Ordering::Relaxed) {
            for (to, connected, open) in &sockets {
                let new = any(to).expect("a port is free");
                let results =
                    [connected.send(b"hello"), open.send_to(b"hello", to), new.send_to(b"hello", to)];
                sent.fetch_add(results.iter().filter(|sent| sent.is_ok()).count() as u64, Ordering::Relaxed);
            }
            thread::sleep(SECOND / 1000);
        }
    });
}

/// Median and the longest.
fn summary(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() - 1])
}

/// Removes it this often, and waits until it is back. The number of packets in clear.
fn renewed_after(lab: &Lab, machine: &Namespace, (name, remove): Removal, times: usize) -> u64 {
    let (before, clear) = (tunnel(machine), in_clear(lab));
    let mut taken = Vec::new();
    for _ in 0..times {
        remove(machine);
        let removed = Instant::now();
        while tunnel(machine) != before {
            assert!(
                removed.elapsed() < RECOVERY_TIMEOUT,
                "{name}:\n{}\ninstead of\n{before}",
                tunnel(machine)
            );
        }
        taken.push(removed.elapsed());
        for to in [IpAddr::from(CAMPUS_V4), CAMPUS_V6.into()] {
            ping_until(machine, to, RECOVERY_TIMEOUT);
        }
    }
    let clear = in_clear(lab) - clear;
    let (median, worst) = summary(taken);
    println!("{name}: back after {median:.1?} (worst {worst:.1?}), {clear} packets in clear, {times} times");
    clear
}

#[test]
fn what_a_tunnel_needs_is_put_back_and_a_full_one_stays_full_meanwhile() {
    let form = Form::of_environment("VPND_RENEWALS", 1);
    let Some(lab) = Lab::new(1) else { return };
    let (_providers, gateway, ann) = ordinary(&lab);
    let before = look_at(&lab, &lab.clients[0]);
    let mut client = Client::connect(&lab, 1, &ann);
    let machine = client.namespace();
    ping_until(machine, CAMPUS_V4.into(), RECOVERY_TIMEOUT);
    watch(&lab);
    watch_for_leaks(&lab, "pushed");
    let (over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| speak_to_strangers(machine, &over, &sent));
        let over = Over(&over);
        for removal in REMOVALS {
            assert_eq!(renewed_after(&lab, machine, removal, form.times), 0, "{}", removal.0);
        }
        // No rule is left until the client has noticed. What has an inner address does not leave
        // even then.
        renewed_after(&lab, machine, ("all rules", remove_all_rules), form.times);
        drop(over);
    });
    assert_eq!(leaks(&lab), 0);
    println!("{} packets were sent to strangers", sent.load(Ordering::Relaxed));
    let log = client.process().output();
    assert!(log.contains("another program removed what the tunnel needs"), "{log}");
    assert!(log.contains("several times a minute") && log.contains("networkd.conf"), "{log}");
    assert_eq!(gateway.sessions().len(), 1);
    client.interrupt();
    assert_eq!(look_at(&lab, &lab.clients[0]), before);
}

/// The client is stopped, so nothing is put back. What is bound to an interface goes around the
/// tunnel as it did before.
#[test]
fn until_it_is_put_back_a_full_tunnel_holds_back_everything_else() {
    let Some(lab) = Lab::new(1) else { return };
    let (_providers, _gateway, ann) = ordinary(&lab);
    let mut client = Client::connect(&lab, 1, &ann);
    let machine = client.namespace();
    ping_until(machine, CAMPUS_V4.into(), RECOVERY_TIMEOUT);
    let before = tunnel(machine);
    // An answer, or a program on this machine that takes packets for a stranger.
    let listener = machine.within(|| UdpSocket::bind("0.0.0.0:7")).expect("the port is free");
    listener.set_nonblocking(true).expect("a socket");
    watch(&lab);
    for (name, remove) in REMOVALS {
        client.process().signal(Signal::STOP);
        remove(machine);
        assert_ne!(tunnel(machine), before, "{name}");
        speak(machine);
        assert_eq!(in_clear(&lab), 0, "{name}");
        assert!(listener.recv(&mut [0; 16]).is_err(), "{name}: taken for one of this machine");
        machine.within(|| {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
            socket.bind_device(Some(UPLINK.as_bytes())).expect("root may");
            let stranger: SocketAddr = STRANGERS[0].parse().expect("an address");
            socket.send_to(b"hello", &stranger.into()).expect("it goes around the tunnel");
        });
        eventually(&format!("{name}: what is bound has left"), RECOVERY_TIMEOUT, || {
            (in_clear(&lab) > 0).then_some(())
        });
        lab.net.nft("delete table inet watch\n");
        watch(&lab);
        client.process().signal(Signal::CONT);
        eventually(&format!("{name}: it is back"), RECOVERY_TIMEOUT, || {
            (tunnel(machine) == before).then_some(())
        });
        ping_until(machine, CAMPUS_V4.into(), RECOVERY_TIMEOUT);
    }
}

/// systemd-networkd removes routes of foreign origins that lead to no link, from 256 on. The client
/// is stopped, so nothing is put back.
#[test]
fn what_refuses_ipv6_is_not_taken_for_another_programs() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, mut client) = carries_one_version(&lab, "pool_v4", &format!("[{GATEWAY_V6}]"));
    let machine = client.namespace();
    ping_until(machine, CAMPUS_V4.into(), RECOVERY_TIMEOUT);
    watch(&lab);
    client.process().signal_all(Signal::STOP);
    machine.ip(&["-6", "route", "flush", "table", "all", "type", "unreachable", "proto", "118"]);
    speak(machine);
    assert_eq!(in_clear(&lab), 0);
    client.process().signal_all(Signal::CONT);
    ping_until(machine, CAMPUS_V4.into(), RECOVERY_TIMEOUT);
    client.interrupt();
}

/// A route of another program in the tunnel's table leads around it, or stands in the place of the
/// tunnel's.
#[test]
fn a_routing_table_with_foreign_routes_is_left_alone() {
    let Some(lab) = Lab::new(1) else { return };
    let (_providers, _gateway, ann) = ordinary(&lab);
    let mut client = Client::connect(&lab, 1, &ann);
    let machine = client.namespace();
    ping_until(machine, CAMPUS_V4.into(), RECOVERY_TIMEOUT);
    for route in ["9.9.9.9", "default"] {
        let table = word_after(&own_rules(machine, "-4")[0], "lookup").to_owned();
        let foreign = ["route", "replace", route, "via", "198.18.1.1", "dev", UPLINK, "table", &table];
        machine.ip(&foreign);
        eventually("another table is used", RECOVERY_TIMEOUT, || {
            let way = machine.ip(&["route", "get", "9.9.9.9"]);
            way.contains(TUN).then_some(())
        });
        assert!(!own_rules(machine, "-4").iter().any(|rule| rule.contains(&format!("lookup {table} "))));
        assert!(machine.ip(&["route", "show", "table", &table]).contains("198.18.1.1"), "it is theirs");
        ping_until(machine, CAMPUS_V4.into(), RECOVERY_TIMEOUT);
    }
    client.interrupt();
}

/// The firewall of a machine, without the order of its tables and chains.
fn rules(client: &Client<'_>) -> Vec<String> {
    let listed = client.firewall();
    let mut lines: Vec<_> = listed.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn a_guard_that_another_program_removes_or_changes_is_put_back() {
    let form = Form::of_environment("VPND_RENEWALS", 1);
    let Some(lab) = Lab::new(1) else { return };
    // With it there are tables of both families.
    check_sources(&lab.clients[0], "1");
    let (_providers, _gateway, ann) = ordinary(&lab);
    let before = look_at(&lab, &lab.clients[0]);
    let mut client = Client::connect(&lab, 1, &ann);
    let machine = client.namespace();
    ping_until(machine, CAMPUS_V4.into(), RECOVERY_TIMEOUT);
    // The first comparison takes the tables as they are, and applies them again until they stay the
    // same.
    std::thread::sleep(2 * SECOND);
    let guarded = rules(&client);
    assert!(guarded.iter().any(|line| line.contains("table arp vpndguard_")), "{guarded:?}");
    for change in [
        "flush ruleset",
        "delete table inet vpndguard_vpn0",
        "delete table arp vpndguard_vpn0",
        "flush chain inet vpndguard_vpn0 arrivals",
        "insert rule inet vpndguard_vpn0 departures accept",
        "add chain inet vpndguard_vpn0 another",
    ] {
        let mut taken = Vec::new();
        for _ in 0..form.times {
            machine.nft(&format!("{change}\n"));
            let changed = Instant::now();
            while rules(&client) != guarded {
                assert!(changed.elapsed() < RECOVERY_TIMEOUT, "{change}:\n{}", client.firewall());
            }
            taken.push(changed.elapsed());
        }
        let (median, worst) = summary(taken);
        println!("{change}: back after {median:.1?} (worst {worst:.1?}), {} times", form.times);
    }
    eventually("the log names the program", RECOVERY_TIMEOUT, || {
        client.process().output().contains("guard of the addresses on vpn0 (by nft)").then_some(())
    });
    ping_until(machine, CAMPUS_V4.into(), RECOVERY_TIMEOUT);
    client.interrupt();
    assert_eq!(look_at(&lab, machine), before);
}
