//! Scrapes over the loopback device, byte by byte.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};

use super::*;
use crate::parent::listeners;
use vpnd_ipc::admin::testing::Fake;

struct Server {
    address: SocketAddr,
    _runtime: tokio::runtime::Runtime,
}

impl Server {
    fn start(fake: Fake, deadline: Duration) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut metrics = {
            let _inside = runtime.enter();
            Metrics::adopt(listeners::metrics((Ipv4Addr::LOCALHOST, 0).into()).unwrap(), true).unwrap()
        };
        metrics.timeout = deadline;
        let address = metrics.address().unwrap();
        runtime.spawn(metrics.serve(Arc::new(fake)));
        Self { address, _runtime: runtime }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// All that comes back for `request` until the server hangs up.
    fn exchange(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        // A server that hangs up on a request it has not read to its end resets the connection
        // after its answer.
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    fn get(&self, path: &str) -> String {
        self.exchange(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    }
}

#[test]
fn a_scrape_gets_the_metrics() {
    let server = Server::start(Fake::new(), CONNECTION_TIMEOUT);
    let get = |accept: &str| {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{accept}\r\n");
        let answer = server.exchange(&request);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(body.contains("\nvpnd_drops_total{reason=\"replayed\"} 7\n"), "{body}");
        (head.to_owned(), body.to_owned())
    };
    let (head, body) = get("Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n");
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(body.contains("# TYPE vpnd_drops counter\n") && body.ends_with("# EOF\n"), "{body}");
    let (head, body) = get("");
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(body.contains("# TYPE vpnd_drops_total counter\n") && !body.contains("# EOF"), "{body}");
    if let Ok(file) = std::env::var("VPND_METRICS_FILE") {
        std::fs::write(file, body).unwrap();
    }
    assert!(server.get("/metrics?name=x").starts_with("HTTP/1.1 200 "), "a query changes nothing");
}

#[test]
fn anything_else_is_refused() {
    let server = Server::start(Fake::new(), CONNECTION_TIMEOUT);
    for path in ["/", "/metrics/", "/metrics/../etc/passwd", "/status"] {
        assert!(server.get(path).starts_with("HTTP/1.1 404 "), "{path}");
    }
    for method in ["POST", "DELETE", "HEAD"] {
        let answer = server
            .exchange(&format!("{method} /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"));
        assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("allow: GET"), "{answer}");
    }
    assert!(server.exchange("\x16\x03\x01 not http\r\n\r\n").starts_with("HTTP/1.1 400 "));
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(2 * MAX_HEAD));
    assert!(server.exchange(&long).starts_with("HTTP/1.1 431 "));
}

#[test]
fn a_gateway_that_has_no_status_is_unavailable() {
    let fake = Fake::new();
    *fake.status.lock().unwrap() = Err("the control plane has stopped".to_owned());
    let answer = Server::start(fake, CONNECTION_TIMEOUT).get("/metrics");
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("control plane has stopped"), "{answer}");
}

#[test]
fn silent_and_slow_scrapers_do_not_block_others() {
    // They would have their places until the test is over.
    let server = Server::start(Fake::new(), Duration::from_secs(3_600));
    let mut slow: Vec<TcpStream> = (0..2 * MAX_CONNECTIONS).map(|_| server.connect()).collect();
    for stream in &mut slow {
        // The first of them have made room.
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n");
    }
    for _ in 0..3 {
        assert!(server.get("/metrics").starts_with("HTTP/1.1 200 "));
    }
    // Whether hung up on or reset, nothing was answered to the oldest.
    let mut rest = Vec::new();
    let _ = slow[0].read_to_end(&mut rest);
    assert!(rest.is_empty());
}

#[test]
fn a_slow_scraper_is_disconnected() {
    let server = Server::start(Fake::new(), Duration::from_millis(200));
    let mut slow = server.connect();
    slow.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    let mut rest = Vec::new();
    // It would fail with a timeout else.
    slow.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
}

#[test]
fn an_address_in_use_is_named() {
    let server = Server::start(Fake::new(), CONNECTION_TIMEOUT);
    let error = listeners::metrics(server.address).unwrap_err();
    assert!(error.to_string().contains(&server.address.to_string()), "{error}");
}
