//! Behaviour: the pages are said by TLS alone, as HTTP/1.1: in clear there is nothing, and no other
//! protocol is agreed on.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConnection;

use super::relays::{name, tls};
use super::{Browser, configure, serves};
use crate::gateway::Gateway;
use crate::lab::{GATEWAY_V4, Lab};

#[test]
fn the_portal_does_not_answer_without_tls() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    configure(&gateway);
    gateway.start();
    let browser = Browser::new(&lab, &lab.clients[0], &gateway);
    serves(&browser);
    let connect = |port: u16| lab.clients[0].within(|| TcpStream::connect((GATEWAY_V4, port)));
    assert!(connect(80).is_err(), "no page, and no redirection, is at port 80");
    for request in ["GET / HTTP/1.1\r\nHost: vpn\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut stream = connect(443).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        // It may be cut off by a reset.
        let _ = stream.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer);
        assert!(!text.contains("HTTP") && answer.len() < 16, "an alert of TLS at most: {text:?}");
    }
    let mut config = Arc::unwrap_or_clone(tls(&gateway));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let mut tcp = connect(443).unwrap();
    let mut connection = ClientConnection::new(Arc::new(config), name()).unwrap();
    while connection.is_handshaking() && connection.complete_io(&mut tcp).is_ok() {}
    assert_ne!(connection.alpn_protocol(), Some(&b"h2"[..]));
}
