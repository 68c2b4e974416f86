//! The same on the processor at hand, at every length that there is, if it has the instructions.
//!
//! What the processor has is read from the kernel's own list, and must be what our detection finds. What has run is written
//! down where `./x test` asks for it, so that it can't go unnoticed that nothing has.

use std::fs::{self, File};
use std::io::Write as _;

use super::*;
use crate::sys::{Avx2, Avx512};

/// Where to write down what has run: a file, which `./x test` reads afterwards.
const RECORD: &str = "VPND_NATIVE_RECORD";
/// As /proc/cpuinfo names them.
const FLAGS_256: [&str; 5] = ["aes", "pclmulqdq", "avx2", "vaes", "vpclmulqdq"];
const FLAGS_512: [&str; 7] = ["aes", "pclmulqdq", "avx512f", "avx512bw", "avx512vl", "vaes", "vpclmulqdq"];

fn processor_has(flags: &[&str]) -> bool {
    let list = fs::read_to_string("/proc/cpuinfo").unwrap();
    let (_, line) =
        list.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == "flags").unwrap();
    flags.iter().all(|flag| line.split_whitespace().any(|have| have == *flag))
}

/// Runs `check` on this machine if there is one. `what` is written down.
fn run<M: Machine>(what: &str, detected: Option<M>, flags: &[&str], check: impl FnOnce(M)) {
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
    every_split_of_the_same_bytes: every_split;
    a_forged_packet_leaves_zeros: forgeries;
    a_packet_longer_than_any_is_not_opened: too_long;
    an_expanded_key_can_be_erased: erased;
    random_packets_are_sealed_as_a_library_does: random_packets;
}
