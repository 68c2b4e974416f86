//! Behaviour: the certificate of the web pages from the same authority, with another key than the
//! tunnel's. The portal runs before there is one, since it answers the challenge at its port, and
//! takes each over while its connections go on.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{Read, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rcgen::{CertificateParams, KeyPair};
use rustix::process::{Pid, Signal, kill_process};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::json;

use super::{Authority, SECOND, chain, chain_in, configure, finding, leaf, leaf_in, outcome, outcome_in};
use crate::certificates::shapes;
use crate::client::Client;
use crate::gateway::{Gateway, edit_toml, must};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, eventually};
use crate::names::{NAME, PROVIDERS};
use crate::privileges::Seen;
use crate::process::text;
use crate::traffic::ping_until;

const PAGES: &str = "portal.pem";
const OUTCOME: &str = "acme-outcome-portal.json";
const DAY_S: u64 = 86_400;

/// A client's connection to the pages, or to the authority.
type Connection = StreamOwned<ClientConnection, TcpStream>;

/// Web pages for `host` that order their certificate.
fn serve_pages(gateway: &Gateway<'_>, host: &str) {
    gateway.configure("portal.enabled", true);
    gateway.configure("portal.acme", true);
    gateway.configure("portal.url", format!("https://{host}"));
}

/// A browser's handshake, which trusts the authorities of this chain alone.
fn connect(lab: &Lab, trusted: &[CertificateDer<'static>]) -> Result<Connection, std::io::Error> {
    handshake(lab, (GATEWAY_V4.into(), 443), NAME, trusted, Vec::new())
}

/// Whether an authority that looks for the answer to its challenge is shown one.
fn is_answered(lab: &Lab, trusted: &[CertificateDer<'static>]) -> bool {
    let protocols = vec![b"acme-tls/1".to_vec()];
    let refused = handshake(lab, (GATEWAY_V4.into(), 443), NAME, trusted, protocols).err();
    let reason = refused.and_then(|error| error.get_ref()?.downcast_ref::<rustls::Error>().cloned());
    // No authority has signed it.
    matches!(reason, Some(rustls::Error::InvalidCertificate(_)))
}

fn handshake(
    lab: &Lab,
    server: (IpAddr, u16),
    name: &'static str,
    trusted: &[CertificateDer<'static>],
    protocols: Vec<Vec<u8>>,
) -> Result<Connection, std::io::Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(trusted.iter().cloned());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols;
    let tcp = lab.net.within(|| TcpStream::connect(server))?;
    tcp.set_read_timeout(Some(10 * SECOND))?;
    let name = ServerName::try_from(name).unwrap();
    let mut stream = StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), tcp);
    stream.conn.complete_io(&mut stream.sock)?;
    Ok(stream)
}

/// One request of a connection that goes on.
fn get(connection: &mut Connection) {
    connection.write_all(b"GET /style.css HTTP/1.1\r\nHost: gateway.example\r\n\r\n").unwrap();
    let (head, body) = receive(connection);
    assert!(head.starts_with("HTTP/1.1 200 ") && !body.is_empty(), "{head}");
}

/// One message of HTTP: its head, and the body that this gives a length.
fn receive(stream: &mut impl Read) -> (String, Vec<u8>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let fields = head.to_ascii_lowercase();
    let len = fields.split("content-length: ").nth(1).map_or("0", |rest| rest.lines().next().unwrap());
    let mut body = vec![0; len.trim().parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    (head, body)
}

/// A proxy in front of the authority, by which an order stays under way for as long as a test
/// needs: once the authority knows that a challenge is answered, it looks for the answer, and gives
/// up after two seconds without its name server.
struct Proxy<'l> {
    lab: &'l Lab,
    listener: TcpListener,
    config: Arc<ServerConfig>,
    authority: CertificateDer<'static>,
}

impl<'l> Proxy<'l> {
    /// Puts it in front of an authority that refuses no nonce.
    fn start(lab: &'l Lab, authority: &Authority) -> Self {
        let certificate = CertificateDer::from_pem_file(&authority.ca).unwrap();
        let key = PrivateKeyDer::from_pem_file(&authority.key).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.unwrap().with_no_client_auth().with_single_cert(vec![certificate.clone()], key);
        let listener = lab.net.within(|| TcpListener::bind((PROVIDERS, 14001))).unwrap();
        listener.set_nonblocking(true).unwrap();
        lab.net.nft(&format!(
            "table ip proxy {{ chain pre {{\n\
               type nat hook prerouting priority dstnat;\n\
               iifname {} tcp dport 14000 redirect to :14001\n\
             }}; }}\n",
            Lab::port(0)
        ));
        Self { lab, listener, config: Arc::new(config.unwrap()), authority: certificate }
    }

    /// Passes requests on until one says that a challenge is answered. That one is returned, and
    /// the gateway told that the authority has it; later requests go to the authority without this.
    fn withhold(&self) -> Vec<u8> {
        loop {
            let asks = || self.listener.accept().ok();
            let (tcp, _) = eventually("the gateway asks the authority", 20 * SECOND, asks);
            tcp.set_read_timeout(Some(10 * SECOND)).unwrap();
            let mut gateway = StreamOwned::new(ServerConnection::new(Arc::clone(&self.config)).unwrap(), tcp);
            let (head, body) = receive(&mut gateway);
            let request = [head.replacen("\r\n", "\r\nConnection: close\r\n", 1).as_bytes(), &body].concat();
            let path = head.split(' ').nth(1).unwrap();
            let is_answered = path.starts_with("/chalZ/");
            let response = if is_answered {
                // Connections under way keep their translation.
                self.lab.net.nft("insert rule ip proxy pre accept\n");
                let challenge = json!({
                    "type": "tls-alpn-01", "url": format!("https://{PROVIDERS}:14000{path}"),
                    "token": "", "status": "processing",
                });
                let (challenge, kind) = (challenge.to_string(), "Content-Type: application/json");
                let len = challenge.len();
                format!("HTTP/1.1 200 OK\r\n{kind}\r\nContent-Length: {len}\r\n\r\n{challenge}").into()
            } else {
                self.ask(&request)
            };
            gateway.write_all(&response).unwrap();
            gateway.flush().unwrap();
            if is_answered {
                return request;
            }
        }
    }

    /// The authority's whole response.
    fn ask(&self, request: &[u8]) -> Vec<u8> {
        let (server, trusted) = ((PROVIDERS.parse().unwrap(), 14000), [self.authority.clone()]);
        let mut authority = handshake(self.lab, server, PROVIDERS, &trusted, Vec::new()).unwrap();
        authority.write_all(request).unwrap();
        let mut response = Vec::new();
        authority.read_to_end(&mut response).unwrap();
        response
    }
}

fn presented(connection: &Connection) -> CertificateDer<'static> {
    connection.conn.peer_certificates().unwrap()[0].clone().into_owned()
}

fn left_s(gateway: &Gateway<'_>) -> u64 {
    gateway.status()["portal"]["certificate_left_s"].as_u64().unwrap()
}

/// Puts a certificate in the portal's file that is good for ten days of ninety yet.
fn age(gateway: &Gateway<'_>) -> CertificateDer<'static> {
    let key = KeyPair::from_pem(&fs::read_to_string(gateway.file("portal-key.pem")).unwrap()).unwrap();
    let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    let now = rcgen::date_time_ymd(1970, 1, 1) + UNIX_EPOCH.elapsed().unwrap();
    let days = |days: u64| Duration::from_secs(days * DAY_S);
    (params.not_before, params.not_after) = (now - days(80), now + days(10));
    let made = params.self_signed(&key).unwrap();
    fs::write(gateway.file(PAGES), made.pem()).unwrap();
    made.der().clone()
}

#[test]
fn web_pages_get_and_renew_a_certificate_under_a_connection() {
    let Some(lab) = Lab::new(1) else { return };
    let Some(authority) = Authority::start(&lab, false) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    configure(&gateway, &authority.ca, &[]);
    edit_toml(&gateway.config(), |config| {
        config["acme"].as_table_mut().unwrap().remove("names");
    });
    serve_pages(&gateway, NAME);
    let (tunnels, key) = (chain(&gateway), leaf(&gateway).1);
    must(gateway.check());
    gateway.start();
    let (failed, first) = outcome_in(&gateway, OUTCOME, "");
    assert_eq!(failed, None, "{}", authority.process.output());
    let (names, own_key) = leaf_in(&gateway, PAGES);
    assert_eq!(names, [format!("DNSName({NAME})")]);
    assert_ne!(own_key, key, "the pages' key is not the tunnel's");
    let mode = fs::metadata(gateway.file("portal-key.pem")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // The tunnel's certificate is its own authority's, as before.
    assert_eq!(chain(&gateway), tunnels);
    assert!(!gateway.file("state/acme-outcome.json").exists());
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 10 * SECOND);

    let authorities = chain_in(&gateway, PAGES)[1..].to_vec();
    let mut open = eventually("pages are served", 10 * SECOND, || connect(&lab, &authorities).ok());
    assert_eq!(presented(&open), chain_in(&gateway, PAGES)[0]);
    get(&mut open);
    let portal = Seen::parent(&gateway).child("portal").pid();
    assert!(left_s(&gateway) > 20 * DAY_S);
    assert_eq!(finding(&gateway, "portal.certificate")["verdict"], "good");

    // Another is ordered in time, for the same key.
    let old = age(&gateway);
    must(gateway.ask(&["reload"]));
    eventually("the next order is over", 60 * SECOND, || {
        get(&mut open);
        (fs::read_to_string(gateway.file("state").join(OUTCOME)).unwrap() != first).then_some(())
    });
    let (failed, second) = outcome_in(&gateway, OUTCOME, &first);
    assert_eq!(failed, None, "{}", authority.process.output());
    let renewed = eventually("the next is presented", 10 * SECOND, || {
        Some(connect(&lab, &authorities).ok()?).filter(|connection| presented(connection) != old)
    });
    assert_eq!(
        (presented(&renewed), leaf_in(&gateway, PAGES).1),
        (chain_in(&gateway, PAGES)[0].clone(), own_key)
    );
    get(&mut open);
    assert_eq!(Seen::parent(&gateway).child("portal").pid(), portal, "nothing was started again");
    assert!(left_s(&gateway) > 20 * DAY_S);

    // The authority can't find a name, so what there is stays.
    serve_pages(&gateway, "pages.elsewhere.example");
    gateway.terminate();
    gateway.start();
    let (failed, _) = outcome_in(&gateway, OUTCOME, &second);
    assert!(failed.as_ref().is_some_and(|why| why.contains("pages.elsewhere.example")), "{failed:?}");
    let log = gateway.process().output();
    assert_eq!(log.matches("no certificate for web pages from the ACME authority").count(), 1, "{log}");
    assert_eq!(presented(&connect(&lab, &authorities).unwrap()), presented(&renewed));
    let found = finding(&gateway, "portal.certificate");
    assert!(found["verdict"] == "warning" && found["found"].as_str().unwrap().contains("failed"), "{found}");
    ping_until(client.namespace(), CAMPUS_V4.into(), 30 * SECOND);
}

#[test]
fn an_order_survives_a_restart_of_the_portal_process() {
    let Some(lab) = Lab::new(1) else { return };
    let Some(authority) = Authority::start_refusing(&lab, false, 0) else { return };
    let mut gateway = Gateway::init(&lab);
    configure(&gateway, &authority.ca, &[]);
    edit_toml(&gateway.config(), |config| {
        config["acme"].as_table_mut().unwrap().remove("names");
    });
    serve_pages(&gateway, NAME);
    let proxy = Proxy::start(&lab, &authority);
    gateway.start();
    let withheld = proxy.withhold();
    let trusted = chain(&gateway);
    let answered_by = |before: Option<Pid>| {
        eventually("the challenge is answered", 10 * SECOND, || {
            let portal = Seen::parent(&gateway).child_if_any("portal")?.pid();
            (Some(portal) != before && is_answered(&lab, &trusted)).then_some(portal)
        })
    };
    let first = answered_by(None);
    gateway.configure("portal.name", "Another name");
    must(gateway.ask(&["reload"]));
    let second = answered_by(Some(first));
    kill_process(second, Signal::KILL).unwrap();
    let third = answered_by(Some(second));
    must(gateway.upgrade());
    answered_by(Some(third));
    let taken = proxy.ask(&withheld);
    assert!(taken.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&taken));
    let (failed, _) = outcome_in(&gateway, OUTCOME, "");
    assert_eq!(failed, None, "{}", authority.process.output());
    assert_eq!(gateway.process().output().matches("ordering a certificate").count(), 1);
    eventually("the order is over", 2 * SECOND, || (!is_answered(&lab, &trusted)).then_some(()));
}

#[test]
fn pages_without_a_certificate_say_so_until_the_authority_is_there() {
    let Some(lab) = Lab::new(1) else { return };
    let Some(authority) = Authority::start(&lab, false) else { return };
    let mut gateway = Gateway::init(&lab);
    let ann = gateway.add_user("ann");
    configure(&gateway, &authority.ca, &[NAME]);
    // No authority listens there.
    gateway.configure("acme.directory", format!("https://{PROVIDERS}:14001/dir"));
    serve_pages(&gateway, NAME);
    gateway.start();
    let (failed, first) = outcome_in(&gateway, OUTCOME, "");
    assert!(failed.is_some());
    let (failed, of_tunnel) = outcome(&gateway, "");
    assert!(failed.is_some());
    let client = Client::connect(&lab, 1, &ann);
    ping_until(client.namespace(), CAMPUS_V4.into(), 10 * SECOND);
    let status = eventually("the portal is there", 10 * SECOND, || {
        Some(text(&must(gateway.ask(&["status"])))).filter(|status| status.contains("web pages: served"))
    });
    assert!(status.contains("MISSING OR EXPIRED"), "{status}");
    assert_eq!(left_s(&gateway), 0);
    assert_eq!(finding(&gateway, "gateway.portal.certificate")["verdict"], "problem");
    let found = finding(&gateway, "portal.certificate");
    assert!(found["verdict"] == "problem" && found["found"].as_str().unwrap().contains(NAME), "{found}");
    assert!(gateway.process().output().contains("web pages have no certificate yet"));
    assert!(connect(&lab, &chain(&gateway)).is_err(), "no other certificate is presented");

    // Both orders, of one account, with challenges at the port of the pages.
    configure(&gateway, &authority.ca, &[NAME]);
    must(gateway.ask(&["reload"]));
    for (failed, _) in [outcome_in(&gateway, OUTCOME, &first), outcome(&gateway, &of_tunnel)] {
        assert_eq!(failed, None, "{}", authority.process.output());
    }
    let ((names, pages), (tunnels_names, tunnels)) = (leaf_in(&gateway, PAGES), leaf(&gateway));
    assert_eq!(names, tunnels_names);
    assert_ne!(pages, tunnels, "each has a key of its own");
    let authorities = chain_in(&gateway, PAGES)[1..].to_vec();
    let mut connection = eventually("pages are served", 10 * SECOND, || connect(&lab, &authorities).ok());
    get(&mut connection);
    let key = |file: &str| shapes(&fs::read_to_string(gateway.file(file)).unwrap());
    let parent = Seen::parent(&gateway);
    let holds = |process: &str, file: &str| {
        let process = parent.child(process);
        key(file).iter().any(|shape| process.remembers(shape))
    };
    assert!(holds("portal", "portal-key.pem"), "what makes this a search that finds keys");
    assert!(!holds("portal", "server-key.pem") && !holds("auth", "portal-key.pem"));
    assert!(!holds("worker", "portal-key.pem") && !holds("worker", "server-key.pem"));
    assert!(left_s(&gateway) > 20 * DAY_S);
    ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
}
