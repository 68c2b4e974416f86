//! Measures the time from the start of a client to its first answer from the campus, by each way
//! through a network, and how soon it is over TCP when UDP stops. `./x tcp-speed` measures; without
//! that once of each shows that it gets there.

use std::time::{Duration, Instant};

use super::{SOON, drop_udp, drop_udp_but, installation, is_over_tcp, pass_all, squid, through};
use crate::client::Client;
use crate::gateway::{Gateway, Login, edit_toml, strings};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab};
use crate::traffic::ping_until;

/// The time that each of these connections takes.
fn times(lab: &Lab, login: &Login, count: usize) -> Vec<Duration> {
    let connect = |_| {
        let began = Instant::now();
        let mut client = Client::connect(lab, 1, login);
        ping_until(client.namespace(), CAMPUS_V4.into(), SOON);
        let time = began.elapsed();
        client.interrupt();
        time
    };
    (0..count).map(connect).collect()
}

/// The time until pings of a connected client are answered again once the network drops UDP.
fn time_to_change(lab: &Lab, gateway: &Gateway<'_>, login: &Login) -> Duration {
    let mut client = Client::connect(lab, 1, login);
    ping_until(client.namespace(), CAMPUS_V4.into(), SOON);
    assert!(!is_over_tcp(gateway));
    drop_udp(lab, "meta l4proto udp");
    let began = Instant::now();
    ping_until(client.namespace(), CAMPUS_V4.into(), SOON);
    let time = began.elapsed();
    assert!(is_over_tcp(gateway));
    pass_all(lab);
    client.interrupt();
    time
}

fn report(way: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: usize| times[(times.len() * share).div_ceil(100) - 1].as_secs_f64();
    println!("{way}: {:.2} s, p99 {:.2} s, of {}", at(50), at(99), times.len());
}

#[test]
fn a_client_connects_over_each_way() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = installation(&lab);
    gateway.configure("server.more_ports", strings(&["443"]));
    gateway.terminate();
    gateway.start();
    edit_toml(&ann.profile, |profile| {
        let own = [4433, 443].map(|port| format!("{GATEWAY_V4}:{port}"));
        profile["server"]["addresses"] = strings(&own.each_ref().map(String::as_str));
    });
    let count = std::env::var("VPND_CONNECTS").map_or(1, |count| count.parse().unwrap());
    println!("time to connect, median:");
    report("UDP", times(&lab, &ann, count));
    report("TCP after UDP has stopped", (0..count).map(|_| time_to_change(&lab, &gateway, &ann)).collect());
    drop_udp_but(&lab, 443);
    report("UDP 443", times(&lab, &ann, count));
    drop_udp(&lab, "meta l4proto udp");
    report("TCP 443", times(&lab, &ann, count));
    drop_udp(&lab, "meta nfproto { ipv4, ipv6 }");
    let _squid = squid(&lab, None);
    through(&ann, "http://198.18.1.1:3128");
    report("an HTTP proxy", times(&lab, &ann, count));
}
