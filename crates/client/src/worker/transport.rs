//! Whether the tunnel goes over UDP or TCP, and what follows from that.
//!
//! INVARIANT: the parent is informed of another transport before anything else that comes of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use vpnd_proto::time::Time;

use super::connections::ConnectionEvent;
use super::dial::GatewaySearch;
use super::parent_client::{ParentClient, ParentError};
use vpnd_sys::clock::now;

/// The least size of datagrams that an honest path carries: a link of IPv6 has to carry as much.
const LEAST_SIZE: u16 = 1_280 - 40 - 8;
/// Time for the search for a size to find a larger one.
const SEARCHED: Duration = Duration::from_secs(5);

/// The way of the tunnel.
pub(super) struct Transport {
    search: Arc<GatewaySearch>,
    parent: Arc<ParentClient>,
    /// Gets [`ConnectionEvent::UdpWorks`].
    events: mpsc::Sender<ConnectionEvent>,
    /// Whether it is TCP, until the parent knows.
    unnoted: Option<bool>,
    /// Waits until UDP works; there while the tunnel goes over TCP.
    udp: Option<JoinHandle<()>>,
    /// Since when the path carries less than any should.
    narrow: Option<Time>,
}

impl Drop for Transport {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Transport {
    pub(super) fn new(
        search: Arc<GatewaySearch>,
        parent: Arc<ParentClient>,
        events: mpsc::Sender<ConnectionEvent>,
    ) -> Self {
        Self { search, parent, events, unnoted: None, udp: None, narrow: None }
    }

    /// The newest epoch is over TCP, or over UDP.
    pub(super) fn set(&mut self, over_tcp: bool) {
        if over_tcp == self.is_over_tcp() {
            return;
        }
        self.stop();
        self.narrow = None;
        if over_tcp {
            let (search, events) = (Arc::clone(&self.search), self.events.clone());
            self.udp = Some(tokio::spawn(async move {
                loop {
                    search.udp_works().await;
                    if events.send(ConnectionEvent::UdpWorks).await.is_err() {
                        return;
                    }
                }
            }));
        }
        self.unnoted = Some(over_tcp);
    }

    /// Informs the parent of another transport.
    pub(super) async fn note(&mut self) -> Result<(), ParentError> {
        match self.unnoted.take() {
            Some(over_tcp) => match self.parent.over_tcp(over_tcp).await {
                // It is only for people.
                Err(ParentError::Refused(_)) => Ok(()),
                outcome => outcome,
            },
            None => Ok(()),
        }
    }

    pub(super) fn is_over_tcp(&self) -> bool {
        self.udp.is_some()
    }

    /// The path carries datagrams of this size.
    pub(super) fn sized(&mut self, now: Time, size: u16) {
        self.narrow = (size < LEAST_SIZE).then(|| self.narrow.unwrap_or(now));
    }

    /// Whether a larger size may soon be found.
    pub(super) fn is_searching(&self, now: Time) -> bool {
        self.narrow.is_some_and(|since| now.since(since) <= 2 * SEARCHED)
    }

    /// Opens lanes at other ports, where nothing has passed at theirs any more.
    pub(super) async fn reopen(&self, lanes: u16) -> Result<(), ParentError> {
        // Over TCP no other machine sees their ports.
        if self.is_over_tcp() {
            return Ok(());
        }
        match self.parent.reopen(lanes).await {
            Ok(ports) => {
                tracing::info!(
                    lanes = lanes.count_ones(),
                    "nothing came back at the old ports: lanes have others"
                );
                self.search.ways().lanes_are_at(&ports);
                Ok(())
            }
            // There is another way yet.
            Err(ParentError::Refused(why)) => {
                tracing::warn!("the lanes stay at their ports: {why}");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Data soon vanishes at whatever ports. Whether to leave UDP because of that.
    pub(super) fn is_blocked(&self) -> bool {
        !self.is_over_tcp() && self.search.ways().is_blocked()
    }

    /// Whether large datagrams vanish, and UDP is to be left because of that.
    pub(super) fn is_narrow(&self) -> bool {
        let narrow = self.narrow.filter(|_| !self.is_over_tcp());
        narrow.is_some_and(|since| now().since(since) >= SEARCHED) && self.search.ways().is_narrow()
    }

    fn stop(&mut self) {
        if let Some(udp) = self.udp.take() {
            udp.abort();
        }
    }
}
