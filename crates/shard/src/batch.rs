//! Datagrams on their way out: those that stand side by side, are equally long and have the same
//! outer header make a run, which the kernel cuts (UDP GSO); several runs go with one system call.
//!
//! INVARIANT: all datagrams of a run but the last have the same length, and they all have one
//! endpoint and traffic class.

use std::time::Duration;

use arrayvec::ArrayVec;
use vpnd_proto::plane::{Counters, DropReason, Outer};
use vpnd_proto::wire::HEADER_LEN;

use super::devices::DatagramSocket;
use vpnd_sys::udp::{MAX_GSO_BYTES, MAX_SENDS, SendOutcome, Transmit};

/// Room behind a packet for what any suite adds.
pub(super) const MAX_OVERHEAD: usize = 48;
/// The longest single datagram: header, longest packet, longest growth.
const MAX_SINGLE: usize = HEADER_LEN + 65_535 + MAX_OVERHEAD;

/// The most datagrams in one run: every kernel with UDP GSO takes as many (`UDP_MAX_SEGMENTS`).
/// Where there is no such offload the socket sends the run one by one.
const MAX_SEGMENTS: usize = 64;

/// Limit for a shard to wait for room in a full send buffer before it drops the rest of a batch.
/// Nothing else could be sent meanwhile, and waiting pushes back on the TUN device and the peers
/// instead of losing packets.
const SEND_TIMEOUT: Duration = Duration::from_millis(20);

/// Datagrams side by side in a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    outer: Outer,
    start: usize,
    end: usize,
    segment: usize,
    count: usize,
}

impl Run {
    /// A run of one datagram of `len` bytes at `start`.
    pub(super) fn new(outer: Outer, start: usize, len: usize) -> Self {
        Self { outer, start, end: start + len, segment: len, count: 1 }
    }

    /// True if the datagram of `len` bytes at `start` may go with it.
    #[inline]
    pub(super) fn takes(&self, outer: Outer, start: usize, len: usize) -> bool {
        let last_is_full = self.len() == self.segment * self.count;
        last_is_full
            && !outer.single
            && self.outer == outer
            && self.end == start
            && len <= self.segment
            && self.count < MAX_SEGMENTS
            && self.len() + len <= MAX_GSO_BYTES
    }

    /// Takes one more datagram of `len` bytes.
    #[inline]
    pub(super) fn push(&mut self, len: usize) {
        self.end += len;
        self.count += 1;
    }

    /// Bytes in it.
    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    /// The run as the socket takes it, out of the buffer where it stands.
    fn transmit<'a>(&self, buffer: &'a [u8]) -> Transmit<'a> {
        Transmit {
            destination: self.outer.endpoint.remote,
            traffic_class: self.outer.traffic_class,
            contents: &buffer[self.start..self.end],
            segment_size: (self.count > 1).then_some(self.segment),
            src_ip: self.outer.endpoint.local,
            may_fragment: self.outer.may_fragment,
        }
    }
}

/// Sends runs, each out of its buffer, with as few system calls as they allow. Datagrams that are
/// lost are counted in `drops`.
pub(super) fn send_runs<'a>(
    socket: &impl DatagramSocket,
    runs: impl Iterator<Item = (&'a [u8], &'a Run)>,
    drops: &mut Counters,
) {
    let mut runs = runs.peekable();
    let mut patience = SEND_TIMEOUT;
    while runs.peek().is_some() {
        let group: ArrayVec<_, MAX_SENDS> = runs.by_ref().take(MAX_SENDS).collect();
        let transmits: ArrayVec<_, MAX_SENDS> =
            group.iter().map(|(buffer, run)| run.transmit(buffer)).collect();
        let mut at = 0;
        while at < group.len() {
            let many = group.len() - at > 1;
            at += if many { socket.try_send_many(&transmits[at..]) } else { 0 };
            // One alone, or the one at which the others stopped.
            if at < group.len() {
                drops.count(DropReason::Send, send(socket, transmits[at].clone(), &mut patience));
                at += 1;
            }
        }
    }
}

/// Sends one run, waiting for room as long as `patience` lasts. Returns how many of its datagrams
/// were lost.
fn send(socket: &impl DatagramSocket, mut transmit: Transmit<'_>, patience: &mut Duration) -> usize {
    let mut lost_before = 0;
    loop {
        match socket.try_send(&transmit) {
            SendOutcome::Sent => return lost_before,
            SendOutcome::Dropped { reason, lost } => {
                tracing::trace!(?reason, lost, to = %transmit.destination, "datagrams dropped");
                return lost_before + lost;
            }
            SendOutcome::WouldBlock { done, lost } => {
                transmit.contents = &transmit.contents[done..];
                lost_before += lost;
                if patience.is_zero() {
                    let left =
                        transmit.segment_size.map_or(1, |segment| transmit.contents.len().div_ceil(segment));
                    return lost_before + left;
                }
                *patience = socket.wait_writable(*patience);
            }
        }
    }
}

/// A send buffer in which datagrams are built and sealed in place, one behind the other.
pub(super) struct Batch {
    buffer: Box<[u8]>,
    len: usize,
    runs: ArrayVec<Run, MAX_SENDS>,
}

impl Batch {
    pub(super) fn new() -> Self {
        Self { buffer: vec![0; MAX_GSO_BYTES + MAX_SINGLE].into_boxed_slice(), len: 0, runs: ArrayVec::new() }
    }

    /// True if a datagram of `len` bytes with this outer header may join.
    #[inline]
    pub(super) fn takes(&self, outer: Outer, len: usize) -> bool {
        let Some(last) = self.runs.last() else { return true };
        // No more in all than one run may have: what is sent should still be in the core's cache.
        self.len + len <= MAX_GSO_BYTES && (last.takes(outer, self.len, len) || !self.runs.is_full())
    }

    /// Where the next datagram is built; at least [`MAX_SINGLE`] bytes.
    #[inline]
    pub(super) fn tail(&mut self) -> &mut [u8] {
        &mut self.buffer[self.len..]
    }

    /// The `len` bytes at the tail are a datagram now.
    #[inline]
    pub(super) fn push(&mut self, outer: Outer, len: usize) {
        match self.runs.last_mut() {
            Some(last) if last.takes(outer, self.len, len) => last.push(len),
            _ => self.runs.push(Run::new(outer, self.len, len)),
        }
        self.len += len;
    }

    /// Sends each datagram by itself and lets the outer IP layer cut it. Lost ones are counted in
    /// `drops`.
    #[cold]
    pub(super) fn send_fragmented(&mut self, socket: &impl DatagramSocket, drops: &mut Counters) {
        for run in &self.runs {
            let whole = run.transmit(&self.buffer);
            for contents in whole.contents.chunks(run.segment) {
                let single = Transmit { contents, segment_size: None, ..whole.clone() };
                if socket.try_send_fragmented(&single) != SendOutcome::Sent {
                    drops.drop(DropReason::Send);
                }
            }
        }
        self.runs.clear();
        self.len = 0;
    }

    /// Sends everything in it. Datagrams that are lost are counted in `drops`.
    pub(super) fn send(&mut self, socket: &impl DatagramSocket, drops: &mut Counters) {
        send_runs(socket, self.runs.iter().map(|run| (&*self.buffer, run)), drops);
        self.runs.clear();
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io::{self, IoSliceMut};
    use std::time::Duration;

    use vpnd_proto::plane::Endpoint;

    use super::*;
    use vpnd_sys::udp::{self, RecvMeta, SendOutcome, UdpOffloads};

    /// Port, contents and segment length of a send.
    type Sent = (u16, Vec<u8>, Option<usize>);

    /// Takes `together` sends with one call at most, and refuses what goes to port 9. What goes to
    /// port 8 finds room for its first datagram each time it is sent alone, and of what goes to
    /// port 7 each first datagram is lost before there is no more room. Each wait takes 8 ms.
    struct Recorder {
        together: usize,
        waits: RefCell<Vec<Duration>>,
        calls: RefCell<Vec<usize>>,
        sent: RefCell<Vec<Sent>>,
        classes: RefCell<Vec<u8>>,
    }

    impl Recorder {
        fn new(together: usize) -> Self {
            Self {
                together,
                waits: RefCell::default(),
                calls: RefCell::default(),
                sent: RefCell::default(),
                classes: RefCell::default(),
            }
        }

        fn take(&self, transmit: &Transmit<'_>) -> bool {
            let port = transmit.destination.port();
            let taken = !matches!(port, 7..=10);
            if taken {
                self.classes.borrow_mut().push(transmit.traffic_class);
                self.sent.borrow_mut().push((port, transmit.contents.to_vec(), transmit.segment_size));
            }
            taken
        }
    }

    impl DatagramSocket for Recorder {
        fn try_recv(&self, _: &mut [IoSliceMut<'_>], _: &mut [RecvMeta]) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }

        fn try_send(&self, transmit: &Transmit<'_>) -> SendOutcome {
            self.calls.borrow_mut().push(1);
            match transmit.segment_size {
                _ if self.take(transmit) => SendOutcome::Sent,
                Some(done) if transmit.destination.port() == 8 => SendOutcome::WouldBlock { done, lost: 0 },
                Some(done) if transmit.destination.port() == 7 => SendOutcome::WouldBlock { done, lost: 1 },
                // The outcome of a socket that sends them one by one.
                Some(_) if transmit.destination.port() == 10 => {
                    SendOutcome::Dropped { reason: udp::DropReason::Refused, lost: 1 }
                }
                segment => {
                    let lost = segment.map_or(1, |segment| transmit.contents.len().div_ceil(segment));
                    SendOutcome::Dropped { reason: udp::DropReason::Refused, lost }
                }
            }
        }

        fn try_send_many(&self, transmits: &[Transmit<'_>]) -> usize {
            let taken =
                transmits.iter().take(self.together).take_while(|transmit| self.take(transmit)).count();
            self.calls.borrow_mut().push(taken);
            taken
        }

        fn wait_writable(&self, timeout: Duration) -> Duration {
            self.waits.borrow_mut().push(timeout);
            timeout.saturating_sub(Duration::from_millis(8))
        }

        fn offloads(&self) -> UdpOffloads {
            unreachable!("sending does not ask")
        }
    }

    fn endpoint(port: u16) -> Outer {
        marked(port, 0)
    }

    fn marked(port: u16, traffic_class: u8) -> Outer {
        let endpoint = Endpoint { remote: ([127, 0, 0, 1], port).into(), local: None };
        Outer { endpoint, traffic_class, single: false, may_fragment: false }
    }

    fn push(batch: &mut Batch, port: u16, byte: u8, len: usize) {
        assert!(batch.takes(endpoint(port), len));
        batch.tail()[..len].fill(byte);
        batch.push(endpoint(port), len);
    }

    /// Sends the batch. Returns how many datagrams were lost.
    fn send(batch: &mut Batch, socket: &Recorder) -> u64 {
        let mut drops = Counters::default();
        batch.send(socket, &mut drops);
        assert_eq!(drops.total(), drops.dropped(DropReason::Send));
        drops.total()
    }

    #[test]
    fn equal_datagrams_join_and_a_shorter_one_ends_the_run() {
        let (mut batch, socket) = (Batch::new(), Recorder::new(64));
        for byte in 0..3 {
            push(&mut batch, 1, byte, 100);
        }
        push(&mut batch, 1, 3, 60);
        push(&mut batch, 1, 4, 60);
        push(&mut batch, 2, 5, 60);
        push(&mut batch, 2, 6, 61);
        assert_eq!(send(&mut batch, &socket), 0);
        let sent = socket.sent.take();
        let shapes: Vec<_> =
            sent.iter().map(|(port, bytes, segment)| (*port, bytes.len(), *segment)).collect();
        assert_eq!(shapes, [(1, 360, Some(100)), (1, 60, None), (2, 60, None), (2, 61, None)]);
        assert_eq!((sent[0].1[299], sent[0].1[300], sent[1].1[0]), (2, 3, 4));
        assert_eq!(socket.calls.take(), [4], "one system call for all");
        assert_eq!((send(&mut batch, &socket), socket.calls.take().len()), (0, 0), "the batch is empty now");
    }

    #[test]
    fn single_datagrams_share_a_system_call_and_no_run() {
        let (mut batch, socket) = (Batch::new(), Recorder::new(64));
        let single = Outer { single: true, ..endpoint(1) };
        for _ in 0..MAX_SENDS {
            assert!(batch.takes(single, 100));
            batch.push(single, 100);
        }
        assert!(!batch.takes(single, 100), "it is full");
        send(&mut batch, &socket);
        assert!(socket.sent.take().iter().all(|(_, bytes, segment)| bytes.len() == 100 && segment.is_none()));
        assert_eq!(socket.calls.take(), [MAX_SENDS]);
    }

    #[test]
    fn datagrams_of_different_classes_do_not_share_a_run() {
        let (mut batch, socket) = (Batch::new(), Recorder::new(64));
        for class in [2, 2, 3, 2, 0] {
            assert!(batch.takes(marked(1, class), 100));
            batch.push(marked(1, class), 100);
        }
        send(&mut batch, &socket);
        let lengths: Vec<_> = socket.sent.take().iter().map(|(_, bytes, _)| bytes.len()).collect();
        assert_eq!((lengths, socket.classes.take()), (vec![200, 100, 100, 100], vec![2, 3, 2, 0]));
        // Each is a separate run of the batch.
        for class in (0..MAX_SENDS).map(|at| (at % 2) as u8) {
            batch.push(marked(1, class), 100);
        }
        assert!(!batch.takes(marked(1, 0), 100) && batch.takes(marked(1, (MAX_SENDS as u8 - 1) % 2), 100));
    }

    #[test]
    fn a_lone_run_is_sent_by_itself() {
        let (mut batch, socket) = (Batch::new(), Recorder::new(64));
        push(&mut batch, 1, 0, 100);
        send(&mut batch, &socket);
        assert_eq!((socket.calls.take(), socket.sent.take().len()), (vec![1], 1));
    }

    #[test]
    fn what_one_send_refuses_does_not_stop_the_others() {
        let (mut batch, socket) = (Batch::new(), Recorder::new(3));
        for port in [1, 2, 9, 3, 4, 5, 6, 9] {
            push(&mut batch, port, 0, 50);
            push(&mut batch, port, 0, 50);
        }
        assert_eq!(send(&mut batch, &socket), 4, "both datagrams of both refused runs");
        let ports: Vec<_> = socket.sent.take().iter().map(|(port, ..)| *port).collect();
        assert_eq!(ports, [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn a_full_buffer_is_waited_for_in_all_and_never_after_the_last_attempt() {
        let (mut batch, socket) = (Batch::new(), Recorder::new(64));
        for len in [50, 50, 50, 50, 50, 20] {
            push(&mut batch, 8, 0, len);
        }
        for _ in 0..3 {
            push(&mut batch, 8, 1, 51);
        }
        assert_eq!(
            send(&mut batch, &socket),
            2 + 2,
            "four of the first run went, with three waits between; then one"
        );
        let waits = [20, 12, 4].map(Duration::from_millis);
        assert_eq!((socket.calls.take(), socket.waits.take()), (vec![0, 1, 1, 1, 1, 1], waits.to_vec()));
        for _ in 0..6 {
            push(&mut batch, 8, 0, 50);
        }
        assert_eq!(
            (send(&mut batch, &socket), socket.waits.take()),
            (2, waits.to_vec()),
            "the next batch has its own time"
        );
    }

    #[test]
    fn only_what_was_lost_is_counted() {
        let (mut batch, socket) = (Batch::new(), Recorder::new(64));
        for _ in 0..3 {
            push(&mut batch, 10, 0, 50);
        }
        assert_eq!(send(&mut batch, &socket), 1, "two went");
        for _ in 0..6 {
            push(&mut batch, 7, 0, 50);
        }
        assert_eq!(send(&mut batch, &socket), 6, "one before each of the waits, and the rest");
        assert_eq!(socket.waits.take().len(), 3);
    }

    #[test]
    fn a_batch_is_no_longer_than_one_ip_datagram() {
        let mut batch = Batch::new();
        let mut pushed = 0;
        while batch.takes(endpoint(1), 1_448) {
            batch.push(endpoint(1), 1_448);
            pushed += 1;
        }
        assert_eq!(pushed, MAX_GSO_BYTES / 1_448);
        assert!(batch.tail().len() >= MAX_SINGLE);
    }

    #[test]
    fn a_run_has_no_more_datagrams_than_the_kernel_takes_and_a_batch_no_more_runs() {
        let (mut batch, socket) = (Batch::new(), Recorder::new(64));
        for _ in 0..=MAX_SEGMENTS {
            push(&mut batch, 1, 0, 100);
        }
        send(&mut batch, &socket);
        assert_eq!(socket.sent.take().iter().map(|sent| sent.1.len()).collect::<Vec<_>>(), [6_400, 100]);
        for port in 0..MAX_SENDS as u16 {
            push(&mut batch, 100 + port, 0, 100);
        }
        assert!(!batch.takes(endpoint(1), 100) && batch.takes(endpoint(99 + MAX_SENDS as u16), 100));
    }
}
