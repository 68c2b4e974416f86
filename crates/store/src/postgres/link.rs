//! One connection to a database: TLS, the login, and what is demanded of a server.
//!
//! INVARIANT: over TCP nothing is sent before the server's certificate was verified.

use std::io;
use std::net::TcpStream as StdTcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{ChannelBinding, NoTls, TlsConnect, TlsStream as PostgresStream};
use tokio_postgres::{Client, Config, SimpleQueryMessage};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::access::{Access, Dial};
use super::trouble::{Fault, Trouble, of_connection, of_hosts};
use vpnd_config::database::DatabaseHost;

/// Limit for a server's replies until a connection works.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(8);

/// For each connection: limits, so that nobody waits for a process that hangs; names mean the
/// tables of vpnd alone; the server finds within 10 s that this machine is gone; and what is
/// acknowledged is on a disk, whatever the server's default is.
const SETTINGS: &str = "SET search_path = vpnd, pg_temp; SET statement_timeout = '10s'; \
    SET lock_timeout = '5s'; SET idle_in_transaction_session_timeout = '15s'; SET client_min_messages = error; \
    SET tcp_keepalives_idle = 4; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3; \
    SET tcp_user_timeout = '10s'";

/// What carries the connection; it ends with this.
pub(super) type Driver = Pin<Box<dyn Future<Output = Result<(), tokio_postgres::Error>> + Send>>;

/// What a server says of itself.
#[derive(Clone, Debug, Default)]
pub struct ServerFacts {
    /// PostgreSQL's version.
    pub version: String,
    /// Setting of the role and server, which vpnd overrides if it is `off`.
    pub synchronous_commit: String,
    /// Whether the server itself waits for the disk.
    pub fsync: bool,
}

/// A connection that works.
pub(super) struct Link {
    pub(super) client: Arc<Client>,
    pub(super) driver: Driver,
    pub(super) facts: ServerFacts,
}

/// Connects to the first host that can be written.
pub(super) async fn connect(access: &Access, dial: &Arc<dyn Dial>) -> Result<Link, Trouble> {
    let mut troubles = Vec::new();
    for (number, host) in access.hosts.iter().enumerate() {
        match connect_to(access, dial, number, host).await {
            Ok(link) => return Ok(link),
            Err(trouble) => troubles.push((host.to_string(), trouble)),
        }
    }
    Err(of_hosts(troubles))
}

async fn connect_to(
    access: &Access,
    dial: &Arc<dyn Dial>,
    number: usize,
    host: &DatabaseHost,
) -> Result<Link, Trouble> {
    let dial = Arc::clone(dial);
    let dialled = tokio::task::spawn_blocking(move || dial.dial(number)).await;
    let dialled = dialled.map_err(io::Error::other).and_then(|dialled| dialled);
    let socket = dialled.map_err(|error| Trouble::Unreachable(error.to_string()))?;
    match tokio::time::timeout(LOGIN_TIMEOUT, log_in(access, host, socket)).await {
        Ok(logged_in) => logged_in,
        Err(_) => Err(Trouble::Unreachable("it does not answer".to_owned())),
    }
}

async fn log_in(access: &Access, host: &DatabaseHost, socket: OwnedFd) -> Result<Link, Trouble> {
    let failed = |error: io::Error| Trouble::Unreachable(error.to_string());
    let mut config = Config::new();
    config.user(&access.user).dbname(&access.database).application_name("vpnd");
    if let Some(password) = &access.password {
        config.password(password.as_bytes());
    }
    let (client, driver): (Client, Driver) = match host {
        DatabaseHost::Socket(_) => {
            let socket = StdUnixStream::from(socket);
            socket.set_nonblocking(true).map_err(failed)?;
            config.ssl_mode(SslMode::Disable);
            let connected = config.connect_raw(UnixStream::from_std(socket).map_err(failed)?, NoTls).await;
            let (client, connection) = connected.map_err(|error| of_connection(error, false))?;
            (client, Box::pin(connection))
        }
        DatabaseHost::Address(address) => {
            let socket = StdTcpStream::from(socket);
            socket.set_nonblocking(true).map_err(failed)?;
            config.ssl_mode(SslMode::Require);
            let tls = Tls {
                config: access.tls.clone().ok_or(Trouble::Untrusted("no 'ca' is configured".to_owned()))?,
                name: access.server_name.clone().unwrap_or_else(|| ServerName::from(address.ip())),
            };
            let connected = config.connect_raw(TcpStream::from_std(socket).map_err(failed)?, tls).await;
            let (client, connection) = connected.map_err(|error| of_connection(error, true))?;
            (client, Box::pin(connection))
        }
    };
    let mut driver = driver;
    let facts = tokio::select! {
        facts = set_up(&client) => facts.map_err(Fault::into_trouble)?,
        ended = &mut driver => {
            let why = ended.err().map_or_else(|| "it has ended".to_owned(), |error| error.to_string());
            return Err(Trouble::Unreachable(why));
        }
    };
    Ok(Link { client: Arc::new(client), driver, facts })
}

async fn set_up(client: &Client) -> Result<ServerFacts, Fault> {
    let sql = format!(
        "SELECT pg_is_in_recovery(), current_setting('synchronous_commit'), current_setting('fsync'),
                current_setting('server_version'); {SETTINGS}"
    );
    let answers = client.simple_query(&sql).await?;
    let row = answers.iter().find_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let text = |column| row.and_then(|row| row.get(column)).unwrap_or_default().to_owned();
    if text(0) != "f" {
        return Err(Trouble::Standby.into());
    }
    let facts = ServerFacts { version: text(3), synchronous_commit: text(1), fsync: text(2) == "on" };
    if facts.synchronous_commit == "off" {
        client.batch_execute("SET synchronous_commit = on").await?;
    }
    Ok(facts)
}

/// TLS as PostgreSQL begins it within a connection.
struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// A TCP connection with TLS.
struct Secured(TlsStream<TcpStream>);

impl TlsConnect<TcpStream> for Tls {
    type Stream = Secured;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Secured>> + Send>>;

    fn connect(self, stream: TcpStream) -> Self::Future {
        Box::pin(async move { TlsConnector::from(self.config).connect(self.name, stream).await.map(Secured) })
    }
}

impl PostgresStream for Secured {
    fn channel_binding(&self) -> ChannelBinding {
        // The certificate was verified against the configured authority.
        ChannelBinding::none()
    }
}

impl AsyncRead for Secured {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Secured {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
