//! Prometheus metrics over HTTP: `GET /metrics` on the address of `[admin] metrics`, and nothing
//! else.
//!
//! Invariants: a request changes nothing; connections, their time and what they may send are
//! bounded, and connections that send nothing keep none out. There is no check of the client: the
//! configuration refuses an address that others can reach unless the administrator insists. This
//! module must not know where the status comes from.

mod prometheus_text;
mod text;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use vpnd_ipc::admin::Handler;

/// Connections at the same time. The oldest makes room for another: who asks is answered within
/// moments, who is silent goes.
const MAX_CONNECTIONS: usize = 64;
/// Requests that are answered at the same time; more wait.
const MAX_REQUESTS: usize = 8;
/// The longest head of a request, bytes.
const MAX_HEAD: usize = 8 << 10;
/// Limit for a connection, from its first byte to our last.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(15);
/// Limit for the gateway's status; shorter, so that a scraper gets an error instead of a closed
/// connection.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after the kernel had no descriptor or memory for a new connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// OpenMetrics 1.0, section "Protocol negotiation".
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// For scrapers that do not ask for OpenMetrics.
const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Debug)]
pub(crate) struct Metrics {
    listener: TcpListener,
    timeout: Duration,
    /// Whether there are series for each session, with its user's name.
    by_session: bool,
}

impl Metrics {
    /// Takes over a listener that the parent has opened.
    ///
    /// # Errors
    /// If the descriptor can't be used by the runtime.
    pub(crate) fn adopt(listener: OwnedFd, by_session: bool) -> io::Result<Self> {
        let listener = std::net::TcpListener::from(listener);
        listener.set_nonblocking(true)?;
        Ok(Self { listener: TcpListener::from_std(listener)?, timeout: CONNECTION_TIMEOUT, by_session })
    }

    /// The address, with the port that the kernel chose for 0.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers scrapers until the future is dropped.
    pub(crate) async fn serve<H: Handler>(self, handler: Arc<H>) {
        let permits = Arc::new(Semaphore::new(MAX_REQUESTS));
        let mut oldest = VecDeque::new();
        // Dropping the set ends the connections, so nothing outlives this future.
        let mut connections = JoinSet::new();
        info!(address = self.address().ok().map(tracing::field::display), "serving metrics");
        loop {
            let accepted = self.listener.accept().await;
            while connections.try_join_next().is_some() {}
            oldest.retain(|connection: &AbortHandle| !connection.is_finished());
            match accepted {
                Ok((stream, peer)) => {
                    if oldest.len() >= MAX_CONNECTIONS {
                        oldest.pop_front().as_ref().map(AbortHandle::abort);
                    }
                    let (handler, timeout, by_session) = (handler.clone(), self.timeout, self.by_session);
                    let answered = connection(stream, handler, by_session, Arc::clone(&permits));
                    oldest.push_back(connections.spawn(async move {
                        match tokio::time::timeout(timeout, answered).await {
                            Ok(Ok(())) => {}
                            Ok(Err(error)) => debug!(%peer, %error, "a metrics connection broke off"),
                            Err(_) => debug!(%peer, "a metrics connection took too long"),
                        }
                    }));
                }
                Err(error) => {
                    warn!(%error, "can't accept a metrics connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Answers one request. No keep-alive: a place is free again as soon as its response is sent.
async fn connection<H: Handler>(
    stream: TcpStream,
    handler: Arc<H>,
    by_session: bool,
    permits: Arc<Semaphore>,
) -> Result<(), hyper::Error> {
    let service = service_fn(move |request: Request<Incoming>| {
        let (handler, permits) = (handler.clone(), permits.clone());
        async move {
            let _permit = permits.acquire().await.expect("the semaphore is never closed");
            Ok::<_, Infallible>(respond(&request, &*handler, by_session).await)
        }
    });
    http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(MAX_HEAD)
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service)
        .await
}

async fn respond<H: Handler>(
    request: &Request<Incoming>,
    handler: &H,
    by_session: bool,
) -> Response<Full<Bytes>> {
    let (method, path) = (request.method(), request.uri().path());
    if path != "/metrics" {
        return plain(StatusCode::NOT_FOUND, "the metrics are at /metrics\n".to_owned());
    }
    if method != Method::GET {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "use GET\n".to_owned());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return response;
    }
    let status = match timeout(STATUS_TIMEOUT, handler.status()).await {
        Ok(Ok(status)) => status,
        Ok(Err(error)) => return plain(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
        Err(_) => {
            return plain(StatusCode::SERVICE_UNAVAILABLE, "the gateway does not answer\n".to_owned());
        }
    };
    let accept = request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let accept = accept.collect::<Vec<_>>().join(",");
    match text::encode(status, by_session) {
        Ok(text) if prometheus_text::prefers_open_metrics(&accept) => {
            answer(StatusCode::OK, OPEN_METRICS, text)
        }
        Ok(text) => answer(StatusCode::OK, PROMETHEUS_TEXT, prometheus_text::of_open_metrics(&text)),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

fn plain(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    answer(status, "text/plain; charset=utf-8", text)
}

fn answer(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests;
