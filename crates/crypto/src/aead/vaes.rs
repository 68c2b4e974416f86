//! AES-GCM (NIST SP 800-38D) for processors that encrypt and multiply four blocks with one instruction: AVX-512 with
//! VAES and VPCLMULQDQ.
//!
//! Why this project has a cipher of its own: half of what a library needs for a datagram of 1.4 kB goes into setting
//! up, since libraries are made for records of 16 KiB. Here all that a packet needs of its key is computed once, with
//! the key, and GHASH runs beside the encryption of the next blocks. `docs/PERFORMANCE.md` has the figures.
//! [`crate::backend`] takes it only where it is the fastest and gives, on that processor, the bytes a library gives.
//!
//! Numbered as a packet meets it:
//!
//! 1. GHASH takes in the associated data, block by block: there is one on the data path.
//! 2. Chunks of 512 bytes: eight vectors of counter blocks go through AES together. Between the rounds GHASH takes in
//!    the ciphertext that there is already: of this chunk when opening, of the one before when sealing.
//! 3. The tail, up to 511 bytes, vector by vector; the last one may be a part of a vector.
//! 4. GHASH takes in the lengths, and the encrypted first counter block makes a tag of it.
//!
//! GHASH works on blocks with their bytes reversed, for the processor's order of bits, and with powers of the hash key
//! times x, which saves a shift of each product (S. Gueron and M. Kounavis, "Intel Carry-Less Multiplication
//! Instruction and its Usage for Computing the GCM Mode", 2014). The blocks of a chunk are multiplied by falling powers
//! and the sum is reduced once.
//!
//! - INVARIANT: no branch and no address depends on key, plaintext or tag, only on lengths.
//! - INVARIANT: a packet that is not authentic leaves zeros where its plaintext would be.
//! - The expanded key is made where it stays, on the heap, and erased there.
//!
//! All that is `unsafe` is in [`sys`]. Counters and limits are the business of [`super`].

mod sys;
#[cfg(test)]
mod tests;

use std::arch::x86_64::{
    __m128i, __m512i, _mm_aesenc_si128, _mm_aesenclast_si128, _mm_aeskeygenassist_si128,
    _mm_clmulepi64_si128, _mm_cvtsi128_si32, _mm_set_epi32, _mm_set_epi64x, _mm_set1_epi32,
    _mm_setzero_si128, _mm_shuffle_epi8, _mm_shuffle_epi32, _mm_ternarylogic_epi32, _mm_xor_si128,
    _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_xor_si256, _mm512_add_epi32,
    _mm512_aesenc_epi128, _mm512_aesenclast_epi128, _mm512_broadcast_i32x4, _mm512_castsi512_si256,
    _mm512_clmulepi64_epi128, _mm512_extracti64x4_epi64, _mm512_set_epi32, _mm512_setzero_si512,
    _mm512_shuffle_epi8, _mm512_shuffle_epi32, _mm512_ternarylogic_epi32, _mm512_xor_si512,
    _mm512_zextsi128_si512,
};

use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize as _, Zeroizing};

use super::{OpenError, TAG_LEN};
use crate::schedule::IV_LEN;
use crate::suite::MAX_PLAINTEXT_LEN;
use sys::{Vaes, load, load_block, load_part, store, store_block, store_part};

/// Bytes of a vector: four blocks.
const VECTOR: usize = 64;
/// Vectors that go through AES together: as many as hide the latency of a round.
const TOGETHER: usize = 8;
/// Bytes of a chunk.
const CHUNK: usize = TOGETHER * VECTOR;
/// The highest power of the hash key that is kept: for the blocks of the longest tail, and the lengths.
const TOP: usize = CHUNK / 16 + 1;
/// The field's polynomial in the order of bits that reversed blocks have.
const POLYNOMIAL: u128 = 0xc200_0000_0000_0000_0000_0000_0000_0001;
/// Exclusive or of three, for ternary logic.
const XOR3: i32 = 0x96;

/// AES-128-GCM's rounds.
pub(super) const ROUNDS_128: usize = 10;
/// AES-256-GCM's rounds.
pub(super) const ROUNDS_256: usize = 14;

/// Whether this processor can run it.
pub(crate) fn is_supported() -> bool {
    Vaes::detect().is_some()
}

/// An expanded AES-GCM key with `R` rounds. Aligned so that no vector of powers for a chunk lies across cache lines.
#[repr(C, align(64))]
pub(crate) struct Gcm<const R: usize> {
    /// Round keys, `R + 1` of them.
    round_keys: [[u8; 16]; ROUNDS_256 + 1],
    /// The hash key to the power of `TOP`, and so on down to itself; then zeros, which a vector from there may hold.
    powers: [[u8; 16]; TOP + 3],
    vaes: Vaes,
}

impl<const R: usize> Gcm<R> {
    /// Expands `key`, of 4 (R − 6) bytes. Nothing if the processor can't run it.
    pub(super) fn new(key: &[u8]) -> Option<Box<Self>> {
        assert_eq!(key.len(), 4 * (R - 6), "the key has the length of its suite");
        let vaes = Vaes::detect()?;
        let (round_keys, powers) = ([[0; 16]; ROUNDS_256 + 1], [[0; 16]; TOP + 3]);
        let mut gcm = Box::new(Self { round_keys, powers, vaes });
        sys::expand(&mut gcm, key);
        Some(gcm)
    }

    /// Encrypts `text` in place and returns the tag.
    #[inline]
    pub(super) fn seal(&self, nonce: [u8; IV_LEN], aad: &[u8], text: &mut [u8]) -> [u8; TAG_LEN] {
        assert!(text.len() <= MAX_PLAINTEXT_LEN, "the caller checks what a counter block can count");
        sys::crypt::<R, true>(self, nonce, aad, text)
    }

    /// Decrypts `text` in place if `tag` is its tag; else `text` is zeros.
    #[inline]
    pub(super) fn open(
        &self,
        nonce: [u8; IV_LEN],
        aad: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> Result<(), OpenError> {
        if text.len() > MAX_PLAINTEXT_LEN {
            return Err(OpenError);
        }
        let computed = sys::crypt::<R, false>(self, nonce, aad, text);
        if bool::from(computed.ct_eq(tag)) {
            return Ok(());
        }
        text.fill(0);
        Err(OpenError)
    }

    fn erase(&mut self) {
        self.round_keys.zeroize();
        self.powers.zeroize();
    }

    /// Computes round keys and powers (FIPS 197, section 5.2).
    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    fn expand(&mut self, key: &[u8]) {
        let words = key.len() / 4;
        let mut schedule = Zeroizing::new([0_u32; 4 * (ROUNDS_256 + 1)]);
        for (word, bytes) in schedule.iter_mut().zip(key.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        let mut round_constant = 1_u32;
        for i in words..4 * (R + 1) {
            let mut word = schedule[i - 1];
            if i % words == 0 {
                word = substitute(word).rotate_right(8) ^ round_constant;
                round_constant = round_constant << 1 ^ if round_constant == 0x80 { 0x11b } else { 0 };
            } else if words > 6 && i % words == 4 {
                word = substitute(word);
            }
            schedule[i] = schedule[i - words] ^ word;
        }
        for (round_key, words) in self.round_keys.iter_mut().zip(schedule.as_chunks::<4>().0) {
            for (bytes, word) in round_key.as_chunks_mut::<4>().0.iter_mut().zip(words) {
                *bytes = word.to_le_bytes();
            }
        }
        let mut hash_key = Zeroizing::new([0; 16]);
        store_block(&mut hash_key, self.block(_mm_setzero_si128()));
        let mut hash_key = Zeroizing::new(u128::from_be_bytes(*hash_key));
        // Times x: a shift, and the polynomial if a bit falls out.
        *hash_key = *hash_key << 1 ^ POLYNOMIAL & 0_u128.wrapping_sub(*hash_key >> 127);
        let first = block_of(*hash_key);
        let mut power = first;
        for place in self.powers[..TOP].iter_mut().rev() {
            store_block(place, power);
            power = multiply(power, first);
        }
    }

    /// Encrypts one block.
    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    #[inline]
    fn block(&self, block: __m128i) -> __m128i {
        let mut state = _mm_xor_si128(block, load_block(&self.round_keys[0]));
        for round_key in &self.round_keys[1..R] {
            state = _mm_aesenc_si128(state, load_block(round_key));
        }
        _mm_aesenclast_si128(state, load_block(&self.round_keys[R]))
    }

    /// Encrypts the next `N` vectors of counter blocks; calls `beside` with 0, 1, … after each of the first `R − 1` rounds.
    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    #[inline]
    fn key_stream<const N: usize>(
        &self,
        counters: &mut __m512i,
        mut beside: impl FnMut(usize),
    ) -> [__m512i; N] {
        let four = _mm512_broadcast_i32x4(_mm_set_epi32(0, 0, 0, 4));
        let round_key = _mm512_broadcast_i32x4(load_block(&self.round_keys[0]));
        let mut states = [round_key; N];
        for state in &mut states {
            *state = _mm512_xor_si512(reversed(*counters), round_key);
            *counters = _mm512_add_epi32(*counters, four);
        }
        for round in 1..R {
            let round_key = _mm512_broadcast_i32x4(load_block(&self.round_keys[round]));
            for state in &mut states {
                *state = _mm512_aesenc_epi128(*state, round_key);
            }
            beside(round - 1);
        }
        let round_key = _mm512_broadcast_i32x4(load_block(&self.round_keys[R]));
        for state in &mut states {
            *state = _mm512_aesenclast_epi128(*state, round_key);
        }
        states
    }

    /// Powers of the hash key for a vector whose first block is the `power`-th from the end.
    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    #[inline]
    fn powers_from(&self, power: usize) -> __m512i {
        load(self.powers[TOP - power..].as_flattened().first_chunk().expect("zeros follow the last power"))
    }

    /// Encrypts or decrypts `text` in place and returns the tag of the ciphertext.
    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    #[inline]
    fn crypt<const SEAL: bool>(&self, nonce: [u8; IV_LEN], aad: &[u8], text: &mut [u8]) -> [u8; TAG_LEN] {
        let lengths = [aad.len(), text.len()].map(|bytes| 8 * bytes as i64);
        let mut first_counter = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        first_counter[..IV_LEN].copy_from_slice(&nonce);
        let first_counter = load_block(&first_counter);
        let mask = self.block(first_counter);
        let ahead = _mm512_set_epi32(0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 1);
        let first_counter = _mm512_broadcast_i32x4(reversed_block(first_counter));
        let mut counters = _mm512_add_epi32(first_counter, ahead);

        let mut hash = self.hash_aad(aad);
        let (chunks, tail) = text.as_chunks_mut::<CHUNK>();
        let mut ready = [_mm512_setzero_si512(); TOGETHER];
        let mut is_ready = false;
        for chunk in chunks {
            let (vectors, _) = chunk.as_chunks_mut::<VECTOR>();
            if !SEAL {
                for (ready, vector) in ready.iter_mut().zip(&*vectors) {
                    *ready = load(vector);
                }
                is_ready = true;
            }
            let stream: [_; TOGETHER] = if is_ready {
                let mut sum = Sum::starting_with(hash);
                let stream = self.key_stream(&mut counters, |i| {
                    if let Some(ciphertext) = ready.get(i) {
                        sum.add(*ciphertext, self.powers_from(4 * (TOGETHER - i)));
                    }
                });
                hash = sum.reduce();
                stream
            } else {
                self.key_stream(&mut counters, |_| ())
            };
            for ((vector, stream), ready) in vectors.iter_mut().zip(stream).zip(&mut ready) {
                *ready = _mm512_xor_si512(load(vector), stream);
                store(vector, *ready);
            }
            is_ready = true;
        }
        let mut streams = [_mm512_setzero_si512(); TOGETHER];
        for stream in &mut streams[..tail.len().div_ceil(VECTOR)] {
            [*stream] = self.key_stream(&mut counters, |_| ());
        }
        if SEAL && is_ready {
            let mut sum = Sum::starting_with(hash);
            for (i, ciphertext) in ready.into_iter().enumerate() {
                sum.add(ciphertext, self.powers_from(4 * (TOGETHER - i)));
            }
            hash = sum.reduce();
        }
        let hash = self.finish::<SEAL>(hash, tail, &streams, _mm_set_epi64x(lengths[0], lengths[1]));
        let mut tag = [0; TAG_LEN];
        store_block(&mut tag, _mm_xor_si128(reversed_block(hash), mask));
        tag
    }

    /// GHASH of the associated data so far.
    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    #[inline]
    fn hash_aad(&self, aad: &[u8]) -> __m128i {
        let hash_key = load_block(&self.powers[TOP - 1]);
        let mut hash = _mm_setzero_si128();
        let (blocks, rest) = aad.as_chunks::<16>();
        for block in blocks {
            hash = multiply(_mm_xor_si128(hash, reversed_block(load_block(block))), hash_key);
        }
        if !rest.is_empty() {
            let mut block = [0; 16];
            block[..rest.len()].copy_from_slice(rest);
            hash = multiply(_mm_xor_si128(hash, reversed_block(load_block(&block))), hash_key);
        }
        hash
    }

    /// Encrypts or decrypts the tail with its `streams`, and takes it and the `lengths` into the `hash`.
    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    #[inline]
    fn finish<const SEAL: bool>(
        &self,
        hash: __m128i,
        tail: &mut [u8],
        streams: &[__m512i; TOGETHER],
        lengths: __m128i,
    ) -> __m128i {
        let mut power = tail.len().div_ceil(16) + 1;
        let mut sum = Sum::starting_with(hash);
        let (vectors, rest) = tail.as_chunks_mut::<VECTOR>();
        for (vector, stream) in vectors.iter_mut().zip(streams) {
            let before = load(vector);
            let after = _mm512_xor_si512(before, *stream);
            store(vector, after);
            sum.add(if SEAL { after } else { before }, self.powers_from(power));
            power -= 4;
        }
        if !rest.is_empty() {
            let before = load_part(rest);
            let after = store_part(rest, _mm512_xor_si512(before, streams[vectors.len()]));
            sum.add(if SEAL { after } else { before }, self.powers_from(power));
        }
        // The lengths need no reversing: they are made as numbers.
        sum.add_reversed(_mm512_zextsi128_si512(lengths), self.powers_from(1));
        sum.reduce()
    }
}

impl<const R: usize> Drop for Gcm<R> {
    fn drop(&mut self) {
        self.erase();
    }
}

/// Products of blocks with powers of the hash key, added up and not reduced yet: four sums side by side.
struct Sum {
    low: __m512i,
    middle: __m512i,
    high: __m512i,
    /// What comes before the next block in the hash.
    carry: __m512i,
}

impl Sum {
    /// Begins with the hash of everything before, which counts as part of the next block.
    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    #[inline]
    fn starting_with(hash: __m128i) -> Self {
        let zero = _mm512_setzero_si512();
        Self { low: zero, middle: zero, high: zero, carry: _mm512_zextsi128_si512(hash) }
    }

    /// Adds four blocks of ciphertext times their powers.
    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    #[inline]
    fn add(&mut self, ciphertext: __m512i, powers: __m512i) {
        self.add_reversed(reversed(ciphertext), powers);
    }

    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    #[inline]
    fn add_reversed(&mut self, blocks: __m512i, powers: __m512i) {
        let blocks = _mm512_xor_si512(blocks, self.carry);
        self.carry = _mm512_setzero_si512();
        self.low = _mm512_xor_si512(self.low, _mm512_clmulepi64_epi128::<0x00>(blocks, powers));
        self.middle = _mm512_ternarylogic_epi32::<XOR3>(
            self.middle,
            _mm512_clmulepi64_epi128::<0x01>(blocks, powers),
            _mm512_clmulepi64_epi128::<0x10>(blocks, powers),
        );
        self.high = _mm512_xor_si512(self.high, _mm512_clmulepi64_epi128::<0x11>(blocks, powers));
    }

    /// Reduces the four sums by the polynomial, the lower half of each first, and adds them up.
    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    #[inline]
    fn reduce(self) -> __m128i {
        let polynomial = _mm512_broadcast_i32x4(block_of(POLYNOMIAL));
        let folded =
            |low| (_mm512_shuffle_epi32::<0x4e>(low), _mm512_clmulepi64_epi128::<0x01>(polynomial, low));
        let (swapped, product) = folded(self.low);
        let (swapped, product) = folded(_mm512_ternarylogic_epi32::<XOR3>(self.middle, swapped, product));
        let sums = _mm512_ternarylogic_epi32::<XOR3>(self.high, swapped, product);
        let sums = _mm256_xor_si256(_mm512_castsi512_si256(sums), _mm512_extracti64x4_epi64::<1>(sums));
        _mm_xor_si128(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums))
    }
}

/// One product in the field, reduced.
#[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
#[inline]
fn multiply(a: __m128i, b: __m128i) -> __m128i {
    let polynomial = block_of(POLYNOMIAL);
    let low = _mm_clmulepi64_si128::<0x00>(a, b);
    let middle = _mm_xor_si128(_mm_clmulepi64_si128::<0x01>(a, b), _mm_clmulepi64_si128::<0x10>(a, b));
    let high = _mm_clmulepi64_si128::<0x11>(a, b);
    let folded = |low| (_mm_shuffle_epi32::<0x4e>(low), _mm_clmulepi64_si128::<0x01>(polynomial, low));
    let (swapped, product) = folded(low);
    let (swapped, product) = folded(_mm_ternarylogic_epi32::<XOR3>(middle, swapped, product));
    _mm_ternarylogic_epi32::<XOR3>(high, swapped, product)
}

/// AES's substitution of the four bytes of a word.
#[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
fn substitute(word: u32) -> u32 {
    let words = _mm_set1_epi32(word.cast_signed());
    _mm_cvtsi128_si32(_mm_aeskeygenassist_si128::<0>(words)).cast_unsigned()
}

/// A number as a reversed block.
#[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
#[inline]
fn block_of(number: u128) -> __m128i {
    load_block(&number.to_le_bytes())
}

/// The block with its bytes in reverse order.
#[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
#[inline]
fn reversed_block(block: __m128i) -> __m128i {
    _mm_shuffle_epi8(block, block_of(0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f))
}

/// The same for each of four blocks.
#[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
#[inline]
fn reversed(blocks: __m512i) -> __m512i {
    let order = block_of(0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f);
    _mm512_shuffle_epi8(blocks, _mm512_broadcast_i32x4(order))
}
