//! Behaviour: middleboxes that people meet beside firewalls and HTTP proxies ([`over_tcp`]): one that
//! looks into TLS, and a login page.

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
use crate::gateway::{edit_toml, strings};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, eventually};
use crate::names::{self, NAME, PROVIDERS};
use crate::over_tcp::{self, certificate};
use crate::process::{self, Process};
use crate::relay::PORT;
use crate::traffic::{ping, ping_until};

const SOON: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// A proxy in place of the gateway's TCP port 443, with a certificate of its own for the gateway; what
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
    eventually("the client says why", SOON, || {
        trying.output().contains("does a proxy of this network look into TLS?").then_some(())
    });
    drop(trying);
    assert_eq!(inspector.read(), "");
    // A machine that trusts the proxy sends it a request, and no more.
    fs::write(lab.path("trusted.pem"), &inspector.certificate).unwrap();
    let mut command = client::command(&lab, 1, &ann, &[]);
    command.env("SSL_CERT_FILE", lab.path("trusted.pem"));
    let trying = Process::start(&lab, "client1", command);
    eventually("the client says what it got", SOON, || {
        trying.output().contains("carries no tunnel: HTTP/1.1 403 Forbidden").then_some(())
    });
    drop(trying);
    let read = inspector.read();
    assert!(read.contains("Upgrade: UoTLV/1"), "{read}");
    assert!(!read.contains("ann") && !read.contains("password"), "{read}");
    assert!(gateway.sessions().is_empty());
}

/// A page of the network that answers for all names, until somebody has logged in there.
#[test]
fn a_network_with_a_login_page_is_got_through_once_somebody_has_logged_in() {
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

    // Somebody logs in.
    provider.kill();
    let _provider = names::name_server(&lab, &lab.net, PROVIDERS, &GATEWAY_V4.to_string());
    lab.net.nft("delete table inet walled\n");
    let began = Instant::now();
    ping_until(machine, CAMPUS_V4.into(), SOON);
    println!("connected {:?} after the login", began.elapsed());
    assert_eq!(gateway.sessions().len(), 1);
    is_over.store(true, Ordering::Relaxed);
    pages.join().unwrap();
    drop(client);
}
