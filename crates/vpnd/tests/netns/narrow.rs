//! Behaviour: a narrow link on the way to the gateway (DSL, mobile networks, tunnels in tunnels). The client finds out
//! how narrow, and TCP through the tunnel fits, both ways.

use std::time::Duration;

use serde_json::Value as Json;

use crate::client::{Client, TUN};
use crate::gateway::{Gateway, edit_toml};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, GATEWAY_V6, Lab, eventually};
use crate::traffic::{TEN_MB, ping_until, transfer};

const SECOND: Duration = Duration::from_secs(1);

/// The ends learn nothing by ICMP, as on the paths where this hurts.
pub(crate) fn silence(lab: &Lab) {
    lab.net.nft(
        "table inet silent {\n\
             chain out {\n\
                 type filter hook output priority 0\n\
                 icmp type destination-unreachable drop\n\
                 icmpv6 type packet-too-big drop\n\
             }\n\
         }\n",
    );
}

/// Makes the link between `net` and the gateway carry no more than `mtu` bytes, without a message to the ends.
fn narrow(lab: &Lab, mtu: u16) {
    silence(lab);
    for port in [0, 1] {
        lab.net.ip_batch(&format!("link set {} mtu {mtu}", Lab::port(port)));
    }
}

fn tun_mtu(client: &Client<'_>) -> u64 {
    let links: Json =
        serde_json::from_str(&client.namespace().ip(&["-j", "link", "show", TUN])).expect("JSON");
    links[0]["mtu"].as_u64().expect("a device has an MTU")
}

fn tcp_fits(lab: &Lab, client: &Client<'_>, path: u64, outer_headers: u64) {
    for campus in [CAMPUS_V4.into(), CAMPUS_V6.into()] {
        ping_until(client.namespace(), campus, 5 * SECOND);
        transfer(client.namespace(), &lab.campus, campus, TEN_MB, 10 * SECOND);
    }
    // Header and tag of the tunnel, then what the outer packet adds.
    let best = path - outer_headers - 32;
    eventually("the device's MTU is what the path carries", 20 * SECOND, || {
        (best - 8..=best).contains(&tun_mtu(client)).then_some(())
    });
    for campus in [CAMPUS_V4.into(), CAMPUS_V6.into()] {
        transfer(client.namespace(), &lab.campus, campus, TEN_MB, 10 * SECOND);
    }
}

#[test]
fn tcp_fits_a_narrow_path() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    narrow(&lab, 1400);
    let one = Client::connect(&lab, 1, &ann);
    tcp_fits(&lab, &one, 1400, 28);
}

#[test]
fn tcp_fits_a_narrow_path_of_ipv6() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    edit_toml(&ann.profile, |profile| {
        let server = profile["server"].as_table_mut().expect("a section");
        server.insert("addresses".to_owned(), vec![format!("[{GATEWAY_V6}]:4433")].into());
    });
    gateway.start();
    narrow(&lab, 1400);
    let one = Client::connect(&lab, 1, &ann);
    tcp_fits(&lab, &one, 1400, 48);
}

#[test]
fn tcp_fits_where_ipv6_hardly_does() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    narrow(&lab, 1300);
    let one = Client::connect(&lab, 1, &ann);
    for campus in [CAMPUS_V4.into(), CAMPUS_V6.into()] {
        ping_until(one.namespace(), campus, 5 * SECOND);
        transfer(one.namespace(), &lab.campus, campus, TEN_MB, 10 * SECOND);
    }
    assert_eq!(tun_mtu(&one), 1280, "the kernel would take IPv6 from a smaller device");
}

#[test]
fn a_wide_path_keeps_the_gateways_mtu() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    eventually("the device has the gateway's MTU", 5 * SECOND, || (tun_mtu(&one) == 1420).then_some(()));
}
