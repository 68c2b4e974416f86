//! Requests to a provider: HTTP/1.1 over TLS, one connection for each.
//!
//! Invariants: nothing is sent to an address whose certificate is not right for its name, nor over
//! anything but TLS; no redirection is followed; a response takes at most [`MAX_BODY`] bytes. The
//! caller limits the time.

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

use crate::servers::{Answered, ServerError};
use vpnd_config::https_url::HttpsUrl;
use vpnd_config::source::{Scheme, SourceServer};
use vpnd_config::source_tls::SourceTls;

/// The longest body.
const MAX_BODY: usize = 128 << 10;
/// The longest head.
const MAX_HEAD: usize = 16 << 10;
const FORM: HeaderValue = HeaderValue::from_static("application/x-www-form-urlencoded");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The way to a provider's hosts.
pub(super) struct Https {
    tls: SourceTls,
    answered: Answered,
}

/// A provider's response.
pub(super) struct Response {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

impl Https {
    pub(super) fn new(tls: SourceTls) -> Self {
        Self { tls, answered: Answered::default() }
    }

    /// Fetches what is at this address. `authorization` says in whose name it is asked for.
    pub(super) async fn get(
        &self,
        url: &HttpsUrl,
        authorization: Option<HeaderValue>,
    ) -> Result<Response, ServerError> {
        self.send(Method::GET, url, authorization, Zeroizing::default()).await
    }

    /// The response to a form.
    pub(super) async fn post(
        &self,
        url: &HttpsUrl,
        authorization: Option<HeaderValue>,
        form: Zeroizing<String>,
    ) -> Result<Response, ServerError> {
        self.send(Method::POST, url, authorization, form).await
    }

    async fn send(
        &self,
        method: Method,
        url: &HttpsUrl,
        authorization: Option<HeaderValue>,
        body: Zeroizing<String>,
    ) -> Result<Response, ServerError> {
        let malformed = || ServerError::Answer(format!("{url} is no address"));
        let target: Uri = url.as_str().parse().map_err(|_| malformed())?;
        let authority = target.authority().ok_or_else(malformed)?.as_str();
        let path = target.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::builder().method(method.clone()).uri(path).header(HOST, authority);
        request = request.header(ACCEPT, JSON);
        if method == Method::POST {
            request = request.header(CONTENT_TYPE, FORM);
        }
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(Full::new(Bytes::from_owner(body))).map_err(|_| malformed())?;
        let server = SourceServer { host: url.host().to_owned(), port: url.port(), scheme: Scheme::Https };
        let secure = async |tcp| self.tls.secure(tcp, &server.host).await.map_err(ServerError::Tls);
        let stream = self.answered.connect(&server, secure).await?;
        let no_http =
            |error: hyper::Error| ServerError::Answer(format!("{url} does not speak HTTP: {error}"));
        let handshake = http1::Builder::new().max_buf_size(MAX_HEAD).handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(no_http)?;
        // It ends with the sender, and its error is the response's.
        tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(no_http)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_BODY).collect().await;
        let body = body.map_err(|error| ServerError::Answer(format!("the response of {url}: {error}")))?;
        Ok(Response { status, body: body.to_bytes() })
    }
}

impl Response {
    /// Its content.
    pub(super) fn json<T: DeserializeOwned>(&self, url: &HttpsUrl) -> Result<T, ServerError> {
        if self.status != StatusCode::OK {
            return Err(ServerError::Answer(format!("{url} answers {}", self.status)));
        }
        serde_json::from_slice(&self.body).map_err(|error| {
            ServerError::Answer(format!("the response of {url} is not what it should be: {error}"))
        })
    }
}
