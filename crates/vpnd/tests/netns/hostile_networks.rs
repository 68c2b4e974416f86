//! Behaviour: a local network that pretends to be others gets nothing of a tunnel: neither by the
//! addresses that it hands out, nor by prefixes of a router advertisement, nor by what its name
//! server says of the gateway.
//!
//! `net` counts what arrives of client 1 in clear. Each attack is made again without the tunnel,
//! and must then succeed. Routes that a local network hands out are in [`full`].

use std::net::Ipv6Addr;
use std::time::Duration;

use rustix::process::Signal;

use crate::client::{self, Client, TUN};
use crate::full::{advertise_options, in_clear, ordinary, speak, watch};
use crate::gateway::Gateway;
use crate::lab::{CAMPUS_V4, CAMPUS_V6, GATEWAY_V4, Lab, UPLINK, eventually};
use crate::names::{self, PROVIDERS};
use crate::namespace::Namespace;
use crate::process::Process;
use crate::relay::PORT;
use crate::reload::counter;
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(20);
/// Hosts of the networks that the local one pretends to be.
const PRETENDED: [&str; 3] = ["8.8.8.8", "9.9.9.9", "2001:db8::9"];

/// The machine gets addresses of other people's networks: one as wide as 8.0.0.0/8, a plausible
/// one, and the campus's own; the hosts that are looked for there answer.
fn hand_out_addresses(lab: &Lab) {
    let port = Lab::port(1);
    lab.net.ip_batch(&format!(
        "addr add 8.8.8.8/8 dev {port}\naddr add 9.9.9.9/24 dev {port}\naddr add {CAMPUS_V4}/24 dev {port}\n"
    ));
    lab.clients[0].ip_batch(&format!(
        "addr add 8.0.0.77/8 dev {UPLINK}\naddr add 9.9.9.77/24 dev {UPLINK}\naddr add 10.200.0.77/24 dev {UPLINK}\n"
    ));
}

/// The machine's kernel takes these networks for its own link, and addresses of them.
fn advertise_prefixes(lab: &Lab, machine: &Namespace) {
    let option = |network: &str| {
        let network: Ipv6Addr = network.parse().expect("an address");
        // Prefix information: four times eight bytes, /64, on the link and for addresses, two
        // lifetimes of 1,800 s, nothing.
        [&[3, 4, 64, 0xC0, 0, 0, 7, 8, 0, 0, 7, 8, 0, 0, 0, 0][..], &network.octets()].concat()
    };
    let options = ["fd20::", "2001:db8::"].map(option).concat();
    eventually("the machine's kernel takes the prefixes", TIMEOUT, || {
        advertise_options(lab, &options);
        let routes = machine.ip(&["-6", "route", "show", "dev", UPLINK]);
        (routes.contains("fd20::/64") && routes.contains("2001:db8::/64")).then_some(())
    });
}

fn is_by_the_tunnel(machine: &Namespace, host: &str) -> bool {
    machine.ip(&["route", "get", host]).contains(&format!("dev {TUN} "))
}

fn all_by_the_tunnel(machine: &Namespace, hosts: &[&str]) {
    for host in hosts {
        assert!(is_by_the_tunnel(machine, host), "{host}: {}", machine.ip(&["route", "get", host]));
    }
}

#[test]
fn a_network_that_pretends_to_be_others_gets_nothing_of_a_full_tunnel() {
    let Some(lab) = Lab::new(1) else { return };
    let (_providers, _gateway, ann) = ordinary(&lab);
    let mut client = Client::connect(&lab, 1, &ann);
    let machine = client.namespace();
    ping_until(machine, CAMPUS_V4.into(), TIMEOUT);
    watch(&lab);
    hand_out_addresses(&lab);
    advertise_prefixes(&lab, machine);
    for _ in 0..5 {
        speak(machine);
        ping(machine, "8.8.8.8".parse().expect("an address"), 56, SECOND / 20);
    }
    assert_eq!(in_clear(&lab), 0);
    ping_until(machine, CAMPUS_V4.into(), TIMEOUT);
    ping_until(machine, CAMPUS_V6.into(), TIMEOUT);
    all_by_the_tunnel(machine, &[&PRETENDED[..], &["10.200.0.2", "fd20::2"]].concat());
    assert_eq!(in_clear(&lab), 0, "nor later");
    client.interrupt();
    speak(machine);
    assert!(in_clear(&lab) > 0, "without the tunnel it is a leak");
}

/// The campus alone is the tunnel's; the machine is in that network before it connects.
#[test]
fn a_network_that_pretends_to_be_the_campus_gets_nothing_of_a_split_tunnel() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, ann) = Gateway::for_ann(&lab);
    let machine = &lab.clients[0];
    hand_out_addresses(&lab);
    advertise_prefixes(&lab, machine);
    let mut client = Client::connect(&lab, 1, &ann);
    // Until the tunnel has the routes the local network answers for the campus.
    eventually("the campus is the tunnel's", TIMEOUT, || {
        ["10.200.0.2", "fd20::2"].iter().all(|host| is_by_the_tunnel(machine, host)).then_some(())
    });
    watch(&lab);
    for _ in 0..5 {
        assert!(ping(machine, CAMPUS_V4.into(), 56, TIMEOUT) && ping(machine, CAMPUS_V6.into(), 56, TIMEOUT));
    }
    all_by_the_tunnel(machine, &["10.200.0.2", "fd20::2"]);
    assert_eq!(in_clear(&lab), 0);
    client.interrupt();
    ping(machine, CAMPUS_V4.into(), 56, SECOND / 5);
    assert!(in_clear(&lab) > 0, "without the tunnel it is a leak");
}

/// The address is tried by the client, and by nothing else of the machine.
#[test]
fn a_spoofed_answer_for_the_gateways_name_opens_no_way_out() {
    const SPOOFED: &str = "9.9.9.9";
    let Some(lab) = Lab::new(1) else { return };
    let machine = &lab.clients[0];
    let providers = names::name_server(&lab, &lab.net, PROVIDERS, SPOOFED);
    let (_gateway, ann) = names::gateway(&lab, "all");
    // A host is there, which answers nothing.
    lab.net.ip_batch(&format!("addr add {SPOOFED}/32 dev {}\n", Lab::port(1)));
    watch(&lab);
    lab.net.nft(&format!(
        "insert rule inet watch in ip daddr {SPOOFED} udp dport {PORT} accept\n\
         table inet spoofed {{\n\
           counter tried {{ }}\n\
           chain in {{ type filter hook prerouting priority -400; ip daddr {SPOOFED} udp dport {PORT} counter name tried; }}\n\
         }}\n"
    ));
    let mut client = Process::start(&lab, "client1", client::command(&lab, 1, &ann, &["--kill-switch"]));
    eventually("the spoofed address is tried", TIMEOUT, || {
        client.assert_running();
        (counter(&lab, &lab.net, "spoofed", "tried") > 2).then_some(())
    });
    speak(machine);
    assert_eq!(in_clear(&lab), 0, "while the spoofed host is tried");
    drop(providers);
    let servers = [SPOOFED, &GATEWAY_V4.to_string()];
    let _providers = names::name_server_at(&lab, &lab.net, &[PROVIDERS], &servers);
    ping_until(machine, CAMPUS_V4.into(), 3 * TIMEOUT);
    speak(machine);
    all_by_the_tunnel(machine, &[SPOOFED]);
    assert_eq!(in_clear(&lab), 0, "with the tunnel");
    client.signal(Signal::INT);
    assert!(client.wait(TIMEOUT).success(), "{}", client.output());
    speak(machine);
    assert!(in_clear(&lab) > 0, "without the tunnel it is a leak");
}
