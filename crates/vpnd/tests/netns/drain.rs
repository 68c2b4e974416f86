//! Behaviour: a gateway that is drained lets no client in; its clients move to another gateway of
//! their profile while their traffic goes on, or stay until the time that the administrator has
//! set.
//!
//! The second gateway is in the place of client 2. Behind both is the campus.

use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use serde_json::Value as Json;

use crate::client::{self, Client};
use crate::gateway::{Gateway, Login, edit_toml, must};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::process::{self, Process};
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);
/// Limit for whatever a test waits for; it goes on as soon as that is there.
const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const SECOND_GATEWAY: &str = "198.18.2.2";

/// A second gateway with the certificate of the first, and the campus's address behind it.
pub(crate) fn second_gateway<'l>(lab: &'l Lab, first: &Gateway<'l>) -> Gateway<'l> {
    let place = &lab.clients[1];
    place.ip_batch(&format!("addr add {CAMPUS_V4}/32 dev lo\n"));
    let second = Gateway::init_elsewhere(lab, "second", place, &[SECOND_GATEWAY]);
    for file in ["server.pem", "server-key.pem", "ca.pem", "ca-key.pem"] {
        let bytes = fs::read(first.file(file)).expect("vpnd init has made it");
        fs::write(second.file(file), bytes).expect("the directory is ours");
    }
    second.configure("tunnel.pool_v4", "10.87.0.0/16");
    second.configure("tunnel.pool_v6", "fd87::/64");
    second
}

/// Adds an address to those of a profile, as its last.
pub(crate) fn add_address(login: &Login, address: &str) {
    edit_toml(&login.profile, |profile| {
        let addresses = profile["server"]["addresses"].as_array_mut().expect("a list");
        addresses.push(format!("{address}:4433").into());
    });
}

pub(crate) fn drain(gateway: &Gateway<'_>, arguments: &[&str]) -> String {
    let words: Vec<&str> = ["drain"].iter().chain(arguments).copied().collect();
    process::text(&must(gateway.ask(&words)))
}

fn drain_state(gateway: &Gateway<'_>) -> Json {
    gateway.status()["drain"].clone()
}

/// Whether the address is of the second gateway's pool.
fn is_of_the_second(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V4(v4) if v4.octets()[..2] == [10, 87])
}

/// Packets for the campus that left client 1's machine in clear.
fn in_clear(lab: &Lab) -> u64 {
    let mut command = process::command(lab, &lab.net, "nft");
    command.args(["-j", "list", "counter", "ip", "leak", "clear"]);
    let listed: Json = serde_json::from_slice(&must(process::run(command)).stdout).expect("JSON");
    let entries = listed["nftables"].as_array().expect("a list");
    let counter = entries.iter().find_map(|entry| entry["counter"]["packets"].as_u64());
    counter.expect("the counter is listed")
}

#[test]
fn a_client_with_a_second_gateway_moves_there_and_nothing_leaves_in_clear() {
    let Some(lab) = Lab::new(2) else { return };
    lab.net.nft(&format!(
        "add table ip leak\n\
         add counter ip leak clear\n\
         add chain ip leak in {{ type filter hook prerouting priority raw; }}\n\
         add rule ip leak in ip daddr {CAMPUS_V4} counter name clear\n"
    ));
    let mut first = Gateway::init(&lab);
    let mut second = second_gateway(&lab, &first);
    // The user is known at both, with one password and one profile.
    fs::remove_file(second.add_user("ann").profile).expect("it was just made");
    let ann = first.add_user("ann");
    add_address(&ann, SECOND_GATEWAY);
    first.start();
    second.start();
    let mut one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);
    assert!(!is_of_the_second(&one.v4()), "the first gateway of the profile is the first to be tried");
    // Before there was a tunnel, nothing kept packets from leaving.
    let before = in_clear(&lab);

    drain(&first, &["--within", "2h", "--no-wait"]);
    eventually("the client is at the second gateway", LIMIT, || {
        ping(one.namespace(), CAMPUS_V4.into(), 56, SECOND / 10);
        one.addresses().iter().any(is_of_the_second).then_some(())
    });
    ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);
    eventually("the first gateway is empty", LIMIT, || (drain_state(&first)["over"] == true).then_some(()));
    assert!(first.sessions().is_empty(), "the client has ended its session there");
    assert_eq!(second.sessions().len(), 1);
    let output = one.process().output();
    assert!(output.contains("looking for another one of the profile"), "{output}");
    // Until the new session is granted, the old one carries packets.
    let (earlier, _) = output.split_once("ipv4=10.87.").expect("the tunnel of the second gateway is set up");
    assert!(!earlier.contains("is interrupted"), "{output}");
    assert_eq!(in_clear(&lab), before);
    // The counter counts: what is sent past the tunnel is in clear.
    lab.clients[0].ip_batch(&format!("route add {CAMPUS_V4}/32 via 198.18.1.1 dev up0 table main\n"));
    one.interrupt();
    ping(&lab.clients[0], CAMPUS_V4.into(), 56, SECOND / 10);
    assert!(in_clear(&lab) > before);
}

#[test]
fn clients_of_a_single_drained_gateway_stay_until_the_deadline() {
    let Some(lab) = Lab::new(2) else { return };
    let (mut gateway, ann) = Gateway::for_ann(&lab);
    let mut one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);
    let inner = one.v4();

    drain(&gateway, &["--no-wait"]);
    assert_eq!(
        (&drain_state(&gateway)["in_use"], &drain_state(&gateway)["over"]),
        (&1.into(), &false.into())
    );
    // Another client is refused, and does not give up.
    let mut two = Process::start(&lab, "two", client::command(&lab, 2, &ann, &[]));
    eventually("a login is refused", LIMIT, || {
        two.assert_running();
        two.output().contains("takes no new sessions now").then_some(())
    });
    assert!(gateway.status()["counters"]["logins"]["draining"].as_u64() >= Some(1));
    assert!(gateway.process().output().contains("reason=\"drain\""));
    ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);

    // Another time replaces the first.
    let shown = drain(&gateway, &["--within", "1s"]);
    assert!(shown.contains("1 session in use yet") && shown.contains("no client is connected"), "{shown}");
    assert!(!ping(one.namespace(), CAMPUS_V4.into(), 56, SECOND));
    one.process().assert_running();

    drain(&gateway, &["--cancel"]);
    assert_eq!(drain_state(&gateway), Json::Null);
    ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);
    assert_eq!(one.v4(), inner, "it goes on with the session that it had");
    eventually("the other one is let in", LIMIT, || (gateway.sessions().len() == 2).then_some(()));
}

#[test]
fn a_drained_gateway_is_stopped_if_that_is_wanted() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = Gateway::for_ann(&lab);
    let mut one = Client::connect(&lab, 1, &ann);
    let shown = drain(&gateway, &["--within", "0s", "--stop"]);
    assert!(shown.contains("the gateway stops"), "{shown}");
    let status = gateway.process().wait(LIMIT);
    assert!(status.success(), "{status}");
    one.process().assert_running();
    gateway.start();
    ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);
}
