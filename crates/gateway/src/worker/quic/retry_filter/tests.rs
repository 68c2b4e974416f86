//! Tests of the retry filter on a simulated socket.

use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use vpnd_proto::admission::Limits;

use super::*;
use crate::worker::relayed::Relayed;

/// A socket that is read in batches of this many datagrams at most.
const BATCH: usize = 4;

/// Each read finds as many first datagrams of strangers as `found` says, all from different
/// networks.
#[derive(Debug)]
struct Flood {
    found: usize,
    strangers: AtomicU32,
    answered: Mutex<Vec<SocketAddr>>,
}

impl AsyncUdpSocket for Flood {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        unreachable!("nothing waits for room to send")
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.answered.lock().unwrap().push(transmit.destination);
        Ok(())
    }

    fn poll_recv(
        &self,
        _: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        for (buffer, meta) in bufs.iter_mut().zip(meta.iter_mut()).take(self.found) {
            let datagram = initial();
            buffer[..datagram.len()].copy_from_slice(&datagram);
            let number = self.strangers.fetch_add(1, Ordering::Relaxed);
            let source = Ipv4Addr::from_bits(number.wrapping_mul(0x9E37_79B9));
            let (len, addr) = (datagram.len(), SocketAddr::from((source, 4_000)));
            *meta = RecvMeta { addr, len, stride: len, ecn: None, dst_ip: None };
        }
        Poll::Ready(Ok(self.found))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok((Ipv4Addr::LOCALHOST, 1).into())
    }
}

/// The readable part of a client's first datagram: version 1, a destination id, no source id, no
/// token.
fn initial() -> Vec<u8> {
    let mut datagram = vec![0; retry::MIN_INITIAL];
    datagram[..6].copy_from_slice(&[0xC0, 0, 0, 0, 1, 8]);
    datagram
}

/// Counts the strangers of `reads` reads that are answered.
fn answered(found: usize, reads: usize) -> usize {
    let flood = Arc::new(Flood { found, strangers: AtomicU32::new(1), answered: Mutex::default() });
    let admission = AdmissionControl::new(Limits { places: 256, handshakes_per_s: 500 }, Relayed::default());
    let keys = super::super::Keys::load_or_create(tempfile::tempdir().unwrap().path()).unwrap();
    let retry_filter = RetryFilter::new(
        Arc::clone(&flood) as _,
        admission,
        Arc::clone(&keys.tokens) as _,
        Arc::default(),
        Diverted::default(),
    );
    let mut buffers = vec![[0; 1_500]; BATCH];
    let mut metas = [RecvMeta::default(); BATCH];
    for _ in 0..reads / BATCHES {
        let mut slices: Vec<IoSliceMut<'_>> =
            buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
        let polled = retry_filter.poll_recv(
            &mut Context::from_waker(std::task::Waker::noop()),
            &mut slices,
            &mut metas,
        );
        assert!(polled.is_pending(), "nothing of this is for QUIC");
    }
    flood.answered.lock().unwrap().len()
}

#[test]
fn strangers_are_answered_less_often_the_longer_every_read_is_full() {
    const READS: usize = 64;
    assert_eq!(answered(BATCH - 1, READS), READS * (BATCH - 1), "whoever keeps up answers all");
    let flooded = answered(BATCH, READS);
    // All of the first seven reads, then a half, a quarter and so on of eight reads each.
    assert!((40..80).contains(&flooded), "{flooded} of {}", READS * BATCH);
}

#[test]
fn merged_datagrams_are_sifted_one_by_one() {
    let flood = Arc::new(Flood { found: 0, strangers: AtomicU32::new(1), answered: Mutex::default() });
    let admission = AdmissionControl::new(Limits { places: 256, handshakes_per_s: 500 }, Relayed::default());
    let keys = super::super::Keys::load_or_create(tempfile::tempdir().unwrap().path()).unwrap();
    let retry_filter = RetryFilter::new(
        Arc::clone(&flood) as _,
        admission,
        Arc::clone(&keys.tokens) as _,
        Arc::default(),
        Diverted::default(),
    );
    // A stranger's first datagram between two of a connection that is up, and a shorter one at the
    // end.
    let mut buffer = [vec![0x41; 1_200], initial(), vec![0x42; 1_200], vec![0x43; 30]].concat();
    let addr = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 4_000));
    let meta = RecvMeta { addr, len: buffer.len(), stride: 1_200, ecn: None, dst_ip: None };
    let left = retry_filter.filter_segments(&mut buffer, &meta, 0);
    assert_eq!(left, 2 * 1_200 + 30);
    assert_eq!(buffer[..left], [vec![0x41; 1_200], vec![0x42; 1_200], vec![0x43; 30]].concat());
    assert_eq!(*flood.answered.lock().unwrap(), [addr]);
}

#[test]
fn an_unknown_first_byte_is_counted_and_dropped() {
    let flood = Arc::new(Flood { found: 0, strangers: AtomicU32::new(1), answered: Mutex::default() });
    let admission = AdmissionControl::new(Limits { places: 256, handshakes_per_s: 500 }, Relayed::default());
    let keys = super::super::Keys::load_or_create(tempfile::tempdir().unwrap().path()).unwrap();
    let tokens = Arc::clone(&keys.tokens) as _;
    let retry_filter = RetryFilter::new(
        Arc::clone(&flood) as _,
        admission.clone(),
        tokens,
        Arc::default(),
        Diverted::default(),
    );
    let meta = RecvMeta {
        addr: SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 4_000)),
        len: 40,
        stride: 40,
        ecn: None,
        dst_ip: None,
    };
    for (first, is_quic) in [
        (0x00, false),
        (0x04, false),
        (0x05, false),
        (0x3F, false),
        (0x80, false),
        (0xBF, false),
        (0x40, true),
    ] {
        assert_eq!(retry_filter.is_for_quic(&[first; 40], &meta, 0), is_quic, "{first:#x}");
    }
    assert_eq!(admission.counts()["not_quic"], 6);
}
