//! `vpnd netcheck` in the networks that people meet.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value as Json;

use crate::client::{Client, TUN};
use crate::client_service::{ANN, Machine, refused};
use crate::gateway::{Gateway, Login, edit_toml, must, strings};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, UPLINK, eventually};
use crate::names::{self, NAME, PROVIDERS, name_server, name_server_of};
use crate::over_tcp;
use crate::process;
use crate::traffic::ping_until;

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
    with(lab, login, &[])
}

/// `vpnd netcheck` with these words.
fn with(lab: &Lab, login: &Login, words: &[&str]) -> Report {
    let mut command = process::command(lab, &lab.clients[0], env!("CARGO_BIN_EXE_vpnd"));
    command.args(["netcheck", "--json"]).args(words).arg(&login.profile);
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
fn open_and_blocking_networks_are_distinguished() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, ann) = over_tcp::installation(&lab);
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

    gateway.configure("portal.relays", 0);
    must(gateway.ask(&["reload"]));
    let without_relays = eventually("the pages carry no tunnel", Duration::from_secs(20), || {
        let report = netcheck(&lab, &ann);
        (!report.is_good).then_some(report)
    });
    assert!(
        without_relays.of("tcp", &v4).1.contains("carries no VPN"),
        "{:?}",
        without_relays.of("tcp", &v4)
    );

    // A proxy that looks into TLS has this name.
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
fn a_proxy_that_leads_to_the_gateway_is_a_way() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, ann) = over_tcp::installation(&lab);
    forward(&lab, "add rule inet middlebox forward drop\n");
    over_tcp::through(&ann, "http://198.18.1.1:3128");
    assert!(!netcheck(&lab, &ann).is_good, "there is no proxy");
    let _squid = over_tcp::squid(&lab, None);
    let report = netcheck(&lab, &ann);
    assert!(report.is_good, "{:#?}", report.findings);
    assert_eq!(report.of("proxy", "198.18.1.1:3128").0, "good");
    assert!(report.advice.contains("only the proxy 198.18.1.1:3128"), "{}", report.advice);
}

/// A gateway with two addresses, and `ann` with a profile that has both.
fn with_two_addresses(lab: &Lab) -> (Gateway<'_>, Login) {
    const SECOND: &str = "198.18.0.3";
    lab.gateway.ip_batch(&format!("addr add {SECOND}/24 dev {UPLINK}\n"));
    let mut gateway = Gateway::init(lab);
    let ann = gateway.add_user("ann");
    edit_toml(&ann.profile, |profile| {
        let own = [GATEWAY_V4.to_string(), SECOND.to_owned()].map(|address| format!("{address}:4433"));
        profile["server"]["addresses"] = strings(&own.each_ref().map(String::as_str));
    });
    gateway.start();
    (gateway, ann)
}

/// From now on the network translates the clients' addresses so.
fn translate(lab: &Lab, how: &str) {
    lab.net.nft(&format!(
        "add table ip translator\nflush table ip translator\n\
         add chain ip translator post {{ type nat hook postrouting priority 100; }}\n\
         add rule ip translator post oifname {} {how}\n",
        Lab::port(0)
    ));
}

#[test]
fn kinds_of_nat_are_distinguished() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, ann) = with_two_addresses(&lab);
    let sees_one = "see one port of this machine";
    assert_eq!(netcheck(&lab, &ann).of("nat.port", sees_one).0, "good", "there is none");
    // This one keeps a port as long as it can.
    translate(&lab, "masquerade");
    assert_eq!(netcheck(&lab, &ann).of("nat.port", sees_one).0, "good");
    translate(&lab, "masquerade random,fully-random");
    assert_eq!(netcheck(&lab, &ann).of("nat.port", "see two ports of this machine").0, "unknown");
}

#[test]
fn a_translator_that_forgets_in_a_short_silence_is_named() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, ann) = with_two_addresses(&lab);
    translate(&lab, "masquerade random,fully-random");
    assert_eq!(with(&lab, &ann, &["--silence"]).of("nat.silence", "sees the same port").0, "good");
    for key in ["udp_timeout", "udp_timeout_stream"] {
        lab.net.sysctl(&format!("net/netfilter/nf_conntrack_{key}"), "10");
    }
    assert_eq!(with(&lab, &ann, &["--silence"]).of("nat.silence", "sees another port").0, "warning");
}

#[test]
fn a_plain_user_checks_the_way_of_a_profile_that_only_root_can_read() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, ann) = Gateway::for_ann(&lab);
    let machine = Machine::new(&lab, &ann);
    let text = |words: &[&str]| process::text(&must(machine.run(ANN, words)));
    for name in ["work", machine.profile().to_str().unwrap()] {
        let said = text(&["netcheck", name]);
        assert!(said.contains("lets the VPN through"), "{said}");
    }
    refused(&machine.run(ANN, &["netcheck", "other"]), "no profile 'other'");
    refused(&machine.run(ANN, &["netcheck", "/etc/shadow"]), "client service gives no profile");
}

#[test]
fn a_captive_portal_is_recognised() {
    let Some(lab) = Lab::new(1) else { return };
    let (_gateway, ann) = names::gateway(&lab, "pushed");
    let mut provider = name_server(&lab, &lab.net, PROVIDERS, &GATEWAY_V4.to_string());
    let usual = netcheck(&lab, &ann);
    assert!(usual.is_good, "{:#?}", usual.findings);
    assert_eq!((usual.of("dns", "").0, usual.of("name", NAME).0), ("good", "good"));
    // Such a network answers each name itself, and each page by another.
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

/// The API of a captive portal, with the answers in turn.
fn portal_api(lab: &Lab, certificate: &str, key: &str, answers: &'static [&'static str]) -> JoinHandle<()> {
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = Arc::new(config.unwrap().with_no_client_auth().with_single_cert(chain, key).unwrap());
    let listener = lab.net.within(|| TcpListener::bind("198.18.1.1:8443")).unwrap();
    std::thread::spawn(move || {
        for (answer, stream) in answers.iter().zip(listener.incoming()) {
            let stream = stream.unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let mut tls = StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), stream);
            let mut request = [0; 1_024];
            let len = tls.read(&mut request).unwrap();
            let request = String::from_utf8_lossy(&request[..len]).into_owned();
            assert!(request.contains("application/captive+json") && !request.contains("ann"), "{request}");
            tls.write_all(
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{answer}", answer.len()).as_bytes(),
            )
            .unwrap();
        }
    })
}

/// DHCP names the portal's API (RFC 8910), which says how it is (RFC 8908).
#[test]
fn a_networks_own_word_about_its_login_page_is_reported() {
    const API: &str = "https://198.18.1.1:8443/api";
    let Some(lab) = Lab::new(1) else { return };
    let machine = &lab.clients[0];
    let run = process::share_run(&lab, machine, Path::new("/"));
    let _names = name_server(&lab, &lab.net, PROVIDERS, &GATEWAY_V4.to_string());
    fs::write(process::etc(&lab, machine).join("resolv.conf"), format!("nameserver {PROVIDERS}\n")).unwrap();
    let (certificate, key) = over_tcp::certificate("198.18.1.1");
    fs::write(lab.path("trusted.pem"), &certificate).unwrap();
    let links = run.join("systemd/netif/links");
    fs::create_dir_all(&links).unwrap();
    let look = |named: &str| {
        // The form in which systemd-networkd writes it from 254 on.
        fs::write(links.join("2"), format!("OPER_STATE=routable\nCAPTIVE_PORTAL={named}\n")).unwrap();
        let mut command = process::command(&lab, machine, env!("CARGO_BIN_EXE_vpnd"));
        command.args(["netcheck", "--json"]).env("SSL_CERT_FILE", lab.path("trusted.pem"));
        let output = must(process::run(command));
        let report: Json = serde_json::from_slice(&output.stdout).unwrap();
        let findings = report["findings"].as_array().unwrap().clone();
        Report { is_good: true, findings, advice: report["advice"].as_str().unwrap().to_owned() }
    };
    let answers = &[
        r#"{"captive": true, "user-portal-url": "https://login.cafe.example/"}"#,
        r#"{"captive": false, "seconds-remaining": 600}"#,
        "<html>",
    ];
    let api = portal_api(&lab, &certificate, &key, answers);
    let captive = look(API);
    assert_eq!(captive.of("login.named", "https://login.cafe.example/").0, "problem");
    assert!(captive.advice.contains("log in to this network"), "{}", captive.advice);
    let free = look(API);
    assert_eq!(free.of("login.named", "wants no login now, for 600 s").0, "good");
    assert!(!free.advice.contains("log in"), "{}", free.advice);
    assert_eq!(look(API).of("login.named", "makes no sense").0, "unknown");
    api.join().unwrap();
    assert_eq!(look(API).of("login.named", "can't be reached").0, "unknown");
    assert_eq!(look("urn:ietf:params:capport:unrestricted").of("login.named", "asks for no login").0, "good");
    assert_eq!(look("http://198.18.1.1/").of("login.named", "no address").0, "unknown");
}

#[test]
fn a_kill_switch_and_a_tunnel_are_named_and_not_taken_for_the_network() {
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
    edit_toml(&ann.profile, |profile| profile["tunnel"]["routes"] = "all".into());
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), Duration::from_secs(20));
    let taken = netcheck(&lab, &ann);
    assert!(!taken.is_good, "{:#?}", taken.findings);
    assert!(taken.of("tunnel", TUN).1.contains(&GATEWAY_V4.to_string()), "{:#?}", taken.findings);
    client.interrupt();
    assert!(netcheck(&lab, &ann).is_good);
}
