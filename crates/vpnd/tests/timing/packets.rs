//! Whether sealing, opening or refusing a packet takes longer for some keys and bytes than for
//! others, with each backend of AES-GCM and ChaCha20-Poly1305: a fixed key and packet against
//! random ones, and a tag that is wrong in its first byte against one that is wrong in its last.

use std::cell::RefCell;

use rand::RngExt as _;
use rand::rngs::StdRng;
use vpnd_crypto::{Backend, Direction, EpochSecret, OpenKey, SealKey, Suite};

use super::leak::{self, Found};
use super::{MOST_T, number};

/// Plaintext of a packet: chunks, vectors and a part of one.
const LEN: usize = 1_401;
const AAD: [u8; 16] = [0x80; 16];
const SUITES: [Suite; 2] = [Suite::Aes256Gcm, Suite::ChaCha20Poly1305];
const SEALED: usize = LEN + 16;

#[derive(Clone, Copy, Debug)]
enum Work {
    Seal,
    Open,
    Refuse,
}

/// Keys and the packet for one measurement, always in the same places.
struct Place {
    suite: Suite,
    backend: Backend,
    keys: Option<(SealKey, OpenKey)>,
    packet: [u8; SEALED],
}

impl Place {
    /// Made by the same steps for both kinds: kind 0 takes random bytes times nothing.
    fn prepare(&mut self, work: Work, kind: usize, random: &mut StdRng) {
        let mask = (kind as u8).wrapping_neg();
        let mut secret: [u8; 32] = random.random();
        secret.iter_mut().for_each(|byte| *byte &= mask);
        random.fill(&mut self.packet[..]);
        // Refused packets are alike but for their tags.
        if !matches!(work, Work::Refuse) {
            self.packet.iter_mut().for_each(|byte| *byte &= mask);
        } else {
            secret = [7; 32];
        }
        let lane = EpochSecret::new(secret).lane_key(self.suite, Direction::ToGateway, 0);
        self.keys = None;
        let seal_key = SealKey::new(self.suite, self.backend, &lane, None).unwrap();
        let open_key = OpenKey::new(self.suite, self.backend, &lane, None).unwrap();
        // Both keys are used once before it counts, so that what they are made of is in the cache.
        let mut other = self.packet;
        seal_key.seal_in_place(0, &AAD, &mut other, LEN).unwrap();
        open_key.open_in_place(0, &AAD, &mut other).unwrap();
        if !matches!(work, Work::Seal) {
            seal_key.seal_in_place(1, &AAD, &mut self.packet, LEN).unwrap();
        }
        if matches!(work, Work::Refuse) {
            self.packet[LEN + 15 * kind] ^= 1;
        }
        self.keys = Some((seal_key, open_key));
    }

    fn work(&mut self, work: Work) {
        let (seal_key, open_key) = self.keys.as_ref().unwrap();
        match work {
            Work::Seal => drop(seal_key.seal_in_place(1, &AAD, &mut self.packet, LEN).unwrap()),
            Work::Open => drop(open_key.open_in_place(1, &AAD, &mut self.packet).unwrap()),
            Work::Refuse => drop(open_key.open_in_place(1, &AAD, &mut self.packet).unwrap_err()),
        }
    }
}

fn look(suite: Suite, backend: Backend, work: Work, samples: usize, seed: u64) -> Found {
    let place = RefCell::new(Place { suite, backend, keys: None, packet: [0; SEALED] });
    leak::look(
        samples,
        seed,
        |kind, random| place.borrow_mut().prepare(work, kind, random),
        |()| place.borrow_mut().work(work),
    )
}

/// Our own code is held to the bar; libraries are measured to compare with. Few packets, as in a
/// run of all tests, only show that the measurement works: `./x timing` takes many.
#[test]
fn a_packet_takes_as_long_whatever_its_bytes_and_key() {
    let samples = number("VPND_TIMING_PACKETS", 0) as usize;
    let seed = u64::from(number("VPND_TIMING_SEED", 1));
    let mut leaks = Vec::new();
    let all = SUITES.into_iter().flat_map(|suite| Backend::ALL.map(|backend| (suite, backend)));
    for (suite, backend) in all.filter(|(suite, backend)| backend.supports(*suite)) {
        for work in [Work::Seal, Work::Open, Work::Refuse] {
            let found = look(suite, backend, work, samples.max(500), seed);
            println!(
                "{work:?} {suite} by {backend}: |t| = {:.2} over {} packets; {:.0} ns each, the other kind takes {:+.2} ns",
                found.t.abs(),
                found.samples,
                found.mean_ns,
                found.difference_ns
            );
            if samples > 0 && !Backend::LIBRARIES.contains(&backend) && found.t.abs() >= MOST_T {
                leaks.push((suite, backend, found));
            }
        }
    }
    assert!(leaks.is_empty(), "{leaks:?}");
}
