//! Connections of browsers: TLS and HTTP/1.1, within bounds.
//!
//! Invariants: the number of connections is bounded, and networks share it fairly: where there is
//! no room, whoever holds many loses the oldest to a newcomer. Each network has a rate of them, since
//! a handshake costs a signature. Every step has a time by which it is over, and a connection has
//! one as a whole, so a slow browser holds nothing for ever; a request that is under way then is
//! answered. A request has a largest head and body.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tower_service::Service as _;

use crate::browser::Peer;
use crate::places::Places;
use crate::relays::Relays;
use crate::site::headers;
use vpnd_pki::challenge::ALPN as CHALLENGE;
use vpnd_proto::admission::Source;
use vpnd_proto::admission::network_rates::NetworkRates;
use vpnd_sys::clock::now;

/// Connections of one host each second, and six times as many at once; a browser takes up to six,
/// and many people may share an address.
const CONNECTIONS_PER_S: u64 = 10;
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
/// Pause where the system has no descriptor or memory left for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The socket, and what it serves.
pub(crate) struct Listener {
    socket: TcpListener,
    tls: TlsAcceptor,
    router: Router,
    rates: Mutex<NetworkRates>,
    places: Places,
    relays: Arc<Relays>,
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
            router,
            rates: Mutex::new(NetworkRates::new(CONNECTIONS_PER_S, rand::random())),
            places: Places::new(MAX_CONNECTIONS, DISPLACE_AFTER),
            relays,
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
            return;
        }
        let Some(place) = self.places.take(source) else { return };
        let (tls, router, relays) = (self.tls.clone(), self.router.clone(), Arc::clone(&self.relays));
        place.hold(async move {
            serve(stream, peer, tls, router, relays).await;
            tracing::trace!(%peer, "a connection of a browser has ended");
        });
    }
}

async fn serve(stream: TcpStream, peer: SocketAddr, tls: TlsAcceptor, router: Router, relays: Arc<Relays>) {
    // Pages are small, and are sent as a whole.
    let _ = stream.set_nodelay(true);
    let Ok(Ok(stream)) = tokio::time::timeout(TLS_TIMEOUT, tls.accept(stream)).await else { return };
    // An authority's handshake is the answer to it.
    if stream.get_ref().1.alpn_protocol() == Some(CHALLENGE) {
        return;
    }
    let service = service_fn(move |request| answer(router.clone(), Arc::clone(&relays), peer, request));
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

async fn answer(
    mut router: Router,
    relays: Arc<Relays>,
    peer: SocketAddr,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    if relays.is_wanted(&request) {
        return Ok(relays.answer(peer, request).await);
    }
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(Peer(peer.ip()));
    match tokio::time::timeout(REQUEST_TIMEOUT, router.call(request)).await {
        Ok(answered) => answered,
        Err(_) => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::REQUEST_TIMEOUT;
            Ok(headers::complete(response).await)
        }
    }
}
