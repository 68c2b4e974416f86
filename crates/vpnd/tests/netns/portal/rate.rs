//! Measures the pages that the portal serves in a second, its memory, and the cost to a tunnel on
//! the same machine. `VPND_PAGES` pages of each kind are asked for (default 300: a host may ask for
//! 1,200 at once); what is measured is printed, and only what must always hold is checked.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{self, Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustls::{ClientConfig, ClientConnection, StreamOwned};

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
/// The portal's limits for a host, and a little more for the time between a reply and its count.
const MAX_AT_ONCE: f64 = 1_300.0;
const MAX_PER_S: f64 = 200.0;

type Stream = StreamOwned<ClientConnection, std::net::TcpStream>;

fn connect(place: &Namespace, config: &Arc<ClientConfig>) -> Stream {
    let tcp = place.within(|| std::net::TcpStream::connect((GATEWAY_V4, 443))).unwrap();
    tcp.set_read_timeout(Some(SOON)).unwrap();
    StreamOwned::new(ClientConnection::new(config.clone(), name()).unwrap(), tcp)
}

/// The status of the answer to a request over a connection that stays open.
fn ask(stream: &mut Stream, request: &[u8]) -> io::Result<u16> {
    stream.write_all(request)?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.extend(byte);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body)?;
    Ok(head.split(' ').nth(1).unwrap().parse().unwrap())
}

/// Asks for the overview over [`CONNECTIONS`] connections while `goes_on` is true, and connects
/// again where the portal ends one; the answers with a page, and those without.
fn flood(
    place: &Namespace,
    gateway: &Gateway<'_>,
    cookie: &str,
    goes_on: impl Fn() -> bool + Sync,
) -> [usize; 2] {
    let (config, answers) = (tls(gateway), [0; 2].map(AtomicUsize::new));
    let request = format!("GET / HTTP/1.1\r\nHost: {GATEWAY_V4}\r\nCookie: {cookie}\r\n\r\n");
    thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| {
                // This is another machine's work.
                vpnd_sys::process::go_behind_others();
                while goes_on() {
                    let mut stream = connect(place, &config);
                    while goes_on() {
                        let Ok(status) = ask(&mut stream, request.as_bytes()) else { break };
                        answers[usize::from(status != 200)].fetch_add(1, Ordering::Relaxed);
                    }
                    thread::sleep(Duration::from_millis(50));
                }
            });
        }
    });
    answers.map(AtomicUsize::into_inner)
}

/// Asks for a page over [`CONNECTIONS`] connections while `goes_on` is true; pages a second.
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
                let mut stream = connect(place, &config);
                while goes_on() {
                    assert_eq!(ask(&mut stream, request.as_bytes()).unwrap(), 200, "{path}");
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
    let pages = std::env::var("VPND_PAGES").map_or(300, |pages| pages.parse().unwrap());
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
    let (is_over, began) = (AtomicBool::new(false), Instant::now());
    let (meanwhile, lost, answers) = thread::scope(|scope| {
        let flood = scope.spawn(|| flood(place, &gateway, &cookie, || !is_over.load(Ordering::Relaxed)));
        let meanwhile = timed();
        let second = Duration::from_secs(1);
        let lost = (0..100).filter(|_| !ping(client.namespace(), CAMPUS_V4.into(), 56, second)).count();
        is_over.store(true, Ordering::Relaxed);
        (meanwhile, lost, flood.join().unwrap())
    });
    let [pages, refused] = answers;
    eprintln!(
        "tunnel: {alone:.0} Mbit/s each way alone, {meanwhile:.0} beside a flood that gets {pages} pages and {refused} \
         refusals; {lost} of 100 pings lost"
    );
    let most = MAX_AT_ONCE + MAX_PER_S * began.elapsed().as_secs_f64();
    assert!(pages as f64 <= most, "a host has a rate: {pages} pages, at most {most:.0}");
    assert_eq!(lost, 0, "a flood of pages costs no packet");
    assert!(mib() < MAX_MIB, "{} MiB", mib());
}
