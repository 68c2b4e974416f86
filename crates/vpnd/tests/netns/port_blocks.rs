//! Behaviour: each client leaves with its own block of ports of a public address, whatever becomes
//! of the gateway meanwhile, and of whatever it does to its own ports another client notices
//! nothing. The public address is the gateway's own.

use std::collections::HashSet;
use std::io::{ErrorKind, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use serde_json::Value as Json;

use crate::audit::{now, whois};
use crate::client::Client;
use crate::gateway::{Gateway, must, strings};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, Lab, eventually};
use crate::namespace::Namespace;
use crate::process;
use crate::traffic::{ping_until, transfer};

const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(60);
/// The gateway's address on the campus, which is the only public one.
const PUBLIC: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);
const FIRST: u16 = 20_000;
/// Other blocks: they overlap those, so that ports of one client were another's
/// before.
const OTHERWISE: u16 = FIRST + 16 * SIZE;
const SIZE: u16 = 64;

/// A gateway whose clients share one public address.
fn configured(lab: &Lab) -> Gateway<'_> {
    let gateway = Gateway::init(lab);
    gateway.configure("tunnel.pool_v4", "10.86.0.0/26");
    gateway.configure("push.routes", strings(&["10.200.0.0/24", "fd20::/64"]));
    gateway.configure("nat.mode", "nftables");
    gateway.configure("nat.addresses", strings(&[&PUBLIC.to_string()]));
    gateway.configure("nat.ports", format!("{FIRST}-{}", FIRST + 64 * SIZE - 1));
    gateway.configure("nat.ports_per_client", i64::from(SIZE));
    // Its sets, which packets fill, would be in the table that is compared.
    gateway.configure("limits.max_connections_per_address", 0);
    gateway
}

/// A gateway with users `ann` and `bob`, connected.
fn laboratory(lab: &Lab) -> (Gateway<'_>, [Client<'_>; 2]) {
    let mut gateway = configured(lab);
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    gateway.install();
    gateway.start();
    let clients = [Client::connect(lab, 1, &ann), Client::connect(lab, 2, &bob)];
    for client in &clients {
        ping_until(client.namespace(), CAMPUS_V4.into(), 10 * SECOND);
    }
    (gateway, clients)
}

/// The ports of a client, computed by hand.
fn block(client: &Client<'_>) -> std::ops::Range<u16> {
    let IpAddr::V4(inner) = client.v4() else { panic!("an IPv4 address") };
    let first = FIRST + SIZE * u16::from(inner.octets()[3]);
    first..first + SIZE
}

fn assert_in_block(seen: SocketAddr, client: &Client<'_>) {
    assert_eq!(seen.ip(), IpAddr::from(PUBLIC));
    let block = block(client);
    assert!(block.contains(&seen.port()), "{seen} is not of {block:?}");
}

/// A host of the campus that notes the sources of what reaches it, and answers.
struct Server {
    udp: UdpSocket,
    tcp: TcpListener,
}

impl Server {
    fn new(campus: &Namespace) -> Self {
        let (udp, tcp) = campus.within(|| {
            (UdpSocket::bind((CAMPUS_V4, 0)), TcpListener::bind(SocketAddr::from((CAMPUS_V4, 0))))
        });
        let (udp, tcp) = (udp.expect("a socket"), tcp.expect("a listener"));
        udp.set_read_timeout(Some(SECOND / 4)).expect("a timeout");
        Self { udp, tcp }
    }

    fn udp(&self) -> SocketAddr {
        self.udp.local_addr().expect("it is bound")
    }

    fn tcp(&self) -> SocketAddr {
        self.tcp.local_addr().expect("it is bound")
    }

    /// The source of the next datagram with this text, which is answered.
    fn source_of(&self, text: &str) -> Option<SocketAddr> {
        let mut buffer = [0; 64];
        loop {
            match self.udp.recv_from(&mut buffer) {
                Ok((length, from)) if &buffer[..length] == text.as_bytes() => {
                    self.udp.send_to(text.as_bytes(), from).expect("an answer");
                    return Some(from);
                }
                Ok(_) => {}
                // A child that ends meanwhile interrupts the call.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// A UDP socket of a client, from a port that it has chosen (0: any).
fn flow(client: &Client<'_>, port: u16, to: SocketAddr) -> UdpSocket {
    let socket = client.namespace().within(|| UdpSocket::bind(("0.0.0.0", port))).expect("a socket");
    socket.connect(to).expect("there is a route");
    socket.set_read_timeout(Some(SECOND / 4)).expect("a timeout");
    socket
}

/// Sends until there is an answer; as whom the server sees the flow.
fn exchange(flow: &UdpSocket, server: &Server, text: &str) -> SocketAddr {
    eventually(text, LIMIT, || {
        // An error that an earlier datagram got while the gateway was away.
        let _ = flow.send(text.as_bytes());
        let seen = server.source_of(text)?;
        let mut answer = [0; 64];
        let length = flow.recv(&mut answer).ok()?;
        (&answer[..length] == text.as_bytes()).then_some(seen)
    })
}

/// Opens a TCP connection; as whom the server sees it.
fn connect(client: &Client<'_>, server: &Server) -> (TcpStream, TcpStream, SocketAddr) {
    let to = server.tcp();
    let mut stream =
        client.namespace().within(|| TcpStream::connect_timeout(&to, LIMIT)).expect("a connection");
    stream.write_all(b"hello").expect("it is open");
    let (accepted, from) = server.tcp.accept().expect("a connection");
    (stream, accepted, from)
}

/// 'vpnd audit whois' names this user for what a server has seen, and no other.
fn assert_user(gateway: &Gateway<'_>, seen: SocketAddr, at: &str, user: &str) {
    let answer = eventually("the session is recorded", LIMIT, || {
        let answer = whois(gateway, &seen.to_string(), at);
        (answer["found"] != serde_json::json!([])).then_some(answer)
    });
    assert_eq!((&answer["found"][0]["user"], &answer["found"][1]), (&user.into(), &Json::Null), "{answer}");
}

/// The gateway's table as the kernel has it.
fn table(lab: &Lab) -> String {
    let mut nft = process::command(lab, &lab.gateway, "nft");
    nft.args(["list", "table", "inet", "vpnd_vpnd0"]);
    process::text(&must(process::run(nft)))
}

#[test]
fn each_client_leaves_with_ports_of_its_own() {
    let Some(lab) = Lab::new(2) else { return };
    let (gateway, clients) = laboratory(&lab);
    let server = Server::new(&lab.campus);
    let [ann, bob] = &clients;
    assert_ne!(block(ann), block(bob));
    let mut sources = Vec::new();
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| ping_until(client.namespace(), CAMPUS_V4.into(), LIMIT));
            scope.spawn(|| transfer(client.namespace(), &lab.campus, CAMPUS_V4.into(), 1_000_000, LIMIT));
        }
        let mut ports = HashSet::new();
        let mut open = Vec::new();
        for n in 0..20 {
            for client in &clients {
                let (near, far, seen) = connect(client, &server);
                assert_in_block(seen, client);
                assert!(ports.insert(seen.port()), "one TCP connection for each port");
                sources.push((seen, client.v4()));
                open.push((near, far));
                let seen = exchange(&flow(client, 0, server.udp()), &server, &format!("{n} {}", client.v4()));
                assert_in_block(seen, client);
            }
        }
    });
    // CVE-2021-3773: a port of the gateway's own, and one of the other client's.
    for port in [4433, 53, block(bob).start] {
        let seen = exchange(&flow(ann, port, server.udp()), &server, &format!("from {port}"));
        assert_in_block(seen, ann);
        sources.push((seen, ann.v4()));
    }
    for (seen, inner) in sources.iter().rev().take(6) {
        let user = if *inner == ann.v4() { "ann" } else { "bob" };
        assert_user(&gateway, *seen, &now(), user);
    }
    // IPv6 is not translated.
    let v6 = lab.campus.within(|| TcpListener::bind((CAMPUS_V6, 0))).expect("a listener");
    let to = v6.local_addr().expect("it is bound");
    let _near = ann.namespace().within(|| TcpStream::connect_timeout(&to, LIMIT)).expect("a connection");
    let seen = v6.accept().expect("a connection").1;
    assert_eq!(seen.ip(), ann.v6());
    assert_user(&gateway, seen, &now(), "ann");
}

#[test]
fn a_client_without_free_ports_affects_no_other() {
    let Some(lab) = Lab::new(2) else { return };
    let (_gateway, clients) = laboratory(&lab);
    let server = Server::new(&lab.campus);
    let [ann, bob] = &clients;
    let bobs = flow(bob, 0, server.udp());
    let before = exchange(&bobs, &server, "before");
    let flows: Vec<UdpSocket> = (0..3 * SIZE).map(|_| flow(ann, 0, server.udp())).collect();
    for flow in &flows {
        flow.send(b"one of many").expect("it is connected");
    }
    let mut seen = HashSet::new();
    while let Some(from) = server.source_of("one of many") {
        assert_in_block(from, ann);
        seen.insert(from.port());
    }
    assert!(seen.len() <= SIZE.into() && seen.len() > usize::from(SIZE / 2), "{} of {SIZE}", seen.len());
    assert_eq!(exchange(&bobs, &server, "after"), before, "his flow goes on");
    for n in 0..10 {
        assert_in_block(exchange(&flow(bob, 0, server.udp()), &server, &format!("bob {n}")), bob);
        assert_in_block(connect(bob, &server).2, bob);
    }
    // To another host her ports are free.
    let other = Server::new(&lab.campus);
    assert_in_block(exchange(&flow(ann, 0, other.udp()), &other, "elsewhere"), ann);
}

#[test]
fn flows_keep_their_ports_over_restarts_of_the_gateway() {
    let Some(lab) = Lab::new(2) else { return };
    let (mut gateway, clients) = laboratory(&lab);
    let server = Server::new(&lab.campus);
    let flows: Vec<UdpSocket> = clients.iter().map(|client| flow(client, 0, server.udp())).collect();
    let seen = |when: &str| -> Vec<SocketAddr> {
        let reply = |(n, flow): (usize, &UdpSocket)| exchange(flow, &server, &format!("{n} {when}"));
        flows.iter().enumerate().map(reply).collect()
    };
    let before = seen("before");
    clients.iter().zip(&before).for_each(|(client, seen)| assert_in_block(*seen, client));
    let rules = table(&lab);
    let check = |when: &str| {
        assert_eq!(seen(when), before, "{when}");
        assert_eq!(table(&lab), rules, "{when}");
        // And further ones.
        for (n, client) in clients.iter().enumerate() {
            let text = format!("another one of {n} {when}");
            assert_in_block(exchange(&flow(client, 0, server.udp()), &server, &text), client);
        }
    };
    must(gateway.ask(&["reload"]));
    check("after a reload");
    // The firewall was emptied: a reload restores all of it.
    lab.gateway.nft("flush ruleset");
    must(gateway.ask(&["reload"]));
    check("after another one");
    must(gateway.upgrade());
    check("after an upgrade");
    gateway.kill();
    gateway.start();
    check("after a kill");
    gateway.terminate();
    gateway.start();
    check("after a restart");

    // Other blocks come with a restart only.
    gateway.configure("nat.ports", format!("{OTHERWISE}-{}", OTHERWISE + 64 * SIZE - 1));
    let said = process::text(&must(gateway.ask(&["reload"])));
    assert!(said.contains("'ports' in [nat]"), "{said}");
    check("after a reload with other blocks");
    let refused = process::text(&gateway.upgrade());
    assert!(refused.contains("[nat] has changed"), "{refused}");
    check("after an upgrade that was refused");
    let then = now();
    // Times of the audit file are whole seconds: the other blocks begin in a later one.
    thread::sleep(Duration::from_millis(1_100));
    gateway.terminate();
    gateway.start();
    // A connection of the former blocks does not keep their ports, which may be another
    // client's now.
    for (client, seen) in clients.iter().zip(seen("after a restart with other blocks")) {
        let block = block(client).start + OTHERWISE - FIRST;
        assert!((block..block + SIZE).contains(&seen.port()), "{seen} is not of the block at {block}");
        assert_user(&gateway, seen, &now(), if client.v4() == clients[0].v4() { "ann" } else { "bob" });
    }
    // And what they were is not forgotten.
    assert_user(&gateway, before[0], &then, "ann");
    assert_user(&gateway, before[1], &then, "bob");
    gateway.terminate();
    gateway.tear_down();
    let mut nft = process::command(&lab, &lab.gateway, "nft");
    nft.args(["list", "ruleset"]);
    assert!(!process::text(&must(process::run(nft))).contains("vpnd"), "nothing is left");
}

/// Verdicts of 'vpnd doctor' about public addresses and their ports.
fn verdicts(gateway: &Gateway<'_>) -> Vec<(String, String)> {
    let mut doctor = gateway.vpnd(&["doctor", "--json", "--config"]);
    doctor.arg(gateway.config());
    let found: Vec<Json> = serde_json::from_slice(&process::run(doctor).stdout).expect("a list");
    let text = |finding: &Json, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    let found = found.iter().map(|finding| (text(finding, "check"), text(finding, "verdict")));
    found.filter(|(check, _)| check.starts_with("nat.")).collect()
}

#[test]
fn ports_that_are_also_the_machines_are_found_before_a_client_has_them() {
    let Some(lab) = Lab::new(1) else { return };
    let gateway = configured(&lab);
    let expect = |expected: &[(&str, &str)]| {
        let expected = expected.iter().map(|(check, verdict)| ((*check).to_owned(), (*verdict).to_owned()));
        assert_eq!(verdicts(&gateway), expected.collect::<Vec<_>>());
    };
    expect(&[("nat.addresses", "good"), ("nat.ports", "good")]);
    let program = lab.gateway.within(|| UdpSocket::bind(("0.0.0.0", FIRST + 5))).expect("a socket");
    expect(&[("nat.addresses", "good"), ("nat.ports", "problem")]);
    drop(program);
    // An unused one of the campus, and one from elsewhere.
    gateway.configure("nat.addresses", strings(&["10.200.0.9", "203.0.113.1"]));
    expect(&[("nat.addresses", "problem"), ("nat.addresses", "unknown")]);

    gateway.configure("nat.addresses", strings(&[&PUBLIC.to_string()]));
    gateway.configure("nat.ports", "40000-49999");
    let check = || {
        let mut command = gateway.vpnd(&["check"]);
        command.arg(gateway.config());
        process::run(command)
    };
    let refused = check();
    assert!(
        !refused.status.success() && process::text(&refused).contains("ip_local_port_range"),
        "{refused:?}"
    );
    lab.gateway.sysctl("net/ipv4/ip_local_reserved_ports", "40000-49999");
    must(check());
}
