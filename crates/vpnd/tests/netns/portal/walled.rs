//! Behaviour: a WireGuard device whose session is over reaches the portal, at each of the gateway's
//! addresses, and nothing else, over an upgrade too; web sites without TLS send it there, and other
//! hosts are refused to it at once. Its user renews it there, and the gateway has it back by a
//! handshake that the gateway begins. The time that took is printed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use super::{Browser, SOON, configure, serves};
use crate::client::Client;
use crate::gateway::{Gateway, INNER_V4, must};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, eventually};
use crate::namespace::Namespace;
use crate::openid::OpenId;
use crate::process;
use crate::traffic::{ping, ping_until};
use crate::wireguard::{Stock, add_device, handshakes, program, sessions_of};

const SECOND: Duration = Duration::from_secs(1);
/// The gateway's address in the campus, which a tunnel leads to.
const IN_CAMPUS: &str = "10.200.0.1";
const WALLED: &str = "(walled)";

/// curl's arguments by which pages are asked for at this address of the gateway, within a moment.
fn at(address: &str) -> [String; 4] {
    let to = format!("{GATEWAY_V4}:443:{address}:443");
    ["--connect-to".to_owned(), to, "--max-time".to_owned(), "3".to_owned()]
}

impl Browser<'_> {
    fn has_pages_at(&self, address: &str) -> bool {
        let mut command = self.curl("/login");
        command.args(at(address)).args(["--output", "/dev/null"]);
        process::run(command).status.success()
    }
}

#[test]
fn a_walled_device_is_led_to_its_provider_or_reaches_it_if_configured() {
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(1) else { return };
    let Some(provider) = OpenId::start(&lab, &serde_json::json!({})) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.add_user("ann");
    gateway.configure("wireguard.enabled", true);
    configure(&gateway);
    provider.configure(&gateway, "");
    let file = add_device(&gateway, "ann");
    gateway.start();
    let phone = Stock::start(&lab, 1, &program, &file);
    ping_until(phone.place, CAMPUS_V4.into(), SOON);
    let browser = Browser::new(&lab, phone.place, &gateway);
    serves(&browser);
    let site = lab.campus.within(|| TcpListener::bind(SocketAddr::from((CAMPUS_V4, 443))).unwrap());
    let reaches_site =
        || phone.place.within(|| TcpStream::connect_timeout(&site.local_addr().unwrap(), SECOND).is_ok());
    let pages = at(IN_CAMPUS);
    let get = |path: &str| browser.post_with(path, &[], &["--get", "--connect-to", pages[1].as_str()]);
    assert_eq!(get("/oidc/start/uni").status, 303, "its session goes on");

    must(gateway.ask(&["kick", "ann"]));
    let page = eventually("the page says what to do", SOON, || {
        ping(phone.place, CAMPUS_V4.into(), 56, SECOND / 5);
        let page = browser.has_pages_at(IN_CAMPUS).then(|| get("/oidc/start/uni"))?;
        (page.status == 200).then_some(page)
    });
    assert!(
        page.body.contains("Turn the tunnel off") && page.body.contains("/oidc/start/uni?anyway"),
        "{page:?}"
    );
    assert_eq!(get("/oidc/start/uni?anyway").status, 303);
    assert_eq!(browser.get("/oidc/start/uni").status, 303, "outside the tunnel");
    let mut elsewhere = process::command(&lab, phone.place, "curl");
    elsewhere.args(["--silent", "--include", "--max-time", "10"]);
    elsewhere.arg(format!("http://{CAMPUS_V4}/news?{}", "long=".repeat(400)));
    let answer = Browser::run(elsewhere);
    let to_portal = format!("\r\nlocation: https://{GATEWAY_V4}/devices\r\n");
    assert!(answer.status == 302 && answer.head.contains(&to_portal), "{answer:?}");
    assert!(!reaches_site());

    gateway.configure("portal.provider_networks", vec![format!("{CAMPUS_V4}/32")]);
    must(gateway.ask(&["reload"]));
    eventually("it reaches the login page", SOON, || reaches_site().then_some(()));
    assert!(!ping(phone.place, CAMPUS_V4.into(), 56, SECOND / 2), "and nothing else there");
    assert_eq!(get("/oidc/start/uni").status, 303);
}

/// The errors of a connection to the site over TCP, and of one over UDP.
fn errors(from: &Namespace, site: &TcpListener) -> [Option<ErrorKind>; 2] {
    from.within(|| {
        let to = site.local_addr().unwrap();
        let quic = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        quic.set_read_timeout(Some(SECOND)).unwrap();
        let answer = quic.connect(to).and_then(|()| quic.send(b"hello")).and_then(|_| quic.recv(&mut [0]));
        let tcp = TcpStream::connect_timeout(&to, SECOND).err();
        [tcp, answer.err()].map(|error| error.map(|error| error.kind()))
    })
}

#[test]
fn a_device_whose_session_is_over_reaches_the_portal_and_is_renewed_there() {
    let Some(program) = program("wireguard-go") else { return };
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.add_user("ann");
    let bob = gateway.add_user("bob");
    gateway.configure("wireguard.enabled", true);
    gateway.configure("policy.client_to_client", true);
    gateway.configure("policy.campus_to_client", true);
    configure(&gateway);
    let file = add_device(&gateway, "ann");
    gateway.start();
    let phone = Stock::start(&lab, 1, &program, &file);
    let laptop = Client::connect(&lab, 2, &bob);
    ping_until(phone.place, CAMPUS_V4.into(), SOON);
    ping_until(laptop.namespace(), CAMPUS_V4.into(), SOON);
    let browser = Browser::new(&lab, phone.place, &gateway);
    serves(&browser);
    assert!(browser.has_pages_at(IN_CAMPUS), "through the tunnel, as others whose session is not over");
    let site = lab.campus.within(|| TcpListener::bind(SocketAddr::from((CAMPUS_V4, 443))).unwrap());
    let reaches_site =
        || phone.place.within(|| TcpStream::connect_timeout(&site.local_addr().unwrap(), SECOND).is_ok());
    assert!(reaches_site());

    let profile = || sessions_of(&gateway, "wireguard").pop().map(|session| session["profile"].clone());
    must(gateway.ask(&["kick", "ann"]));
    let is_walled = || {
        ping(phone.place, CAMPUS_V4.into(), 56, SECOND / 5);
        (profile()? == WALLED).then_some(())
    };
    let confined = |when: &str| {
        eventually(&format!("it is let in to the portal: {when}"), SOON, is_walled);
        eventually(&format!("it has the pages: {when}"), SOON, || {
            browser.has_pages_at(IN_CAMPUS).then_some(())
        });
        assert!(browser.has_pages_at(INNER_V4), "at the gateway's inner address: {when}");
        assert!(!reaches_site(), "another web site: {when}");
        eventually(&format!("its connections are refused at once: {when}"), SOON, || {
            (errors(phone.place, &site) == [Some(ErrorKind::ConnectionRefused); 2]).then_some(())
        });
        for (address, what) in
            [(CAMPUS_V4.into(), "the campus"), (laptop.v4(), "a client"), (INNER_V4.parse().unwrap(), "ping")]
        {
            assert!(!ping(phone.place, address, 56, SECOND / 2), "{what}: {when}");
        }
        assert!(!ping(&lab.campus, phone.v4(), 56, SECOND / 2), "the campus does not reach it: {when}");
        assert!(!ping(laptop.namespace(), phone.v4(), 56, SECOND / 2), "nor does a client: {when}");
    };
    confined("after a kick");
    assert!(handshakes(&gateway, "walled") > 0);
    assert_eq!(gateway.status()["refused_devices"].as_array().unwrap().len(), 0);
    let started = crate::audit::recorded(&gateway, "session");
    assert!(started.iter().any(|entry| entry["profile"] == WALLED), "{started:?}");
    must(gateway.upgrade());
    confined("after an upgrade");

    let pages = at(IN_CAMPUS);
    let pages: Vec<&str> = pages.iter().map(String::as_str).collect();
    let form = browser.post_with("/login", &[], &pages).field("form");
    let fields = [("form", form.as_str()), ("user", "ann"), ("password", "ann's password")];
    assert_eq!(browser.post_with("/login", &fields, &pages).status, 303);
    let page = browser.post_with("/devices", &[], &["--get", "--connect-to", pages[1]]);
    assert!(page.body.contains("Renew it to connect again"), "{page:?}");
    let (form, device) = (page.field("form"), page.field("device"));
    let before = Instant::now();
    let renewed = browser.post_with("/devices/renew", &[("form", &form), ("device", &device)], &pages);
    assert_eq!(renewed.status, 303, "{renewed:?}");
    ping_until(phone.place, CAMPUS_V4.into(), 5 * SECOND);
    println!("a walled device was back {} ms after it was renewed", before.elapsed().as_millis());
    assert_ne!(profile(), Some(WALLED.into()));
    assert!(reaches_site());
}
