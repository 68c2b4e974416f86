use std::collections::VecDeque;
use std::sync::Mutex;

use tokio::io::{DuplexStream, duplex};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::*;

const PATIENCE: Patience = Patience { first: Duration::from_secs(20), silence: Duration::from_secs(600) };

/// A socket's side that keeps what it is sent.
#[derive(Default)]
struct Kept {
    sent: Mutex<Vec<Vec<u8>>>,
    waiting: Mutex<VecDeque<Vec<u8>>>,
    notify: Notify,
}

impl Kept {
    fn arrive(&self, datagram: &[u8]) {
        self.waiting.lock().unwrap().push_back(datagram.to_vec());
        self.notify.notify_one();
    }
}

impl Datagrams for Kept {
    fn send(&self, run: &[u8], segment: usize) {
        self.sent.lock().unwrap().extend(run.chunks(segment).map(<[u8]>::to_vec));
    }

    async fn readable(&self) -> io::Result<()> {
        while self.waiting.lock().unwrap().is_empty() {
            self.notify.notified().await;
        }
        Ok(())
    }

    fn try_receive(&self, into: &mut [u8]) -> io::Result<Run> {
        let Some(next) = self.waiting.lock().unwrap().pop_front() else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        into[..next.len()].copy_from_slice(&next);
        Ok(Run::single(next.len()))
    }
}

struct Running {
    peer: DuplexStream,
    kept: std::sync::Arc<Kept>,
    dropped: std::sync::Arc<AtomicU64>,
    relay: JoinHandle<End>,
}

/// A relay whose peer's pipe holds this many bytes.
fn running(room: usize) -> Running {
    let (peer, stream) = duplex(room);
    let (kept, dropped) = <(std::sync::Arc<Kept>, std::sync::Arc<AtomicU64>)>::default();
    let (socket, count) = (kept.clone(), dropped.clone());
    let relay = tokio::spawn(async move { relay(stream, b"\0", &*socket, PATIENCE, &count).await });
    Running { peer, kept, dropped, relay }
}

#[tokio::test(start_paused = true)]
async fn datagrams_go_both_ways() {
    let Running { mut peer, kept, relay, .. } = running(1 << 10);
    // The first byte was read before.
    peer.write_all(b"\x03abc\0\0\0\x01x").await.unwrap();
    kept.arrive(b"from the gateway");
    let mut came = [0; 18];
    peer.read_exact(&mut came).await.unwrap();
    assert_eq!(&came, b"\0\x10from the gateway");
    drop(peer);
    assert!(matches!(relay.await.unwrap(), End::Closed));
    assert_eq!(*kept.sent.lock().unwrap(), [b"abc".to_vec(), b"x".to_vec()]);
}

#[tokio::test(start_paused = true)]
async fn what_finds_no_room_is_dropped_and_a_peer_that_takes_nothing_is_given_up() {
    let Running { mut peer, kept, dropped, relay } = running(64);
    peer.write_all(b"\x01x").await.unwrap();
    (0..200).for_each(|_| kept.arrive(&[7; 1_000]));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let lost = dropped.load(Ordering::Relaxed);
    assert!((100..=130).contains(&lost), "{lost} of 200 are lost");
    // A slow peer gets the rest, in order and whole.
    let mut frame = vec![0; 1_002];
    for _ in 0..200 - lost {
        peer.read_exact(&mut frame).await.unwrap();
        assert_eq!(frame[..3], [3, 232, 7]);
    }
    (0..2).for_each(|_| kept.arrive(&[7; 1_000]));
    let began = Instant::now();
    assert!(matches!(relay.await.unwrap(), End::Stalled));
    assert!(began.elapsed() >= STALLED);
}

#[tokio::test(start_paused = true)]
async fn silent_and_slow_peers_are_given_up() {
    // Nothing answers what it sends.
    let unanswered = running(64);
    let mut peer = unanswered.peer;
    peer.write_all(b"\x01x").await.unwrap();
    let began = Instant::now();
    assert!(matches!(unanswered.relay.await.unwrap(), End::Unanswered));
    assert_eq!(began.elapsed(), PATIENCE.first);

    let silent = running(64);
    let mut peer = silent.peer;
    peer.write_all(b"\x01x").await.unwrap();
    silent.kept.arrive(b"y");
    let began = Instant::now();
    assert!(matches!(silent.relay.await.unwrap(), End::Silent));
    assert_eq!(began.elapsed(), PATIENCE.silence);

    // An empty datagram in two pieces is whole, so the next one has its own time.
    let empty = running(64);
    let mut peer = empty.peer;
    empty.kept.arrive(b"y");
    for (piece, after) in [(&b"\0"[..], 1), (b"\0", STALLED.as_secs()), (b"\x01x", 1)] {
        tokio::time::sleep(Duration::from_secs(after)).await;
        peer.write_all(piece).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(*empty.kept.sent.lock().unwrap(), [b"x".to_vec()]);
    drop(peer);
    assert!(matches!(empty.relay.await.unwrap(), End::Closed));

    // A byte now and then of one datagram.
    let slow = running(64);
    let mut peer = slow.peer;
    slow.kept.arrive(b"y");
    let began = Instant::now();
    let bytes = tokio::spawn(async move {
        while peer.write_all(&[255]).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    });
    assert!(matches!(slow.relay.await.unwrap(), End::Cut));
    assert_eq!(began.elapsed(), STALLED);
    bytes.abort();
}
