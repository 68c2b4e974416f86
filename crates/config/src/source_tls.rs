//! TLS with the servers of a source: which authorities the gateway trusts there, and the certificate that it shows.
//!
//! INVARIANT: a server's certificate must be right for the name or address that is configured, or nothing is sent to it. This module must not
//! know what is asked of a server.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::source::RadiusTls;
use vpnd_pki::tls::{self, Identity, SystemTrust, Trust};

/// Reads authorities, certificate and key.
pub fn read(settings: &RadiusTls) -> anyhow::Result<ClientConfig> {
    let identity = match &settings.identity {
        Some((chain, key)) => {
            let key = crate::secret_place::read_all(key)?;
            Some(Identity::from_pem(&crate::certificate::read(chain)?, key.as_bytes())?)
        }
        None => None,
    };
    Ok(match &settings.ca {
        Some(path) => tls::to_server(&Trust::Pinned(&crate::certificate::read(path)?), identity)?,
        None => tls::to_server(&Trust::System(SystemTrust::read()?), identity)?,
    })
}

/// Begins TLS with the server of this name.
pub async fn secure(
    stream: TcpStream,
    host: &str,
    tls: Arc<ClientConfig>,
) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    TlsConnector::from(tls).connect(name, stream).await.map_err(tls::in_words)
}
