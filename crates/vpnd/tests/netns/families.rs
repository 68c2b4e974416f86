//! Behaviour: a machine whose network changes between IPv4 and IPv6 finds its gateway at its other
//! address, and a gateway that has moved to the other protocol version meanwhile by its name.
//!
//! The ordinary installation: a name, pushed DNS servers, a full tunnel; the name server is reached
//! by either version. The long form is `./x heal`: `VPND_HEAL_FAMILIES` says how many changes each
//! test makes.

use std::fs;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::gateway::{Gateway, Login};
use crate::healing::{Form, percentile, report, until_answered};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, GATEWAY_V6, Lab, UPLINK, eventually};
use crate::names::{self, PROVIDERS, PUSHED, name_server_at};
use crate::process::{self, Process};
use crate::traffic::ping_until;

const SECOND: Duration = Duration::from_secs(1);
pub(crate) const PROVIDERS_V6: &str = "fd18::1";
/// The bar of the long form, also where a name has to be looked up and the first name server can't
/// be reached any more.
const CHANGE_LIMIT: Duration = SECOND;

/// The name server before the tunnel, which knows the gateway by these addresses.
fn provider(lab: &Lab, gateway: &[&str]) -> Process {
    name_server_at(lab, &lab.net, &[PROVIDERS, PROVIDERS_V6], gateway)
}

/// A gateway and its user, whose machine has name servers of both versions.
fn installation(lab: &Lab) -> (Gateway<'_>, Login) {
    let (gateway, ann) = names::gateway(lab, "all");
    let resolv_conf = format!("nameserver {PROVIDERS}\nnameserver {PROVIDERS_V6}\n");
    fs::write(process::etc(lab, &lab.clients[0]).join("resolv.conf"), resolv_conf).expect("it is writable");
    (gateway, ann)
}

/// Whether the gateway sees the client at an IPv6 address.
pub(crate) fn is_at_ipv6(gateway: &Gateway<'_>) -> bool {
    let sessions = gateway.sessions();
    let outer = sessions[0]["outer"].to_string();
    !outer.contains("198.18.")
}

/// Takes a protocol version from the client's machine, or gives it back.
pub(crate) fn uplink(lab: &Lab, ipv6: bool, there: bool) {
    let (address, router) =
        if ipv6 { ("fd18:1::2/64", "fd18:1::1") } else { ("198.18.1.2/24", "198.18.1.1") };
    let lines = if there {
        format!("addr add {address} dev {UPLINK}\nroute add default via {router} dev {UPLINK}\n")
    } else {
        format!("route del default via {router} dev {UPLINK}\naddr del {address} dev {UPLINK}\n")
    };
    lab.clients[0].ip_batch(&lines);
}

#[test]
fn a_machine_changes_between_ipv4_and_ipv6() {
    let form = Form::of_environment("VPND_HEAL_FAMILIES", 2);
    let Some(lab) = Lab::new(1) else { return };
    let _providers = provider(&lab, &[&GATEWAY_V4.to_string(), &GATEWAY_V6.to_string()]);
    let _pushed = name_server_at(&lab, &lab.campus, &[PUSHED], &["192.0.2.1"]);
    let (gateway, ann) = installation(&lab);
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let (mut to_ipv6, mut to_ipv4) = (Vec::new(), Vec::new());
    for _ in 0..form.times {
        let from_ipv6 = is_at_ipv6(&gateway);
        let changed = Instant::now();
        uplink(&lab, from_ipv6, false);
        let after = until_answered(&client, changed);
        if from_ipv6 { &mut to_ipv4 } else { &mut to_ipv6 }.push(after);
        eventually("the session has moved", 5 * SECOND, || (is_at_ipv6(&gateway) != from_ipv6).then_some(()));
        uplink(&lab, from_ipv6, true);
        settle(&client);
    }
    assert_eq!(gateway.status()["counters"]["logins"]["accepted"], 1, "nobody had to log in again");
    for (what, times) in [("changes to IPv6", &mut to_ipv6), ("changes to IPv4", &mut to_ipv4)] {
        report(what, times);
        assert!(percentile(times, 100) <= form.limit(CHANGE_LIMIT), "{what}: {times:?}");
    }
}

/// The machine's network and the gateway's name change together: only the name server knows where
/// the gateway is.
#[test]
fn a_gateway_that_moved_to_the_other_version_is_found_by_its_name() {
    let form = Form::of_environment("VPND_HEAL_FAMILIES", 2);
    let Some(lab) = Lab::new(1) else { return };
    let mut providers = provider(&lab, &[&GATEWAY_V4.to_string()]);
    let _pushed = name_server_at(&lab, &lab.campus, &[PUSHED], &["192.0.2.1"]);
    let (gateway, ann) = installation(&lab);
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let mut times = Vec::new();
    let mut old: Option<String> = None;
    for number in 0..form.times {
        // An address that the client has never seen, instead of the last but one.
        let from_ipv6 = number % 2 == 1;
        let host = 10 + number;
        let (address, prefix) =
            if from_ipv6 { (format!("198.18.0.{host}"), 24) } else { (format!("fd18::{host}"), 64) };
        let place = format!("{address}/{prefix} dev {UPLINK}");
        lab.gateway.ip_batch(&format!("addr add {place}\n"));
        drop(providers);
        providers = provider(&lab, &[&address]);
        let changed = Instant::now();
        uplink(&lab, from_ipv6, false);
        times.push(until_answered(&client, changed));
        eventually("the session has moved", 5 * SECOND, || (is_at_ipv6(&gateway) != from_ipv6).then_some(()));
        uplink(&lab, from_ipv6, true);
        settle(&client);
        if let Some(old) = old.replace(place) {
            lab.gateway.ip_batch(&format!("addr del {old}\n"));
        }
    }
    drop(providers);
    assert_eq!(gateway.status()["counters"]["logins"]["accepted"], 1, "nobody had to log in again");
    report("changes of machine and name", &mut times);
    assert!(percentile(&times, 100) <= form.limit(CHANGE_LIMIT), "{times:?}");
}

/// Lets the client see the last change before the next one comes.
pub(crate) fn settle(client: &Client<'_>) {
    let end = Instant::now() + 3 * SECOND / 2;
    while Instant::now() < end {
        ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
        // Each is a connection, of which a client may have a limited number.
        std::thread::sleep(SECOND / 100);
    }
}
