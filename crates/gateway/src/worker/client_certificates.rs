//! Which client certificates a gateway takes. What is revoked may change while it runs, all else
//! stays.
//!
//! INVARIANT: TLS that takes other certificates than before has another key for tickets. A resumed
//! handshake shows no certificate again, so a ticket that was given before must not pass.

use std::sync::Arc;

use quinn::Endpoint;
use quinn::crypto::rustls::QuicServerConfig;

use super::certificate::WorkerCertificate;
use super::core::Core;
use super::quic;
use crate::quic_keys::Keys;
use vpnd_ipc::gateway::WorkerLaunch;
use vpnd_pki::revocation_list::{ListError, RevocationList};
use vpnd_pki::tls::{self, TlsError};

pub(super) struct ClientCertificates {
    certificate: Arc<WorkerCertificate>,
    /// PEM.
    authority: Option<Vec<u8>>,
    required: bool,
    /// The file of revocation lists that is in force; empty if there is none.
    file: Vec<u8>,
}

impl ClientCertificates {
    pub(super) fn new(launch: &WorkerLaunch, certificate: &Arc<WorkerCertificate>, required: bool) -> Self {
        let bytes = |file: &minicbor::bytes::ByteVec| file.to_vec();
        Self {
            certificate: Arc::clone(certificate),
            authority: launch.client_ca.as_ref().map(bytes),
            required,
            file: launch.client_crl.as_ref().map(bytes).unwrap_or_default(),
        }
    }

    /// The certificates that are revoked.
    pub(super) fn revoked(&self) -> Result<RevocationList, ListError> {
        RevocationList::trusted(&self.file)
    }

    pub(super) fn tls(&self) -> anyhow::Result<QuicServerConfig> {
        Ok(self.tls_without(&self.revoked()?)?)
    }

    fn tls_without(&self, revoked: &RevocationList) -> Result<QuicServerConfig, TlsError> {
        let authority = self.authority.as_deref().map(|ca| tls::ClientCa { ca, revoked });
        let clients = match authority {
            None => tls::ClientCertificates::Ignored,
            Some(authority) if self.required => tls::ClientCertificates::Required(authority),
            Some(authority) => tls::ClientCertificates::Optional(authority),
        };
        tls::server(Arc::clone(&self.certificate.presented), &clients)
    }

    /// Lets in no certificate any more that the lists in `file` name, and ends the sessions that
    /// have shown one.
    pub(super) async fn revoke(
        &mut self,
        file: Vec<u8>,
        endpoint: &Endpoint,
        keys: &Keys,
        core: &Core,
    ) -> anyhow::Result<()> {
        // Otherwise every reload would cost all clients a full handshake.
        if file == self.file {
            return Ok(());
        }
        let revoked = RevocationList::trusted(&file)?;
        endpoint.set_server_config(Some(quic::server_config(self.tls_without(&revoked)?, keys)));
        self.file = file;
        let named = revoked.len();
        let sessions = core.revoke(revoked).await?;
        tracing::info!(named, sessions, "the clients' authority has revoked other certificates");
        Ok(())
    }
}
