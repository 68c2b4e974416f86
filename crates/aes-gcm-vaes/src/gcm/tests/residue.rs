//! Nothing secret stays on the stack, or of a dropped key: looked for, by reading this process's
//! own memory, where a call or the key has been.
//!
//! Safe code can't read vector registers, so that they are cleared is seen in `sys` only.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt as _;

use super::*;
use crate::sys::{Avx2, Avx512};

/// So far below the reader's frame lies the call that is looked at: what reads must not overwrite
/// what is looked for.
const ABOVE: usize = 16 << 10;
/// So far below itself the reader looks.
const SEARCHED: usize = 64 << 10;

/// Calls `work` with [`ABOVE`] bytes of stack between itself and the caller.
#[inline(never)]
fn far_below(work: &mut dyn FnMut()) {
    let mut room = [0_u8; ABOVE];
    black_box(&mut room);
    work();
    black_box(&mut room);
}

/// Which of the `secrets` are still on the stack after `work`.
fn left_by<'a>(secrets: &[(&'a str, Block)], mut work: impl FnMut()) -> Vec<&'a str> {
    let marker = 0_u8;
    let begin = (&raw const marker).addr() - SEARCHED;
    let memory = File::open("/proc/self/mem").unwrap();
    let mut stack = vec![0; SEARCHED];
    far_below(&mut work);
    memory.read_exact_at(&mut stack, begin as u64).unwrap();
    let is_left = |secret: &Block| stack.windows(16).any(|window| window == secret);
    let mut left: Vec<_> =
        secrets.iter().filter(|(_, secret)| is_left(secret)).map(|&(name, _)| name).collect();
    left.dedup();
    left
}

/// The secrets that only a call itself may know.
fn secrets<M: Machine, const R: usize>(
    own: &Gcm<M, R>,
    text: &[u8],
    sealed: &[u8],
) -> Vec<(&'static str, Block)> {
    let mut secrets = vec![("mask of the tag", own.seal(NONCE, &[], &mut []))];
    let stream: Vec<u8> = text.iter().zip(sealed).map(|(a, b)| a ^ b).collect();
    secrets.extend(stream.as_chunks().0.iter().map(|block| ("key stream", *block)));
    secrets.extend(own.round_keys[..=R].iter().map(|key| ("round key", *key)));
    secrets.extend(own.powers[..TOP].iter().map(|power| ("power of the hash key", *power)));
    secrets
}

fn nothing_stays<M: Machine>(machine: M) {
    for len in [5, 31, 64, 200, 1_408, 2_047] {
        let own = Gcm::<_, ROUNDS_256>::new(machine, &KEY);
        let text = text(len);
        let mut packet = text.clone();
        let tag = own.seal(NONCE, &AAD, &mut packet);
        let mut secrets = secrets(&own, &text, &packet);
        // A copy that the test itself makes is found, so the search finds things.
        let planted = left_by(&secrets[..1], || {
            black_box(black_box([secrets[0].1; 8]));
        });
        assert_eq!(planted, ["mask of the tag"]);

        let mut again = text.clone();
        assert_eq!(
            left_by(&secrets, || assert_eq!(own.seal(NONCE, &AAD, &mut again), tag)),
            [""; 0],
            "seal {len}"
        );
        assert!(again == packet);
        let left = left_by(&secrets, || own.open(NONCE, &AAD, &mut again, &tag).unwrap());
        assert_eq!(left, [""; 0], "open {len}");
        // Which tag a forger would have needed.
        secrets.push(("tag of a forged packet", tag));
        let left = left_by(&secrets, || {
            again.copy_from_slice(&packet);
            own.open(NONCE, &AAD, &mut again, &[7; 16]).unwrap_err();
        });
        assert_eq!(left, [""; 0], "refused open {len}");
    }
}

fn nothing_stays_of_a_key<M: Machine>(machine: M) {
    let own = Gcm::<_, ROUNDS_256>::new(machine, &KEY);
    let secrets = secrets(&own, &[], &[]);
    let mut another = None;
    // The first two round keys are the key itself, which is the caller's.
    let left = left_by(&secrets[3..], || another = Some(Gcm::<_, ROUNDS_256>::new(machine, &KEY)));
    assert_eq!(left, [""; 0]);
}

#[test]
fn nothing_stays_on_the_stack_native_256() {
    if let Some(machine) = Avx2::detect() {
        nothing_stays(machine);
        nothing_stays_of_a_key(machine);
    }
}

#[test]
fn nothing_stays_on_the_stack_native_512() {
    if let Some(machine) = Avx512::detect() {
        nothing_stays(machine);
        nothing_stays_of_a_key(machine);
    }
}

#[test]
fn nothing_stays_of_a_dropped_key() {
    // A vector that is cleared keeps its memory.
    let mut keys = vec![*Gcm::<_, ROUNDS_256>::new(Emulated::<2>, &KEY)];
    let secrets: Vec<Block> = keys[0].round_keys.iter().chain(&keys[0].powers[..TOP]).copied().collect();
    let memory = File::open("/proc/self/mem").unwrap();
    let mut bytes = vec![0; size_of_val(&*keys)];
    let begin = black_box(&mut keys).as_ptr().addr() as u64;
    let mut left = || {
        memory.read_exact_at(&mut bytes, begin).unwrap();
        secrets.iter().filter(|secret| bytes.windows(16).any(|window| window == *secret)).count()
    };
    assert_eq!(left(), secrets.len());
    black_box(&mut keys).clear();
    assert_eq!(left(), 0);
}
