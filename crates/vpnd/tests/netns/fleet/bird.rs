//! Behaviour: the campus's router follows a client by BGP, from BIRD at the gateways to BIRD at the
//! router, and prefers the gateway that has the session while both announce it.
//!
//! The gateways' configuration is the one of docs/FLEET.md.

use std::fs;

use super::*;

const GUIDE: &str = include_str!("../../../../../docs/FLEET.md");
const PROGRAM: &str = "bird";

/// The configuration of a gateway in the guide, for the gateway whose networks have this number.
fn of_gateway(number: u8) -> String {
    let (_, from) = GUIDE.split_once("```\nrouter id").expect("the guide has the configuration");
    let (text, _) = from.split_once("```").expect("it has an end");
    format!("router id{text}")
        .replace("192.0.2.", &format!("10.20{number}.0."))
        .replace("2001:db8::", &format!("fd2{number}::"))
}

/// The configuration of the campus's router, for this many gateways.
fn of_router(gateways: u8) -> String {
    let mut text = "router id 10.200.0.2;\nprotocol device { }\n".to_owned();
    for family in ["ipv4", "ipv6"] {
        text +=
            &format!("protocol kernel {{ {family} {{ import none; export where source = RTS_BGP; }}; }}\n");
    }
    for number in 0..gateways {
        for (family, network) in [("ipv4", format!("10.20{number}.0.")), ("ipv6", format!("fd2{number}::"))] {
            text += &format!(
                "protocol bgp {{ local {network}2 as 65000; neighbor {network}1 as 65001;\n\
                 {family} {{ import all; export none; }}; }}\n"
            );
        }
    }
    text
}

/// BIRD with this configuration; sessions are tried again sooner than by default.
fn start(lab: &Lab, place: &Namespace, name: &str, configuration: &str) -> Process {
    let soon = " connect delay time 1; connect retry time 1;";
    let lines = configuration.lines().map(|line| {
        let of_session = line.contains("neighbor ") && line.trim_end().ends_with(';');
        format!("{line}{}\n", if of_session { soon } else { "" })
    });
    let file = lab.path(format!("{name}.conf"));
    fs::write(&file, lines.collect::<String>()).unwrap();
    let mut command = process::command(lab, place, PROGRAM);
    command.args(["-f", "-d", "-c"]).arg(&file).arg("-s").arg(lab.path(format!("{name}.sock")));
    Process::start(lab, name, command)
}

/// BIRD at the campus's router and at the gateways, of which this many are linked to it.
pub(super) fn start_all(lab: &Lab, gateways: u8) -> Vec<Process> {
    lab.campus.ip_batch(&format!("route del default via fd20::1 dev {UPLINK}\n"));
    let mut started = vec![start(lab, &lab.campus, "router", &of_router(gateways))];
    let places = std::iter::once(&lab.gateway).chain(&lab.clients[1..]);
    for ((number, place), interface) in (0..gateways).zip(places).zip([UPLINK, "second0", "third0"]) {
        if number > 0 {
            place.ip_batch(&format!(
                "addr add fd2{number}::1/64 dev campus{number}\n\
                 route add fd20::/64 via fd2{number}::2\n"
            ));
            lab.campus.ip_batch(&format!("addr add fd2{number}::2/64 dev {interface}\n"));
        }
        started.push(start(lab, place, &format!("bird{}", number + 1), &of_gateway(number)));
    }
    started
}

/// The gateway of the router's route to this address.
fn next_hop(lab: &Lab, to: IpAddr) -> Option<String> {
    let family = if to.is_ipv4() { "-4" } else { "-6" };
    let listed = lab.campus.ip(&["-j", family, "route", "show", &to.to_string()]);
    let routes: Json = serde_json::from_str(&listed).unwrap_or_default();
    Some(routes[0]["gateway"].as_str()?.to_owned())
}

/// Waits until the router's routes to the client lead to the gateway of this number.
fn leads_to(lab: &Lab, addresses: &[IpAddr], number: u8) -> Duration {
    let began = Instant::now();
    let expected = |to: &IpAddr| {
        let prefix = if to.is_ipv4() { format!("10.20{number}.0.1") } else { format!("fd2{number}::1") };
        next_hop(lab, *to).as_deref() == Some(prefix.as_str())
    };
    eventually("the router follows", LIMIT, || addresses.iter().all(expected).then_some(()));
    began.elapsed()
}

#[test]
fn the_campus_router_follows_a_client_by_bgp() {
    let Some(lab) = Lab::new(2) else { return };
    let Some(mut fleet) = Fleet::new(&lab) else { return };
    let _routers = start_all(&lab, 2);
    fleet.start();
    let client = Client::connect(&lab, 1, &fleet.ann);
    eventually("the first gateway has the session", LIMIT, at(&fleet.first));
    let addresses: Vec<IpAddr> = client.addresses().into_iter().collect();
    assert!(addresses.iter().any(IpAddr::is_ipv4) && addresses.iter().any(IpAddr::is_ipv6), "{addresses:?}");
    leads_to(&lab, &addresses, 0);
    let reaches_campus = || {
        for campus in [CAMPUS_V4.into(), CAMPUS_V6.into()] {
            ping_until(client.namespace(), campus, LIMIT);
        }
    };
    reaches_campus();

    let Fleet { first, second, .. } = &mut fleet;
    let lost = echoed(&lab, &client, || {
        drain(first, &["--no-wait"]);
        eventually("the second gateway has the session", LIMIT, at(second));
        println!("drained: the router follows after {:.2?}", leads_to(&lab, &addresses, 1));
    });
    assert!(lost.0 + lost.1 <= MAX_LOST, "{lost:?}");
    reaches_campus();
    drain(first, &["--cancel"]);

    // A gateway whose processes stand still withdraws nothing.
    second.process().signal_all(Signal::STOP);
    eventually("the first gateway has the session", LIMIT, || {
        // A client notices silence only while it sends.
        ping(client.namespace(), CAMPUS_V4.into(), 56, SECOND / 10);
        at(first)()
    });
    println!("paused: the router follows after {:.2?}", leads_to(&lab, &addresses, 0));
    assert_eq!(announced(&lab, true).len(), addresses.len(), "both announce the client");
    reaches_campus();
    assert_eq!(leads_to(&lab, &addresses, 0).as_secs(), 0, "it stays so");
    second.process().signal_all(Signal::CONT);
    eventually("the second one withdraws", LIMIT, || announced(&lab, true).is_empty().then_some(()));
    leads_to(&lab, &addresses, 0);
    reaches_campus();
    first.process().signal_all(Signal::KILL);
    let killed = Instant::now();
    eventually("the second gateway has the session", LIMIT, || {
        ping(client.namespace(), CAMPUS_V4.into(), 56, SECOND / 10);
        at(second)()
    });
    leads_to(&lab, &addresses, 1);
    reaches_campus();
    println!("killed: the client and the router are at the other one after {:.2?}", killed.elapsed());
}
