//! vpnd's own changes are permitted; anything else that a journal could contain is not.

use std::path::Path;

use super::*;
use crate::change::{ChangeError, LAST_RESORT_METRIC, RULES, TABLE_BASE, Undone};
use crate::dns::{DnsChange, DnsSettings, FileChange, FileState};
use crate::netlink::{Family, Netlink};
use crate::nft::{GuardRules, MarkMatch, Outgoing, Returning};
use crate::sysctl::{Setting, SysctlChange};
use crate::testing::{in_namespace_async, run};

fn refused(change: &Change) -> bool {
    fault(change, &DnsSystem::default()).is_some()
}

fn route(table: u32) -> RouteSpec {
    let target = RouteTarget::Interface("vpn0".to_owned());
    RouteSpec { destination: "10.20.0.0/16".parse().unwrap(), target, source: None, table, metric: None }
}

fn setting(key: &str, value: &str, before: &str) -> SysctlChange {
    let set = Setting { key: key.to_owned(), value: value.to_owned() };
    let before = before.to_owned();
    SysctlChange { set, before, dependent: Vec::new(), others_had_marks: false }
}

const OURS: &str = "# Name servers of the vpnd tunnel vpn0\n\
     # The former ones come back when it ends (or with `vpnd cleanup`).\nnameserver 10.8.0.1\nsearch a.example b.example\n\
     options edns0\n";

fn file() -> FileChange {
    let before = FileState::File { content: "bmFtZXNlcnZlcg==".to_owned(), mode: 0o644, uid: 0, gid: 0 };
    FileChange { path: "/etc/resolv.conf".into(), before, after: OURS.to_owned(), replaces: None }
}

#[test]
fn routes_and_rules_are_those_of_a_tunnel() {
    assert!(!refused(&Change::Route(route(TABLE_BASE + 7))));
    for table in [0, 254, 255, 7_000, TABLE_BASE, u32::MAX] {
        assert!(refused(&Change::Route(route(table))), "{table}");
    }
    let gateway =
        RouteTarget::Gateway { address: "192.0.2.1".parse().unwrap(), interface: "vpn0".to_owned() };
    for target in [gateway, RouteTarget::Unreachable, RouteTarget::Interface("-x".to_owned())] {
        assert!(refused(&Change::Route(RouteSpec { target, ..route(TABLE_BASE + 7) })));
    }
    assert!(refused(&Change::Route(RouteSpec { metric: Some(1), ..route(TABLE_BASE + 7) })));
    for (source, good) in [
        ("10.8.0.2", true),
        ("fd00::2", false),
        ("127.0.0.1", false),
        ("0.0.0.0", false),
        ("224.0.0.1", false),
    ] {
        let from = RouteSpec { source: source.parse().ok(), ..route(TABLE_BASE + 7) };
        assert_eq!(!refused(&Change::Route(from)), good, "{source}");
    }

    let held_back =
        RouteSpec { target: RouteTarget::Unreachable, metric: Some(LAST_RESORT_METRIC), ..route(MAIN_TABLE) };
    assert!(!refused(&Change::Route(held_back.clone())));
    for wrong in [
        RouteSpec { metric: None, ..held_back.clone() },
        RouteSpec { source: "10.8.0.2".parse().ok(), ..held_back.clone() },
        RouteSpec { metric: Some(0), ..held_back.clone() },
        RouteSpec { table: 255, ..held_back.clone() },
        RouteSpec { destination: "0.0.0.0/0".parse().unwrap(), ..held_back.clone() },
        RouteSpec { destination: "::/0".parse().unwrap(), ..held_back },
    ] {
        assert!(refused(&Change::Route(wrong)));
    }
}

#[test]
fn routes_and_rules_beside_a_tunnel_are_for_little() {
    let special = |destination: &str, target: RouteTarget| RouteSpec {
        destination: destination.parse().unwrap(),
        target,
        metric: Some(LAST_RESORT_METRIC),
        ..route(TABLE_BASE + 7)
    };
    for everything in ["0.0.0.0/0", "::/0"] {
        let refused_all = special(everything, RouteTarget::Unreachable);
        assert!(!refused(&Change::Route(refused_all.clone())));
        for wrong in [
            RouteSpec { table: MAIN_TABLE, ..refused_all.clone() },
            RouteSpec { metric: Some(1), ..refused_all.clone() },
            RouteSpec { metric: None, ..refused_all.clone() },
            RouteSpec { destination: "10.0.0.0/8".parse().unwrap(), ..refused_all.clone() },
            RouteSpec { target: RouteTarget::Throw, ..refused_all },
        ] {
            assert!(refused(&Change::Route(wrong)));
        }
    }
    for everything in ["0.0.0.0/0", "::/0"] {
        let closed = special(everything, RouteTarget::Closed);
        assert!(!refused(&Change::Route(closed.clone())));
        for wrong in [
            RouteSpec { table: MAIN_TABLE, ..closed.clone() },
            RouteSpec { metric: None, ..closed.clone() },
            RouteSpec { destination: "10.0.0.0/8".parse().unwrap(), ..closed },
        ] {
            assert!(refused(&Change::Route(wrong)));
        }
    }
    for local in
        ["192.168.1.0/24", "10.20.0.0/16", "172.31.0.0/16", "169.254.0.0/16", "fd77::/64", "fd77::/48"]
    {
        let outside = special(local, RouteTarget::Throw);
        assert!(!refused(&Change::Route(outside.clone())), "{local}");
        for table in [MAIN_TABLE, TABLE_BASE] {
            assert!(refused(&Change::Route(RouteSpec { table, ..outside.clone() })), "{local}");
        }
        for metric in [None, Some(1)] {
            assert!(refused(&Change::Route(RouteSpec { metric, ..outside.clone() })), "{local}");
        }
    }
    for wide in [
        "10.0.0.0/8",
        "192.168.0.0/15",
        "8.8.8.0/24",
        "100.64.0.0/16",
        "0.0.0.0/1",
        "fd77::/47",
        "2001:db8::/64",
    ] {
        assert!(refused(&Change::Route(special(wide, RouteTarget::Throw))), "{wide}");
    }
}

#[test]
fn routes_and_rules_of_a_tunnel_fit_its_layer() {
    let rule =
        |priority, matches, table| Change::Rule(RuleSpec { family: Family::V4, priority, matches, table });
    let layers: Vec<_> = Layer::all().collect();
    let all_but = |layer: usize| {
        let (mark, mask) = layers[layer].passed_over();
        RuleMatch::NotMarked { mark, mask }
    };
    let [first, refusing, second, closing] = [0, 1, 2, 3].map(|place| layers[2].priority(place));
    let lookups = RuleMatch::User(64_123);
    for table in [TABLE_BASE + 7, TABLE_BASE + 3_000, TABLE_BASE + 1_000_000_007] {
        assert!(!refused(&rule(second, all_but(2), table)));
        assert!(!refused(&rule(closing, all_but(2), table)));
    }
    assert!(!refused(&rule(first, lookups, MAIN_TABLE)) && !refused(&rule(refusing, lookups, NO_TABLE)));
    // Of an earlier version.
    assert!(!refused(&rule(5_262, all_but(0), TABLE_BASE + 7)));
    let (mark, mask) = layers[2].passed_over();
    for (priority, matches, table) in [
        (0, all_but(2), TABLE_BASE + 7),
        (5_262, all_but(1), TABLE_BASE + 7),
        (layers[1].priority(2), all_but(2), TABLE_BASE + 7),
        (second, all_but(1), TABLE_BASE + 7),
        (closing, all_but(1), TABLE_BASE + 7),
        (closing, all_but(2), MAIN_TABLE),
        (first, all_but(2), TABLE_BASE + 7),
        (second, all_but(2), MAIN_TABLE),
        (second, all_but(2), TABLE_BASE + 1_000_000_000),
        (second, RuleMatch::NotMarked { mark: mark + 1, mask }, TABLE_BASE + 7),
        (second, RuleMatch::NotMarked { mark, mask: u32::MAX }, TABLE_BASE + 7),
        (second, RuleMatch::NotMarked { mark, mask: 0 }, TABLE_BASE + 7),
        (layers[0].priority(2) + 1, lookups, MAIN_TABLE),
        (first - RULES * 14, lookups, MAIN_TABLE),
        (first, RuleMatch::User(0), MAIN_TABLE),
        (refusing, RuleMatch::User(0), NO_TABLE),
        (first, lookups, NO_TABLE),
        (refusing, lookups, MAIN_TABLE),
        (refusing, all_but(2), NO_TABLE),
        (second, all_but(2), NO_TABLE),
        (second, lookups, MAIN_TABLE),
        (first, lookups, TABLE_BASE + 7),
        (32_766, lookups, MAIN_TABLE),
    ] {
        assert!(refused(&rule(priority, matches, table)), "{priority} {matches:?} {table}");
    }
}

#[test]
fn routes_to_single_hosts_have_a_table_of_their_own() {
    let hosts =
        |interface: &str, table| Change::HostRoutes(HostRoutes { interface: interface.to_owned(), table });
    assert!(!refused(&hosts("vpnd0", 5_118)) && !refused(&hosts("vpnd0", 1)));
    for other in [0, 253, MAIN_TABLE, 255, TABLE_BASE, TABLE_BASE + 7, u32::MAX] {
        assert!(refused(&hosts("vpnd0", other)), "{other}");
    }
    assert!(refused(&hosts("-x", 5_118)));
}

fn firewall(outgoing: Outgoing) -> Change {
    Change::Firewall(crate::nft::GatewayRules {
        tunnel: "vpnd0".to_owned(),
        pools: Vec::new(),
        masquerade: true,
        blocks: None,
        outgoing,
        inbound: false,
        resumed: false,
        campus: Vec::new(),
        own: Vec::new(),
        services: crate::nft::Services::All,
        pages: None,
        outer_port: None,
        transit_v4: crate::nft::Transit::Untouched,
        transit_v6: crate::nft::Transit::Untouched,
        connections: None,
        entrances: None,
    })
}

#[test]
fn addresses_and_names_are_such_as_a_tunnel_can_have() {
    let address = |interface: &str, address: &str| {
        let (interface, address) = (interface.to_owned(), address.parse().unwrap());
        let spec = AddressSpec { interface, index: None, address };
        Change::Address(spec)
    };
    assert!(!refused(&address("vpn0", "10.86.0.1/16")) && !refused(&address("vpn0", "fd86::1/64")));
    for text in
        ["127.0.0.1/8", "0.0.0.0/32", "224.0.0.1/32", "::1/128", "::/0", "ff02::1/128", "::ffff:10.0.0.1/128"]
    {
        assert!(refused(&address("vpn0", text)), "{text}");
    }
    for name in ["", "-o", "a b", "a/b", "..", "a-name-that-is-too-long", "vpn0\n", "vpn*"] {
        assert!(refused(&address(name, "10.86.0.1/16")), "{name:?}");
        assert!(refused(&Change::LinkUp { interface: name.to_owned() }), "{name:?}");
    }
    for name in ["", "a b", "x\" drop; }", "vpn*"] {
        let tunnel = name.to_owned();
        assert!(
            refused(&Change::Guard(GuardRules {
                tunnel,
                addresses: Vec::new(),
                returning: None,
                excluded: None,
                closes_names: false,
            })),
            "{name:?}"
        );
    }
    let marking = |mark, lookups| {
        let returning = Some(Returning { mark, lookups, arp: true });
        Change::Guard(GuardRules {
            tunnel: "vpn0".to_owned(),
            addresses: Vec::new(),
            returning,
            excluded: None,
            closes_names: false,
        })
    };
    for layer in Layer::all() {
        assert!(!refused(&marking(layer.mark(), None)) && !refused(&marking(layer.mark(), Some(64_123))));
    }
    for (mark, lookups) in [(0, None), (1, None), (0x7670_0000, Some(64_123)), (0x7670_FFFF, Some(0))] {
        assert!(refused(&marking(mark, lookups)), "{mark:#x} {lookups:?}");
    }
    let shutting_out = |mark, mask| {
        let excluded = Some(MarkMatch { mark, mask });
        let (tunnel, addresses) = ("vpn0".to_owned(), Vec::new());
        Change::Guard(GuardRules { tunnel, addresses, returning: None, excluded, closes_names: false })
    };
    for layer in Layer::all() {
        let (mark, mask) = layer.passed_over();
        assert!(!refused(&shutting_out(mark, mask)));
    }
    for (mark, mask) in [(0, 0), (0, 1), (0x7670_0001, 0xFFFF_0000), (0x7670_0000, 0xFFFF_0000)] {
        assert!(refused(&shutting_out(mark, mask)), "{mark:#x} {mask:#x}");
    }
    assert!(!refused(&firewall(Outgoing::AnyButTunnel)));
    assert!(refused(&firewall(Outgoing::Interface("x\" drop; }".to_owned()))));
}

#[test]
fn kernel_settings_are_those_of_forwarding_and_marks_and_go_back_to_less_of_it() {
    for (key, value, before) in [
        ("net/ipv4/ip_forward", "1", "0"),
        ("net/ipv6/conf/all/forwarding", "1", "0"),
        ("net/ipv4/conf/all/src_valid_mark", "1", "0"),
        ("net/ipv6/conf/eth0.7/accept_ra", "2", "1"),
    ] {
        assert!(!refused(&Change::Sysctl(setting(key, value, before))), "{key}");
        for (value, before) in [(before, value), (value, value), (value, "7"), ("0", "1"), (value, "")] {
            assert!(refused(&Change::Sysctl(setting(key, value, before))), "{key} {value:?} {before:?}");
        }
    }
    for key in [
        "kernel/core_pattern",
        "kernel/modprobe",
        "net/ipv4/ip_default_ttl",
        "net/ipv4/conf/all/rp_filter",
        "net/ipv4/conf/eth0/src_valid_mark",
        "net/ipv6/conf/all/accept_ra",
        "net/ipv6/conf/../accept_ra",
        "net/ipv6/conf/a/b/accept_ra",
        "net/ipv6/conf//accept_ra",
        "net/ipv4/../../kernel/core_pattern",
        "/etc/passwd",
        "",
    ] {
        for (value, before) in [("1", "0"), ("2", "1"), ("|/x", "|/x")] {
            assert!(refused(&Change::Sysctl(setting(key, value, before))), "{key}");
        }
    }
}

#[test]
fn settings_that_change_along_are_those_that_the_kernel_changes() {
    let with = |key: &str, value: &str| {
        let dependent = vec![Setting { key: key.to_owned(), value: value.to_owned() }];
        Change::Sysctl(SysctlChange { dependent, ..setting("net/ipv4/ip_forward", "1", "0") })
    };
    for (key, value) in [
        ("net/ipv4/conf/lan0/forwarding", "1"),
        ("net/ipv4/conf/default/forwarding", "1"),
        ("net/ipv4/conf/all/accept_redirects", "1"),
    ] {
        assert!(!refused(&with(key, value)), "{key}");
    }
    for (key, value) in [
        ("net/ipv4/conf/lan0/forwarding", "x"),
        ("net/ipv4/conf/lan0/accept_redirects", "1"),
        ("net/ipv4/conf/all/forwarding", "1"),
        ("net/ipv6/conf/lan0/forwarding", "1"),
        ("kernel/core_pattern", "1"),
        ("net/ipv4/ip_forward", "1"),
    ] {
        assert!(refused(&with(key, value)), "{key}");
    }
}

#[test]
fn the_only_file_is_the_resolvers_and_its_text_is_what_vpnd_writes() {
    let dns = |change: FileChange| Change::Dns(DnsChange::File(change));
    assert!(!refused(&dns(file())));
    for path in ["/etc/passwd", "/etc/../etc/resolv.conf", "etc/resolv.conf", "/tmp/resolv.conf", ""] {
        assert!(refused(&dns(FileChange { path: path.into(), ..file() })), "{path}");
    }
    for mode in [0o4755, 0o2644, 0o1644, 0o10644] {
        let before = FileState::File { content: String::new(), mode, uid: 0, gid: 0 };
        assert!(refused(&dns(FileChange { before, ..file() })), "{mode:o}");
    }
    for content in ["not base64!".to_owned(), "AAAA".repeat(30_000)] {
        let before = FileState::File { content, mode: 0o644, uid: 0, gid: 0 };
        assert!(refused(&dns(FileChange { before, ..file() })));
    }
    for (target, good) in [
        ("../run/systemd/resolve/stub-resolv.conf", true),
        ("/run/NetworkManager/resolv.conf", true),
        ("/etc/shadow", false),
        ("/etc/resolv.conf/..", false),
        ("", false),
    ] {
        let before = FileState::Link { target: target.into() };
        assert_eq!(!refused(&dns(FileChange { before, ..file() })), good, "{target}");
    }
    let other = ["", "x", "nameserver 10.8.0.1\n", &OURS[1..], &OURS.replace("vpn0", "")];
    let lines =
        ["nameserver x", "search a b/c", "sortlist 1", "options a\u{7}", "#!/bin/sh", "root::0:0::/:/bin/sh"];
    let lines = lines.iter().map(|line| format!("{OURS}{line}\n"));
    for after in other.iter().map(|text| (*text).to_owned()).chain(lines) {
        assert!(refused(&dns(FileChange { after: after.clone(), ..file() })), "{after}");
        assert!(refused(&dns(FileChange { replaces: Some(after.clone()), ..file() })), "{after}");
    }
}

#[test]
fn name_servers_of_an_interface_smuggle_nothing_in() {
    let good = DnsSettings {
        interface: "vpn0".to_owned(),
        index: None,
        servers: vec!["10.8.0.1".parse().unwrap()],
        search: vec!["campus.example".to_owned()],
        all_names: false,
    };
    let dns = |settings: DnsSettings| Change::Dns(DnsChange::Resolved(settings));
    assert!(!refused(&dns(good.clone())));
    for domain in ["a\nb", "a b", "--help", "~."] {
        assert!(refused(&dns(DnsSettings { search: vec![domain.to_owned()], ..good.clone() })), "{domain:?}");
    }
    assert!(refused(&dns(DnsSettings { interface: "--help".to_owned(), ..good.clone() })));
    assert!(refused(&dns(DnsSettings { servers: Vec::new(), ..good.clone() })));
    assert!(refused(&dns(DnsSettings { servers: vec!["0.0.0.0".parse().unwrap()], ..good.clone() })));
    assert!(refused(&dns(DnsSettings { servers: vec![good.servers[0]; 1_000], ..good.clone() })));
    assert!(refused(&dns(DnsSettings { search: vec!["a".to_owned(); 1_000], ..good })));
}

#[test]
fn what_is_not_allowed_is_neither_made_nor_undone() {
    in_namespace_async(async || {
        let netlink = Netlink::open().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (program, ttl) = (dir.path().join("program"), "/proc/sys/net/ipv4/ip_default_ttl");
        let now = std::fs::read_to_string(ttl).unwrap().trim().to_owned();
        let before = FileState::File { content: "eA==".to_owned(), mode: 0o4755, uid: 0, gid: 0 };
        let planted = FileChange { path: program.clone(), before, after: OURS.to_owned(), replaces: None };
        for change in [
            Change::Sysctl(setting("net/ipv4/ip_default_ttl", &now, "1")),
            Change::Dns(DnsChange::File(planted)),
        ] {
            std::fs::write(&program, OURS).unwrap();
            for outcome in [change.apply(&netlink).await, change.undo(&netlink).await.map(drop)] {
                assert!(matches!(outcome, Err(ChangeError::Forbidden(_))), "{outcome:?}");
            }
            assert_eq!(std::fs::read_to_string(ttl).unwrap().trim(), now);
            assert_eq!(std::fs::read_to_string(Path::new(&program)).unwrap(), OURS);
        }
    });
}

#[test]
fn an_interface_that_is_no_tunnel_is_left_alone() {
    in_namespace_async(async || {
        let netlink = Netlink::open().unwrap();
        run("ip", &["link", "add", "lan0", "type", "veth", "peer", "name", "lan1"]);
        run("ip", &["link", "set", "lan0", "up"]);
        run("ip", &["address", "add", "192.0.2.1/24", "dev", "lan0"]);
        let interface = || "lan0".to_owned();
        let address = "192.0.2.1/24".parse().unwrap();
        let address = AddressSpec { interface: interface(), index: None, address };
        let index = netlink.link("lan0").await.unwrap().unwrap().index;
        let target = RouteTarget::Interface(interface());
        for change in [
            Change::LinkUp { interface: interface() },
            Change::Address(address),
            Change::Route(RouteSpec { target, ..route(TABLE_BASE + index) }),
        ] {
            let made = change.apply(&netlink).await;
            assert!(matches!(made, Err(ChangeError::Forbidden(_))), "{made:?}");
            assert_eq!(change.undo(&netlink).await.unwrap(), Undone::NotOurs);
        }
        let shown = run("ip", &["address", "show", "lan0"]);
        assert!(shown.contains("192.0.2.1/24") && shown.contains(",UP"), "{shown}");

        // A tunnel, but not the one whose table that is.
        run("ip", &["tuntap", "add", "vp0", "mode", "tun"]);
        let index = netlink.link("vp0").await.unwrap().unwrap().index;
        run("ip", &["link", "set", "vp0", "up"]);
        let to = |table| RouteSpec { target: RouteTarget::Interface("vp0".to_owned()), ..route(table) };
        assert!(Change::Route(to(TABLE_BASE + index + 1)).apply(&netlink).await.is_err());
        Change::Route(to(TABLE_BASE + index)).apply(&netlink).await.unwrap();
        let address = |index| {
            let (interface, address) = ("vp0".to_owned(), "10.86.0.9/32".parse().unwrap());
            Change::Address(AddressSpec { interface, index: Some(index), address })
        };
        assert!(address(index + 1).apply(&netlink).await.is_err());
        address(index).apply(&netlink).await.unwrap();
        assert_eq!(address(index + 1).undo(&netlink).await.unwrap(), Undone::NotOurs);
        let settings = DnsSettings {
            interface: "vp0".to_owned(),
            index: Some(index + 1),
            servers: vec!["10.8.0.1".parse().unwrap()],
            search: Vec::new(),
            all_names: true,
        };
        let names = Change::Dns(DnsChange::Resolved(settings));
        assert_eq!(names.undo(&netlink).await.unwrap(), Undone::NotOurs);
        let up = Change::LinkUp { interface: "vp0".to_owned() };
        assert_eq!(up.undo(&netlink).await.unwrap(), Undone::WasGone, "it goes with its process alone");
        let shown = run("ip", &["address", "show", "vp0"]);
        assert!(shown.contains("10.86.0.9") && shown.contains(",UP"), "{shown}");
    });
}
