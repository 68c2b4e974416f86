//! Whole shards, thread and loop included: each on a socket of the loopback device and a pair of
//! sockets as its TUN queue. What comes in is no packet of a tunnel, so it is dropped and counted.

use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::time::Instant;

use tokio::runtime::Builder;

use super::*;
use vpnd_sys::udp::SocketOptions;

/// Limit for whatever a shard should do at once.
const TIMEOUT: Duration = Duration::from_secs(60);
/// So long that only a shard that polls without an end would still do so.
const LONG: Duration = Duration::from_secs(600);

struct One {
    shards: Shards,
    /// The other end of the TUN queue.
    tun: UnixDatagram,
    /// Sends to the shard's socket.
    peer: UdpSocket,
}

impl One {
    fn start(busy_poll: Duration) -> Self {
        let (tun, queue) = UnixDatagram::pair().unwrap();
        queue.set_nonblocking(true).unwrap();
        let socket = ShardSocket::bind("127.0.0.1:0".parse().unwrap(), &SocketOptions::default()).unwrap();
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        peer.connect(socket.local_addr().unwrap()).unwrap();
        let spec = ShardSpec {
            number: 0,
            core: None,
            priority: 0,
            busy_poll,
            role: Role::Gateway,
            policy: Arc::new(Policy::default()),
            hash_seed: 0,
            tun: TunQueue::adopt(queue.into()),
            tun_offloads: TunOffloads::NONE,
            mtu: 1_400,
            copy_dscp: false,
            socket,
            first: Vec::new(),
            quic: None,
            wireguard: None,
        };
        let (events, _) = mpsc::channel(EVENT_QUEUE);
        Self { shards: Shards::start(vec![spec], &events).unwrap(), tun, peer }
    }

    async fn poll_counts(&self) -> PollCounts {
        self.shards.report().await.remove(0).poll
    }

    /// Sends until the shard polls: one packet after the other, since it takes several that are
    /// sent together for one.
    async fn make_it_poll(&self) -> PollCounts {
        let start = Instant::now();
        loop {
            self.peer.send(b"x").unwrap();
            self.tun.send(b"x").unwrap();
            let counts = self.poll_counts().await;
            if counts.found > 0 {
                return counts;
            }
            assert!(start.elapsed() < TIMEOUT, "{counts:?}");
        }
    }
}

fn run_test(test: impl Future<Output = ()>) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TIMEOUT, test).await.expect("in time") });
}

#[test]
fn a_polling_shard_finds_packets_without_a_wake_up_and_obeys() {
    run_test(async {
        let one = One::start(LONG);
        let counts = one.make_it_poll().await;
        // From here on it looks until the next packet comes. Each of these has it answer meanwhile.
        one.shards.set_mtu(1_300).await;
        one.shards.barrier().await;
        let frozen = one.shards.freeze().await.unwrap();
        assert!(frozen.progress.iter().all(Vec::is_empty));
        frozen.resume();
        one.shards.barrier().await;
        let later = one.make_it_poll().await;
        assert!(later.found >= counts.found && later.time >= counts.time, "{later:?}");
        drop(one);
    });
}

#[test]
fn a_frozen_shard_that_polled_ends_when_it_is_not_resumed() {
    run_test(async {
        let one = One::start(LONG);
        one.make_it_poll().await;
        drop(one.shards.freeze().await.unwrap());
        drop(one);
    });
}

#[test]
fn a_shard_without_a_limit_for_polling_sleeps() {
    run_test(async {
        let one = One::start(Duration::ZERO);
        for _ in 0..200 {
            one.peer.send(b"x").unwrap();
            one.tun.send(b"x").unwrap();
            one.shards.barrier().await;
        }
        let report = one.shards.report().await.remove(0);
        assert_eq!(report.poll, PollCounts::default());
        assert!(report.counters.dropped(plane::DropReason::BadHeader) > 0, "packets came");
    });
}
