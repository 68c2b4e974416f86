//! Checks how much memory a key takes, and that a packet takes none.
//!
//! One test in a separate file, because it counts the allocations of the whole process. The counter
//! sees Rust's allocator only; contexts of AWS-LC come from C's, about 600 bytes for an AES-GCM
//! key, and its sealing and opening allocate nothing either (`EVP_AEAD_CTX_seal_scatter`,
//! `EVP_AEAD_CTX_open`).

use vpnd_crypto::{Backend, Direction, EpochSecret, LabPermit, OpenKey, SealKey, Suite};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// Most heap bytes of the key of a standard suite: ten thousand sessions of four keys stay below 34
/// MB.
const HEAP_PER_KEY: usize = 832;

#[test]
fn packets_allocate_nothing_and_keys_are_small() {
    let _profiler = dhat::Profiler::builder().testing().build();
    assert!(size_of::<SealKey>() <= 40 && size_of::<OpenKey>() <= 40, "{}", size_of::<SealKey>());

    let secret = EpochSecret::new([1; 32]);
    for (suite, backend) in Suite::ALL.into_iter().flat_map(|suite| Backend::ALL.map(|b| (suite, b))) {
        if !backend.supports(suite) {
            continue;
        }
        let lane_key = secret.lane_key(suite, Direction::ToClient, 0);
        let permit = Some(LabPermit::insecure());
        let before = dhat::HeapStats::get();
        let seal_key = SealKey::new(suite, backend, &lane_key, permit).unwrap();
        let after = dhat::HeapStats::get();
        let open_key = OpenKey::new(suite, backend, &lane_key, permit).unwrap();
        let heap = after.curr_bytes - before.curr_bytes;
        assert!(suite.is_lab_only() || heap <= HEAP_PER_KEY, "{suite} by {backend}: {heap} bytes");

        let mut buf = [0; 2_048];
        let before = dhat::HeapStats::get();
        for counter in 0..100 {
            let len = seal_key.seal_in_place(counter, &[0x80; 16], &mut buf, 1_408).unwrap();
            open_key.open_in_place(counter, &[0x80; 16], &mut buf[..len]).unwrap();
        }
        let allocated = dhat::HeapStats::get().total_blocks - before.total_blocks;
        assert_eq!(allocated, 0, "{suite} by {backend}");
    }
}
