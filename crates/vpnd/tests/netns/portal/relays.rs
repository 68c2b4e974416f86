//! Behaviour: clients whose network passes only TCP 443 reach the gateway's UDP port through the
//! portal. All datagrams go that way, those of QUIC included; the gateway sees the client's address
//! and not the portal's; and a peer that is silent, slow, or sends nonsense costs others nothing.
//!
//! `net` has a relay of the other end, as a program next to a client would be: each flow that a
//! client begins towards the UDP port goes over a TCP connection, and no datagram passes outside
//! it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use minicbor::Encoder;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::{Notify, mpsc};
use tokio_rustls::TlsConnector;
use vpnd_relay::{Datagrams, Patience, Run};

use super::{SOON, configure, portal_of};
use crate::audit::recorded;
use crate::client::Client;
use crate::gateway::{Gateway, must};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, eventually};
use crate::privileges::Seen;
use crate::relay::PORT;
use crate::taken_over::{TakenOver, stop};
use crate::traffic::{ping, ping_until, transfer};

pub(super) const REQUEST: &[u8] =
    b"GET / HTTP/1.1\r\nHost: vpn\r\nConnection: Upgrade\r\nUpgrade: UoTLV/1\r\n\r\n";
/// The address of `net` towards the gateway.
const OUTER: &str = "198.18.0.1";
// Numbers of messages in `crates/ipc/src/gateway/portal.rs`.
const RELAY: u32 = 3;
const RELAY_OVER: u32 = 4;
const TO_NO_RELAY: u32 = 1;

pub(super) fn tls(gateway: &Gateway<'_>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let pem = File::open(gateway.file("portal.pem")).unwrap();
    for certificate in CertificateDer::pem_reader_iter(pem) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    Arc::new(config.with_root_certificates(roots).with_no_client_auth())
}

pub(super) fn name() -> ServerName<'static> {
    std::net::IpAddr::from(GATEWAY_V4).into()
}

/// One flow's end of a relay.
struct Flow {
    listen: Arc<UdpSocket>,
    client: SocketAddr,
    inbox: Mutex<mpsc::UnboundedReceiver<Vec<u8>>>,
    arrived: Arc<Notify>,
}

impl Datagrams for Flow {
    fn send(&self, run: &[u8], segment: usize) {
        for datagram in run.chunks(segment) {
            let _ = self.listen.try_send_to(datagram, self.client);
        }
    }

    async fn readable(&self) -> std::io::Result<()> {
        while self.inbox.lock().unwrap().is_empty() {
            self.arrived.notified().await;
        }
        Ok(())
    }

    fn try_receive(&self, into: &mut [u8]) -> std::io::Result<Run> {
        let Ok(datagram) = self.inbox.lock().unwrap().try_recv() else {
            return Err(std::io::ErrorKind::WouldBlock.into());
        };
        into[..datagram.len()].copy_from_slice(&datagram);
        Ok(Run::single(datagram.len()))
    }
}

async fn carry(flow: Flow, tls: Arc<ClientConfig>) {
    let tcp = TcpStream::connect((GATEWAY_V4, 443)).await.unwrap();
    tcp.set_nodelay(true).unwrap();
    let mut stream = TlsConnector::from(tls).connect(name(), tcp).await.unwrap();
    stream.write_all(REQUEST).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    let patience = Patience { first: Duration::MAX, silence: Duration::MAX };
    vpnd_relay::relay(stream, b"", &flow, patience, &AtomicU64::new(0)).await;
}

/// Puts relays between all clients of the laboratory and its gateway, which live as long as the
/// laboratory. Nothing else of UDP passes.
fn only_tcp(lab: &Lab, gateway: &Gateway<'_>) {
    let (handle, tls) = (lab.net.handle(), tls(gateway));
    let (listening, listens) = std::sync::mpsc::channel();
    thread::spawn(move || {
        handle.enter();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listen = Arc::new(UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await.unwrap());
            listening.send(listen.local_addr().unwrap().port()).unwrap();
            let mut flows = HashMap::new();
            let mut buffer = vec![0; 65_536];
            loop {
                let Ok((len, client)) = listen.recv_from(&mut buffer).await else { continue };
                let (inbox, arrived) = flows.entry(client).or_insert_with(|| {
                    let ((sender, inbox), arrived) = (mpsc::unbounded_channel(), Arc::new(Notify::new()));
                    let inbox = Mutex::new(inbox);
                    let flow = Flow { listen: Arc::clone(&listen), client, inbox, arrived: arrived.clone() };
                    tokio::spawn(carry(flow, tls.clone()));
                    (sender, arrived)
                });
                let _ = inbox.send(buffer[..len].to_vec());
                arrived.notify_one();
            }
        });
    });
    let port = listens.recv().unwrap();
    let from = Lab::port(1);
    lab.net.nft(&format!(
        "add table ip tcponly\n\
         add chain ip tcponly in {{ type nat hook prerouting priority dstnat; }}\n\
         add rule ip tcponly in iifname {from} udp dport {PORT} redirect to :{port}\n\
         add table inet tcpgate\n\
         add chain inet tcpgate forward {{ type filter hook forward priority 0; policy drop; }}\n",
    ));
}

/// A gateway with relays, and `ann`'s client, whose network passes only TCP 443.
fn with_relayed(lab: &Lab, relays: i64) -> (Gateway<'_>, Client<'_>) {
    let mut gateway = Gateway::init(lab);
    let ann = gateway.add_user("ann");
    configure(&gateway);
    gateway.configure("portal.relays", relays);
    gateway.start();
    portal_of(&gateway);
    only_tcp(lab, &gateway);
    let client = Client::connect(lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), SOON);
    (gateway, client)
}

/// A connection in `net` that has been made a relay's.
fn upgraded(lab: &Lab, gateway: &Gateway<'_>) -> StreamOwned<ClientConnection, std::net::TcpStream> {
    let tcp = lab.net.within(|| std::net::TcpStream::connect((GATEWAY_V4, 443))).unwrap();
    tcp.set_read_timeout(Some(SOON)).unwrap();
    let mut stream = StreamOwned::new(ClientConnection::new(tls(gateway), name()).unwrap(), tcp);
    stream.write_all(REQUEST).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    stream
}

pub(super) fn relays(gateway: &Gateway<'_>) -> u64 {
    gateway.status()["portal"]["relays"].as_u64().unwrap()
}

#[test]
fn a_client_behind_tcp_443_has_its_tunnel_and_its_own_address() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, client) = with_relayed(&lab, 100);
    assert!(ping(client.namespace(), CAMPUS_V4.into(), 1_300, SOON), "large packets, too");
    transfer(client.namespace(), &lab.campus, CAMPUS_V4.into(), 20_000_000, SOON);
    let sessions = gateway.sessions();
    assert_eq!(sessions[0]["over_tcp"], true, "{sessions:?}");
    let outer = sessions[0]["outer"].as_array().unwrap();
    let is_clients = |outer: &serde_json::Value| outer.as_str().unwrap().starts_with(OUTER);
    assert!(!outer.is_empty() && outer.iter().all(is_clients), "{outer:?}");
    let shown = String::from_utf8(must(gateway.ask(&["status"])).stdout).unwrap();
    assert!(shown.contains("(TCP)") && shown.contains("for clients over TCP"), "{shown}");
    // Records have the client's address, too.
    for record in recorded(&gateway, "outer-address") {
        assert!(record["outer"].as_str().unwrap().starts_with(OUTER), "{record}");
    }
    assert!(relays(&gateway) > 0);
    assert!(gateway.status()["counters"]["relays"]["begun"].as_u64() > Some(0));
}

#[test]
fn junk_and_silence_cost_the_tunnel_nothing_and_a_network_has_its_share() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, client) = with_relayed(&lab, 30);
    let before = relays(&gateway);
    // Datagrams of every length that are none of any protocol, and one that never ends.
    let mut junk = upgraded(&lab, &gateway);
    for len in [0, 1, 31, 32, 1_500, 65_507, 65_535_usize] {
        junk.write_all(&(len as u16).to_be_bytes()).unwrap();
        junk.write_all(&vec![0x80; len]).unwrap();
    }
    junk.write_all(&[0xFF, 0xFF, 0x80]).unwrap();
    junk.flush().unwrap();
    eventually("they are counted", SOON, || (gateway.counter("bad_header") > 0).then_some(()));
    // Nothing answers it: it is over after half a minute.
    let mut answer = Vec::new();
    let _ = junk.read_to_end(&mut answer);
    assert!(answer.is_empty(), "nothing is answered");
    eventually("its relay is gone", SOON, || (relays(&gateway) == before).then_some(()));

    // One host gets no more than its share.
    let mut held = Vec::new();
    let refused = (0..30).find(|_| {
        let tcp = lab.net.within(|| std::net::TcpStream::connect((GATEWAY_V4, 443))).unwrap();
        let mut stream = StreamOwned::new(ClientConnection::new(tls(&gateway), name()).unwrap(), tcp);
        stream.write_all(REQUEST).unwrap();
        let mut head = [0; 12];
        let read = stream.read_exact(&mut head);
        let refused = read.is_err() || &head == b"HTTP/1.1 503";
        held.push(stream);
        refused
    });
    assert!(refused.is_some(), "a host has a share");
    assert!(relays(&gateway) <= 11, "a third of all: {}", relays(&gateway));
    assert!(ping(client.namespace(), CAMPUS_V4.into(), 56, SOON), "what was there before stays");
}

/// Without the key there is nothing to upgrade to.
#[test]
fn there_are_no_relays_until_they_are_configured() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    configure(&gateway);
    gateway.start();
    portal_of(&gateway);
    let tcp = lab.net.within(|| std::net::TcpStream::connect((GATEWAY_V4, 443))).unwrap();
    let mut stream = StreamOwned::new(ClientConnection::new(tls(&gateway), name()).unwrap(), tcp);
    stream.write_all(REQUEST).unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 303", "the page to log in");
}

#[test]
fn a_compromised_portal_gets_few_sockets_and_ends_nothing() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    configure(&gateway);
    gateway.configure("portal.relays", 5);
    gateway.start();
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), SOON);
    let seen = portal_of(&gateway);
    stop(seen.pid());
    let parent = Seen::parent(&gateway);
    let mut portal = TakenOver::new(&parent, "portal");
    let frame = |kind: u32, fields: &dyn Fn(&mut Encoder<Vec<u8>>)| {
        let mut body = Encoder::new(Vec::new());
        body.array(2).unwrap().u32(kind).unwrap();
        fields(&mut body);
        let body = body.into_writer();
        [&u32::try_from(body.len()).unwrap().to_le_bytes()[..], &[0; 4], &body].concat()
    };
    let relay = |number: u64| {
        frame(RELAY, &|body| {
            body.array(2).unwrap().u64(number).unwrap();
            body.encode(SocketAddr::from(([192, 0, 2, 1], 1))).unwrap();
        })
    };
    for number in 1_000..1_005 {
        portal.send(&relay(number));
        assert_eq!(portal.expect(0).descriptors, 1, "a socket");
    }
    portal.send(&relay(1_005));
    portal.expect(TO_NO_RELAY);
    // One that there is not is over, and the next one has its place.
    for number in [1, 1_000] {
        portal.send(&frame(RELAY_OVER, &|body| {
            body.array(2).unwrap().u64(number).unwrap().u64(u64::MAX).unwrap();
        }));
    }
    portal.send(&relay(1_006));
    assert_eq!(portal.expect(0).descriptors, 1);
    assert_eq!(relays(&gateway), 5);
    assert!(ping(client.namespace(), CAMPUS_V4.into(), 56, SOON));
    // A message that no portal sends is the last of this one, and of its relays.
    portal.send(&frame(200, &|body| {
        body.array(0).unwrap();
    }));
    portal.let_go();
    eventually("there is another", SOON, || {
        parent.child_if_any("portal").filter(|other| other.pid() != seen.pid()).map(drop)
    });
    eventually("its relays are none", SOON, || (relays(&gateway) == 0).then_some(()));
    assert!(ping(client.namespace(), CAMPUS_V4.into(), 56, SOON));
}
