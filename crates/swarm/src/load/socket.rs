//! A socket for each session, as clients have them, with segmented sends and merged receives.
//!
//! One `epoll` instance tells which sockets have something, and the runtime waits for that alone.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, SockaddrLike, recvmsg, sendmsg, setsockopt,
    sockopt::{RcvBufForce, ReceiveTimestampns, UdpGroSegment},
};
use nix::sys::time::TimeSpec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::io::unix::AsyncFd;

use super::PORT;
use crate::dial::bind;
use crate::sys;

/// Sockets that are looked at before others get their turn.
const EVENTS: usize = 256;
/// Room for all that is on its way, should it wait at one socket while this process has no turn.
const BUFFER: usize = 8 << 20;
/// Descriptors of a process beside those of its sessions' sockets.
const OTHER_FILES: u64 = 128;

/// The campus among the numbers of what is ready.
pub(crate) const CAMPUS: usize = usize::MAX;

#[derive(Debug)]
pub(crate) struct SessionSockets {
    epoll: AsyncFd<OwnedFd>,
    sockets: Vec<UdpSocket>,
    campus: Option<UdpSocket>,
}

/// Datagrams that arrived side by side, all but the last of one length; the first is what was
/// copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// Bytes of the first datagram.
    pub(crate) first: usize,
    pub(crate) datagrams: u64,
    /// Bytes of the last one.
    pub(crate) last: usize,
    /// When the kernel had the first one, by the wall clock; of sockets that were asked for it
    /// alone.
    pub(crate) at_ns: Option<u64>,
}

impl SessionSockets {
    /// One for each of `count` sessions where `local` says, connected to the gateway; and one in
    /// the namespace of the campus, if there is one.
    ///
    /// # Errors
    /// If the system gives too few.
    pub(crate) fn new(
        count: u32,
        gateway: SocketAddr,
        local: impl Fn(u32) -> SocketAddr,
        campus: Option<&Path>,
    ) -> io::Result<Self> {
        let limit = getrlimit(Resource::Nofile);
        let wanted = u64::from(count) + OTHER_FILES;
        if limit.current.is_some_and(|current| current < wanted) {
            setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
        }
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let open = |number: u32| {
            let socket = bind(local(number))?;
            socket.connect(gateway)?;
            prepare(&epoll, &socket, number as usize)?;
            Ok(socket)
        };
        let sockets = (0..count).map(open).collect::<io::Result<_>>()?;
        let campus = campus.map(campus_socket).transpose()?;
        if let Some(socket) = &campus {
            prepare(&epoll, socket, CAMPUS)?;
        }
        Ok(Self { epoll: sys::watch_readable(epoll)?, sockets, campus })
    }

    /// Has the kernel note when datagrams arrive at the sockets of these sessions, and at the
    /// campus.
    ///
    /// # Errors
    /// If it can't.
    pub(crate) fn stamp(&self, numbers: Range<usize>) -> io::Result<()> {
        if numbers.is_empty() {
            return Ok(());
        }
        for socket in self.sockets[numbers].iter().chain(&self.campus) {
            setsockopt(socket, ReceiveTimestampns, &true)?;
        }
        Ok(())
    }

    /// Waits until a session has received something, and writes down which.
    pub(crate) async fn ready(&self, numbers: &mut Vec<usize>) {
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS];
        loop {
            // Failure means that the runtime is going down.
            let Ok(mut guard) = self.epoll.readable().await else { return };
            let polled = epoll::wait(guard.get_inner(), &mut events[..], Some(&Default::default()));
            let count = polled.unwrap_or(0);
            if count == 0 {
                guard.clear_ready();
                continue;
            }
            numbers.clear();
            numbers.extend(events[..count].iter().map(|event| event.data.u64() as usize));
            return;
        }
    }

    /// Takes the next datagrams of a session; `buffer` gets the first of them. `None` if there are
    /// none.
    pub(crate) fn receive(&self, number: usize, buffer: &mut [u8]) -> Option<Received> {
        let (received, _) = receive::<()>(&self.sockets[number], buffer)?;
        Some(received)
    }

    /// Takes the next datagrams at the campus, with the address that they came from.
    pub(crate) fn receive_at_campus(&self, buffer: &mut [u8]) -> Option<(Received, Ipv4Addr)> {
        let (received, from) = receive::<SockaddrIn>(self.campus.as_ref()?, buffer)?;
        Some((received, from?.ip()))
    }

    /// Sends datagrams of `segment` bytes each as one. False if the kernel did not take them.
    pub(crate) fn send(&self, number: usize, datagrams: &[u8], segment: usize) -> bool {
        send::<()>(&self.sockets[number], datagrams, segment, None)
    }

    /// Sends datagrams of `segment` bytes each from the campus.
    pub(crate) fn send_from_campus(&self, datagrams: &[u8], segment: usize, to: Ipv4Addr) -> bool {
        let to = SockaddrIn::from(SocketAddrV4::new(to, PORT));
        self.campus.as_ref().is_some_and(|socket| send(socket, datagrams, segment, Some(&to)))
    }
}

fn prepare(epoll: &OwnedFd, socket: &UdpSocket, number: usize) -> io::Result<()> {
    setsockopt(socket, UdpGroSegment, &true)?;
    if setsockopt(socket, RcvBufForce, &BUFFER).is_err() {
        // The most that the system allows.
        rustix::net::sockopt::set_socket_recv_buffer_size(socket, BUFFER)?;
    }
    Ok(epoll::add(epoll, socket, EventData::new_u64(number as u64), EventFlags::IN)?)
}

/// A socket in the namespace of this file. It stays there, wherever the thread is that uses it.
fn campus_socket(namespace: &Path) -> io::Result<UdpSocket> {
    let file = File::open(namespace)?;
    let open = move || {
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    std::thread::spawn(open)
        .join()
        .map_err(|_| io::Error::other("the thread in the campus's namespace failed"))?
}

fn receive<A: SockaddrLike>(socket: &UdpSocket, buffer: &mut [u8]) -> Option<(Received, Option<A>)> {
    let mut control = nix::cmsg_space!(i32, TimeSpec);
    let room = buffer.len();
    let mut slices = [IoSliceMut::new(buffer)];
    // With TRUNC the kernel returns the whole length, although it copies only what fits.
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
    let message = recvmsg::<A>(socket.as_raw_fd(), &mut slices, Some(&mut control), flags).ok()?;
    let len = message.bytes;
    let (mut merged, mut at_ns) = (None, None);
    for control in message.cmsgs().into_iter().flatten() {
        match control {
            ControlMessageOwned::UdpGroSegments(len) => merged = usize::try_from(len).ok(),
            ControlMessageOwned::ScmTimestampns(at) => {
                at_ns = Some(at.tv_sec() as u64 * 1_000_000_000 + at.tv_nsec() as u64);
            }
            _ => {}
        }
    }
    let segment = merged.filter(|segment| *segment > 0).unwrap_or(len);
    let datagrams = len.div_ceil(segment.max(1)).max(1);
    let last = len - (datagrams - 1) * segment;
    let first = segment.min(len).min(room);
    Some((Received { first, datagrams: datagrams as u64, last, at_ns }, message.address))
}

fn send<A: SockaddrLike>(socket: &UdpSocket, datagrams: &[u8], segment: usize, to: Option<&A>) -> bool {
    let (slices, size) = ([IoSlice::new(datagrams)], segment as u16);
    let cut = [ControlMessage::UdpGsoSegments(&size)];
    let control = if datagrams.len() > segment { &cut[..] } else { &[] };
    sendmsg(socket.as_raw_fd(), &slices, control, MsgFlags::MSG_DONTWAIT, to).is_ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn bursts_are_sent_and_received_with_one_copy() {
        let gateway = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sockets =
            SessionSockets::new(3, gateway.local_addr().unwrap(), |_| ([127, 0, 0, 1], 0).into(), None)
                .unwrap();
        assert!(sockets.send(1, &[7; 2_500], 1_000));
        let mut buffer = [0; 2_000];
        gateway.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let (len, from) = gateway.recv_from(&mut buffer).unwrap();
        assert_eq!(len, 1_000);
        let burst: Vec<u8> = (0..10).flat_map(|n| [n; 200]).collect();
        let (slices, size) = ([IoSlice::new(&burst)], 200);
        let to = nix::sys::socket::SockaddrStorage::from(from);
        let cut = [ControlMessage::UdpGsoSegments(&size)];
        sendmsg(gateway.as_raw_fd(), &slices, &cut, MsgFlags::empty(), Some(&to)).unwrap();
        let mut ready = Vec::new();
        sockets.ready(&mut ready).await;
        assert_eq!(ready, [1]);
        let mut first = [0; 300];
        let received = sockets.receive(1, &mut first).unwrap();
        assert_eq!(received, Received { first: 200, datagrams: 10, last: 200, at_ns: None });
        assert_eq!(first[..200], [0; 200]);
        assert_eq!(sockets.receive(1, &mut first), None);
    }
}
