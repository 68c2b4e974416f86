//! TCP: whether the port that carries the tunnel where UDP is blocked does so, directly and through
//! the profile's proxy, and whether a page of the network itself answers on port 80.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use vpnd_config::profile::{Profile, Proxy, ServerAddress, Trust};
use vpnd_pki::tls;
use vpnd_relay::opening::{self, Answer, connect_request, upgrade_request};
use vpnd_sys::text::harmless;

/// Limit for a connection, and for an answer on it.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes of an answer that are read.
const MAX_ANSWER: u64 = 4_096;

/// A TCP port of the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Port {
    /// It carries the tunnel, if the client would use the port.
    Open,
    /// It gives this answer to who asks for the tunnel.
    NoTunnel(String),
    /// The proxy asks for user and password.
    Password,
    /// TLS fails, for this reason.
    Untrusted(String),
    /// Its machine is there.
    Refused,
    Silent,
}

/// The TCP port of a profile's gateway, as the client uses it.
pub(super) struct Pages {
    pub(super) port: u16,
    /// Absent if the profile names no port.
    tls: Option<(TlsConnector, ServerName<'static>)>,
    /// The proxy, and what it is asked for.
    proxy: Option<(Proxy, String)>,
}

impl Pages {
    /// Without a port in the profile it is the usual one.
    pub(super) fn of(profile: &Profile) -> Self {
        let tls = profile.tcp_port.and_then(|_| {
            let pinned = match &profile.trust {
                Trust::Pinned { ca_pem } => Some(tls::Trust::Pinned(ca_pem.as_bytes())),
                Trust::System => None,
            };
            let system = tls::SystemTrust::read().ok().map(tls::Trust::System);
            let trusts: Vec<_> = pinned.into_iter().chain(system).collect();
            let name = ServerName::try_from(profile.server_name.clone()).ok()?;
            Some((TlsConnector::from(Arc::new(tls::to_pages(&trusts).ok()?)), name))
        });
        let port = profile.tcp_port.unwrap_or(443);
        let host = profile.servers.first().map_or(&profile.server_name, |server| &server.host);
        let target = ServerAddress { host: host.clone(), port }.to_string();
        Self { port, tls, proxy: profile.proxy.clone().map(|proxy| (proxy, target)) }
    }

    /// Whether the client would use it.
    pub(super) const fn is_used(&self) -> bool {
        self.tls.is_some()
    }

    pub(super) async fn examine(&self, address: IpAddr) -> Port {
        let stream = match timeout(TIMEOUT, TcpStream::connect((address, self.port))).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => return Port::Refused,
            Ok(Err(_)) | Err(_) => return Port::Silent,
        };
        self.carries(stream).await
    }

    /// The profile's proxy, and where it leads.
    pub(super) async fn by_proxy(&self) -> Option<(ServerAddress, Port)> {
        let (proxy, target) = self.proxy.as_ref()?;
        let server = proxy.server.clone();
        let connecting = TcpStream::connect((server.host.as_str(), server.port));
        let Ok(Ok(mut stream)) = timeout(TIMEOUT, connecting).await else {
            return Some((server, Port::Silent));
        };
        let port = match answer(&mut stream, &connect_request(target, None)).await {
            // The gateway is silent until it is sent something.
            Ok(answer) if answer.status() == Some(200) && answer.rest.is_empty() => {
                self.carries(stream).await
            }
            Ok(answer) if answer.status() == Some(407) => Port::Password,
            other => Port::NoTunnel(in_words(other)),
        };
        Some((server, port))
    }

    /// Whether what is at the other end of a connection carries the tunnel.
    async fn carries(&self, stream: TcpStream) -> Port {
        let Some((connector, name)) = &self.tls else { return Port::Open };
        let mut stream = match timeout(TIMEOUT, connector.connect(name.clone(), stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Port::Untrusted(tls::fault_in_words(&error.to_string())),
            Err(_) => return Port::Untrusted("no answer to the handshake of TLS".to_owned()),
        };
        match answer(&mut stream, &upgrade_request(&name.to_str())).await {
            Ok(answer) if answer.status() == Some(101) => Port::Open,
            other => Port::NoTunnel(in_words(other)),
        }
    }
}

async fn answer(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str) -> io::Result<Answer> {
    let late = |_| Err(io::Error::other("it says nothing"));
    timeout(TIMEOUT, opening::ask(stream, request)).await.unwrap_or_else(late)
}

fn in_words(answer: io::Result<Answer>) -> String {
    answer.map_or_else(|error| error.to_string(), |answer| harmless(&answer.line))
}

/// A page by which a network asks for a login: it answers for any host.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LoginPage {
    /// Where it sends browsers.
    pub(super) location: Option<String>,
}

/// Asks for a page at port 80 of the gateway, which has none.
pub(super) async fn login_page(host: &str, address: IpAddr) -> Option<LoginPage> {
    let answer = timeout(2 * TIMEOUT, ask(host, (address, 80).into())).await.ok()?.ok()?;
    parse(&answer)
}

async fn ask(host: &str, address: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
    Ok(answer)
}

/// A page, unless it says that there is none. A gateway that proves its name to an authority
/// answers with 404.
fn parse(answer: &[u8]) -> Option<LoginPage> {
    let text = String::from_utf8_lossy(answer);
    let mut lines = text.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse::<u16>().ok()?;
    let headers = lines.take_while(|line| !line.is_empty());
    let is_location =
        |line: &&str| line.split(':').next().is_some_and(|name| name.eq_ignore_ascii_case("location"));
    let location = headers.into_iter().find(is_location).and_then(|line| line.split_once(':'));
    let is_page = matches!(status, 200..400 | 511);
    is_page.then(|| LoginPage { location: location.map(|(_, address)| address.trim().to_owned()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_page_redirects_or_answers_for_any_host() {
        let page = |answer: &str| parse(answer.as_bytes());
        let location = |address: &str| Some(LoginPage { location: Some(address.to_owned()) });
        let redirect =
            "HTTP/1.1 302 Found\r\nServer: x\r\nlocation: https://login.example/?a=b\r\n\r\nLocation: no";
        assert_eq!(page(redirect), location("https://login.example/?a=b"));
        assert_eq!(page("HTTP/1.0 200 OK\r\n\r\n<html>"), Some(LoginPage { location: None }));
        assert_eq!(
            page("HTTP/1.1 511 Network Authentication Required\r\n\r\n"),
            Some(LoginPage { location: None })
        );
        for none in
            ["", "HTTP/1.1 404 Not Found\r\n\r\n", "SSH-2.0-x\r\n", "HTTP/1.1\r\n", "HTTP/1.1 x\r\n\r\n"]
        {
            assert_eq!(page(none), None, "{none:?}");
        }
    }
}
