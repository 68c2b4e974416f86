//! Behaviour: a gateway that is restarted, or killed, behind NAT: running downloads go on, and what
//! is meant for clients goes nowhere else meanwhile. Only `--teardown`, or Ctrl-C at a terminal,
//! gives the machine back.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::border::arrives;
use crate::cleanup::look_at;
use crate::client::Client;
use crate::gateway::{Gateway, must};
use crate::lab::{CAMPUS_V4, CAMPUS_V6, Lab};
use crate::namespace::Namespace;
use crate::process;
use crate::traffic::ping_until;

const SECOND: Duration = Duration::from_secs(1);
/// A conversation may stand still while its client finds the gateway again.
const LIMIT: Duration = Duration::from_secs(20);

/// A laboratory whose campus does not know the way to inner addresses, with the gateway that `vpnd
/// init` makes.
pub(crate) fn behind_nat(lab: &Lab) -> Gateway<'_> {
    lab.campus.ip_batch("route del default via 10.200.0.1\nroute del default via fd20::1\n");
    let gateway = Gateway::init(lab);
    gateway.configure("nat.mode", "nftables");
    gateway
}

/// A gateway behind which everybody has its address, and client 1, which has reached the campus.
fn connected_behind_nat(lab: &Lab) -> (Gateway<'_>, Client<'_>) {
    let mut gateway = behind_nat(lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let one = Client::connect(lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);
    (gateway, one)
}

/// A download over one TCP connection, always with something on its way; the bytes that came while
/// `goes_on`. It may stand still for [`LIMIT`].
pub(crate) fn download(
    from: &Namespace,
    server: &Namespace,
    to: IpAddr,
    goes_on: impl Fn() -> bool + Send,
) -> io::Result<usize> {
    let listener = server.within(|| TcpListener::bind((to, 0)))?;
    let address = listener.local_addr()?;
    let sender = thread::spawn(move || -> io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        let chunk = vec![0x5A; 16_384];
        loop {
            stream.write_all(&chunk)?;
            thread::sleep(Duration::from_millis(2));
        }
    });
    let mut stream = from.within(|| TcpStream::connect_timeout(&address, LIMIT))?;
    stream.set_read_timeout(Some(LIMIT))?;
    let (mut received, mut buffer) = (0, vec![0; 65_536]);
    while goes_on() {
        match stream.read(&mut buffer)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            length => received += length,
        }
    }
    drop(stream);
    // It ends because there is no reader any more.
    drop(sender.join().expect("it does not panic"));
    Ok(received)
}

#[test]
fn downloads_behind_nat_outlive_a_restart_and_a_kill() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, one) = connected_behind_nat(&lab);
    ping_until(one.namespace(), CAMPUS_V6.into(), 5 * SECOND);
    thread::scope(|scope| {
        let talks = [IpAddr::from(CAMPUS_V4), CAMPUS_V6.into()].map(|to| {
            let from = one.namespace();
            let campus = &lab.campus;
            let start = Instant::now();
            scope.spawn(move || download(from, campus, to, || start.elapsed() < 12 * SECOND))
        });
        thread::sleep(SECOND);
        gateway.terminate();
        // While it is gone, a packet for the client would be answered by a host that thinks that it
        // is meant.
        thread::sleep(SECOND);
        gateway.start();
        ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);
        gateway.kill();
        thread::sleep(SECOND);
        gateway.start();
        ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);
        for talk in talks {
            let received = talk.join().expect("it does not panic").expect("the connection lives");
            assert!(received > 1_000_000, "only {received} bytes came");
        }
    });
}

#[test]
fn packets_for_clients_are_dropped_while_no_gateway_runs() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    let before = look_at(&lab, &lab.gateway);
    gateway.start();
    let one = Client::connect(&lab, 1, &ann);
    let inner = [one.v4(), one.v6()];
    drop(one);
    // The provider takes whatever it gets, also what is meant for clients.
    for address in inner {
        lab.net.ip_batch(&format!("addr add {address} dev lo\n"));
    }
    let campus = [IpAddr::from(CAMPUS_V4), CAMPUS_V6.into()];
    let gateways = ["198.18.0.2", "fd18::2"].map(|text| text.parse().expect("an address"));
    let leaks = |expected: bool| -> Vec<bool> {
        let from_campus = campus.map(|address| (&lab.campus, address)).into_iter().zip(inner);
        let own = gateways.map(|address| (&lab.gateway, address)).into_iter().zip(inner);
        from_campus.chain(own).map(|(from, to)| arrives(from, (&lab.net, to), expected)).collect()
    };
    for end in ["stopped", "killed"] {
        if gateway.is_running() {
            gateway.terminate();
        } else {
            gateway.start();
            gateway.kill();
        }
        // systemd-networkd, from 256 on, does this when it configures a link.
        for version in ["-4", "-6"] {
            let flush = [version, "route", "flush", "table", "all", "type", "unreachable", "proto", "118"];
            lab.gateway.ip(&flush);
        }
        assert_eq!(leaks(false), [false; 4], "{end}");
    }
    // Without what stays, they leave in clear.
    lab.gateway.ip_batch("route del unreachable 10.86.0.0/16\nroute del unreachable fd86::/64\n");
    lab.gateway.nft("delete table inet vpnd_vpnd0\n");
    assert_eq!(leaks(true), [true; 4], "so it is a leak");

    gateway.start();
    gateway.terminate();
    assert_eq!(leaks(false), [false; 4], "a start puts back what somebody removed");
    gateway.tear_down();
    assert_eq!(look_at(&lab, &lab.gateway), before, "the machine is as it was");
    gateway.tear_down();
}

#[test]
fn the_machine_is_given_back_without_the_gateways_configuration() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = behind_nat(&lab);
    let before = look_at(&lab, &lab.gateway);
    gateway.start();
    let tear_down = |gateway: &Gateway<'_>| {
        let mut command = gateway.vpnd(&["server", "--teardown", "--journal-dir"]);
        command.arg(gateway.journal());
        process::text(&must(process::run(command)))
    };
    let said = tear_down(&gateway);
    assert!(said.contains("its program is running"), "{said}");
    gateway.terminate();
    assert_ne!(look_at(&lab, &lab.gateway), before, "it waits for its next start");
    fs::remove_file(gateway.config()).expect("it is ours");
    tear_down(&gateway);
    assert_eq!(look_at(&lab, &lab.gateway), before);
    assert!(tear_down(&gateway).contains("nothing to undo"));
}

#[test]
fn ctrl_c_restores_the_machine_and_leaves_a_running_gateway_alone() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = behind_nat(&lab);
    let ann = gateway.add_user("ann");
    let before = look_at(&lab, &lab.gateway);
    gateway.start();
    gateway.kill();
    gateway.start();
    let mut command = gateway.vpnd(&["server", "--teardown", "--config"]);
    command.arg(gateway.config());
    let refused = process::run(command);
    assert_eq!(refused.status.code(), Some(1));
    assert!(process::text(&refused).contains("stop it first"), "{}", process::text(&refused));
    let one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), 5 * SECOND);

    gateway.process().signal(Signal::INT);
    let status = gateway.process().wait(10 * SECOND);
    assert!(status.success(), "{status}");
    assert_eq!(look_at(&lab, &lab.gateway), before);
}
