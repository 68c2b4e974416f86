//! The standard suites by every backend, in turns: nanoseconds to seal and to open a packet, so
//! that other work on the machine slows all of them alike. `cargo bench -p vpnd-benches --bench
//! backends` prints a table in Markdown.

use std::hint::black_box;
use std::time::Instant;

use vpnd_crypto::{Backend, Direction, EpochSecret, OpenKey, SealKey, Suite};

const AAD: [u8; 16] = [0x80; 16];
/// A small packet, an unfavourable one, an ordinary full one, WireGuard's, a jumbo one: plaintext
/// bytes.
const PACKET_LENS: [usize; 5] = [64, 512, 1_408, 1_424, 8_192];
/// Packets that are prepared at once, outside the measured time; so few that they stay in the
/// core's cache.
const PREPARED: usize = 32;
/// Batches of this many packets between two looks at the clock.
const BATCHES: usize = 60;

/// One backend with its keys, its packets, and how long sealing and opening took in each round.
struct Candidate {
    backend: Backend,
    seal_key: SealKey,
    open_key: OpenKey,
    counter: u64,
    sealed: Vec<u8>,
    packets: Vec<Vec<u8>>,
    rounds: [Vec<f64>; 2],
}

impl Candidate {
    fn new(suite: Suite, backend: Backend, len: usize) -> Option<Self> {
        let lane_key = EpochSecret::new([0x42; 32]).lane_key(suite, Direction::ToGateway, 0);
        let seal_key = SealKey::new(suite, backend, &lane_key, None).ok()?;
        let open_key = OpenKey::new(suite, backend, &lane_key, None).ok()?;
        let mut sealed = vec![0; len + 16];
        seal_key.seal_in_place(0, &AAD, &mut sealed, len).expect("the buffer has room");
        let packets = vec![sealed.clone(); PREPARED];
        Some(Self { backend, seal_key, open_key, counter: 0, sealed, packets, rounds: Default::default() })
    }

    fn round(&mut self, len: usize) {
        let [seal, open] = &mut self.rounds;
        let packets = (BATCHES * PREPARED) as f64;
        let start = Instant::now();
        for _ in 0..BATCHES {
            for packet in &mut self.packets {
                self.counter += 1;
                let sealed =
                    self.seal_key.seal_in_place(black_box(self.counter), &AAD, black_box(packet), len);
                black_box(sealed).expect("the buffer has room");
            }
        }
        seal.push(start.elapsed().as_nanos() as f64 / packets);
        let mut spent = 0;
        for _ in 0..BATCHES {
            // Opening consumes the packets.
            self.packets.iter_mut().for_each(|packet| packet.copy_from_slice(&self.sealed));
            let start = Instant::now();
            for packet in &mut self.packets {
                let opened = self.open_key.open_in_place(black_box(0), &AAD, black_box(packet));
                black_box(opened).expect("the packet is authentic");
            }
            spent += start.elapsed().as_nanos();
        }
        open.push(spent as f64 / packets);
    }
}

/// The median and the lowest tenth, which other work has disturbed least.
fn figures(rounds: &mut [f64]) -> [f64; 2] {
    rounds.sort_by(f64::total_cmp);
    [rounds[rounds.len() / 2], rounds[rounds.len() / 10]]
}

fn main() {
    // A test only has to run.
    let rounds = if std::env::args().any(|arg| arg == "--bench") { 200 } else { 1 };
    println!("median (lowest tenth) of {rounds} rounds, ns to seal, ns to open");
    for suite in [Suite::Aes256Gcm, Suite::Aes128Gcm, Suite::ChaCha20Poly1305] {
        for len in PACKET_LENS {
            let mut candidates: Vec<_> =
                Backend::ALL.into_iter().filter_map(|backend| Candidate::new(suite, backend, len)).collect();
            for _ in 0..rounds {
                candidates.iter_mut().for_each(|candidate| candidate.round(len));
            }
            print!("| {suite}, {len} |");
            for candidate in &mut candidates {
                let [seal, open] = candidate.rounds.each_mut().map(|rounds| figures(rounds));
                print!(
                    " {}: {:.0} ({:.0}), {:.0} ({:.0}) |",
                    candidate.backend, seal[0], seal[1], open[0], open[1]
                );
            }
            println!();
        }
    }
}
