use axum::body::Bytes;
use axum::routing::post;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::*;

/// A connection to a site that answers a form with its length.
fn connection() -> DuplexStream {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let router = Router::new().route("/", post(async |body: Bytes| format!("<{} bytes>", body.len())));
    let relays = Relays::new(0, mpsc::unbounded_channel().0);
    tokio::spawn(converse(theirs, ([192, 0, 2, 1], 40_000).into(), Arc::new(Service::new(router, relays))));
    ours
}

/// All that comes back until the server closes the connection, and after how long that is.
async fn answers(text: &str) -> (String, Duration) {
    let (mut stream, since) = (connection(), Instant::now());
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received).await;
    (String::from_utf8(received).unwrap(), since.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_message_has_one_end_or_is_refused_with_its_connection() {
    let head = "POST / HTTP/1.1\r\nHost: vpn\r\n";
    let (text, _) =
        answers(&format!("{head}Content-Length: 3\r\n\r\nabc{head}Content-Length: 0\r\n\r\n")).await;
    assert_eq!((text.matches("<3 bytes>").count(), text.matches("<0 bytes>").count()), (1, 1), "{text}");
    let (text, _) = answers(&format!("{head}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")).await;
    assert!(text.contains("<3 bytes>"), "{text}");
    // A request inside a body that another server might read as shorter.
    let smuggled = "POST / HTTP/1.1\r\nHost: vpn\r\nContent-Length: 7\r\n\r\nhidden!";
    for framing in [
        "Content-Length: 0\r\nContent-Length: 96\r\n",
        "Content-Length: 0, 96\r\n",
        "Content-Length: +0\r\n",
        "Content-Length: 0x0\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 18446744073709551616\r\n",
        "Content-Length : 0\r\n",
        "Content-Length:\x0b0\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding:\x0bchunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "X: y\rContent-Length: 0\r\n",
        "\r\n Content-Length: 96\r\n",
    ] {
        let (text, _) = answers(&format!("{head}{framing}\r\n{smuggled}")).await;
        assert!(!text.contains("<7 bytes>"), "{framing:?}: {text}");
    }
    // With both, the chunks count and the connection is over, or there is no answer but a refusal.
    let framing = "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n";
    let (text, _) = answers(&format!("{head}{framing}\r\n0\r\n\r\n{smuggled}")).await;
    assert!(!text.contains("<7 bytes>") && !text.contains("<6 bytes>"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn slow_connections_are_closed_by_timeouts() {
    // Nothing, half a head, and a head without its body.
    let (silent, after) = answers("").await;
    assert!(silent.is_empty() && after <= HEAD_TIMEOUT + Duration::from_secs(1), "{after:?}");
    let (half, after) = answers("POST / HTTP/1.1\r\nHost: v").await;
    assert!(!half.contains("200") && after <= HEAD_TIMEOUT + Duration::from_secs(1), "{half} {after:?}");
    let (text, after) = answers("POST / HTTP/1.1\r\nHost: vpn\r\nContent-Length: 9\r\n\r\nabc").await;
    let longest = REQUEST_TIMEOUT + HEAD_TIMEOUT + Duration::from_secs(1);
    assert!(text.starts_with("HTTP/1.1 408 ") && after <= longest, "{text} {after:?}");

    // One who sends a byte at a time, and one who reads nothing of answers without end.
    let drip = async {
        let (mut stream, since) = (connection(), Instant::now());
        while stream.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        since.elapsed()
    };
    let never_reads = async {
        let (mut stream, since) = (connection(), Instant::now());
        let request = b"POST / HTTP/1.1\r\nHost: vpn\r\nContent-Length: 0\r\n\r\n";
        while stream.write_all(request).await.is_ok() {}
        since.elapsed()
    };
    let all = LIFETIME + HEAD_TIMEOUT + REQUEST_TIMEOUT + Duration::from_secs(5);
    for (what, slow) in [("drip", timeout(all, drip).await), ("never reads", timeout(all, never_reads).await)]
    {
        assert!(slow.is_ok(), "{what}: {slow:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_has_a_largest_size_and_is_of_the_version_that_is_served() {
    let large = format!("POST / HTTP/1.1\r\nHost: vpn\r\nX: {}\r\n\r\n", "y".repeat(2 * MAX_HEAD_BYTES));
    let (text, _) = answers(&large).await;
    assert!(text.starts_with("HTTP/1.1 431 "), "{text}");
    let (text, _) = answers("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    assert!(!text.contains("bytes>"), "HTTP/2 is not spoken: {text}");
}

/// Security: a host that asks without end over connections that it has costs little, and others go
/// on.
#[tokio::test]
async fn a_host_has_a_rate_of_requests_whatever_its_connections() {
    let router = Router::new().route("/", post(async || "answered"));
    let service = Arc::new(Service::new(router, Relays::new(0, mpsc::unbounded_channel().0)));
    let all = 2 * 6 * REQUESTS_PER_S as usize;
    let ask = async |host: u8, count: usize| {
        let (mut ours, theirs) = tokio::io::duplex(4 << 20);
        tokio::spawn(converse(theirs, ([192, 0, 2, host], 40_000).into(), Arc::clone(&service)));
        let request = "POST / HTTP/1.1\r\nHost: vpn\r\nContent-Length: 0\r\n\r\n";
        let last = request.replace("Host", "Connection: close\r\nHost");
        ours.write_all((request.repeat(count - 1) + &last).as_bytes()).await.unwrap();
        let mut received = String::new();
        ours.read_to_string(&mut received).await.unwrap();
        received
    };
    let flood = ask(1, all).await;
    let answered = flood.matches("HTTP/1.1 200").count();
    assert!((6 * REQUESTS_PER_S as usize..all).contains(&answered), "{answered} of {all}");
    assert_eq!(flood.matches("HTTP/1.1 429").count(), 1, "and the connection is over");
    let end = flood.rsplit("HTTP/1.1 ").next().unwrap().to_ascii_lowercase();
    assert!(
        end.starts_with("429 ") && end.contains("connection: close") && end.contains("retry-after: 1"),
        "{end}"
    );
    assert!(end.contains("strict-transport-security"), "{end}");
    assert!(ask(2, 1).await.starts_with("HTTP/1.1 200"));
}
