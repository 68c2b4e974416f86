//! QUIC without its own socket: where the kernel does not steer, shards forward what they receive
//! for it, and a second handle of a shard's socket sends.
//!
//! INVARIANT: what waits is bounded in number and in length; more is lost, as in any full socket.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use vpnd_proto::plane::Endpoint;

use vpnd_sys::udp::{self, SendOutcome, ShardSocket};

const QUEUE: usize = 512;
/// The longest datagram that QUIC takes: what its endpoint announces to peers (RFC 9000 section
/// 18.2).
const MAX_LEN: usize = 1_472;

/// A datagram on its way from a shard.
#[derive(Debug)]
struct ForwardedDatagram {
    datagram: Box<[u8]>,
    from: Endpoint,
}

/// A shard's end of the queue to QUIC.
#[derive(Clone, Debug)]
pub struct QuicForwarder(mpsc::Sender<ForwardedDatagram>);

impl QuicForwarder {
    /// Forwards a datagram to QUIC; false if it was dropped.
    pub fn forward(&self, datagram: &[u8], from: Endpoint) -> bool {
        // The permit comes first: a flood must not cost a copy for each datagram that is dropped.
        let permit = self.0.try_reserve().ok().filter(|_| datagram.len() <= MAX_LEN);
        permit.map(|permit| permit.send(ForwardedDatagram { datagram: datagram.into(), from })).is_some()
    }
}

/// A socket for QUIC, and the shards' end of its queue.
///
/// # Errors
/// If the runtime can't watch the socket.
///
/// # Panics
/// Outside a tokio runtime.
pub fn socket(sender: ShardSocket) -> io::Result<(ForwardedSocket, QuicForwarder)> {
    let (passed, inbox) = mpsc::channel(QUEUE);
    let sender = Arc::new(sender.into_async_sender()?);
    Ok((ForwardedSocket { inbox: Mutex::new(inbox), sender }, QuicForwarder(passed)))
}

/// QUIC's end: receives from the queue, sends through a second handle of a shard's socket.
pub struct ForwardedSocket {
    inbox: Mutex<mpsc::Receiver<ForwardedDatagram>>,
    sender: Arc<AsyncFd<ShardSocket>>,
}

impl fmt::Debug for ForwardedSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandedSocket").finish_non_exhaustive()
    }
}

impl AsyncUdpSocket for ForwardedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable { sender: Arc::clone(&self.sender), wait: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let transmit = udp::Transmit {
            destination: transmit.destination,
            traffic_class: transmit.ecn.map_or(0, |ecn| ecn as u8),
            contents: transmit.contents,
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
            may_fragment: false,
        };
        self.sender.try_io(Interest::WRITABLE, |socket| match socket.try_send(&transmit) {
            SendOutcome::WouldBlock { .. } => Err(io::ErrorKind::WouldBlock.into()),
            // QUIC sends again what was lost.
            SendOutcome::Sent | SendOutcome::Dropped { .. } => Ok(()),
        })
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        let mut count = 0;
        for (buffer, meta) in bufs.iter_mut().zip(meta) {
            // The queue ends when the shards do; QUIC then still has to close its connections.
            let Poll::Ready(Some(forwarded)) = inbox.poll_recv(cx) else { break };
            let len = forwarded.datagram.len().min(buffer.len());
            buffer[..len].copy_from_slice(&forwarded.datagram[..len]);
            *meta = RecvMeta::default();
            (meta.addr, meta.dst_ip) = (forwarded.from.remote, forwarded.from.local);
            (meta.len, meta.stride) = (len, len);
            count += 1;
        }
        if count == 0 { Poll::Pending } else { Poll::Ready(Ok(count)) }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.sender.get_ref().local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.sender.get_ref().offloads().may_fragment
    }
}

/// Waits for room in the socket, for one connection.
struct Writable {
    sender: Arc<AsyncFd<ShardSocket>>,
    wait: Option<Wait>,
}

type Wait = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

impl fmt::Debug for Writable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writable").finish_non_exhaustive()
    }
}

impl UdpPoller for Writable {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let wait = this.wait.get_or_insert_with(|| {
            let sender = Arc::clone(&this.sender);
            Box::pin(async move { sender.writable().await.map(drop) })
        });
        let result = ready!(wait.as_mut().poll(cx));
        this.wait = None;
        Poll::Ready(result)
    }
}
