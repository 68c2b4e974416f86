//! Measures the pages that the portal serves in a second, its memory, and the cost to a tunnel on the
//! same machine. `VPND_PAGES` pages of each kind are asked for (default 400); what is measured is
//! printed, and only what must always hold is checked.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustls::{ClientConnection, StreamOwned};

use super::relays::{name, tls};
use super::{Browser, SOON, portal_of, serves, with_client};
use crate::gateway::Gateway;
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab};
use crate::namespace::Namespace;
use crate::traffic::{TEN_MB, ping, transfer};

/// Connections at the same time, all from one address.
const CONNECTIONS: usize = 8;
/// The portal is bounded; this is far more than it takes.
const MAX_MIB: u64 = 256;

/// The status of the answer to a request over a connection that stays open.
fn ask(stream: &mut StreamOwned<ClientConnection, std::net::TcpStream>, request: &[u8]) -> u16 {
    stream.write_all(request).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).unwrap();
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Asks for a page over [`CONNECTIONS`] connections while `goes_on` says so; pages a second.
fn rate(
    place: &Namespace,
    gateway: &Gateway<'_>,
    (path, cookie): (&str, &str),
    goes_on: impl Fn() -> bool + Sync,
) -> f64 {
    let (config, pages) = (tls(gateway), AtomicUsize::new(0));
    let request = format!("GET {path} HTTP/1.1\r\nHost: {GATEWAY_V4}\r\nCookie: {cookie}\r\n\r\n");
    let since = Instant::now();
    thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| {
                let tcp = place.within(|| std::net::TcpStream::connect((GATEWAY_V4, 443))).unwrap();
                tcp.set_read_timeout(Some(SOON)).unwrap();
                let connection = ClientConnection::new(config.clone(), name()).unwrap();
                let mut stream = StreamOwned::new(connection, tcp);
                while goes_on() {
                    assert_eq!(ask(&mut stream, request.as_bytes()), 200, "{path}");
                    pages.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    pages.into_inner() as f64 / since.elapsed().as_secs_f64()
}

#[test]
fn pages_are_served_at_a_rate_that_is_printed() {
    let Some(lab) = Lab::new(2) else { return };
    let (gateway, client) = with_client(&lab);
    let browser = Browser::new(&lab, &lab.clients[1], &gateway);
    serves(&browser);
    browser.logged_in("ann");
    let pages = std::env::var("VPND_PAGES").map_or(400, |pages| pages.parse().unwrap());
    let cookies = std::fs::read_to_string(&browser.cookies).unwrap();
    let token = cookies.lines().find_map(|line| line.split_once("__Host-vpnd\t")).unwrap().1;
    let cookie = format!("__Host-vpnd={token}");
    let place = browser.place;
    for (page, path) in [("login", "/login"), ("overview", "/"), ("devices", "/devices")] {
        let left = AtomicUsize::new(pages);
        let one_less = |left: usize| left.checked_sub(1);
        let goes_on = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok();
        eprintln!("{page}: {:.0} pages a second", rate(place, &gateway, (path, &cookie), goes_on));
    }
    let mib = || portal_of(&gateway).memory_kib() / 1_024;
    eprintln!("the portal has {} MiB", mib());

    // The tunnel, alone and while pages are asked for as fast as they come.
    let timed = || {
        let since = Instant::now();
        transfer(client.namespace(), &lab.campus, CAMPUS_V4.into(), TEN_MB, SOON);
        TEN_MB as f64 * 8.0 / since.elapsed().as_secs_f64() / 1e6
    };
    let alone = timed();
    let is_over = AtomicBool::new(false);
    let (meanwhile, lost) = thread::scope(|scope| {
        scope.spawn(|| rate(place, &gateway, ("/", &cookie), || !is_over.load(Ordering::Relaxed)));
        let meanwhile = timed();
        let second = Duration::from_secs(1);
        let lost = (0..100).filter(|_| !ping(client.namespace(), CAMPUS_V4.into(), 56, second)).count();
        is_over.store(true, Ordering::Relaxed);
        (meanwhile, lost)
    });
    eprintln!(
        "tunnel: {alone:.0} Mbit/s each way alone, {meanwhile:.0} beside a flood of pages; {lost} of 100 pings lost"
    );
    assert_eq!(lost, 0, "a flood of pages costs no packet");
    assert!(mib() < MAX_MIB, "{} MiB", mib());
}
