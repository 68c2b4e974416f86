//! Behaviour: a network without IPv4 whose router translates (NAT64) carries a client that knows
//! its gateway by an IPv4 address.
//!
//! ```text
//! client 1 -- IPv6 alone -- net, with tayga -- IPv4 -- gateway
//! ```
//! The name server of `net` shows the prefix in its answer for `ipv4only.arpa` (RFC 7050).

use std::fs;
use std::time::Duration;

use crate::client::Client;
use crate::gateway::{Gateway, edit_toml, must, strings};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, GATEWAY_V4, Lab, UPLINK, eventually};
use crate::names;
use crate::process::{self, Process};
use crate::relay::PORT;
use crate::traffic::ping_until;

const SECOND: Duration = Duration::from_secs(1);
const NAME_SERVER: &str = "fd18:1::1";

/// A translator between the prefix and IPv4.
fn tayga(lab: &Lab) -> Process {
    let config = lab.path("tayga.conf");
    let directory = lab.path("tayga");
    fs::create_dir(&directory).expect("the laboratory is ours");
    let text = format!(
        "tun-device nat64\nipv4-addr 192.168.255.1\nipv6-addr fd18:64::1\nprefix fd64:64::/96\ndynamic-pool 192.168.255.0/24\n\
         data-dir {}\n",
        directory.display()
    );
    fs::write(&config, text).expect("the laboratory is ours");
    let command = |option: &str| {
        let mut command = process::command(lab, &lab.net, "tayga");
        command.arg("--config").arg(&config).arg(option);
        command
    };
    must(process::run(command("--mktun")));
    lab.net.ip_batch(
        "link set nat64 up\nroute add 192.168.255.0/24 dev nat64\nroute add fd64:64::/96 dev nat64\n",
    );
    Process::start(lab, "tayga", command("--nodetach"))
}

#[test]
fn a_gateways_ipv4_address_is_reached_from_a_network_without_ipv4() {
    let Some(lab) = Lab::new(1) else { return };
    let machine = &lab.clients[0];
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    edit_toml(&ann.profile, |profile| {
        profile["server"]["addresses"] = strings(&[&format!("{GATEWAY_V4}:{PORT}")]);
    });
    gateway.start();
    machine.ip(&["-4", "address", "flush", "dev", UPLINK]);
    fs::write(process::etc(&lab, machine).join("resolv.conf"), format!("nameserver {NAME_SERVER}\n"))
        .expect("the laboratory is ours");
    let none = names::name_server_of(
        &lab,
        &lab.net,
        &[NAME_SERVER],
        "ipv4only.arpa",
        &["192.0.0.170", "192.0.0.171"],
    );
    let client = Client::trying(&lab, 1, &ann, "If it has IPv6 alone, name the gateway in the profile");
    drop(none);

    let mut translator = tayga(&lab);
    let prefix = ["192.0.0.170", "192.0.0.171", "fd64:64::192.0.0.170", "fd64:64::192.0.0.171"];
    let _name_server = names::name_server_of(&lab, &lab.net, &[NAME_SERVER], "ipv4only.arpa", &prefix);
    for campus in [CAMPUS_V4.into(), CAMPUS_V6.into()] {
        ping_until(machine, campus, 60 * SECOND);
    }
    translator.assert_running();
    let from = |gateway: &Gateway<'_>| gateway.sessions()[0]["outer"].to_string();
    assert!(from(&gateway).contains("192.168.255."), "{}", from(&gateway));

    // It moves to a network with IPv4, and back.
    machine.ip_batch(&format!("address add 198.18.1.2/24 dev {UPLINK}\nroute add default via 198.18.1.1\n"));
    drop(translator);
    ping_until(machine, CAMPUS_V4.into(), 60 * SECOND);
    eventually("it came by IPv4", 60 * SECOND, || from(&gateway).contains("198.18.1.2").then_some(()));
    assert_eq!(gateway.sessions().len(), 1);
    drop(client);
}
