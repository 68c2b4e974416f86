//! Requests to an authority: HTTP/1.1 over TLS, one connection for each.
//!
//! Invariants: no request goes to another scheme or port than the directory's; a response takes at
//! most [`MAX_RESPONSE`] bytes and [`TIMEOUT`].

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The longest body.
const MAX_RESPONSE: usize = 256 << 10;
/// The longest head.
const MAX_HEAD: usize = 32 << 10;
const TIMEOUT: Duration = Duration::from_secs(30);
/// Limit for one of the authority's addresses, the next is tried then.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Addresses of the authority that are tried.
const MAX_ADDRESSES: usize = 4;

/// A request came to nothing.
#[derive(Debug, thiserror::Error)]
enum HttpError {
    #[error("the authority names an address that is not https at the directory's port: {0}")]
    Elsewhere(Uri),
    #[error("the name of the authority can't be looked up: {0}")]
    Name(std::io::Error),
    #[error("the authority can't be reached: {0}")]
    Connect(std::io::Error),
    #[error("no TLS with the authority: {0}")]
    Tls(std::io::Error),
    #[error("the authority's response is not HTTP: {0}")]
    Http(#[from] hyper::Error),
    #[error("the authority's response can't be read: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    #[error("the authority has not answered within {} s", TIMEOUT.as_secs())]
    Slow,
}

/// A client for one authority.
#[derive(Clone)]
pub(super) struct Https {
    tls: TlsConnector,
    /// Where the authorities are that the directory's certificate must lead to, if not the
    /// system's.
    ca: Option<&'static str>,
    port: u16,
}

impl Https {
    pub(super) fn new(tls: ClientConfig, ca: Option<&'static str>, port: u16) -> Self {
        Self { tls: TlsConnector::from(Arc::new(tls)), ca, port }
    }

    async fn send(&self, request: Request<BodyWrapper<Bytes>>) -> Result<Response<Full<Bytes>>, HttpError> {
        let (mut head, body) = request.into_parts();
        let target = head.uri.clone();
        let elsewhere = || HttpError::Elsewhere(target.clone());
        let (Some("https"), Some(host), Some(authority)) =
            (target.scheme_str(), target.host(), target.authority())
        else {
            return Err(elsewhere());
        };
        if target.port_u16().unwrap_or(443) != self.port {
            return Err(elsewhere());
        }
        let place = HeaderValue::from_str(authority.as_str()).map_err(|_| elsewhere())?;
        let path = target.path_and_query().map_or("/", |path| path.as_str());
        head.uri = path.parse().map_err(|_| elsewhere())?;
        head.headers.insert(HOST, place);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let tcp = self.connect(&host).await?;
        let name = ServerName::try_from(host).map_err(|_| elsewhere())?;
        let stream = self
            .tls
            .connect(name, tcp)
            .await
            .map_err(|error| HttpError::Tls(vpnd_pki::tls::in_words(error, self.ca)))?;
        let (mut sender, connection) =
            http1::Builder::new().max_buf_size(MAX_HEAD).handshake(TokioIo::new(stream)).await?;
        // It ends with the sender, and its error is the response's.
        tokio::spawn(connection);
        let (head, body) = sender.send_request(Request::from_parts(head, body)).await?.into_parts();
        let body = Limited::new(body, MAX_RESPONSE).collect().await.map_err(HttpError::Body)?;
        Ok(Response::from_parts(head, Full::new(body.to_bytes())))
    }

    async fn connect(&self, host: &str) -> Result<TcpStream, HttpError> {
        let addresses = tokio::net::lookup_host((host, self.port)).await.map_err(HttpError::Name)?;
        let mut last = std::io::Error::other("its name has no address");
        for address in addresses.take(MAX_ADDRESSES) {
            match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = error,
                Err(_) => last = std::io::ErrorKind::TimedOut.into(),
            }
        }
        Err(HttpError::Connect(last))
    }
}

impl HttpClient for Https {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let client = self.clone();
        Box::pin(async move {
            let sent = tokio::time::timeout(TIMEOUT, client.send(request)).await;
            let response = sent.unwrap_or(Err(HttpError::Slow));
            response.map(BytesResponse::from).map_err(|error| Error::Other(Box::new(error)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vpnd_pki::tls::{self, Trust};

    #[tokio::test]
    async fn acme_requests_reach_no_other_port_or_scheme() {
        let now = std::time::SystemTime::now();
        let authority = vpnd_pki::authority::Authority::new("test", now).expect("an authority");
        let trust =
            tls::to_server(&Trust::Pinned(authority.certificate_pem().as_bytes()), None).expect("it is good");
        // Nothing listens there: a request that is sent fails to connect.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it has one").port();
        drop(listener);
        let https = Https::new(trust, None, port);
        let send = async |target: String| {
            let request = Request::builder().uri(target).body(BodyWrapper::default()).expect("a request");
            https.send(request).await.expect_err("nobody is there")
        };
        let error = send(format!("https://127.0.0.1:{port}/directory")).await;
        assert!(matches!(error, HttpError::Connect(_)), "{error}");
        for elsewhere in
            [format!("http://127.0.0.1:{port}/"), "https://127.0.0.1:22/".to_owned(), "/".to_owned()]
        {
            let error = send(elsewhere).await;
            assert!(matches!(error, HttpError::Elsewhere(_)), "{error}");
        }
    }
}
