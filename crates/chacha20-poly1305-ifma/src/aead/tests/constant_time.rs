//! No branch and no address depends on a secret, under valgrind's memcheck, to which key and
//! plaintext are undefined bytes: the algorithm as it is emulated, for valgrind knows no AVX-512.
//!
//! The test runs its own program again under valgrind. Each time it also shows that the check sees
//! something: with a branch and with an index that depend on what was computed from the secrets.

use std::hint::black_box;
use std::process::Command;

use super::*;
use crate::sys::memcheck;

/// Set for the program under valgrind: what to plant.
const PLANT: &str = "VPND_CONSTANT_TIME";
const NAME: &str = "aead::tests::constant_time::no_branch_and_no_address_depends_on_a_secret";
/// A batch of each kind and a part of a block; two batches; nothing.
const LENGTHS: [usize; 6] = [5, EIGHT, SIXTEEN - 3, TWENTY_FOUR, LONG + 3, 0];

#[test]
fn no_branch_and_no_address_depends_on_a_secret() {
    if let Ok(plant) = std::env::var(PLANT) {
        return watched(&plant);
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "valgrind is missing: ./x setup");
        eprintln!("NOT TESTED: valgrind is missing: ./x setup");
        return;
    }
    assert_eq!(errors_with("nothing"), 0, "run {NAME} under valgrind with {PLANT}=nothing to see where");
    for plant in ["branch on the key", "branch on plaintext", "branch on a tag", "index"] {
        assert!(errors_with(plant) > 0, "{plant} goes unnoticed");
    }
}

/// Returns the number of errors that memcheck finds.
fn errors_with(plant: &str) -> u64 {
    let output = Command::new("valgrind")
        .args(["--quiet", "--leak-check=no", "--error-limit=no"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture", "--test-threads=1"])
        .env(PLANT, plant)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let count = text.lines().find_map(|line| line.split_once("errors: ")?.1.parse().ok());
    count.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

/// The program under valgrind: says how many errors the work on secrets has made.
fn watched(plant: &str) {
    assert!(memcheck::is_watching(), "{PLANT} is for the program under valgrind");
    let before = memcheck::errors();
    work(plant);
    println!("\nerrors: {}", memcheck::errors() - before);
}

fn work(plant: &str) {
    let mut key = KEY;
    memcheck::make_secret(&mut key);
    let own = Key::new(Emulated, &key);
    branch(plant == "branch on the key", own.key[3]);
    if plant == "index" {
        black_box(text(256)[usize::from(black_box(own.key[0]))]);
    }
    for len in LENGTHS {
        let mut packet = text(len);
        memcheck::make_secret(&mut packet);
        let mut tag = own.seal(NONCE, &AAD, &mut packet);
        branch(plant == "branch on a tag", tag[0]);
        // Sent, so known to everybody.
        memcheck::make_public(&mut packet);
        memcheck::make_public(&mut tag);
        let mut forged = packet.clone();
        assert_eq!(own.open(NONCE, &AAD, &mut packet, &tag), Ok(()));
        if let Some(byte) = packet.first() {
            branch(plant == "branch on plaintext", *byte);
        }
        let mut other = tag;
        other[7] ^= 0x10;
        assert_eq!(own.open(NONCE, &AAD, &mut forged, &other), Err(NotAuthentic));
        // A refused packet leaves nothing behind.
        assert!(forged.iter().all(|&byte| byte == 0));
        memcheck::make_public(&mut packet);
        assert!(packet == text(len));
    }
}

/// A planted branch.
#[inline(never)]
fn branch(planted: bool, on: u8) {
    if planted && black_box(on) & 1 == 1 {
        black_box(on);
    }
}
