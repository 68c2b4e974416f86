//! Behaviour: the client leaves routes, rules, addresses, DNS and firewall of its machine as it
//! found them, however it ends.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::client::{Client, TUN, cleanup};
use crate::full::{check_sources, looks_back_with_marks};
use crate::gateway::{Gateway, must, strings};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, eventually};
use crate::namespace::Namespace;
use crate::process::{self, RESOLV_CONF};
use crate::renewal::own_rules;
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);

/// Everything of a machine that a VPN may touch, as text.
#[derive(Debug, PartialEq)]
pub(crate) struct Machine {
    links: String,
    routes: Vec<String>,
    rules: Vec<String>,
    firewall: String,
    resolv_conf: String,
}

fn look(lab: &Lab, number: usize) -> Machine {
    look_at(lab, &lab.clients[number - 1])
}

/// The machine in a box as it is now.
pub(crate) fn look_at(lab: &Lab, namespace: &Namespace) -> Machine {
    let sorted = |text: String| {
        let mut lines: Vec<_> = text.lines().map(|line| line.trim().to_owned()).collect();
        lines.sort();
        lines
    };
    let families = |what: &[&str]| {
        let v6 = [&["-6"], what].concat();
        sorted(namespace.ip(what) + &namespace.ip(&v6))
    };
    let mut nft = process::command(lab, namespace, "nft");
    nft.args(["list", "ruleset"]);
    Machine {
        links: namespace.ip(&["-brief", "address", "show"]),
        routes: families(&["route", "show", "table", "all"]),
        rules: families(&["rule", "show"]),
        firewall: process::text(&must(process::run(nft))),
        resolv_conf: fs::read_to_string(process::etc(lab, namespace).join("resolv.conf"))
            .expect("it is there"),
    }
}

/// A gateway that pushes DNS too, and a client that has changed its machine.
fn changed<'l>(lab: &'l Lab, gateway: &mut Gateway<'l>) -> (Machine, Client<'l>) {
    gateway.configure("push.dns", strings(&["10.200.0.53"]));
    gateway.configure("push.search", strings(&["campus.example"]));
    let ann = gateway.add_user("ann");
    gateway.start();
    let before = look(lab, 1);
    assert_eq!(before.resolv_conf, RESOLV_CONF);
    let client = Client::connect(lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    eventually("DNS is that of the gateway", 5 * SECOND, || {
        let now = look(lab, 1).resolv_conf;
        (now.contains("10.200.0.53") && now.contains("campus.example")).then_some(())
    });
    let during = look(lab, 1);
    assert_ne!(during.routes, before.routes);
    (before, client)
}

#[test]
fn after_an_orderly_end() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let Some(lab) = Lab::new(1) else { return };
        let mut gateway = Gateway::init(&lab);
        let (before, mut client) = changed(&lab, &mut gateway);
        client.process().signal(signal);
        client.process().wait(10 * SECOND);
        assert_eq!(look(&lab, 1), before);
    }
}

/// Signals count while thousands of routes are being set.
#[test]
fn after_a_signal_amid_many_changes() {
    let Some(lab) = Lab::new(1) else { return };
    let before = look(&lab, 1);
    let mut gateway = Gateway::init(&lab);
    let routes: Vec<String> = (0..2_000).map(|n| format!("10.{}.{}.0/24", 100 + n / 256, n % 256)).collect();
    gateway.configure("push.routes", strings(&routes.iter().map(String::as_str).collect::<Vec<_>>()));
    let ann = gateway.add_user("ann");
    gateway.start();
    let client = Client::connect(&lab, 1, &ann);
    let mut process = client.into_process();
    process.signal(Signal::TERM);
    let asked = Instant::now();
    let status = process.wait(60 * SECOND);
    println!("ended {:?} after the signal", asked.elapsed());
    assert!(status.success(), "{status}:\n{}", process.output());
    assert!(process.output().contains("reason=\"SIGTERM\""), "{}", process.output());
    assert_eq!(look(&lab, 1), before);
}

#[test]
fn after_kill_9_and_cleanup() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let (before, mut client) = changed(&lab, &mut gateway);
    client.kill();
    assert_ne!(look(&lab, 1), before, "nothing else has cleaned up, so what follows means something");
    must(cleanup(&lab, 1));
    assert_eq!(look(&lab, 1), before);
    // Twice does no harm, and a machine that was never connected has nothing to undo.
    must(cleanup(&lab, 1));
    assert_eq!(look(&lab, 1), before);
}

/// Another program makes a device of the tunnel's name before anything is cleaned up.
#[test]
fn after_kill_9_beside_a_foreign_device_of_the_same_name() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let (before, mut client) = changed(&lab, &mut gateway);
    let (machine, inner) = (client.namespace(), client.v4());
    client.kill();
    eventually("the tunnel's device goes with its processes", 10 * SECOND, || {
        (!machine.ip(&["-brief", "link", "show"]).contains(TUN)).then_some(())
    });
    machine.ip_batch(&format!(
        "tuntap add {TUN} mode tun\n\
         link set {TUN} up\n\
         addr add {inner}/32 dev {TUN}\n\
         route add 10.78.0.0/16 dev {TUN}\n"
    ));
    let shown = || machine.ip(&["address", "show", "dev", TUN]) + &machine.ip(&["route", "show", "dev", TUN]);
    let foreign = shown();
    must(cleanup(&lab, 1));
    assert_eq!(shown(), foreign);
    assert!(own_rules(machine, "-4").is_empty(), "the tunnel's own are gone");
    machine.ip(&["link", "del", TUN]);
    assert_eq!(look(&lab, 1), before);
}

#[test]
fn after_kill_9_and_another_start() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let (before, mut client) = changed(&lab, &mut gateway);
    client.kill();
    let login = gateway.add_user("bob");
    let mut client = Client::connect(&lab, 1, &login);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    client.interrupt();
    assert_eq!(look(&lab, 1), before);
}

/// Another VPN that has come meanwhile has rules for marks, as wg-quick's has.
#[test]
fn marks_that_another_vpn_needs_by_now_count_for_the_way_back() {
    let Some(lab) = Lab::new(1) else { return };
    let machine = &lab.clients[0];
    check_sources(machine, "1");
    let (_gateway, ann) = Gateway::for_ann(&lab);
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(machine, CAMPUS_V4.into(), 10 * SECOND);
    assert_eq!(looks_back_with_marks(machine), "1");
    machine.ip(&["rule", "add", "not", "fwmark", "0xca6c", "lookup", "51820", "priority", "30000"]);
    client.interrupt();
    assert_eq!(looks_back_with_marks(machine), "1");
}

#[test]
fn the_route_to_the_gateway_does_not_loop() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    // The gateway's own outer address lies in what it pushes.
    gateway.configure("push.routes", strings(&["198.18.0.0/15", "10.200.0.0/24"]));
    let ann = gateway.add_user("ann");
    gateway.start();
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    ping_until(client.namespace(), GATEWAY_V4.into(), 5 * SECOND);
    let route = client.namespace().ip(&["route", "get", "10.200.0.2"]);
    assert!(route.contains(TUN), "the campus is reached through the tunnel: {route}");
    std::thread::sleep(2 * SECOND);
    assert!(ping(client.namespace(), CAMPUS_V4.into(), 56, SECOND), "and it lasts");
}
