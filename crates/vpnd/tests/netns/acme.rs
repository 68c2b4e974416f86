//! Behaviour: the gateway's certificate from an ACME authority, a real server of that protocol
//! (Pebble), which finds the gateway by its name.
//!
//! The authority and a name server are at the edge of `net`, where the gateway and a client reach
//! both.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod pages;

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use rcgen::{CertificateParams, KeyPair};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::json;

use crate::certificates::shapes;
use crate::client::Client;
use crate::gateway::{Gateway, edit_toml, must, strings, write_secret};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, eventually};
use crate::names::{self, NAME, PROVIDERS};
use crate::privileges::{Seen, assert_shut_in};
use crate::process::{self, Process, text};
use crate::relay::PORT;
use crate::traffic::ping_until;

const SECOND: Duration = Duration::from_secs(1);
/// A key for account binding, base64url.
const MAC_KEY: &str = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";

/// Pebble, as `./x setup` builds it.
fn program() -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/pebble");
    if built.exists() {
        return Some(built.canonicalize().unwrap());
    }
    assert!(std::env::var_os("CI").is_none(), "this test needs pebble: ./x setup");
    eprintln!("SKIPPED: there is no pebble; run ./x setup");
    None
}

/// The authority, its name server, and the files of its directory's certificate and key.
struct Authority {
    process: Process,
    _names: Process,
    ca: PathBuf,
    key: PathBuf,
}

impl Authority {
    /// Starts one that binds accounts to its customers, or not. It refuses a nonce now and then.
    fn start(lab: &Lab, bound: bool) -> Option<Self> {
        Self::start_refusing(lab, bound, 5)
    }

    /// Starts one that refuses this many nonces of a hundred.
    fn start_refusing(lab: &Lab, bound: bool, nonces: u32) -> Option<Self> {
        let pebble = program()?;
        let names = names::name_server(lab, &lab.net, PROVIDERS, &GATEWAY_V4.to_string());
        let key = KeyPair::generate().unwrap();
        let own = CertificateParams::new(vec![PROVIDERS.to_owned()]).unwrap().self_signed(&key).unwrap();
        let (ca, key_path, config) =
            (lab.path("authority.pem"), lab.path("authority-key.pem"), lab.path("authority.json"));
        fs::write(&ca, own.pem()).unwrap();
        fs::write(&key_path, key.serialize_pem()).unwrap();
        let settings = json!({"pebble": {
            "listenAddress": format!("{PROVIDERS}:14000"),
            "managementListenAddress": format!("{PROVIDERS}:15000"),
            "certificate": ca, "privateKey": key_path,
            "httpPort": 80, "tlsPort": 443, "ocspResponderURL": "",
            "externalAccountBindingRequired": bound,
            "externalAccountMACKeys": {"kid-1": MAC_KEY},
        }});
        fs::write(&config, settings.to_string()).unwrap();
        let mut command = process::command(lab, &lab.net, pebble);
        command.arg("-config").arg(&config).args(["-dnsserver", &format!("{PROVIDERS}:53")]);
        // Its other tests of clients' patience are left out.
        command.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_AUTHZREUSE", "0");
        command.env("PEBBLE_WFE_NONCEREJECT", nonces.to_string());
        let mut process = Process::start(lab, "pebble", command);
        eventually("the authority listens", 20 * SECOND, || {
            process.assert_running();
            process.output().contains("Listening on").then_some(())
        });
        Some(Self { process, _names: names, ca, key: key_path })
    }
}

/// `[acme]` for a gateway of the laboratory.
fn configure(gateway: &Gateway<'_>, ca: &Path, names: &[&str]) {
    gateway.configure("acme.directory", format!("https://{PROVIDERS}:14000/dir"));
    gateway.configure("acme.directory_ca", ca.to_str().unwrap());
    gateway.configure("acme.names", strings(names));
    gateway.configure("acme.terms_of_service_agreed", true);
}

/// The certificates in the gateway's file.
fn chain(gateway: &Gateway<'_>) -> Vec<CertificateDer<'static>> {
    chain_in(gateway, "server.pem")
}

fn chain_in(gateway: &Gateway<'_>, file: &str) -> Vec<CertificateDer<'static>> {
    let pem = fs::read(gateway.file(file)).unwrap();
    CertificateDer::pem_slice_iter(&pem).map(Result::unwrap).collect()
}

/// The names and the public key of the gateway's certificate.
fn leaf(gateway: &Gateway<'_>) -> (Vec<String>, Vec<u8>) {
    leaf_in(gateway, "server.pem")
}

fn leaf_in(gateway: &Gateway<'_>, file: &str) -> (Vec<String>, Vec<u8>) {
    let chain = chain_in(gateway, file);
    let (_, parsed) = x509_parser::parse_x509_certificate(&chain[0]).unwrap();
    let names = parsed.subject_alternative_name().unwrap().unwrap();
    let names = names.value.general_names.iter().map(ToString::to_string).collect();
    (names, parsed.public_key().raw.to_vec())
}

/// Waits for an order to end, and returns why it failed.
fn outcome(gateway: &Gateway<'_>, before: &str) -> (Option<String>, String) {
    outcome_in(gateway, "acme-outcome.json", before)
}

fn outcome_in(gateway: &Gateway<'_>, file: &str, before: &str) -> (Option<String>, String) {
    let path = gateway.file("state").join(file);
    eventually("the order ends", 60 * SECOND, || {
        let text = fs::read_to_string(&path).ok().filter(|text| text != before)?;
        let outcome: serde_json::Value = serde_json::from_str(&text).unwrap();
        Some((outcome["failed"].as_str().map(str::to_owned), text))
    })
}

fn certificate_finding(gateway: &Gateway<'_>) -> serde_json::Value {
    finding(gateway, "certificate")
}

fn finding(gateway: &Gateway<'_>, check: &str) -> serde_json::Value {
    let mut doctor = gateway.vpnd(&["doctor", "--json", "--config"]);
    doctor.arg(gateway.config());
    let findings: Vec<serde_json::Value> = serde_json::from_slice(&process::run(doctor).stdout).unwrap();
    findings.iter().find(|finding| finding["check"] == check).unwrap().clone()
}

fn is_open(lab: &Lab, port: u16) -> bool {
    lab.net.within(|| {
        let address = SocketAddr::new(IpAddr::V4(GATEWAY_V4), port);
        TcpStream::connect_timeout(&address, SECOND).is_ok()
    })
}

#[test]
fn a_certificate_is_ordered_presented_and_renewed() {
    let Some(lab) = Lab::new(1) else { return };
    let Some(authority) = Authority::start(&lab, true) else { return };
    let mut gateway = Gateway::init(&lab);
    configure(&gateway, &authority.ca, &[NAME]);
    gateway.configure("acme.eab_key_id", "kid-1");
    gateway.configure("acme.eab_key_file", "eab.secret");
    write_secret(&gateway.file("eab.secret"), &format!("{MAC_KEY}\n"));
    let ann = gateway.add_user("ann");
    gateway.start();
    let (failed, first) = outcome(&gateway, "");
    assert_eq!(failed, None, "{}", authority.process.output());
    let (names, key) = leaf(&gateway);
    assert_eq!(names, [format!("DNSName({NAME})")]);
    assert!(!is_open(&lab, 443), "the challenge's port is open for as long as it lasts");
    let account = gateway.file("state/acme-account.json");
    assert_eq!(fs::metadata(&account).unwrap().permissions().mode() & 0o777, 0o600);
    let kept = fs::read(&account).unwrap();

    // A client that trusts the authority alone knows the gateway by its name.
    let pem = fs::read_to_string(gateway.file("server.pem")).unwrap();
    let second = pem.match_indices("-----BEGIN").nth(1).expect("the authority sends its own along").0;
    edit_toml(&ann.profile, |profile| {
        profile["server"]["addresses"] = strings(&[&format!("{NAME}:{PORT}")]);
        profile["server"]["name"] = NAME.into();
        profile["server"]["ca"] = pem[second..].into();
    });
    fs::write(process::etc(&lab, &lab.clients[0]).join("resolv.conf"), format!("nameserver {PROVIDERS}\n"))
        .unwrap();
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 10 * SECOND);

    // A reload finds nothing to do; another name is an order of the same account.
    must(gateway.ask(&["reload"]));
    let more = format!("vpn.{NAME}");
    configure(&gateway, &authority.ca, &[NAME, &more]);
    must(gateway.ask(&["reload"]));
    let (failed, second) = outcome(&gateway, &first);
    assert_eq!(failed, None);
    assert_eq!(leaf(&gateway).0.len(), 2);
    assert_eq!(gateway.process().output().matches("ordering a certificate").count(), 2);
    assert_eq!(fs::read(&account).unwrap(), kept, "the account is the same");
    let finding = certificate_finding(&gateway);
    assert_eq!(finding["verdict"], "good", "{finding}");

    // Another key by hand: the local authority's certificate is there for a moment.
    let mut renew = gateway.vpnd(&["renew", "--new-key", "--config"]);
    renew.arg(gateway.config());
    must(process::run(renew));
    must(gateway.ask(&["reload"]));
    let (failed, _) = outcome(&gateway, &second);
    assert_eq!(failed, None);
    assert_ne!(leaf(&gateway).1, key);
    assert_eq!(chain(&gateway).len(), 2, "it is the authority's");
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
}

#[test]
fn old_and_new_profiles_connect_and_a_renewal_restores_the_own_chain() {
    let Some(lab) = Lab::new(2) else { return };
    let Some(authority) = Authority::start(&lab, false) else { return };
    let mut gateway = Gateway::init(&lab);
    let before = gateway.add_user("ann");
    let own = chain(&gateway);
    gateway.start();
    configure(&gateway, &authority.ca, &[NAME]);
    must(gateway.ask(&["reload"]));
    let (failed, _) = outcome(&gateway, "");
    assert_eq!(failed, None, "{}", authority.process.output());
    let kept = || fs::read(gateway.file("server.local.pem")).unwrap();
    assert_eq!(CertificateDer::from_pem_slice(&kept()).unwrap(), own[0]);

    // A new profile is for the authority's certificate, here of one that no system trusts.
    let after = gateway.add_user("bob");
    let pem = fs::read_to_string(gateway.file("server.pem")).unwrap();
    let second = pem.match_indices("-----BEGIN").nth(1).expect("the authority sends its own along").0;
    edit_toml(&after.profile, |profile| {
        assert_eq!(profile["server"]["trust"].as_str(), Some("system"), "{profile}");
        let server = profile["server"].as_table_mut().unwrap();
        server.remove("trust");
        server.insert("addresses".to_owned(), strings(&[&format!("{GATEWAY_V4}:{PORT}")]));
        server.insert("ca".to_owned(), pem[second..].into());
    });
    let connect_both = || {
        for (number, profile) in [(1, &before), (2, &after)] {
            let client = Client::connect(&lab, number, profile);
            ping_until(client.namespace(), CAMPUS_V4.into(), 10 * SECOND);
        }
    };
    connect_both();
    // Without the file there is another one, for the names of the presented certificate.
    fs::remove_file(gateway.file("server.local.pem")).unwrap();
    must(gateway.ask(&["reload"]));
    assert_ne!(CertificateDer::from_pem_slice(&kept()).unwrap(), own[0]);
    fs::write(gateway.file("server.local.pem"), pem_of(&own[0])).unwrap();
    gateway.kill();
    gateway.start();
    connect_both();

    // The other profiles go on where the own authority is over.
    let (ca, ca_key) = (gateway.file("ca.pem"), gateway.file("ca-key.pem"));
    let good = fs::read(&ca).unwrap();
    let key = KeyPair::from_pem(&fs::read_to_string(&ca_key).unwrap()).unwrap();
    expire(&ca, &key);
    fs::remove_file(gateway.file("server.local.pem")).unwrap();
    // No certificate of a client is of an authority whose time is over, which is another finding.
    edit_toml(&gateway.config(), |config| {
        let tls = config["tls"].as_table_mut().unwrap();
        tls.retain(|key, _| !key.starts_with("client_ca"));
    });
    let check = gateway.check();
    assert!(check.status.success() && text(&check).contains("are cut off"), "{}", text(&check));
    gateway.kill();
    gateway.start();
    let client = Client::connect(&lab, 2, &after);
    ping_until(client.namespace(), CAMPUS_V4.into(), 10 * SECOND);
    drop(client);
    assert!(gateway.process().output().contains("ARE CUT OFF"));
    fs::write(&ca, good).unwrap();
    fs::write(gateway.file("server.local.pem"), pem_of(&own[0])).unwrap();

    // Back to the own authority.
    let renew = || {
        let mut renew = gateway.vpnd(&["renew", "--config"]);
        renew.arg(gateway.config());
        process::run(renew)
    };
    let refused = renew();
    assert!(!refused.status.success() && text(&refused).contains("take [acme] out"), "{}", text(&refused));
    edit_toml(&gateway.config(), |config| drop(config.remove("acme")));
    must(renew());
    assert_eq!(fs::read_to_string(gateway.file("server.replaced.pem")).unwrap(), pem);
    must(gateway.ask(&["reload"]));
    let client = Client::connect(&lab, 1, &before);
    ping_until(client.namespace(), CAMPUS_V4.into(), 10 * SECOND);
}

fn pem_of(certificate: &CertificateDer<'_>) -> String {
    let encoded = base64::engine::general_purpose::STANDARD.encode(certificate);
    format!("-----BEGIN CERTIFICATE-----\n{encoded}\n-----END CERTIFICATE-----\n")
}

/// Puts an authority of the same name and key in place of this one whose time is over.
fn expire(ca: &Path, key: &KeyPair) {
    let (_, pem) = x509_parser::pem::parse_x509_pem(&fs::read(ca).unwrap()).unwrap();
    let parsed = pem.parse_x509().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    let name = parsed.subject().iter_common_name().next().unwrap().as_str().unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
    params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    fs::write(ca, params.self_signed(key).unwrap().pem()).unwrap();
}

#[test]
fn a_certificate_is_ordered_over_http_and_refusals_leave_the_old_one() {
    let Some(lab) = Lab::new(1) else { return };
    let Some(authority) = Authority::start(&lab, false) else { return };
    let mut gateway = Gateway::init(&lab);
    // The name server knows no such name.
    configure(&gateway, &authority.ca, &["vpn.elsewhere.example"]);
    gateway.configure("acme.challenge", "http-01");
    let ann = gateway.add_user("ann");
    let before = chain(&gateway);
    gateway.start();
    let (failed, first) = outcome(&gateway, "");
    assert!(failed.as_ref().is_some_and(|why| why.contains("vpn.elsewhere.example")), "{failed:?}");
    let finding = certificate_finding(&gateway);
    assert_eq!(finding["verdict"], "warning", "{finding}");
    assert!(finding["found"].as_str().unwrap().contains("failed"), "{finding}");

    // Another process has the port.
    configure(&gateway, &authority.ca, &[NAME]);
    let taken = lab.gateway.within(|| TcpListener::bind("0.0.0.0:80").unwrap());
    must(gateway.ask(&["reload"]));
    let (failed, second) = outcome(&gateway, &first);
    assert!(failed.as_ref().is_some_and(|why| why.contains("[::]:80")), "{failed:?}");
    drop(taken);

    // The directory has another's certificate.
    let other = lab.path("other.pem");
    fs::copy(gateway.file("ca.pem"), &other).unwrap();
    configure(&gateway, &other, &[NAME]);
    must(gateway.ask(&["reload"]));
    let (failed, third) = outcome(&gateway, &second);
    assert!(failed.as_ref().is_some_and(|why| why.contains("TLS")), "{failed:?}");
    assert_eq!(chain(&gateway), before, "the old one stays");
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 10 * SECOND);

    configure(&gateway, &authority.ca, &[NAME]);
    must(gateway.ask(&["reload"]));
    let (failed, _) = outcome(&gateway, &third);
    assert_eq!(failed, None, "{}", authority.process.output());
    assert_eq!(leaf(&gateway).0, [format!("DNSName({NAME})")]);
    assert!(!is_open(&lab, 80));
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
}

#[test]
fn the_process_that_orders_has_neither_rights_nor_the_key() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    // It takes connections and says nothing, so that the process waits.
    let silent = lab.net.within(|| TcpListener::bind(format!("{PROVIDERS}:14000")).unwrap());
    let ca = gateway.file("ca.pem");
    configure(&gateway, &ca, &[NAME]);
    gateway.start();
    let (_held, _) = silent.accept().unwrap();
    let acme =
        eventually("the process is there", 10 * SECOND, || Seen::parent(&gateway).child_if_any("acme"));
    assert_shut_in(&acme);
    let key = fs::read_to_string(gateway.file("server-key.pem")).unwrap();
    assert!(!shapes(&key).iter().any(|shape| acme.remembers(shape)), "it holds the gateway's key");
    assert!(acme.remembers(NAME.as_bytes()), "what makes this a search of what it does hold");
    let text = text(&must(gateway.ask(&["status"])));
    assert!(!text.is_empty(), "the gateway answers meanwhile");

    // Without [acme] the order is given up, and nothing is left to do.
    edit_toml(&gateway.config(), |config| drop(config.remove("acme")));
    must(gateway.ask(&["reload"]));
    let parent = Seen::parent(&gateway);
    eventually("the order is given up", 5 * SECOND, || parent.child_if_any("acme").is_none().then_some(()));
    let before = parent.ticks();
    std::thread::sleep(SECOND);
    assert!(parent.ticks() - before < 20, "the parent is idle");
}

#[test]
fn an_upgrade_orders_by_what_was_configured_meanwhile() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.start();
    // It takes connections and says nothing, so that the process waits.
    let _silent = lab.net.within(|| TcpListener::bind(format!("{PROVIDERS}:14000")).unwrap());
    configure(&gateway, &gateway.file("ca.pem"), &[NAME]);
    must(gateway.upgrade());
    let acme = || Seen::parent(&gateway).child_if_any("acme").map(drop);
    eventually("an order is under way", 10 * SECOND, acme);
}
