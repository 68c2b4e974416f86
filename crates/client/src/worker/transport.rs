//! Whether the tunnel goes over UDP or TCP, and what follows from that.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use vpnd_proto::control::Message;
use vpnd_proto::time::Time;

use super::Connected;
use super::connections::ConnectionEvent;
use super::parent_client::ParentError;
use vpnd_sys::clock::now;

/// The least size of datagrams that an honest path carries: a link of IPv6 has to carry as much.
const LEAST_SIZE: u16 = 1_280 - 40 - 8;
/// Time for the search for a size to find a larger one.
const SEARCHED: Duration = Duration::from_secs(5);

/// The way of the tunnel.
#[derive(Default)]
pub(super) struct Transport {
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
    /// The path carries datagrams of this size.
    pub(super) fn sized(&mut self, now: Time, size: u16) {
        self.narrow = (size < LEAST_SIZE).then(|| self.narrow.unwrap_or(now));
    }

    /// Whether a larger size may soon be found.
    pub(super) fn is_searching(&self, now: Time) -> bool {
        self.narrow.is_some_and(|since| now.since(since) <= 2 * SEARCHED)
    }

    fn stop(&mut self) {
        if let Some(udp) = self.udp.take() {
            udp.abort();
        }
    }
}

impl Connected {
    /// The newest epoch is over TCP, or over UDP.
    pub(super) fn transport_is(&mut self, over_tcp: bool) {
        if over_tcp == self.transport.udp.is_some() {
            return;
        }
        self.transport.stop();
        self.transport.narrow = None;
        if over_tcp {
            let (search, events) = (Arc::clone(&self.search), self.connections.sender());
            self.transport.udp = Some(tokio::spawn(async move {
                loop {
                    search.udp_works().await;
                    if events.send(ConnectionEvent::UdpWorks).await.is_err() {
                        return;
                    }
                }
            }));
        }
        self.transport.unnoted = Some(over_tcp);
    }

    /// Informs the parent of another transport, before anything else that comes of it.
    pub(super) async fn note_transport(&mut self) -> Result<(), ParentError> {
        match self.transport.unnoted.take() {
            Some(over_tcp) => match self.parent.over_tcp(over_tcp).await {
                // It is only for people.
                Err(ParentError::Refused(_)) => Ok(()),
                outcome => outcome,
            },
            None => Ok(()),
        }
    }

    pub(super) fn is_over_tcp(&self) -> bool {
        self.transport.udp.is_some()
    }

    /// Has a new connection made, for the session to go over it.
    pub(super) fn attach_anew(&mut self) {
        // All but the connection of the session are passed over.
        for connection in self.connections.ids() {
            self.core.handle_message(now(), connection, Message::Wake);
        }
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

    /// Leaves UDP where data soon vanishes at whatever ports.
    pub(super) fn leave_blocked_way(&mut self) {
        if !self.is_over_tcp() && self.search.ways().is_blocked() {
            self.core.change_way(now());
        }
    }

    /// Leaves UDP where large datagrams vanish.
    pub(super) fn leave_narrow_way(&mut self) {
        let narrow = self.transport.narrow.filter(|_| self.transport.udp.is_none());
        if narrow.is_some_and(|since| now().since(since) >= SEARCHED) && self.search.ways().is_narrow() {
            self.attach_anew();
        }
    }
}
