//! Datagrams in runs: several of one length, the last of which may be shorter, that the kernel
//! takes and gives as one. With tens of thousands of datagrams a second, a system call for each is
//! most of the cost.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nix::errno::Errno;
use nix::sys::socket::sockopt::{UdpGroSegment, UdpGsoSegment};
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrLike as _, SockaddrStorage, recvmsg, setsockopt,
};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// Datagrams of a run at most: what every kernel with segmentation takes.
const MAX_SEGMENTS: usize = 64;
/// Bytes of a run at most: a datagram with the headers of UDP and IPv6.
const MAX_RUN: usize = u16::MAX as usize - 8 - 40;

/// Datagrams that were received at once: `len` bytes, a datagram for each `segment` bytes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Bytes of all datagrams.
    pub len: usize,
    /// Bytes of each but the last.
    pub segment: usize,
}

impl Run {
    /// One datagram.
    #[must_use]
    pub fn single(len: usize) -> Self {
        Self { len, segment: len }
    }
}

/// Datagrams that are collected to be sent at once.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    bytes: Vec<u8>,
    segment: usize,
    count: usize,
}

impl Collected {
    /// Takes a datagram, unless it belongs to the next run.
    pub(crate) fn take(&mut self, datagram: &[u8]) -> bool {
        if self.count == 0 {
            self.segment = datagram.len();
        } else {
            // A shorter one was the last.
            let is_over = self.bytes.len() < self.segment * self.count;
            let is_full = self.count == MAX_SEGMENTS || self.bytes.len() + datagram.len() > MAX_RUN;
            if is_over || is_full || datagram.len() > self.segment {
                return false;
            }
        }
        self.bytes.extend_from_slice(datagram);
        self.count += 1;
        true
    }

    /// The run and the length of its datagrams, unless it is empty.
    pub(crate) fn run(&self) -> Option<(&[u8], usize)> {
        (self.count > 0).then_some((&self.bytes[..], self.segment))
    }

    /// Begins the next run.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
    }
}

/// A UDP socket that sends and receives runs, where the kernel knows them.
#[derive(Debug)]
pub struct RunSocket {
    socket: UdpSocket,
    /// The kernel cuts what is sent into datagrams of this many bytes; 0: it does not.
    segment: AtomicUsize,
    /// The kernel or the device cuts nothing.
    refused: AtomicBool,
}

impl RunSocket {
    /// Takes over a socket that no one else sends by.
    #[must_use]
    pub fn new(socket: UdpSocket) -> Self {
        // A kernel before 5.0 gives single datagrams.
        let _ = setsockopt(&socket, UdpGroSegment, &true);
        Self { socket, segment: AtomicUsize::new(0), refused: AtomicBool::new(false) }
    }

    /// The socket's address.
    ///
    /// # Errors
    /// If the system call fails.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sends a run to this address, or to the one that the socket is connected to. As on any path,
    /// what can't be sent is lost.
    pub fn send(&self, run: &[u8], segment: usize, to: Option<SocketAddr>) {
        if run.len() <= segment {
            return self.send_single(run, to);
        }
        if self.cuts_at(segment) {
            match self.send_bytes(run, to) {
                Err(error) if is_refusal(&error) => self.give_up_cutting(),
                _ => return,
            }
        }
        for datagram in run.chunks(segment) {
            self.send_single(datagram, to);
        }
    }

    /// Waits until a datagram may be there.
    ///
    /// # Errors
    /// If the socket can't be waited for.
    pub async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Receives a run, and where it came from. `into` needs room for 65,535 bytes.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is none; others concern a datagram that was sent
    /// before.
    pub fn try_receive(&self, into: &mut [u8]) -> io::Result<(Run, Option<SocketAddr>)> {
        self.socket.try_io(Interest::READABLE, || {
            let mut control = nix::cmsg_space!(i32);
            let mut bytes = [IoSliceMut::new(into)];
            let descriptor = self.socket.as_raw_fd();
            let received = recvmsg::<SockaddrStorage>(
                descriptor,
                &mut bytes,
                Some(&mut control),
                MsgFlags::MSG_DONTWAIT,
            )?;
            let len = received.bytes;
            let segment = received.cmsgs()?.find_map(|message| match message {
                ControlMessageOwned::UdpGroSegments(segment) => usize::try_from(segment).ok(),
                _ => None,
            });
            let segment = segment.filter(|segment| (1..len).contains(segment)).unwrap_or(len);
            Ok((Run { len, segment }, received.address.as_ref().and_then(address)))
        })
    }

    fn send_single(&self, datagram: &[u8], to: Option<SocketAddr>) {
        // A datagram that is longer would be cut.
        let is_cut = datagram.len() > self.segment.load(Ordering::Relaxed);
        if !is_cut || self.set_segment(0) {
            let _ = self.send_bytes(datagram, to);
        }
    }

    /// Whether the kernel cuts what is sent from now on into datagrams of this many bytes.
    fn cuts_at(&self, segment: usize) -> bool {
        if self.refused.load(Ordering::Relaxed) {
            return false;
        }
        let cuts = self.segment.load(Ordering::Relaxed) == segment || self.set_segment(segment);
        if !cuts {
            self.give_up_cutting();
        }
        cuts
    }

    /// While the option is set, the kernel refuses datagrams too that need no cut.
    fn give_up_cutting(&self) {
        self.refused.store(true, Ordering::Relaxed);
        self.set_segment(0);
    }

    /// By an option of the socket and not beside each run: the calls of some processes name no
    /// address and carry nothing but bytes.
    fn set_segment(&self, segment: usize) -> bool {
        // A socket that never cut anything needs no word about it.
        let is_set = segment == 0 && self.segment.load(Ordering::Relaxed) == 0;
        let Ok(bytes) = i32::try_from(segment) else { return false };
        if !is_set && setsockopt(&self.socket, UdpGsoSegment, &bytes).is_err() {
            return false;
        }
        self.segment.store(segment, Ordering::Relaxed);
        true
    }

    fn send_bytes(&self, bytes: &[u8], to: Option<SocketAddr>) -> io::Result<usize> {
        match to {
            Some(to) => self.socket.try_send_to(bytes, to),
            None => self.socket.try_send(bytes),
        }
    }
}

/// Answers of a kernel or device that can't cut; since Linux 6.14 of one whose MTU is less than a
/// datagram, too.
fn is_refusal(error: &io::Error) -> bool {
    let error = error.raw_os_error().map(Errno::from_raw);
    error.is_some_and(|error| matches!(error, Errno::EIO | Errno::EINVAL | Errno::EMSGSIZE))
}

fn address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    if storage.family()? == nix::sys::socket::AddressFamily::Inet {
        storage.as_sockaddr_in().map(|address| SocketAddr::V4((*address).into()))
    } else {
        storage.as_sockaddr_in6().map(|address| SocketAddr::V6((*address).into()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::libc;
    use nix::sys::socket::sockopt::SetBool;

    use super::*;

    async fn pair() -> (RunSocket, RunSocket) {
        let bind = || async { UdpSocket::bind("127.0.0.1:0").await.unwrap() };
        let (one, other) = (bind().await, bind().await);
        one.connect(other.local_addr().unwrap()).await.unwrap();
        (RunSocket::new(one), RunSocket::new(other))
    }

    async fn receive(socket: &RunSocket) -> (Vec<u8>, usize, Option<SocketAddr>) {
        let mut room = vec![0; 65_535];
        loop {
            let ready = tokio::time::timeout(Duration::from_secs(10), socket.readable()).await;
            ready.expect("it arrives").unwrap();
            if let Ok((run, from)) = socket.try_receive(&mut room) {
                return (room[..run.len].to_vec(), run.segment, from);
            }
        }
    }

    #[tokio::test]
    async fn a_run_arrives_as_one() {
        let (sender, receiver) = pair().await;
        sender.socket.writable().await.unwrap();
        let run: Vec<u8> = (0..3_500).map(|at| (at / 1_000) as u8).collect();
        sender.send(&run, 1_000, None);
        assert_eq!(receive(&receiver).await, (run, 1_000, Some(sender.local_addr().unwrap())));
        // Longer ones than those of the last run are not cut, nor are shorter ones joined.
        for len in [2_000, 10, 1_000] {
            sender.send(&vec![7; len], len, None);
            assert_eq!(receive(&receiver).await, (vec![7; len], len, Some(sender.local_addr().unwrap())));
        }
    }

    /// Without checksums, which it would have to compute, the kernel cuts nothing.
    #[derive(Clone)]
    struct NoChecksums;
    nix::setsockopt_impl!(NoChecksums, libc::SOL_SOCKET, libc::SO_NO_CHECK, bool, SetBool);

    #[tokio::test]
    async fn runs_are_sent_singly_if_the_kernel_does_not_segment() {
        let (sender, receiver) = pair().await;
        sender.socket.writable().await.unwrap();
        sender.send(&[7; 2_500], 1_000, None);
        assert_eq!(receive(&receiver).await.0.len(), 2_500);
        setsockopt(&sender.socket, NoChecksums, &true).unwrap();
        for (segment, lengths) in [(1_000, &[1_000, 1_000, 500][..]), (2_000, &[2_000, 500])] {
            sender.send(&[7; 2_500], segment, None);
            for len in lengths {
                assert_eq!(receive(&receiver).await.0.len(), *len);
            }
        }
        assert!(sender.refused.load(Ordering::Relaxed));
    }

    #[test]
    fn datagrams_of_one_length_are_collected_up_to_a_shorter_one() {
        let mut collected = Collected::default();
        assert!(collected.run().is_none());
        assert!(collected.take(&[1; 100]) && collected.take(&[2; 100]));
        assert!(!collected.take(&[3; 101]), "a longer one begins another run");
        assert!(collected.take(&[3; 99]));
        assert!(!collected.take(&[4; 99]), "the shorter one was the last");
        assert_eq!(collected.run().map(|(run, segment)| (run.len(), segment)), Some((299, 100)));
        collected.clear();
        (0..MAX_SEGMENTS).for_each(|_| assert!(collected.take(&[5; 10])));
        assert!(!collected.take(&[5; 10]), "the kernel takes no more");
        collected.clear();
        assert!(collected.take(&[6; 40_000]) && !collected.take(&[6; 40_000]), "nor more bytes");
    }
}
