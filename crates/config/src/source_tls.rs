//! TLS with the servers of a source: which authorities the gateway trusts there, and the
//! certificate that it shows.
//!
//! INVARIANT: a server's certificate must be right for the name or address that is configured, or
//! nothing is sent to it. This module must not know what is asked of a server.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::source::RadiusTls;
use vpnd_pki::tls::{self, Identity, SystemTrust, Trust};

/// Certificates that servers of a source must show, and those that they are shown.
#[derive(Clone)]
pub struct SourceTls {
    config: Arc<ClientConfig>,
    /// The file of the source's own authorities.
    ca: Option<Arc<str>>,
}

impl SourceTls {
    /// Reads authorities, certificate and key of a source of this kind.
    pub fn radius(settings: &RadiusTls) -> anyhow::Result<Self> {
        let identity = match &settings.identity {
            Some((chain, key)) => {
                let key = crate::secret_place::read_all(key)?;
                Some(Identity::from_pem(&crate::certificate::read(chain)?, key.as_bytes())?)
            }
            None => None,
        };
        Self::read(settings.ca.as_deref(), identity)
    }

    /// Reads the authorities of a source that shows no certificate: those of this file, or those of
    /// the system.
    pub fn trusting(ca: Option<&Path>) -> anyhow::Result<Self> {
        Self::read(ca, None)
    }

    fn read(ca: Option<&Path>, identity: Option<Identity>) -> anyhow::Result<Self> {
        let config = match ca {
            Some(path) => tls::to_server(&Trust::Pinned(&crate::certificate::read(path)?), identity)?,
            None => tls::to_server(&Trust::System(SystemTrust::read()?), identity)?,
        };
        let ca = ca.map(|path| format!("{} (the source's 'ca')", path.display()).into());
        Ok(Self { config: Arc::new(config), ca })
    }

    /// Begins TLS with the server of this name.
    pub async fn secure(&self, stream: TcpStream, host: &str) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let connected = TlsConnector::from(Arc::clone(&self.config)).connect(name, stream).await;
        connected.map_err(|error| tls::in_words(error, self.ca.as_deref()))
    }
}
