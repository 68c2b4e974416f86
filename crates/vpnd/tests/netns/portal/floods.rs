//! Behaviour: a host that takes many connections, sends slowly or sends too much keeps no other
//! from the pages, and costs the tunnel no packet.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use super::{Browser, SOON, serves, with_client};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, eventually};
use crate::process::{self, Process};
use crate::traffic::ping;

/// Opens many connections that say nothing, and others that begin a request again and again.
const FLOOD: &str = r#"
for n in $(seq 300); do exec {silent}<>/dev/tcp/$1/443 || break; done
echo silent
while :; do
    for n in $(seq 8); do
        { printf 'x%.0s' $(seq 2000); sleep 1; } | timeout 2 openssl s_client -quiet -connect $1:443 >/dev/null 2>&1 &
    done
    wait
done
"#;
const PINGS: usize = 100;

#[test]
fn a_flood_of_the_portal_blocks_no_user_and_costs_no_packet() {
    let Some(lab) = Lab::new(3) else { return };
    let (gateway, client) = with_client(&lab);
    let browser = Browser::new(&lab, &lab.clients[1], &gateway);
    serves(&browser);

    let mut flood = process::command(&lab, &lab.clients[2], "bash");
    flood.args(["-c", FLOOD, "flood"]).arg(GATEWAY_V4.to_string());
    let flood = Process::start(&lab, "flood", flood);
    eventually("it holds its connections", SOON, || flood.output().contains("silent").then_some(()));
    let pinged = || ping(client.namespace(), CAMPUS_V4.into(), 56, Duration::from_secs(10));
    let answers = (0..PINGS).filter(|_| pinged()).count();
    assert_eq!(answers, PINGS, "the tunnel loses nothing");
    let page = browser.logged_in("ann");
    assert!(page.body.contains(&client.v4().to_string()), "others have their pages: {page:?}");
    drop(flood);

    // Too much at once.
    let large = "x".repeat(40_000);
    let form = browser.get("/").field("form");
    let mut body = browser.curl("/sessions/end");
    body.args(["--data", &format!("form={form}&device={large}")]);
    let mut head = browser.curl("/");
    head.args(["--header", &format!("X-Large: {large}")]);
    for (request, status) in [(body, "413"), (head, "431")] {
        let output = process::run(request);
        let text = process::text(&output);
        // The answer is lost where the connection is closed before all was sent.
        let is_cut = matches!(output.status.code(), Some(55 | 56)) && !text.contains("HTTP/1.1 200");
        assert!(is_cut || text.contains(&format!("HTTP/1.1 {status}")), "{text}");
    }
    assert!(browser.overview().is_some());
}
