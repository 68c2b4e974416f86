//! Requests to valgrind's memcheck: what it takes for undefined is what a test calls secret, so
//! each branch and each address that depends on a secret is an error (A. Langley, "ctgrind", 2010).
//! Without valgrind they do nothing.

#![expect(
    unsafe_code,
    reason = "valgrind is asked by a sequence of instructions that otherwise does nothing"
)]

use std::arch::asm;
use std::hint::black_box;

/// Requests of valgrind itself, then of memcheck ("MC" in the upper bytes): valgrind.h and
/// memcheck.h, whose numbers never change.
const RUNNING_ON_VALGRIND: u64 = 0x1001;
const COUNT_ERRORS: u64 = 0x1201;
const MAKE_MEM_UNDEFINED: u64 = 0x4d43_0001;
const MAKE_MEM_DEFINED: u64 = 0x4d43_0002;

/// Whether valgrind runs this program.
pub(crate) fn is_watching() -> bool {
    request(RUNNING_ON_VALGRIND, [0; 5]) > 0
}

/// Returns the number of errors so far.
pub(crate) fn errors() -> u64 {
    request(COUNT_ERRORS, [0; 5])
}

/// From now on these bytes are secret, and all that is computed from them.
pub(crate) fn make_secret(bytes: &mut [u8]) {
    mark(MAKE_MEM_UNDEFINED, bytes);
}

/// From now on these bytes are known.
pub(crate) fn make_public(bytes: &mut [u8]) {
    mark(MAKE_MEM_DEFINED, bytes);
}

/// To the compiler the bytes are others afterwards: a copy of before, in a register, would not be
/// marked.
fn mark(code: u64, bytes: &mut [u8]) {
    request(code, [bytes.as_mut_ptr().expose_provenance() as u64, bytes.len() as u64, 0, 0, 0]);
    black_box(bytes);
}

/// The byte, as one that is known.
pub(crate) fn declassified(byte: u8) -> u8 {
    let mut byte = [byte];
    make_public(black_box(&mut byte));
    byte[0]
}

fn request(code: u64, arguments: [u64; 5]) -> u64 {
    // It interprets no such instructions.
    if cfg!(miri) {
        return 0;
    }
    let [a, b, c, d, e] = arguments;
    let request = [code, a, b, c, d, e];
    let answer;
    // SAFETY: the four rotations of a register sum up to 128 bits and change nothing, nor does
    // exchanging a register with itself. valgrind takes just this sequence for a request: it reads
    // the six numbers, and writes the answer into rdx.
    unsafe {
        asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            in("rax") request.as_ptr(), inout("rdx") 0_u64 => answer,
        );
    }
    answer
}
