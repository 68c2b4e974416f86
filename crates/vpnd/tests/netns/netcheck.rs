//! `vpnd netcheck` in the networks that people meet.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use serde_json::Value as Json;

use crate::client::Client;
use crate::gateway::{Gateway, Login, edit_toml};
use crate::lab::{GATEWAY_V4, Lab};
use crate::names::{self, NAME, PROVIDERS, name_server, name_server_of};
use crate::over_tcp;
use crate::process;

struct Report {
    is_good: bool,
    findings: Vec<Json>,
    advice: String,
}

impl Report {
    /// The verdict and the text of the finding of a check that names this.
    fn of(&self, check: &str, named: &str) -> (&str, &str) {
        let is_it =
            |finding: &&Json| finding["check"] == check && finding["found"].as_str().unwrap().contains(named);
        let finding = self
            .findings
            .iter()
            .find(is_it)
            .unwrap_or_else(|| panic!("{check} {named}: {:#?}", self.findings));
        (finding["verdict"].as_str().unwrap(), finding["found"].as_str().unwrap())
    }
}

fn netcheck(lab: &Lab, login: &Login) -> Report {
    let mut command = process::command(lab, &lab.clients[0], env!("CARGO_BIN_EXE_vpnd"));
    command.args(["netcheck", "--json"]).arg(&login.profile);
    let output = process::run(command);
    let report: Json = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", process::text(&output)));
    Report {
        is_good: output.status.success(),
        findings: report["findings"].as_array().unwrap().clone(),
        advice: report["advice"].as_str().unwrap().to_owned(),
    }
}

/// From now on the network between clients and gateway does this to what it forwards.
fn forward(lab: &Lab, rules: &str) {
    lab.net.nft(&format!(
        "add table inet middlebox\nflush table inet middlebox\n\
         add chain inet middlebox forward {{ type filter hook forward priority 0; }}\n{rules}"
    ));
}

#[test]
fn an_open_network_and_those_that_block_are_told_apart() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, ann) = over_tcp::installation(&lab);
    let open = netcheck(&lab, &ann);
    let v4 = GATEWAY_V4.to_string();
    assert!(open.is_good, "{:#?}", open.findings);
    assert_eq!(open.of("udp", &v4).0, "good");
    assert!(open.of("udp.size", &v4).1.ends_with("up to 1500 bytes"), "{:?}", open.of("udp.size", &v4));
    assert!(open.advice.contains("lets the VPN through"), "{}", open.advice);

    forward(&lab, "add rule inet middlebox forward meta length > 1340 meta l4proto udp drop\n");
    let narrow = netcheck(&lab, &ann);
    assert!(narrow.is_good);
    assert_eq!(
        narrow.of("udp.size", &v4),
        ("warning", format!("{v4}:4433 gets packets of up to 1320 bytes").as_str())
    );

    forward(&lab, "add rule inet middlebox forward meta l4proto udp numgen random mod 4 vmap { 0 : drop }\n");
    assert_eq!(netcheck(&lab, &ann).of("udp", &v4).0, "warning", "it loses a quarter");

    forward(&lab, "add rule inet middlebox forward meta l4proto udp drop\n");
    let over_tcp = netcheck(&lab, &ann);
    assert!(over_tcp.is_good, "{:#?}", over_tcp.findings);
    assert_eq!((over_tcp.of("udp", &v4).0, over_tcp.of("tcp", &v4).0), ("warning", "good"));
    assert!(over_tcp.advice.contains("vpnd connect uses TCP"), "{}", over_tcp.advice);

    // As a proxy that looks into TLS has it.
    edit_toml(&ann.profile, |profile| profile["server"]["name"] = "other.example".into());
    let inspected = netcheck(&lab, &ann);
    assert!(!inspected.is_good);
    assert_eq!((inspected.of("udp", &v4).0, inspected.of("tcp", &v4).0), ("problem", "warning"));
    assert!(inspected.of("tcp", &v4).1.contains("TLS fails"), "{:?}", inspected.of("tcp", &v4));

    forward(&lab, "add rule inet middlebox forward drop\n");
    let nothing = netcheck(&lab, &ann);
    assert!(!nothing.is_good);
    assert!(nothing.advice.contains("no address of the gateway answers"), "{}", nothing.advice);
}

#[test]
fn a_network_that_wants_a_login_first_is_recognised() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, ann) = names::gateway(&lab, "pushed");
    let mut provider = name_server(&lab, &lab.net, PROVIDERS, &GATEWAY_V4.to_string());
    let usual = netcheck(&lab, &ann);
    assert!(usual.is_good, "{:#?}", usual.findings);
    assert_eq!((usual.of("dns", "").0, usual.of("name", NAME).0), ("good", "good"));
    // Such a network answers each name itself, and each page by its own.
    provider.kill();
    let _provider = name_server_of(&lab, &lab.net, &[PROVIDERS], &format!("{NAME}/#"), &["198.18.1.1"]);
    forward(&lab, "add rule inet middlebox forward drop\n");
    let page = lab.net.within(|| TcpListener::bind("198.18.1.1:80")).unwrap();
    let pages = std::thread::spawn(move || {
        for stream in page.incoming().take(1) {
            let mut stream = stream.unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let _ = stream.read(&mut [0; 1_024]);
            stream.write_all(b"HTTP/1.1 302 Found\r\nLocation: http://login.cafe.example/\r\n\r\n").unwrap();
        }
    });
    let caught = netcheck(&lab, &ann);
    assert!(!caught.is_good);
    assert_eq!(caught.of("dns", "").0, "warning");
    assert!(caught.of("login.page", NAME).1.contains("http://login.cafe.example/"));
    assert!(caught.advice.contains("in a browser"), "{}", caught.advice);
    pages.join().unwrap();
}

#[test]
fn a_kill_switch_is_named_and_not_taken_for_the_network() {
    let Some(lab) = Lab::new(1) else { return };
    process::share_run(&lab, &lab.clients[0], Path::new("/"));
    let (_gateway, ann) = Gateway::for_ann(&lab);
    assert!(netcheck(&lab, &ann).is_good);
    let mut client = Client::connect_with(&lab, 1, &ann, &["--kill-switch"]);
    let held = netcheck(&lab, &ann);
    assert!(!held.is_good && held.findings.len() == 1, "{:#?}", held.findings);
    let (verdict, found) = held.of("kill_switch", "kill switch on since");
    assert_eq!(verdict, "problem", "{found}");
    assert!(held.advice.contains("'vpnd down'") && held.advice.contains("'vpnd cleanup'"), "{}", held.advice);
    client.interrupt();
    assert!(netcheck(&lab, &ann).is_good);
}
