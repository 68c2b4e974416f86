//! A connection to a directory: TCP, TLS, and one request after the other.
//!
//! Invariants: no request but StartTLS is sent without TLS, and nothing that came before TLS counts
//! after it; a reply counts only with the number of the request under way; a connection takes in
//! [`MAX_RECEIVED`] bytes at most, and has no memory for replies but what it holds of its source's.

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use zeroize::Zeroizing;

use super::message::{self, Entry, Outcome, Reply, SUCCESS, Search};
use crate::ldap::ber::Malformed;
use crate::reply_memory::{Held, ReplyMemory};
use crate::servers::{Answered, ServerError};
use vpnd_config::source::{Scheme, SourceServer};
use vpnd_config::source_tls::SourceTls;

/// Bytes that a server may send on one connection.
const MAX_RECEIVED: usize = 8 << 20;
/// Bytes of the entries of one search that are kept.
const MAX_FOUND: usize = 256 << 10;
const CHUNK: usize = 16 << 10;

pub(super) struct Connection<S = TlsStream<TcpStream>> {
    stream: S,
    received: Zeroizing<Vec<u8>>,
    total: usize,
    last_id: u32,
    held: Held,
    /// Bytes of entries, for as long as the connection is there: then they have been looked at.
    kept: usize,
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
        tls: &SourceTls,
        memory: &ReplyMemory,
    ) -> Result<Self, ServerError> {
        let secure = async |tcp| {
            let tcp = if server.scheme == Scheme::Ldap { start_tls(tcp, memory).await? } else { tcp };
            tls.secure(tcp, &server.host).await.map_err(ServerError::Tls)
        };
        Ok(Self::over(answered.connect(server, secure).await?, memory))
    }
}

async fn start_tls<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    memory: &ReplyMemory,
) -> Result<S, ServerError> {
    let mut plain = Connection::over(stream, memory);
    let id = plain.next_id();
    plain.send(&message::start_tls(id)).await?;
    match plain.reply(id, &[]).await? {
        Reply::Extended(Outcome { code: SUCCESS, .. }) => {}
        _ => return Err(ServerError::Answer("the server refuses StartTLS".to_owned())),
    }
    // An attacker on the path could have put replies there, which would count as if they had come
    // over TLS.
    if !plain.received.is_empty() {
        return Err(Malformed("bytes before TLS").into());
    }
    Ok(plain.stream)
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    fn over(stream: S, memory: &ReplyMemory) -> Self {
        let held = memory.hold_nothing();
        Self { stream, received: Zeroizing::default(), total: 0, last_id: 0, held, kept: 0 }
    }

    /// Binds with name and password. An empty password is refused here: the server would let it in
    /// as anonymous.
    pub(super) async fn bind(&mut self, dn: &str, password: &str) -> Result<Outcome, ServerError> {
        if password.is_empty() || dn.is_empty() {
            return Ok(Outcome { code: message::INVALID_CREDENTIALS, text: "no password".to_owned() });
        }
        let id = self.next_id();
        self.send(&message::bind(id, dn, password)).await?;
        match self.reply(id, &[]).await? {
            Reply::Bind(outcome) => Ok(outcome),
            _ => Err(Malformed("another reply than that to a bind").into()),
        }
    }

    pub(super) async fn search(&mut self, search: &Search<'_>) -> Result<Found, ServerError> {
        let id = self.next_id();
        self.send(&message::search(id, search)).await?;
        let mut entries = Vec::new();
        let before = self.kept;
        loop {
            match self.reply(id, search.attributes).await? {
                // More than it was to send are as many as one more.
                Reply::Entry(entry) if entries.len() <= search.size_limit as usize => {
                    self.kept += entry.len();
                    if self.kept - before > MAX_FOUND {
                        return Err(Malformed("entries that are too long").into());
                    }
                    self.hold()?;
                    entries.push(entry);
                }
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

    async fn reply(&mut self, id: u32, attributes: &[&str]) -> Result<Reply, ServerError> {
        let len = loop {
            match message::len(&self.received)? {
                Some(len) if len <= self.received.len() => break len,
                len => self.receive(len.map_or(CHUNK, |len| len - self.received.len())).await?,
            }
        };
        let (of, reply) = message::decode(&self.received[..len], attributes)?;
        self.received.drain(..len);
        if self.received.capacity() > 2 * CHUNK {
            self.received.shrink_to(CHUNK);
            self.hold()?;
        }
        if of != id {
            return Err(Malformed("an unexpected reply").into());
        }
        Ok(reply)
    }

    /// Receives this number of bytes at most.
    async fn receive(&mut self, most: usize) -> Result<(), ServerError> {
        if self.total >= MAX_RECEIVED {
            return Err(Malformed("too many bytes").into());
        }
        if self.received.capacity() == self.received.len() {
            // By a half, for a long message is not to be copied each time.
            let more = most.min(CHUNK.max(self.received.len() / 2));
            self.held.set(self.kept + self.received.len() + more)?;
            self.received.reserve_exact(more);
        }
        let count = (&mut self.stream).take(most as u64).read_buf(&mut *self.received).await?;
        self.total += count;
        if count == 0 {
            Err(ServerError::Answer("the server has closed the connection".to_owned()))
        } else {
            Ok(())
        }
    }

    /// Holds the memory that it has.
    fn hold(&mut self) -> Result<(), ServerError> {
        Ok(self.held.set(self.kept + self.received.capacity())?)
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
        Connection::over(ours, &ReplyMemory::default())
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
    async fn plaintext_before_starttls_is_discarded() {
        let started =
            |rest: &[u8]| [&[0x30, 12, 2, 1, 1, 0x78, 7, 0x0A, 1, 0, 4, 0, 4, 0][..], rest].concat();
        let memory = ReplyMemory::default();
        assert!(start_tls(lying(&started(&[])).await.stream, &memory).await.is_ok());
        assert!(start_tls(lying(&started(&bound(1))).await.stream, &memory).await.is_err());
    }

    #[tokio::test]
    async fn endless_messages_are_cut_off() {
        let long = [0x30, 0x84, 0x7F, 0xFF, 0xFF, 0xFF];
        assert!(matches!(lying(&long).await.bind("cn=a", "x").await, Err(ServerError::Malformed(_))));
        // References to other servers without end.
        let reference = [&[0x30, 0x82, 0x10, 0x08, 2, 1, 1, 0x73, 0x82, 0x10, 0x01][..], &[0; 4097]].concat();
        let cut = flooding(reference, &ReplyMemory::default()).search(&SEARCH).await;
        assert!(matches!(cut, Err(ServerError::Malformed(_))), "{cut:?}");
    }

    const SEARCH: Search<'_> = Search {
        base: "",
        scope: message::Scope::Subtree,
        size_limit: 200,
        time_limit_s: 1,
        filter: &[0x87, 1, b'a'],
        attributes: &["cn"],
    };

    /// A server that sends these bytes again and again.
    fn flooding(bytes: Vec<u8>, memory: &ReplyMemory) -> Connection<tokio::io::DuplexStream> {
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        tokio::spawn(async move { while theirs.write_all(&bytes).await.is_ok() {} });
        Connection::over(ours, memory)
    }

    #[tokio::test]
    async fn entries_are_kept_up_to_a_limit() {
        let mut entry = message::tests::entry_with("cn", &[b'x'; 50_000], 1).to_vec();
        let found = flooding(entry.clone(), &ReplyMemory::default()).search(&SEARCH).await;
        assert!(
            matches!(found, Err(ServerError::Malformed(reason)) if reason.to_string().contains("too long"))
        );
        // Without what was asked for there is nothing to keep.
        entry.truncate(message::len(&entry).unwrap().unwrap());
        let connection = &mut flooding(entry, &ReplyMemory::default());
        let found = connection.search(&Search { attributes: &["sn"], ..SEARCH }).await;
        assert!(found.is_err() && connection.kept < 201 * 200, "{}", connection.kept);
    }

    #[tokio::test]
    async fn connections_of_a_source_share_its_memory() {
        let memory = ReplyMemory::default();
        // Each begins a message as long as one may be, and does not end it.
        let start = [0x30, 0x84, 0, 0x0F, 0xFF, 0x00];
        let (mut waiting, mut refused) = (Vec::new(), 0);
        for _ in 0..30 {
            let (ours, mut theirs) = tokio::io::duplex(2 << 20);
            theirs.write_all(&[&start[..], &vec![0; 0xF_FE00]].concat()).await.unwrap();
            let mut connection = Connection::over(ours, &memory);
            let received = std::time::Duration::from_millis(200);
            match tokio::time::timeout(received, connection.reply(1, &[])).await {
                Ok(Err(ServerError::Memory(_))) => refused += 1,
                Ok(other) => panic!("{other:?}"),
                Err(_) => waiting.push((connection, theirs)),
            }
        }
        assert!((1..=16).contains(&waiting.len()) && refused >= 14, "{} wait", waiting.len());
        waiting.clear();
        assert!(memory.hold_nothing().set(16 << 20).is_ok(), "what was held is given back");
    }
}
