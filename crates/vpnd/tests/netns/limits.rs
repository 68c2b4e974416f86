//! Behaviour: rate limits hold for real traffic, in both directions, between clients and after a
//! reload; what is more is dropped and counted. UDP shows how exact they are, TCP how much of them
//! is of use.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use toml::Value;

use crate::client::Client;
use crate::gateway::{Gateway, must};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::namespace::Namespace;
use crate::process;
use crate::relay::{Faults, Relay};
use crate::traffic::ping_until;

const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(20);
/// Payload of a datagram, and the bytes that count with it.
const PAYLOAD: usize = 1_172;
const COUNTED: usize = PAYLOAD + 28;
/// The least content of a full bucket, in seconds of its rate.
const BURST: f64 = 0.25;
/// How often a second is measured on a machine that has other work, until one is as exact as
/// promised.
const ATTEMPTS: usize = 20;
/// And how often TCP may try to get most of its limit.
const TCP_ATTEMPTS: usize = 3;

/// Ends the threads of a test, also of one that fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does what [`is_kept_together`] does, for one receiver.
pub(crate) fn is_kept(from: &Namespace, there: &Namespace, to: IpAddr, rate: usize) {
    is_kept_together(from, &[(there, to)], rate);
}

/// Sends three times as much UDP as `rate` (bytes per second) allows, to each of the receivers in
/// turn, until a second of all of them is within 5 % of it; no second may have more than it allows,
/// and the burst that was saved while the machine did something else.
fn is_kept_together(from: &Namespace, to: &[(&Namespace, IpAddr)], rate: usize) {
    let bind = |(there, to): &(&Namespace, IpAddr)| {
        let receiver = there.within(|| UdpSocket::bind((*to, 0))).expect("the address is there");
        receiver.set_read_timeout(Some(SECOND / 5)).expect("a socket takes a timeout");
        receiver
    };
    let receivers: Vec<_> = to.iter().map(bind).collect();
    let addresses: Vec<_> = receivers.iter().map(|receiver| receiver.local_addr().expect("bound")).collect();
    let received: Vec<_> = receivers.iter().map(|_| AtomicUsize::new(0)).collect();
    let sender = from.within(|| UdpSocket::bind(("0.0.0.0", 0))).expect("any port");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = SetOnDrop(&over);
        scope.spawn(|| {
            let (start, mut sent) = (Instant::now(), 0);
            while !over.load(Ordering::Relaxed) {
                if start.elapsed().as_secs_f64() * rate as f64 * 3.0 > sent as f64 {
                    // A full queue is as good as a loss.
                    let _ = sender.send_to(&[0x5A; PAYLOAD], addresses[sent / COUNTED % addresses.len()]);
                    sent += COUNTED;
                } else {
                    thread::sleep(Duration::from_millis(1));
                }
            }
        });
        for (receiver, received) in receivers.iter().zip(&received) {
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    if receiver.recv(&mut [0; 2_000]).is_ok() {
                        received.fetch_add(COUNTED, Ordering::Relaxed);
                    }
                }
            });
        }
        let all = || received.iter().map(|one| one.load(Ordering::Relaxed)).sum::<usize>();
        let seconds = || {
            let (start, before) = (Instant::now(), all());
            thread::sleep(SECOND);
            (all() - before) as f64 / start.elapsed().as_secs_f64() / rate as f64
        };
        // The first has what is saved now.
        seconds();
        let burst = BURST.max((128 << 10) as f64 / rate as f64);
        let mut measured = Vec::new();
        let kept = (0..ATTEMPTS).any(|_| {
            let part = seconds();
            measured.push(part);
            assert!(part < 1.05 + burst, "{measured:?} of the limit passed");
            (0.95..=1.05).contains(&part)
        });
        println!("UDP, limit of {} kbit/s: {measured:.3?} of it passed", rate / 125);
        assert!(kept, "{measured:?} of the limit passed");
        assert!(received.iter().all(|one| one.load(Ordering::Relaxed) > 0), "each gets some: {received:?}");
    });
}

/// The part of `rate` (bytes per second) that TCP connections get through together in this time.
fn goodput(
    from: &Namespace,
    there: &Namespace,
    to: IpAddr,
    streams: usize,
    rate: usize,
    time: Duration,
) -> f64 {
    let listener = there.within(|| TcpListener::bind((to, 0))).expect("the address is there");
    let address = listener.local_addr().expect("it is bound");
    let (received, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let _over = SetOnDrop(&over);
        for _ in 0..streams {
            let stream = from.within(|| TcpStream::connect_timeout(&address, LIMIT)).expect("a connection");
            let (mut accepted, _) = listener.accept().expect("it is there");
            stream.set_write_timeout(Some(SECOND / 5)).expect("a socket takes a timeout");
            accepted.set_read_timeout(Some(SECOND / 5)).expect("a socket takes a timeout");
            let (received, over) = (&received, &over);
            scope.spawn(move || {
                let mut stream = stream;
                while !over.load(Ordering::Relaxed) {
                    // The other end may be over a moment earlier; a connection that fails before
                    // shows in the figure.
                    match stream.write(&[0x5A; 65_536]) {
                        Err(error) if !is_timeout(error.kind()) => return,
                        _ => {}
                    }
                }
            });
            scope.spawn(move || {
                let mut buffer = vec![0; 65_536];
                while !over.load(Ordering::Relaxed) {
                    match accepted.read(&mut buffer) {
                        Ok(0) => return,
                        Ok(len) => {
                            received.fetch_add(len, Ordering::Relaxed);
                        }
                        Err(error) if !is_timeout(error.kind()) => return,
                        Err(_) => {}
                    }
                }
            });
        }
        thread::sleep(SECOND / 2);
        let (start, before) = (Instant::now(), received.load(Ordering::Relaxed));
        thread::sleep(time);
        let bytes = received.load(Ordering::Relaxed) - before;
        bytes as f64 / start.elapsed().as_secs_f64() / rate as f64
    })
}

fn is_timeout(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Bytes per second.
pub(crate) const fn mbit(rate: usize) -> usize {
    rate * 125_000
}

#[test]
fn limits_hold_in_both_directions_between_clients_and_after_a_reload() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("policy.client_to_client", true);
    gateway.configure("policy.campus_to_client", true);
    gateway.configure("limits.session_rate_down", "4mbit");
    gateway.configure("limits.session_rate_up", "8mbit");
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    let two = Client::connect(&lab, 2, &bob);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    ping_until(one.namespace(), two.v4(), 5 * SECOND);
    is_kept(&lab.campus, one.namespace(), one.v4(), mbit(4));
    is_kept(one.namespace(), &lab.campus, CAMPUS_V4.into(), mbit(8));
    let dropped = gateway.counter("rate_limit");
    assert!(dropped > 1_000, "only {dropped} are counted");
    // One may send twice as much as the other may receive.
    is_kept(one.namespace(), two.namespace(), two.v4(), mbit(4));

    gateway.configure("limits.session_rate_down", "24mbit");
    must(gateway.ask(&["reload"]));
    is_kept(&lab.campus, one.namespace(), one.v4(), mbit(24));
    is_kept(one.namespace(), two.namespace(), two.v4(), mbit(8));
    must(gateway.upgrade());
    is_kept(&lab.campus, one.namespace(), one.v4(), mbit(24));
}

#[test]
fn a_group_shares_its_limit_and_a_change_of_groups_changes_limits() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("policy.campus_to_client", true);
    gateway.configure("limits.session_rate_down", "16mbit");
    let group = "name = \"students\"\nrate_down = \"8mbit\"\nsession_rate_down = \"6mbit\"";
    let group: toml::Table = group.parse().expect("a group");
    gateway.configure("limits.groups", Value::Array(vec![Value::Table(group)]));
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    let modify = |name, change| must(process::run(gateway.user(&["modify", name, change, "students"])));
    for name in ["ann", "bob"] {
        modify(name, "--add-group");
    }
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    let two = Client::connect(&lab, 2, &bob);
    for client in [&one, &two] {
        ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    }
    let clients = [(one.namespace(), one.v4()), (two.namespace(), two.v4())];
    is_kept(&lab.campus, one.namespace(), one.v4(), mbit(6));
    is_kept_together(&lab.campus, &clients, mbit(8));

    let has_limits = |down: usize, group: bool| {
        eventually("the limits of other groups hold", LIMIT, || {
            let sessions = gateway.sessions();
            let session = sessions.iter().find(|session| session["user"] == "ann").expect("ann's session");
            (session["tx_limit"] == down && session["group_limit"] == group).then_some(())
        });
    };
    has_limits(mbit(6), true);
    let modify = |name, change| must(process::run(gateway.user(&["modify", name, change, "students"])));
    modify("ann", "--remove-group");
    has_limits(mbit(16), false);
    is_kept(&lab.campus, one.namespace(), one.v4(), mbit(16));
    is_kept(&lab.campus, two.namespace(), two.v4(), mbit(6));
    modify("ann", "--add-group");
    has_limits(mbit(6), true);
    is_kept_together(&lab.campus, &clients, mbit(8));
}

#[test]
fn the_sessions_of_a_user_share_a_limit_over_reloads_and_upgrades() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("policy.campus_to_client", true);
    gateway.configure("limits.session_rate_down", "6mbit");
    gateway.configure("limits.user_rate_down", "8mbit");
    gateway.configure("limits.user_rate_up", "4mbit");
    let ann = gateway.add_user("ann");
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    let two = Client::connect(&lab, 2, &ann);
    for client in [&one, &two] {
        ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    }
    let clients = [(one.namespace(), one.v4()), (two.namespace(), two.v4())];
    is_kept(&lab.campus, one.namespace(), one.v4(), mbit(6));
    is_kept_together(&lab.campus, &clients, mbit(8));
    is_kept(two.namespace(), &lab.campus, CAMPUS_V4.into(), mbit(4));
    assert!(gateway.sessions().iter().all(|session| session["user_tx_limit"] == mbit(8)));

    gateway.configure("limits.user_rate_down", "10mbit");
    must(gateway.ask(&["reload"]));
    is_kept_together(&lab.campus, &clients, mbit(10));
    must(gateway.upgrade());
    is_kept_together(&lab.campus, &clients, mbit(10));
}

#[test]
fn tcp_keeps_its_limited_rate() {
    let Some(lab) = Lab::new(1) else { return };
    tcp_gets_its_limit(&lab);
}

#[test]
fn tcp_with_a_long_round_trip_keeps_its_limited_rate() {
    let Some(lab) = Lab::new(1) else { return };
    let latency = Duration::from_micros(7_500);
    let _relay = Relay::start(&lab, Faults { latency, ..Faults::default() });
    tcp_gets_its_limit(&lab);
}

fn tcp_gets_its_limit(lab: &Lab) {
    let mut gateway = Gateway::init(lab);
    gateway.configure("policy.campus_to_client", true);
    let ann = gateway.add_user("ann");
    gateway.start();
    let one = Client::connect(lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    let down = |streams, rate| goodput(&lab.campus, one.namespace(), one.v4(), streams, rate, 2 * SECOND);
    let up =
        |streams, rate| goodput(one.namespace(), &lab.campus, CAMPUS_V4.into(), streams, rate, 2 * SECOND);
    for (name, rate) in [("2mbit", mbit(2)), ("20mbit", mbit(20))] {
        gateway.configure("limits.session_rate_down", name);
        gateway.configure("limits.session_rate_up", name);
        must(gateway.ask(&["reload"]));
        for streams in [1, 8] {
            let ways: [(_, &dyn Fn(usize, usize) -> f64); 2] = [("down", &down), ("up", &up)];
            for (way, goodput) in ways {
                let burst = BURST.max((128 << 10) as f64 / rate as f64) / 2.0;
                let enough = (0..TCP_ATTEMPTS).any(|_| {
                    let part = goodput(streams, rate);
                    println!("TCP, {streams} streams, {name} {way}: {part:.2} of it");
                    assert!(part < 1.05 + burst, "{streams} streams, {name} {way}: {part}");
                    part >= 0.6
                });
                assert!(enough, "{streams} streams get too little of {name} {way}");
            }
        }
    }
}
