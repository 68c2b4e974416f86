//! Orders between the gateways of a fleet, as far as they are this process's: it sends and receives
//! the datagrams that auth seals and opens, and ends sessions (PROTOCOL §19).
//!
//! INVARIANT: a datagram reaches auth only if its last MAC is right, and as many wait as the queue
//! has room for: a flood costs one short hash for each datagram. That an order is done is said only
//! after its sessions have ended.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quinn::AsyncUdpSocket;
use quinn::udp::Transmit;
use tokio::sync::mpsc;
use vpnd_fleet::seal::FilterKey;

use super::quic::{Diverted, as_bound};
use super::revocation::to_end;
use crate::worker::auth_client::AuthClient;
use crate::worker::core::{Core, EndedCounts, Stopped};
use vpnd_config::ServerConfig;
use vpnd_ipc::gateway::auth::{MAX_FLEET_DATAGRAMS, OrderDone, OrderedEnd, OrdersReply, OrdersTurn};
use vpnd_ipc::requests::NoReply;
use vpnd_shard::handshake_queue::HandshakeQueue;

/// Interval of turns in which nothing has come, and so the time until a kick is sent.
const INTERVAL: Duration = Duration::from_millis(100);

/// The end at which datagrams of other gateways go in.
#[derive(Clone, Debug)]
pub(crate) struct OrderQueue {
    /// Known after the first turn.
    filter: Arc<OnceLock<FilterKey>>,
    queue: mpsc::Sender<Vec<u8>>,
}

impl OrderQueue {
    /// Takes a datagram; `false` if it is none of another gateway's, or too many wait.
    pub(super) fn push(&self, datagram: &[u8]) -> bool {
        // Without a copy if there is no room.
        let Ok(permit) = self.queue.try_reserve() else { return false };
        let is_admitted = self.filter.get().is_some_and(|filter| filter.admits(datagram));
        if is_admitted {
            permit.send(datagram.to_vec());
        }
        is_admitted
    }
}

/// The task that serves them.
pub(super) struct Orders {
    socket: Arc<dyn AsyncUdpSocket>,
    filter: Arc<OnceLock<FilterKey>>,
    received: mpsc::Receiver<Vec<u8>>,
    done: Vec<OrderDone>,
}

impl Orders {
    /// In a fleet: sends from this socket, whose other datagrams go to `wireguard` or to QUIC.
    pub(super) fn start(
        config: &ServerConfig,
        socket: &Arc<dyn AsyncUdpSocket>,
        wireguard: Option<HandshakeQueue>,
    ) -> (Option<Self>, Diverted) {
        if config.fleet.is_none() {
            return (None, Diverted { wireguard, fleet: None });
        }
        let (queue, received) = mpsc::channel(MAX_FLEET_DATAGRAMS);
        let filter = Arc::<OnceLock<FilterKey>>::default();
        let fleet = Some(OrderQueue { filter: Arc::clone(&filter), queue });
        let this = Self { socket: Arc::clone(socket), filter, received, done: Vec::new() };
        (Some(this), Diverted { wireguard, fleet })
    }

    /// Runs until the control plane or auth has stopped.
    pub(super) async fn run(mut self, core: Core, auth: AuthClient) {
        loop {
            let received = self.next().await.into_iter().map(Into::into).collect();
            let done = std::mem::take(&mut self.done);
            match auth.request(OrdersTurn { received, done }).await {
                Ok(reply) => {
                    if self.carry_out(&core, reply).await.is_err() {
                        return;
                    }
                }
                // The daemon is going down.
                Err(NoReply::Gone(_)) => return,
                Err(NoReply::Failed(error)) => {
                    tracing::debug!(%error, "no orders to other gateways or from them");
                    tokio::time::sleep(INTERVAL).await;
                }
            }
        }
    }

    /// Datagrams that have come, once there are some, an order is done or it is time.
    async fn next(&mut self) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        if self.done.is_empty() {
            match tokio::time::timeout(INTERVAL, self.received.recv()).await {
                Ok(Some(first)) => found.push(first),
                // The socket is another process's by now.
                Ok(None) => tokio::time::sleep(INTERVAL).await,
                Err(_) => {}
            }
        }
        while found.len() < MAX_FLEET_DATAGRAMS
            && let Ok(next) = self.received.try_recv()
        {
            found.push(next);
        }
        found
    }

    async fn carry_out(&mut self, core: &Core, reply: OrdersReply) -> Result<(), Stopped> {
        let OrdersReply { filter, to_send, orders } = reply;
        let _ = self.filter.set(FilterKey(filter.into()));
        for datagram in to_send {
            // A datagram that is lost is sent again.
            let _ = self.send(datagram.to, &datagram.bytes);
        }
        if orders.is_empty() {
            return Ok(());
        }
        let which = orders.iter().map(|order| (to_end(&order.revoked), order.begun_until_s)).collect();
        let EndedCounts { counts, is_stored } = core.end_begun(which).await?;
        for (OrderedEnd { id, revoked, .. }, sessions) in orders.iter().zip(counts) {
            let cause = revoked.cause;
            tracing::info!(user = %revoked.name, ?cause, sessions, "ended by an order");
            self.done.push(OrderDone { id: *id, ended: is_stored.then_some(sessions as u64) });
        }
        Ok(())
    }

    fn send(&self, to: SocketAddr, contents: &[u8]) -> io::Result<()> {
        let to = SocketAddr::new(as_bound(&*self.socket, to.ip()), to.port());
        let transmit = Transmit { destination: to, ecn: None, contents, segment_size: None, src_ip: None };
        self.socket.try_send(&transmit)
    }
}

#[cfg(test)]
mod tests {
    use vpnd_crypto::Secret;
    use vpnd_fleet::seal::{MAX_DATAGRAM, OwnKey};

    use super::*;

    #[test]
    fn only_authentic_order_datagrams_are_queued_up_to_a_limit() {
        let (queue, mut received) = mpsc::channel(MAX_FLEET_DATAGRAMS);
        let queue = OrderQueue { filter: Arc::default(), queue };
        let own = OwnKey::new(Secret::new([1; 32]));
        let other = OwnKey::new(Secret::new([2; 32])).pair(own.public()).unwrap();
        let good = other.seal([3; 24], b"an order").unwrap();
        assert!(!queue.push(&good), "the key is not known yet");
        queue.filter.set(FilterKey::of(own.public())).unwrap();
        let mut forged = good.clone();
        forged[0] ^= 1;
        for _ in 0..2 * MAX_FLEET_DATAGRAMS {
            assert!(!queue.push(&forged) && !queue.push(&[5; MAX_DATAGRAM + 1]));
        }
        let taken = (0..2 * MAX_FLEET_DATAGRAMS).filter(|_| queue.push(&good)).count();
        assert_eq!(taken, MAX_FLEET_DATAGRAMS);
        assert_eq!(received.try_recv().unwrap(), good);
    }
}
