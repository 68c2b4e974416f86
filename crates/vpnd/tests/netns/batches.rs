//! Behaviour: the path loses batches of datagrams (UDP segmentation offload) and no single ones, in
//! one direction, as behind kernels that damage batches. The end that sends them finds out, goes on
//! with single datagrams, and logs that.
//!
//! ```text
//! client --- net (drops what is longer than a datagram) --- gateway --- campus
//! ```
//! Links between namespaces carry a batch in one piece, so its length tells it from a datagram.

use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::client::Client;
use crate::doctor::examine;
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::relay::PORT;
use crate::traffic::{ping, transfer};

const SECOND: Duration = Duration::from_secs(1);
/// Until three rounds of the test are over, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Longer than any datagram on a link of 1,500 bytes.
const LONGER: u16 = 1_600;
const LOG: &str = "batches of datagrams (UDP segmentation offload) are lost on the way to this peer";

/// Has `net` drop batches whose port in this place is the gateway's.
fn drop_batches(lab: &Lab, place: &str) {
    lab.net.nft(&format!(
        "table inet damage {{
            counter lost {{ }}
            chain forward {{
                type filter hook forward priority filter; policy accept;
                udp {place} {PORT} meta length > {LONGER} counter name lost drop
            }}
        }}"
    ));
}

/// Batches that were dropped.
fn lost(lab: &Lab) -> u64 {
    let list = ["netns", "exec", lab.net.name(), "nft", "list", "counter", "inet", "damage", "lost"];
    let output = Command::new("ip").args(list).output().expect("nft runs");
    let output = String::from_utf8_lossy(&output.stdout);
    let after = output.split("packets ").nth(1).expect("a count");
    after.split_whitespace().next().and_then(|count| count.parse().ok()).expect("a number")
}

/// Keeps the session in use until `done`.
fn use_until(client: &mut Client<'_>, what: &str, done: impl Fn(&mut Client<'_>) -> bool) {
    eventually(what, LIMIT, || {
        ping(client.namespace(), CAMPUS_V4.into(), 56, SECOND);
        thread::sleep(Duration::from_millis(50));
        done(client).then_some(())
    });
}

fn transfer_without_loss(lab: &Lab, client: &Client<'_>) {
    let before = lost(lab);
    assert!(before > 0, "batches were lost until then");
    transfer(client.namespace(), &lab.campus, CAMPUS_V4.into(), 4 << 20, LIMIT);
    assert_eq!(lost(lab), before, "no batch was sent any more");
}

#[test]
fn a_client_whose_batches_are_lost_sends_single_datagrams() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, mut client) = Client::alone(&lab);
    drop_batches(&lab, "dport");
    let has_logged = |client: &mut Client<'_>| client.process().output().contains(LOG);
    use_until(&mut client, "the client logs that its batches are lost", has_logged);
    transfer_without_loss(&lab, &client);
    assert_eq!(gateway.status()["sessions"][0]["tx_single"], 0, "the gateway's batches arrive");
}

#[test]
fn a_gateway_whose_batches_are_lost_sends_single_datagrams_to_that_client() {
    let Some(lab) = Lab::new(1) else { return };
    let (mut gateway, mut client) = Client::alone(&lab);
    drop_batches(&lab, "sport");
    let is_single = |_: &mut Client<'_>| gateway.status()["sessions"][0]["tx_single"].as_u64() > Some(0);
    use_until(&mut client, "the gateway avoids batches", is_single);
    transfer_without_loss(&lab, &client);
    assert!(gateway.process().output().contains(LOG));
    let (_, findings) = examine(&gateway);
    let offloads = findings.iter().find(|finding| finding.check == "gateway.offloads").expect("a finding");
    assert!(
        offloads.verdict == "warning" && offloads.found.contains("to 1 of 1 clients are lost"),
        "{offloads:?}"
    );
}
