//! A client's socket for QUIC, from which calls that fail because of an ICMP error are kept: QUIC
//! would take the socket for broken, and anybody can forge ICMP.

use std::io::{self, IoSliceMut};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use rustix::io::Errno;

/// Errors that are skipped before it is the turn of others on this thread.
const SKIPPED_AT_ONCE: usize = 16;

/// A socket that no ICMP error ends.
#[derive(Debug)]
pub(crate) struct IgnoresIcmp(pub(crate) Arc<dyn AsyncUdpSocket>);

impl AsyncUdpSocket for IgnoresIcmp {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.0).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        // A datagram that is not sent because of an earlier error is lost, as on a bad network.
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

/// Whether a call on a socket failed because an ICMP error had come, and would succeed if it were
/// made again.
fn is_icmp(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| {
        [
            Errno::ACCESS,
            Errno::CONNREFUSED,
            Errno::HOSTDOWN,
            Errno::HOSTUNREACH,
            Errno::MSGSIZE,
            Errno::NETUNREACH,
            Errno::NONET,
            Errno::NOPROTOOPT,
            Errno::OPNOTSUPP,
            Errno::PROTO,
        ]
        .contains(&errno)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;
    use std::task::Waker;

    use super::*;

    /// Fails in this order, then has a datagram.
    #[derive(Debug)]
    struct Failing(Mutex<VecDeque<Errno>>);

    impl AsyncUdpSocket for Failing {
        fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
            unreachable!("nothing is sent")
        }

        fn try_send(&self, _: &Transmit<'_>) -> io::Result<()> {
            Ok(())
        }

        fn poll_recv(
            &self,
            _: &mut Context<'_>,
            _: &mut [IoSliceMut<'_>],
            _: &mut [RecvMeta],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(self.0.lock().unwrap().pop_front().map_or(Ok(1), |errno| Err(errno.into())))
        }

        fn local_addr(&self) -> io::Result<std::net::SocketAddr> {
            Ok(([127, 0, 0, 1], 1).into())
        }
    }

    fn receive(errors: impl IntoIterator<Item = Errno>) -> Poll<Result<usize, io::ErrorKind>> {
        let socket = IgnoresIcmp(Arc::new(Failing(Mutex::new(errors.into_iter().collect()))));
        let polled = socket.poll_recv(&mut Context::from_waker(Waker::noop()), &mut [], &mut []);
        polled.map_err(|error| error.kind())
    }

    #[test]
    fn icmp_errors_end_no_channel_and_a_broken_socket_does() {
        assert_eq!(receive([Errno::CONNREFUSED, Errno::HOSTUNREACH, Errno::ACCESS]), Poll::Ready(Ok(1)));
        assert_eq!(receive([Errno::CONNREFUSED; 1_000]), Poll::Pending, "others have their turn");
        assert!(matches!(receive([Errno::NOTCONN]), Poll::Ready(Err(_))));
    }
}
