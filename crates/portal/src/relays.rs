//! Connections that carry datagrams of the gateway's port instead of pages (PROTOCOL §18).
//!
//! INVARIANT: each has a place of a separate kind, which networks share, and a socket of the parent
//! that leads to the gateway's port and nowhere else. It is made for the address from which the
//! connection came, so that limits and records see that one.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONNECTION, HeaderName, RETRY_AFTER, UPGRADE};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use crate::places::Places;
use vpnd_ipc::gateway::portal::FromPortal;
use vpnd_proto::admission::Source;
use vpnd_relay::{Datagrams, MAX_UNSENT_BELOW, MAX_UNSENT_TLS, PROTOCOL, Patience, Run, RunSocket, relay};

/// Limit for the parent to make a socket.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit for the answer to leave before the first datagram.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection that the gateway has not answered by then is no client's; one that is silent for
/// longer has no session.
const PATIENCE: Patience = Patience { first: Duration::from_secs(30), silence: Duration::from_secs(600) };
/// Time for the peer's system to acknowledge what it was sent.
const ACKNOWLEDGEMENT_TIMEOUT: Duration = Duration::from_secs(60);
/// Seconds after which a client that found no place may try again.
const RETRY_AFTER_S: u32 = 10;

/// All relays.
pub(crate) struct Relays {
    limit: usize,
    places: Places,
    /// Those that wait for their socket.
    waiting: Mutex<HashMap<u64, oneshot::Sender<UdpSocket>>>,
    next: AtomicU64,
    to_parent: mpsc::UnboundedSender<FromPortal>,
}

/// A relay, as the parent knows it, while it is there.
struct Known {
    number: u64,
    dropped: AtomicU64,
    relays: Arc<Relays>,
}

impl Drop for Known {
    fn drop(&mut self) {
        self.relays.waiting().remove(&self.number);
        let dropped = self.dropped.load(Ordering::Relaxed);
        // Without a parent there is no receiver.
        let _ = self.relays.to_parent.send(FromPortal::RelayOver { number: self.number, dropped });
    }
}

impl Relays {
    /// Up to `limit` of them. Each sends two messages to the parent.
    pub(crate) fn new(limit: usize, to_parent: mpsc::UnboundedSender<FromPortal>) -> Arc<Self> {
        // Strangers get three places of four.
        let places = Places::new(limit.div_ceil(3) * 4, Duration::MAX);
        let (waiting, next) = (Mutex::default(), AtomicU64::new(0));
        Arc::new(Self { limit, places, waiting, next, to_parent })
    }

    /// Whether a request asks for one, where there are some.
    pub(crate) fn is_wanted(&self, request: &Request<Incoming>) -> bool {
        self.limit > 0 && request.method() == Method::GET && asks_for_upgrade(request.headers())
    }

    /// Answers such a request, and begins the relay.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        peer: SocketAddr,
        mut request: Request<Incoming>,
    ) -> Response<Body> {
        let upgrade = hyper::upgrade::on(&mut request);
        let Some(place) = self.places.take(Source::from(peer.ip())) else { return no_place() };
        let (ready, is_ready) = oneshot::channel();
        let relays = Arc::clone(self);
        place.hold(async move { relays.serve(peer, upgrade, ready).await });
        if is_ready.await.is_err() {
            return no_place();
        }
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.headers_mut().extend([
            (CONNECTION, HeaderValue::from_static("Upgrade")),
            (UPGRADE, HeaderValue::from_static(PROTOCOL)),
        ]);
        response
    }

    /// Relays until the connection ends.
    async fn serve(self: Arc<Self>, peer: SocketAddr, upgrade: OnUpgrade, ready: oneshot::Sender<()>) {
        let (known, socket) = self.begin(peer);
        let Ok(Ok(socket)) = timeout(SOCKET_TIMEOUT, socket).await else { return };
        if ready.send(()).is_err() {
            return;
        }
        let Ok(Ok(upgraded)) = timeout(UPGRADE_TIMEOUT, upgrade).await else { return };
        let Some((stream, before)) = stream(upgraded) else { return };
        let end = relay(stream, &before, &Connected(RunSocket::new(socket)), PATIENCE, &known.dropped).await;
        tracing::debug!(%peer, %end, "a client's TCP connection is over");
    }

    /// Has the parent make a socket for a relay.
    fn begin(self: &Arc<Self>, client: SocketAddr) -> (Known, oneshot::Receiver<UdpSocket>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, socket) = oneshot::channel();
        self.waiting().insert(number, sender);
        // If it is gone, this process ends.
        let _ = self.to_parent.send(FromPortal::Relay { number, client });
        (Known { number, dropped: AtomicU64::new(0), relays: Arc::clone(self) }, socket)
    }

    /// The parent has made the socket of this relay.
    pub(crate) fn made(&self, number: u64, socket: OwnedFd) -> std::io::Result<()> {
        let socket = UdpSocket::from_std(socket.into())?;
        if let Some(waiting) = self.waiting().remove(&number) {
            // The connection may be gone.
            let _ = waiting.send(socket);
        }
        Ok(())
    }

    /// The parent makes none for this one.
    pub(crate) fn refused(&self, number: u64) {
        self.waiting().remove(&number);
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<UdpSocket>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A socket that is connected to the gateway's port.
struct Connected(RunSocket);

impl Datagrams for Connected {
    fn send(&self, run: &[u8], segment: usize) {
        self.0.send(run, segment, None);
    }

    async fn readable(&self) -> std::io::Result<()> {
        self.0.readable().await
    }

    fn try_receive(&self, into: &mut [u8]) -> std::io::Result<Run> {
        Ok(self.0.try_receive(into)?.0)
    }
}

/// The stream behind a connection, which holds little that is not sent, and what was read of it.
fn stream(upgraded: Upgraded) -> Option<(TlsStream<TcpStream>, Vec<u8>)> {
    let parts = upgraded.downcast::<TokioIo<TlsStream<TcpStream>>>().ok()?;
    let mut stream = parts.io.into_inner();
    let (tcp, tls) = stream.get_mut();
    tls.set_buffer_limit(Some(MAX_UNSENT_TLS));
    let socket = SockRef::from(&*tcp);
    let set = socket
        .set_tcp_notsent_lowat(MAX_UNSENT_BELOW)
        .and_then(|()| socket.set_tcp_user_timeout(Some(ACKNOWLEDGEMENT_TIMEOUT)));
    if let Err(error) = set {
        tracing::debug!(%error, "a client's TCP connection can't be held short");
    }
    Some((stream, parts.read_buf.to_vec()))
}

fn asks_for_upgrade(headers: &HeaderMap) -> bool {
    let names = |header: HeaderName, name: &str| {
        let values = headers.get_all(header).into_iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|listed| listed.trim().eq_ignore_ascii_case(name))
    };
    names(CONNECTION, "upgrade") && names(UPGRADE, PROTOCOL)
}

fn no_place() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_S.into());
    // The limit of new connections is then that of such requests.
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_an_upgrade_names_it_in_both_headers() {
        let asks = |lines: &[(HeaderName, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                headers.append(name.clone(), value.parse().unwrap());
            }
            asks_for_upgrade(&headers)
        };
        assert!(asks(&[(CONNECTION, "Upgrade"), (UPGRADE, "UoTLV/1")]));
        assert!(asks(&[(CONNECTION, "keep-alive, upgrade"), (UPGRADE, "h2c"), (UPGRADE, "uotlv/1")]));
        assert!(!asks(&[(UPGRADE, "UoTLV/1")]) && !asks(&[(CONNECTION, "Upgrade")]));
        assert!(!asks(&[(CONNECTION, "Upgrade"), (UPGRADE, "websocket")]));
    }
}
