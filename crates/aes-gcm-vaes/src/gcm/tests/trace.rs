//! No branch and no address depends on a secret, in the machine code for this processor: a second
//! process computes with one secret after another, this one has it stop after each instruction
//! (ptrace), and compares.
//!
//! - The instructions must be the same ones, whatever key, text and tag are: so no branch depended
//!   on them.
//! - Before each instruction of sealing and opening all general registers must be the same as well.
//!   Addresses are made of these alone (there is no gather or scatter of vectors in the code), so
//!   no address depended on a secret. Vectors of 256 bits have no masks, and move the last bytes of
//!   a text through general registers: there only the instructions are compared.
//! - Expanding a key and comparing a tag move secrets through general registers; `constant_time`
//!   has their addresses.
//!
//! Random secrets, unlike valgrind's undefined ones, prove nothing about those that weren't tried;
//! but this is the code that runs, with VAES and AVX-512, which valgrind does not know.

use std::hint::black_box;
use std::sync::atomic::{AtomicU8, Ordering};

use super::field::Random;
use super::native::{FLAGS_256, FLAGS_512, run};
use super::steps::{self, Differ};
use super::*;
use crate::sys::{Avx2, Avx512};

/// Set for the second process: what to compute.
const WORK: &str = "AES_GCM_VAES_TRACED";
const NAME: &str = "gcm::tests::trace::traced_process";
/// Secrets that are compared with the first.
const SECRETS: u8 = 4;
/// A chunk of either width, vectors and a part; whole vectors; a part alone; nothing.
const LENGTHS: [usize; 4] = [CHUNK + VECTOR + 5, VECTOR, 21, 0];

/// The traced operation.
#[derive(Clone, Copy, PartialEq)]
enum Work {
    Expand,
    Seal,
    Open,
    /// Opening whole, with the comparison of an authentic tag or of one that isn't.
    Whole,
    Refused,
    /// A branch on a byte of the key, which must be noticed.
    Branch,
    /// An index by a byte of the key, which must be noticed.
    Index,
}

const WORKS: [(&str, Work); 7] = [
    ("expand", Work::Expand),
    ("seal", Work::Seal),
    ("open", Work::Open),
    ("whole", Work::Whole),
    ("refused", Work::Refused),
    ("branch", Work::Branch),
    ("index", Work::Index),
];

/// The second process, or nothing.
#[test]
fn traced_process() {
    let Ok(words) = std::env::var(WORK) else { return };
    let words: Vec<&str> = words.split(' ').collect();
    let [width, rounds, work, len] = words[..] else { panic!("{words:?}") };
    let (_, work) = WORKS.into_iter().find(|(name, _)| *name == work).unwrap();
    let len = len.parse().unwrap();
    match (width, rounds) {
        ("256", "10") => compute::<_, ROUNDS_128>(Avx2::detect().unwrap(), work, len),
        ("256", "14") => compute::<_, ROUNDS_256>(Avx2::detect().unwrap(), work, len),
        ("512", "10") => compute::<_, ROUNDS_128>(Avx512::detect().unwrap(), work, len),
        ("512", "14") => compute::<_, ROUNDS_256>(Avx512::detect().unwrap(), work, len),
        _ => panic!("{width} {rounds}"),
    }
}

/// Does the work once for each secret, between two stops. All that it touches lies in the same
/// place each time.
fn compute<M: Machine, const R: usize>(machine: M, work: Work, len: usize) {
    steps::begin();
    let key_len = 4 * (R - 6);
    let mut own = Gcm::<M, R>::new(machine, &KEY[..key_len]);
    let (mut key, mut packet, table) = ([0_u8; 32], vec![0_u8; len], [7_u8; 256]);
    // In memory, since no register may count along.
    let next = AtomicU8::new(0);
    while let secret @ 0..=SECRETS = black_box(&next).fetch_add(1, Ordering::Relaxed) {
        let mut random = Random(secret.into());
        key = std::array::from_fn(|_| random.word() as u8);
        let other = Gcm::<M, R>::new(machine, &key[..key_len]);
        (own.round_keys, own.powers) = (other.round_keys, other.powers);
        packet.fill_with(|| random.word() as u8);
        let mut tag = M::crypt::<R, false>(&own, NONCE, &AAD, &mut packet.clone());
        if work == Work::Refused {
            tag[usize::from(secret)] ^= 1;
        }
        let key = black_box(&key[..key_len]);
        steps::stop();
        match work {
            Work::Expand => M::expand(&mut own, key),
            Work::Seal => _ = black_box(M::crypt::<R, true>(&own, NONCE, &AAD, &mut packet)),
            Work::Open => _ = black_box(M::crypt::<R, false>(&own, NONCE, &AAD, &mut packet)),
            Work::Whole | Work::Refused => _ = black_box(own.open(NONCE, &AAD, &mut packet, &tag)),
            Work::Branch => {
                if black_box(key[3]) & 1 == 1 {
                    black_box(key[4]);
                }
            }
            Work::Index => _ = black_box(table[usize::from(black_box(key[3]))]),
        }
        steps::stop();
    }
    black_box(key);
}

fn traced(width: &str, rounds: usize, work: &str, len: usize) -> Differ {
    steps::traced(NAME, WORK, &format!("{width} {rounds} {work} {len}"), SECRETS)
}

fn all(width: &str) {
    let is_512 = width == "512";
    for (rounds, len) in
        [ROUNDS_128, ROUNDS_256].into_iter().flat_map(|rounds| LENGTHS.map(|len| (rounds, len)))
    {
        for work in ["seal", "open", "whole", "refused"] {
            let differ = traced(width, rounds, work, len);
            assert!(!differ.instructions, "{work}, {width} bits, {rounds} rounds, {len} bytes");
            let is_compared = ["seal", "open"].contains(&work) && (is_512 || len % 32 == 0);
            assert!(!differ.registers || !is_compared, "{work}, {width} bits, {rounds} rounds, {len} bytes");
        }
    }
    for rounds in [ROUNDS_128, ROUNDS_256] {
        assert!(!traced(width, rounds, "expand", 0).instructions, "{width} bits, {rounds} rounds");
    }
    assert!(traced(width, ROUNDS_128, "branch", 0).instructions, "the planted branch goes unnoticed");
    let index = traced(width, ROUNDS_128, "index", 0);
    assert!(!index.instructions && index.registers, "the planted index goes unnoticed: {index:?}");
}

#[test]
fn the_machine_code_does_the_same_for_all_secrets_native_256() {
    run("vaes-256 trace", Avx2::detect(), &FLAGS_256, |_| all("256"));
}

#[test]
fn the_machine_code_does_the_same_for_all_secrets_native_512() {
    run("vaes-512 trace", Avx512::detect(), &FLAGS_512, |_| all("512"));
}
