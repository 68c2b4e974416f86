//! The retry filter between the socket and QUIC: datagrams that would begin a connection are
//! checked here, before anything is allocated or derived for them. Handshakes of WireGuard and
//! datagrams of other gateways turn off to separate queues.
//!
//! INVARIANT: QUIC receives an Initial only from an address that has proved itself, so before that
//! nothing is kept and what is sent, a Retry, is shorter than what came in. The rest, whatever its
//! source, belongs to a connection or is dropped by QUIC without an answer, but for a stateless
//! reset, which is shorter than what it answers, too.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use quinn::crypto::HandshakeTokenKey;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use rand::Rng as _;
use vpnd_proto::admission::RetryDecision;
use vpnd_proto::plane::Endpoint;
use vpnd_proto::wire::PacketClass;

use super::Diverted;
use super::acceptor::AdmissionControl;
use super::retry::{self, Initial, Kind};
use vpnd_sys::clock::{now, wall_s};

/// Batches without a datagram for QUIC that are read at once, before other tasks of this thread get
/// their turn.
const BATCHES: usize = 4;

/// A socket that passes on only datagrams that QUIC should handle.
pub(super) struct RetryFilter {
    socket: Arc<dyn AsyncUdpSocket>,
    admission: AdmissionControl,
    tokens: Arc<dyn HandshakeTokenKey>,
    /// Set once another process reads the socket.
    paused: Arc<AtomicBool>,
    diverted: Diverted,
}

impl RetryFilter {
    pub(super) fn new(
        socket: Arc<dyn AsyncUdpSocket>,
        admission: AdmissionControl,
        tokens: Arc<dyn HandshakeTokenKey>,
        paused: Arc<AtomicBool>,
        diverted: Diverted,
    ) -> Self {
        Self { socket, admission, tokens, paused, diverted }
    }

    /// Removes datagrams that are not for QUIC and compacts the rest. Returns the number of buffers
    /// left.
    fn filter(&self, buffers: &mut [IoSliceMut<'_>], metas: &mut [RecvMeta]) -> usize {
        let now_s = wall_s();
        let mut left = 0;
        for number in 0..metas.len() {
            let mut meta = metas[number];
            meta.len = self.filter_segments(&mut buffers[number], &meta, now_s);
            if meta.len > 0 {
                buffers.swap(left, number);
                metas[left] = meta;
                left += 1;
            }
        }
        left
    }

    /// Filters the datagrams of one buffer, which the kernel may have merged. Returns the
    /// number of bytes left.
    fn filter_segments(&self, buffer: &mut [u8], meta: &RecvMeta, now_s: u64) -> usize {
        let mut left = 0;
        for start in (0..meta.len).step_by(meta.stride.max(1)) {
            let end = meta.len.min(start + meta.stride);
            if self.is_for_quic(&buffer[start..end], meta, now_s) {
                buffer.copy_within(start..end, left);
                left += end - start;
            }
        }
        left
    }

    fn is_for_quic(&self, datagram: &[u8], meta: &RecvMeta, now_s: u64) -> bool {
        match PacketClass::of(datagram) {
            PacketClass::Quic => {}
            class => {
                self.divert(class, datagram, meta);
                return false;
            }
        }
        let source = self.admission.source(meta.addr);
        match retry::classify(datagram) {
            Kind::Other => true,
            Kind::Malformed => false,
            // QUIC answers it with a version negotiation, so it counts as a Retry would.
            Kind::OtherVersion => self.admission.lock().on_initial(now(), source) == RetryDecision::Retry,
            Kind::Initial(initial) if retry::is_proof(&*self.tokens, initial.token, meta.addr, now_s) => {
                self.admission.lock().on_validated(now(), source)
            }
            Kind::Initial(initial) => {
                if self.admission.lock().on_initial(now(), source) == RetryDecision::Retry {
                    self.send_retry(&initial, meta, now_s);
                }
                false
            }
        }
    }

    /// Passes on a message of a WireGuard handshake or of another gateway; all else is none of this
    /// port's.
    fn divert(&self, class: PacketClass, datagram: &[u8], meta: &RecvMeta) {
        let from = Endpoint { remote: meta.addr, local: meta.dst_ip };
        match (class, &self.diverted) {
            (PacketClass::WireGuardHandshake, Diverted { wireguard: Some(queue), .. }) => {
                if !queue.push(datagram, from) {
                    self.admission.count_wireguard_dropped();
                }
            }
            (PacketClass::Fleet, Diverted { fleet: Some(queue), .. }) if queue.push(datagram) => {}
            _ => self.admission.count_not_quic(),
        }
    }

    fn send_retry(&self, initial: &Initial<'_>, meta: &RecvMeta, now_s: u64) {
        let mut random = [0; 32];
        rand::rng().fill_bytes(&mut random);
        let contents = retry::retry(&*self.tokens, initial, meta.addr, now_s, &random);
        let transmit = Transmit {
            destination: meta.addr,
            ecn: None,
            contents: &contents,
            segment_size: None,
            src_ip: meta.dst_ip,
        };
        // A client sends its Initial again if this is lost.
        let _ = self.socket.try_send(&transmit);
    }
}

impl fmt::Debug for RetryFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl AsyncUdpSocket for RetryFilter {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.socket).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        if self.paused.load(Ordering::Relaxed) {
            // Without a waker: this process never reads the socket again.
            return Poll::Pending;
        }
        for _ in 0..BATCHES {
            let count = ready!(self.socket.poll_recv(cx, bufs, meta))?;
            self.admission.lock().batch_read(count == bufs.len());
            let left = self.filter(&mut bufs[..count], &mut meta[..count]);
            if left > 0 {
                return Poll::Ready(Ok(left));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.socket.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

#[cfg(test)]
mod tests;
