//! The tests on this machine's processor, at every length, if it has the instructions.
//!
//! The processor's features are read from the kernel's list, and must be what our detection finds:
//! the kernel lists none whose registers it does not save. Tests that have run are recorded where
//! `./x test` asks for it, so that a run without any is noticed.

use std::fs::{self, File};
use std::io::Write as _;

use super::*;
use crate::poly1305::tests::{Random, carries, every_place, limbs_of_bits, powers_of_keys, residues};
use crate::sys::Avx512;

/// Where to write down what has run: a file, which `./x test` reads afterwards.
const RECORD: &str = "VPND_NATIVE_RECORD";
/// The names of /proc/cpuinfo.
const FLAGS: [&str; 4] = ["avx512f", "avx512bw", "avx512vl", "avx512ifma"];

fn processor_has(flags: &[&str]) -> bool {
    let list = fs::read_to_string("/proc/cpuinfo").unwrap();
    let (_, line) =
        list.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == "flags").unwrap();
    flags.iter().all(|flag| line.split_whitespace().any(|have| have == *flag))
}

/// Runs `check` on this machine if it has the instructions. `what` is written down.
pub(super) fn run(what: &str, check: impl FnOnce(Avx512)) {
    let detected = Avx512::detect();
    assert_eq!(detected.is_some(), processor_has(&FLAGS), "{what}: the kernel's list says otherwise");
    let Some(machine) = detected else {
        eprintln!("NOT TESTED: {what}: this processor lacks one of {FLAGS:?}");
        return;
    };
    check(machine);
    if let Some(record) = std::env::var_os(RECORD) {
        // One short write, for the tests of one process run side by side.
        let mut record = File::options().create(true).append(true).open(record).unwrap();
        record.write_all(format!("ifma {what}\n").as_bytes()).unwrap();
    }
}

#[test]
fn a_processor_that_lacks_one_feature_is_refused() {
    for missing in FLAGS {
        assert!(!Avx512::needs(|feature, _| feature != missing), "{missing}");
    }
    assert!(Avx512::needs(|_, _| true));
}

/// Every length of a packet.
fn every_length_there_is(machine: impl Machine) {
    let text = text(MAX_TEXT_LEN + 64);
    let compared = Compared::new(machine, &KEY);
    for len in 0..=MAX_TEXT_LEN {
        compared.check(NONCE, &AAD[..len % 17], &text[len % 64..][..len]);
    }
}

fn random_packets(machine: impl Machine) {
    let cases = (
        any::<[u8; KEY_LEN]>(),
        any::<[u8; NONCE_LEN]>(),
        prop::collection::vec(any::<u8>(), 0..3_100),
        any::<u16>(),
    );
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(3_000));
    let result = runner.run(&cases, |(key, nonce, bytes, at)| {
        let (aad, text) = bytes.split_at(usize::from(at) % 301 % (bytes.len() + 1));
        Compared::new(machine, &key).check(nonce, aad, text);
        Ok(())
    });
    assert_eq!(result, Ok(()));
}

/// Each operation gives what its emulation gives, which the libraries have shown to be right.
fn operations(machine: Avx512) {
    fn numbers<M: Machine>(machine: M, vector: M::Vector) -> [u8; BLOCK_LEN] {
        let mut bytes = [0; BLOCK_LEN];
        machine.store(&mut bytes, vector);
        bytes
    }
    let mut random = Random(5);
    for round in 0..2_000 {
        // Now and then nearly all bits are set, so that sums carry and products are long.
        let ones = if round % 4 == 0 { 0xfff0_ffff_ffff_ff7f } else { 0 };
        let [x, y, z]: [[u64; 8]; 3] = [0; 3].map(|_| std::array::from_fn(|_| random.word() | ones));
        let [a, b, c] = [x, y, z].each_ref().map(|numbers| machine.numbers(numbers));
        let same = |ours, theirs, what: &str| {
            assert_eq!(numbers(machine, ours), numbers(Emulated, theirs), "{what}")
        };
        same(a, x, "numbers");
        same(machine.everywhere(x[0]), Emulated.everywhere(x[0]), "everywhere");
        assert_eq!(machine.sum_of_numbers(a), Emulated.sum_of_numbers(x));
        same(machine.xor(a, b), Emulated.xor(x, y), "xor");
        same(machine.and(a, b), Emulated.and(x, y), "and");
        same(machine.or(a, b), Emulated.or(x, y), "or");
        same(machine.add(a, b), Emulated.add(x, y), "add");
        same(machine.shifted_left::<2>(a), Emulated.shifted_left::<2>(x), "shifted left by 2");
        same(machine.shifted_left::<20>(a), Emulated.shifted_left::<20>(x), "shifted left by 20");
        same(machine.shifted_right::<44>(a), Emulated.shifted_right::<44>(x), "shifted right");
        same(machine.firsts(a, b), Emulated.firsts(x, y), "firsts");
        same(machine.seconds(a, b), Emulated.seconds(x, y), "seconds");
        same(machine.selected::<0x2d>(a, b), Emulated.selected::<0x2d>(x, y), "selected");
        same(machine.add_low(a, b, c), Emulated.add_low(x, y, z), "low product");
        same(machine.add_high(a, b, c), Emulated.add_high(x, y, z), "high product");
        let (bytes, len) = (numbers(machine, b), 1 + round % BLOCK_LEN);
        same(machine.load(&bytes), Emulated.load(&bytes), "loaded");
        same(machine.load_part(&bytes[..len]), Emulated.load_part(&bytes[..len]), "a part loaded");
        let (mut ours, mut theirs) = (bytes, bytes);
        machine.store_part(&mut ours[..len], a);
        Emulated.store_part(&mut theirs[..len], x);
        assert_eq!(ours, theirs, "a part stored");
    }
}

/// The kernel saves all of the registers that detection trusts in: the processor's own answer.
fn registers_are_saved(_: Avx512) {
    // SSE, AVX, the masks, the upper halves of the first sixteen, the other sixteen.
    assert_eq!(crate::sys::saved_registers() & 0b1110_0110, 0b1110_0110);
}

macro_rules! native {
    ($($name:ident: $check:ident;)*) => {$(
        #[test]
        fn $name() {
            run(stringify!($name), |machine| $check(machine));
        }
    )*};
}

native! {
    every_length_to_beyond_some_batches: every_length;
    every_length_of_a_packet: every_length_there_is;
    every_alignment_of_a_text: every_alignment;
    every_split_of_the_same_bytes: every_split;
    a_forged_packet_leaves_zeros: forgeries;
    a_packet_longer_than_any_is_neither_sealed_nor_opened: too_long;
    a_key_can_be_erased: erased;
    batches_of_all_kinds_are_the_same_blocks: batches;
    random_packets_are_sealed_as_a_library_does: random_packets;
    operations_are_those_emulated: operations;
    the_kernel_saves_the_registers: registers_are_saved;
    products_of_all_pairs_of_bits: limbs_of_bits;
    carries_keep_the_number_and_the_bounds: carries;
    sums_are_reduced: residues;
    powers_are_those_of_the_key: powers_of_keys;
    each_bit_of_each_block_meets_its_power: every_place;
}
