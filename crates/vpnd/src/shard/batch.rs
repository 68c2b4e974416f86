//! Datagrams of equal length on their way to one endpoint: one system call sends them all (UDP GSO).
//!
//! INVARIANT: all datagrams of a batch but the last have the same length, and they all go to one endpoint.

use vpnd_proto::plane::Endpoint;
use vpnd_proto::wire::HEADER_LEN;

use crate::sys::udp::{MAX_GSO_BYTES, Transmit};

/// Room behind a packet for what any suite adds.
pub(super) const MAX_OVERHEAD: usize = 48;
/// The longest single datagram: header, longest packet, longest growth.
const MAX_SINGLE: usize = HEADER_LEN + 65_535 + MAX_OVERHEAD;

/// The most datagrams in one send: every kernel with UDP GSO takes as many (`UDP_MAX_SEGMENTS`). Where there is no such
/// offload the socket sends the batch one by one.
const MAX_SEGMENTS: usize = 64;

/// A send buffer in which datagrams are built and sealed in place, one behind the other.
pub(super) struct Batch {
    buffer: Box<[u8]>,
    len: usize,
    segment: usize,
    count: usize,
    /// A shorter datagram came: nothing may follow it.
    closed: bool,
    endpoint: Option<Endpoint>,
}

impl Batch {
    pub(super) fn new() -> Self {
        Self {
            buffer: vec![0; MAX_GSO_BYTES + MAX_SINGLE].into_boxed_slice(),
            len: 0,
            segment: 0,
            count: 0,
            closed: false,
            endpoint: None,
        }
    }

    /// True if a datagram of `len` bytes to `endpoint` may join.
    pub(super) fn takes(&self, endpoint: Endpoint, len: usize) -> bool {
        self.count == 0
            || (!self.closed
                && self.endpoint == Some(endpoint)
                && len <= self.segment
                && self.count < MAX_SEGMENTS
                && self.len + len <= MAX_GSO_BYTES)
    }

    /// Where the next datagram is built; at least [`MAX_SINGLE`] bytes.
    pub(super) fn tail(&mut self) -> &mut [u8] {
        &mut self.buffer[self.len..]
    }

    /// The `len` bytes at the tail are a datagram now.
    pub(super) fn push(&mut self, endpoint: Endpoint, len: usize) {
        if self.count == 0 {
            self.segment = len;
            self.endpoint = Some(endpoint);
        }
        self.closed = len < self.segment;
        self.len += len;
        self.count += 1;
    }

    /// What to send; `None` if the batch is empty.
    pub(super) fn transmit(&self) -> Option<(Transmit<'_>, usize)> {
        let endpoint = self.endpoint?;
        Some((transmit(&self.buffer[..self.len], self.segment, endpoint), self.count))
    }

    pub(super) fn clear(&mut self) {
        (self.len, self.segment, self.count, self.closed, self.endpoint) = (0, 0, 0, false, None);
    }
}

/// One send of `contents`, cut into datagrams of `segment` bytes. Outer datagrams are not ECN-capable, so no congestion mark
/// is lost by opening them (RFC 6040, compatibility mode).
pub(super) fn transmit(contents: &[u8], segment: usize, endpoint: Endpoint) -> Transmit<'_> {
    Transmit {
        destination: endpoint.remote,
        ecn: None,
        contents,
        segment_size: (segment < contents.len()).then_some(segment),
        src_ip: endpoint.local,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(port: u16) -> Endpoint {
        Endpoint { remote: ([127, 0, 0, 1], port).into(), local: None }
    }

    #[test]
    fn equal_datagrams_join_and_a_shorter_one_is_the_last() {
        let mut batch = Batch::new();
        assert!(batch.transmit().is_none());
        for _ in 0..3 {
            assert!(batch.takes(endpoint(1), 100));
            batch.push(endpoint(1), 100);
        }
        assert!(!batch.takes(endpoint(1), 101), "a longer one does not fit the segment size");
        assert!(!batch.takes(endpoint(2), 100), "another endpoint");
        batch.push(endpoint(1), 60);
        assert!(!batch.takes(endpoint(1), 60), "behind a shorter one nothing may follow");
        let (transmit, count) = batch.transmit().unwrap();
        assert_eq!((transmit.contents.len(), transmit.segment_size, count), (360, Some(100), 4));
        batch.clear();
        assert!(batch.takes(endpoint(2), 1_000));
    }

    #[test]
    fn a_batch_stays_within_one_ip_datagram() {
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
    fn a_batch_has_no_more_datagrams_than_the_kernel_takes() {
        let mut batch = Batch::new();
        let mut pushed = 0;
        while batch.takes(endpoint(1), 100) {
            batch.push(endpoint(1), 100);
            pushed += 1;
        }
        assert_eq!(pushed, MAX_SEGMENTS);
    }
}
