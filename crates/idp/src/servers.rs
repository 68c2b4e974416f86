//! The servers of one source: which is asked first, and which after it, and at which of its
//! addresses.
//!
//! INVARIANT: each is asked once for a request; one that has failed comes after those that have
//! not, for a while.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use vpnd_config::source::SourceServer;
use vpnd_sys::address_race;
use vpnd_sys::log_limit::LogLimit;

/// Time for which a server that has failed is asked last.
const DOWN: Duration = Duration::from_secs(30);

/// Lines about servers that have failed: anybody can have them asked.
static FAILURES: LogLimit = LogLimit::new(100, Duration::from_secs(1));

/// A server has given no answer that counts, and why.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServerError {
    #[error("its name can't be looked up: {0}")]
    Name(io::Error),
    #[error("it can't be reached: {0}")]
    Connect(io::Error),
    #[error("no TLS: {0}")]
    Tls(io::Error),
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Malformed(#[from] super::ldap::Malformed),
    #[error(transparent)]
    Memory(#[from] super::reply_memory::NoMemory),
    #[error("no answer in time")]
    Slow,
    #[error("{0}")]
    Answer(String),
}

pub(super) struct Servers(Vec<Server>);

pub(super) struct Server {
    address: SourceServer,
    failed: Mutex<Option<Instant>>,
}

impl Servers {
    pub(super) fn new(servers: &[SourceServer]) -> Self {
        let server = |address: &SourceServer| Server { address: address.clone(), failed: Mutex::default() };
        Self(servers.iter().map(server).collect())
    }

    /// The one with this name, as it was in a challenge.
    pub(super) fn named(&self, name: &str) -> Option<&Server> {
        self.0.iter().find(|server| server.address.to_string() == name)
    }

    /// All of them, those that have failed lately last.
    pub(super) fn in_order(&self) -> Vec<&Server> {
        let mut servers: Vec<&Server> = self.0.iter().collect();
        servers.sort_by_key(|server| server.has_failed());
        servers
    }
}

impl ServerError {
    /// Whether the server can't have the request, so that no person was asked to approve it.
    pub(super) fn is_before_request(&self) -> bool {
        matches!(self, Self::Name(_) | Self::Connect(_) | Self::Tls(_))
    }
}

impl Server {
    pub(super) fn address(&self) -> &SourceServer {
        &self.address
    }

    /// Notes whether it has answered. Without an answer: a line about that.
    pub(super) fn noted<T>(&self, answer: Result<T, ServerError>) -> Result<T, String> {
        self.set_failed(answer.is_err().then(Instant::now));
        answer.map_err(|error| {
            let reason = format!("{}: {error}", self.address);
            if FAILURES.admits() {
                tracing::warn!(%reason, "a server of a source has failed");
            }
            reason
        })
    }

    fn has_failed(&self) -> bool {
        let failed = *self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.is_some_and(|at| at.elapsed() < DOWN)
    }

    fn set_failed(&self, at: Option<Instant>) {
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }
}

/// The address of each server that has answered last. Others are tried if it fails.
#[derive(Default)]
pub(super) struct Answered(Mutex<HashMap<String, SocketAddr>>);

/// An address that is being asked. Unless it answers, it is not preferred any more.
pub(super) struct Asked<'a> {
    answered: &'a Answered,
    server: String,
    address: SocketAddr,
    has_answered: bool,
}

impl Answered {
    /// The addresses of a server, that which has answered last first; and whether there is one.
    pub(super) async fn look_up(
        &self,
        server: &SourceServer,
    ) -> Result<(Vec<SocketAddr>, bool), ServerError> {
        let found = address_race::look_up(&server.host, server.port).await;
        let mut addresses = found.map_err(ServerError::Name)?;
        let last = self.lock().get(&server.to_string()).copied();
        let place = addresses.iter().position(|address| Some(*address) == last);
        if let Some(place) = place {
            addresses[..=place].rotate_right(1);
        }
        Ok((addresses, place.is_some()))
    }

    /// Connects to the first address of a server at which `secure` succeeds: one that accepts
    /// connections and says nothing must not keep logins from the others.
    pub(super) async fn connect<T, A>(
        &self,
        server: &SourceServer,
        secure: impl Fn(TcpStream) -> A,
    ) -> Result<T, ServerError>
    where
        A: Future<Output = Result<T, ServerError>>,
    {
        let (addresses, _) = self.look_up(server).await?;
        let (address, stream) = first_secure(addresses, secure).await?;
        self.asking(server, address).has_answered();
        Ok(stream)
    }

    pub(super) fn asking(&self, server: &SourceServer, address: SocketAddr) -> Asked<'_> {
        Asked { answered: self, server: server.to_string(), address, has_answered: false }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, SocketAddr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn first_secure<T, A>(
    addresses: Vec<SocketAddr>,
    secure: impl Fn(TcpStream) -> A,
) -> Result<(SocketAddr, T), ServerError>
where
    A: Future<Output = Result<T, ServerError>>,
{
    let attempt = async |address| {
        let stream = address_race::connect(vec![address]).await.map_err(ServerError::Connect)?;
        Ok((address, secure(stream).await?))
    };
    let nothing = None::<std::future::Ready<Result<Vec<SocketAddr>, ServerError>>>;
    let outcome = address_race::race(addresses, nothing, Duration::ZERO, attempt).await;
    outcome.map_err(|error| error.unwrap_or(ServerError::Slow))
}

impl Asked<'_> {
    pub(super) fn has_answered(mut self) {
        self.has_answered = true;
        let server = std::mem::take(&mut self.server);
        self.answered.lock().insert(server, self.address);
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut answered = self.answered.lock();
        if !self.has_answered && answered.get(&self.server) == Some(&self.address) {
            answered.remove(&self.server);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use vpnd_config::source::Scheme;

    use super::*;

    #[tokio::test]
    async fn the_address_that_answered_last_is_first_until_it_fails() {
        let server = SourceServer { host: "localhost".to_owned(), port: 1, scheme: Scheme::Ldaps };
        let answered = Answered::default();
        let (addresses, is_known) = answered.look_up(&server).await.unwrap();
        assert!(!is_known);
        let last = *addresses.last().unwrap();
        answered.asking(&server, last).has_answered();
        let (again, is_known) = answered.look_up(&server).await.unwrap();
        assert!(is_known && again[0] == last && again.len() == addresses.len(), "{again:?}");
        drop(answered.asking(&server, SocketAddr::from(([192, 0, 2, 1], 1))));
        assert!(answered.look_up(&server).await.unwrap().1, "another one failed");
        drop(answered.asking(&server, last));
        assert!(!answered.look_up(&server).await.unwrap().1);
    }

    #[tokio::test]
    async fn an_address_that_accepts_and_stays_silent_loses() {
        // The kernel accepts for both; the first sends nothing.
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let speaking = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = vec![silent.local_addr().unwrap(), speaking.local_addr().unwrap()];
        let server = tokio::spawn(async move {
            let (mut stream, _) = speaking.accept().await.unwrap();
            stream.write_all(b"!").await.unwrap();
        });
        let secure = async |mut stream: TcpStream| Ok(stream.read_u8().await?);
        let (address, greeting) = first_secure(addresses.clone(), secure).await.unwrap();
        assert_eq!((address, greeting), (addresses[1], b'!'));
        server.await.unwrap();
    }

    #[test]
    fn a_server_that_failed_is_tried_last() {
        let server = |port| SourceServer { host: "192.0.2.1".to_owned(), port, scheme: Scheme::Ldaps };
        let servers = Servers::new(&[server(1), server(2), server(3)]);
        let order = || servers.in_order().iter().map(|server| server.address.port).collect::<Vec<_>>();
        assert_eq!(order(), [1, 2, 3]);
        let reason = servers.0[0].noted::<()>(Err(ServerError::Slow)).unwrap_err();
        assert_eq!((reason.as_str(), order()), ("192.0.2.1:1: no answer in time", vec![2, 3, 1]));
        servers.0[0].noted(Ok(())).unwrap();
        assert_eq!(order(), [1, 2, 3]);
        *servers.0[0].failed.lock().unwrap() = Instant::now().checked_sub(DOWN);
        assert_eq!(order(), [1, 2, 3], "it is tried again after a while");
    }
}
