//! Answers to the authority where the gateway's names lead: HTTP-01 (RFC 8555 section 8.3) or
//! TLS-ALPN-01 (RFC 8737).
//!
//! INVARIANT: anyone may connect, and finds only the answers, which are no secrets;
//! connections are few and short.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use vpnd_ipc::gateway::acme::Proof;
use vpnd_pki::challenge::{ALPN, ChallengeCertificates};
use vpnd_proto::control::Text;

/// Where HTTP-01 has its answers.
const PATH: &str = "/.well-known/acme-challenge/";
/// Connections at the same time. An authority looks from several places.
const MAX_CONNECTIONS: usize = 32;
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_HEAD: usize = 16 << 10;
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The answers to all challenges of an order.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Key authorizations by their tokens.
    tokens: HashMap<String, String>,
    /// For handshakes.
    pub(super) proofs: Vec<Proof>,
}

impl Answers {
    pub(super) fn add_token(&mut self, token: &str, proof: &str) {
        self.tokens.insert(token.to_owned(), proof.to_owned());
    }

    /// The answer in a handshake, by the digest of the proof.
    pub(super) fn add_proof(&mut self, name: &str, digest: &[u8]) -> anyhow::Result<()> {
        let digest: [u8; 32] = digest.try_into().context("the proof's digest is not valid")?;
        self.proofs.push(Proof { name: Text::new(name)?, digest: digest.into() });
        Ok(())
    }

    fn of_path(&self, path: &str) -> Option<&String> {
        self.tokens.get(path.strip_prefix(PATH)?)
    }
}

/// Answers in the background until what is returned is dropped.
pub(super) fn answer(
    listener: StdListener,
    answers: Answers,
    over_http: bool,
) -> anyhow::Result<JoinSet<()>> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener).context("the listener for challenges can't be used")?;
    let answers = Arc::new(answers);
    let tls = if over_http { None } else { Some(acceptor(&answers)?) };
    let mut answering = JoinSet::new();
    answering.spawn(serve(listener, answers, tls));
    Ok(answering)
}

fn acceptor(answers: &Answers) -> anyhow::Result<TlsAcceptor> {
    let proofs = answers.proofs.iter().map(|proof| (&*proof.name, &*proof.digest));
    let certificates = ChallengeCertificates::new(proofs)?;
    let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
    let mut config = builder.with_cert_resolver(Arc::new(certificates));
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn serve(listener: TcpListener, answers: Arc<Answers>, tls: Option<TlsAcceptor>) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    // Dropping the set ends the connections, so nothing outlives this future.
    let mut connections = JoinSet::new();
    loop {
        let permit = permits.clone().acquire_owned().await.expect("the semaphore is never closed");
        while connections.try_join_next().is_some() {}
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (answers, tls) = (Arc::clone(&answers), tls.clone());
        connections.spawn(async move {
            let connection = async {
                match tls {
                    // The handshake is the answer.
                    Some(tls) => drop(tls.accept(stream).await),
                    None => respond(stream, answers).await,
                }
            };
            if tokio::time::timeout(CONNECTION_TIMEOUT, connection).await.is_err() {
                tracing::debug!(%peer, "a connection for a challenge took too long");
            }
            drop(permit);
        });
    }
}

async fn respond(stream: TcpStream, answers: Arc<Answers>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let proof = answers.of_path(request.uri().path()).cloned();
        async move {
            let status = if proof.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND };
            let mut response = Response::new(Full::new(Bytes::from(proof.unwrap_or_default())));
            *response.status_mut() = status;
            Ok::<_, Infallible>(response)
        }
    });
    let mut server = http1::Builder::new();
    server.keep_alive(false).max_buf_size(MAX_HEAD).timer(TokioTimer::new());
    if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a connection for a challenge broke off");
    }
}
