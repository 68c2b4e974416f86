//! Behaviour: a datagram that a rule with ports permits arrives whole, whatever its length, and so
//! does its answer; one that no rule permits does not, nor does any fragment of it.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::access_profiles::configure;
use crate::client::Client;
use crate::gateway::Gateway;
use crate::lab::{CAMPUS_V4, CAMPUS_V6, Lab, eventually};
use crate::traffic::ping_until;

const LIMIT: Duration = Duration::from_secs(60);
/// Bytes of payload: in one packet of the tunnel, in two, and in six.
const SIZES: [usize; 3] = [100, 1_400, 8_000];
const RULES: &str = "[[profile]]\nname = \"all\"\n\
    [[profile.rules]]\naction = \"allow\"\nprotocol = \"icmp\"\n\
    [[profile.rules]]\naction = \"allow\"\nto = [\"10.200.0.2\", \"fd20::2\"]\nprotocol = \"udp\"\nports = [\"5000\"]\n\
    [[profile.rules]]\naction = \"deny\"\n";

/// Whether a datagram of that length arrives, and has arrived as it was sent.
fn arrives(from: &UdpSocket, to: &UdpSocket, address: SocketAddr, size: usize) -> bool {
    let sent: Vec<u8> = (0..size).map(|at| at as u8).collect();
    from.send_to(&sent, address).expect("there is a route");
    let mut received = vec![0; size + 1];
    // Fragments of it that arrive without the others are no datagram.
    let answer = to.recv(&mut received).map(|len| received[..len] == sent);
    assert_ne!(answer.as_ref().ok(), Some(&false), "another datagram");
    answer.is_ok()
}

#[test]
fn datagrams_that_a_rule_with_ports_permits_arrive_whole_and_no_others() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    configure(&gateway, RULES);
    gateway.start();
    let client = Client::connect(&lab, 1, &ann);
    for campus in [IpAddr::from(CAMPUS_V4), CAMPUS_V6.into()] {
        ping_until(client.namespace(), campus, LIMIT);
        let host = |port| lab.campus.within(|| UdpSocket::bind((campus, port))).expect("its address");
        let (open, closed) = (host(5_000), host(5_001));
        let inner = if campus.is_ipv4() { client.v4() } else { client.v6() };
        let asks = client.namespace().within(|| UdpSocket::bind((inner, 0))).expect("its address");
        for socket in [&open, &closed, &asks] {
            socket.set_read_timeout(Some(Duration::from_secs(2))).expect("a socket");
        }
        let to = SocketAddr::from((campus, 5_000));
        let back = asks.local_addr().expect("it is bound");
        for size in SIZES {
            // By the first of these the campus learns how large a packet may be.
            eventually("the way back is known", LIMIT, || {
                (arrives(&asks, &open, to, size) && arrives(&open, &asks, back, size)).then_some(())
            });
            for _ in 0..3 {
                assert!(arrives(&asks, &open, to, size), "{size} bytes to {to}");
                assert!(arrives(&open, &asks, back, size), "{size} bytes back from {to}");
            }
        }
        for socket in [&closed, &asks] {
            socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a socket");
        }
        for size in SIZES {
            let before = gateway.counter("policy");
            assert!(!arrives(&asks, &closed, (campus, 5_001).into(), size), "{size} bytes to a closed port");
            let packets = size.div_ceil(1_380) as u64;
            assert!(gateway.counter_above("policy", before + packets - 1) >= before + packets);
            assert!(!arrives(&closed, &asks, back, size), "{size} bytes that nobody has asked for");
        }
    }
}
