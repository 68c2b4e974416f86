//! Behaviour: sessions come, share, and are ended by those who may end them.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use crate::client::{self, Client};
use crate::gateway::{Gateway, must, strings};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::process::{self, Process};
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn two_clients_of_the_same_user() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    let two = Client::connect(&lab, 2, &ann);
    assert_ne!(one.v4(), two.v4());
    assert_ne!(one.v6(), two.v6());
    for client in [&one, &two] {
        ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    }
    assert_eq!(gateway.sessions().len(), 2);
}

#[test]
fn a_returning_client_gets_its_addresses_again() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    gateway.start();
    let mut one = Client::connect(&lab, 1, &ann);
    let before = (one.v4(), one.v6());
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    one.interrupt();
    let said = one.process().output();
    let last = said.lines().find(|line| line.contains("the client stops")).expect(&said);
    assert!(last.contains("reason=\"SIGINT\"") && !last.contains("sent=0"), "{last}");
    let _two = Client::connect(&lab, 2, &bob);
    let one = Client::connect(&lab, 1, &ann);
    assert_eq!((one.v4(), one.v6()), before);
}

#[test]
fn disabling_a_user_ends_the_session_and_no_other() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    gateway.start();
    let mut one = Client::connect(&lab, 1, &ann);
    let two = Client::connect(&lab, 2, &bob);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);

    must(process::run(gateway.user(&["disable", "ann"])));
    // How soon the gateway knows is held where it asks for revocations; a busy machine may take its
    // time with them.
    let status = one.process().wait(30 * SECOND);
    assert!(!status.success(), "the client says that it did not end by itself");
    assert!(one.process().output().contains("disabled"), "and why: {}", one.process().output());
    let users: Vec<_> = gateway.sessions().iter().map(|session| session["user"].clone()).collect();
    assert_eq!(users, ["bob"]);
    ping_until(two.namespace(), CAMPUS_V4.into(), 5 * SECOND);

    must(process::run(gateway.user(&["enable", "ann"])));
    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
}

#[test]
fn an_administrator_ends_a_session() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let mut one = Client::connect(&lab, 1, &ann);
    must(gateway.ask(&["kick", "ann"]));
    one.process().wait(30 * SECOND);
    eventually("no session is left", 5 * SECOND, || gateway.sessions().is_empty().then_some(()));
}

#[test]
fn clients_reach_each_other_only_by_policy() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    let two = Client::connect(&lab, 2, &bob);
    for client in [&one, &two] {
        ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    }
    let before = gateway.counter("policy");
    assert!(!ping(one.namespace(), two.v4(), 56, SECOND / 2));
    assert!(!ping(one.namespace(), two.v6(), 56, SECOND / 2));
    assert!(gateway.counter_above("policy", before) >= before + 2, "each was counted");

    gateway.configure("policy.client_to_client", true);
    must(gateway.ask(&["reload"]));
    ping_until(one.namespace(), two.v4(), 5 * SECOND);
    ping_until(two.namespace(), one.v6(), 5 * SECOND);
}

/// Ann may use a service of bob's, which opens nothing the other way.
#[test]
fn only_replies_return_from_reachable_hosts() {
    let Some(lab) = Lab::new(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let (ann, bob) = (gateway.add_user("ann"), gateway.add_user("bob"));
    let rule = |protocol: &str| {
        let text = format!(
            "action = \"allow\"\nfrom = \"user:ann\"\nto = \"user:bob\"\nprotocol = \"{protocol}\"\nports = [\"5300\"]"
        );
        toml::Value::Table(text.parse().expect("a rule"))
    };
    gateway.configure("policy.rules", toml::Value::Array(vec![rule("udp"), rule("tcp")]));
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    let two = Client::connect(&lab, 2, &bob);
    for client in [&one, &two] {
        ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    }
    let bound = |client: &Client<'_>, port: u16| {
        let address = SocketAddr::new(client.v4(), port);
        let socket = client.namespace().within(|| UdpSocket::bind(address)).expect("the port is free");
        socket.set_read_timeout(Some(2 * SECOND)).expect("it is not zero");
        socket
    };
    let (service, closed, asker) = (bound(&two, 5300), bound(&one, 7000), bound(&one, 7001));
    let before = gateway.counter("policy");
    for _ in 0..3 {
        service.send_to(b"scan", closed.local_addr().expect("it is bound")).expect("it can be sent");
    }
    assert!(gateway.counter_above("policy", before + 2) >= before + 3, "nobody has asked");

    let answered = |what: &[u8]| {
        let mut buffer = [0; 16];
        asker.send_to(what, service.local_addr().expect("it is bound")).expect("it can be sent");
        let (_, from) = service.recv_from(&mut buffer).expect("the question arrives");
        service.send_to(what, from).expect("it can be sent");
        let (len, _) = asker.recv_from(&mut buffer).expect("the answer arrives");
        assert_eq!(&buffer[..len], what);
    };
    answered(b"first");
    must(gateway.upgrade());
    service.send_to(b"late", asker.local_addr().expect("it is bound")).expect("it can be sent");
    assert_eq!(
        asker.recv(&mut [0; 16]).expect("a late answer arrives"),
        4,
        "the next process knows the flow"
    );
    answered(b"second");
    let silent = closed.recv(&mut [0; 16]).expect_err("the other port is closed");
    assert!(matches!(silent.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{silent}");

    let listener = two.namespace().within(|| TcpListener::bind((two.v4(), 5300))).expect("the port is free");
    let address = listener.local_addr().expect("it is bound");
    let stream = one.namespace().within(|| TcpStream::connect_timeout(&address, 10 * SECOND));
    stream.expect("ann connects to bob");
}

#[test]
fn a_pool_that_is_used_up() {
    let Some(lab) = Lab::new(6) else { return };
    let mut gateway = Gateway::init(&lab);
    // Eight addresses: the network, the gateway, five clients, broadcast.
    gateway.configure("tunnel.pool_v4", "10.86.0.0/29");
    gateway.configure("push.routes", strings(&["10.200.0.0/24"]));
    let ann = gateway.add_user("ann");
    gateway.start();
    let clients: Vec<_> = (1..=5).map(|number| Client::connect(&lab, number, &ann)).collect();
    // The sixth gets a refusal with the reason and goes on trying, because addresses become free
    // again.
    let command = client::command(&lab, 6, &ann, &[]);
    let mut sixth = Process::start(&lab, "client6", command);
    eventually("the sixth client says what is used up", 10 * SECOND, || {
        sixth.assert_running();
        sixth.output().contains("no inner address left").then_some(())
    });
    assert_eq!(gateway.sessions().len(), 5);
    for client in &clients {
        ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    }
}
