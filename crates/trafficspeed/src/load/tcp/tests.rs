//! The generator against itself over loopback.

use std::io::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use super::*;
use crate::clock;

fn job(streams: u32, verify: bool) -> Job {
    Job { run_id: 0x5eed, seed: 11, streams, threads: 2, write_bytes: 128 * 1024, verify, ..Job::default() }
}

fn connected(address: SocketAddr, listen: &Job, connect: &Job) -> (Vec<Stream>, Vec<Stream>) {
    let listener = Listener::bind(address, listen).unwrap();
    let peer = SocketAddr::new(address.ip(), listener.port().unwrap());
    let connect = connect.clone();
    let opener = std::thread::spawn(move || {
        connect_all(peer, &connect, Duration::from_secs(5), &mut || false).unwrap()
    });
    let accepted = listener.accept_all(listen, Duration::from_secs(5), &mut || false).unwrap();
    (accepted, opener.join().unwrap())
}

fn carry(address: SocketAddr, listen: &Job, connect: &Job) -> (Vec<StreamTotal>, Vec<StreamTotal>) {
    let (a, b) = connected(address, listen, connect);
    let start = clock::now_ns() + 10_000_000;
    let a = Transfer::begin(a, listen, start).unwrap();
    let b = Transfer::begin(b, connect, start).unwrap();
    std::thread::sleep(Duration::from_millis(150));
    // Both ends drain at the same time, as two agents do.
    let ending = std::thread::spawn(move || a.finish(Duration::from_secs(5)));
    let b = b.finish(Duration::from_secs(5));
    (ending.join().unwrap(), b)
}

#[test]
fn what_one_end_sends_the_other_receives_to_the_byte_half_each_way() {
    for address in [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), SocketAddr::from((Ipv6Addr::LOCALHOST, 0))] {
        let (a, b) = carry(address, &job(5, false), &job(5, false));
        assert_eq!(a.len(), 5);
        assert_eq!(b.iter().filter(|total| total.sends).count(), 3, "an odd stream goes to the connector");
        for (a, b) in a.iter().zip(&b) {
            assert_eq!((a.index, a.sends), (b.index, !b.sends));
            assert!(a.complete && b.complete, "{a:?} {b:?}");
            assert!(a.bytes > 0);
            assert_eq!(a.bytes, b.bytes, "stream {}", a.index);
        }
    }
}

#[test]
fn a_checked_payload_passes_and_a_foreign_one_is_a_fault() {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let (a, _) = carry(address, &job(2, true), &job(2, true));
    assert!(a.iter().all(|total| total.fault.is_none() && total.bytes > 0), "{a:?}");

    let other_seed = Job { seed: 12, ..job(2, true) };
    let (a, b) = carry(address, &job(2, true), &other_seed);
    let faults: Vec<_> = a.iter().chain(&b).filter(|total| !total.sends).collect();
    assert!(
        faults.iter().all(|t| t.fault.as_deref().is_some_and(|f| f.contains("wrong payload"))),
        "{faults:?}"
    );
}

#[test]
fn nothing_moves_before_the_agreed_instant() {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let (a, b) = connected(address, &job(2, false), &job(2, false));
    let start = clock::now_ns() + 1_000_000_000;
    let a = Transfer::begin(a, &job(2, false), start).unwrap();
    let b = Transfer::begin(b, &job(2, false), start).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(a.snapshot().iter().chain(&b.snapshot()).sum::<u64>(), 0);
    assert!(clock::now_ns() < start, "the machine is too busy for this test");
    clock::sleep_until(start + 100_000_000);
    assert!(a.snapshot().iter().chain(&b.snapshot()).all(|bytes| *bytes > 0));
}

#[test]
fn connections_of_another_run_are_not_taken() {
    let listener = Listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &job(1, false)).unwrap();
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, listener.port().unwrap()));
    let mut stranger = TcpStream::connect(peer).unwrap();
    // Another run's id, and a stream number that would do.
    stranger.write_all(&[0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0, 0, 0, 0]).unwrap();
    let error = listener.accept_all(&job(1, false), Duration::from_millis(200), &mut || false).unwrap_err();
    assert!(matches!(error, ConnectError::Missing { arrived: 0, wanted: 1, .. }), "{error}");
}

#[test]
fn an_unknown_congestion_control_is_named() {
    let job = Job { congestion: "nosuchcc".parse().unwrap(), ..job(1, false) };
    let error = Listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &job).unwrap_err();
    assert!(error.to_string().contains("`nosuchcc`"), "{error}");
}

#[test]
fn jobs_out_of_bounds_are_refused_in_words() {
    assert_eq!(job(32, false).problem(), None);
    for bad in [
        Job { streams: 0, ..job(1, false) },
        Job { streams: MAX_STREAMS + 1, ..job(1, false) },
        Job { threads: 0, ..job(1, false) },
        Job { write_bytes: 0, ..job(1, false) },
    ] {
        assert!(bad.problem().is_some_and(|text| text.contains("are possible")), "{bad:?}");
    }
}

#[test]
fn a_peer_that_ends_first_is_no_breakdown_and_one_that_breaks_is() {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let (a, b) = connected(address, &job(2, false), &job(2, false));
    let a = Transfer::begin(a, &job(2, false), 0).unwrap();
    let b = Transfer::begin(b, &job(2, false), 0).unwrap();
    let ending = std::thread::spawn(move || b.finish(Duration::from_millis(300)));
    std::thread::sleep(Duration::from_millis(150));
    assert!(!a.broke_down(), "the peer has said that it will send no more, and still takes what we send");
    ending.join().unwrap();
    drop(a.finish(Duration::from_secs(2)));

    let other = Job { seed: 3, ..job(2, true) };
    let (c, d) = connected(address, &job(2, true), &other);
    let c = Transfer::begin(c, &job(2, true), 0).unwrap();
    let d = Transfer::begin(d, &other, 0).unwrap();
    // The wrong payload ends both receivers at once; without them the senders are reset.
    let deadline = std::time::Instant::now() + Duration::from_secs(5);
    while !(c.broke_down() && d.broke_down()) {
        assert!(std::time::Instant::now() < deadline, "every connection is broken, but that is not noticed");
        std::thread::sleep(Duration::from_millis(5));
    }
}
