//! Behaviour: middleboxes that people meet beside firewalls and HTTP proxies ([`over_tcp`]): one
//! that looks into TLS, a login page, and firewalls that end UDP flows after a while without a
//! word.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::client::{self, Client};
use crate::gateway::{Gateway, edit_toml, must, strings};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, eventually};
use crate::names::{self, NAME, PROVIDERS};
use crate::over_tcp::{self, certificate, has_logged, is_over_tcp};
use crate::process::{self, Process};
use crate::relay::PORT;
use crate::traffic::{ping, ping_until, trickle_while};

const TIMEOUT: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// A proxy in place of the gateway's TCP port 443, with another certificate for the gateway; what
/// it has read.
struct Inspector {
    certificate: String,
    read: Arc<Mutex<Vec<u8>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Inspector {
    fn start(lab: &Lab) -> Self {
        let (certificate, key) = certificate(&GATEWAY_V4.to_string());
        let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = Arc::new(config.unwrap().with_no_client_auth().with_single_cert(chain, key).unwrap());
        let listener = lab.net.within(|| TcpListener::bind("0.0.0.0:8443")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (read, is_over) = (Arc::<Mutex<Vec<u8>>>::default(), Arc::<AtomicBool>::default());
        let (plain, over) = (Arc::clone(&read), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let Ok((stream, _)) = listener.accept() else {
                    std::thread::sleep(SECOND / 50);
                    continue;
                };
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(SECOND)).unwrap();
                let mut tls = StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), stream);
                let mut bytes = [0; 1_024];
                if let Ok(len) = tls.read(&mut bytes) {
                    plain.lock().unwrap().extend(&bytes[..len]);
                    let _ = tls.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n");
                }
            }
        });
        lab.net.nft(&format!(
            "table ip inspector {{ chain pre {{\n\
               type nat hook prerouting priority dstnat;\n\
               iifname {} tcp dport 443 redirect to :8443\n\
             }}; }}\n",
            Lab::port(1)
        ));
        Self { certificate, read, is_over, thread: Some(thread) }
    }

    fn read(&self) -> String {
        String::from_utf8_lossy(&self.read.lock().unwrap()).into_owned()
    }
}

impl Drop for Inspector {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

#[test]
fn a_proxy_that_looks_into_tls_is_named_and_gets_nothing() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, ann) = over_tcp::installation(&lab);
    over_tcp::drop_udp(&lab, "meta l4proto udp");
    let inspector = Inspector::start(&lab);
    let trying = Process::start(&lab, "client1", client::command(&lab, 1, &ann, &[]));
    eventually("the client says why", TIMEOUT, || {
        trying.output().contains("does a proxy of this network look into TLS?").then_some(())
    });
    drop(trying);
    assert_eq!(inspector.read(), "");
    // A machine that trusts the proxy sends it a request, and no more.
    fs::write(lab.path("trusted.pem"), &inspector.certificate).unwrap();
    let mut command = client::command(&lab, 1, &ann, &[]);
    command.env("SSL_CERT_FILE", lab.path("trusted.pem"));
    let trying = Process::start(&lab, "client1", command);
    eventually("the client says what it got", TIMEOUT, || {
        trying.output().contains("carries no tunnel: HTTP/1.1 403 Forbidden").then_some(())
    });
    drop(trying);
    let read = inspector.read();
    assert!(read.contains("Upgrade: UoTLV/1"), "{read}");
    assert!(!read.contains("ann") && !read.contains("password"), "{read}");
    assert!(gateway.sessions().is_empty());
}

/// A page of the network that answers for all names, until a user has logged in there.
#[test]
fn a_client_connects_after_the_login_at_a_captive_portal() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, ann) = over_tcp::installation(&lab);
    edit_toml(&ann.profile, |profile| {
        profile["server"]["addresses"] = strings(&[&format!("{NAME}:{PORT}")]);
    });
    let machine = &lab.clients[0];
    fs::write(process::etc(&lab, machine).join("resolv.conf"), format!("nameserver {PROVIDERS}\n")).unwrap();
    let mut provider =
        names::name_server_of(&lab, &lab.net, &[PROVIDERS], &format!("{NAME}/#"), &["198.18.1.1"]);
    lab.net
        .nft("table inet walled { chain forward { type filter hook forward priority 0; policy drop; }; }\n");
    let page = lab.net.within(|| TcpListener::bind("198.18.1.1:80")).unwrap();
    page.set_nonblocking(true).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    let pages = std::thread::spawn(move || {
        while !over.load(Ordering::Relaxed) {
            let Ok((mut stream, _)) = page.accept() else {
                std::thread::sleep(SECOND / 50);
                continue;
            };
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(SECOND)).unwrap();
            let _ = stream.read(&mut [0; 1_024]);
            let _ = stream.write_all(b"HTTP/1.1 302 Found\r\nLocation: http://login.cafe.example/\r\n\r\n");
        }
    });
    let client = Client::trying(&lab, 1, &ann, "has a login page (captive portal)");
    assert!(gateway.sessions().is_empty());
    assert!(!ping(machine, CAMPUS_V4.into(), 56, SECOND / 5));

    // A user logs in there.
    provider.kill();
    let _provider = names::name_server(&lab, &lab.net, PROVIDERS, &GATEWAY_V4.to_string());
    lab.net.nft("delete table inet walled\n");
    let began = Instant::now();
    ping_until(machine, CAMPUS_V4.into(), TIMEOUT);
    println!("connected {:?} after the login", began.elapsed());
    assert_eq!(gateway.sessions().len(), 1);
    is_over.store(true, Ordering::Relaxed);
    pages.join().unwrap();
    drop(client);
}

/// A firewall of the network that passes each UDP flow of a client for this time, and drops it
/// then.
fn end_udp_flows_after(lab: &Lab, lifetime: Duration) {
    let tuple = "type ipv4_addr . inet_service . ipv4_addr . inet_service; flags dynamic,timeout";
    let out = "ip saddr . udp sport . ip daddr . udp dport";
    let back = "ip daddr . udp dport . ip saddr . udp sport";
    let rules = [(out, Lab::port(1)), (back, Lab::port(0))].map(|(flow, from)| {
        format!(
            "iifname {from} {flow} @fresh accept\n\
             iifname {from} {flow} @begun counter drop\n\
             iifname {from} meta l4proto udp add @begun {{ {flow} }} add @fresh {{ {flow} }} accept\n"
        )
    });
    lab.net.nft(&format!(
        "table ip ends {{\n\
           set begun {{ {tuple}; timeout 1h; }}\n\
           set fresh {{ {tuple}; timeout {}ms; }}\n\
           chain forward {{ type filter hook forward priority 0;\n{}{} }}\n\
         }}\n",
        lifetime.as_millis(),
        rules[0],
        rules[1],
    ));
}

/// Talks over one TCP connection through the tunnel until `is_over`; the longest pause.
fn longest_pause(lab: &Lab, is_over: impl Fn() -> bool + Send + Sync) -> Duration {
    trickle_while(&lab.clients[0], &lab.campus, CAMPUS_V4.into(), TIMEOUT, || !is_over())
}

#[test]
fn a_firewall_that_ends_udp_flows_interrupts_for_seconds_only() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    end_udp_flows_after(&lab, 12 * SECOND);
    let mut client = Client::connect_with(&lab, 1, &ann, &["--lanes", "2"]);
    ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    let began = Instant::now();
    let pause = longest_pause(&lab, || began.elapsed() > 22 * SECOND);
    println!("the longest pause took {pause:?}");
    // A server that waits for its answer to arrive sends it again after 6.2 s.
    assert!(pause < 10 * SECOND, "{pause:?}");
    has_logged(&mut client, "lanes have others");
    assert_eq!(gateway.status()["counters"]["logins"]["accepted"], 1, "it was one session");
}

#[test]
fn a_network_in_which_no_udp_flow_lasts_is_one_without_udp() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, ann) = over_tcp::installation(&lab);
    end_udp_flows_after(&lab, 4 * SECOND);
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    let began = Instant::now();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let talk = scope.spawn(|| longest_pause(&lab, || over.load(Ordering::Relaxed)));
        eventually("it goes over TCP", TIMEOUT, || is_over_tcp(&gateway).then_some(()));
        println!("over TCP after {:?}", began.elapsed());
        // Longer than UDP would be good for.
        std::thread::sleep(10 * SECOND);
        over.store(true, Ordering::Relaxed);
        let pause = talk.join().unwrap();
        println!("the longest pause took {pause:?}");
    });
    assert!(is_over_tcp(&gateway), "it stays there");
    has_logged(&mut client, "pass for a short time only");
    assert_eq!(gateway.status()["counters"]["logins"]["accepted"], 1, "it was one session");
}

/// Firewalls that know QUIC may pass nothing else.
#[test]
fn a_network_that_passes_only_quic_of_all_udp_is_one_without_udp() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, ann) = over_tcp::installation(&lab);
    over_tcp::drop_udp(&lab, "meta l4proto udp @th,64,8 & 0xc0 == 0x80");
    let began = Instant::now();
    let mut client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    println!("a ping came through after {:?}", began.elapsed());
    assert!(is_over_tcp(&gateway));
    has_logged(&mut client, "pass for a short time only");
}

/// The ports from which a client has sent data, as the network has seen them since the call before.
fn lane_ports(lab: &Lab) -> Vec<u16> {
    let mut command = process::command(lab, &lab.net, "nft");
    command.args(["list", "set", "inet", "seen", "lanes"]);
    let text = process::text(&must(process::run(command)));
    lab.net.nft("flush set inet seen lanes\n");
    let elements =
        text.split("elements = {").nth(1).and_then(|rest| rest.split('}').next()).unwrap_or_default();
    elements.split(',').filter_map(|port| port.trim().parse().ok()).collect()
}

#[test]
fn one_lane_of_several_whose_flow_is_ended_gets_another_port() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("server.shards", 4);
    let ann = gateway.add_user("ann");
    gateway.start();
    lab.net.nft(&format!(
        "table inet seen {{\n\
           set lanes {{ type inet_service; flags dynamic; size 64; }}\n\
           chain forward {{ type filter hook forward priority -10;\n\
             iifname {} meta l4proto udp @th,64,8 & 0xc0 == 0x80 add @lanes {{ udp sport }}\n\
           }}\n\
         }}\n",
        Lab::port(1)
    ));
    let mut client = Client::connect_with(&lab, 1, &ann, &["--lanes", "4"]);
    ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
    std::thread::sleep(SECOND);
    let before = lane_ports(&lab);
    assert_eq!(before.len(), 4, "each lane was probed: {before:?}");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let talk: Vec<_> =
            (0..8).map(|_| scope.spawn(|| longest_pause(&lab, || over.load(Ordering::Relaxed)))).collect();
        std::thread::sleep(SECOND);
        let ended = before[0];
        over_tcp::drop_udp(&lab, &format!("meta l4proto udp th sport {ended}"));
        lab.net.nft(&format!("add rule inet hole forward meta l4proto udp th dport {ended} drop\n"));
        let began = Instant::now();
        let mut since = Vec::new();
        eventually("the lane has another port", TIMEOUT, || {
            since.extend(lane_ports(&lab));
            since.iter().any(|port| !before.contains(port)).then_some(())
        });
        println!("another port after {:?}", began.elapsed());
        std::thread::sleep(3 * SECOND);
        lane_ports(&lab);
        std::thread::sleep(SECOND);
        let after = lane_ports(&lab);
        assert!(!after.contains(&ended), "{after:?} after {before:?}");
        over.store(true, Ordering::Relaxed);
        let pause = talk.into_iter().map(|talk| talk.join().unwrap()).max().unwrap();
        println!("the longest pause took {pause:?}");
        assert!(pause < 15 * SECOND, "{pause:?}");
    });
    has_logged(&mut client, "lanes have others");
}
