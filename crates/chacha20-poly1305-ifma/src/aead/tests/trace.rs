//! No branch depends on a secret, in the machine code for this processor: a second process computes
//! with one secret after another, this one has it stop after each instruction (ptrace), and
//! compares. The instructions must be the same ones, whatever key, text and tag are.
//!
//! General registers are compared for the key stream alone: Poly1305 moves its key, and what it
//! adds up at the end, through them. The addresses there are what `constant_time` looks after.
//!
//! Random secrets, unlike valgrind's undefined ones, prove nothing about those that weren't tried;
//! but this is the code that runs, which valgrind does not know.

use std::hint::black_box;
use std::sync::atomic::{AtomicU8, Ordering};

use super::native::run;
use super::steps::{self, Differ};
use super::*;
use crate::poly1305::tests::Random;
use crate::sys::Avx512;

/// Set for the second process: what to compute.
const WORK: &str = "CHACHA20_POLY1305_IFMA_TRACED";
const NAME: &str = "aead::tests::trace::traced_process";
/// Secrets that are compared with the first.
const SECRETS: u8 = 4;
/// A batch of each kind and a part of a block; two batches; nothing.
const LENGTHS: [usize; 6] = [5, EIGHT, SIXTEEN - 3, TWENTY_FOUR, LONG + 3, 0];

/// The second process, or nothing.
#[test]
fn traced_process() {
    let Ok(words) = std::env::var(WORK) else { return };
    let (work, len) = words.split_once(' ').unwrap();
    compute(Avx512::detect().unwrap(), work, len.parse().unwrap());
}

/// Does the work once for each secret, between two stops. All that it touches lies in the same
/// place each time.
fn compute(machine: Avx512, work: &str, len: usize) {
    steps::begin();
    let mut own = Key::new(machine, &KEY);
    let (mut packet, table) = (vec![0_u8; len], [7_u8; 256]);
    // In memory, since no register may count along.
    let next = AtomicU8::new(0);
    while let secret @ 0..=SECRETS = black_box(&next).fetch_add(1, Ordering::Relaxed) {
        let mut random = Random(secret.into());
        own.key = std::array::from_fn(|_| random.word() as u8);
        packet.fill_with(|| random.word() as u8);
        let mut tag = own.seal(NONCE, &AAD, &mut packet);
        if work == "seal" || work == "stream" {
            packet.fill_with(|| random.word() as u8);
        }
        if work == "refused" {
            tag[usize::from(secret)] ^= 1;
        }
        let (own, key) = (black_box(&*own), black_box(&own.key));
        let mut sealed = Packet::new(NONCE, &AAD, &mut packet, tag);
        // Behind the first block, with which the key of Poly1305 passes.
        sealed.counter = u32::from(work == "stream");
        let work = black_box(work);
        steps::stop();
        match work {
            "stream" => _ = black_box(own.crypt::<true>(&mut sealed)),
            "seal" => _ = black_box(own.seal(NONCE, &AAD, sealed.text)),
            "open" | "refused" => _ = black_box(own.open(NONCE, &AAD, sealed.text, &tag)),
            "branch" => {
                if black_box(key[3]) & 1 == 1 {
                    black_box(key[4]);
                }
            }
            "index" => _ = black_box(table[usize::from(black_box(key[3]))]),
            _ => panic!("{work}"),
        }
        steps::stop();
    }
}

fn traced(work: &str, len: usize) -> Differ {
    steps::traced(NAME, WORK, &format!("{work} {len}"), SECRETS)
}

#[test]
fn the_machine_code_does_the_same_for_all_secrets_native() {
    run("trace", |_| {
        for len in LENGTHS {
            for work in ["stream", "seal", "open", "refused"] {
                let differ = traced(work, len);
                assert!(!differ.instructions, "{work}, {len} bytes");
                assert!(!differ.registers || work != "stream", "{work}, {len} bytes");
            }
        }
        assert!(traced("branch", 0).instructions, "the planted branch goes unnoticed");
        let index = traced("index", 0);
        assert!(!index.instructions && index.registers, "the planted index goes unnoticed: {index:?}");
    });
}
