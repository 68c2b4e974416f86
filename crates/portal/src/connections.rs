//! Connections of browsers: TLS and HTTP/1.1, within bounds.
//!
//! Invariants: the number of connections is bounded, and networks share it fairly: where there is
//! no room, whoever holds many loses the oldest to a newcomer. Each network has a rate of them, since
//! a handshake costs a signature. Every step has a time by which it is over, and a connection has
//! one as a whole, so a slow browser holds nothing for ever; a request that is under way then is
//! answered. A request has a largest head and body.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, TcpListener as StdListener};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;
use tower_service::Service as _;

use crate::browser::Peer;
use vpnd_proto::admission::Source;
use vpnd_proto::admission::network_rates::NetworkRates;
use vpnd_proto::admission::shares::{Displaced, Division, Entered, PermitId, Shares, Standing};
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
    places: Arc<Mutex<Places>>,
}

/// Connections that there are.
struct Places {
    shares: Shares,
    tasks: BTreeMap<PermitId, AbortHandle>,
}

/// The place of a connection, while it is there.
struct Place {
    permit: PermitId,
    places: Arc<Mutex<Places>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = lock(&self.places);
        places.shares.leave(self.permit);
        places.tasks.remove(&self.permit);
    }
}

impl Listener {
    pub(crate) fn new(socket: OwnedFd, tls: Arc<ServerConfig>, router: Router) -> io::Result<Self> {
        let division =
            Division { limit: MAX_CONNECTIONS, displace_after: DISPLACE_AFTER, displaced: Displaced::Oldest };
        let places = Places { shares: Shares::new(division), tasks: BTreeMap::new() };
        let socket = StdListener::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: TcpListener::from_std(socket)?,
            tls: TlsAcceptor::from(tls),
            router,
            rates: Mutex::new(NetworkRates::new(CONNECTIONS_PER_S, rand::random())),
            places: Arc::new(Mutex::new(places)),
        })
    }

    /// Serves connections; never returns.
    pub(crate) async fn serve(self) -> Infallible {
        loop {
            match self.socket.accept().await {
                Ok((stream, peer)) => self.begin(stream, peer.ip().to_canonical()),
                Err(error) => {
                    tracing::debug!(%error, "a connection can't be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Serves a connection if there is a place for it.
    fn begin(&self, stream: TcpStream, address: IpAddr) {
        if !lock(&self.rates).take(now(), Source::from(address)) {
            return;
        }
        let mut places = lock(&self.places);
        let entered = places.shares.enter(now(), Source::from(address), Standing::Stranger);
        let Entered::In { permit, displaced } = entered else { return };
        if let Some(task) = displaced.and_then(|displaced| places.tasks.remove(&displaced)) {
            task.abort();
        }
        let place = Place { permit, places: Arc::clone(&self.places) };
        let (tls, router) = (self.tls.clone(), self.router.clone());
        let task = tokio::spawn(async move {
            serve(stream, address, tls, router).await;
            tracing::trace!(%address, "a connection of a browser has ended");
            drop(place);
        });
        // The task can't have given its place back: that takes the lock.
        places.tasks.insert(permit, task.abort_handle());
    }
}

async fn serve(stream: TcpStream, address: IpAddr, tls: TlsAcceptor, router: Router) {
    // Pages are small, and are sent as a whole.
    let _ = stream.set_nodelay(true);
    let Ok(Ok(stream)) = tokio::time::timeout(TLS_TIMEOUT, tls.accept(stream)).await else { return };
    let service = service_fn(move |request| answer(router.clone(), address, request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let mut ended = tokio::time::timeout(LIFETIME, connection.as_mut()).await;
    if ended.is_err() {
        connection.as_mut().graceful_shutdown();
        ended = tokio::time::timeout(HEAD_TIMEOUT + REQUEST_TIMEOUT, connection).await;
    }
    if let Ok(Err(error)) = ended {
        tracing::trace!(%address, %error, "a connection of a browser broke");
    }
}

async fn answer(
    mut router: Router,
    address: IpAddr,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(Peer(address));
    match tokio::time::timeout(REQUEST_TIMEOUT, router.call(request)).await {
        Ok(answered) => answered,
        Err(_) => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::REQUEST_TIMEOUT;
            Ok(response)
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
