//! `[store]`: where the user store is, and how a database server is reached.
//!
//! INVARIANT: over TCP a server is verified by a named authority; there is no setting to go
//! without. Servers are addresses, for the process that connects looks up no names.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;
use zeroize::Zeroizing;

use super::document::{Log as Problems, Section};
use super::read::path;
use super::source::{SecretPlace, secret};
use crate::{DnsName, certificate, secret_place};

/// PostgreSQL's port.
const PORT: u16 = 5432;
/// Servers at most: a primary and its standbys.
const MAX_HOSTS: usize = 4;
/// The longest name of a user or database, bytes.
const MAX_NAME: usize = 63;
/// Limit for the beginning of a connection.
const DIAL_TIMEOUT: Duration = Duration::from_secs(3);

/// Which engine keeps the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreEngine {
    /// A file in the state directory.
    #[default]
    Sqlite,
    /// A database server.
    Postgres,
}

/// `[store]`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreSettings {
    pub engine: StoreEngine,
    /// There with the engine `sqlite`, too, if `vpnd store migrate` is to have them.
    pub postgres: Option<PostgresSettings>,
}

impl StoreSettings {
    /// The database, if it is in use.
    #[must_use]
    pub fn database(&self) -> Option<&PostgresSettings> {
        self.postgres.as_ref().filter(|_| self.engine == StoreEngine::Postgres)
    }
}

/// How a PostgreSQL database is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresSettings {
    /// Servers, of which the first that can be written is used.
    pub hosts: Vec<DatabaseHost>,
    /// The name in their certificates, if it is not their address.
    pub server_name: Option<String>,
    pub database: String,
    pub user: String,
    pub password: Option<SecretPlace>,
    /// Files with a client certificate and its key.
    pub identity: Option<(PathBuf, SecretPlace)>,
    /// File with the authority of the servers' certificates.
    pub ca: Option<PathBuf>,
}

/// The secrets that a connection to a database needs, read from their files.
#[derive(Clone, Default)]
pub struct DatabaseFiles {
    pub password: Option<Zeroizing<String>>,
    /// PEM.
    pub ca: Option<Vec<u8>>,
    /// PEM.
    pub certificate: Option<Vec<u8>>,
    /// PEM.
    pub key: Option<Zeroizing<Vec<u8>>>,
}

impl PostgresSettings {
    /// Reads the files that it names.
    ///
    /// # Errors
    /// Which can't be read, or is readable by others.
    pub fn read_files(&self) -> anyhow::Result<DatabaseFiles> {
        let password = self.password.as_ref().map(secret_place::read).transpose();
        let ca = self.ca.as_deref().map(certificate::read).transpose();
        let (certificate, key) = match &self.identity {
            Some((chain, key)) => {
                let key = secret_place::read_all(key).context("'key' in [store]")?;
                let key = Zeroizing::new(key.as_bytes().to_vec());
                (Some(certificate::read(chain).context("'certificate' in [store]")?), Some(key))
            }
            None => (None, None),
        };
        Ok(DatabaseFiles {
            password: password.context("'password_file' in [store]")?,
            ca: ca.context("'ca' in [store]")?,
            certificate,
            key,
        })
    }
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatabaseHost {
    Address(SocketAddr),
    /// The directory of its Unix socket, and the port in the socket's name.
    Socket(PathBuf),
}

impl DatabaseHost {
    /// Connects to it; blocks for a few seconds at most.
    ///
    /// # Errors
    /// Why it can't be reached.
    pub fn dial(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Address(address) => vpnd_sys::dial::connect(address, DIAL_TIMEOUT),
            Self::Socket(path) => Ok(UnixStream::connect(path)?.into()),
        }
    }
}

impl fmt::Display for DatabaseHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Socket(path) => path.display().fmt(f),
        }
    }
}

impl FromStr for DatabaseHost {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if text.starts_with('/') {
            let path = Path::new(text);
            let is_socket = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".s."));
            return Ok(Self::Socket(if is_socket {
                path.to_owned()
            } else {
                path.join(format!(".s.PGSQL.{PORT}"))
            }));
        }
        let address = text.parse::<IpAddr>().map(|address| SocketAddr::new(address, PORT));
        address.or_else(|_| text.parse()).map(Self::Address).map_err(|_| ())
    }
}

/// Reads the section.
pub(super) fn store(s: &mut Section<'_>, p: &mut Problems, base: &Path) -> StoreSettings {
    if s.line().is_none() {
        return StoreSettings::default();
    }
    let engines = [("sqlite", StoreEngine::Sqlite), ("postgres", StoreEngine::Postgres)];
    let engine = s.choice(p, "engine", &engines).unwrap_or_default();
    let hosts = s.list::<DatabaseHost>(
        p,
        "hosts",
        "an address such as \"192.0.2.7\" or \"[2001:db8::7]:5433\", or the directory of a socket such as \
         \"/run/postgresql\"",
    );
    let server_name = s.parsed::<DnsName>(p, "server_name", "the DNS name in the server's certificate");
    let word = |s: &mut Section<'_>, p: &mut Problems, key: &'static str| {
        let text = s.text(p, key).unwrap_or_else(|| "vpnd".to_owned());
        if text.is_empty() || text.len() > MAX_NAME || text.chars().any(char::is_control) {
            s.problem(p, key, format!("'{key}' in [store] needs 1 to {MAX_NAME} bytes"));
        }
        text
    };
    let (database, user) = (word(s, p, "database"), word(s, p, "user"));
    let password = secret(s, p, "password_file", base);
    let certificate = path(s, p, "certificate", base);
    let key = secret(s, p, "key", base);
    if certificate.is_some() != key.is_some() {
        let reason = "'certificate' and 'key' in [store] belong together";
        s.problem(p, "certificate", reason.to_owned());
    }
    let ca = path(s, p, "ca", base);
    let hosts = hosts.unwrap_or_default();
    if hosts.len() > MAX_HOSTS {
        s.problem(p, "hosts", format!("'hosts' in [store] takes {MAX_HOSTS} at most"));
    }
    if engine == StoreEngine::Postgres && hosts.is_empty() {
        s.missing(p, "hosts", "write hosts = [\"192.0.2.7\"], the database server's address");
    }
    let is_remote = hosts.iter().any(|host| matches!(host, DatabaseHost::Address(_)));
    if is_remote && ca.is_none() {
        let advice = "write ca = \"postgres-ca.pem\", the authority of the server's certificate: over a network \
                      vpnd uses TLS";
        s.missing(p, "ca", advice);
    }
    let postgres = (!hosts.is_empty()).then(|| PostgresSettings {
        hosts,
        server_name: server_name.map(|name| name.to_string()),
        database,
        user,
        password,
        identity: certificate.zip(key),
        ca,
    });
    StoreSettings { engine, postgres }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ServerConfig;

    const REST: &str = "[tls]\ncertificate = \"a\"\nkey = \"b\"\n[tunnel]\npool_v4 = \"10.86.0.0/16\"\n";

    fn read(text: &str) -> Result<StoreSettings, String> {
        let config = ServerConfig::parse(&format!("{REST}{text}"), "server.toml", Path::new("/etc/vpnd"));
        config.map(|config| config.store).map_err(|error| error.to_string())
    }

    #[test]
    fn a_database_is_read_and_sqlite_is_the_default() {
        assert_eq!(read("").unwrap(), StoreSettings::default());
        let text = "[store]\nengine = \"postgres\"\nhosts = [\"192.0.2.7\", \"[2001:db8::7]:5433\", \
                    \"/run/postgresql\", \"/tmp/.s.PGSQL.5\"]\nca = \"ca.pem\"\npassword_file = \"pw\"\n";
        let settings = read(text).unwrap();
        let database = settings.database().unwrap();
        let hosts: Vec<String> = database.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(
            hosts,
            ["192.0.2.7:5432", "[2001:db8::7]:5433", "/run/postgresql/.s.PGSQL.5432", "/tmp/.s.PGSQL.5"]
        );
        assert_eq!((database.user.as_str(), database.database.as_str()), ("vpnd", "vpnd"));
        assert_eq!(database.ca.as_deref(), Some(Path::new("/etc/vpnd/ca.pem")));
        let prepared = read("[store]\nhosts = [\"/run/postgresql\"]\n").unwrap();
        assert!(prepared.database().is_none() && prepared.postgres.is_some());
    }

    #[test]
    fn what_can_not_work_or_is_not_safe_is_refused() {
        let start = "[store]\nengine = \"postgres\"\n";
        for (text, part) in [
            (start.to_owned(), "hosts"),
            (format!("{start}hosts = [\"db.uni.example\"]\n"), "an address such as"),
            (format!("{start}hosts = [\"192.0.2.7\"]\n"), "over a network vpnd uses TLS"),
            (format!("{start}hosts = [\"/run\"]\ncertificate = \"c\"\n"), "belong together"),
            (format!("{start}hosts = [\"/run\"]\nuser = \"\"\n"), "1 to 63 bytes"),
            ("[store]\nengine = \"etcd\"\n".to_owned(), "engine"),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
