//! A client's socket for QUIC, from which calls that fail because of an ICMP error are kept: QUIC would take the socket for broken,
//! and anybody can forge ICMP.

use std::io::{self, IoSliceMut};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};

use crate::sys::udp::icmp::is_icmp;

/// Errors that are skipped before it is the turn of others on this thread.
const SKIPPED_AT_ONCE: usize = 16;

/// A socket that goes on whatever ICMP says.
#[derive(Debug)]
pub(super) struct Dialed(Arc<dyn AsyncUdpSocket>);

impl Dialed {
    pub(super) fn new(socket: Arc<dyn AsyncUdpSocket>) -> Self {
        Self(socket)
    }
}

impl AsyncUdpSocket for Dialed {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.0).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        // What is not sent because of an error that came before is lost, as on a bad network.
        self.0.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        for _ in 0..SKIPPED_AT_ONCE {
            match self.0.poll_recv(cx, bufs, meta) {
                Poll::Ready(Err(error)) if is_icmp(&error) => {
                    tracing::trace!(%error, "not taken for the end")
                }
                polled => return polled,
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<std::net::SocketAddr> {
        self.0.local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.0.may_fragment()
    }

    fn max_transmit_segments(&self) -> usize {
        self.0.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.0.max_receive_segments()
    }
}
