//! Handshakes with a gateway, over UDP or a carrier, and the result of each in the log.
//!
//! Each has a separate socket, so that it leaves from whatever address the machine has now.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::Connection;
use vpnd_control_channel::login::shake_hands;
use vpnd_control_channel::quic::client_endpoint;

use super::DialError;
use super::trial_log::TrialLog;
use crate::worker::over_tcp::{Carrier, OverTcp, gateway_of};
use crate::worker::parent_client::ParentClient;
use vpnd_config::profile::Proxy;
use vpnd_pki::tls;
use vpnd_sys::clock::now;
use vpnd_sys::udp::icmp::IcmpErrors;

/// A connection whose handshake is complete.
pub(super) struct Shaken {
    pub(super) endpoint: quinn::Endpoint,
    pub(super) connection: Connection,
    /// There only over TCP.
    pub(super) carrier: Option<Carrier>,
}

impl Shaken {
    /// The gateway's address, if that can be told.
    pub(super) fn gateway(&self) -> Option<SocketAddr> {
        gateway_of(&self.connection, self.carrier.as_ref())
    }
}

/// Everything that handshakes have in common.
pub(super) struct Handshakes {
    server_name: String,
    tls: tls::Client,
    /// Opens their sockets.
    parent: Arc<ParentClient>,
    trials: TrialLog,
}

impl Handshakes {
    pub(super) fn new(server_name: String, tls: tls::Client, parent: Arc<ParentClient>) -> Self {
        Self { server_name, tls, parent, trials: TrialLog::default() }
    }

    pub(super) fn trials(&self) -> &TrialLog {
        &self.trials
    }

    /// Shakes hands over UDP, and notes the result.
    pub(super) async fn over_udp(
        &self,
        address: SocketAddr,
        rtt: Option<Duration>,
    ) -> Result<Shaken, DialError> {
        self.trials.lock().begin(address);
        let shaken = self.attempt(address, rtt, |_| {}).await;
        match &shaken {
            Ok(_) => self.trials.lock().answered(),
            Err(error) => self.trials.failed(address, error),
        }
        shaken
    }

    /// Shakes hands over a carrier to the first of these addresses, which is the gateway's or the
    /// proxy's. The second one is the gateway's over UDP, if that can be told.
    pub(super) async fn over_carrier(
        &self,
        over_tcp: &OverTcp,
        to: (SocketAddr, Option<SocketAddr>),
        proxy: Option<&Proxy>,
        rtt: Option<Duration>,
    ) -> Result<Shaken, DialError> {
        let carrier = over_tcp.open(&self.parent, to, proxy).await.inspect_err(|error| {
            tracing::debug!(address = %to.0, %error, "no connection over TCP");
            self.trials.lock().no_tcp(error.to_string());
        })?;
        let shaken = self.attempt(carrier.local, rtt, |port| carrier.set_control(port)).await?;
        self.trials.lock().answered();
        Ok(Shaken { carrier: Some(carrier), ..shaken })
    }

    /// Shakes hands; `use_port` gets the port of the socket first.
    pub(super) async fn attempt(
        &self,
        address: SocketAddr,
        rtt: Option<Duration>,
        use_port: impl FnOnce(u16),
    ) -> Result<Shaken, DialError> {
        let socket = self.parent.socket(address).await?;
        use_port(socket.local_addr()?.port());
        let errors = IcmpErrors::start(&socket)
            .inspect_err(|error| tracing::debug!(%error, "ICMP errors are not seen"));
        let endpoint = client_endpoint(socket, self.tls.quic()?, rtt)?;
        let handshake = async {
            let shaking = shake_hands(&endpoint, address, &self.server_name);
            tokio::pin!(shaking);
            tokio::select! {
                outcome = &mut shaking => outcome,
                // Ends with the queue of errors only, and the handshake goes on.
                () = self.note_icmp(address, errors.ok()) => shaking.await,
            }
        };
        let connection = handshake.await.map_err(|error| DialError::of_handshake(address, error))?;
        Ok(Shaken { endpoint, connection, carrier: None })
    }

    /// Notes ICMP errors about datagrams to `address` as they come.
    async fn note_icmp(&self, address: SocketAddr, errors: Option<IcmpErrors>) {
        let Some(errors) = errors else { return };
        while let Ok(error) = errors.next().await {
            if let Some(line) = self.trials.lock().icmp(now(), address, error) {
                tracing::warn!("{line}");
            }
        }
    }
}
