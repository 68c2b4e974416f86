//! Behaviour: breaches of the protocol are answered with the code that its page names (PROTOCOL §2,
//! §3, §14), and counted.
//!
//! The client here is QUIC alone: it can send what no real client sends.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and helper functions of integration tests are not known as tests"
)]

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Connection, ConnectionError};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value as Json;
use vpnd_proto::control::{Code, encode};

use crate::client::Client;
use crate::gateway::{Gateway, Login};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, eventually};
use crate::namespace::Namespace;
use crate::relay::PORT;
use crate::theft::{Speaker, in_her_box};
use crate::traffic::ping_until;

const BYE: u64 = 0;
const BAD_REQUEST: u64 = 3;

/// Sends `first` on the control stream, ends that if `finish`, and waits for the gateway to close.
/// The close code.
fn close_code(namespace: &Namespace, login: &Login, first: &[u8], finish: bool) -> u64 {
    connected(namespace, login, async |connection| {
        let (mut send, _receive) = connection.open_bi().await.unwrap();
        send.write_all(first).await.unwrap();
        if finish {
            send.finish().unwrap();
        }
        closed(&connection).await
    })
}

/// The certificate that the gateway presents.
pub(crate) fn presented(namespace: &Namespace, login: &Login) -> CertificateDer<'static> {
    connected(namespace, login, async |connection| {
        let chain = connection.peer_identity().expect("a gateway shows a certificate");
        chain.downcast::<Vec<CertificateDer<'static>>>().expect("rustls keeps it so").swap_remove(0)
    })
}

/// Connects as far as TLS goes, and leaves the rest to `talk`.
fn connected<T: Send>(
    namespace: &Namespace,
    login: &Login,
    talk: impl AsyncFnOnce(Connection) -> T + Send,
) -> T {
    let tls = tls(login);
    namespace.within(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let endpoint = quinn::Endpoint::client(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
            let config = quinn::ClientConfig::new(Arc::new(tls));
            let gateway = SocketAddr::from((GATEWAY_V4, PORT));
            let connecting = endpoint.connect_with(config, gateway, &GATEWAY_V4.to_string()).unwrap();
            talk(connecting.await.unwrap()).await
        })
    })
}

async fn closed(connection: &Connection) -> u64 {
    let closed = tokio::time::timeout(Duration::from_secs(20), connection.closed()).await;
    match closed.expect("the gateway closes it") {
        ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
        other => panic!("not closed with a code of the protocol: {other}"),
    }
}

/// A client that trusts what the profile trusts.
fn tls(login: &Login) -> QuicClientConfig {
    let profile: toml::Table = std::fs::read_to_string(&login.profile).unwrap().parse().unwrap();
    let ca = profile["server"]["ca"].as_str().expect("it is pinned");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"vpnd/1".to_vec()];
    QuicClientConfig::try_from(tls).unwrap()
}

fn count(gateway: &Gateway<'_>, group: &str, name: &str) -> u64 {
    let status: Json = gateway.status();
    status["counters"][group][name].as_u64().unwrap_or_else(|| panic!("no {group}.{name} in {status}"))
}

#[test]
fn what_is_not_understood_before_a_login_is_a_bad_request() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let bad: [(&str, &[u8], bool); 7] = [
        ("a message of no bytes", &[0, 0, 0, 0], false),
        ("one that is longer than allowed", &[1, 0x40, 0, 0], false),
        ("no CBOR", &[1, 0, 0, 0, 0xFF], false),
        ("an unknown number", &[4, 0, 0, 0, 0x82, 0x18, 99, 0xA0], false),
        ("a goodbye", &[3, 0, 0, 0, 0x82, 0x03, 0xA0], false),
        ("nothing at all", &[], true),
        ("half a message", &[9, 0, 0, 0, 0x82], true),
    ];
    for (number, (what, first, finish)) in (1..).zip(bad) {
        let began = Instant::now();
        assert_eq!(close_code(&lab.clients[0], &ann, first, finish), BAD_REQUEST, "{what}");
        assert!(began.elapsed() < Duration::from_secs(5), "{what}: it is told at once");
        assert_eq!(count(&gateway, "logins", "bad_requests"), number, "{what}");
    }
    assert!(gateway.process().output().contains("control connection closed"), "and it is on record");
}

#[test]
fn a_login_whose_client_hangs_up_before_the_answer_is_a_bad_request() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    in_her_box(&lab, async || {
        let speaker = Speaker::new(&ann.profile, 1);
        let mut line = speaker.dial().await;
        line.send.write_all(&encode(&speaker.login(&line, "ann"))).await.unwrap();
        line.send.finish().unwrap();
        assert_eq!(line.closed().await, Code::BadRequest);
    });
    assert_eq!(count(&gateway, "logins", "bad_requests"), 1);
}

#[test]
fn silence_ends_a_connection_with_a_code_of_its_own_counter() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    gateway.start();
    let began = Instant::now();
    // Two bytes of a length: the stream is there, and nothing else comes.
    assert_eq!(close_code(&lab.clients[0], &ann, &[9, 0], false), BAD_REQUEST);
    assert!(began.elapsed() >= Duration::from_secs(9), "it had its time: {:?}", began.elapsed());
    assert_eq!(count(&gateway, "logins", "timed_out"), 1);
    assert_ne!(BAD_REQUEST, BYE);
}

#[test]
fn first_bytes_of_no_protocol_are_counted() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.start();
    let stranger = lab.clients[0].within(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    for first in [0x00, 0x01, 0x04, 0x20, 0x3F] {
        stranger.send_to(&[first; 64], (GATEWAY_V4, PORT)).unwrap();
    }
    // Where the kernel does not steer, shards see them.
    eventually("all five are counted", Duration::from_secs(5), || {
        let counted = count(&gateway, "handshakes", "not_quic") + gateway.counter("bad_header");
        (counted == 5).then_some(())
    });
}

#[test]
fn an_idle_client_sends_nothing_into_the_tunnel() {
    let Some(lab) = Lab::new(1) else { return };
    let (gateway, one) = Client::alone(&lab);
    // Its router solicitations and multicast reports come within the first seconds of a device.
    std::thread::sleep(Duration::from_secs(5));
    ping_until(one.namespace(), CAMPUS_V4.into(), Duration::from_secs(5));
    assert_eq!(gateway.counter("foreign_source"), 0);
}
