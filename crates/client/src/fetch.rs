//! Fetches a profile, or another short document, from the web, as the user who wants it.
//!
//! Invariants: nothing but TLS, with a certificate that this machine trusts for the name; no
//! redirection is followed, and no cookie or password is sent; the answer has a bound, and so has
//! the time.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, HOST};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

use crate::user_messages::MAX_PROFILE;
use vpnd_config::https_url::HttpsUrl;
use vpnd_pki::tls::{self, SystemTrust, TlsError, Trust};
use vpnd_sys::text::harmless;

/// Limit for all of it.
const TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 30 });
/// The longest head of an answer.
const MAX_HEAD: usize = 16 << 10;
/// Remedy where the address does not give the profile.
const BY_BROWSER: &str = "open it in a browser, save the profile, and import the file";

#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error(
        "'{0}' is no address of a profile, which begins with https:// and has neither user nor password in it; for a file, give its \
         path"
    )]
    NoAddress(String),
    #[error("{host} can't be reached: {source}")]
    Connect { host: String, source: io::Error },
    #[error(
        "{host} has no certificate that this machine trusts for that name ({source}), so what it sends is not taken: {BY_BROWSER}"
    )]
    Untrusted { host: String, source: io::Error },
    #[error("{url} sends no profile but '{status}', as pages do that need a login: {BY_BROWSER}")]
    Status { url: HttpsUrl, status: StatusCode },
    #[error("{url} sends more than {MAX_PROFILE} bytes, so it is no profile: {BY_BROWSER}")]
    TooLong { url: HttpsUrl },
    #[error("{url} does not send text, so it is no profile: {BY_BROWSER}")]
    NoText { url: HttpsUrl },
    #[error("the answer of {url} makes no sense ({reason}): {BY_BROWSER}")]
    Nonsense { url: HttpsUrl, reason: String },
    #[error("{url} has not sent all within {TIMEOUT:?}: try again, or {BY_BROWSER}")]
    Slow { url: HttpsUrl },
    #[error(
        "no certificate can be checked, since this machine's authorities can't be read ({0}): {BY_BROWSER}"
    )]
    NoAuthorities(String),
}

/// The text at this address.
///
/// # Errors
/// [`FetchError`], with what to do.
pub async fn fetch(address: &str) -> Result<Zeroizing<String>, FetchError> {
    let url: HttpsUrl = address.parse().map_err(|()| FetchError::NoAddress(harmless(address)))?;
    from(&url, connector()?).await
}

/// The document at this address, of the kind that is asked for or another, with the bound of a
/// profile and without one of the time.
///
/// # Errors
/// [`FetchError`], in whose words it is a profile.
pub(crate) async fn document(url: &HttpsUrl, kind: &'static str) -> Result<Bytes, FetchError> {
    get(url, connector()?, kind).await
}

fn connector() -> Result<TlsConnector, FetchError> {
    let config = SystemTrust::read().and_then(|trust| tls::to_server(&Trust::System(trust), None));
    let config = config.map_err(|error| match error {
        TlsError::Platform(source) => FetchError::NoAuthorities(source.to_string()),
        error => FetchError::NoAuthorities(error.to_string()),
    })?;
    Ok(TlsConnector::from(Arc::new(config)))
}

async fn from(url: &HttpsUrl, tls: TlsConnector) -> Result<Zeroizing<String>, FetchError> {
    let fetched = timeout(TIMEOUT, get(url, tls, "*/*")).await;
    let body = fetched.map_err(|_| FetchError::Slow { url: url.clone() })??;
    let text = std::str::from_utf8(&body).map_err(|_| FetchError::NoText { url: url.clone() })?;
    Ok(Zeroizing::new(text.to_owned()))
}

async fn get(url: &HttpsUrl, tls: TlsConnector, kind: &'static str) -> Result<Bytes, FetchError> {
    let no_address = || FetchError::NoAddress(harmless(url.as_str()));
    let target: Uri = url.as_str().parse().map_err(|_| no_address())?;
    let name = ServerName::try_from(url.host().to_owned()).map_err(|_| no_address())?;
    let path = target.path_and_query().map_or("/", |path| path.as_str());
    let authority = target.authority().ok_or_else(no_address)?.as_str();
    let request = Request::get(path).header(HOST, authority).header(ACCEPT, kind);
    let request = request.body(Empty::<Bytes>::new()).map_err(|_| no_address())?;
    let host = || harmless(url.host());
    let tcp = TcpStream::connect((url.host(), url.port())).await;
    let tcp = tcp.map_err(|source| FetchError::Connect { host: host(), source })?;
    let stream = tls.connect(name, tcp).await.map_err(|source| {
        let is_certificate = source
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<rustls::Error>())
            .is_some_and(|error| matches!(error, rustls::Error::InvalidCertificate(_)));
        match is_certificate {
            true => FetchError::Untrusted { host: host(), source },
            false => FetchError::Connect { host: host(), source },
        }
    })?;
    let nonsense = |error: hyper::Error| FetchError::Nonsense { url: url.clone(), reason: error.to_string() };
    let handshake = http1::Builder::new().max_buf_size(MAX_HEAD).handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(nonsense)?;
    // It ends with the sender, and its error is the response's.
    tokio::spawn(connection);
    let response = sender.send_request(request).await.map_err(nonsense)?;
    let status = response.status();
    if status != StatusCode::OK {
        return Err(FetchError::Status { url: url.clone(), status });
    }
    let body = Limited::new(response.into_body(), MAX_PROFILE).collect().await.map_err(|error| {
        match error.is::<http_body_util::LengthLimitError>() {
            true => FetchError::TooLong { url: url.clone() },
            false => FetchError::Nonsense { url: url.clone(), reason: error.to_string() },
        }
    })?;
    Ok(body.to_bytes())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use rustls_pki_types::pem::PemObject as _;
    use rustls_pki_types::{CertificateDer, PrivateKeyDer};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    /// Fetches from a server with this answer and a certificate for `localhost`.
    async fn fetched(host: &str, answer: &'static [u8]) -> Result<Zeroizing<String>, FetchError> {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
        let chain = vec![CertificateDer::from_pem_slice(certificate.pem().as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let server = rustls::ServerConfig::builder_with_provider(provider);
        let server = server.with_safe_default_protocol_versions().unwrap();
        let server =
            TlsAcceptor::from(Arc::new(server.with_no_client_auth().with_single_cert(chain, key).unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{host}:{}/ann.toml?x=y", listener.local_addr().unwrap().port());
        let serving = tokio::spawn(async move {
            let (tcp, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = server.accept(tcp).await else { return };
            let mut asked = [0; 1_024];
            let len = stream.read(&mut asked).await.unwrap();
            assert!(asked[..len].starts_with(b"GET /ann.toml?x=y HTTP/1.1\r\n"), "{:?}", &asked[..len]);
            let _ = stream.write_all(answer).await;
            if answer.is_empty() {
                std::future::pending::<()>().await;
            }
            let _ = stream.shutdown().await;
        });
        let ca = certificate.pem();
        let config = tls::to_server(&Trust::Pinned(ca.as_bytes()), None).unwrap();
        let outcome = from(&url.parse().unwrap(), TlsConnector::from(Arc::new(config))).await;
        serving.abort();
        outcome
    }

    #[tokio::test]
    async fn a_profile_is_fetched_and_nothing_else_is() {
        let good = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nversion = 1\n";
        assert_eq!(fetched("localhost", good).await.unwrap().as_str(), "version = 1\n");
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        assert_eq!(fetched("localhost", chunked).await.unwrap().as_str(), "abc");
        let sentence =
            async |answer: &'static [u8]| fetched("localhost", answer).await.unwrap_err().to_string();
        let answers: [(&[u8], &str); 6] = [
            (b"HTTP/1.1 302 Found\r\nLocation: https://localhost/login\r\n\r\n", "'302 Found', as pages"),
            (b"HTTP/1.1 404 Not Found\r\n\r\n", "'404 Not Found'"),
            (b"nonsense\r\n\r\n", "makes no sense"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nvers", "makes no sense"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xFF\xFE", "does not send text"),
            (b"", "within"),
        ];
        for (answer, words) in answers {
            let said = sentence(answer).await;
            assert!(
                said.contains(words) && said.contains("import the file") && !said.contains('\n'),
                "{said}"
            );
        }
        let long = [&b"HTTP/1.1 200 OK\r\n\r\n"[..], &[b'x'; MAX_PROFILE + 1]].concat();
        assert!(sentence(Vec::leak(long)).await.contains("sends more than"));
    }

    #[tokio::test]
    async fn a_certificate_for_another_name_is_not_trusted() {
        let outcome = fetched("127.0.0.1", b"HTTP/1.1 200 OK\r\n\r\nversion = 1\n").await;
        assert!(matches!(outcome, Err(FetchError::Untrusted { .. })), "{outcome:?}");
    }

    #[tokio::test]
    async fn only_addresses_of_https_are_fetched() {
        for wrong in [
            "http://a.example/x",
            "file:///etc/shadow",
            "https://",
            "https://me:secret@a.example/",
            "ftp://\x1b[2J",
        ] {
            let error = fetch(wrong).await.unwrap_err();
            assert!(
                matches!(error, FetchError::NoAddress(_)) && !error.to_string().contains('\x1b'),
                "{error}"
            );
        }
    }
}
