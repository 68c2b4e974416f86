//! Behaviour: the network that a machine is directly connected to stays reachable inside what a
//! tunnel takes, as long as the profile permits it and the network is a plausible one. A network
//! that could be there to capture something (TunnelCrack) goes into the tunnel.
//!
//! The laboratory's own addresses are public ones; a private network is added to them on the
//! client's link. Whatever routes are set there, the tunnel's own datagrams stay outside it.

use std::time::Duration;

use crate::cleanup::look_at;
use crate::client::{Client, TUN, cleanup};
use crate::full;
use crate::gateway::{Gateway, Login, edit_toml, must, strings};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, Lab, UPLINK, eventually};
use crate::namespace::Namespace;
use crate::relay::PORT;
use crate::reload::counter;
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);
const ROUTER: &str = "192.168.1.1";
const ROUTER_V6: &str = "fd77::1";

/// A laboratory whose client is at home in private networks, with a gateway that pushes these, too.
fn at_home<'l>(lab: &'l Lab, pushed: &[&str]) -> (Gateway<'l>, Login) {
    let port = Lab::port(1);
    lab.net.ip_batch(&format!("addr add {ROUTER}/24 dev {port}\naddr add {ROUTER_V6}/64 dev {port}\n"));
    lab.clients[0]
        .ip_batch(&format!("addr add 192.168.1.2/24 dev {UPLINK}\naddr add fd77::2/64 dev {UPLINK}\n"));
    let mut gateway = Gateway::init(lab);
    let routes = [&["10.200.0.0/24", "fd20::/64"], pushed].concat();
    gateway.configure("push.routes", strings(&routes));
    gateway.configure("nat.mode", "nftables");
    let ann = gateway.add_user("ann");
    gateway.start();
    (gateway, ann)
}

fn want(login: &Login, key: &str, value: impl Into<toml::Value>) {
    edit_toml(&login.profile, |profile| {
        profile["tunnel"].as_table_mut().expect("a section").insert(key.to_owned(), value.into());
    });
}

/// The route of packets to this address.
fn way(from: &Namespace, to: &str) -> &'static str {
    let shown = from.ip(&["route", "get", to]);
    [TUN, UPLINK].into_iter().find(|name| shown.contains(&format!("dev {name} "))).expect("one of the two")
}

#[test]
fn the_local_network_stays_reachable_and_is_reported() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, ann) = at_home(&lab, &["192.168.0.0/16", "fd77::/48"]);
    for routes in ["pushed", "all"] {
        want(&ann, "routes", routes);
        let before = look_at(&lab, &lab.clients[0]);
        let mut client = Client::connect(&lab, 1, &ann);
        let machine = client.namespace();
        ping_until(machine, CAMPUS_V4.into(), 10 * SECOND);
        for (to, expected) in
            [(ROUTER, UPLINK), (ROUTER_V6, UPLINK), ("192.168.7.7", TUN), ("fd77:0:0:1::1", TUN)]
        {
            assert_eq!(way(machine, to), expected, "{routes}: {to}");
        }
        assert!(ping(machine, ROUTER.parse().expect("an address"), 56, 5 * SECOND));
        assert!(ping(machine, ROUTER_V6.parse().expect("an address"), 56, 5 * SECOND));
        let said = client.process().output();
        assert!(said.contains("192.168.1.0/24") && said.contains("stays outside"), "{said}");
        client.kill();
        assert_ne!(look_at(&lab, machine), before, "there is something to clean up");
        must(cleanup(&lab, 1));
        assert_eq!(look_at(&lab, machine), before);
    }
}

#[test]
fn the_local_network_is_tunnelled_if_profile_or_route_says_so() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, ann) = at_home(&lab, &["192.168.0.0/16"]);
    want(&ann, "local_network", false);
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 10 * SECOND);
    assert_eq!(way(client.namespace(), ROUTER), TUN);
    assert!(client.process().output().contains("'local_network' of the profile is false"));
    client.interrupt();

    want(&ann, "local_network", true);
    for (key, value) in [("push.routes", "192.168.1.128/25"), ("push.dns", "192.168.1.53")] {
        gateway.configure("push.routes", strings(&["10.200.0.0/24", "192.168.0.0/16"]));
        let pushed =
            if key == "push.dns" { vec![value] } else { vec!["10.200.0.0/24", "192.168.0.0/16", value] };
        gateway.configure(key, strings(&pushed));
        must(gateway.ask(&["reload"]));
        let mut client = Client::connect(&lab, 1, &ann);
        ping_until(client.namespace(), CAMPUS_V4.into(), 10 * SECOND);
        assert_eq!(way(client.namespace(), ROUTER), TUN, "{value}");
        let said = client.process().output();
        assert!(said.contains("goes into it") && said.contains(value), "{said}");
        client.interrupt();
    }
}

#[test]
fn an_implausible_local_network_is_tunnelled() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, ann) = at_home(&lab, &[]);
    // A hotspot that gives out an address in a network as wide as a quarter of the Internet.
    lab.clients[0].ip_batch(&format!("addr add 64.0.0.2/2 dev {UPLINK}\n"));
    want(&ann, "routes", "all");
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 10 * SECOND);
    for to in ["198.18.1.1", "9.9.9.9", "64.0.0.1"] {
        assert_eq!(way(client.namespace(), to), TUN, "{to}");
    }
    assert_eq!(way(client.namespace(), ROUTER), UPLINK);
    let said = client.process().output();
    assert!(said.contains("64.0.0.0/2") && said.contains("could be there to capture traffic"), "{said}");
}

#[test]
fn the_exception_follows_the_machine_to_another_network() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, ann) = at_home(&lab, &[]);
    want(&ann, "routes", "all");
    let before = look_at(&lab, &lab.clients[0]);
    let mut client = Client::connect(&lab, 1, &ann);
    let machine = client.namespace();
    ping_until(machine, CAMPUS_V4.into(), 10 * SECOND);
    assert_eq!(way(machine, ROUTER), UPLINK);
    machine.ip_batch(&format!("addr del 192.168.1.2/24 dev {UPLINK}\naddr add 10.44.0.2/24 dev {UPLINK}\n"));
    eventually("the new network is reachable, the old one is not", 10 * SECOND, || {
        (way(machine, "10.44.0.1") == UPLINK && way(machine, ROUTER) == TUN).then_some(())
    });
    ping_until(machine, CAMPUS_V4.into(), 10 * SECOND);
    machine.ip_batch(&format!("addr del 10.44.0.2/24 dev {UPLINK}\naddr add 192.168.1.2/24 dev {UPLINK}\n"));
    client.interrupt();
    assert_eq!(look_at(&lab, machine), before);
}

/// The kernel keeps the IPv4 addresses of an interface that is down, and no way to their network:
/// packets for it would leave by the default route.
#[test]
fn the_network_of_an_interface_that_is_down_goes_into_the_tunnel() {
    let Some(lab) = Lab::new(1) else { return };
    let (_providers, _gateway, ann) = full::ordinary(&lab);
    let machine = &lab.clients[0];
    machine.ip_batch("tuntap add idle0 mode tun\naddr add 10.44.0.2/24 dev idle0\n");
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(machine, CAMPUS_V4.into(), 20 * SECOND);
    full::watch(&lab);
    let leaves_by = |interface: &str| {
        machine.ip(&["route", "get", "10.44.0.9"]).contains(&format!("dev {interface} ")).then_some(())
    };
    let nothing_in_clear = |when: &str| {
        ping(machine, "10.44.0.9".parse().expect("an address"), 56, SECOND / 20);
        assert_eq!(full::in_clear(&lab), 0, "{when}");
    };
    nothing_in_clear("down from the start");
    assert!(leaves_by(TUN).is_some());
    machine.ip_batch("link set idle0 up\n");
    eventually("its network stays outside", 10 * SECOND, || leaves_by("idle0"));
    machine.ip_batch("link set idle0 down\n");
    eventually("its network goes into the tunnel", 10 * SECOND, || leaves_by(TUN));
    nothing_in_clear("down again");
    client.interrupt();
}

/// Routers' addresses in the local network. Its IPv4 addresses are public, so a full tunnel takes
/// them.
const ROUTERS: [(&str, &str); 2] = [("-4", "198.18.1.1"), ("-6", "fd18:1::1")];

/// People and scripts may leave out the interface: the kernel looks for it.
#[test]
fn a_router_that_is_named_without_its_interface_is_found_outside_the_tunnel() {
    let Some(lab) = Lab::new(1) else { return };
    let (_providers, gateway, ann) = full::ordinary(&lab);
    let before = look_at(&lab, &lab.clients[0]);
    let mut client = Client::connect(&lab, 1, &ann);
    let machine = client.namespace();
    ping_until(machine, CAMPUS_V4.into(), 20 * SECOND);
    for (version, router) in ROUTERS {
        machine.ip(&[version, "route", "replace", "default", "via", router]);
        let shown = machine.ip(&[version, "route", "show", "default"]);
        assert!(shown.contains(&format!("dev {UPLINK}")), "{shown}");
    }
    assert_eq!(way(machine, ROUTERS[0].1), TUN, "what goes to the network itself is the tunnel's");
    ping_until(machine, CAMPUS_V4.into(), 20 * SECOND);
    ping_until(machine, CAMPUS_V6.into(), 20 * SECOND);
    assert_eq!(gateway.sessions().len(), 1);
    client.interrupt();
    assert_eq!(look_at(&lab, machine), before);
}

/// A route of the system's own table leads everything into the tunnel, the tunnel's own datagrams,
/// too.
#[test]
fn the_tunnels_own_datagrams_never_enter_it_and_find_the_gateway_again() {
    let Some(lab) = Lab::new(1) else { return };
    let (_providers, gateway, ann) = full::ordinary(&lab);
    let before = look_at(&lab, &lab.clients[0]);
    let mut client = Client::connect(&lab, 1, &ann);
    let machine = client.namespace();
    ping_until(machine, CAMPUS_V4.into(), 20 * SECOND);
    let own = format!("oifname {TUN} udp dport {PORT}");
    machine.nft(&format!(
        "table inet watch {{\n\
           counter tried {{ }}\n\
           counter entered {{ }}\n\
           chain output {{ type filter hook output priority raw; {own} counter name tried; }}\n\
           chain leaving {{ type filter hook postrouting priority 300; {own} counter name entered; }}\n\
         }}\n"
    ));
    machine.ip(&["route", "replace", "default", "dev", TUN]);
    eventually("the client says so, and has tried", 20 * SECOND, || {
        ping(machine, CAMPUS_V4.into(), 56, SECOND / 20);
        let said = client.process().output().contains("leads the tunnel's own datagrams into the tunnel");
        (said && counter(&lab, machine, "watch", "tried") > 10).then_some(())
    });
    assert_eq!(counter(&lab, machine, "watch", "entered"), 0);
    machine.ip(&["route", "replace", "default", "via", ROUTERS[0].1]);
    ping_until(machine, CAMPUS_V4.into(), 20 * SECOND);
    assert_eq!(counter(&lab, machine, "watch", "entered"), 0);
    assert_eq!(gateway.sessions().len(), 1);
    machine.nft("delete table inet watch\n");
    client.interrupt();
    assert_eq!(look_at(&lab, machine), before);
}
