//! A socket for each session, as clients have them, with segmented sends and merged receives.
//!
//! One `epoll` instance tells which sockets have something, and the runtime waits for that alone.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg, setsockopt, sockopt::UdpGroSegment,
};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::unix::AsyncFd;

use crate::dial::bind;
use crate::sys;

/// Sockets that are looked at before others get their turn.
const EVENTS: usize = 256;
/// Room for two bursts of a flow with what the kernel adds.
const BUFFER: usize = 512 * 1024;
/// Descriptors of a process beside those of its sessions' sockets.
const OTHER_FILES: u64 = 128;

#[derive(Debug)]
pub(crate) struct SessionSockets {
    epoll: AsyncFd<OwnedFd>,
    sockets: Vec<UdpSocket>,
}

/// Datagrams that arrived side by side, all but the last of one length; the first is what was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// Bytes of the first datagram.
    pub(crate) first: usize,
    pub(crate) datagrams: u64,
    /// Bytes of the last one.
    pub(crate) last: usize,
}

impl SessionSockets {
    /// One for each of `count` sessions, connected to the gateway.
    ///
    /// # Errors
    /// If the system gives too few.
    pub(crate) fn new(count: u32, gateway: SocketAddr, source: Option<IpAddr>) -> io::Result<Self> {
        let limit = getrlimit(Resource::Nofile);
        let wanted = u64::from(count) + OTHER_FILES;
        if limit.current.is_some_and(|current| current < wanted) {
            setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
        }
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let open = |number: u32| {
            let socket = bind(gateway, source)?;
            socket.connect(gateway)?;
            setsockopt(&socket, UdpGroSegment, &true)?;
            // As much as the system allows.
            rustix::net::sockopt::set_socket_recv_buffer_size(&socket, BUFFER)?;
            epoll::add(&epoll, &socket, EventData::new_u64(number.into()), EventFlags::IN)?;
            Ok(socket)
        };
        let sockets = (0..count).map(open).collect::<io::Result<_>>()?;
        Ok(Self { epoll: sys::watch_readable(epoll)?, sockets })
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

    /// Takes the next datagrams of a session; `buffer` gets the first of them. `None` if there are none.
    pub(crate) fn receive(&self, number: usize, buffer: &mut [u8]) -> Option<Received> {
        let mut control = nix::cmsg_space!(i32);
        let room = buffer.len();
        let mut slices = [IoSliceMut::new(buffer)];
        // With TRUNC the kernel returns the whole length, although it copies only what fits.
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
        let message =
            recvmsg::<()>(self.sockets[number].as_raw_fd(), &mut slices, Some(&mut control), flags).ok()?;
        let len = message.bytes;
        let merged = message.cmsgs().ok().and_then(|mut messages| {
            messages.find_map(|message| match message {
                ControlMessageOwned::UdpGroSegments(len) => usize::try_from(len).ok(),
                _ => None,
            })
        });
        let segment = merged.filter(|segment| *segment > 0).unwrap_or(len);
        let datagrams = len.div_ceil(segment.max(1)).max(1);
        let last = len - (datagrams - 1) * segment;
        Some(Received { first: segment.min(len).min(room), datagrams: datagrams as u64, last })
    }

    /// Sends datagrams of `segment` bytes each as one. False if the kernel did not take them.
    pub(crate) fn send(&self, number: usize, datagrams: &[u8], segment: usize) -> bool {
        let (slices, size) = ([IoSlice::new(datagrams)], segment as u16);
        let cut = [ControlMessage::UdpGsoSegments(&size)];
        let control = if datagrams.len() > segment { &cut[..] } else { &[] };
        let socket = self.sockets[number].as_raw_fd();
        sendmsg::<()>(socket, &slices, control, MsgFlags::MSG_DONTWAIT, None).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn bursts_go_and_come_as_one_and_only_the_first_datagram_is_copied() {
        let gateway = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sockets = SessionSockets::new(3, gateway.local_addr().unwrap(), None).unwrap();
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
        assert_eq!(received, Received { first: 200, datagrams: 10, last: 200 });
        assert_eq!(first[..200], [0; 200]);
        assert_eq!(sockets.receive(1, &mut first), None);
    }
}
