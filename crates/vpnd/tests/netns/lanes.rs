//! Behaviour: a client with several lanes behind an address translator that soon forgets what is
//! idle: each lane stays reachable while the session is in use.
//!
//! `net` is the translator. The campus answers flows on other lanes than they are sent on, so a
//! lane may have to receive that has sent nothing for long.

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::gateway::Gateway;
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::traffic::ping_until;

const SECOND: Duration = Duration::from_secs(1);
const FLOWS: usize = 16;
/// Seconds after which the translator forgets.
const FORGETS_AFTER_S: u64 = 12;
/// Longer than that, and shorter than a keepalive.
const IDLE: Duration = Duration::from_secs(18);

/// Sends on a flow, and whether that was answered. Answers to earlier words count.
fn is_answered(flow: &UdpSocket, server: &UdpSocket) -> Option<SocketAddr> {
    flow.send(b"?").ok()?;
    let mut word = [0; 8];
    let (_, from) = server.recv_from(&mut word).ok()?;
    server.send_to(b"!", from).ok()?;
    flow.recv(&mut word).ok().map(|_| from)
}

#[test]
fn lanes_that_are_idle_stay_reachable_behind_a_translator_that_forgets() {
    let Some(lab) = Lab::new(1) else { return };
    lab.net.nft(&format!(
        "add table ip translator\n\
         add chain ip translator post {{ type nat hook postrouting priority 100; }}\n\
         add rule ip translator post oifname {} masquerade random\n",
        Lab::port(0)
    ));
    for key in ["udp_timeout", "udp_timeout_stream"] {
        lab.net.sysctl(&format!("net/netfilter/nf_conntrack_{key}"), &FORGETS_AFTER_S.to_string());
    }
    let mut gateway = Gateway::init(&lab);
    gateway.configure("server.shards", 4);
    let ann = gateway.add_user("ann");
    gateway.start();
    let one = Client::connect_with(&lab, 1, &ann, &["--lanes", "4"]);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);

    let server = lab.campus.within(|| UdpSocket::bind((CAMPUS_V4, 0))).expect("the address is the server's");
    let address = server.local_addr().expect("it is bound");
    let connect = || {
        let flow = UdpSocket::bind("0.0.0.0:0").expect("a port is free");
        flow.connect(address).expect("there is a route");
        flow
    };
    let flows: Vec<_> = one.namespace().within(|| (0..FLOWS).map(|_| connect()).collect());
    for socket in flows.iter().chain([&server]) {
        socket.set_read_timeout(Some(SECOND / 5)).expect("it is no zero");
    }
    let peers: Vec<_> = flows
        .iter()
        .map(|flow| eventually("a flow is answered", 10 * SECOND, || is_answered(flow, &server)))
        .collect();

    // One flow keeps the session in use.
    let end = Instant::now() + IDLE;
    while Instant::now() < end {
        is_answered(&flows[0], &server);
        thread::sleep(SECOND / 10);
    }
    let reached = |flow: &UdpSocket, peer: &SocketAddr| {
        let mut word = [0; 8];
        (0..5).any(|_| server.send_to(b"!", peer).is_ok() && flow.recv(&mut word).is_ok())
    };
    let lost = flows.iter().zip(&peers).filter(|(flow, peer)| !reached(flow, peer)).count();
    assert_eq!(lost, 0, "flows of {FLOWS} that nothing reaches any more");
}
