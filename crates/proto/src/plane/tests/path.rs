//! Behaviour: a path whose large datagrams arrive is not asked about, if the peer says so (PROTOCOL §13.2).

use super::*;
use crate::control::{FEATURE_PATH_CONFIRM, FEATURE_PATH_SIZE};

const HOME: &str = "198.51.100.1:1000";
const SIZE: u16 = 1_400;

/// What was seen of a download.
struct Download {
    checks: usize,
    flagged: usize,
}

/// For three seconds a large packet each 10 ms, and the client answers each with a small one.
fn download(features: u32) -> Download {
    let mut net = Net::new(false);
    net.install(ALICE, 2, features);
    for plane in [&mut net.gateway, &mut net.clients[0]] {
        plane.apply(Command::PathSize { slot: slot(0), size: SIZE });
    }
    let mut large = [packet(200, 10), vec![0; 1_330]].concat();
    let len = u16::try_from(large.len()).unwrap();
    large[2..4].copy_from_slice(&len.to_be_bytes());
    let large = with_hops(large, 64);
    let hello = net.client_sends(ALICE, &[]);
    net.gateway_gets(&hello, HOME).unwrap();
    let mut seen = Download { checks: 0, flagged: 0 };
    for _ in 0..300 {
        net.now = net.now + Duration::from_millis(10);
        let mut datagram = seal(&mut net.gateway, net.now, slot(ALICE), &large).unwrap();
        assert!(datagram.len() + 32 > SIZE.into() && datagram.len() <= SIZE.into());
        seen.checks += std::iter::from_fn(|| net.gateway.poll_path_check()).count();
        open(&mut net.clients[0], net.now, &mut datagram, GATEWAY, Ecn::NotEct).unwrap();
        let answer = net.client_sends(ALICE, &packet(10, 200));
        seen.flagged += usize::from(Header::parse(&answer).unwrap().confirm);
        net.gateway_gets(&answer, HOME).unwrap();
    }
    seen
}

#[test]
fn a_download_whose_datagrams_are_confirmed_is_asked_about_once() {
    let seen = download(FEATURE_PATH_SIZE | FEATURE_PATH_CONFIRM);
    assert_eq!((seen.checks, seen.flagged), (1, 300));
    let seen = download(FEATURE_PATH_SIZE);
    assert_eq!((seen.checks, seen.flagged), (3, 0), "to a peer without the feature nothing has changed");
}
