//! Requests in a namespace, with `ip` as the witness.

use std::time::Duration;

use super::*;
use crate::change::{LAST_RESORT_METRIC, TABLE_BASE};
use crate::testing::{in_namespace_async, run};

/// An interface whose other end is up, so that it has a carrier.
fn interface(name: &str) {
    let peer = format!("{name}-peer");
    run("ip", &["link", "add", name, "type", "veth", "peer", "name", &peer]);
    run("ip", &["link", "set", &peer, "up"]);
}

fn address(interface: &str, address: &str) -> AddressSpec {
    AddressSpec { interface: interface.to_owned(), index: None, address: address.parse().unwrap() }
}

fn route(destination: &str, target: RouteTarget) -> RouteSpec {
    RouteSpec {
        destination: destination.parse().unwrap(),
        target,
        source: None,
        table: 7000,
        metric: Some(50),
    }
}

fn via(interface: &str) -> RouteTarget {
    RouteTarget::Interface(interface.to_owned())
}

#[test]
fn addresses_are_added_and_removed() {
    in_namespace_async(async || {
        interface("vp0");
        let netlink = Netlink::open().unwrap();
        netlink.set_mtu("vp0", 1380).await.unwrap();
        netlink.set_up("vp0", true).await.unwrap();
        let specs = [address("vp0", "10.8.0.2/24"), address("vp0", "fd00:8::2/64")];
        for spec in &specs {
            netlink.add_address(spec).await.unwrap();
            assert!(netlink.add_address(spec).await.unwrap_err().is_already_there());
        }
        let shown = run("ip", &["addr", "show", "vp0"]);
        assert!(shown.contains("inet 10.8.0.2/24") && shown.contains("mtu 1380"), "{shown}");
        assert!(shown.contains("inet6 fd00:8::2/64 scope global nodad"), "{shown}");
        assert!(!shown.contains("fd00:8::2/64 scope global tentative"), "{shown}");
        let listed = netlink.addresses().await.unwrap();
        for spec in &specs {
            assert!(listed.iter().any(|local| local.address == spec.address), "{listed:?}");
            netlink.remove_address(spec).await.unwrap();
            assert!(netlink.remove_address(spec).await.unwrap_err().is_not_there());
        }
        assert!(!run("ip", &["addr", "show", "vp0"]).contains("10.8.0.2"));
        netlink.set_up("vp0", false).await.unwrap();
        assert!(!run("ip", &["link", "show", "vp0"]).contains(",UP"));
    });
}

#[test]
fn routes_are_added_and_removed() {
    in_namespace_async(async || {
        interface("vp0");
        let netlink = Netlink::open().unwrap();
        netlink.set_up("vp0", true).await.unwrap();
        netlink.add_address(&address("vp0", "10.8.0.2/24")).await.unwrap();
        netlink.add_address(&address("vp0", "fd00:8::2/64")).await.unwrap();
        let gateway = RouteTarget::Gateway { address: "10.8.0.1".parse().unwrap(), interface: "vp0".into() };
        let specs = [
            route("172.20.0.0/16", via("vp0")),
            route("0.0.0.0/0", gateway),
            route("::/0", via("vp0")),
            route("fd00:9::/48", via("vp0")),
            route("192.0.2.0/24", RouteTarget::Unreachable),
            route("2001:db8::/32", RouteTarget::Unreachable),
        ];
        // The kernel adds its own routes a moment after a link comes up.
        let everything = || {
            let all = run("ip", &["route", "show", "table", "all"])
                + &run("ip", &["-6", "route", "show", "table", "all"]);
            all.lines().filter(|line| !line.contains("proto kernel")).collect::<Vec<_>>().join("\n")
        };
        let before = everything();
        for spec in &specs {
            netlink.add_route(spec).await.unwrap();
            assert!(netlink.add_route(spec).await.unwrap_err().is_already_there());
        }
        let shown = everything();
        for line in [
            "172.20.0.0/16 dev vp0 table 7000 proto 118 metric 50",
            "default via 10.8.0.1 dev vp0 table 7000 proto 118 metric 50",
            "unreachable 192.0.2.0/24 table 7000 proto 118 metric 50",
            "fd00:9::/48 dev vp0 table 7000 proto 118 metric 50",
            "default dev vp0 table 7000 proto 118 metric 50",
            "unreachable 2001:db8::/32 dev lo table 7000 proto 118 metric 50",
        ] {
            assert!(shown.contains(line), "{line} is missing in {shown}");
        }
        for spec in &specs {
            netlink.remove_route(spec).await.unwrap();
            assert!(netlink.remove_route(spec).await.unwrap_err().is_not_there());
        }
        assert_eq!(everything(), before);
    });
}

#[test]
fn routes_in_a_tunnels_table_have_the_kernels_origin() {
    in_namespace_async(async || {
        interface("vp0");
        let netlink = Netlink::open().unwrap();
        netlink.set_up("vp0", true).await.unwrap();
        let table = TABLE_BASE + 7;
        let specs = [
            ("10.20.0.0/16", via("vp0")),
            ("192.168.7.0/24", RouteTarget::Throw),
            ("0.0.0.0/0", RouteTarget::Closed),
            ("fd00:9::/48", via("vp0")),
            ("::/0", RouteTarget::Unreachable),
        ];
        let specs = specs.map(|(destination, target)| RouteSpec { table, ..route(destination, target) });
        let made_by_vpnd = async || {
            let listed = netlink.table_routes().await.unwrap().into_iter();
            let listed = listed.filter(|route| route.place.table == table);
            listed.map(|route| route.made_by_vpnd).collect::<Vec<_>>()
        };
        let ip = |line: &str| run("ip", &line.split(' ').collect::<Vec<_>>());
        for spec in &specs {
            netlink.add_route(spec).await.unwrap();
        }
        for version in ["-4", "-6"] {
            ip(&format!("{version} route flush table all proto 118"));
        }
        assert_eq!(made_by_vpnd().await, [true; 5], "network managers remove others");
        for spec in &specs {
            netlink.remove_route(spec).await.unwrap();
            assert!(netlink.remove_route(spec).await.unwrap_err().is_not_there());
        }
        // Of an earlier version, and of another program.
        for (origin, is_own) in [("118", true), ("static", false)] {
            ip(&format!("-6 route add unreachable ::/0 table {table} metric 50 proto {origin}"));
            assert_eq!(made_by_vpnd().await, [is_own], "{origin}");
            assert_eq!(netlink.remove_route(&specs[4]).await.is_ok(), is_own, "{origin}");
        }
    });
}

#[test]
fn routes_that_refuse_packets_for_a_pool_have_the_kernels_origin() {
    in_namespace_async(async || {
        let netlink = Netlink::open().unwrap();
        let ip = |line: &str| run("ip", &line.split(' ').collect::<Vec<_>>());
        let own = async || {
            let listed = netlink.table_routes().await.unwrap().into_iter();
            listed.filter_map(|route| route.ours).collect::<Vec<_>>()
        };
        for (version, pool) in [("-4", "10.86.0.0/16"), ("-6", "fd86::/64")] {
            let (table, metric) = (MAIN_TABLE, Some(LAST_RESORT_METRIC));
            let spec = RouteSpec { table, metric, ..route(pool, RouteTarget::Unreachable) };
            netlink.add_route(&spec).await.unwrap();
            assert!(netlink.add_route(&spec).await.unwrap_err().is_already_there());
            ip(&format!("{version} route flush table all proto 118"));
            assert_eq!(own().await, std::slice::from_ref(&spec), "network managers remove others");
            netlink.remove_route(&spec).await.unwrap();
            assert!(netlink.remove_route(&spec).await.unwrap_err().is_not_there());
            // Routes of an earlier version, with another metric, and of another program.
            for (metric, origin, is_own) in [
                (LAST_RESORT_METRIC, "118", true),
                (7, "kernel", false),
                (LAST_RESORT_METRIC, "static", false),
            ] {
                ip(&format!("{version} route add unreachable {pool} metric {metric} proto {origin}"));
                assert_eq!(own().await.len(), usize::from(is_own), "{origin}");
                assert_eq!(netlink.remove_route(&spec).await.is_ok(), is_own, "{origin}");
            }
        }
    });
}

#[test]
fn routes_and_rules_of_others_are_never_removed() {
    in_namespace_async(async || {
        interface("vp0");
        let netlink = Netlink::open().unwrap();
        netlink.set_up("vp0", true).await.unwrap();
        run("ip", &["route", "add", "172.20.0.0/16", "dev", "vp0", "table", "7000", "metric", "50"]);
        run("ip", &["-6", "route", "add", "fd00:9::/48", "dev", "vp0", "table", "7000", "metric", "50"]);
        run("ip", &["rule", "add", "priority", "900", "not", "fwmark", "0x51", "table", "7000"]);
        for destination in ["172.20.0.0/16", "fd00:9::/48"] {
            let error = netlink.remove_route(&route(destination, via("vp0"))).await.unwrap_err();
            assert!(error.is_not_there(), "{error}");
        }
        let rule = RuleSpec {
            family: Family::V4,
            priority: 900,
            matches: RuleMatch::NotMarked { mark: 0x51, mask: u32::MAX },
            table: 7000,
        };
        assert!(netlink.remove_rule(&rule).await.unwrap_err().is_not_there());
        assert!(run("ip", &["rule"]).contains("fwmark 0x51"));
        assert!(run("ip", &["route", "show", "table", "7000"]).contains("172.20.0.0/16"));
        assert!(run("ip", &["-6", "route", "show", "table", "7000"]).contains("fd00:9::/48"));
    });
}

#[test]
fn rules_keep_the_tunnel_out_of_itself() {
    in_namespace_async(async || {
        let netlink = Netlink::open().unwrap();
        let before = run("ip", &["rule"]) + &run("ip", &["-6", "rule"]);
        let mut specs = Vec::new();
        for family in [Family::V4, Family::V6] {
            specs.push(RuleSpec {
                family,
                priority: 900,
                matches: RuleMatch::User(64_123),
                table: MAIN_TABLE,
            });
            specs.push(RuleSpec {
                family,
                priority: 901,
                matches: RuleMatch::NotMarked { mark: 0x51, mask: u32::MAX },
                table: 7000,
            });
        }
        for spec in &specs {
            netlink.add_rule(spec).await.unwrap();
        }
        for shown in [run("ip", &["-d", "rule"]), run("ip", &["-d", "-6", "rule"])] {
            for rule in [
                "900:\tfrom all uidrange 64123-64123 lookup main ",
                "901:\tnot from all fwmark 0x51 lookup 7000 ",
            ] {
                let line = shown.lines().find(|line| line.starts_with(rule)).expect(&shown);
                assert!(line.contains("proto kernel"), "network managers remove others: {line}");
            }
        }
        let listed = netlink.rules().await.unwrap();
        let made: Vec<_> = listed.into_iter().filter(|rule| rule.made_by_vpnd).collect();
        assert_eq!(
            made.iter().filter_map(|rule| rule.ours.clone()).collect::<Vec<_>>(),
            specs,
            "none of the kernel's"
        );
        for spec in &specs {
            netlink.remove_rule(spec).await.unwrap();
            assert!(netlink.remove_rule(spec).await.unwrap_err().is_not_there());
        }
        // Of an earlier version.
        let rule = "rule add priority 901 not fwmark 0x51 table 7000 protocol 118";
        run("ip", &rule.split(' ').collect::<Vec<_>>());
        assert!(!netlink.others_use_marks().await.unwrap());
        assert!(netlink.rules().await.unwrap().iter().any(|rule| rule.ours.as_ref() == Some(&specs[1])));
        netlink.remove_rule(&specs[1]).await.unwrap();
        assert_eq!(run("ip", &["rule"]) + &run("ip", &["-6", "rule"]), before);
    });
}

#[test]
fn the_way_out_is_found() {
    in_namespace_async(async || {
        interface("vp0");
        interface("vp1");
        let netlink = Netlink::open().unwrap();
        assert_eq!(netlink.default_route(Family::V4, None).await.unwrap(), None);
        assert_eq!(netlink.route_to("192.0.2.9".parse().unwrap(), None).await.unwrap(), None);
        for (name, own) in [("vp0", "10.1.0.2/24"), ("vp1", "10.2.0.2/24")] {
            netlink.set_up(name, true).await.unwrap();
            netlink.add_address(&address(name, own)).await.unwrap();
        }
        run("ip", &["route", "add", "default", "via", "10.1.0.1", "metric", "100"]);
        run("ip", &["route", "add", "default", "via", "10.2.0.1", "metric", "10"]);
        run("ip", &["route", "add", "default", "via", "10.1.0.7", "table", "9"]);
        let (vp0, vp1) =
            (netlink.interface_index("vp0").await.unwrap(), netlink.interface_index("vp1").await.unwrap());
        let best = netlink.default_route(Family::V4, None).await.unwrap().unwrap();
        assert_eq!((best.gateway, best.interface), (Some("10.2.0.1".parse().unwrap()), vp1));
        let other = netlink.default_route(Family::V4, Some("vp1")).await.unwrap().unwrap();
        assert_eq!(
            (other.gateway, other.interface, other.metric),
            (Some("10.1.0.1".parse().unwrap()), vp0, 100)
        );
        let way = netlink.route_to("192.0.2.9".parse().unwrap(), Some(0x51)).await.unwrap().unwrap();
        assert_eq!((way.source, way.interface), (Some("10.2.0.2".parse().unwrap()), vp1));
    });
}

#[test]
fn a_pool_that_overlaps_a_local_network_is_noticed() {
    in_namespace_async(async || {
        interface("vp0");
        interface("vp1");
        let netlink = Netlink::open().unwrap();
        netlink.set_up("vp0", true).await.unwrap();
        netlink.add_address(&address("vp0", "10.8.3.2/24")).await.unwrap();
        netlink.add_address(&address("vp0", "fd00:8::2/64")).await.unwrap();
        run("ip", &["route", "add", "172.20.0.0/16", "via", "10.8.3.1"]);
        run("ip", &["route", "add", "default", "via", "10.8.3.1"]);
        let overlap = async |pool: &str| netlink.overlap(pool.parse().unwrap(), Some("vp1")).await.unwrap();
        assert_eq!(overlap("10.8.0.0/16").await, Some("10.8.3.0/24".parse().unwrap()));
        assert_eq!(overlap("10.8.3.128/25").await, Some("10.8.3.0/24".parse().unwrap()));
        assert_eq!(overlap("172.20.5.0/24").await, Some("172.20.0.0/16".parse().unwrap()));
        assert_eq!(overlap("fd00:8::/48").await, Some("fd00:8::/64".parse().unwrap()));
        assert_eq!(overlap("10.9.0.0/16").await, None, "a default route is no overlap");
        let own = netlink.overlap("10.8.0.0/16".parse().unwrap(), Some("vp0")).await.unwrap();
        assert_eq!(own, None, "the tunnel's own addresses do not count");
    });
}

#[test]
fn changes_are_reported() {
    in_namespace_async(async || {
        interface("vp0");
        let index = Netlink::open().unwrap().interface_index("vp0").await.unwrap().unwrap();
        let mut watch = NetworkWatch::open().unwrap();
        let mut wait_for = async |wanted: NetworkChange| {
            let search = async { while watch.next().await.unwrap() != wanted {} };
            tokio::time::timeout(Duration::from_secs(5), search).await.expect("the change is reported");
        };
        run("ip", &["link", "set", "vp0", "up"]);
        wait_for(NetworkChange::Link { interface: index }).await;
        run("ip", &["addr", "add", "10.8.0.2/24", "dev", "vp0"]);
        wait_for(NetworkChange::Address { interface: index }).await;
        run("ip", &["route", "add", "172.20.0.0/16", "dev", "vp0"]);
        wait_for(NetworkChange::Route { interface: Some(index) }).await;
        run("ip", &["route", "del", "172.20.0.0/16", "dev", "vp0"]);
        wait_for(NetworkChange::Route { interface: Some(index) }).await;
        run("ip", &["rule", "add", "priority", "900", "lookup", "7000"]);
        wait_for(NetworkChange::Rule).await;
    });
}

#[test]
fn of_own_routes_and_rules_the_removals_are_reported() {
    in_namespace_async(async || {
        interface("vp0");
        let netlink = Netlink::open().unwrap();
        netlink.set_up("vp0", true).await.unwrap();
        for (version, any, table) in [("-4", "0.0.0.0/0", 7_000), ("-6", "::/0", TABLE_BASE + 7)] {
            let route = RouteSpec { table, ..route(any, RouteTarget::Unreachable) };
            let matches = RuleMatch::NotMarked { mark: 0x51, mask: u32::MAX };
            let family = if version == "-4" { Family::V4 } else { Family::V6 };
            let rule = RuleSpec { family, priority: 900, matches, table };
            let mut watch = NetworkWatch::open().unwrap();
            netlink.add_route(&route).await.unwrap();
            netlink.add_rule(&rule).await.unwrap();
            // Neither looks for origins.
            run("ip", &[version, "route", "flush", "table", &table.to_string()]);
            run("ip", &[version, "rule", "del", "priority", "900"]);
            let mut reported = Vec::new();
            while reported.last() != Some(&NetworkChange::RuleRemoved) {
                let change = tokio::time::timeout(Duration::from_secs(5), watch.next()).await;
                match change.expect("the removal is reported").unwrap() {
                    // The kernel is still busy with the interface.
                    NetworkChange::Link { .. }
                    | NetworkChange::Address { .. }
                    | NetworkChange::Route { .. } => {}
                    change => reported.push(change),
                }
            }
            assert_eq!(reported, [NetworkChange::RouteRemoved, NetworkChange::RuleRemoved], "{version}");
        }
    });
}

#[test]
fn a_closed_route_takes_what_is_bound_to_no_interface() {
    in_namespace_async(async || {
        interface("vp0");
        let netlink = Netlink::open().unwrap();
        netlink.set_up("vp0", true).await.unwrap();
        run("ip", &["addr", "add", "192.0.2.2/24", "dev", "vp0"]);
        run("ip", &["addr", "add", "2001:db8::2/64", "dev", "vp0", "nodad"]);
        run("ip", &["route", "add", "default", "via", "192.0.2.1"]);
        run("ip", &["-6", "route", "add", "default", "via", "2001:db8::1"]);
        let way = |arguments: &[&str]| {
            let output = std::process::Command::new("ip").args(arguments).output().unwrap();
            String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
        };
        for (family, any) in [(Family::V4, "0.0.0.0/0"), (Family::V6, "::/0")] {
            let closed = route(any, RouteTarget::Closed);
            netlink.add_route(&closed).await.unwrap();
            let matches = RuleMatch::NotMarked { mark: 0x51, mask: u32::MAX };
            netlink.add_rule(&RuleSpec { family, priority: 900, matches, table: 7000 }).await.unwrap();
            let listed = netlink.table_routes().await.unwrap();
            let listed: Vec<_> = listed.iter().filter(|route| route.made_by_vpnd).collect();
            assert_eq!(listed.len(), 1, "{listed:?}");
            assert_eq!(listed[0].place, closed.place());
            let host = if family == Family::V4 { "198.51.100.9" } else { "2001:db8:1::9" };
            let unbound = way(&["route", "get", host]);
            assert!(
                unbound.contains("via 192.0.0.8 dev lo") || unbound.contains("No route to host"),
                "{unbound}"
            );
            for free in [&["route", "get", host, "oif", "vp0"][..], &["route", "get", host, "mark", "0x51"]] {
                let free = way(free);
                assert!(free.contains("dev vp0"), "{free}");
            }
            netlink.remove_route(&closed).await.unwrap();
            assert!(netlink.remove_route(&closed).await.unwrap_err().is_not_there());
        }
    });
}

#[test]
fn a_missing_interface_is_named() {
    in_namespace_async(async || {
        let netlink = Netlink::open().unwrap();
        let error = netlink.set_up("vpnone", true).await.unwrap_err();
        assert_eq!(error.to_string(), "there is no interface vpnone");
        assert!(netlink.add_route(&route("10.0.0.0/8", via("vpnone"))).await.unwrap_err().is_not_there());
    });
}
