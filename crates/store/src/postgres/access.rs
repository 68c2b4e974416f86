//! The way to a database: its servers, how they are verified, and what they are shown.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use zeroize::Zeroizing;

use vpnd_config::database::{DatabaseFiles, DatabaseHost, PostgresSettings};
use vpnd_pki::tls::{self, Identity, Trust};

/// A connection that has begun.
pub struct Dialled {
    pub socket: OwnedFd,
    /// Its parameters, if they were read again for it.
    pub files: Option<DatabaseFiles>,
}

impl From<OwnedFd> for Dialled {
    fn from(socket: OwnedFd) -> Self {
        Self { socket, files: None }
    }
}

/// Makes connections for a process that may not.
pub trait Dial: Send + Sync + 'static {
    /// Connects to the host of this number in the configuration; blocks.
    ///
    /// # Errors
    /// Why it can't be reached.
    fn dial(&self, host: usize) -> io::Result<Dialled>;
}

/// Dials by itself.
pub struct Direct(pub Vec<DatabaseHost>);

impl Dial for Direct {
    fn dial(&self, host: usize) -> io::Result<Dialled> {
        let host = self.0.get(host).ok_or(io::ErrorKind::NotFound)?;
        host.dial().map(Dialled::from)
    }
}

/// Servers and credentials of a database. The password is never printed.
#[derive(Clone)]
pub struct Access {
    pub(super) hosts: Vec<DatabaseHost>,
    pub(super) server_name: Option<ServerName<'static>>,
    pub(super) database: String,
    pub(super) user: String,
    pub(super) password: Option<Zeroizing<String>>,
    pub(super) tls: Option<Arc<ClientConfig>>,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl Access {
    /// # Errors
    /// The file that can't be used, and why.
    pub fn new(settings: &PostgresSettings, files: &DatabaseFiles) -> Result<Self, String> {
        let server_name = settings.server_name.as_ref().map(|name| ServerName::try_from(name.clone()));
        let access = Self {
            hosts: settings.hosts.clone(),
            server_name: server_name.transpose().map_err(|error| error.to_string())?,
            database: settings.database.clone(),
            user: settings.user.clone(),
            password: None,
            tls: None,
        };
        access.with_files(files)
    }

    /// Uses what the files hold now.
    ///
    /// # Errors
    /// If a file can't be used.
    pub(super) fn with_files(self, files: &DatabaseFiles) -> Result<Self, String> {
        let identity = match (&files.certificate, &files.key) {
            (Some(chain), Some(key)) => Some(Identity::from_pem(chain, key).map_err(|e| e.to_string())?),
            _ => None,
        };
        let to_server =
            |ca: &Vec<u8>| tls::to_server(&Trust::Pinned(ca), identity).map_err(|e| e.to_string());
        let tls = files.ca.as_ref().map(to_server).transpose()?;
        Ok(Self { password: files.password.clone(), tls: tls.map(Arc::new), ..self })
    }

    /// Its name for people.
    #[must_use]
    pub fn name(&self) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(ToString::to_string).collect();
        format!("'{}' on {}", self.database, hosts.join(", "))
    }
}
