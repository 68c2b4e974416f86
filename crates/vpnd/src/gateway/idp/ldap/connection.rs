//! A connection to a directory: TCP, TLS, and one request after the other.
//!
//! Invariants: no request but StartTLS is sent without TLS, and nothing that came before TLS counts after it; a reply counts only
//! with the number of the request under way; a connection takes in [`MAX_RECEIVED`] bytes at most.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use zeroize::Zeroizing;

use super::message::{self, Entry, Outcome, Reply, SUCCESS, Search};
use crate::config::source::{Scheme, SourceServer};
use crate::gateway::idp::ldap::ber::Malformed;
use crate::gateway::idp::servers::{Answered, ServerError};
use crate::source_tls::secure;

/// Bytes that a server may send on one connection.
const MAX_RECEIVED: usize = 8 << 20;
const CHUNK: usize = 16 << 10;

pub(super) struct Connection<S = TlsStream<TcpStream>> {
    stream: S,
    received: Zeroizing<Vec<u8>>,
    total: usize,
    last_id: u32,
}

/// The entries that a search has found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) entries: Vec<Entry>,
    pub(super) code: u32,
}

impl Connection {
    /// Connects to a server, whose certificate must be right for its name.
    pub(super) async fn open(
        answered: &Answered,
        server: &SourceServer,
        tls: Arc<rustls::ClientConfig>,
    ) -> Result<Self, ServerError> {
        let tcp = answered.connect(server).await?;
        let tcp = if server.scheme == Scheme::Ldap { start_tls(tcp).await? } else { tcp };
        Ok(Self::over(secure(tcp, &server.host, tls).await.map_err(ServerError::Tls)?))
    }
}

async fn start_tls<S: AsyncRead + AsyncWrite + Unpin>(stream: S) -> Result<S, ServerError> {
    let mut plain = Connection::over(stream);
    let id = plain.next_id();
    plain.send(&message::start_tls(id)).await?;
    match plain.reply(id).await? {
        Reply::Extended(Outcome { code: SUCCESS, .. }) => {}
        _ => return Err(ServerError::Answer("the server refuses StartTLS".to_owned())),
    }
    // Somebody on the way could have put replies there, which would count as if they had come over TLS.
    if !plain.received.is_empty() {
        return Err(Malformed("bytes before TLS").into());
    }
    Ok(plain.stream)
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    fn over(stream: S) -> Self {
        Self { stream, received: Zeroizing::default(), total: 0, last_id: 0 }
    }

    /// Binds with name and password. An empty password is refused here: the server would let it in as anonymous.
    pub(super) async fn bind(&mut self, dn: &str, password: &str) -> Result<Outcome, ServerError> {
        if password.is_empty() || dn.is_empty() {
            return Ok(Outcome { code: message::INVALID_CREDENTIALS, text: "no password".to_owned() });
        }
        let id = self.next_id();
        self.send(&message::bind(id, dn, password)).await?;
        match self.reply(id).await? {
            Reply::Bind(outcome) => Ok(outcome),
            _ => Err(Malformed("another reply than that to a bind").into()),
        }
    }

    pub(super) async fn search(&mut self, search: &Search<'_>) -> Result<Found, ServerError> {
        let id = self.next_id();
        self.send(&message::search(id, search)).await?;
        let mut entries = Vec::new();
        loop {
            match self.reply(id).await? {
                // More than it was to send are as many as one more.
                Reply::Entry(entry) if entries.len() <= search.size_limit as usize => entries.push(entry),
                Reply::Entry(_) | Reply::Reference | Reply::Other => {}
                Reply::Done(outcome) => return Ok(Found { entries, code: outcome.code }),
                Reply::Bind(_) | Reply::Extended(_) => {
                    return Err(Malformed("another reply than that to a search").into());
                }
            }
        }
    }

    fn next_id(&mut self) -> u32 {
        self.last_id += 1;
        self.last_id
    }

    async fn send(&mut self, message: &[u8]) -> Result<(), ServerError> {
        self.stream.write_all(message).await?;
        Ok(self.stream.flush().await?)
    }

    async fn reply(&mut self, id: u32) -> Result<Reply, ServerError> {
        let len = loop {
            match message::len(&self.received)? {
                Some(len) if len <= self.received.len() => break len,
                _ => self.receive().await?,
            }
        };
        let (of, reply) = message::decode(&self.received[..len])?;
        self.received.drain(..len);
        if of != id {
            return Err(Malformed("a reply that nobody waits for").into());
        }
        Ok(reply)
    }

    async fn receive(&mut self) -> Result<(), ServerError> {
        if self.total >= MAX_RECEIVED {
            return Err(Malformed("too many bytes").into());
        }
        self.received.reserve(CHUNK);
        let count = self.stream.read_buf(&mut *self.received).await?;
        self.total += count;
        if count == 0 {
            Err(ServerError::Answer("the server has closed the connection".to_owned()))
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends these bytes, whatever it is sent.
    async fn lying(bytes: &[u8]) -> Connection<tokio::io::DuplexStream> {
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        theirs.write_all(bytes).await.unwrap();
        let (mut read, write) = tokio::io::split(theirs);
        tokio::spawn(async move {
            let _ = tokio::io::copy(&mut read, &mut tokio::io::sink()).await;
            drop(write);
        });
        Connection::over(ours)
    }

    /// Success for the bind of this number.
    fn bound(id: u8) -> [u8; 14] {
        [0x30, 12, 2, 1, id, 0x61, 7, 0x0A, 1, 0, 4, 0, 4, 0]
    }

    #[tokio::test]
    async fn a_reply_to_something_else_does_not_count() {
        let outcome = lying(&bound(1)).await.bind("cn=a", "right").await.unwrap();
        assert_eq!(outcome.code, SUCCESS);
        for id in [0, 2, 77] {
            assert!(lying(&bound(id)).await.bind("cn=a", "right").await.is_err(), "{id}");
        }
        let mut done = bound(1);
        done[5] = 0x65;
        assert!(lying(&done).await.bind("cn=a", "right").await.is_err(), "the end of a search");
    }

    #[tokio::test]
    async fn without_a_password_nothing_is_sent() {
        let outcome = lying(&bound(1)).await.bind("cn=a", "").await.unwrap();
        assert_eq!(outcome.code, message::INVALID_CREDENTIALS);
        let outcome = lying(&bound(1)).await.bind("", "right").await.unwrap();
        assert_eq!(outcome.code, message::INVALID_CREDENTIALS);
    }

    #[tokio::test]
    async fn what_came_before_tls_does_not_count_after_it() {
        let started =
            |rest: &[u8]| [&[0x30, 12, 2, 1, 1, 0x78, 7, 0x0A, 1, 0, 4, 0, 4, 0][..], rest].concat();
        assert!(start_tls(lying(&started(&[])).await.stream).await.is_ok());
        assert!(start_tls(lying(&started(&bound(1))).await.stream).await.is_err());
    }

    #[tokio::test]
    async fn endless_messages_are_cut_off() {
        let long = [0x30, 0x84, 0x7F, 0xFF, 0xFF, 0xFF];
        assert!(matches!(lying(&long).await.bind("cn=a", "x").await, Err(ServerError::Malformed(_))));
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        tokio::spawn(async move {
            // References to other servers, for ever.
            let reference =
                [&[0x30, 0x82, 0x10, 0x08, 2, 1, 1, 0x73, 0x82, 0x10, 0x01][..], &[0; 4097]].concat();
            while theirs.write_all(&reference).await.is_ok() {}
        });
        let nobody = Search {
            base: "",
            scope: message::Scope::Base,
            size_limit: 1,
            time_limit_s: 1,
            filter: &[0x87, 1, b'a'],
            attributes: &[],
        };
        let cut = Connection::over(ours).search(&nobody).await;
        assert!(matches!(cut, Err(ServerError::Malformed(_))), "{cut:?}");
    }
}
