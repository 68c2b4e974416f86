//! The rules as the kernel has them, and what they do to packets between three namespaces.

use std::fs::File;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::*;
use crate::testing::{in_namespace_async, run};

fn rules() -> GatewayRules {
    GatewayRules {
        tunnel: "vpt0".to_owned(),
        pools: vec!["10.8.0.0/24".parse().unwrap(), "fd00:8::/64".parse().unwrap()],
        masquerade: true,
        blocks: None,
        outgoing: Outgoing::AnyButTunnel,
        inbound: false,
        resumed: false,
        campus: vec!["172.20.0.0/24".parse().unwrap(), "fd17::/64".parse().unwrap()],
        own: vec!["10.8.0.1".parse().unwrap(), "fd00:8::1".parse().unwrap()],
        services: Services::Dns(vec!["10.8.0.1".parse().unwrap(), "fd00:8::1".parse().unwrap()]),
        pages: None,
        outer_port: Some(4433),
        transit_v4: Transit::Dropped { except: Vec::new() },
        transit_v6: Transit::Dropped { except: Vec::new() },
        connections: Some(ConnectionLimit { per_address: 1_000, addresses: 2_048 }),
        entrances: None,
    }
}

fn entrances(to: &str) -> Option<Box<Entrances>> {
    Some(Box::new(Entrances { ports: vec![443, 53], to: to.parse().unwrap() }))
}

fn blocks() -> PortBlocks {
    "10.8.0.0/24 to 192.0.2.1,192.0.2.2 ports 10000-32767 by 128".parse().unwrap()
}

fn ruleset() -> String {
    run("nft", &["list", "ruleset"])
}

/// Its lines in some order: that of chains depends on which were there before.
fn lines() -> Vec<String> {
    let mut lines: Vec<String> = ruleset().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// The chains with the handles by which the kernel knows them.
fn handles() -> Vec<String> {
    let list = run("nft", &["-a", "list", "ruleset"]);
    let chains = list.lines().filter(|line| line.trim_start().starts_with("chain "));
    chains.map(|line| line.trim().to_owned()).collect()
}

#[test]
fn only_vpnds_nft_table_is_added_and_removed() {
    in_namespace_async(async || {
        run("nft", &["add", "table", "inet", "other"]);
        let before = ruleset();
        let rules = rules();
        rules.apply().await.unwrap();
        let first = ruleset();
        assert!(first.contains("table inet vpnd_vpt0"), "{first}");
        assert!(first.contains("ip saddr 10.8.0.0/24 masquerade"), "{first}");
        assert!(first.contains("ip6 saddr fd00:8::/64 masquerade"), "{first}");
        let chains = handles();
        rules.apply().await.unwrap();
        assert_eq!(ruleset(), first, "applying again replaces, it does not add");
        assert_eq!(handles(), chains, "chains stay hooked in, for a packet must not pass an empty one");
        // A state that another version may have left.
        run("nft", &["delete", "chain", "inet", "vpnd_vpt0", "arrivals"]);
        let elsewhere = "{ type filter hook prerouting priority 5; policy accept; }";
        run("nft", &["add", "chain", "inet", "vpnd_vpt0", "arrivals", elsewhere]);
        rules.apply().await.unwrap();
        assert_eq!(ruleset(), first, "a chain that is hooked in elsewhere is replaced");
        rules.remove().await.unwrap();
        assert_eq!(ruleset(), before);
        rules.remove().await.unwrap();
        assert_eq!(ruleset(), before, "removing twice does no harm");
    });
}

#[test]
fn every_variant_is_accepted_by_the_kernel() {
    in_namespace_async(async || {
        let lan = Outgoing::Interface("eth0.10".to_owned());
        for rules in [
            GatewayRules { masquerade: false, inbound: true, ..rules() },
            GatewayRules { masquerade: false, resumed: true, ..rules() },
            GatewayRules { entrances: entrances("[::]:4433"), ..rules() },
            GatewayRules { entrances: entrances("192.0.2.1:4433"), ..rules() },
            GatewayRules { outgoing: lan.clone(), ..rules() },
            GatewayRules { inbound: true, campus: vec!["0.0.0.0/0".parse().unwrap()], ..rules() },
            GatewayRules { inbound: true, campus: vec!["::/0".parse().unwrap()], ..rules() },
            GatewayRules { inbound: true, campus: Vec::new(), ..rules() },
            GatewayRules { transit_v4: Transit::Untouched, own: Vec::new(), ..rules() },
            GatewayRules { services: Services::All, ..rules() },
            GatewayRules { services: Services::All, connections: None, ..rules() },
            GatewayRules { services: Services::All, connections: None, outer_port: None, ..rules() },
            GatewayRules { outer_port: None, ..rules() },
            GatewayRules { connections: Some(ConnectionLimit { per_address: 7, addresses: 9 }), ..rules() },
            GatewayRules { blocks: Some(blocks()), ..rules() },
            GatewayRules { blocks: Some(blocks()), outgoing: lan.clone(), ..rules() },
            GatewayRules { services: Services::Dns(Vec::new()), ..rules() },
            GatewayRules { pages: Some(Box::new("[::]:443".parse().unwrap())), ..rules() },
            GatewayRules { pages: Some(Box::new("192.0.2.1:443".parse().unwrap())), ..rules() },
            GatewayRules { pages: Some(Box::new("[2001:db8::1]:443".parse().unwrap())), ..rules() },
            GatewayRules {
                transit_v4: Transit::Dropped { except: vec!["br-0".to_owned(), "odd name\"".to_owned()] },
                ..rules()
            },
            GatewayRules { pools: vec!["10.8.0.0/24".parse().unwrap()], outgoing: lan, ..rules() },
            GatewayRules { pools: vec!["fd00:8::1/64".parse().unwrap()], ..rules() },
            GatewayRules {
                pools: vec!["10.0.0.0/9".parse().unwrap(), "10.8.0.0/24".parse().unwrap()],
                ..rules()
            },
        ] {
            rules.apply().await.unwrap();
            let refilled = lines();
            rules.remove().await.unwrap();
            rules.apply().await.unwrap();
            assert_eq!(refilled, lines(), "nothing is left of the rules before");
        }
    });
}

#[test]
fn a_kernel_without_times_of_connections_takes_the_rules_without_them() {
    in_namespace_async(async || {
        for anew in [false, true] {
            let refused = std::cell::Cell::new(0);
            let old_kernel = async |script: super::Script| {
                if script.text.contains("ct timeout") {
                    refused.set(refused.get() + 1);
                    let message = "Operation not supported".to_owned();
                    return Err(ToolError::Refused { program: "nft", message }.into());
                }
                let super::Script { table, text } = &script;
                if anew { super::run(&(remove_script(table) + text)).await } else { script.run().await }
            };
            rules().put(old_kernel).await.unwrap();
            assert_eq!(refused.get(), 1);
            assert!(ruleset().contains("chain input") && !ruleset().contains("ct timeout"));
        }
    });
}

#[test]
fn other_blocks_take_the_place_of_those_before_and_none_stay_without() {
    in_namespace_async(async || {
        let blocks = |text: &str| GatewayRules { blocks: Some(text.parse().unwrap()), ..rules() };
        blocks("10.8.0.0/24 to 192.0.2.1,192.0.2.2 ports 10000-32767 by 128").apply().await.unwrap();
        let first = ruleset();
        for part in [
            "10.8.0.7 : 192.0.2.1 . 10896-11023",
            "ip saddr map { 10.8.0.0-10.8.0.176 : 192.0.2.1, 10.8.0.177-10.8.0.255 : 192.0.2.2 }",
            "ip daddr { 192.0.2.1, 192.0.2.2 } drop",
        ] {
            assert!(first.contains(part), "{part}: {first}");
        }
        assert!(!first.contains("masquerade"), "IPv6 is not translated: {first}");
        let arrives =
            |line: &str| line.trim().starts_with("iifname") && line.ends_with("ip6 daddr fd00:8::/64 drop");
        assert!(!first.lines().any(arrives), "its answers come to the pool: {first}");
        blocks("10.8.0.0/24 to 192.0.2.3 ports 20000-52767 by 64").apply().await.unwrap();
        let second = ruleset();
        assert!(second.contains("10.8.0.7 : 192.0.2.3 . 20448-20511"), "{second}");
        assert!(!second.contains("192.0.2.1"), "{second}");
        rules().apply().await.unwrap();
        assert!(!ruleset().contains("port_blocks"), "{}", ruleset());
    });
}

#[test]
fn names_that_mean_something_else_are_refused() {
    for name in ["", "vp*", "a\" accept; #", "eth0\n", "sixteen-bytes-xx"] {
        let tunnel = GatewayRules { tunnel: name.to_owned(), ..rules() };
        assert!(matches!(tunnel.script(true), Err(NftError::BadName(_))), "{name:?}");
        let outgoing = GatewayRules { outgoing: Outgoing::Interface(name.to_owned()), ..rules() };
        assert!(matches!(outgoing.script(true), Err(NftError::BadName(_))), "{name:?}");
    }
}

/// A gateway between a client's end of `vpt0` and a campus host's end of `lan0`:
///
/// ```text
/// [client 10.8.0.2] vpt0-peer == vpt0 [gateway] lan0 == lan0-peer [campus 172.20.0.2]
/// ```
///
/// Client and campus are two network namespaces kept alive by a sleeping process each.
struct Campus {
    client: Child,
    campus: Child,
}

impl Campus {
    fn build() -> Self {
        let keeper = || {
            let child = Command::new("unshare").args(["-n", "sleep", "60"]).spawn().unwrap();
            // The namespace exists once the keeper has become `sleep`.
            let exe = format!("/proc/{}/comm", child.id());
            while !std::fs::read_to_string(&exe).unwrap().starts_with("sleep") {
                std::thread::yield_now();
            }
            child
        };
        let this = Self { client: keeper(), campus: keeper() };
        for (link, own, child, peer) in [
            ("vpt0", "10.8.0.1/24", &this.client, "10.8.0.2/24"),
            ("lan0", "172.20.0.1/24", &this.campus, "172.20.0.2/24"),
        ] {
            let other = format!("{link}-peer");
            run("ip", &["link", "add", link, "type", "veth", "peer", "name", &other]);
            run("ip", &["link", "set", &other, "netns", &child.id().to_string()]);
            run("ip", &["addr", "add", own, "dev", link]);
            run("ip", &["link", "set", link, "up"]);
            Self::inside(child, &["ip", "addr", "add", peer, "dev", &other]);
            Self::inside(child, &["ip", "link", "set", &other, "up"]);
        }
        Self::inside(&this.client, &["ip", "route", "add", "default", "via", "10.8.0.1"]);
        run("sysctl", &["-qw", "net.ipv4.ip_forward=1"]);
        this
    }

    fn inside(child: &Child, command: &[&str]) -> String {
        let target = child.id().to_string();
        run("nsenter", &[&["-t", &target, "-n"], command].concat())
    }

    /// A socket in the other namespace.
    fn socket(child: &Child, address: &str) -> UdpSocket {
        let namespace = File::open(format!("/proc/{}/ns/net", child.id())).unwrap();
        let address = address.to_owned();
        std::thread::spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            UdpSocket::bind(address).unwrap()
        })
        .join()
        .unwrap()
    }
}

/// Sends a datagram and returns the source address that it arrives with.
fn arrives(from: &UdpSocket, to: &UdpSocket, address: &str) -> IpAddr {
    // Enough for a busy machine.
    sent(from, to, address, Duration::from_secs(10)).expect("it is to arrive")
}

/// Sends a datagram and returns whether it was dropped.
fn is_stopped(from: &UdpSocket, to: &UdpSocket, address: &str) -> bool {
    sent(from, to, address, Duration::from_millis(300)).is_none()
}

fn sent(from: &UdpSocket, to: &UdpSocket, address: &str, patience: Duration) -> Option<IpAddr> {
    to.set_read_timeout(Some(patience)).unwrap();
    from.send_to(b"hello", address).unwrap();
    let (_, source) = to.recv_from(&mut [0; 16]).ok()?;
    Some(source.ip())
}

impl Drop for Campus {
    fn drop(&mut self) {
        for child in [&mut self.client, &mut self.campus] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn clients_reach_the_campus_and_nothing_else_is_forwarded() {
    in_namespace_async(async || {
        let net = Campus::build();
        Campus::inside(&net.client, &["ip", "addr", "add", "10.99.0.2/32", "dev", "vpt0-peer"]);
        let client = Campus::socket(&net.client, "10.8.0.2:5000");
        let spoofer = Campus::socket(&net.client, "10.99.0.2:5000");
        let host = Campus::socket(&net.campus, "172.20.0.2:5000");
        let knock = Campus::socket(&net.campus, "172.20.0.2:5001");
        Campus::inside(&net.campus, &["ip", "route", "add", "default", "via", "172.20.0.1"]);
        let (gateway, own): (IpAddr, IpAddr) = ("172.20.0.1".parse().unwrap(), "10.8.0.2".parse().unwrap());

        assert_eq!(arrives(&client, &host, "172.20.0.2:5000"), own, "plain forwarding works");
        // And checks nothing.
        arrives(&spoofer, &host, "172.20.0.2:5000");
        arrives(&knock, &client, "10.8.0.2:5000");

        // Another port, since the kernel remembers the connections made so far.
        let client = Campus::socket(&net.client, "10.8.0.2:6000");
        let spoofer = Campus::socket(&net.client, "10.99.0.2:6000");
        rules().apply().await.unwrap();
        assert_eq!(arrives(&client, &host, "172.20.0.2:5000"), gateway, "masqueraded");
        assert_eq!(
            arrives(&host, &client, "172.20.0.1:6000"),
            "172.20.0.2".parse::<IpAddr>().unwrap(),
            "answered"
        );
        assert!(is_stopped(&spoofer, &host, "172.20.0.2:5000"), "a source outside the pools");
        assert!(is_stopped(&knock, &client, "10.8.0.2:6000"), "the campus may not open connections");
        let routed = || GatewayRules { masquerade: false, ..rules() };
        routed().apply().await.unwrap();
        assert!(is_stopped(&knock, &client, "10.8.0.2:6000"), "nor where it knows the way");
        GatewayRules { inbound: true, ..routed() }.apply().await.unwrap();
        arrives(&knock, &client, "10.8.0.2:6000");
        let knock = Campus::socket(&net.campus, "172.20.0.2:5002");
        let other = vec!["172.21.0.0/16".parse().unwrap()];
        GatewayRules { inbound: true, campus: other, ..routed() }.apply().await.unwrap();
        assert!(is_stopped(&knock, &client, "10.8.0.2:6000"), "a host outside the pushed networks");
        let elsewhere = Outgoing::Interface("wan0".to_owned());
        GatewayRules { outgoing: elsewhere, ..rules() }.apply().await.unwrap();
        assert!(is_stopped(&client, &host, "172.20.0.2:5000"), "this way out is not allowed");
        GatewayRules { masquerade: false, ..rules() }.apply().await.unwrap();
        let client = Campus::socket(&net.client, "10.8.0.2:7000");
        assert_eq!(arrives(&client, &host, "172.20.0.2:5000"), own, "routed as it is");
    });
}

/// A cloud answers at that address, with secrets of the machine.
#[test]
fn clients_do_not_reach_link_local_hosts_of_the_gateway() {
    in_namespace_async(async || {
        let net = Campus::build();
        Campus::inside(&net.campus, &["ip", "addr", "add", "169.254.169.254/32", "dev", "lan0-peer"]);
        run("ip", &["route", "add", "169.254.169.254/32", "dev", "lan0"]);
        let client = Campus::socket(&net.client, "10.8.0.2:5000");
        let metadata = Campus::socket(&net.campus, "169.254.169.254:5000");
        rules().apply().await.unwrap();
        assert!(is_stopped(&client, &metadata, "169.254.169.254:5000"));
        let host = Campus::socket(&net.campus, "172.20.0.2:5000");
        arrives(&client, &host, "172.20.0.2:5000");
        rules().remove().await.unwrap();
        let client = Campus::socket(&net.client, "10.8.0.2:6000");
        Campus::inside(&net.campus, &["ip", "route", "add", "default", "via", "172.20.0.1"]);
        arrives(&client, &metadata, "169.254.169.254:5000");
    });
}

/// The kernel would pass on what one client sends to the address of another that has no session,
/// back into the tunnel.
#[test]
fn clients_do_not_reach_each_other_through_the_kernel() {
    in_namespace_async(async || {
        let net = Campus::build();
        // Both clients stand in one namespace; what leaves it still goes to the gateway.
        for command in [
            "addr add 10.8.0.77/32 dev vpt0-peer",
            "rule add pref 10 lookup local",
            "rule add pref 5 iif lo to 10.8.0.77 lookup 100",
            "route add 10.8.0.77 via 10.8.0.1 dev vpt0-peer table 100",
            "rule del pref 0",
        ] {
            Campus::inside(&net.client, &["ip"].into_iter().chain(command.split(' ')).collect::<Vec<_>>());
        }
        Campus::inside(&net.client, &["sysctl", "-qw", "net.ipv4.conf.all.accept_local=1"]);
        let client = Campus::socket(&net.client, "10.8.0.2:5000");
        let other = Campus::socket(&net.client, "10.8.0.77:5000");
        let own: IpAddr = "10.8.0.2".parse().unwrap();
        assert_eq!(arrives(&client, &other, "10.8.0.77:5000"), own, "plain forwarding works");
        GatewayRules { inbound: true, ..rules() }.apply().await.unwrap();
        assert!(is_stopped(&client, &other, "10.8.0.77:5000"), "policy is the daemon's alone");
    });
}
