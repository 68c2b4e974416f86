//! Behaviour: the kernel forgets the connections of an inner address when its session ends, so that
//! the next holder of the address gets no packet of them. Others stay, those of a device that logs
//! in again among them.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use rustix::process::Signal;
use vpnd_proto::control::{Code, Message, encode};

use crate::access_profiles;
use crate::client::Client;
use crate::gateway::{Gateway, Login, must};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, Lab, eventually};
use crate::namespace::Namespace;
use crate::process;
use crate::theft::{Speaker, in_her_box};
use crate::traffic::ping_until;

const TIMEOUT: Duration = Duration::from_secs(30);
const PORT: u16 = 7_000;

/// A laboratory whose gateway remembers datagrams for longer than a test takes.
fn laboratory(clients: u8) -> Option<Lab> {
    let lab = Lab::new(clients)?;
    lab.gateway.sysctl("net/netfilter/nf_conntrack_udp_timeout", "3600");
    Some(lab)
}

/// Sends one datagram.
fn send(from: &Namespace, source: IpAddr, to: IpAddr) {
    let socket = from.within(|| UdpSocket::bind((source, PORT))).unwrap();
    // A client's guard refuses it as long as it would not go into the tunnel, and then it is
    // repeated.
    let _ = socket.send_to(b"one", SocketAddr::new(to, PORT));
}

/// Whether the gateway's kernel knows a connection from this address.
fn is_known(lab: &Lab, source: IpAddr) -> bool {
    let table = lab.gateway.within(|| std::fs::read_to_string("/proc/thread-self/net/nf_conntrack")).unwrap();
    let source = match source {
        IpAddr::V4(v4) => format!("src={v4} "),
        // The table has all digits.
        IpAddr::V6(v6) => {
            let groups: Vec<String> = v6.segments().iter().map(|group| format!("{group:04x}")).collect();
            format!("src={} ", groups.join(":"))
        }
    };
    table.lines().any(|line| line.contains(&source) && line.contains(&format!("dport={PORT} ")))
}

fn await_known(lab: &Lab, from: &Namespace, source: IpAddr, to: IpAddr) {
    eventually("the connection is known", TIMEOUT, || {
        send(from, source, to);
        is_known(lab, source).then_some(())
    });
}

fn session_of(gateway: &Gateway<'_>, user: &str) -> Option<String> {
    let sessions = gateway.sessions();
    let session = sessions.iter().find(|session| session["user"] == user)?;
    session["id"].as_str().map(str::to_owned)
}

#[test]
fn the_connections_of_a_session_end_with_it_and_others_stay() {
    let Some(lab) = laboratory(2) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("nat.mode", "nftables");
    let [ann, bob] = ["ann", "bob"].map(|name| gateway.add_user(name));
    gateway.start();
    let (one, mut two) = (Client::connect(&lab, 1, &ann), Client::connect(&lab, 2, &bob));
    let own = [IpAddr::from([10, 200, 0, 1]), "fd20::1".parse().unwrap()];
    for (source, to) in own.into_iter().zip([CAMPUS_V4.into(), CAMPUS_V6.into()]) {
        await_known(&lab, &lab.gateway, source, to);
    }
    for client in [&one, &two] {
        await_known(&lab, client.namespace(), client.v4(), CAMPUS_V4.into());
        await_known(&lab, client.namespace(), client.v6(), CAMPUS_V6.into());
    }
    let [of_ann, of_bob] = [&one, &two].map(|client| [client.v4(), client.v6()]);

    // The device logs in again without having said goodbye, and its programs go on.
    let before = session_of(&gateway, "bob").unwrap();
    two.process().signal_all(Signal::KILL);
    drop(two);
    must(crate::client::cleanup(&lab, 2));
    let two = Client::connect(&lab, 2, &bob);
    let other =
        eventually("a new session", TIMEOUT, || session_of(&gateway, "bob").filter(|id| *id != before));
    assert_eq!([two.v4(), two.v6()], of_bob, "{other}");
    // Ann's end comes after that of bob's session before.
    must(process::run(gateway.user(&["disable", "ann"])));
    for address in of_ann {
        eventually("the session's connections are forgotten", TIMEOUT, || {
            (!is_known(&lab, address)).then_some(())
        });
    }
    for address in of_bob.into_iter().chain(own) {
        assert!(is_known(&lab, address), "{address} has nothing to do with it");
    }
    must(process::run(gateway.user(&["disable", "bob"])));
    for address in of_bob {
        eventually("these, too", TIMEOUT, || (!is_known(&lab, address)).then_some(()));
    }
}

/// Has devices of a user log in until there is no address left.
fn fill_the_pool(lab: &Lab, user: &Login) {
    in_her_box(lab, async || {
        for seed in 1.. {
            let speaker = Speaker::new(&user.profile, seed);
            let mut line = speaker.dial().await;
            let login = speaker.login(&line, "eve");
            match line.ask(&login).await {
                Ok(Message::Established(_)) => {}
                Err(Code::NoAddress) => return,
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn a_reused_address_gets_no_packets_of_its_former_holder() {
    nothing_reaches_the_next_one(|gateway| {
        must(process::run(gateway.user(&["disable", "ann"])));
        eventually("ann is out", TIMEOUT, || session_of(gateway, "ann").is_none().then_some(()));
    });
}

#[test]
fn a_reused_address_gets_no_old_packets_after_an_outage() {
    nothing_reaches_the_next_one(|gateway| {
        gateway.terminate();
        must(process::run(gateway.user(&["disable", "ann"])));
        gateway.start();
    });
}

fn nothing_reaches_the_next_one(ann_leaves: impl FnOnce(&mut Gateway<'_>)) {
    let Some(lab) = laboratory(2) else { return };
    let mut gateway = Gateway::init(&lab);
    let [ann, bob, eve] = ["ann", "bob", "eve"].map(|name| gateway.add_user(name));
    access_profiles::configure(
        &gateway,
        "[[profile]]\nname = \"all\"\nroutes = [\"10.200.0.0/24\"]\npool_v4 = \"10.86.0.8/30\"\npool_v6 = \"none\"\n",
    );
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    let inner = one.v4();
    let campus = lab.campus.within(|| UdpSocket::bind((CAMPUS_V4, PORT))).unwrap();
    await_known(&lab, one.namespace(), inner, CAMPUS_V4.into());
    fill_the_pool(&lab, &eve);
    ann_leaves(&mut gateway);
    drop(one);
    let two = Client::connect(&lab, 2, &bob);
    assert_eq!(two.v4(), inner, "there is no other");
    ping_until(two.namespace(), CAMPUS_V4.into(), TIMEOUT);

    let received = two.namespace().within(|| UdpSocket::bind((inner, PORT))).unwrap();
    received.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let arrives = || {
        campus.send_to(b"for ann", (inner, PORT)).unwrap();
        received.recv(&mut [0; 16]).is_ok()
    };
    assert!(!(0..10).any(|_| arrives()), "what was for ann reaches bob");
    // It would arrive: bob's own answers do.
    eventually("the answer to bob", TIMEOUT, || {
        received.send_to(b"one", (CAMPUS_V4, PORT)).unwrap();
        arrives().then_some(())
    });
}

/// Sessions that come and go as fast as they can take nothing from one that ends meanwhile.
#[test]
fn a_loop_of_logins_keeps_no_connection_of_others_alive() {
    const USERS: [&str; 5] = ["eve", "eva", "evi", "evo", "ewa"];
    const LOGINS_OF_EACH: u8 = 7;
    let Some(lab) = laboratory(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("nat.mode", "nftables");
    let ann = gateway.add_user("ann");
    let others = USERS.map(|name| gateway.add_user(name));
    gateway.start();
    let client = Client::connect(&lab, 1, &ann);
    let inner = client.v4();
    await_known(&lab, client.namespace(), inner, CAMPUS_V4.into());
    in_her_box(&lab, async || {
        for seed in 1..=LOGINS_OF_EACH {
            for (user, login) in USERS.into_iter().zip(&others) {
                let speaker = Speaker::new(&login.profile, seed);
                let from = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
                for (from, key) in from.into_iter().zip([[seed; 32], [seed + 100; 32]]) {
                    let speaker = speaker.at(from, key);
                    let mut line = speaker.dial().await;
                    let login = speaker.login(&line, user);
                    let answer = line.ask(&login).await;
                    assert!(matches!(answer, Ok(Message::Established(_))), "{user}, {seed}: {answer:?}");
                    line.send.write_all(&encode(&Message::Bye)).await.unwrap();
                    line.gone().await;
                }
            }
        }
    });
    must(process::run(gateway.user(&["disable", "ann"])));
    eventually("ann's connections are forgotten", TIMEOUT, || (!is_known(&lab, inner)).then_some(()));
}
