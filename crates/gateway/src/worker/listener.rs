//! Where clients' connections arrive.

use std::convert::Infallible;
use std::sync::Weak;

use quinn::Endpoint;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::client_certificates::ClientCertificates;
use super::closing::all_closed;
use super::connection::ControlServer;
use super::core::Core;
use super::{DRAIN_TIMEOUT, SHUTDOWN_TIMEOUT};
use crate::quic_keys::Keys;

pub(super) struct Listener {
    pub(super) endpoint: Endpoint,
    /// Ends when the last connection has sent its last message.
    pub(super) closed: mpsc::Receiver<Infallible>,
    /// Held by each connection.
    pub(super) server: Weak<ControlServer>,
    pub(super) clients: ClientCertificates,
    pub(super) keys: Keys,
}

impl Listener {
    /// Takes over a list of revoked certificates.
    pub(super) async fn revoke(&mut self, file: Vec<u8>, core: &Core) -> anyhow::Result<()> {
        self.clients.revoke(file, &self.endpoint, &self.keys, core).await
    }

    /// Waits for the clients' last messages to leave.
    pub(super) async fn close(self) {
        // QUIC would linger for clients that missed the close. Those get a reset from the next
        // gateway, and everybody else gets it sooner.
        let _ = timeout(SHUTDOWN_TIMEOUT, all_closed(self.closed, &self.server)).await;
        let _ = timeout(DRAIN_TIMEOUT, self.endpoint.wait_idle()).await;
    }
}
