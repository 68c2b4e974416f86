//! The rules for what a tunnel takes, on offers of a gateway and networks of a machine.

use vpnd_proto::control::{AsText, List};

use super::*;
use crate::parent::permission::tests::{connected_to, lacking_ipv6};

/// An offer of IPv4 alone.
pub(in super::super) fn network() -> Network {
    let routes = ["192.0.2.0/24", "2001:db8::/32"].map(|net| AsText(net.parse().unwrap()));
    Network {
        ipv4: Some([10, 86, 0, 9].into()),
        gateway_ipv4: Some([10, 86, 0, 1].into()),
        routes: List::new(routes.to_vec()).unwrap(),
        ..Network::default()
    }
}

/// An offer of these routes, with both versions.
fn offer(routes: &[&str]) -> Network {
    let routes = routes.iter().map(|net| AsText(net.parse().unwrap())).collect();
    Network { ipv6: "fd86::9".parse().ok(), routes: List::new(routes).unwrap(), ..network() }
}

pub(in super::super) fn texts(nets: &[IpNet]) -> Vec<String> {
    nets.iter().map(ToString::to_string).collect()
}

pub(in super::super) fn options(routes: Routes) -> TunnelOptions {
    TunnelOptions { routes, set_routes: true, dns: true, local_network: true, lookups: None }
}

fn only(networks: &[&str]) -> TunnelOptions {
    options(Routes::Only(networks.iter().map(|net| net.parse().unwrap()).collect()))
}

/// Whether a machine in this network keeps it; `None` if the tunnel does not contain it.
fn fate(options: &TunnelOptions, network: &Network, local: &str) -> Option<Result<(), Why>> {
    let local = local.parse().unwrap();
    let overlaps = Routing::new(options, network, &connected_to(&[local])).overlaps;
    overlaps.first().map(|overlap| overlap.lost.map_or(Ok(()), Err))
}

#[test]
fn only_routes_of_versions_that_the_client_speaks_are_set() {
    let pushed = Routing::new(&options(Routes::Pushed), &network(), &connected_to(&[]));
    assert_eq!(texts(&pushed.destinations), ["192.0.2.0/24", "10.86.0.1/32"]);
    let all = Routing::new(&options(Routes::All), &network(), &connected_to(&[]));
    assert_eq!(texts(&all.destinations), ["0.0.0.0/0", "10.86.0.1/32"]);
}

#[test]
fn routes_of_the_profile_override_pushed_ones() {
    let only = only(&["198.51.100.7/24"]);
    assert_eq!(texts(&destinations(&only, &network())), ["198.51.100.0/24", "10.86.0.1/32"]);
    let by_hand = TunnelOptions { set_routes: false, ..only };
    let routing = Routing::new(&by_hand, &network(), &connected_to(&["192.168.1.0/24".parse().unwrap()]));
    assert_eq!(routing, Routing::default());
}

#[test]
fn a_full_tunnel_refuses_what_it_does_not_carry() {
    let refused = |options: &TunnelOptions, network: &Network| {
        Routing::new(options, network, &connected_to(&[])).refused
    };
    let without_v4 = |network: Network| Network { ipv4: None, gateway_ipv4: None, ..network };
    let all = options(Routes::All);
    assert_eq!(refused(&all, &network()), [Family::V6]);
    assert_eq!(refused(&all, &without_v4(offer(&[]))), [Family::V4]);
    assert_eq!(refused(&all, &offer(&[])), []);
    let pushed = options(Routes::Pushed);
    assert_eq!(refused(&pushed, &offer(&["0.0.0.0/0", "fd20::/64"])), [Family::V6]);
    assert_eq!(refused(&pushed, &offer(&["0.0.0.0/1", "128.0.0.0/1"])), [Family::V6], "halves are a whole");
    assert_eq!(refused(&pushed, &offer(&["0.0.0.0/0", "::/0"])), []);
    assert_eq!(refused(&pushed, &offer(&["10.0.0.0/8", "fd20::/64"])), [], "not for everything");
    assert_eq!(refused(&pushed, &network()), []);
    assert_eq!(refused(&only(&["0.0.0.0/0"]), &network()), [Family::V6]);
    assert_eq!(refused(&all, &Network::default()), [], "there is no tunnel");
    assert_eq!(refused(&TunnelOptions { set_routes: false, ..all }, &network()), []);
}

/// The kernel would refuse the route, and sends nothing that it could keep from leaving.
#[test]
fn a_full_tunnel_refuses_nothing_of_a_version_that_the_kernel_lacks() {
    let routing = Routing::new(&options(Routes::All), &network(), &lacking_ipv6());
    assert!(routing.is_full);
    assert_eq!(routing.families().collect::<Vec<_>>(), [Family::V4]);
}

#[test]
fn a_plausible_local_network_stays_reachable_inside_what_the_tunnel_takes() {
    let offer = offer(&["192.168.0.0/16", "fd20::/32"]);
    for options in [options(Routes::Pushed), options(Routes::All), only(&["192.168.0.0/16", "fd20::/32"])] {
        assert_eq!(fate(&options, &offer, "192.168.1.0/24"), Some(Ok(())));
        assert_eq!(fate(&options, &offer, "fd20:0:1::/64"), Some(Ok(())));
        let strict = TunnelOptions { local_network: false, ..options };
        assert_eq!(fate(&strict, &offer, "192.168.1.0/24"), Some(Err(Why::Profile)));
    }
    assert_eq!(fate(&options(Routes::Pushed), &offer, "10.1.0.0/16"), None, "the tunnel takes nothing of it");
    assert_eq!(fate(&options(Routes::All), &offer, "10.1.0.0/16"), Some(Ok(())));
    assert_eq!(fate(&options(Routes::All), &offer, "169.254.0.0/16"), Some(Ok(())));
    // A refused network is taken, too.
    assert_eq!(fate(&options(Routes::All), &network(), "fd77::/64"), Some(Ok(())));
}

#[test]
fn a_local_network_that_could_capture_traffic_is_tunnelled() {
    let all = options(Routes::All);
    let plain = offer(&[]);
    for wide in [
        "8.8.8.0/24",
        "0.0.0.0/1",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "2001:db8::/64",
        "fd00::/8",
        "100.64.0.0/16",
    ] {
        assert_eq!(fate(&all, &plain, wide), Some(Err(Why::Implausible)), "{wide}");
    }
    let pushed = |net: &str| Some(Err(Why::Pushed(net.parse().unwrap())));
    for routes in [all.clone(), options(Routes::Pushed)] {
        let offer = offer(&["10.20.0.0/24", "10.0.0.0/8"]);
        assert_eq!(fate(&routes, &offer, "10.20.0.0/24"), pushed("10.20.0.0/24"), "as specific");
        assert_eq!(fate(&routes, &offer, "10.20.0.0/16"), pushed("10.20.0.0/24"), "less specific");
        assert_eq!(fate(&routes, &offer, "10.20.0.0/25"), Some(Ok(())));
        let inner: IpAddr = "10.86.0.9".parse().unwrap();
        assert_eq!(fate(&routes, &offer, "10.86.0.0/24"), Some(Err(Why::Inner(inner))));
    }
    let server: IpAddr = "192.168.1.53".parse().unwrap();
    let offer = Network { dns: List::new(vec![AsText(server)]).unwrap(), ..plain };
    assert_eq!(fate(&all, &offer, "192.168.1.0/24"), Some(Err(Why::NameServer(server))));
    assert_eq!(fate(&all, &offer, "192.168.2.0/24"), Some(Ok(())));
}
