//! Overwriting what a call has left in registers and on the stack.

use std::arch::asm;
use std::mem::MaybeUninit;

use crate::machine::BLOCK_LEN;

/// Bytes of the stack that are overwritten after sealing: more than `batch` uses, or `tag`. A test
/// looks after it (`nothing_stays_on_the_stack`).
pub(super) const SEALED: usize = 3_072;
/// Bytes to wipe after opening, when `batch` calls `tag`.
pub(super) const OPENED: usize = 4_096;

/// Its frame lies where the frame of the function was that its caller has called before.
#[target_feature(enable = "avx512f")]
#[inline(never)]
pub(super) fn wipe<const BYTES: usize>() {
    // The loop below writes two vectors at a time.
    const { assert!(BYTES.is_multiple_of(2 * BLOCK_LEN) && BYTES > 0) };
    let mut frame = MaybeUninit::<[u8; BYTES]>::uninit();
    let begin = frame.as_mut_ptr();
    // SAFETY: writes the array and nothing else, which is a multiple of 64 bytes long. `vzeroall`
    // clears the first sixteen vector registers in all their length; all that is changed is
    // declared.
    unsafe {
        asm!(
            "vpxord zmm16, zmm16, zmm16",
            "2:",
            "vmovdqu64 zmmword ptr [{at}], zmm16",
            "vmovdqu64 zmmword ptr [{at} + 64], zmm16",
            "add {at}, 128",
            "cmp {at}, {end}",
            "jb 2b",
            "vpxord zmm17, zmm17, zmm17",
            "vpxord zmm18, zmm18, zmm18",
            "vpxord zmm19, zmm19, zmm19",
            "vpxord zmm20, zmm20, zmm20",
            "vpxord zmm21, zmm21, zmm21",
            "vpxord zmm22, zmm22, zmm22",
            "vpxord zmm23, zmm23, zmm23",
            "vpxord zmm24, zmm24, zmm24",
            "vpxord zmm25, zmm25, zmm25",
            "vpxord zmm26, zmm26, zmm26",
            "vpxord zmm27, zmm27, zmm27",
            "vpxord zmm28, zmm28, zmm28",
            "vpxord zmm29, zmm29, zmm29",
            "vpxord zmm30, zmm30, zmm30",
            "vpxord zmm31, zmm31, zmm31",
            "vzeroall",
            at = inout(reg) begin => _,
            end = in(reg) begin.add(1),
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _,
            out("zmm6") _, out("zmm7") _, out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
            out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _, out("zmm16") _, out("zmm17") _,
            out("zmm18") _, out("zmm19") _, out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
            out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _, out("zmm28") _, out("zmm29") _,
            out("zmm30") _, out("zmm31") _,
            options(nostack),
        );
    }
}
