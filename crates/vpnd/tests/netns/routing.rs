//! Behaviour: the gateway is one hop, on the way to the campus, where its kernel routes, and on the
//! way to another client, where its data path does. Who traces a route gets its answer from the
//! gateway's inner address. All networks that a gateway may push lead into its clients' tunnels.

use std::collections::HashSet;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use vpnd_proto::control::MAX_ROUTES;

use crate::client::{Client, TUN};
use crate::gateway::{Gateway, INNER_V4, INNER_V6, must, strings};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, Lab, eventually};
use crate::namespace::Namespace;
use crate::process::text;
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);
const ICMP_TIME_EXCEEDED: u8 = 11;
const ICMPV6_TIME_EXCEEDED: u8 = 3;
const ICMP_HEADER: usize = 8;

/// A socket of a namespace for all ICMP messages that arrive there.
fn icmp_listener(namespace: &Namespace, ipv6: bool) -> Socket {
    let (domain, protocol) =
        if ipv6 { (Domain::IPV6, Protocol::ICMPV6) } else { (Domain::IPV4, Protocol::ICMPV4) };
    let socket = namespace.within(|| Socket::new(domain, Type::RAW, Some(protocol)));
    let socket = socket.expect("root may have raw sockets");
    socket.set_read_timeout(Some(SECOND / 10)).expect("a timeout can be set");
    socket
}

/// Whether the next ICMP message within a moment is "time exceeded" about a packet to `to`.
fn is_exceeded(mut socket: &Socket, to: IpAddr) -> bool {
    let mut message = [0; 2_048];
    let length = match socket.read(&mut message) {
        Ok(length) => length,
        Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
        Err(error) => panic!("receiving ICMP: {error}"),
    };
    // A raw IPv4 socket also gets the IP header.
    let header = if to.is_ipv4() { usize::from(message[0] & 0xf) * 4 } else { 0 };
    let icmp = &message[header..length];
    let quoted = &icmp[ICMP_HEADER..];
    match to {
        IpAddr::V4(to) => icmp[0] == ICMP_TIME_EXCEEDED && quoted[16..20] == to.octets(),
        IpAddr::V6(to) => icmp[0] == ICMPV6_TIME_EXCEEDED && quoted[24..40] == to.octets(),
    }
}

fn send_with_hops(socket: &UdpSocket, hops: u32, to: SocketAddr) {
    let options = SockRef::from(socket);
    let set = if to.is_ipv4() { options.set_ttl_v4(hops) } else { options.set_unicast_hops_v6(hops) };
    set.expect("any number of hops may be set");
    socket.send_to(&hops.to_be_bytes(), to).expect("there is a route");
}

/// Two hops reach `to`, and one ends at the gateway.
fn is_one_hop_away(from: (&Namespace, IpAddr), to: (&Namespace, IpAddr), gateway: IpAddr) {
    let bind = |(namespace, address): (&Namespace, IpAddr)| {
        namespace.within(|| UdpSocket::bind((address, 0))).expect("the address is there")
    };
    let (near, far) = (bind(from), bind(to));
    far.set_read_timeout(Some(SECOND / 10)).expect("a timeout can be set");
    let target = far.local_addr().expect("it is bound");
    let icmp = icmp_listener(from.0, target.is_ipv6());
    // Only what the gateway itself sends.
    icmp.connect(&SocketAddr::new(gateway, 0).into()).expect("a raw socket can be connected");

    let mut hops = [0; 4];
    eventually(&format!("two hops reach {}", to.1), 5 * SECOND, || {
        send_with_hops(&near, 2, target);
        far.recv(&mut hops).ok()
    });
    assert_eq!(u32::from_be_bytes(hops), 2);
    eventually(&format!("one hop on the way to {} ends at {gateway}", to.1), 5 * SECOND, || {
        send_with_hops(&near, 1, target);
        is_exceeded(&icmp, to.1).then_some(())
    });
    let end = Instant::now() + SECOND / 2;
    while Instant::now() < end {
        if far.recv(&mut hops).is_ok() {
            assert_eq!(u32::from_be_bytes(hops), 2, "what had one hop arrived");
        }
    }
}

/// Networks in addition to the campus, as many as asked for.
fn networks(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("10.{}.{}.0/24", 100 + n / 256, n % 256)).collect()
}

#[test]
fn all_pushed_networks_lead_into_the_tunnel_and_more_than_fit_are_refused() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    let push = |gateway: &Gateway<'_>, count: usize| {
        let networks = networks(count);
        let all: Vec<&str> =
            ["10.200.0.0/24", "fd20::/64"].into_iter().chain(networks.iter().map(String::as_str)).collect();
        gateway.configure("push.routes", strings(&all));
    };
    // Those of the tunnel's own table, which no other program writes.
    let missing = |client: &Client<'_>, count: usize| {
        let shown = client.namespace().ip(&["-4", "route", "show", "table", "all", "dev", TUN]);
        let shown: HashSet<&str> = shown.lines().filter_map(|line| line.split(' ').next()).collect();
        networks(count).into_iter().filter(|net| !shown.contains(net.as_str())).count()
    };
    push(&gateway, 200);
    must(gateway.check());
    gateway.start();
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    assert_eq!(missing(&client, 200), 0);

    push(&gateway, 1_024);
    must(gateway.ask(&["reload"]));
    eventually("all networks lead into the tunnel", 60 * SECOND, || {
        (missing(&client, 1_024) == 0).then_some(())
    });
    assert!(ping(client.namespace(), CAMPUS_V4.into(), 56, SECOND));

    push(&gateway, MAX_ROUTES);
    let message = format!("at most {MAX_ROUTES} are taken");
    for output in [gateway.check(), gateway.ask(&["reload"])] {
        assert!(!output.status.success() && text(&output).contains(&message), "{}", text(&output));
    }
    assert_eq!(missing(&client, 1_024), 0, "nothing has changed");

    // At the login, too.
    push(&gateway, 1_024);
    drop(client);
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    assert_eq!(missing(&client, 1_024), 0);
}

#[test]
fn the_gateway_is_one_hop_to_the_campus_and_to_other_clients() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("policy.client_to_client", true);
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    let two = Client::connect(&lab, 2, &bob);
    for to in [CAMPUS_V4.into(), CAMPUS_V6.into(), two.v4(), two.v6()] {
        ping_until(one.namespace(), to, 5 * SECOND);
    }
    let inner = [INNER_V4, INNER_V6].map(|address| address.parse().expect("an address"));
    for (near, campus, inner) in
        [(one.v4(), CAMPUS_V4.into(), inner[0]), (one.v6(), CAMPUS_V6.into(), inner[1])]
    {
        is_one_hop_away((one.namespace(), near), (&lab.campus, campus), inner);
    }
    assert_eq!(gateway.counter("hop_limit"), 0, "the kernel counts its own");
    for (near, far, inner) in [(one.v4(), two.v4(), inner[0]), (one.v6(), two.v6(), inner[1])] {
        let before = gateway.counter("hop_limit");
        is_one_hop_away((one.namespace(), near), (two.namespace(), far), inner);
        gateway.counter_above("hop_limit", before);
    }
}
