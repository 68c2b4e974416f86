//! Behaviour: a gateway gets no address of the client's machine into the tunnel that the profile
//! keeps out, whatever it calls it.

use std::fs;

use crate::client::{self, Client, TUN};
use crate::gateway::{Gateway, INNER_V4, Login, edit_toml, must, strings};
use crate::lab::{CAMPUS_V4, Lab, UPLINK, eventually};
use crate::process::{self, RESOLV_CONF};
use crate::traffic::{ping, ping_until};

const SECOND: std::time::Duration = std::time::Duration::from_secs(1);

/// Sets the user's permissions in the profile.
fn permit(login: &Login, routes: &[&str], dns: bool) {
    edit_toml(&login.profile, |profile| {
        let tunnel = profile["tunnel"].as_table_mut().expect("a section");
        tunnel.insert("routes".to_owned(), strings(routes));
        tunnel.insert("dns".to_owned(), dns.into());
    });
}

#[test]
fn nothing_but_the_routes_of_the_profile_leads_into_the_tunnel() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("push.routes", strings(&["10.200.0.0/24", "198.18.0.0/15", "fd20::/64"]));
    gateway.configure("push.dns", strings(&["10.200.0.53", "198.18.1.1"]));
    gateway.configure("push.search", strings(&["corp.example"]));
    let ann = gateway.add_user("ann");
    permit(&ann, &["10.200.0.0/24"], false);
    gateway.start();

    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let way = |to: &str| one.namespace().ip(&["route", "get", to]);
    assert!(way("10.200.0.53").contains(TUN));
    for to in [INNER_V4, "198.18.1.1", "192.0.2.53"] {
        assert!(way(to).contains(UPLINK), "{to}: {}", way(to));
    }
    assert!(one.addresses().iter().all(|address| address.is_ipv4()), "nothing is routed over IPv6");
    let resolv_conf = process::etc(&lab, one.namespace()).join("resolv.conf");
    assert_eq!(fs::read_to_string(resolv_conf).unwrap(), RESOLV_CONF);
}

#[test]
fn an_inner_address_that_is_used_elsewhere_is_refused() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    // Public addresses, as those of a service that the gateway would like to be.
    gateway.configure("tunnel.pool_v4", "203.0.113.0/24");
    let ann = gateway.add_user("ann");
    permit(&ann, &["10.200.0.0/24"], false);
    gateway.start();
    let (_, output) = Client::refused(&lab, 1, &ann, &[]);
    assert!(output.contains("203.0.113.") && output.contains("'routes'"), "{output}");

    permit(&ann, &["10.200.0.0/24", "203.0.113.0/24"], false);
    let mut one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let address = one.v4();
    one.interrupt();

    // The device gets the same address again, but now it is that of this machine's router.
    lab.clients[0].ip_batch(&format!("route add 192.0.2.0/24 via {address} dev {UPLINK} onlink\n"));
    for routes in [&["203.0.113.0/24"][..], &["all"]] {
        permit(&ann, routes, false);
        let (_, output) = Client::refused(&lab, 1, &ann, &[]);
        assert!(output.contains(&address.to_string()) && output.contains("in use here"), "{output}");
    }
    assert!(!ping(&lab.clients[0], CAMPUS_V4.into(), 56, SECOND / 5), "no tunnel is left");
}

/// A tunnel for everything goes on, since its end would open it, and shows the reason.
#[test]
fn new_settings_that_no_attempt_puts_in_force_end_no_full_tunnel() {
    let Some(lab) = Lab::new(1) else { return };
    let machine = &lab.clients[0];
    let (gateway, ann) = Gateway::for_ann(&lab);
    // The inner address is one of the machine's own, too, by the time of other settings.
    let take = |one: &Client<'_>, routes: &[&str]| {
        let address = format!("{}/32", one.v4());
        machine.ip(&["address", "add", &address, "dev", UPLINK]);
        gateway.configure("push.routes", strings(routes));
        must(gateway.ask(&["reload"]));
        address
    };
    let mut one = Client::connect(&lab, 1, &ann);
    ping_until(machine, CAMPUS_V4.into(), 5 * SECOND);
    let address = take(&one, &["10.200.0.0/24"]);
    let status = one.process().wait(15 * SECOND);
    let output = one.process().output();
    assert!(status.code() == Some(1) && output.contains("in use here"), "{status}: {output}");
    machine.ip(&["address", "del", &address, "dev", UPLINK]);

    permit(&ann, &["all"], false);
    let mut one = Client::connect(&lab, 1, &ann);
    let journals = client::journal(&lab, 1);
    let shows = |text: &str| {
        let mut files = fs::read_dir(&journals).unwrap().flatten();
        files.any(|file| fs::read_to_string(file.path()).is_ok_and(|state| state.contains(text)))
    };
    assert!(shows(": connected"));
    let address = take(&one, &["10.200.0.0/24", "fd20::/64"]);
    eventually("it shows the reason", 10 * SECOND, || {
        one.process().assert_running();
        (shows("settings are not in force") && !shows(": connected")).then_some(())
    });
    assert!(ping(machine, CAMPUS_V4.into(), 56, 2 * SECOND), "the former settings stay");
    machine.ip(&["address", "del", &address, "dev", UPLINK]);
    eventually("the settings come once they can", 20 * SECOND, || {
        one.process().assert_running();
        shows(": connected").then_some(())
    });
}
