//! The data path's view of a TUN queue and of a socket, as traits, so that it runs unchanged on
//! made-up devices: in the tests of what happens when the kernel refuses, in the test that counts
//! allocations, in benchmarks.
//!
//! INVARIANT: the traits are type parameters only. Each pair of devices gets its own code; nothing
//! here is called through a pointer. Waiting for readiness is no part of this: that is the shard's
//! thread.

use std::io::{self, IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use vpnd_sys::tun::TunQueue;
use vpnd_sys::udp::{RecvMeta, SendOutcome, ShardSocket, Transmit, UdpOffloads};

/// The side of inner packets: each behind a virtio header, as [`TunQueue`] has them.
pub trait PacketDevice {
    /// Reads one header and packet into `buf`; see [`TunQueue::try_read`].
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is none, `EIO` while there can't be any; others end
    /// the shard.
    fn try_read(&self, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes one header and packet gathered from `parts`; see [`TunQueue::try_write_vectored`].
    ///
    /// # Errors
    /// The kernel's answer; the packet was not taken.
    fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Writes several; `refused` gets place and error of each that was not taken. See
    /// [`TunQueue::try_write_many`].
    fn try_write_many(&self, packets: &[&[IoSlice<'_>]], mut refused: impl FnMut(usize, io::Error)) {
        for (place, parts) in packets.iter().enumerate() {
            if let Err(error) = self.try_write_vectored(parts) {
                refused(place, error);
            }
        }
    }
}

/// The side of outer datagrams, as [`ShardSocket`] has them.
pub trait DatagramSocket {
    /// Receives runs of datagrams, as many as there are buffers or, if fewer, all there are; see
    /// [`ShardSocket::try_recv`].
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is nothing; others mean nothing.
    fn try_recv(&self, bufs: &mut [IoSliceMut<'_>], meta: &mut [RecvMeta]) -> io::Result<usize>;

    /// Sends a datagram or a batch; see [`ShardSocket::try_send`].
    fn try_send(&self, transmit: &Transmit<'_>) -> SendOutcome;

    /// Sends one datagram that the outer IP layer may cut; see
    /// [`ShardSocket::try_send_fragmented`].
    fn try_send_fragmented(&self, transmit: &Transmit<'_>) -> SendOutcome {
        self.try_send(transmit)
    }

    /// Sends as many of these as go with one system call; see [`ShardSocket::try_send_many`].
    fn try_send_many(&self, transmits: &[Transmit<'_>]) -> usize;

    /// Waits for room in the send buffer, at most this long. Returns how much of the time is left.
    fn wait_writable(&self, timeout: Duration) -> Duration;

    /// Offloads and buffers as they are now.
    fn offloads(&self) -> UdpOffloads;
}

impl<T: PacketDevice> PacketDevice for &T {
    #[inline]
    fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        (**self).try_read(buf)
    }

    #[inline]
    fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        (**self).try_write_vectored(parts)
    }

    #[inline]
    fn try_write_many(&self, packets: &[&[IoSlice<'_>]], refused: impl FnMut(usize, io::Error)) {
        (**self).try_write_many(packets, refused);
    }
}

impl<S: DatagramSocket> DatagramSocket for &S {
    #[inline]
    fn try_recv(&self, bufs: &mut [IoSliceMut<'_>], meta: &mut [RecvMeta]) -> io::Result<usize> {
        (**self).try_recv(bufs, meta)
    }

    #[inline]
    fn try_send(&self, transmit: &Transmit<'_>) -> SendOutcome {
        (**self).try_send(transmit)
    }

    fn try_send_fragmented(&self, transmit: &Transmit<'_>) -> SendOutcome {
        (**self).try_send_fragmented(transmit)
    }

    #[inline]
    fn try_send_many(&self, transmits: &[Transmit<'_>]) -> usize {
        (**self).try_send_many(transmits)
    }

    fn wait_writable(&self, timeout: Duration) -> Duration {
        (**self).wait_writable(timeout)
    }

    fn offloads(&self) -> UdpOffloads {
        (**self).offloads()
    }
}

impl PacketDevice for TunQueue {
    #[inline]
    fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.try_read(buf)
    }

    #[inline]
    fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.try_write_vectored(parts)
    }

    #[inline]
    fn try_write_many(&self, packets: &[&[IoSlice<'_>]], refused: impl FnMut(usize, io::Error)) {
        self.try_write_many(packets, refused);
    }
}

impl DatagramSocket for ShardSocket {
    #[inline]
    fn try_recv(&self, bufs: &mut [IoSliceMut<'_>], meta: &mut [RecvMeta]) -> io::Result<usize> {
        self.try_recv(bufs, meta)
    }

    #[inline]
    fn try_send(&self, transmit: &Transmit<'_>) -> SendOutcome {
        self.try_send(transmit)
    }

    fn try_send_fragmented(&self, transmit: &Transmit<'_>) -> SendOutcome {
        self.try_send_fragmented(transmit)
    }

    #[inline]
    fn try_send_many(&self, transmits: &[Transmit<'_>]) -> usize {
        self.try_send_many(transmits)
    }

    fn wait_writable(&self, timeout: Duration) -> Duration {
        let start = Instant::now();
        let mut fds = [PollFd::new(self, PollFlags::OUT)];
        let most = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // Whatever the result, the next attempt to send shows it.
        let _ = rustix::event::poll(&mut fds, Some(&most));
        timeout.saturating_sub(start.elapsed())
    }

    fn offloads(&self) -> UdpOffloads {
        self.offloads()
    }
}
