//! Inline crypto against crypto workers: whether it pays to hand whole batches to other threads for
//! sealing.
//!
//! A flow copies a super-packet in (as reading from a TUN device does), cuts it behind room for
//! headers, has it sealed and copies the datagrams out (as sending does). Inline it seals by
//! itself; otherwise it passes its batches to workers over channels and takes them back. Each
//! thread that seals has its own key, so nothing but the batches is shared.

use std::hint::black_box;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use vpnd_crypto::{Backend, SealKey, Suite};
use vpnd_packet::Packet;
use vpnd_packet::offload::{PeerFeatures, Slicer};
use vpnd_proto::wire::{HEADER_LEN, Header, Index};

use crate::aead::keys;
use crate::traffic::{CAMPUS, CLIENT, MAX_SLICES, header, packet, super_len};

/// Batches under way between a flow and each of its workers.
const DEPTH: usize = 4;
/// Room for what any suite adds.
const OVERHEAD: usize = 48;

/// The threads that seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrangement {
    /// Flows at once, each on its own thread.
    pub flows: usize,
    /// Workers of each flow; none: it seals by itself.
    pub workers: usize,
}

impl Arrangement {
    /// Threads in all.
    pub const fn threads(self) -> usize {
        self.flows * (1 + self.workers)
    }
}

/// The work of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Done {
    /// Bytes of packets, all flows together.
    pub bytes: u64,
    /// From the start of the first thread to the end of the last.
    pub wall: Duration,
    /// CPU time of all threads.
    pub cpu: Duration,
}

/// Carries `super_packets` over each flow.
pub fn run(suite: Suite, backend: Backend, arrangement: Arrangement, super_packets: u64) -> Done {
    let start = Instant::now();
    let cpu = std::thread::scope(|scope| {
        let flows: Vec<_> = (0..arrangement.flows)
            .map(|_| scope.spawn(move || flow(suite, backend, arrangement.workers, super_packets)))
            .collect();
        flows.into_iter().map(|flow| flow.join().expect("a flow does not panic")).sum()
    });
    let bytes = super_packets * (arrangement.flows * super_len(MAX_SLICES)) as u64;
    Done { bytes, wall: start.elapsed(), cpu }
}

fn flow(suite: Suite, backend: Backend, workers: usize, super_packets: u64) -> Duration {
    if workers == 0 {
        inline(suite, backend, super_packets)
    } else {
        handed(suite, backend, workers, super_packets)
    }
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Datagrams of equal length, one behind the other.
struct Batch {
    bytes: Vec<u8>,
    stride: usize,
}

/// The part of the work that stays with the flow.
struct Work {
    packet: Vec<u8>,
    read: Vec<u8>,
    sent: Vec<u8>,
    suite: Suite,
}

impl Work {
    fn new(suite: Suite) -> Self {
        let packet = packet(CLIENT, CAMPUS, super_len(MAX_SLICES));
        Self { read: vec![0; packet.len()], packet, sent: vec![0; Self::ROOM], suite }
    }

    const ROOM: usize = super_len(MAX_SLICES) + MAX_SLICES * (HEADER_LEN + OVERHEAD + 64);

    fn batch() -> Batch {
        Batch { bytes: vec![0; Self::ROOM], stride: 0 }
    }

    /// Reads and cuts.
    fn begin(&mut self, batch: &mut Batch) {
        self.read.copy_from_slice(black_box(&self.packet));
        let packet = Packet::parse(&self.read).expect("a good packet");
        let peer = PeerFeatures { partial_checksum: true };
        let slicer = Slicer::new(&header(self.read.len()), &packet, peer).expect("a super-packet");
        batch.stride = HEADER_LEN + self.suite.sealed_len(slicer.slice_len(0));
        for slice in 0..slicer.count() {
            slicer.write(slice, &mut batch.bytes[slice * batch.stride + HEADER_LEN..]);
        }
    }

    /// Sends.
    fn finish(&mut self, batch: &Batch) {
        let len = batch.stride * MAX_SLICES;
        self.sent[..len].copy_from_slice(&batch.bytes[..len]);
        black_box(&self.sent);
    }
}

/// Seals a batch with one lane's key.
struct Sealer {
    key: SealKey,
    counter: u64,
}

impl Sealer {
    fn new(suite: Suite, backend: Backend) -> Self {
        Self { key: keys(suite, backend).0, counter: 0 }
    }

    fn seal(&mut self, batch: &mut Batch) {
        let plain = crate::traffic::MTU;
        for datagram in batch.bytes.chunks_exact_mut(batch.stride).take(MAX_SLICES) {
            // Measuring takes more packets than a key may seal.
            self.counter = (self.counter + 1) % self.key.suite().limits().refuse_after;
            let (head, body) = datagram.split_at_mut(HEADER_LEN);
            head.copy_from_slice(
                &Header { lane: 0, confirm: false, index: Index(7), counter: self.counter }.to_bytes(),
            );
            self.key.seal_in_place(self.counter, head, body, plain).expect("the batch has room");
        }
    }
}

fn inline(suite: Suite, backend: Backend, super_packets: u64) -> Duration {
    let start = thread_cpu();
    let (mut work, mut sealer, mut batch) = (Work::new(suite), Sealer::new(suite, backend), Work::batch());
    for _ in 0..super_packets {
        work.begin(&mut batch);
        sealer.seal(&mut batch);
        work.finish(&batch);
    }
    thread_cpu() - start
}

fn handed(suite: Suite, backend: Backend, workers: usize, super_packets: u64) -> Duration {
    std::thread::scope(|scope| {
        let (back, sealed) = sync_channel::<Batch>(DEPTH * workers);
        let (doors, threads): (Vec<_>, Vec<_>) = (0..workers)
            .map(|_| {
                let (door, inbox) = sync_channel(DEPTH);
                let back = back.clone();
                (door, scope.spawn(move || worker(Sealer::new(suite, backend), &inbox, &back)))
            })
            .unzip();
        let own = hand_out(Work::new(suite), doors, &sealed, super_packets);
        own + threads
            .into_iter()
            .map(|thread| thread.join().expect("a worker does not panic"))
            .sum::<Duration>()
    })
}

fn worker(mut sealer: Sealer, inbox: &Receiver<Batch>, back: &SyncSender<Batch>) -> Duration {
    let start = thread_cpu();
    while let Ok(mut batch) = inbox.recv() {
        sealer.seal(&mut batch);
        if back.send(batch).is_err() {
            break;
        }
    }
    thread_cpu() - start
}

/// Keeps `DEPTH` batches under way to each worker, in turn.
fn hand_out(
    mut work: Work,
    doors: Vec<SyncSender<Batch>>,
    sealed: &Receiver<Batch>,
    super_packets: u64,
) -> Duration {
    let start = thread_cpu();
    let mut free: Vec<Batch> = (0..DEPTH * doors.len()).map(|_| Work::batch()).collect();
    let (mut begun, mut finished) = (0, 0);
    while finished < super_packets {
        while begun < super_packets
            && let Some(mut batch) = free.pop()
        {
            work.begin(&mut batch);
            doors[begun as usize % doors.len()].send(batch).expect("the workers live as long as their doors");
            begun += 1;
        }
        let batch = sealed.recv().expect("a batch is under way");
        work.finish(&batch);
        free.push(batch);
        finished += 1;
    }
    // The workers end when their doors are closed.
    drop(doors);
    thread_cpu() - start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_arrangement_carries_everything() {
        for (flows, workers) in [(1, 0), (1, 1), (2, 0), (1, 3), (2, 2)] {
            let arrangement = Arrangement { flows, workers };
            let done = run(Suite::ChaCha20Poly1305, Backend::Ring, arrangement, 9);
            assert_eq!(done.bytes, (9 * flows * super_len(MAX_SLICES)) as u64);
            assert!(done.cpu > Duration::ZERO && arrangement.threads() == flows * (1 + workers));
        }
    }
}
