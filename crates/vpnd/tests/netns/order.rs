//! Behaviour: packets of one flow keep their order, however many shards and lanes carry them side
//! by side; and where no offload is there, everything still arrives.

use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::client::Client;
use crate::gateway::{Gateway, edit_toml};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, Lab};
use crate::namespace::Namespace;
use crate::traffic::{TEN_MB, ping_until, transfer};

const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(30);
/// Flows side by side.
const FLOWS: usize = 8;
/// Datagrams of a flow in each direction.
const DATAGRAMS: u64 = 3_000;
/// At most this many times.
const ROUNDS: usize = 8;
/// Datagrams that are sent without a pause.
const BURST: u64 = 32;
/// The pause between two bursts, short enough to fill queues: only then could a flow that changes
/// its queue overtake itself.
const PAUSE: Duration = Duration::from_millis(1);
/// The far end starts this much later: by then the kernel has chosen a queue for what the near end
/// sends.
const FAR_STARTS: Duration = Duration::from_millis(40);

/// Both ends of one flow of UDP datagrams.
struct Flow {
    near: UdpSocket,
    far: UdpSocket,
}

impl Flow {
    fn new(from: (&Namespace, IpAddr), to: (&Namespace, IpAddr)) -> Self {
        let bind = |(namespace, address): (&Namespace, IpAddr)| {
            namespace.within(|| UdpSocket::bind((address, 0))).expect("the address is there")
        };
        let (near, far) = (bind(from), bind(to));
        near.connect(far.local_addr().expect("it is bound")).expect("there is a route");
        far.connect(near.local_addr().expect("it is bound")).expect("there is a route");
        Self { near, far }
    }
}

/// Sends numbered datagrams of varying lengths.
fn send(socket: &UdpSocket) {
    for number in 0..DATAGRAMS {
        let mut datagram = vec![0x5A; 8 + (number as usize * 37) % 1_200];
        datagram[..8].copy_from_slice(&number.to_be_bytes());
        // Loss is allowed, also here.
        let _ = socket.send(&datagram);
        if number % BURST == BURST - 1 {
            thread::sleep(PAUSE);
        }
    }
}

/// Receives until nothing more comes; fails when a number is below one that came before. Returns
/// how many came.
fn receive(socket: &UdpSocket, what: &str) -> u64 {
    socket.set_read_timeout(Some(SECOND)).expect("a timeout can be set");
    let (mut next, mut count) = (0, 0);
    let mut datagram = [0; 2_048];
    while next < DATAGRAMS {
        match socket.recv(&mut datagram) {
            Ok(length) => {
                assert!(length >= 8, "{what}: a datagram of {length} bytes");
                let number = u64::from_be_bytes(datagram[..8].try_into().expect("8 bytes"));
                assert!(number >= next, "{what}: number {number} came after {}", next - 1);
                (next, count) = (number + 1, count + 1);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // An ICMP error about an earlier datagram.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) => panic!("{what}: {error}"),
        }
    }
    count
}

/// All flows at once, both ways. Queues are meant to overflow, so it goes on until enough arrived
/// for something to have been tested.
fn keep_their_order(what: &str, from: (&Namespace, IpAddr), to: (&Namespace, IpAddr)) {
    let mut arrived = [0, 0];
    for _ in 0..ROUNDS {
        for (sum, count) in arrived.iter_mut().zip(flood(what, from, to)) {
            *sum += count;
        }
        if arrived.iter().all(|&count| count > DATAGRAMS) {
            return;
        }
    }
    panic!("{what}: hardly anything came: {arrived:?}");
}

/// One round of all flows; how many datagrams arrived there, and back.
fn flood(what: &str, from: (&Namespace, IpAddr), to: (&Namespace, IpAddr)) -> [u64; 2] {
    let flows: Vec<Flow> = (0..FLOWS).map(|_| Flow::new(from, to)).collect();
    let arrived = [AtomicU64::new(0), AtomicU64::new(0)];
    thread::scope(|scope| {
        for (number, flow) in (0..).zip(&flows) {
            scope.spawn(|| send(&flow.near));
            scope.spawn(move || {
                // Some of them in the middle of a burst.
                thread::sleep(FAR_STARTS + number * Duration::from_millis(3));
                send(&flow.far);
            });
            for (socket, direction, arrived) in
                [(&flow.far, "there", &arrived[0]), (&flow.near, "back", &arrived[1])]
            {
                scope.spawn(move || {
                    let count = receive(socket, &format!("{what}, {direction}"));
                    arrived.fetch_add(count, Ordering::Relaxed);
                });
            }
        }
    });
    arrived.map(AtomicU64::into_inner)
}

#[test]
fn flows_keep_their_order_across_shards_and_lanes() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("server.shards", 3);
    gateway.configure("policy.client_to_client", true);
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    gateway.start();
    let one = Client::connect_with(&lab, 1, &ann, &["--lanes", "4"]);
    let two = Client::connect_with(&lab, 2, &bob, &["--lanes", "2"]);
    for address in [CAMPUS_V4.into(), CAMPUS_V6.into(), two.v4(), two.v6()] {
        ping_until(one.namespace(), address, 5 * SECOND);
    }
    ping_until(two.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let lanes: Vec<_> = gateway.sessions().iter().map(|session| ports(&session["outer"])).collect();
    assert!(lanes == [4, 2] || lanes == [2, 4], "each lane has a port of its own: {lanes:?}");

    let campus = &lab.campus;
    keep_their_order("client and campus", (one.namespace(), one.v4()), (campus, CAMPUS_V4.into()));
    keep_their_order("campus and client", (campus, CAMPUS_V4.into()), (one.namespace(), one.v4()));
    keep_their_order("campus and client, IPv6", (campus, CAMPUS_V6.into()), (two.namespace(), two.v6()));
    keep_their_order("client and client", (one.namespace(), one.v4()), (two.namespace(), two.v4()));
    transfer(one.namespace(), campus, CAMPUS_V4.into(), TEN_MB, LIMIT);
}

fn ports(outer: &serde_json::Value) -> usize {
    let mut ports: Vec<_> = outer.as_array().expect("a list").iter().map(ToString::to_string).collect();
    ports.sort();
    ports.dedup();
    ports.len()
}

/// Every switch of both ends is off, in turn and at last all of them.
#[test]
fn everything_arrives_without_offloads() {
    const SWITCHES: [&str; 5] = ["tun", "tso", "uso", "udp_gso", "udp_gro"];
    for off in SWITCHES.chunks(1).chain([&SWITCHES[..]]) {
        let Some(lab) = Lab::new(2) else { return };
        let mut gateway = Gateway::init(&lab);
        gateway.configure("policy.client_to_client", true);
        let logins = ["ann", "bob"].map(|name| gateway.add_user(name));
        for switch in off {
            gateway.configure(&format!("offload.{switch}"), false);
            edit_toml(&logins[0].profile, |profile| {
                let section = profile.entry("offload").or_insert_with(|| toml::Table::new().into());
                section.as_table_mut().expect("a section").insert((*switch).to_owned(), false.into());
            });
        }
        gateway.start();
        let one = Client::connect(&lab, 1, &logins[0]);
        let two = Client::connect(&lab, 2, &logins[1]);
        let offloads = &gateway.status()["offloads"];
        for switch in off {
            let (layer, name, is_off) = match *switch {
                "tun" => ("tun", "checksum", false.into()),
                "tso" => ("tun", "tso4", false.into()),
                "uso" => ("tun", "uso", false.into()),
                "udp_gso" => ("udp", "gso_segments", 1.into()),
                _ => ("udp", "gro", serde_json::Value::from(false)),
            };
            assert_eq!(offloads[layer][name], is_off, "{switch}");
        }
        for to in [CAMPUS_V4.into(), CAMPUS_V6.into(), two.v4()] {
            ping_until(one.namespace(), to, 5 * SECOND);
        }
        transfer(one.namespace(), &lab.campus, CAMPUS_V4.into(), TEN_MB / 10, LIMIT);
        transfer(one.namespace(), &lab.campus, CAMPUS_V6.into(), TEN_MB / 10, LIMIT);
        transfer(one.namespace(), two.namespace(), two.v4(), TEN_MB / 10, LIMIT);
        transfer(two.namespace(), one.namespace(), one.v6(), TEN_MB / 10, LIMIT);
    }
}
