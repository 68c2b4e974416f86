//! Connections of browsers: TLS and HTTP/1.1, within bounds.
//!
//! Invariants: the number of connections is bounded, and networks share it fairly: where there is
//! no room, the network that holds many loses the oldest to a newcomer. Each network has a rate of
//! them, since a handshake costs a signature, and one of requests. Every step has a time by which
//! it is over, and a connection has one as a whole, so a slow browser holds nothing permanently; a
//! request that is under way then is answered. A request has a largest head and body.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tower_service::Service as _;

use crate::browser::Peer;
use crate::places::Places;
use crate::refusals::{self, Reason};
use crate::relays::Relays;
use crate::site::headers;
use vpnd_pki::challenge::ALPN as CHALLENGE;
use vpnd_proto::admission::Source;
use vpnd_proto::admission::network_rates::NetworkRates;
use vpnd_sys::clock::now;

/// Connections of one host each second, and six times as many at once; a browser takes up to six,
/// and many people may share an address.
const CONNECTIONS_PER_S: u64 = 10;
/// Requests of one host each second, and six times as many at once: a page takes up to four.
const REQUESTS_PER_S: u64 = 200;
/// Connections at once.
const MAX_CONNECTIONS: usize = 512;
/// A connection that is so old makes room for one of a network that has as many.
const DISPLACE_AFTER: Duration = Duration::from_secs(10);
const TLS_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit for the head of a request, the wait for it included.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// Limit for a request from its head to its answer: the slowest source of identities takes less.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Time after which a connection takes no further request.
const LIFETIME: Duration = Duration::from_secs(120);
/// Bytes of a request's head; a browser sends a tenth of that.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// To whom sends more requests than that.
const TOO_MANY: &str = "Your network sends too many requests. Wait a few seconds.\n\
                        Ihr Netz sendet zu viele Anfragen. Warten Sie einige Sekunden.\n";
/// Pause where the system has no descriptor or memory left for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The socket, and what it serves.
pub(crate) struct Listener {
    socket: TcpListener,
    tls: TlsAcceptor,
    rates: Mutex<NetworkRates>,
    places: Places,
    service: Arc<Service>,
}

/// The service of all connections.
struct Service {
    router: Router,
    relays: Arc<Relays>,
    rates: Mutex<NetworkRates>,
}

impl Listener {
    pub(crate) fn new(
        socket: OwnedFd,
        tls: Arc<ServerConfig>,
        router: Router,
        relays: Arc<Relays>,
    ) -> io::Result<Self> {
        let socket = StdListener::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: TcpListener::from_std(socket)?,
            tls: TlsAcceptor::from(tls),
            rates: Mutex::new(NetworkRates::new(CONNECTIONS_PER_S, rand::random())),
            places: Places::new(MAX_CONNECTIONS, DISPLACE_AFTER),
            service: Arc::new(Service::new(router, relays)),
        })
    }

    /// Serves connections; never returns.
    pub(crate) async fn serve(self) -> Infallible {
        loop {
            match self.socket.accept().await {
                Ok((stream, peer)) => {
                    self.begin(stream, SocketAddr::new(peer.ip().to_canonical(), peer.port()))
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection can't be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Serves a connection if there is a place for it.
    fn begin(&self, stream: TcpStream, peer: SocketAddr) {
        let source = Source::from(peer.ip());
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        if !rates.take(now(), source) {
            return refusals::count(Reason::Rate);
        }
        let Some(place) = self.places.take(source) else { return refusals::count(Reason::Place) };
        let (tls, service) = (self.tls.clone(), Arc::clone(&self.service));
        place.hold(async move {
            serve(stream, peer, tls, service).await;
            tracing::trace!(%peer, "a connection of a browser has ended");
        });
    }
}

async fn serve(stream: TcpStream, peer: SocketAddr, tls: TlsAcceptor, service: Arc<Service>) {
    // Pages are small, and are sent as a whole.
    let _ = stream.set_nodelay(true);
    let Ok(Ok(stream)) = tokio::time::timeout(TLS_TIMEOUT, tls.accept(stream)).await else { return };
    // An authority's handshake is the answer to it.
    if stream.get_ref().1.alpn_protocol() == Some(CHALLENGE) {
        return;
    }
    converse(stream, peer, service).await;
}

/// Answers the requests of one connection.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: SocketAddr,
    service: Arc<Service>,
) {
    let service = service_fn(move |request| {
        let service = Arc::clone(&service);
        async move { service.answer(peer, request).await }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let mut ended = tokio::time::timeout(LIFETIME, connection.as_mut()).await;
    if ended.is_err() {
        connection.as_mut().graceful_shutdown();
        ended = tokio::time::timeout(HEAD_TIMEOUT + REQUEST_TIMEOUT, connection).await;
    }
    if let Ok(Err(error)) = ended {
        tracing::trace!(%peer, %error, "a connection of a browser broke");
    }
}

impl Service {
    fn new(router: Router, relays: Arc<Relays>) -> Self {
        Self { router, relays, rates: Mutex::new(NetworkRates::new(REQUESTS_PER_S, rand::random())) }
    }

    async fn answer(
        &self,
        peer: SocketAddr,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        if self.relays.is_wanted(&request) {
            return Ok(self.relays.answer(peer, request).await);
        }
        if !self.is_in_rate(peer) {
            refusals::count(Reason::Request);
            return Ok(too_many().await);
        }
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(Peer(peer.ip()));
        match tokio::time::timeout(REQUEST_TIMEOUT, self.router.clone().call(request)).await {
            Ok(answered) => answered,
            Err(_) => {
                let mut response = Response::new(Body::empty());
                *response.status_mut() = StatusCode::REQUEST_TIMEOUT;
                Ok(headers::complete(response).await)
            }
        }
    }

    fn is_in_rate(&self, peer: SocketAddr) -> bool {
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        rates.take(now(), Source::from(peer.ip()))
    }
}

/// The last answer of its connection, so that the next request costs its host one of these as well.
async fn too_many() -> Response<Body> {
    let mut response = Response::new(Body::from(TOO_MANY));
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    let headers = response.headers_mut();
    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers::complete(response).await
}

#[cfg(test)]
mod tests;
