//! Behaviour: a network that lets no UDP through, or refuses it, is named as such within seconds;
//! nothing that a network says ends the client's attempts, for anybody can forge it; `--give-up`
//! does.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::client;
use crate::gateway::{Gateway, Login, edit_toml, strings};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, GATEWAY_V6, Lab, eventually};
use crate::process::Process;
use crate::relay::PORT;
use crate::traffic::{ping, ping_until};

const SECOND: Duration = Duration::from_secs(1);
/// The client says that nothing answers after 5 s; machines of CI are slow.
const REPORT_TIMEOUT: Duration = Duration::from_secs(15);
const GAVE_UP: i32 = 4;

/// A firewall on the way that treats the gateway's port so.
fn firewall(lab: &Lab, verdict: &str) {
    lab.net.nft(&format!(
        "add table inet hole\n\
         add chain inet hole forward {{ type filter hook forward priority 0; }}\n\
         add rule inet hole forward udp dport {PORT} {verdict}\n"
    ));
}

fn tear_down_firewall(lab: &Lab) {
    lab.net.nft("delete table inet hole\n");
}

/// A user whose profile has these addresses of the gateway, which does not run yet.
fn installation<'l>(lab: &'l Lab, addresses: &[&str]) -> (Gateway<'l>, Login) {
    let gateway = Gateway::init(lab);
    let ann = gateway.add_user("ann");
    edit_toml(&ann.profile, |profile| profile["server"]["addresses"] = strings(addresses));
    (gateway, ann)
}

fn start(lab: &Lab, login: &Login, arguments: &[&str]) -> Process {
    Process::start(lab, "client1", client::command(lab, 1, login, arguments))
}

/// Waits for words in the log; how long that took.
fn until_it_says(client: &mut Process, words: &str) -> Duration {
    let begun = Instant::now();
    eventually(&format!("the log has \"{words}\""), REPORT_TIMEOUT, || {
        client.assert_running();
        client.output().contains(words).then_some(())
    });
    begun.elapsed()
}

#[test]
fn a_network_that_drops_udp_is_named_after_five_seconds_and_tried_on() {
    let Some(lab) = Lab::new(1) else { return };
    let (v4, v6) = (format!("{GATEWAY_V4}:{PORT}"), format!("[{GATEWAY_V6}]:{PORT}"));
    let (mut gateway, ann) = installation(&lab, &[&v4, &v6]);
    gateway.start();
    firewall(&lab, "drop");
    let mut client = start(&lab, &ann, &[]);
    let after = until_it_says(&mut client, &format!("lets no UDP to port {PORT} through"));
    println!("said so after {after:?}");
    assert!(after > 4 * SECOND, "it was tried before: {after:?}");
    let text = client.output();
    assert!(text.contains(&format!("{v4}: no answer; {v6}: no answer")), "{text}");
    tear_down_firewall(&lab);
    until_it_says(&mut client, "connected");
    ping_until(&lab.clients[0], CAMPUS_V4.into(), 5 * SECOND);
    let text = client.output();
    assert_eq!(text.matches("lets no UDP").count(), 1, "once is enough: {text}");
}

#[test]
fn the_end_of_an_outage_is_the_last_line_about_it() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = installation(&lab, &[&format!("{GATEWAY_V4}:{PORT}")]);
    gateway.start();
    let mut client = start(&lab, &ann, &[]);
    ping_until(&lab.clients[0], CAMPUS_V4.into(), REPORT_TIMEOUT);
    let outages = |client: &Process| client.output().matches("no connection to the gateway: ").count();
    for _ in 0..2 {
        let before = outages(&client);
        firewall(&lab, "drop");
        eventually("the outage is in the log", 2 * REPORT_TIMEOUT, || {
            ping(&lab.clients[0], CAMPUS_V4.into(), 56, SECOND / 10);
            (outages(&client) > before).then_some(())
        });
        tear_down_firewall(&lab);
        ping_until(&lab.clients[0], CAMPUS_V4.into(), REPORT_TIMEOUT);
        eventually("its end is", REPORT_TIMEOUT, || {
            client.assert_running();
            let text = client.output();
            (text.rfind("connected") > text.rfind("no connection to the gateway")).then_some(())
        });
    }
    assert_eq!(gateway.status()["counters"]["logins"]["accepted"], 1, "it was one session");
}

#[test]
fn a_network_that_refuses_is_quoted_at_once_and_not_believed() {
    let cases = [
        (GATEWAY_V4.to_string(), "icmp type admin-prohibited", "administratively prohibited"),
        (GATEWAY_V4.to_string(), "icmp type host-unreachable", "host unreachable"),
        (GATEWAY_V4.to_string(), "icmp type net-unreachable", "network unreachable"),
        (GATEWAY_V4.to_string(), "icmp type port-unreachable", "port unreachable"),
        (format!("[{GATEWAY_V6}]"), "icmpv6 type admin-prohibited", "administratively prohibited"),
        (format!("[{GATEWAY_V6}]"), "icmpv6 type no-route", "network unreachable"),
        (format!("[{GATEWAY_V6}]"), "icmpv6 type addr-unreachable", "host unreachable"),
    ];
    let Some(lab) = Lab::new(cases.len() as u8) else { return };
    let (mut gateway, ann) = installation(&lab, &["192.0.2.1:1"]);
    gateway.start();
    thread::scope(|scope| {
        for ((host, reject, reason), number) in cases.into_iter().zip(1..) {
            let (lab, ann) = (&lab, &ann);
            scope.spawn(move || is_quoted(lab, ann, number, &format!("{host}:{PORT}"), reject, reason));
        }
    });
}

/// One client whose network refuses with this, until it does not any more.
fn is_quoted(lab: &Lab, ann: &Login, number: u8, address: &str, reject: &str, reason: &str) {
    let login = Login { profile: lab.path(format!("case{number}.toml")), ..ann.clone() };
    fs::copy(&ann.profile, &login.profile).expect("the laboratory's directory is writable");
    edit_toml(&login.profile, |profile| profile["server"]["addresses"] = strings(&[address]));
    lab.net.nft(&format!(
        "add table inet hole{number}\n\
         add chain inet hole{number} forward {{ type filter hook forward priority 0; }}\n\
         add rule inet hole{number} forward iifname {} udp dport {PORT} reject with {reject}\n",
        Lab::port(number)
    ));
    let command = client::command(lab, number.into(), &login, &[]);
    let mut client = Process::start(lab, &format!("client{number}"), command);
    let after = until_it_says(&mut client, &format!("ICMP \"{reason}\" from "));
    println!("{reject}: quoted {after:?} after the start");
    until_it_says(&mut client, "refuses UDP to the gateway");
    assert!(
        client.output().contains(&format!("no connection to the gateway: {address}: ")),
        "{}",
        client.output()
    );
    lab.net.nft(&format!("delete table inet hole{number}\n"));
    // The attempt that was refused, or the next one, goes through.
    until_it_says(&mut client, "connected");
}

#[test]
fn a_gateway_that_does_not_run_is_not_mistaken_for_a_firewall() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = installation(&lab, &["192.0.2.1:1"]);
    for host in [GATEWAY_V4.to_string(), format!("[{GATEWAY_V6}]")] {
        let address = format!("{host}:{PORT}");
        edit_toml(&ann.profile, |profile| profile["server"]["addresses"] = strings(&[&address]));
        let mut client = start(&lab, &ann, &[]);
        until_it_says(&mut client, "nothing listens there");
        until_it_says(&mut client, "does the gateway run");
        assert!(!client.output().contains("refuses UDP"), "{}", client.output());
        gateway.start();
        until_it_says(&mut client, "connected");
        drop(client);
        gateway.terminate();
    }
}

/// Client 2 gets a copy of each datagram of client 1 and answers with an error, as anybody can who
/// forges ICMP; the datagrams themselves arrive.
#[test]
fn forged_icmp_prevents_no_login() {
    let Some(lab) = Lab::new(2) else { return };
    let (mut gateway, ann) = installation(&lab, &[&format!("{GATEWAY_V4}:{PORT}")]);
    gateway.start();
    let (one, two) = (Lab::port(1), Lab::port(2));
    lab.net.nft(&format!(
        "add table ip copy\n\
         add chain ip copy forward {{ type filter hook forward priority 0; }}\n\
         add rule ip copy forward iifname {one} udp dport {PORT} dup to 198.18.2.2 device {two}\n"
    ));
    lab.clients[1].sysctl("net/ipv4/ip_forward", "1");
    lab.clients[1].nft(&format!(
        "add table ip liar\n\
         add chain ip liar forward {{ type filter hook forward priority 0; }}\n\
         add rule ip liar forward udp dport {PORT} reject with icmp type port-unreachable\n"
    ));
    let mut client = start(&lab, &ann, &[]);
    until_it_says(&mut client, "connected");
    assert!(client.output().contains("ICMP \"port unreachable\" from 198.18.2.2"), "{}", client.output());
    let end = Instant::now() + 3 * SECOND;
    while Instant::now() < end {
        ping_until(&lab.clients[0], CAMPUS_V4.into(), 5 * SECOND);
    }
    client.assert_running();
    assert!(!client.output().contains("interrupted"), "{}", client.output());
}

#[test]
fn give_up_ends_a_client_without_a_session_by_a_status_of_its_own() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, ann) = installation(&lab, &[&format!("{GATEWAY_V4}:{PORT}")]);
    gateway.start();
    firewall(&lab, "drop");
    let mut client = start(&lab, &ann, &["--give-up", "7"]);
    let status = client.wait(40 * SECOND);
    let text = client.output();
    assert_eq!(status.code(), Some(GAVE_UP), "{text}");
    assert!(text.contains("no session for 7 s"), "{text}");
    assert!(text.contains(&format!("lets no UDP to port {PORT} through")), "{text}");

    // The time counts again while there is a session, and from its loss.
    tear_down_firewall(&lab);
    let mut client = start(&lab, &ann, &["--give-up", "7"]);
    until_it_says(&mut client, "connected");
    thread::sleep(9 * SECOND);
    client.assert_running();
    gateway.kill();
    let stop = Instant::now();
    while client.ended().is_none() && stop.elapsed() < 60 * SECOND {
        ping(&lab.clients[0], CAMPUS_V4.into(), 56, SECOND / 5);
    }
    let text = client.output();
    assert_eq!(client.wait(SECOND).code(), Some(GAVE_UP), "{text}");
}
