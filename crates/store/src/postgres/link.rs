//! One connection to a database: TLS, the login, and what is demanded of a server.
//!
//! INVARIANT: over TCP nothing is sent before the server's certificate was verified.

use std::cmp::Reverse;
use std::collections::BTreeMap;
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
use tokio::task::JoinSet;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{ChannelBinding, NoTls, TlsConnect, TlsStream as PostgresStream};
use tokio_postgres::{Client, Config, SimpleQueryMessage};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::access::{Access, Dial, Dialled};
use super::history::History;
use super::trouble::{Fault, Trouble, of_connection, of_hosts};
use vpnd_config::database::DatabaseHost;

/// Limit for a server's replies until a connection works.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(8);

/// Time for other hosts to say that they took over from the one that answers first.
const GRACE: Duration = Duration::from_millis(300);

/// For each connection: limits, so that no caller waits for a process that hangs; names mean the
/// tables of vpnd alone; the server finds within 10 s that this machine is gone; and what is
/// acknowledged is on a disk, whatever the server's default is.
const SETTINGS: &str = "SET search_path = vpnd, pg_temp; SET statement_timeout = '10s'; \
    SET lock_timeout = '5s'; SET idle_in_transaction_session_timeout = '15s'; SET client_min_messages = error; \
    SET tcp_keepalives_idle = 4; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3; \
    SET tcp_user_timeout = '10s'";

/// The task that carries the connection, which ends with it.
pub(super) type Driver = Pin<Box<dyn Future<Output = Result<(), tokio_postgres::Error>> + Send>>;

/// A server's statement about itself.
#[derive(Clone, Debug, Default)]
pub struct ServerFacts {
    /// PostgreSQL's version.
    pub version: String,
    /// Setting of the role and server, which vpnd overrides if it is `off`.
    pub synchronous_commit: String,
    /// Whether the server itself waits for the disk.
    pub fsync: bool,
    pub history: History,
    /// Connections that are left for this role.
    pub connections_left: u64,
    /// Seconds by which its clock differs from this machine's.
    pub clock_apart_s: u64,
}

/// Connections that the role may make yet. Those of the server's own processes have no database.
const CONNECTIONS_LEFT: &str =
    "SELECT least(current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
             - (SELECT count(*) FROM pg_stat_activity WHERE datid IS NOT NULL),
         (SELECT r.rolconnlimit - (SELECT count(*) FROM pg_stat_activity a WHERE a.usesysid = r.oid)
             FROM pg_roles r WHERE r.rolname = current_user AND r.rolconnlimit >= 0),
         (SELECT d.datconnlimit - (SELECT count(*) FROM pg_stat_activity a WHERE a.datid = d.oid)
             FROM pg_database d WHERE d.datname = current_database() AND d.datconnlimit >= 0))";

/// A connection that works.
pub(super) struct Link {
    pub(super) client: Arc<Client>,
    pub(super) driver: Driver,
    pub(super) facts: ServerFacts,
}

/// Connects to the host that can be written; if that are several, to the one that took over last.
/// Where a history is `wanted`, to one of that.
pub(super) async fn connect(
    access: &Access,
    dial: &Arc<dyn Dial>,
    wanted: Option<History>,
) -> Result<Link, Trouble> {
    let mut attempts = JoinSet::new();
    for number in 0..access.hosts.len() {
        let (access, dial) = (access.clone(), Arc::clone(dial));
        attempts.spawn(async move { (number, connect_to(&access, &dial, number).await) });
    }
    let mut troubles = BTreeMap::new();
    let mut found: Option<(usize, Link)> = None;
    let mut until = None;
    loop {
        let attempt = match until {
            None => attempts.join_next().await,
            Some(until) => tokio::time::timeout_at(until, attempts.join_next()).await.ok().flatten(),
        };
        match attempt {
            None => break,
            // A task that has failed is none to wait for.
            Some(Err(_)) => {}
            Some(Ok((number, Ok(link)))) if wanted.is_some_and(|wanted| wanted != link.facts.history) => {
                let reason = "changes are made on another server".to_owned();
                troubles.insert(number, Trouble::Unreachable(reason));
            }
            Some(Ok((number, Ok(link)))) => {
                let rank = |number: usize, link: &Link| (link.facts.history.timeline, Reverse(number));
                if found.as_ref().is_none_or(|(other, known)| rank(number, &link) > rank(*other, known)) {
                    found = Some((number, link));
                }
                let grace = if wanted.is_some() { Duration::ZERO } else { GRACE };
                until = until.or(Some(tokio::time::Instant::now() + grace));
            }
            Some(Ok((number, Err(trouble)))) => drop(troubles.insert(number, trouble)),
        }
    }
    let troubles = troubles.into_iter().map(|(number, trouble)| (access.hosts[number].to_string(), trouble));
    found.map(|(_, link)| link).ok_or_else(|| of_hosts(troubles.collect()))
}

async fn connect_to(access: &Access, dial: &Arc<dyn Dial>, number: usize) -> Result<Link, Trouble> {
    let host = &access.hosts[number];
    let dial = Arc::clone(dial);
    let dialled = tokio::task::spawn_blocking(move || dial.dial(number)).await;
    let dialled = dialled.map_err(io::Error::other).and_then(|dialled| dialled);
    let Dialled { socket, files } = dialled.map_err(|error| Trouble::Unreachable(error.to_string()))?;
    let renewed = match files {
        Some(files) => access.clone().with_files(&files).map_err(Trouble::Files)?,
        None => access.clone(),
    };
    match tokio::time::timeout(LOGIN_TIMEOUT, log_in(&renewed, host, socket)).await {
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
            let reason = ended.err().map_or_else(|| "it has ended".to_owned(), |error| error.to_string());
            return Err(Trouble::Unreachable(reason));
        }
    };
    Ok(Link { client: Arc::new(client), driver, facts })
}

async fn set_up(client: &Client) -> Result<ServerFacts, Fault> {
    let sql = format!(
        "SELECT pg_is_in_recovery(), current_setting('synchronous_commit'), current_setting('fsync'),
                current_setting('server_version'), (SELECT system_identifier FROM pg_control_system()),
                CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END,
                ({CONNECTIONS_LEFT}), extract(epoch FROM clock_timestamp())::bigint; {SETTINGS}"
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
    let (system, timeline) = (text(4).parse::<i64>(), u32::from_str_radix(&text(5), 16));
    let (Ok(system), Ok(timeline)) = (system, timeline) else {
        return Err(Trouble::OutOfOrder("it does not say which history it is on".to_owned()).into());
    };
    let facts = ServerFacts {
        version: text(3),
        synchronous_commit: text(1),
        fsync: text(2) == "on",
        history: History { system: system.cast_unsigned(), timeline },
        // Below zero if those for superusers are in use, too.
        connections_left: text(6).parse().unwrap_or(0),
        clock_apart_s: text(7).parse().map_or(0, |theirs: u64| theirs.abs_diff(vpnd_sys::clock::steady_s())),
    };
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
