//! Behaviour: the congestion marks of inner packets (ECN, RFC 3168) arrive as they were sent, both ways, whatever packets
//! were cut from super-packets or merged into them. Outer datagrams carry no mark: RFC 6040, compatibility mode.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use socket2::SockRef;

use crate::client::Client;
use crate::gateway::Gateway;
use crate::lab::{CAMPUS_V4, CAMPUS_V6, Lab, eventually};
use crate::namespace::Namespace;
use crate::traffic::{TEN_MB, ping_until, transfer};

const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(30);
const DATAGRAMS: u64 = 50;
/// The codepoints, and what the kernel calls its counters of packets that arrived with them.
const MARKS: [(u32, &str); 3] = [(1, "InECT1Pkts"), (2, "InECT0Pkts"), (3, "InCEPkts")];

/// How many packets arrived in a namespace with a mark, by its name.
fn arrived(namespace: &Namespace, ipv6: bool, name: &str) -> u64 {
    let file = if ipv6 { "/proc/self/net/snmp6" } else { "/proc/self/net/netstat" };
    // The kernel shows the network of the thread, which "self" alone would not name.
    let file = file.replace("self", "thread-self");
    let text = namespace.within(|| std::fs::read_to_string(&file)).expect("the kernel counts packets");
    let value = if ipv6 {
        let line = text.lines().find(|line| line.starts_with(&format!("Ip6{name} ")));
        line.and_then(|line| line.split_whitespace().nth(1))
    } else {
        let mut lines = text.lines().filter(|line| line.starts_with("IpExt:"));
        let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
        names
            .split_whitespace()
            .position(|known| known == name)
            .and_then(|at| values.split_whitespace().nth(at))
    };
    value.unwrap_or_else(|| panic!("no {name} in {file}")).parse().expect("a number")
}

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
    for to in [CAMPUS_V4.into(), CAMPUS_V6.into()] {
        ping_until(client, to, 5 * SECOND);
    }
    for (near, far) in [(one.v4(), IpAddr::from(CAMPUS_V4)), (one.v6(), CAMPUS_V6.into())] {
        for (from, to) in [((client, near), (campus, far)), ((campus, far), (client, near))] {
            // Somebody listens, so that no error comes back.
            let listener = to.0.within(|| UdpSocket::bind((to.1, 0))).expect("the address is there");
            for (mark, name) in MARKS {
                let before = arrived(to.0, to.1.is_ipv6(), name);
                send_marked(from, listener.local_addr().expect("it is bound"), mark);
                let what = format!("{DATAGRAMS} of {name} from {} to {}", from.1, to.1);
                eventually(&what, 5 * SECOND, || {
                    (arrived(to.0, to.1.is_ipv6(), name) == before + DATAGRAMS).then_some(())
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
    }
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let before = [one.namespace(), &lab.campus].map(|namespace| arrived(namespace, false, "InECT0Pkts"));
    transfer(one.namespace(), &lab.campus, CAMPUS_V4.into(), TEN_MB, LIMIT);
    for (namespace, before) in [one.namespace(), &lab.campus].into_iter().zip(before) {
        let marked = arrived(namespace, false, "InECT0Pkts") - before;
        // A super-packet counts once.
        assert!(marked > (TEN_MB / 65_536) as u64, "{}: only {marked} packets had a mark", namespace.name());
    }
}
