//! The servers of one source: which is asked first, and which after it.
//!
//! INVARIANT: each is asked once for a request; one that has failed comes after those that have not, for a while.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use crate::config::source::SourceServer;

/// Time for which a server that has failed is asked last.
const DOWN: Duration = Duration::from_secs(30);
/// Addresses of one server that are tried.
const MAX_ADDRESSES: usize = 4;

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
            let why = format!("{}: {error}", self.address);
            tracing::warn!(%why, "a server of a source has failed");
            why
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

/// The addresses of a server.
pub(super) async fn look_up(server: &SourceServer) -> Result<Vec<SocketAddr>, ServerError> {
    if let Ok(address) = server.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, server.port)]);
    }
    let found = tokio::net::lookup_host((server.host.as_str(), server.port)).await;
    Ok(found.map_err(ServerError::Name)?.take(MAX_ADDRESSES).collect())
}

/// Connects to a server.
pub(super) async fn connect(server: &SourceServer) -> Result<TcpStream, ServerError> {
    let mut last = io::Error::other("its name has no address");
    for address in look_up(server).await? {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(ServerError::Connect(last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::source::Scheme;

    #[test]
    fn a_server_that_fails_comes_last() {
        let server = |port| SourceServer { host: "192.0.2.1".to_owned(), port, scheme: Scheme::Ldaps };
        let servers = Servers::new(&[server(1), server(2), server(3)]);
        let order = || servers.in_order().iter().map(|server| server.address.port).collect::<Vec<_>>();
        assert_eq!(order(), [1, 2, 3]);
        let why = servers.0[0].noted::<()>(Err(ServerError::Slow)).unwrap_err();
        assert_eq!((why.as_str(), order()), ("192.0.2.1:1: no answer in time", vec![2, 3, 1]));
        servers.0[0].noted(Ok(())).unwrap();
        assert_eq!(order(), [1, 2, 3]);
        *servers.0[0].failed.lock().unwrap() = Instant::now().checked_sub(DOWN);
        assert_eq!(order(), [1, 2, 3], "it is tried again after a while");
    }
}
