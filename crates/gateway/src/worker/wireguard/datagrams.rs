//! Datagrams of handshakes: they come in by a queue, and go out by the socket of QUIC.
//!
//! INVARIANT: only what has passed the first look waits here.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use quinn::AsyncUdpSocket;
use quinn::udp::Transmit;
use tokio::sync::mpsc;
use vpnd_proto::plane::Endpoint;
use vpnd_wireguard::PublicKey;

use super::first_look::FirstLook;
use crate::worker::quic;
use crate::worker::relayed::Relayed;
use vpnd_shard::handshake_queue::{HandshakeDatagram, HandshakeQueue};

/// The way of handshakes in and out.
pub(super) struct Datagrams {
    socket: Arc<dyn AsyncUdpSocket>,
    queue: HandshakeQueue,
    received: mpsc::Receiver<HandshakeDatagram>,
    first_look: Arc<FirstLook>,
    relayed: Relayed,
}

impl Datagrams {
    /// For handshakes with the key `own`.
    pub(super) fn new(own: PublicKey, socket: &Arc<dyn AsyncUdpSocket>) -> Self {
        let first_look = Arc::new(FirstLook::new(own));
        let looking = Arc::clone(&first_look);
        let (queue, received) = HandshakeQueue::new(Arc::new(move |datagram| looking.look(datagram)));
        Self { socket: Arc::clone(socket), queue, received, first_look, relayed: Relayed::default() }
    }

    /// Sets the relays of some clients' datagrams.
    pub(super) fn relayed(self, relayed: &Relayed) -> Self {
        Self { relayed: relayed.clone(), ..self }
    }

    /// The next message. Safe to cancel.
    pub(super) async fn receive(&mut self) -> Option<HandshakeDatagram> {
        self.received.recv().await
    }

    /// The next message, if one waits.
    pub(super) fn try_receive(&mut self) -> Option<HandshakeDatagram> {
        self.received.try_recv().ok()
    }

    /// Sends a message. One that is lost is sent again.
    pub(super) fn send(&self, to: Endpoint, contents: &[u8]) {
        let transmit =
            Transmit { destination: to.remote, ecn: None, contents, segment_size: None, src_ip: to.local };
        let _ = self.socket.try_send(&transmit);
    }

    /// Where messages go in.
    pub(super) fn queue(&self) -> HandshakeQueue {
        self.queue.clone()
    }

    /// The address of the client whose messages come from `remote`.
    pub(super) fn client(&self, remote: SocketAddr) -> SocketAddr {
        self.relayed.client(remote)
    }

    /// The addresses as the socket names them.
    pub(super) fn as_bound(&self, Endpoint { remote, local }: Endpoint) -> Endpoint {
        let named = |address: IpAddr| quic::as_bound(&*self.socket, address);
        Endpoint { remote: (named(remote.ip()), remote.port()).into(), local: local.map(named) }
    }

    /// Messages that did not pass the first look, as metrics name them.
    pub(super) fn not_for_us(&self) -> [(&'static str, u64); 2] {
        self.first_look.counts()
    }
}
