//! A browser's request at the loopback socket (RFC 8252): one request of HTTP, read by hand.
//!
//! Invariants: anybody on this machine can connect, so requests are bounded in number, length and
//! time, and all but the one with the state of this login are answered alike and forgotten.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// Bytes of a request.
const MAX_REQUEST: usize = 8 << 10;
/// Limit for one.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections at the same time. One more ends the oldest, so that silent ones keep no browser out.
const MAX_CONNECTIONS: usize = 32;

/// The answer of the person.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Brought {
    pub(super) issuer: String,
    /// `None` if the person has refused.
    pub(super) grant: Option<[u8; 32]>,
}

/// Waits for the browser that brings this state.
pub(super) async fn wait(listener: &TcpListener, state: &[u8; 32]) -> io::Result<Brought> {
    let (mut connections, mut open) = (JoinSet::new(), VecDeque::<AbortHandle>::new());
    let state = URL_SAFE_NO_PAD.encode(state);
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                let state = state.clone();
                open.retain(|connection| !connection.is_finished());
                if open.len() >= MAX_CONNECTIONS && let Some(oldest) = open.pop_front() {
                    oldest.abort();
                }
                open.push_back(connections.spawn(async move {
                    tokio::time::timeout(REQUEST_TIMEOUT, serve(stream, &state)).await.ok().flatten()
                }));
            }
            Some(done) = connections.join_next() => {
                if let Ok(Some(brought)) = done {
                    return Ok(brought);
                }
            }
        }
    }
}

async fn serve(mut stream: TcpStream, state: &str) -> Option<Brought> {
    let mut request = Vec::with_capacity(MAX_REQUEST);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let read =
            (&mut stream).take((MAX_REQUEST - request.len()) as u64).read_buf(&mut request).await.ok()?;
        if read == 0 {
            return None;
        }
    }
    let brought = brought(&request, state);
    let (status, text) = match &brought {
        Some(Brought { grant: Some(_), .. }) => {
            ("200 OK", "You are logged in. The VPN connects now: you can close this page.")
        }
        Some(_) => ("200 OK", "The login was refused. You can close this page."),
        None => ("404 Not Found", "There is nothing here."),
    };
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         Content-Security-Policy: default-src 'none'\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n\
         Connection: close\r\n\r\n{text}",
        text.len()
    );
    let _ = stream.write_all(response.as_bytes()).await;
    let _ = stream.shutdown().await;
    brought
}

/// The parameters of a request, if it has this state.
fn brought(request: &[u8], state: &str) -> Option<Brought> {
    let line = request.split(|byte| *byte == b'\r').next()?;
    let query = std::str::from_utf8(line).ok()?.strip_prefix("GET /?")?.strip_suffix(" HTTP/1.1")?;
    let [mut its_state, mut issuer, mut code, mut error] = [const { None }; 4];
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let place = match &*name {
            "state" => &mut its_state,
            "iss" => &mut issuer,
            "code" => &mut code,
            "error" => &mut error,
            _ => continue,
        };
        // One that comes twice is none.
        if place.replace(value.into_owned()).is_some() {
            return None;
        }
    }
    if its_state.as_deref() != Some(state) {
        return None;
    }
    let grant = match (code, error) {
        (Some(code), None) => Some(URL_SAFE_NO_PAD.decode(code).ok()?.try_into().ok()?),
        (None, Some(_)) => None,
        _ => return None,
    };
    Some(Brought { issuer: issuer?, grant })
}

/// The issuer and the grant that a request brings, for the fuzzer.
#[cfg(any(test, fuzzing))]
pub(crate) fn read(request: &[u8], state: &str) -> Option<(String, Option<[u8; 32]>)> {
    brought(request, state).map(|Brought { issuer, grant }| (issuer, grant))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: [u8; 32] = [3; 32];

    fn query() -> String {
        let (state, grant) = (URL_SAFE_NO_PAD.encode(STATE), URL_SAFE_NO_PAD.encode([5; 32]));
        format!("code={grant}&state={state}&iss=https%3A%2F%2Fa.example")
    }

    #[test]
    fn only_a_whole_answer_with_the_state_counts() {
        let state = URL_SAFE_NO_PAD.encode(STATE);
        let read = |line: &str| brought(format!("{line}\r\nHost: a\r\n\r\n").as_bytes(), &state);
        let good = Brought { issuer: "https://a.example".to_owned(), grant: Some([5; 32]) };
        assert_eq!(read(&format!("GET /?{} HTTP/1.1", query())), Some(good));
        let refused = format!("GET /?error=access_denied&state={state}&iss=b HTTP/1.1");
        assert_eq!(read(&refused), Some(Brought { issuer: "b".to_owned(), grant: None }));
        for wrong in [
            format!("POST /?{} HTTP/1.1", query()),
            format!("GET /x?{} HTTP/1.1", query()),
            format!("GET /?{}", query()),
            format!("GET /?{}&code=x HTTP/1.1", query()),
            format!("GET /?{}&error=x HTTP/1.1", query()),
            format!("GET /?{} HTTP/1.1", query().replace(&state, &URL_SAFE_NO_PAD.encode([4; 32]))),
            format!("GET /?{} HTTP/1.1", query().replace("code=", "code=AA")),
            format!("GET /?state={state}&iss=b HTTP/1.1"),
            "GET / HTTP/1.1".to_owned(),
            String::new(),
        ] {
            assert_eq!(read(&wrong), None, "{wrong}");
        }
    }

    #[tokio::test]
    async fn other_local_users_neither_end_nor_block_the_browser_callback() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let waiting = tokio::spawn(async move { wait(&listener, &STATE).await.unwrap() });
        let request = async |text: String| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(text.as_bytes()).await.unwrap();
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer).await;
            answer
        };
        let mut silent = Vec::new();
        for _ in 0..=MAX_CONNECTIONS {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let began = std::time::Instant::now();
        assert!(request("GET /favicon.ico HTTP/1.1\r\n\r\n".to_owned()).await.starts_with("HTTP/1.1 404"));
        assert!(began.elapsed() < REQUEST_TIMEOUT, "before the time of silent ones is over");
        assert_eq!(request("x".repeat(2 * MAX_REQUEST)).await, "");
        assert!(
            request("GET /?state=x&code=y HTTP/1.1\r\n\r\n".to_owned()).await.starts_with("HTTP/1.1 404")
        );
        let answer = request(format!("GET /?{} HTTP/1.1\r\n\r\n", query())).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("no-store"), "{answer}");
        assert_eq!(waiting.await.unwrap().grant, Some([5; 32]));
    }
}
