//! Behaviour: a directory that an attacker has taken over sends as much as it can, to many logins
//! at the same time. The idp process keeps what it has asked for and within limits, goes on, and
//! no other user notices.
//!
//! No real directory does this: the server here encodes LDAP by itself, behind real TLS.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::thread;

use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use vpnd_proto::control::Code;

use super::{ADDRESS, TIMEOUT, add_source, idp};
use crate::client::Client;
use crate::gateway::{Gateway, write_secret};
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::slapd::{ADMIN, make_certificates};
use crate::theft::{Speaker, in_her_box};
use crate::traffic::ping_until;

/// Logins at the same time, as many as a source checks unless it is configured.
const LOGINS: u8 = 32;
/// Memory that these logins may cost, MiB. A source has 16 MiB for replies; the rest is for TLS and
/// the allocator.
const MOST: u64 = 48;
/// A little less than the longest message.
const LONG: usize = (1 << 20) - 100;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OCTET_STRING: u8 = 0x04;
const SEARCH_REQUEST: u8 = 0x63;
const SEARCH_ENTRY: u8 = 0x64;

/// Answers of the server to a connection.
#[derive(Clone, Copy, Debug)]
enum Attack {
    /// Entries with very many of the values that were asked for.
    Values,
    /// Entries with attributes that were not asked for.
    Attributes,
    /// An entry of the user's, and groups with names that are far too long.
    Groups,
    /// A message without its end.
    Cut,
    /// An explanation without an end, in no known characters.
    Text,
}

const ATTACKS: [Attack; 5] = [Attack::Values, Attack::Attributes, Attack::Groups, Attack::Cut, Attack::Text];

fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let len = u32::try_from(content.len()).unwrap().to_be_bytes();
    [&[tag, 0x84][..], &len, content].concat()
}

fn message(number: u8, operation: &[u8]) -> Vec<u8> {
    element(SEQUENCE, &[&[2, 1, number], operation].concat())
}

/// The end of an operation, with success or another result.
fn result(tag: u8, code: u8, text: &[u8]) -> Vec<u8> {
    element(tag, &[&[0x0A, 1, code, OCTET_STRING, 0], &element(OCTET_STRING, text)[..]].concat())
}

fn attribute(name: &str, values: &[u8]) -> Vec<u8> {
    element(SEQUENCE, &[element(OCTET_STRING, name.as_bytes()), element(SET, values)].concat())
}

fn entry(number: u8, attributes: &[u8]) -> Vec<u8> {
    let name = element(OCTET_STRING, b"uid=ann,dc=uni,dc=example");
    message(number, &element(SEARCH_ENTRY, &[name, element(SEQUENCE, attributes)].concat()))
}

/// All replies to the search of this number, the last of which is missing: what has come is held
/// for as long as possible.
fn replies(attack: Attack, number: u8, is_first: bool) -> Vec<u8> {
    let value = |len: usize| element(OCTET_STRING, &vec![b'x'; len]);
    match attack {
        Attack::Values => entry(number, &attribute("memberOf", &[4, 0].repeat(LONG / 2))).repeat(7),
        Attack::Attributes => entry(number, &attribute("jpegPhoto", &value(LONG))).repeat(7),
        Attack::Groups if is_first => {
            let ann = entry(number, &attribute("entryUUID", &value(36)));
            [ann, message(number, &result(0x65, 0, b""))].concat()
        }
        Attack::Groups => entry(number, &attribute("cn", &value(70_000))).repeat(100),
        Attack::Cut => {
            let mut cut = entry(number, &attribute("memberOf", &value(LONG)));
            cut.pop();
            cut
        }
        Attack::Text => message(number, &result(0x65, 80, &[0xFF; LONG])),
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, attack: Attack) -> std::io::Result<()> {
    let mut searches = 0;
    let mut request = vec![0; 4096];
    // Each request comes whole, and its number has one byte.
    while stream.read(&mut request).await? > 0 {
        let mut at = 2 + usize::from(if request[1] == 0x84 { 4_u8 } else { 0 });
        at += 2;
        let (number, tag) = (request[at], request[at + 1]);
        let reply = if tag == SEARCH_REQUEST {
            searches += 1;
            replies(attack, number, searches == 1)
        } else {
            message(number, &result(0x61, 0, b""))
        };
        stream.write_all(&reply).await?;
        stream.flush().await?;
    }
    Ok(())
}

/// Starts it in the gateway's box, for as long as the test runs; its port.
fn start(lab: &Lab, certificates: &std::path::Path) -> u16 {
    let read = |name: &str| fs::read(certificates.join(name)).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(&read("server.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(&read("server-key.pem")).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let tls = TlsAcceptor::from(Arc::new(tls.with_no_client_auth().with_single_cert(chain, key).unwrap()));
    let listener = lab.gateway.within(|| TcpListener::bind((ADDRESS, 0)).unwrap());
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            for attack in ATTACKS.into_iter().cycle() {
                let (tcp, _) = listener.accept().await.unwrap();
                let tls = tls.clone();
                tokio::spawn(async move {
                    if let Ok(stream) = tls.accept(tcp).await {
                        // The other end has had enough.
                        let _ = serve(stream, attack).await;
                    }
                });
            }
        });
    });
    port
}

/// The most memory that a process has had, MiB.
fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1024
}

#[test]
fn a_hostile_directory_fills_no_memory() {
    let Some(lab) = Lab::new(2) else { return };
    lab.clients[0].ip_batch("route add local 203.0.113.0/24 dev lo\n");
    lab.net.ip_batch("route add 203.0.113.0/24 via 198.18.1.2\n");
    let mut gateway = Gateway::init(&lab);
    gateway.configure("limits.max_handshakes", 1024);
    let local = gateway.add_user("local");
    let (certificates, password) = (lab.path("directory"), lab.path("directory.secret"));
    fs::create_dir(&certificates).unwrap();
    make_certificates(&certificates, ADDRESS);
    write_secret(&password, "a password\n");
    let port = start(&lab, &certificates);
    add_source(
        &gateway,
        &format!(
            "name = \"staff\"\nkind = \"ldap\"\nrealm = \"uni.example\"\nservers = [\"ldaps://{ADDRESS}:{port}\"]\n\
             ca = {:?}\nbind_dn = \"{ADMIN}\"\nbind_password_file = {password:?}\nbase = \"dc=uni,dc=example\"\n\
             group_base = \"dc=uni,dc=example\"\ntimeout_ms = 4000\n",
            certificates.join("ca.pem")
        ),
    );
    gateway.start();
    let gateway_pid = gateway.process().id();
    let pid = eventually("there is an idp process", TIMEOUT, || idp(gateway_pid));
    let before = peak(pid);
    let outcomes = in_her_box(&lab, async || {
        let first = Speaker::new(&local.profile, 1);
        let mut under_way = JoinSet::new();
        for number in 1..=LOGINS {
            let speaker = first.at(IpAddr::from(Ipv4Addr::new(203, 0, 113, number)), [number; 32]);
            under_way.spawn(async move {
                let mut line = speaker.dial().await;
                let login = speaker.login_with(&line, &format!("u{number}@uni.example"), "right");
                line.ask(&login).await
            });
        }
        under_way.join_all().await
    });
    let after = peak(pid);
    println!(
        "{LOGINS} logins at a hostile directory: the idp process had {before} MiB, and {after} MiB at most"
    );
    assert!(after - before < MOST, "{before} MiB, then {after} MiB");
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(Code::Busy))), "{outcomes:?}");
    assert_eq!(idp(gateway_pid), Some(pid), "it goes on");
    let client = Client::connect(&lab, 2, &local);
    ping_until(client.namespace(), CAMPUS_V4.into(), TIMEOUT);
}
