//! Behaviour: a client gets through a network that passes only TCP 443, changes to TCP where UDP
//! stops in the middle or large datagrams vanish, and goes back once UDP has worked for a while:
//! always without a login, and without losing what is open inside.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::client::{self, Client};
use crate::drain::{SECOND_GATEWAY, add_address, drain, second_gateway};
use crate::gateway::{Gateway, Login, edit_toml, must, strings, write_secret};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, UPLINK, eventually};
use crate::process::{self, Process};
use crate::relay::PORT;
use crate::traffic::{ping, ping_until, trickle_while};

mod speed;
mod times;

const SOON: Duration = Duration::from_secs(60);
/// UDP has to work for 30 s first, and is tried each 10 to 300 s.
const BACK: Duration = Duration::from_secs(240);

/// A gateway that clients reach over TCP, too, and a user with a profile for that.
pub(crate) fn installation(lab: &Lab) -> (Gateway<'_>, Login) {
    let mut gateway = Gateway::init(lab);
    let (certificate, key) = certificate(&GATEWAY_V4.to_string());
    fs::write(gateway.file("portal.pem"), &certificate).unwrap();
    write_secret(&gateway.file("portal-key.pem"), &key);
    relays(&gateway);
    let ann = gateway.add_user("ann");
    edit_toml(&ann.profile, |profile| {
        assert_eq!(profile["server"]["tcp_port"].as_integer(), Some(443), "the profile knows");
        profile["server"]["addresses"] = strings(&[&format!("{GATEWAY_V4}:{PORT}")]);
        let ca = profile["server"]["ca"].as_str().unwrap().to_owned();
        profile["server"]["ca"] = format!("{ca}{certificate}").into();
    });
    gateway.start();
    eventually("pages are served", SOON, || {
        let mut probe = process::command(lab, &lab.net, "curl");
        probe.args(["--silent", "--insecure", "--output", "/dev/null"]);
        probe.arg(format!("https://{GATEWAY_V4}/"));
        process::run(probe).status.success().then_some(())
    });
    (gateway, ann)
}

/// A certificate for this name that only itself vouches for, and its key.
pub(crate) fn certificate(name: &str) -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
    (certificate.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

/// From its start on it carries the tunnel over TCP, with the files of its portal that are there.
fn relays(gateway: &Gateway<'_>) {
    gateway.configure("portal.enabled", true);
    gateway.configure("portal.certificate", "portal.pem");
    gateway.configure("portal.key", "portal-key.pem");
    gateway.configure("portal.relays", 100);
}

/// A firewall of the network: these datagrams are dropped.
pub(crate) fn drop_udp(lab: &Lab, which: &str) {
    rules(lab, &[&format!("{which} drop")]);
}

/// Drops all but those to and from a port. In one rule, `nft` 1.0.6 makes one comparison of
/// the two.
fn drop_udp_but(lab: &Lab, port: u16) {
    let ends = ["dport", "sport"].map(|end| format!("udp {end} {port} accept"));
    rules(lab, &[&ends[0], &ends[1], "meta l4proto udp drop"]);
}

fn rules(lab: &Lab, rules: &[&str]) {
    let rules = rules.iter().map(|rule| format!("add rule inet hole forward {rule}\n"));
    lab.net.nft(&format!(
        "add table inet hole\n\
         add chain inet hole forward {{ type filter hook forward priority 0; }}\n\
         flush chain inet hole forward\n\
         {}",
        rules.collect::<String>()
    ));
}

fn pass_all(lab: &Lab) {
    lab.net.nft("delete table inet hole\n");
}

pub(crate) fn is_over_tcp(gateway: &Gateway<'_>) -> bool {
    let sessions = gateway.sessions();
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    sessions[0]["over_tcp"] == true
}

pub(crate) fn has_logged(client: &mut Client<'_>, words: &str) {
    eventually(&format!("the log has {words:?}"), SOON, || {
        client.process().assert_running();
        client.process().output().contains(words).then_some(())
    });
}

#[test]
fn a_login_over_tcp_skips_a_drained_gateway() {
    let Some(lab) = Lab::new(2) else { return };
    let (first, ann) = installation(&lab);
    let mut second = second_gateway(&lab, &first);
    fs::write(second.file("portal.pem"), fs::read(first.file("portal.pem")).unwrap()).unwrap();
    let key = fs::read_to_string(first.file("portal-key.pem")).unwrap();
    write_secret(&second.file("portal-key.pem"), &key);
    relays(&second);
    // The user is known at both, with one password and one profile.
    let profile = fs::read(&ann.profile).unwrap();
    fs::remove_file(&ann.profile).unwrap();
    second.add_user("ann");
    fs::write(&ann.profile, profile).unwrap();
    add_address(&ann, SECOND_GATEWAY);
    second.start();
    drop_udp(&lab, "meta l4proto udp");
    drain(&first, &["--within", "2h", "--no-wait"]);
    let _client = Client::connect(&lab, 1, &ann);
    ping_until(&lab.clients[0], CAMPUS_V4.into(), SOON);
    assert!(is_over_tcp(&second) && first.sessions().is_empty());
}

#[test]
fn a_client_connects_through_a_network_with_tcp_443_only() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, ann) = installation(&lab);
    lab.net.nft(
        "add table inet strict\n\
         add chain inet strict forward { type filter hook forward priority 0; policy drop; }\n\
         add rule inet strict forward tcp dport 443 accept\n\
         add rule inet strict forward tcp sport 443 accept\n",
    );
    let began = Instant::now();
    let mut client = Client::connect(&lab, 1, &ann);
    println!("connected after {:?}", began.elapsed());
    has_logged(&mut client, "passes only TCP 443: using that, slower");
    ping_until(client.namespace(), CAMPUS_V4.into(), SOON);
    assert!(ping(client.namespace(), CAMPUS_V4.into(), 1_300, SOON), "large packets, too");
    crate::traffic::transfer(client.namespace(), &lab.campus, CAMPUS_V4.into(), 20_000_000, SOON);
    assert!(is_over_tcp(&gateway));
    let outer = gateway.sessions()[0]["outer"].to_string();
    assert!(outer.contains("198.18.1.2:"), "the client's own address: {outer}");
    client.interrupt();
}

#[test]
fn a_network_that_passes_udp_443_is_one_with_udp() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("server.more_ports", strings(&["443"]));
    let ann = gateway.add_user("ann");
    edit_toml(&ann.profile, |profile| {
        let addresses = profile["server"]["addresses"].as_array().unwrap();
        let ports = addresses.iter().map(|address| address.as_str().unwrap().rsplit(':').next().unwrap());
        let ports: Vec<_> = ports.collect();
        assert!(ports.contains(&"443") && ports.contains(&"4433"), "{ports:?}");
        let own = [4433, 443].map(|port| format!("{GATEWAY_V4}:{port}"));
        profile["server"]["addresses"] = strings(&own.each_ref().map(String::as_str));
    });
    gateway.start();
    drop_udp_but(&lab, 443);
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), SOON);
    assert!(ping(client.namespace(), CAMPUS_V4.into(), 1_300, SOON), "large packets, too");
    crate::traffic::transfer(client.namespace(), &lab.campus, CAMPUS_V4.into(), 5_000_000, SOON);
    assert!(!is_over_tcp(&gateway));
    // A client at the other port is let in as before.
    pass_all(&lab);
    drop_udp_but(&lab, 4433);
    eventually("it goes over the other port", SOON, || {
        ping(client.namespace(), CAMPUS_V4.into(), 56, Duration::from_millis(500)).then_some(())
    });
    assert_eq!(gateway.status()["counters"]["logins"]["accepted"], 1, "it was one session");
}

#[test]
fn connections_survive_the_loss_and_return_of_udp() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, ann) = installation(&lab);
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), SOON);
    assert!(!is_over_tcp(&gateway), "UDP comes first");
    let done = AtomicBool::new(false);
    let talking = || !done.load(Ordering::Relaxed);
    let namespace = client.namespace();
    std::thread::scope(|scope| {
        let lab = &lab;
        scope.spawn(move || trickle_while(namespace, &lab.campus, CAMPUS_V4.into(), SOON, talking));
        std::thread::sleep(Duration::from_secs(1));
        drop_udp(lab, "meta l4proto udp");
        let began = Instant::now();
        eventually("it goes over TCP", SOON, || is_over_tcp(&gateway).then_some(()));
        println!("over TCP after {:?}", began.elapsed());
        ping_until(namespace, CAMPUS_V4.into(), SOON);
        pass_all(lab);
        let began = Instant::now();
        eventually("it is back", BACK, || (!is_over_tcp(&gateway)).then_some(()));
        assert!(began.elapsed() > Duration::from_secs(20), "not at once: {:?}", began.elapsed());
        println!("back after {:?}", began.elapsed());
        ping_until(namespace, CAMPUS_V4.into(), SOON);
        done.store(true, Ordering::Relaxed);
    });
    has_logged(&mut client, "UDP works here again");
    assert_eq!(gateway.status()["counters"]["logins"]["accepted"], 1, "it was one session");
}

#[test]
fn a_network_that_drops_large_datagrams_is_one_without_udp() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, ann) = installation(&lab);
    // 1,200 bytes, UDP's header and that of IPv4.
    drop_udp(&lab, "meta l4proto udp ip length > 1228");
    let mut client = Client::connect(&lab, 1, &ann);
    has_logged(&mut client, "drops large datagrams");
    eventually("it goes over TCP", SOON, || is_over_tcp(&gateway).then_some(()));
    ping_until(client.namespace(), CAMPUS_V4.into(), SOON);
    assert_eq!(gateway.status()["counters"]["logins"]["accepted"], 1, "it was one session");
}

/// Squid in the client's network, which passes nothing else; with a user, or for anybody.
pub(crate) fn squid(lab: &Lab, user: Option<(&str, &str)>) -> Process {
    let at = |name: &str| lab.path(name).display().to_string();
    let rule = match user {
        Some((user, password)) => {
            let mut hash = process::command(lab, &lab.net, "openssl");
            hash.args(["passwd", "-apr1", password]);
            let hash = process::text(&must(process::run(hash)));
            fs::write(lab.path("squid.users"), format!("{user}:{hash}")).unwrap();
            format!(
                "auth_param basic program /usr/lib/squid/basic_ncsa_auth {}\nacl known proxy_auth REQUIRED\n\
                 http_access allow CONNECT known\n",
                at("squid.users")
            )
        }
        None => "http_access allow CONNECT\n".to_owned(),
    };
    let configuration = format!(
        "http_port 3128\npid_filename none\naccess_log none\ncache_log /dev/null\ncache deny all\n\
         netdb_filename none\nshutdown_lifetime 1 seconds\ncoredump_dir none\nvisible_hostname net\n\
         {rule}http_access deny all\n"
    );
    fs::write(lab.path("squid.conf"), configuration).unwrap();
    let mut squid = process::command(lab, &lab.net, "/usr/sbin/squid");
    squid.args(["-N", "-f", &at("squid.conf")]);
    let squid = Process::start(lab, "squid", squid);
    eventually("the proxy is there", SOON, || {
        lab.clients[0].within(|| std::net::TcpStream::connect("198.18.1.1:3128").ok()).map(drop)
    });
    squid
}

pub(crate) fn through(login: &Login, proxy: &str) {
    edit_toml(&login.profile, |profile| {
        let server = profile["server"].as_table_mut().unwrap();
        server.insert("proxy".to_owned(), proxy.into());
    });
}

#[test]
fn an_http_proxy_is_a_way_with_its_password_or_without() {
    for user in [None, Some(("ann", "s p:e@c%"))] {
        let Some(lab) = Lab::new(1) else { return };
        let (gateway, ann) = installation(&lab);
        drop_udp(&lab, "meta nfproto { ipv4, ipv6 }");
        let _squid = squid(&lab, user);
        if user.is_some() {
            through(&ann, "http://ann:wrong@198.18.1.1:3128");
            let client = Process::start(&lab, "client1", client::command(&lab, 1, &ann, &[]));
            eventually("the log says why", SOON, || {
                let log = client.output();
                assert!(!log.contains("wrong@"), "{log}");
                log.contains("does not accept user and password").then_some(())
            });
        }
        let credentials = if user.is_some() { "ann:s%20p%3Ae%40c%25@" } else { "" };
        through(&ann, &format!("http://{credentials}198.18.1.1:3128"));
        let client = Client::connect(&lab, 1, &ann);
        ping_until(client.namespace(), CAMPUS_V4.into(), SOON);
        assert!(ping(client.namespace(), CAMPUS_V4.into(), 1_300, SOON));
        assert!(is_over_tcp(&gateway));
    }
}

#[test]
fn an_untrusted_certificate_is_named_and_not_used() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, ann) = installation(&lab);
    edit_toml(&ann.profile, |profile| {
        let ca = fs::read_to_string(gateway.file("ca.pem")).unwrap();
        profile["server"]["ca"] = ca.into();
    });
    drop_udp(&lab, "meta l4proto udp");
    let client = Process::start(&lab, "client1", client::command(&lab, 1, &ann, &[]));
    eventually("the log says why", SOON, || {
        client.output().contains("does a proxy of this network look into TLS?").then_some(())
    });
    assert!(gateway.sessions().is_empty());
    let relays = must(gateway.ask(&["status"]));
    assert!(!String::from_utf8_lossy(&relays.stdout).contains("over TCP"));
}

/// With a full tunnel the route back to the gateway leads into it, where no mark says otherwise.
#[test]
fn a_full_tunnel_works_over_tcp_with_source_checks() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, ann) = installation(&lab);
    edit_toml(&ann.profile, |profile| profile["tunnel"]["routes"] = "all".into());
    let client = Client::connect(&lab, 1, &ann);
    for place in ["all", "default", UPLINK] {
        client.namespace().sysctl(&format!("net/ipv4/conf/{place}/rp_filter"), "1");
    }
    ping_until(client.namespace(), CAMPUS_V4.into(), SOON);
    drop_udp(&lab, "meta l4proto udp");
    eventually("it goes over TCP", SOON, || {
        // Silence shows where something is sent.
        ping(client.namespace(), CAMPUS_V4.into(), 56, Duration::from_millis(500));
        is_over_tcp(&gateway).then_some(())
    });
    ping_until(client.namespace(), CAMPUS_V4.into(), SOON);
}
