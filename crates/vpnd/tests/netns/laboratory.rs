//! The laboratory itself, proven with plain sockets: if one of these fails, believe no other test
//! here.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use crate::lab::{CAMPUS_V4, CAMPUS_V6, GATEWAY_V4, GATEWAY_V6, Lab};
use crate::persistent;
use crate::process::{self, Process};
use crate::relay::{Faults, PORT, Relay};
use crate::traffic::{TEN_MB, ping, transfer};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn the_gateway_is_reachable_and_the_campus_is_not() {
    let Some(lab) = Lab::new(2) else { return };
    for client in &lab.clients {
        assert!(ping(client, GATEWAY_V4.into(), 1_000, SECOND));
        assert!(ping(client, GATEWAY_V6.into(), 1_000, SECOND));
        assert!(!ping(client, CAMPUS_V4.into(), 56, SECOND / 5));
        assert!(!ping(client, CAMPUS_V6.into(), 56, SECOND / 5));
    }
    assert!(ping(&lab.gateway, CAMPUS_V4.into(), 1_000, SECOND));
    assert!(ping(&lab.gateway, CAMPUS_V6.into(), 1_000, SECOND));
    transfer(&lab.clients[0], &lab.gateway, GATEWAY_V4.into(), TEN_MB, 10 * SECOND);
    transfer(&lab.clients[1], &lab.gateway, GATEWAY_V6.into(), TEN_MB, 10 * SECOND);
}

#[test]
fn the_relay_loses_delays_and_repeats() {
    let Some(lab) = Lab::new(1) else { return };
    let faults = Faults { seed: 1, lose: 20, delay: 30, repeat: 10, record: true, ..Faults::default() };
    let relay = Relay::start(&lab, faults);
    let gateway = lab.gateway.within(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT))).unwrap();
    let client = lab.clients[0].within(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
    client.connect((GATEWAY_V4, PORT)).unwrap();
    gateway.set_read_timeout(Some(SECOND)).unwrap();
    client.set_read_timeout(Some(SECOND)).unwrap();

    let mut datagram = [0x80, 0, 0, 0];
    let (mut received, mut out_of_order, mut newest) = (0, 0, 0);
    for number in 0..200u16 {
        datagram[2..].copy_from_slice(&number.to_le_bytes());
        client.send(&datagram).unwrap();
    }
    let mut from = None;
    while let Ok((_, sender)) = gateway.recv_from(&mut datagram) {
        let number = u16::from_le_bytes([datagram[2], datagram[3]]);
        out_of_order += u32::from(number < newest);
        newest = newest.max(number);
        received += 1;
        from = Some(sender);
    }
    let [lost, delayed, repeated] = relay.counts();
    assert!((20..65).contains(&lost), "{lost} of 200 were lost");
    assert!(delayed > 20 && out_of_order > 10, "{delayed} were delayed, {out_of_order} out of order");
    assert!(repeated > 5, "{repeated} were repeated");
    assert_eq!(received, 200 - lost + repeated, "everything else arrived");
    assert_eq!(relay.recorded().len(), 200, "and was recorded");

    relay.rebind();
    relay.replay(relay.recorded().into_iter().take(1).collect());
    let (_, sender) = gateway.recv_from(&mut datagram).expect("the replayed datagram arrives");
    assert_ne!(Some(sender), from, "from a new port");
    for _ in 0..50 {
        gateway.send_to(b"back", sender).unwrap();
    }
    assert_eq!(client.recv(&mut datagram).expect("answers find their way back"), 4);
}

#[test]
fn a_persistent_transfer_gets_through_a_bad_network() {
    let Some(lab) = Lab::new(1) else { return };
    lab.net.nft(
        "add table inet loss\n\
         add chain inet loss forward { type filter hook forward priority 0; }\n\
         add rule inet loss forward numgen random mod 100 < 20 drop\n",
    );
    persistent::transfer(&lab.clients[0], &lab.gateway, GATEWAY_V4.into(), TEN_MB / 10, 30 * SECOND);
    persistent::transfer(&lab.clients[0], &lab.gateway, GATEWAY_V6.into(), TEN_MB / 10, 30 * SECOND);
}

#[test]
fn a_program_sees_its_own_etc_and_run() {
    let Some(lab) = Lab::new(1) else { return };
    let mut command = process::command(&lab, &lab.clients[0], "sh");
    let script =
        "echo nameserver 203.0.113.1 > /etc/new && mv /etc/new /etc/resolv.conf; ls -d /run/netns; exit 3";
    command.args(["-c", script]);
    let mut process = Process::start(&lab, "shell", command);
    assert_eq!(process.wait(SECOND).code(), Some(3));
    assert!(process.output().contains("No such file"), "/run is not the machine's: {}", process.output());
    let changed = std::fs::read_to_string(process::etc(&lab, &lab.clients[0]).join("resolv.conf")).unwrap();
    assert_eq!(changed, "nameserver 203.0.113.1\n");
    assert_ne!(std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default(), changed);
}

#[test]
fn nothing_is_left_behind() {
    let Some(lab) = Lab::new(1) else { return };
    let name = lab.gateway.name().to_owned();
    let mut command = process::command(&lab, &lab.gateway, "sleep");
    command.arg("60");
    let mut sleep = Process::start(&lab, "sleep", command);
    sleep.assert_running();
    drop(lab);
    sleep.wait(SECOND);
    let listed = Command::new("ip").args(["netns", "list"]).output().unwrap();
    assert!(!process::text(&listed).contains(&name), "{name} is gone");
}
