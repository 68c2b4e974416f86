//! ChaCha20 (RFC 8439, sections 2.1 to 2.4): eight, sixteen or twenty-four blocks side by side, so
//! that all of the cipher is additions, exclusive or and rotations of whole vectors. Only at the
//! end do the words of a block come together.
//!
//! INVARIANT: no branch and no address depends on key or key stream.

use std::hint::black_box;

use crate::NONCE_LEN;
use crate::machine::Lanes;

/// Words 0 to 3 of each block: "expand 32-byte k".
const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];
/// Twenty rounds, two at a time.
const DOUBLE_ROUNDS: usize = 10;
/// Words of the state that a quarter round takes: the columns, then the diagonals.
const QUARTERS: [[usize; 4]; 8] = [
    [0, 4, 8, 12],
    [1, 5, 9, 13],
    [2, 6, 10, 14],
    [3, 7, 11, 15],
    [0, 5, 10, 15],
    [1, 6, 11, 12],
    [2, 7, 8, 13],
    [3, 4, 9, 14],
];

// The constants of the code above, computed from their definition.
const _: () = {
    let sentence = b"expand 32-byte k";
    let mut i = 0;
    while i < 16 {
        assert!(CONSTANTS[i / 4].to_le_bytes()[i % 4] == sentence[i]);
        i += 1;
    }
    // Word `row` of a quarter is in that row of the matrix, and in the next column for each row if
    // it is a diagonal.
    let mut quarter = 0;
    while quarter < 8 {
        let mut row = 0;
        while row < 4 {
            let column = if quarter < 4 { quarter } else { (quarter + row) % 4 };
            assert!(QUARTERS[quarter][row] == 4 * row + column);
            row += 1;
        }
        quarter += 1;
    }
};

/// The key stream of as many blocks as there are lanes, from `counter` on.
#[inline(always)]
pub(crate) fn stream<L: Lanes>(lanes: L, key: &[u8; 32], nonce: &[u8; NONCE_LEN], counter: u32) -> L::Blocks {
    let mut state = initial(lanes, key, nonce, counter);
    for _ in 0..DOUBLE_ROUNDS {
        double_round(lanes, &mut state);
    }
    // To the compiler this is another key. Else it keeps on the stack what it has made of this one.
    let first = initial(lanes, black_box(key), black_box(nonce), counter);
    for (word, first) in state.iter_mut().zip(first) {
        *word = lanes.add(*word, first);
    }
    lanes.blocks(state)
}

/// Section 2.3: constants, key, counter, nonce.
#[inline(always)]
fn initial<L: Lanes>(lanes: L, key: &[u8; 32], nonce: &[u8; NONCE_LEN], counter: u32) -> [L::Words; 16] {
    let mut state = [lanes.counting(counter); 16];
    let (key, nonce) = (key.as_chunks().0, nonce.as_chunks().0);
    for i in 0..4 {
        state[i] = lanes.everywhere(CONSTANTS[i]);
    }
    for i in 0..8 {
        state[4 + i] = lanes.everywhere(u32::from_le_bytes(key[i]));
    }
    for i in 0..3 {
        state[13 + i] = lanes.everywhere(u32::from_le_bytes(nonce[i]));
    }
    state
}

/// Section 2.3.1: four column rounds, then four diagonal rounds.
#[inline(always)]
fn double_round<L: Lanes>(lanes: L, state: &mut [L::Words; 16]) {
    let (columns, diagonals) = QUARTERS.split_at(4);
    quarter_rounds(lanes, state, columns);
    quarter_rounds(lanes, state, diagonals);
}

/// Section 2.1, of four quarters that have no word in common: step by step, so that no instruction
/// waits for the one before it.
#[inline(always)]
fn quarter_rounds<L: Lanes>(lanes: L, state: &mut [L::Words; 16], quarters: &[[usize; 4]]) {
    for &[a, b, _, d] in quarters {
        state[a] = lanes.add(state[a], state[b]);
        state[d] = lanes.rotated::<16>(lanes.xor(state[d], state[a]));
    }
    for &[_, b, c, d] in quarters {
        state[c] = lanes.add(state[c], state[d]);
        state[b] = lanes.rotated::<12>(lanes.xor(state[b], state[c]));
    }
    for &[a, b, _, d] in quarters {
        state[a] = lanes.add(state[a], state[b]);
        state[d] = lanes.rotated::<8>(lanes.xor(state[d], state[a]));
    }
    for &[_, b, c, d] in quarters {
        state[c] = lanes.add(state[c], state[d]);
        state[b] = lanes.rotated::<7>(lanes.xor(state[b], state[c]));
    }
}
