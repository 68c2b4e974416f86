//! The portal's end of the channel to the daemon's parent: sockets for relays, certificates, and
//! the answers to challenges.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::certificates::Certificates;
use crate::relays::Relays;
use vpnd_ipc::channel::{Channel, ChannelError, Received};
use vpnd_ipc::gateway::portal::{FromPortal, ToPortal};

/// Receivers of the parent's messages, and the way back.
pub(crate) struct Parent {
    relays: Arc<Relays>,
    certificates: Arc<Certificates>,
    to_parent: mpsc::UnboundedSender<FromPortal>,
}

impl Parent {
    pub(crate) fn new(
        relays: Arc<Relays>,
        certificates: Arc<Certificates>,
        to_parent: mpsc::UnboundedSender<FromPortal>,
    ) -> Self {
        Self { relays, certificates, to_parent }
    }

    /// Talks to the parent until it is gone.
    pub(crate) async fn serve(
        self,
        parent: Channel,
        mut messages: mpsc::UnboundedReceiver<FromPortal>,
    ) -> Result<(), ChannelError> {
        let receive = async {
            while let Some(received) = parent.receive::<ToPortal>().await? {
                self.handle(received)?;
            }
            Ok(())
        };
        let send = async {
            while let Some(message) = messages.recv().await {
                parent.send(&message, &[]).await?;
            }
            Ok(())
        };
        tokio::select! {
            ended = receive => ended,
            ended = send => ended,
        }
    }

    fn handle(&self, received: Received<ToPortal>) -> Result<(), ChannelError> {
        match received.into_parts()? {
            (ToPortal::Relay(number), Some(socket)) => self.relays.made(number, socket)?,
            (ToPortal::NoRelay(number), None) => self.relays.refused(number),
            (ToPortal::Certificate(certificate), None) => match self.certificates.replace(&certificate) {
                Ok(()) => tracing::info!("web pages have another certificate"),
                // The parent has checked it.
                Err(error) => tracing::error!(%error, "web pages keep the certificate that they have"),
            },
            (ToPortal::Proofs(proofs), None) => match self.certificates.answer_by(&proofs) {
                // If the parent is gone, so is this process.
                Ok(()) => _ = self.to_parent.send(FromPortal::Answering),
                Err(error) => tracing::error!(%error, "the authority's challenge is not answered"),
            },
            _ => return Err(ChannelError::Broken("a descriptor too many or too few")),
        }
        Ok(())
    }
}
