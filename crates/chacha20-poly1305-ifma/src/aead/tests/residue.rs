//! Nothing secret stays on the stack, or of a dropped key: looked for, by reading this process's
//! own memory, where a call or the key has been.
//!
//! Safe code can't read vector registers, so that they are cleared is seen in `sys` only.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt as _;

use super::*;

type Secret = [u8; 16];

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
fn left_by<'a>(secrets: &[(&'a str, Secret)], mut work: impl FnMut()) -> Vec<&'a str> {
    let marker = 0_u8;
    let begin = (&raw const marker).addr() - SEARCHED;
    let memory = File::open("/proc/self/mem").unwrap();
    let mut stack = vec![0; SEARCHED];
    far_below(&mut work);
    memory.read_exact_at(&mut stack, begin as u64).unwrap();
    let is_left = |secret: &Secret| stack.windows(16).any(|window| window == secret);
    let mut left: Vec<_> =
        secrets.iter().filter(|(_, secret)| is_left(secret)).map(|&(name, _)| name).collect();
    left.dedup();
    left
}

/// The secrets that only a call itself may know: key, block 0 (the key of Poly1305 and what follows
/// it), all other blocks, words of a block side by side, and limbs of the powers.
fn secrets<M: Machine>(machine: M) -> Vec<(&'static str, Secret)> {
    let stream = chacha20::stream(machine.twenty_four(), &KEY, &NONCE, 0);
    let mut blocks = vec![[0; BLOCK_LEN]; 24];
    for (bytes, block) in blocks.iter_mut().zip(stream.as_ref()) {
        machine.store(bytes, *block);
    }
    let pieces = |bytes: &[u8]| bytes.as_chunks().0.to_vec();
    let mut secrets: Vec<_> = pieces(&KEY).into_iter().map(|piece| ("key", piece)).collect();
    let words = KEY.as_chunks::<4>().0.iter().map(|word| word.repeat(4).try_into().unwrap());
    secrets.extend(words.map(|words| ("word of the key", words)));
    secrets.extend(blocks.iter().flat_map(|block| pieces(block)).map(|piece| ("key stream", piece)));
    for limbs in crate::poly1305::tests::powers(&blocks[0]) {
        let twice = limbs.map(|limb| [limb, limb].map(u64::to_le_bytes).concat().try_into().unwrap());
        secrets.extend(twice.map(|limb| ("limb of a power", limb)));
    }
    secrets
}

#[test]
fn nothing_stays_on_the_stack() {
    let Some(machine) = crate::sys::Avx512::detect() else { return };
    let secrets = secrets(machine);
    for len in [0, 5, 64, EIGHT, EIGHT + 1, SIXTEEN, SIXTEEN + 1, 1_424, TWENTY_FOUR + 70, 8_000] {
        let own = Key::new(machine, &KEY);
        let text = text(len);
        let mut packet = text.clone();
        let tag = own.seal(NONCE, &AAD, &mut packet);
        // A copy that the test itself makes is found, so the search finds things.
        let planted = left_by(&secrets[..1], || {
            black_box(black_box([secrets[0].1; 8]));
        });
        assert_eq!(planted, ["key"]);

        let mut again = text.clone();
        let left = left_by(&secrets, || assert_eq!(own.seal(NONCE, &AAD, &mut again), tag));
        assert_eq!(left, [""; 0], "seal {len}");
        assert!(again == packet);
        let left = left_by(&secrets, || own.open(NONCE, &AAD, &mut again, &tag).unwrap());
        assert_eq!(left, [""; 0], "open {len}");
        // Which tag a forger would have needed.
        let mut with_tag = secrets.clone();
        with_tag.push(("tag of a forged packet", tag));
        let left = left_by(&with_tag, || {
            again.copy_from_slice(&packet);
            own.open(NONCE, &AAD, &mut again, &[7; 16]).unwrap_err();
        });
        assert_eq!(left, [""; 0], "refused open {len}");
    }
}

#[test]
fn nothing_stays_of_a_dropped_key() {
    // A vector that is cleared keeps its memory.
    let mut keys = vec![*Key::new(Emulated, &KEY)];
    assert_eq!(size_of_val(&*keys), KEY_LEN);
    let memory = File::open("/proc/self/mem").unwrap();
    let begin = black_box(&mut keys).as_ptr().addr() as u64;
    let bytes = || {
        let mut bytes = [0; KEY_LEN];
        memory.read_exact_at(&mut bytes, begin).unwrap();
        bytes
    };
    assert_eq!(bytes(), KEY);
    black_box(&mut keys).clear();
    assert_eq!(bytes(), [0; KEY_LEN]);
}
