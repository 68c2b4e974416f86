//! The requests over HTTP/1.1 that open a stream for datagrams, to a proxy and to the gateway's
//! pages.

use std::io;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use zeroize::Zeroizing;

use crate::PROTOCOL;

/// Bytes of an answer's head.
const MAX_HEAD: usize = 8 << 10;

/// Returns the request to a proxy for a connection with `target`, as a user with a password
/// (`user:password`) if there is one.
#[must_use]
pub fn connect_request(target: &str, credentials: Option<&str>) -> Zeroizing<String> {
    let mut request = Zeroizing::new(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n"));
    if let Some(credentials) = credentials {
        let credentials = Zeroizing::new(BASE64_STANDARD.encode(credentials.as_bytes()));
        request.push_str("Proxy-Authorization: Basic ");
        request.push_str(&credentials);
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    request
}

/// Returns the request to the pages of `host` for the protocol of this crate.
#[must_use]
pub fn upgrade_request(host: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\r\n")
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its first line, as it came.
    pub line: String,
    /// Bytes that were read behind its head.
    pub rest: Vec<u8>,
}

impl Answer {
    /// Returns its number, if it has one.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        self.line.split(' ').nth(1)?.parse().ok()
    }
}

/// Sends a request and reads the head of its answer.
///
/// # Errors
/// If the stream fails or ends, or the head is too long.
pub async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str) -> io::Result<Answer> {
    const END: &[u8] = b"\r\n\r\n";
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    loop {
        if let Some(at) = head.windows(END.len()).position(|bytes| bytes == END) {
            let rest = head.split_off(at + END.len());
            let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
            return Ok(Answer { line: String::from_utf8_lossy(line).into_owned(), rest });
        }
        if head.len() > MAX_HEAD {
            return Err(io::Error::other("its answer is too long"));
        }
        if stream.read_buf(&mut head).await? == 0 {
            return Err(io::Error::other("it hangs up"));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[tokio::test]
    async fn an_answer_is_read_to_the_end_of_its_head_and_no_further_than_a_limit() {
        let (mut here, mut there) = duplex(64 << 10);
        there.write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n\0\x01a").await.unwrap();
        let answer = ask(&mut here, &upgrade_request("vpn.example")).await.unwrap();
        assert_eq!((answer.status(), &answer.rest[..]), (Some(101), &b"\0\x01a"[..]));
        assert_eq!(answer.line, "HTTP/1.1 101 Switching Protocols");
        there.write_all(&[b'x'; MAX_HEAD + 1]).await.unwrap();
        assert!(ask(&mut here, "").await.unwrap_err().to_string().contains("too long"));
        let mut asked = String::new();
        there.shutdown().await.unwrap();
        while here.read(&mut [0; 1024]).await.unwrap() > 0 {}
        assert!(ask(&mut here, "").await.unwrap_err().to_string().contains("hangs up"));
        drop(here);
        there.read_to_string(&mut asked).await.unwrap();
        assert!(
            asked.contains("Host: vpn.example\r\n") && asked.ends_with("Upgrade: UoTLV/1\r\n\r\n"),
            "{asked}"
        );
    }

    #[test]
    fn only_an_answer_of_http_has_a_number() {
        let status = |line: &str| Answer { line: line.to_owned(), rest: Vec::new() }.status();
        assert_eq!(status("HTTP/1.0 200 OK"), Some(200));
        for none in ["", "HTTP/1.1", "HTTP/1.1 x", "SSH-2.0-x"] {
            assert_eq!(status(none), None, "{none:?}");
        }
    }

    #[test]
    fn a_proxy_gets_a_password_only_if_there_is_one() {
        let request = connect_request("vpn.example:443", None);
        assert_eq!(*request, "CONNECT vpn.example:443 HTTP/1.1\r\nHost: vpn.example:443\r\n\r\n");
        let request = connect_request("vpn.example:443", Some("ann:secret"));
        assert!(request.ends_with("\r\nProxy-Authorization: Basic YW5uOnNlY3JldA==\r\n\r\n"), "{}", *request);
    }
}
