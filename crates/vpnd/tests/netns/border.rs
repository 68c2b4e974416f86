//! Behaviour: what crosses the borders of tunnel and campus: nothing that neither comes from the
//! tunnel nor belongs there, from any sender and under any address.
//!
//! Every attack is made again without the rules that stop it, and must then succeed: so it is one.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::client::{Client, TUN, cleanup};
use crate::gateway::{Gateway, INNER_V4, INNER_V6, Login, edit_toml, must, strings};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, GATEWAY_V4, Lab, UPLINK, eventually};
use crate::namespace::Namespace;
use crate::process;
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);
/// Time to wait for something that must not come.
const KEPT_OUT: Duration = SECOND;
/// Time to wait for something that comes, on a machine with other work.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(20);
const LISTENS: u16 = 7_000;
/// `net`'s addresses on its link to the gateway: a host on the gateway's WAN.
const WAN: [&str; 2] = ["198.18.0.1", "fd18::1"];
/// Addresses of the pools that no client has.
const SPOOFED: [&str; 2] = ["10.86.0.77", "fd86::77"];

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// A socket on a port that an earlier one had: a process that another test starts has that one,
/// too, until it runs its program.
fn bound<T: Send>(there: &Namespace, bind: impl Fn() -> io::Result<T> + Sync) -> T {
    eventually("the address is there, and free", 5 * SECOND, || there.within(&bind).ok())
}

/// Whether a datagram that `from` sends as `source` comes to `to` in the other box, again and again
/// for as long as it is `expected` to come or not. The sender must have the address.
pub(crate) fn arrives(
    (from, source): (&Namespace, IpAddr),
    (there, to): (&Namespace, IpAddr),
    expected: bool,
) -> bool {
    let receiver = bound(there, || UdpSocket::bind((to, LISTENS)));
    let sender = from.within(|| UdpSocket::bind((source, 0))).expect("the address is the sender's");
    receiver.set_read_timeout(Some(SECOND / 10)).expect("a socket");
    let end = Instant::now() + if expected { ARRIVAL_TIMEOUT } else { KEPT_OUT };
    let mut buffer = [0; 64];
    while Instant::now() < end {
        // A border may refuse by ICMP, too.
        let _ = sender.send_to(b"from elsewhere", SocketAddr::new(to, LISTENS));
        if let Ok((length, _)) = receiver.recv_from(&mut buffer) {
            assert_eq!(&buffer[..length], b"from elsewhere");
            return true;
        }
    }
    false
}

/// Nothing but the rules under test is in the way of forged packets.
fn believe_every_source(namespace: &Namespace, interfaces: &[&str]) {
    for interface in ["all", "default"].iter().chain(interfaces) {
        namespace.sysctl(&format!("net/ipv4/conf/{interface}/rp_filter"), "0");
    }
}

/// A laboratory in which hosts on the WAN know the way through the gateway and have forged
/// addresses too.
fn lab_with_attackers() -> Option<Lab> {
    let lab = Lab::new(1)?;
    believe_every_source(&lab.gateway, &[UPLINK, "campus0"]);
    believe_every_source(&lab.campus, &[UPLINK]);
    believe_every_source(&lab.clients[0], &[UPLINK]);
    lab.net.ip_batch(&format!(
        "route add 10.200.0.0/24 via {GATEWAY_V4}\n\
         route add fd20::/64 via fd18::2\n\
         route add 10.86.0.0/16 via {GATEWAY_V4}\n\
         route add fd86::/64 via fd18::2\n"
    ));
    for own in SPOOFED.into_iter().chain([INNER_V4, INNER_V6]) {
        lab.net.ip_batch(&format!("addr add {own} dev lo\n"));
    }
    Some(lab)
}

fn campus() -> [IpAddr; 2] {
    [CAMPUS_V4.into(), CAMPUS_V6.into()]
}

/// Whether this crosses: IPv4 from `net` to campus and back, then IPv6, each as itself.
fn through_the_gateway(lab: &Lab, expected: [bool; 4]) -> Vec<bool> {
    let hosts = WAN.map(address).into_iter().zip(campus());
    let pairs = hosts.flat_map(|(wan, campus)| {
        let (wan, campus) = ((&lab.net, wan), (&lab.campus, campus));
        [(wan, campus), (campus, wan)]
    });
    pairs.zip(expected).map(|((from, to), expected)| arrives(from, to, expected)).collect()
}

/// Whether packets come from `net` to campus under addresses of the tunnel.
fn under_inner_addresses(lab: &Lab, expected: bool) -> Vec<bool> {
    // The kernel alone refuses its own IPv4 address as a source.
    let sources = SPOOFED.into_iter().chain([INNER_V6]).map(address);
    let to_campus = sources.map(|source| {
        let [v4, v6] = campus();
        let to = if source.is_ipv4() { v4 } else { v6 };
        arrives((&lab.net, source), (&lab.campus, to), expected)
    });
    to_campus.collect()
}

fn without_rules(namespace: &Namespace, table: &str) {
    namespace.nft(&format!("delete table inet {table}\n"));
}

/// Removes the gateway's rules and keeps it from putting them back: its parent stands still.
fn without_gateways_rules(lab: &Lab, gateway: &mut Gateway<'_>) {
    gateway.process().signal(Signal::STOP);
    without_rules(&lab.gateway, "vpnd_vpnd0");
}

fn installed<'l>(lab: &'l Lab, mode: &str) -> Gateway<'l> {
    let gateway = Gateway::init(lab);
    gateway.configure("nat.mode", mode);
    gateway
}

#[test]
fn clients_leave_by_the_outgoing_interface_alone() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = installed(&lab, "nftables");
    let ann = gateway.add_user("ann");
    gateway.configure("nat.outgoing_interface", UPLINK);
    let said = process::text(&must(gateway.check()));
    assert!(said.contains("reaches 10.200.0.0/24 by campus0"), "{said}");
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), address(INNER_V4), 5 * SECOND);
    for campus in campus() {
        assert!(!ping(one.namespace(), campus, 56, SECOND), "the campus is not behind {UPLINK}");
        // The masquerade is for the named interface alone, so what left by another interface would
        // have no answer either.
        let own = if campus.is_ipv4() { one.v4() } else { one.v6() };
        assert!(!arrives((one.namespace(), own), (&lab.campus, campus), false), "a packet left by campus0");
    }
    gateway.configure("nat.outgoing_interface", "campus0");
    gateway.terminate();
    gateway.start();
    for campus in campus() {
        ping_until(one.namespace(), campus, 30 * SECOND);
    }
}

#[test]
fn a_gateway_makes_its_machine_no_router_for_others() {
    let Some(lab) = lab_with_attackers() else { return };
    let mut gateway = installed(&lab, "nftables");
    let ann = gateway.add_user("ann");
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    for (attempt, how) in ["first start", "start after a kill"].into_iter().enumerate() {
        if attempt > 0 {
            gateway.kill();
            gateway.start();
        }
        // After a kill the client finds out by itself.
        for to in campus() {
            ping_until(one.namespace(), to, 60 * SECOND);
        }
        assert_eq!(through_the_gateway(&lab, [false; 4]), [false; 4], "{how}");
        assert_eq!(under_inner_addresses(&lab, false), [false; 3], "{how}");
    }
    without_gateways_rules(&lab, &mut gateway);
    assert_eq!(through_the_gateway(&lab, [true; 4]), [true; 4], "without its rules it is a router");
    assert_eq!(under_inner_addresses(&lab, true), [true; 3], "and believes everybody");
}

#[test]
fn a_machine_that_is_a_router_stays_one() {
    let Some(lab) = lab_with_attackers() else { return };
    for key in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        lab.gateway.sysctl(key, "1");
    }
    let mut gateway = installed(&lab, "nftables");
    gateway.start();
    for attempt in 0..2 {
        if attempt > 0 {
            gateway.kill();
            gateway.start();
        }
        assert_eq!(through_the_gateway(&lab, [true; 4]), [true; 4], "start {attempt}");
        assert_eq!(under_inner_addresses(&lab, false), [false; 3], "start {attempt}");
    }
}

/// A container that is made again has no journal, and still the machine's forwarding.
#[test]
fn a_lost_journal_makes_no_router() {
    let Some(lab) = lab_with_attackers() else { return };
    let mut gateway = installed(&lab, "nftables");
    gateway.start();
    gateway.kill();
    std::fs::remove_dir_all(gateway.journal()).expect("the gateway has made it");
    gateway.start();
    assert_eq!(through_the_gateway(&lab, [false; 4]), [false; 4]);
    gateway.terminate();
    gateway.tear_down();
    for key in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        let path = format!("/proc/sys/{key}");
        assert_eq!(
            lab.gateway.within(|| std::fs::read_to_string(&path)).expect("a setting").trim(),
            "0",
            "{key}"
        );
    }
}

#[test]
fn an_interface_that_forwarded_keeps_forwarding() {
    let Some(lab) = lab_with_attackers() else { return };
    lab.gateway.sysctl("net/ipv4/conf/campus0/forwarding", "1");
    let mut gateway = installed(&lab, "nftables");
    gateway.start();
    // Packets by that interface were forwarded before, and nothing else.
    let from_campus_v4 = [false, true, false, false];
    assert_eq!(through_the_gateway(&lab, from_campus_v4), from_campus_v4);
}

/// WAN and campus to addresses of the tunnel, as themselves and as others of the tunnel.
fn into_the_tunnel(lab: &Lab, client: &Client<'_>, expected: bool) -> Vec<(String, bool)> {
    let mut reached = Vec::new();
    let sources = WAN.into_iter().chain(SPOOFED).chain([INNER_V6]).map(address);
    for source in sources {
        let inner = if source.is_ipv4() { client.v4() } else { client.v6() };
        let arrived = arrives((&lab.net, source), (client.namespace(), inner), expected);
        reached.push((format!("{source} to the client's {inner}"), arrived));
    }
    for (source, inner) in WAN.map(address).into_iter().zip([INNER_V4, INNER_V6].map(address)) {
        // The attacker has that address too, for the cases above.
        lab.net.ip_batch(&format!("addr del {inner} dev lo\n"));
        let arrived = arrives((&lab.net, source), (&lab.gateway, inner), expected);
        lab.net.ip_batch(&format!("addr add {inner} dev lo\n"));
        reached.push((format!("{source} to the gateway's {inner}"), arrived));
    }
    reached
}

#[test]
fn tunnel_addresses_are_unreachable_from_outside() {
    for mode in ["nftables", "route"] {
        let Some(lab) = lab_with_attackers() else { return };
        let mut gateway = installed(&lab, mode);
        let ann = gateway.add_user("ann");
        gateway.start();
        let one = Client::connect(&lab, 1, &ann);
        believe_every_source(one.namespace(), &[TUN]);
        ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
        let reached: Vec<_> =
            into_the_tunnel(&lab, &one, false).into_iter().filter(|(_, arrived)| *arrived).collect();
        assert!(reached.is_empty(), "in mode {mode}: {reached:?}");
        without_gateways_rules(&lab, &mut gateway);
        let stopped: Vec<_> =
            into_the_tunnel(&lab, &one, true).into_iter().filter(|(_, arrived)| !*arrived).collect();
        assert!(stopped.is_empty(), "without rules, in mode {mode}: {stopped:?}");
    }
}

#[test]
fn a_neighbour_does_not_reach_a_clients_inner_addresses() {
    let Some(lab) = lab_with_attackers() else { return };
    let mut gateway = installed(&lab, "nftables");
    let ann = gateway.add_user("ann");
    gateway.start();
    let mut one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let inner = [one.v4(), one.v6()];
    // The router of the client's own network stands next to it.
    lab.net.ip_batch(&format!(
        "route replace {}/32 via 198.18.1.2\nroute replace {}/128 via fd18:1::2\n",
        inner[0], inner[1]
    ));
    let neighbour = ["198.18.1.1", "fd18:1::1"].map(address);
    let reached = |sources: [IpAddr; 2], expected: bool| -> Vec<bool> {
        let pairs = sources.into_iter().zip(inner);
        pairs.map(|(from, to)| arrives((&lab.net, from), (&lab.clients[0], to), expected)).collect()
    };
    // It sends as itself, and as hosts that the client talks to through the tunnel.
    for sources in [neighbour, [INNER_V4, INNER_V6].map(address)] {
        assert_eq!(reached(sources, false), [false; 2], "{sources:?}");
    }
    assert!(inner.iter().all(|to| !ping(&lab.net, *to, 56, SECOND / 2)), "nor does it answer a ping");
    assert!(inner.iter().all(|to| ping(one.namespace(), *to, 56, SECOND)), "it reaches itself");

    // A client that was killed leaves addresses nowhere, and the guard until it is cleaned up
    // after.
    one.kill();
    assert!(one.firewall().contains("vpndguard"), "the guard is still there");
    must(cleanup(&lab, 1));
    assert_eq!(one.firewall(), "", "and goes with everything else");

    let mut one = Client::connect(&lab, 1, &ann);
    assert_eq!([one.v4(), one.v6()], inner, "the same device gets the same addresses");
    // It would put its guard back.
    one.process().signal(Signal::STOP);
    without_rules(one.namespace(), "vpndguard_vpn0");
    assert_eq!(reached(neighbour, true), [true; 2], "without the guard the neighbour reaches them");
}

/// In mode `route` the campus finds its way to clients, and then policy decides.
#[test]
fn the_campus_opens_connections_to_clients_only_where_it_may() {
    let Some(lab) = lab_with_attackers() else { return };
    let mut gateway = installed(&lab, "route");
    let ann = gateway.add_user("ann");
    for allowed in [false, true] {
        gateway.configure("policy.campus_to_client", allowed);
        gateway.start();
        let one = Client::connect(&lab, 1, &ann);
        ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
        ping_until(one.namespace(), CAMPUS_V6.into(), 5 * SECOND);
        for (from, to) in campus().into_iter().zip([one.v4(), one.v6()]) {
            let arrived = arrives((&lab.campus, from), (one.namespace(), to), allowed);
            assert_eq!(arrived, allowed, "{from} to {to}");
        }
        // The Internet is no campus, nor does it become one by calling itself so.
        lab.net.ip_batch("addr add 10.200.0.99 dev lo\naddr add fd20::99 dev lo\n");
        for source in WAN.into_iter().chain(["10.200.0.99", "fd20::99"]).map(address) {
            let to = if source.is_ipv4() { one.v4() } else { one.v6() };
            assert!(!arrives((&lab.net, source), (one.namespace(), to), false), "{source} to {to}");
        }
        lab.net.ip_batch("addr del 10.200.0.99 dev lo\naddr del fd20::99 dev lo\n");
        drop(one);
        gateway.terminate();
    }
}

/// Whether a TCP connection comes about.
fn connects(from: &Namespace, server: &Namespace, to: IpAddr) -> bool {
    let listener = bound(server, || TcpListener::bind((to, LISTENS)));
    let address = listener.local_addr().expect("it is bound");
    from.within(|| TcpStream::connect_timeout(&address, SECOND / 2)).is_ok()
}

/// The gateway's addresses on the Internet, on the campus and in the tunnel.
const GATEWAYS: [&str; 6] = ["198.18.0.2", "fd18::2", "10.200.0.1", "fd20::1", INNER_V4, INNER_V6];

/// A client that sends everything into its tunnel, whatever was pushed.
fn greedy(gateway: &Gateway<'_>) -> Login {
    let ann = gateway.add_user("ann");
    edit_toml(&ann.profile, |profile| {
        let tunnel = profile.entry("tunnel").or_insert_with(|| toml::Value::Table(toml::Table::new()));
        tunnel.as_table_mut().expect("a section").insert("routes".to_owned(), "all".into());
    });
    ann
}

#[test]
fn clients_reach_pushed_networks_only() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = installed(&lab, "nftables");
    let ann = greedy(&gateway);
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    let from = one.namespace();
    ping_until(from, CAMPUS_V4.into(), 5 * SECOND);
    ping_until(from, CAMPUS_V6.into(), 5 * SECOND);
    let internet =
        || WAN.map(address).map(|to| connects(from, &lab.net, to) || ping(from, to, 56, SECOND / 2));
    assert_eq!(internet(), [false; 2], "the gateway is no exit");

    gateway.configure("push.routes", strings(&["0.0.0.0/0", "::/0"]));
    must(gateway.ask(&["reload"]));
    eventually("what is pushed now is reached", 5 * SECOND, || (internet() == [true; 2]).then_some(()));
}

#[test]
fn a_rule_that_names_a_network_opens_it() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = installed(&lab, "nftables");
    let ann = greedy(&gateway);
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let [v4, v6] = WAN.map(address);
    for (to, opens) in [("any", false), ("198.18.0.1", true)] {
        edit_toml(&gateway.config(), |table| {
            let rule: toml::Table = format!("action = \"allow\"\nto = \"{to}\"\n").parse().expect("a rule");
            let policy = table.entry("policy").or_insert_with(|| toml::Value::Table(toml::Table::new()));
            let policy = policy.as_table_mut().expect("a section");
            policy.insert("rules".to_owned(), vec![toml::Value::Table(rule)].into());
        });
        must(gateway.ask(&["reload"]));
        if opens {
            ping_until(one.namespace(), v4, 5 * SECOND);
        } else {
            assert!(!ping(one.namespace(), v4, 56, SECOND), "allow to {to}");
        }
        assert!(!ping(one.namespace(), v6, 56, SECOND / 2), "nobody named {v6}");
    }
}

#[test]
fn of_the_gateway_itself_clients_reach_ping_and_pushed_dns() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = installed(&lab, "nftables");
    gateway.configure("push.routes", strings(&["0.0.0.0/0", "::/0"]));
    let ann = greedy(&gateway);
    gateway.start();
    let one = Client::connect_with(&lab, 1, &ann, &["--no-dns"]);
    let from = one.namespace();
    // The outer addresses themselves are what the tunnel's own datagrams go to.
    let services = || GATEWAYS.map(address).map(|to| connects(from, &lab.gateway, to));
    for to in GATEWAYS.map(address) {
        ping_until(from, to, 5 * SECOND);
    }
    assert_eq!(services(), [false; 6]);
    let dns = |to: &str| {
        let to = address(to);
        let server = bound(&lab.gateway, || UdpSocket::bind((to, 53)));
        let client = from.within(|| UdpSocket::bind((one.v4(), 0))).expect("its address");
        server.set_read_timeout(Some(SECOND)).expect("a socket");
        let _ = client.send_to(b"a question", (to, 53));
        server.recv_from(&mut [0; 64]).is_ok()
    };
    assert!(!dns(INNER_V4), "it is no name server");
    gateway.configure("push.dns", strings(&[INNER_V4]));
    must(gateway.ask(&["reload"]));
    // The client sets up its tunnel again meanwhile.
    eventually("it is now", 10 * SECOND, || dns(INNER_V4).then_some(()));
    assert!(!dns("10.200.0.1"), "but only at the address that was pushed");
    assert_eq!(services(), [false; 6], "and for nothing else");

    gateway.configure("policy.client_to_gateway", true);
    must(gateway.ask(&["reload"]));
    eventually("all services are reached", 10 * SECOND, || (services() == [true; 6]).then_some(()));
}

/// The provider's name server stands next to the gateway, and outside of all that is pushed.
#[test]
fn a_pushed_name_server_is_asked_through_the_tunnel_wherever_it_is() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = installed(&lab, "nftables");
    for address in ["203.0.113.53", "fd53::53"] {
        lab.net.ip_batch(&format!("addr add {address} dev lo\n"));
    }
    gateway.configure("push.dns", strings(&["203.0.113.53", "fd53::53"]));
    let ann = gateway.add_user("ann");
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    let from = one.namespace();
    ping_until(from, CAMPUS_V4.into(), 5 * SECOND);
    for (server, gateway) in [("203.0.113.53", "198.18.0.2"), ("fd53::53", "fd18::2")] {
        let (server, gateway) = (address(server), address(gateway));
        let socket = lab.net.within(|| UdpSocket::bind((server, 53))).expect("its address");
        socket.set_read_timeout(Some(5 * SECOND)).expect("a socket");
        let asking = from.within(|| UdpSocket::bind(("::", 0))).expect("a socket");
        let to = match server {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
            v6 @ IpAddr::V6(_) => v6,
        };
        asking.send_to(b"a question", SocketAddr::new(to, 53)).expect("there is a route");
        let (_, asker) = socket.recv_from(&mut [0; 64]).expect("the question arrives");
        assert_eq!(asker.ip(), gateway, "it comes out of the gateway, not of the client in clear");
    }
}
