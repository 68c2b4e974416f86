//! Behaviour: a path that shrinks while TCP connections run, both ways, with IPv4 and IPv6 inside.
//! They go on soon, whether or not the path says that it has shrunk. The gateway is known by its
//! name, pushes a name server and translates addresses.
//!
//! The router of `net` takes on another MTU for its routes, as after a change to a mobile network:
//! it forwards what fits and answers what does not with ICMP, or not at all where that is filtered.
//!
//! `SHRINKS=n` repeats each measurement; each prints its figures.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use crate::client::Client;
use crate::gateway::{Gateway, Login, edit_toml, strings};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, GATEWAY_V4, GATEWAY_V6, Lab};
use crate::names::{NAME, PROVIDERS, PUSHED, name_server};
use crate::narrow::silence;
use crate::process;
use crate::relay::PORT;
use crate::traffic::{internet_checksum, ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);
/// Limit, generous for a busy machine; the figures show the time it takes.
const LIMIT: Duration = Duration::from_secs(8);
/// Duration of the flows before and after the path shrinks.
const BEFORE: Duration = Duration::from_secs(1);
const AFTER: Duration = Duration::from_secs(10);

/// An ordinary installation, behind NAT.
fn gateway(lab: &Lab) -> (Gateway<'_>, Login) {
    lab.campus.ip_batch("route del default via 10.200.0.1\nroute del default via fd20::1\n");
    let mut gateway = Gateway::init(lab);
    gateway.configure("nat.mode", "nftables");
    gateway.configure("push.dns", strings(&[PUSHED]));
    let ann = gateway.add_user("ann");
    edit_toml(&ann.profile, |profile| {
        profile["server"]["addresses"] = strings(&[&format!("{NAME}:{PORT}")]);
    });
    fs::write(process::etc(lab, &lab.clients[0]).join("resolv.conf"), format!("nameserver {PROVIDERS}\n"))
        .unwrap();
    gateway.start();
    (gateway, ann)
}

/// Gives the router's routes to gateway and client this MTU.
pub(crate) fn set_path(lab: &Lab, mtu: u16) {
    for port in [0, 1] {
        let device = Lab::port(port);
        lab.net.ip_batch(&format!(
            "route replace 198.18.{port}.0/24 dev {device} src 198.18.{port}.1 mtu {mtu}\n\
             route replace fd18:{port}::/64 dev {device} metric 256 mtu {mtu}\n"
        ));
    }
}

/// One connection in one direction, from its first byte on; the longest time after `shrinks` in
/// which nothing came.
fn longest_gap(mut reader: TcpStream, shrinks: Instant, end: Instant) -> Duration {
    reader.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let (mut last, mut longest, mut buffer) = (Instant::now(), Duration::ZERO, vec![0; 65_536]);
    while Instant::now() < end {
        match reader.read(&mut buffer) {
            Ok(0) => panic!("the connection ended"),
            Ok(_) => {
                let now = Instant::now();
                if now > shrinks {
                    longest = longest.max(now - last);
                }
                last = now;
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => panic!("the connection broke: {error}"),
        }
    }
    longest.max(end - last)
}

/// Sends steadily, not more than the laboratory carries with ease, until it is stopped.
fn send_steadily(mut writer: TcpStream, stop: &AtomicBool, end: Instant) {
    writer.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    let chunk = vec![0x5A; 16_384];
    while !stop.load(Ordering::Relaxed) && Instant::now() < end {
        // A full buffer, or no reader any more: what counts is what arrives.
        let _ = writer.write(&chunk);
        thread::sleep(Duration::from_millis(4));
    }
}

/// A connection that the client has opened to the campus: its end, and the campus's.
fn connection(lab: &Lab, client: &Client<'_>, to: IpAddr) -> (TcpStream, TcpStream) {
    let listener = lab.campus.within(|| TcpListener::bind((to, 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let near = client.namespace().within(|| TcpStream::connect_timeout(&address, LIMIT)).unwrap();
    (near, listener.accept().unwrap().0)
}

/// Lets the path shrink under a download and an upload of each family. How long each stood still.
pub(crate) fn shrink_under_traffic(lab: &Lab, client: &Client<'_>, mtu: u16) -> Vec<Duration> {
    let shrinks = Instant::now() + BEFORE;
    let end = shrinks + AFTER;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut readers = Vec::new();
        for to in [IpAddr::from(CAMPUS_V4), CAMPUS_V6.into()] {
            for download in [true, false] {
                let (near, far) = connection(lab, client, to);
                let (reader, writer) = if download { (near, far) } else { (far, near) };
                readers.push(scope.spawn(move || longest_gap(reader, shrinks, end)));
                let stop = &stop;
                scope.spawn(move || send_steadily(writer, stop, end + AFTER));
            }
        }
        thread::sleep(shrinks.saturating_duration_since(Instant::now()));
        set_path(lab, mtu);
        let gaps: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        stop.store(true, Ordering::Relaxed);
        gaps.into_iter().map(Result::unwrap).collect()
    })
}

/// Has hosts forget how large packets were on the way before.
fn forget_paths(lab: &Lab) {
    for place in [&lab.campus, &lab.gateway, &lab.clients[0]] {
        place.ip(&["-4", "route", "flush", "cache"]);
        place.ip(&["-6", "route", "flush", "cache"]);
    }
}

fn flows_go_on(outer: IpAddr, mtu: u16, says_so: bool) {
    let Some(lab) = Lab::new(1) else { return };
    let _providers = name_server(&lab, &lab.net, PROVIDERS, &outer.to_string());
    let _pushed = name_server(&lab, &lab.campus, PUSHED, "192.0.2.1");
    let (_gateway, ann) = gateway(&lab);
    if !says_so {
        silence(&lab);
    }
    let rounds = std::env::var("SHRINKS").map_or(1, |text| text.parse().expect("SHRINKS is a number"));
    let mut gaps = Vec::new();
    for _ in 0..rounds {
        set_path(&lab, 1500);
        forget_paths(&lab);
        let mut client = Client::connect(&lab, 1, &ann);
        ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
        ping_until(client.namespace(), CAMPUS_V6.into(), 5 * SECOND);
        let stood_still = shrink_under_traffic(&lab, &client, mtu);
        println!("v4 down, v4 up, v6 down, v6 up: {stood_still:?}");
        gaps.extend(stood_still);
        client.interrupt();
    }
    gaps.sort();
    let (median, longest) = (gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
    println!("{} flows, to {mtu}, ICMP {says_so}: p50 {median:?}, longest {longest:?}", gaps.len());
    assert!(longest < LIMIT, "a connection stood still for {longest:?}: {gaps:?}");
}

#[test]
fn a_path_mtu_that_drops_with_icmp() {
    flows_go_on(GATEWAY_V4.into(), 1400, true);
}

#[test]
fn a_path_that_turns_into_a_black_hole() {
    flows_go_on(GATEWAY_V4.into(), 1400, false);
}

/// "Fragmentation needed", 1,300 bytes fit, about a datagram from `victim` to `peer`.
fn forged(victim: SocketAddrV4, peer: SocketAddrV4) -> Vec<u8> {
    let mut message = vec![3, 4, 0, 0, 0, 0];
    message.extend(1_300_u16.to_be_bytes());
    message.extend([0x45, 0, 5, 200, 0, 0, 0x40, 0, 60, 17, 0, 0]);
    message.extend(victim.ip().octets());
    message.extend(peer.ip().octets());
    message.extend(victim.port().to_be_bytes());
    message.extend(peer.port().to_be_bytes());
    message.extend([5, 180, 0, 0, 0x80, 0, 0, 0, 1, 2, 3, 4]);
    let sum = internet_checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

/// Both kernels believe it, and both ends go on sending what the path carries.
#[test]
fn forged_icmp_does_not_lower_the_path_mtu() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, client) = Client::alone(&lab);
    let outer = gateway.sessions()[0]["outer"][0].as_str().unwrap().to_owned();
    let near: SocketAddrV4 = outer.parse().unwrap();
    let far = SocketAddrV4::new(GATEWAY_V4, PORT);
    for (victim, peer, place) in [(far, near, &lab.gateway), (near, far, client.namespace())] {
        let message = forged(victim, peer);
        lab.net.within(|| {
            let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap();
            socket.send_to(&message, &victim.into()).unwrap();
        });
        let believed = place.ip(&["route", "get", &peer.ip().to_string()]);
        assert!(believed.contains("mtu 1300"), "the forgery is a good one: {believed}");
    }
    for _ in 0..20 {
        // The ping is as large as the tunnel carries, and must not be cut.
        assert!(ping(client.namespace(), CAMPUS_V4.into(), 1_420 - 28, 5 * SECOND));
    }
}

/// Full packets of IPv6 go in halves then.
#[test]
fn a_path_mtu_that_drops_to_the_minimum() {
    flows_go_on(GATEWAY_V4.into(), 1280, false);
}

#[test]
fn an_ipv6_path_mtu_that_drops_to_the_minimum() {
    flows_go_on(GATEWAY_V6.into(), 1280, false);
}

#[test]
fn an_ipv6_path_mtu_that_drops_to_the_minimum_with_icmp() {
    flows_go_on(GATEWAY_V6.into(), 1280, true);
}

#[test]
fn an_ipv6_path_mtu_that_drops_with_icmp() {
    flows_go_on(GATEWAY_V6.into(), 1400, true);
}

#[test]
fn a_path_of_ipv6_that_turns_into_a_black_hole() {
    flows_go_on(GATEWAY_V6.into(), 1400, false);
}
