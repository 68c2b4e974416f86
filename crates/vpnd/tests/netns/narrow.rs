//! Behaviour: a narrow link on the way to the gateway (DSL, mobile networks, tunnels in tunnels).
//! The client finds out how narrow, and TCP through the tunnel fits, both ways.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use serde_json::Value as Json;

use crate::client::{Client, TUN};
use crate::gateway::{Gateway, edit_toml, must};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, GATEWAY_V4, GATEWAY_V6, Lab, eventually};
use crate::namespace::Namespace;
use crate::process::text;
use crate::shrink::set_path;
use crate::traffic::{TEN_MB, ping, ping_until, transfer};

const SECOND: Duration = Duration::from_secs(1);

/// The ends learn nothing by ICMP, as on the paths where this hurts.
pub(crate) fn silence(lab: &Lab) {
    lab.net.nft(
        "table inet silent {\n\
             chain out {\n\
                 type filter hook output priority 0\n\
                 icmp type destination-unreachable drop\n\
                 icmpv6 type packet-too-big drop\n\
             }\n\
         }\n",
    );
}

/// Makes the link between `net` and the gateway carry no more than `mtu` bytes, without a message
/// to the ends.
fn narrow(lab: &Lab, mtu: u16) {
    silence(lab);
    for port in [0, 1] {
        lab.net.ip_batch(&format!("link set {} mtu {mtu}", Lab::port(port)));
    }
}

fn tun_mtu(client: &Client<'_>) -> u64 {
    let links: Json =
        serde_json::from_str(&client.namespace().ip(&["-j", "link", "show", TUN])).expect("JSON");
    links[0]["mtu"].as_u64().expect("a device has an MTU")
}

fn tcp_fits(lab: &Lab, client: &Client<'_>, path: u64, outer_headers: u64) {
    for campus in [CAMPUS_V4.into(), CAMPUS_V6.into()] {
        ping_until(client.namespace(), campus, 5 * SECOND);
        transfer(client.namespace(), &lab.campus, campus, TEN_MB, 10 * SECOND);
    }
    // Header and tag of the tunnel, then what the outer packet adds.
    let best = path - outer_headers - 32;
    eventually("the device's MTU is what the path carries", 20 * SECOND, || {
        (best - 8..=best).contains(&tun_mtu(client)).then_some(())
    });
    for campus in [CAMPUS_V4.into(), CAMPUS_V6.into()] {
        transfer(client.namespace(), &lab.campus, campus, TEN_MB, 10 * SECOND);
    }
}

#[test]
fn tcp_fits_a_narrow_path() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    narrow(&lab, 1400);
    let one = Client::connect(&lab, 1, &ann);
    tcp_fits(&lab, &one, 1400, 28);
}

#[test]
fn tcp_fits_a_narrow_path_of_ipv6() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    edit_toml(&ann.profile, |profile| {
        let server = profile["server"].as_table_mut().expect("a section");
        server.insert("addresses".to_owned(), vec![format!("[{GATEWAY_V6}]:4433")].into());
    });
    gateway.start();
    narrow(&lab, 1400);
    let one = Client::connect(&lab, 1, &ann);
    tcp_fits(&lab, &one, 1400, 48);
}

#[test]
fn tcp_fits_where_ipv6_hardly_does() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    narrow(&lab, 1300);
    let one = Client::connect(&lab, 1, &ann);
    for campus in [CAMPUS_V4.into(), CAMPUS_V6.into()] {
        ping_until(one.namespace(), campus, 5 * SECOND);
        transfer(one.namespace(), &lab.campus, campus, TEN_MB, 10 * SECOND);
    }
    assert_eq!(tun_mtu(&one), 1280, "the kernel would take IPv6 from a smaller device");
}

#[test]
fn a_wide_path_keeps_the_gateways_mtu() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    eventually("the device has the gateway's MTU", 5 * SECOND, || (tun_mtu(&one) == 1420).then_some(()));
}

/// Payload of UDP or of a ping in a packet that every path of IPv6 has to carry: 1,280 bytes less
/// the headers.
const FULL: usize = 1280 - 48;
const PACKETS: usize = 30;

/// Full datagrams of UDP from one to the other and back: how many came back.
fn echoes(from: &Namespace, to: &Namespace, address: IpAddr) -> io::Result<usize> {
    let far = to.within(|| UdpSocket::bind(SocketAddr::new(address, 0)))?;
    let target = far.local_addr()?;
    let near = from.within(|| UdpSocket::bind("[::]:0"))?;
    for socket in [&near, &far] {
        socket.set_read_timeout(Some(5 * SECOND))?;
    }
    let (mut buffer, mut arrived) = ([0; 2_000], 0);
    for number in 0..PACKETS {
        let payload: Vec<u8> = (0..FULL).map(|at| (at * 3 + number) as u8).collect();
        near.send_to(&payload, target)?;
        let (len, back) = far.recv_from(&mut buffer)?;
        assert_eq!(buffer[..len], payload, "the packet is the one that was sent");
        far.send_to(&payload, back)?;
        let len = near.recv(&mut buffer)?;
        arrived += usize::from(buffer[..len] == payload);
    }
    Ok(arrived)
}

/// Full packets of IPv6 over a path on which they do not fit into one datagram, with and without a
/// word from the path.
fn full_packets_pass(outer: IpAddr) {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("policy.campus_to_client", true);
    let ann = gateway.add_user("ann");
    edit_toml(&ann.profile, |profile| {
        profile["server"]["addresses"] = vec![SocketAddr::new(outer, 4433).to_string()].into();
    });
    gateway.start();
    for (silent, mtu) in [(false, 1280), (false, 1300), (true, 1280), (true, 1300)] {
        if silent {
            silence(&lab);
        }
        set_path(&lab, mtu);
        let mut one = Client::connect(&lab, 1, &ann);
        let alone = gateway.counter("half_alone");
        let headers = if outer.is_ipv4() { 28 } else { 48 };
        let best = u64::from(mtu) - headers - 32;
        eventually("the gateway knows how narrow the path is", 20 * SECOND, || {
            let path = gateway.sessions()[0]["path_mtu"].as_u64()?;
            (best - 8..=best).contains(&path).then_some(())
        });
        let address: IpAddr = gateway.sessions()[0]["inner_v6"]
            .as_str()
            .and_then(|text| text.parse().ok())
            .expect("an address");
        let passed = (0..PACKETS).filter(|_| {
            ping(one.namespace(), CAMPUS_V6.into(), FULL, 5 * SECOND)
                && ping(&lab.campus, address, FULL, 5 * SECOND)
        });
        assert_eq!(passed.count(), PACKETS, "pings both ways over {mtu}, silent {silent}");
        let up = echoes(one.namespace(), &lab.campus, CAMPUS_V6.into()).expect("UDP from the client");
        let down = echoes(&lab.campus, one.namespace(), address).expect("UDP to the client");
        assert_eq!((up, down), (PACKETS, PACKETS), "UDP over {mtu}, silent {silent}");
        eventually("what went in halves is counted", 5 * SECOND, || {
            let session = &gateway.sessions()[0];
            let counts = ["rx_halved", "tx_halved"].map(|name| session[name].as_u64());
            // Each kind has one for each ping and each datagram: requests one way, answers the
            // other.
            let all = Some(4 * PACKETS as u64);
            counts.iter().all(|count| *count >= all).then_some(())
        });
        let table = text(&must(gateway.ask(&["status"])));
        assert!(table.contains(", halves"), "{table}");
        assert_eq!(gateway.counter("half_alone"), alone, "no half was lost over {mtu}, silent {silent}");
        // TCP fills queues until something is lost, halves among it.
        transfer(one.namespace(), &lab.campus, CAMPUS_V6.into(), TEN_MB / 5, 60 * SECOND);
        one.interrupt();
    }
}

#[test]
fn full_packets_of_ipv6_pass_a_path_of_ipv4_on_which_they_do_not_fit() {
    full_packets_pass(GATEWAY_V4.into());
}

#[test]
fn full_packets_of_ipv6_pass_a_path_of_ipv6_on_which_they_do_not_fit() {
    full_packets_pass(GATEWAY_V6.into());
}
