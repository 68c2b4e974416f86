//! Behaviour: the congestion marks of inner packets (ECN, RFC 3168) arrive as they were sent, both
//! ways, whatever packets were cut from super-packets or merged into them. Routers between client
//! and gateway see the marks, and one that is congested sets its own, which reaches the inner
//! receiver (RFC 6040). They see the DSCP only if both ends were asked to show it.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use socket2::SockRef;

use crate::client::Client;
use crate::gateway::{Gateway, Login, edit_toml, strings};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, GATEWAY_V4, GATEWAY_V6, Lab, eventually};
use crate::namespace::Namespace;
use crate::process;
use crate::traffic::{TEN_MB, ping, ping_until, transfer};

const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(30);
const DATAGRAMS: u64 = 50;
/// The codepoints, and what nftables calls them.
const MARKS: [(u32, &str); 3] = [(1, "ect1"), (2, "ect0"), (3, "ce")];

/// Counts the packets that arrive in a namespace with each mark. Outer datagrams have marks, too,
/// and are left out.
fn count_marks(namespace: &Namespace) {
    let named = MARKS.map(|(_, name)| format!("counter v4_{name} {{ }}\ncounter v6_{name} {{ }}\n")).concat();
    let rules = MARKS.map(|(_, name)| {
        format!("ip ecn {name} counter name v4_{name}\nip6 ecn {name} counter name v6_{name}\n")
    });
    namespace.nft(&format!(
        "table inet marks {{\n{named}\
             chain in {{\n\
                 type filter hook input priority 0\n\
                 udp sport 4433 return\n\
                 udp dport 4433 return\n\
                 {}\
             }}\n\
         }}\n",
        rules.concat(),
    ));
}

/// Reads a named counter of nftables.
fn counter(lab: &Lab, namespace: &Namespace, name: &str) -> u64 {
    let mut command = process::command(lab, namespace, "nft");
    command.args(["-j", "list", "counters"]);
    let listed: serde_json::Value =
        serde_json::from_slice(&process::run(command).stdout).expect("nft prints JSON");
    let counters = listed["nftables"].as_array().expect("a list").iter();
    let found = counters.map(|item| &item["counter"]).find(|counter| counter["name"] == name);
    found.and_then(|counter| counter["packets"].as_u64()).expect("the counter is there")
}

/// Counts the packets to an address of one IP version that arrived with a mark.
fn arrived(lab: &Lab, namespace: &Namespace, ipv6: bool, mark: &str) -> u64 {
    counter(lab, namespace, &format!("{}_{mark}", if ipv6 { "v6" } else { "v4" }))
}

/// A TCP counter of a namespace.
fn tcp_counter(namespace: &Namespace, name: &str) -> u64 {
    let file = "/proc/thread-self/net/netstat";
    let text = namespace.within(|| std::fs::read_to_string(file)).expect("the kernel counts");
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let at = names.split_whitespace().position(|known| known == name).expect("the kernel has this counter");
    values.split_whitespace().nth(at).expect("a value").parse().expect("a number")
}

/// Sends datagrams with this traffic class: DSCP and mark.
fn send_marked(from: (&Namespace, IpAddr), to: SocketAddr, mark: u32) {
    let socket = from.0.within(|| UdpSocket::bind((from.1, 0))).expect("the address is there");
    let marking = SockRef::from(&socket);
    let set = if to.is_ipv4() { marking.set_tos_v4(mark) } else { marking.set_tclass_v6(mark) };
    set.expect("datagrams may carry any mark");
    // Growing ones are never merged, and the kernel counts a merged one but once.
    for number in 0..DATAGRAMS as usize {
        socket.send_to(&[0x5A; 700][..600 + number], to).expect("there is a route");
    }
}

#[test]
fn marks_arrive_as_they_were_sent() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("policy.campus_to_client", true);
    let ann = gateway.add_user("ann");
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    let (client, campus) = (one.namespace(), &lab.campus);
    for namespace in [client, campus] {
        count_marks(namespace);
    }
    for to in [CAMPUS_V4.into(), CAMPUS_V6.into()] {
        ping_until(client, to, 5 * SECOND);
    }
    for (near, far) in [(one.v4(), IpAddr::from(CAMPUS_V4)), (one.v6(), CAMPUS_V6.into())] {
        for (from, to) in [((client, near), (campus, far)), ((campus, far), (client, near))] {
            // A socket is bound there, so that no ICMP error comes back.
            let listener = to.0.within(|| UdpSocket::bind((to.1, 0))).expect("the address is there");
            for (mark, name) in MARKS {
                let before = arrived(&lab, to.0, to.1.is_ipv6(), name);
                send_marked(from, listener.local_addr().expect("it is bound"), mark);
                let flow = format!("{DATAGRAMS} of {name} from {} to {}", from.1, to.1);
                eventually(&flow, 5 * SECOND, || {
                    (arrived(&lab, to.0, to.1.is_ipv6(), name) == before + DATAGRAMS).then_some(())
                });
            }
        }
    }
}

/// TCP marks all its data once both ends have agreed on it; there the offloads cut and merge.
#[test]
fn tcp_with_ecn_keeps_its_marks() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    for namespace in [one.namespace(), &lab.campus] {
        namespace.sysctl("net/ipv4/tcp_ecn", "1");
        count_marks(namespace);
    }
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    transfer(one.namespace(), &lab.campus, CAMPUS_V4.into(), TEN_MB, LIMIT);
    for namespace in [one.namespace(), &lab.campus] {
        let marked = arrived(&lab, namespace, false, "ect0");
        // A super-packet counts once.
        assert!(marked > (TEN_MB / 65_536) as u64, "{}: only {marked} packets had a mark", namespace.name());
    }
}

/// Takes all but this address of the gateway from a profile: on a busy machine another one may
/// answer first, and then what is counted or marked in one IP version is not there.
fn knows_only(login: &Login, gateway: IpAddr) {
    edit_toml(&login.profile, |profile| {
        profile["server"]["addresses"] = strings(&[&SocketAddr::new(gateway, 4433).to_string()]);
    });
}

/// Has the router between client and gateway mark what is capable of it, as if it were congested.
fn congest(lab: &Lab, mark: &str) {
    lab.net.nft(&format!(
        "table inet congestion {{\n\
             chain forward {{\n\
                 type filter hook forward priority 0\n\
                 udp dport 4433 {mark}\n\
                 udp sport 4433 {mark}\n\
             }}\n\
         }}\n"
    ));
}

#[test]
fn a_congested_router_on_the_way_is_noticed_by_the_inner_ends() {
    for outer_v6 in [false, true] {
        let Some(lab) = Lab::new(1) else { return };
        let mut gateway = Gateway::init(&lab);
        let ann = gateway.add_user("ann");
        knows_only(&ann, if outer_v6 { GATEWAY_V6.into() } else { GATEWAY_V4.into() });
        gateway.start();
        let one = Client::connect(&lab, 1, &ann);
        let family = if outer_v6 { "ip6" } else { "ip" };
        congest(&lab, &format!("{family} ecn != not-ect {family} ecn set ce"));
        for namespace in [one.namespace(), &lab.campus] {
            namespace.sysctl("net/ipv4/tcp_ecn", "1");
            count_marks(namespace);
        }
        for to in [CAMPUS_V4.into(), CAMPUS_V6.into()] {
            ping_until(one.namespace(), to, 5 * SECOND);
            let v6 = to.is_ipv6();
            let ends = [one.namespace(), &lab.campus];
            let before = ends.map(|end| tcp_counter(end, "TCPDeliveredCE"));
            transfer(one.namespace(), &lab.campus, to, TEN_MB / 10, LIMIT);
            for (end, before) in ends.into_iter().zip(before) {
                let marked = arrived(&lab, end, v6, "ce");
                assert!(marked > 10, "{family}: {marked} packets arrived at {} marked", end.name());
                let known = tcp_counter(end, "TCPDeliveredCE") - before;
                assert!(known > 10, "{family}: {} learned of {known} marks of its packets", end.name());
            }
        }
    }
}

#[test]
fn a_congestion_mark_on_a_flow_without_ecn_is_a_loss() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    knows_only(&ann, GATEWAY_V4.into());
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let unused =
        |gateway: &Gateway<'_>| gateway.status()["counters"]["unused_marks"]["not_ect_in_ce"].as_u64();
    assert_eq!((gateway.counter("congestion"), unused(&gateway)), (0, Some(0)));
    congest(&lab, "ip ecn set ce");
    // Pings are not ECN-capable.
    assert!(!ping(one.namespace(), CAMPUS_V4.into(), 56, SECOND), "it had no mark to show the congestion by");
    gateway.counter_above("congestion", 0);
    assert!(unused(&gateway) > Some(0), "{:?}", unused(&gateway));
    let log = gateway.process().output();
    assert!(log.contains("sets congestion marks as no standard provides"), "{log}");
}

/// Datagrams of tests that the router between client and gateway has seen, by what their outer
/// header said.
fn seen(lab: &Lab) -> impl Fn(&str) -> u64 {
    // Longer ones than control messages.
    let test = "udp length > 600 ip ecn ect0";
    lab.net.nft(&format!(
        "table inet seen {{\n\
             counter up_ef {{ }}\n\
             counter up_plain {{ }}\n\
             counter down_ef {{ }}\n\
             counter down_plain {{ }}\n\
             chain forward {{\n\
                 type filter hook forward priority 0\n\
                 udp dport 4433 {test} ip dscp ef counter name up_ef\n\
                 udp dport 4433 {test} ip dscp cs0 counter name up_plain\n\
                 udp sport 4433 {test} ip dscp ef counter name down_ef\n\
                 udp sport 4433 {test} ip dscp cs0 counter name down_plain\n\
             }}\n\
         }}\n"
    ));
    |name| counter(lab, &lab.net, name)
}

#[test]
fn the_path_sees_marks_always_and_the_kind_of_traffic_only_if_asked_to() {
    const EF_AND_ECT0: u32 = 46 << 2 | 2;
    for shown in [false, true] {
        let Some(lab) = Lab::new(1) else { return };
        let mut gateway = Gateway::init(&lab);
        gateway.configure("policy.campus_to_client", true);
        gateway.configure("tunnel.copy_dscp", shown);
        let ann = gateway.add_user("ann");
        knows_only(&ann, GATEWAY_V4.into());
        gateway.start();
        let one = Client::connect_with(&lab, 1, &ann, if shown { &["--copy-dscp"] } else { &[] });
        let (client, campus) = (one.namespace(), &lab.campus);
        ping_until(client, CAMPUS_V4.into(), 5 * SECOND);
        let seen = seen(&lab);
        for ((from, to), direction) in [
            (((client, one.v4()), (campus, IpAddr::from(CAMPUS_V4))), "up"),
            (((campus, CAMPUS_V4.into()), (client, one.v4())), "down"),
        ] {
            let listener = to.0.within(|| UdpSocket::bind((to.1, 0))).expect("the address is there");
            let (expected, other) = if shown { ("ef", "plain") } else { ("plain", "ef") };
            eventually(&format!("{DATAGRAMS} {direction} as {expected}"), 5 * SECOND, || {
                // Again and again, for a busy machine may lose some.
                send_marked(from, listener.local_addr().expect("it is bound"), EF_AND_ECT0);
                (seen(&format!("{direction}_{expected}")) >= DATAGRAMS).then_some(())
            });
            if !shown {
                assert_eq!(seen(&format!("{direction}_{other}")), 0, "nobody asked for it");
            }
        }
    }
}
