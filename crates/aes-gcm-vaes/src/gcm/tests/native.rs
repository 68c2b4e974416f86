//! The tests on this machine's processor, at every length, if it has the instructions.
//!
//! The processor's features are read from the kernel's list, and must be what our detection finds.
//! Tests that have run are recorded where `./x test` asks for it, so that a run without any is
//! noticed.

use std::fs::{self, File};
use std::io::Write as _;

use super::field::{
    Random, counters_wrap, every_place, every_power, lengths_and_data_beside, no_other_power, powers_of_keys,
    sums_of_factors,
};
use super::*;
use crate::sys::{Avx2, Avx512};

/// Where to write down what has run: a file, which `./x test` reads afterwards.
const RECORD: &str = "VPND_NATIVE_RECORD";
/// The names of /proc/cpuinfo.
pub(super) const FLAGS_256: [&str; 5] = ["aes", "pclmulqdq", "avx2", "vaes", "vpclmulqdq"];
pub(super) const FLAGS_512: [&str; 7] =
    ["aes", "pclmulqdq", "avx512f", "avx512bw", "avx512vl", "vaes", "vpclmulqdq"];

fn processor_has(flags: &[&str]) -> bool {
    let list = fs::read_to_string("/proc/cpuinfo").unwrap();
    let (_, line) =
        list.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == "flags").unwrap();
    flags.iter().all(|flag| line.split_whitespace().any(|have| have == *flag))
}

/// Runs `check` on this machine if there is one. `what` is written down.
pub(super) fn run<M: Machine>(what: &str, detected: Option<M>, flags: &[&str], check: impl FnOnce(M)) {
    assert_eq!(detected.is_some(), processor_has(flags), "{what}: the kernel's list says otherwise");
    let Some(machine) = detected else {
        eprintln!("NOT TESTED: {what}: this processor lacks one of {flags:?}");
        return;
    };
    check(machine);
    if let Some(record) = std::env::var_os(RECORD) {
        // One short write, for the tests of one process run side by side.
        let mut record = File::options().create(true).append(true).open(record).unwrap();
        record.write_all(format!("{what}\n").as_bytes()).unwrap();
    }
}

#[test]
fn a_processor_that_lacks_one_feature_is_refused() {
    for missing in FLAGS_256 {
        assert!(!Avx2::needs(|feature, _| feature != missing), "{missing}");
    }
    for missing in FLAGS_512 {
        assert!(!Avx512::needs(|feature, _| feature != missing), "{missing}");
    }
    assert!(Avx2::needs(|_, _| true) && Avx512::needs(|_, _| true));
}

/// Every length of a packet, with the suite that has more rounds.
fn every_length_there_is(machine: impl Machine) {
    let text = text(MAX_TEXT_LEN);
    let compared = Compared::<_, ROUNDS_256>::new(machine, &KEY);
    for len in 0..=MAX_TEXT_LEN {
        compared.check(NONCE, &AAD, &text[..len]);
    }
}

fn random_packets(machine: impl Machine) {
    let cases = (
        any::<[u8; 32]>(),
        any::<[u8; NONCE_LEN]>(),
        prop::collection::vec(any::<u8>(), 0..3_100),
        any::<u16>(),
    );
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(3_000));
    let result = runner.run(&cases, |(key, nonce, bytes, at)| {
        let (aad, text) = bytes.split_at(usize::from(at) % 41 % (bytes.len() + 1));
        Compared::<_, ROUNDS_128>::new(machine, &key).check(nonce, aad, text);
        Compared::<_, ROUNDS_256>::new(machine, &key).check(nonce, aad, text);
        Ok(())
    });
    assert_eq!(result, Ok(()));
}

/// Each operation gives what its emulation gives, which `field` and the libraries have shown to be
/// right.
fn operations<M: Machine>(machine: M) {
    match M::BLOCKS {
        2 => same_operations(machine, Emulated::<2>),
        _ => same_operations(machine, Emulated::<4>),
    }
}

fn same_operations<M: Machine, E: Machine>(own: M, emulated: E) {
    let bytes = |vector: M::Vector| {
        let mut bytes = vec![0; M::BYTES];
        own.store(&mut bytes, vector);
        bytes
    };
    let wanted = |vector: E::Vector| {
        let mut bytes = vec![0; E::BYTES];
        emulated.store(&mut bytes, vector);
        bytes
    };
    let mut random = Random(5);
    for round in 0..2_000 {
        // Now and then nearly all bits are set, so that sums carry.
        let ones = if round % 4 == 0 { 0xf7 } else { 0 };
        let operands: [Vec<u8>; 3] =
            [0; 3].map(|_| (0..M::BYTES).map(|_| random.word() as u8 | ones).collect());
        let block: Block = *operands[0].first_chunk().unwrap();
        let [a, b, c] = operands.each_ref().map(|bytes| own.load(bytes));
        let [x, y, z] = operands.each_ref().map(|bytes| emulated.load(bytes));
        let same = |ours: M::Vector, theirs: E::Vector, what: &str| {
            assert_eq!(bytes(ours), wanted(theirs), "{what}")
        };
        same(own.zero(), emulated.zero(), "zero");
        same(own.everywhere(&block), emulated.everywhere(&block), "everywhere");
        same(own.lowest(&block), emulated.lowest(&block), "lowest");
        assert_eq!(own.lowest_of(a), emulated.lowest_of(x));
        same(own.sum_of_blocks(a), emulated.sum_of_blocks(x), "sum of blocks");
        same(own.xor(a, b), emulated.xor(x, y), "xor");
        same(own.xor3(a, b, c), emulated.xor3(x, y, z), "xor of three");
        same(own.add(a, b), emulated.add(x, y), "add");
        same(own.reversed(a), emulated.reversed(x), "reversed");
        same(own.swapped(a), emulated.swapped(x), "swapped");
        same(own.product::<0x00>(a, b), emulated.product::<0x00>(x, y), "low product");
        same(own.product::<0x01>(a, b), emulated.product::<0x01>(x, y), "product with the upper half of a");
        same(own.product::<0x10>(a, b), emulated.product::<0x10>(x, y), "product with the upper half of b");
        same(own.product::<0x11>(a, b), emulated.product::<0x11>(x, y), "high product");
        same(own.round(a, b), emulated.round(x, y), "round");
        same(own.last_round(a, b), emulated.last_round(x, y), "last round");
        let len = 1 + round % M::BYTES;
        same(own.load_part(&operands[1][..len]), emulated.load_part(&operands[1][..len]), "a part loaded");
        let (mut ours, mut theirs) = (operands[2].clone(), operands[2].clone());
        let parts = (own.store_part(&mut ours[..len], a), emulated.store_part(&mut theirs[..len], x));
        same(parts.0, parts.1, "a part's vector");
        assert_eq!(ours, theirs, "a part stored");
    }
}

macro_rules! native {
    ($($name:ident: $check:ident;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn native_256() {
                run(concat!("vaes-256 ", stringify!($name)), Avx2::detect(), &FLAGS_256, |machine| $check(machine));
            }

            #[test]
            fn native_512() {
                run(concat!("vaes-512 ", stringify!($name)), Avx512::detect(), &FLAGS_512, |machine| $check(machine));
            }
        }
    )*};
}

native! {
    every_length_to_beyond_two_chunks: every_length;
    every_length_of_a_packet: every_length_there_is;
    every_alignment_of_a_text: every_alignment;
    every_split_of_the_same_bytes: every_split;
    a_forged_packet_leaves_zeros: forgeries;
    a_packet_longer_than_any_is_neither_sealed_nor_opened: too_long;
    an_expanded_key_can_be_erased: erased;
    random_packets_are_sealed_as_a_library_does: random_packets;
    operations_are_those_emulated: operations;
    a_place_multiplies_all_pairs_of_basis_vectors: every_place;
    a_power_multiplies_all_pairs_of_basis_vectors: every_power;
    no_block_meets_a_power_of_another: no_other_power;
    the_lengths_meet_the_hash_key: lengths_and_data_beside;
    hashes_of_sums_are_sums_of_hashes: sums_of_factors;
    powers_are_those_of_the_hash_key: powers_of_keys;
    counters_wrap_without_a_carry: counters_wrap;
}
