//! Costs of idle clients over TCP for the gateway: memory and CPU of its processes for relays that
//! have carried a datagram each way and carry nothing more. `./x tcp-speed` measures 2,000; without
//! that a few show that they stay.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use rustls::{ClientConnection, StreamOwned};

use super::relays::{REQUEST, name, relays, tls};
use super::{SOON, configure, portal_of};
use crate::gateway::Gateway;
use crate::lab::{GATEWAY_V4, Lab, eventually};
use crate::namespace::Namespace;
use crate::privileges::Seen;

/// Hosts among which the relays are divided: one has no more than its share.
const HOSTS: u8 = 8;
const FEW: usize = 40;
/// Threads that open relays at a time.
const THREADS: usize = 4;

type Relay = StreamOwned<ClientConnection, TcpStream>;

/// A datagram that is answered at once: of QUIC, of a version that there is not (RFC 9000 §6).
fn question() -> Vec<u8> {
    let mut datagram =
        vec![0xC0, 0x0A, 0x1A, 0x2A, 0x3A, 8, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 7, 6, 5, 4, 3, 2, 1];
    datagram.resize(1_200, 0);
    [&1_200_u16.to_be_bytes()[..], &datagram].concat()
}

/// Sends a datagram, and waits for the answer.
fn ask(relay: &mut Relay) {
    relay.write_all(&question()).unwrap();
    relay.flush().unwrap();
    let mut length = [0; 2];
    relay.read_exact(&mut length).unwrap();
    let mut answer = vec![0; u16::from_be_bytes(length).into()];
    relay.read_exact(&mut answer).unwrap();
    assert!(answer[0] & 0x80 != 0 && answer[1..5] == [0; 4], "a version negotiation");
}

/// A relay that has carried a datagram each way.
fn open(host: &Namespace, gateway: &Gateway<'_>) -> Relay {
    let tcp = host.within(|| TcpStream::connect((GATEWAY_V4, 443))).unwrap();
    tcp.set_read_timeout(Some(SOON)).unwrap();
    let mut relay = StreamOwned::new(ClientConnection::new(tls(gateway), name()).unwrap(), tcp);
    relay.write_all(REQUEST).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        relay.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    ask(&mut relay);
    relay
}

#[test]
fn idle_relays_stay_and_cost_memory_alone() {
    let Some(lab) = Lab::new(HOSTS) else { return };
    let count = std::env::var("VPND_IDLE_RELAYS").map_or(FEW, |count| count.parse().unwrap());
    let seconds = if count > FEW { 60 } else { 3 };
    let mut gateway = Gateway::init(&lab);
    configure(&gateway);
    // One provider's hosts get half of those for strangers.
    gateway.configure("portal.relays", i64::try_from(4 * count).unwrap());
    gateway.start();
    let portal = portal_of(&gateway);
    let worker = Seen::parent(&gateway).child("worker");
    // The first one makes what is made once.
    let first = open(&lab.clients[0], &gateway);
    let before = [portal.memory_kib(), worker.memory_kib()];
    let began = Instant::now();
    let mut held: Vec<Relay> = thread::scope(|scope| {
        let (lab, gateway) = (&lab, &gateway);
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let own = (1..count).filter(move |number| number % THREADS == thread);
                scope.spawn(move || {
                    own.map(|number| open(&lab.clients[number % HOSTS as usize], gateway)).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    println!("{count} relays opened in {:?}", began.elapsed());
    eventually("they are counted", SOON, || (relays(&gateway) == count as u64).then_some(()));
    let ticks = [portal.ticks(), worker.ticks()];
    thread::sleep(Duration::from_secs(seconds));
    let per_second = rustix::param::clock_ticks_per_second() as f64 * seconds as f64;
    for (place, (name, process)) in [("portal", &portal), ("worker", &worker)].into_iter().enumerate() {
        let kib = process.memory_kib().saturating_sub(before[place]);
        let busy = (process.ticks() - ticks[place]) as f64 / per_second;
        println!(
            "{name}: {kib} KiB for {count} idle relays, {:.1} each; {:.2} % of a core while they idle for {seconds} s",
            kib as f64 / count as f64,
            busy * 100.0
        );
    }
    assert_eq!(relays(&gateway), count as u64, "all of them stay");
    held.push(first);
    held.iter_mut().for_each(ask);
}
