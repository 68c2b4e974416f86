//! ChaCha20 and Poly1305 together (RFC 8439, section 2.8), for packets.
//!
//! Numbered as a packet meets it:
//!
//! 1. The first eight, sixteen or twenty-four blocks of key stream. Block 0 is the key of Poly1305,
//!    so a short packet takes one pass of the cipher in all.
//! 2. Sealing: the text is encrypted, batch by batch; then the tag of it is computed.
//! 3. Opening: the tag is computed and compared first. Nothing is decrypted of a packet that is not
//!    authentic.
//!
//! The algorithm stands here once, over a [`Machine`]: the processor, or arrays that imitate it
//! (`emulated`, only in tests), so that each line runs in the tests of every computer.
//!
//! - INVARIANT: no branch and no address depends on key, plaintext or tag, only on lengths and on
//!   whether a packet is authentic.
//! - INVARIANT: a packet that is not authentic leaves zeros where its plaintext would be.
//! - INVARIANT: vector registers and stack are wiped before a call returns, for they held key
//!   stream and key.
//!
//! Nonces and limits are the caller's business.

#[cfg(test)]
mod tests;

use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize as _, Zeroizing};

use crate::chacha20;
use crate::machine::{BLOCK_LEN, Lanes, Machine};
use crate::poly1305::MacKey;
use crate::{KEY_LEN, MAX_TEXT_LEN, NONCE_LEN, NotAuthentic, TAG_LEN};

// No block counter of a packet wraps, so none comes twice: the key of Poly1305, one for each block
// of text, and those of the last batch, of twenty-four at most, that the text does not need.
const _: () = assert!((1 + MAX_TEXT_LEN.div_ceil(BLOCK_LEN) + 24) as u64 <= 1 << 32);
/// A key, and the proof that the machine's code can run.
pub(crate) struct Key<M> {
    key: [u8; KEY_LEN],
    machine: M,
}

/// A packet on its way.
pub(crate) struct Packet<'a> {
    nonce: [u8; NONCE_LEN],
    aad: &'a [u8],
    text: &'a mut [u8],
    /// Compared when opening.
    tag: [u8; TAG_LEN],
    /// The key of Poly1305, once the first blocks are there.
    mac_key: Zeroizing<MacKey>,
    /// Number of the next block of key stream.
    counter: u32,
    /// Bytes of the text that are encrypted or decrypted.
    done: usize,
}

impl<'a> Packet<'a> {
    fn new(nonce: [u8; NONCE_LEN], aad: &'a [u8], text: &'a mut [u8], tag: [u8; TAG_LEN]) -> Self {
        Self { nonce, aad, text, tag, mac_key: Zeroizing::default(), counter: 0, done: 0 }
    }

    /// Blocks of key stream that it still takes: one for the key of Poly1305.
    fn blocks_left(&self) -> usize {
        (self.text.len() - self.done).div_ceil(BLOCK_LEN) + usize::from(self.counter == 0)
    }
}

impl<M: Machine> Key<M> {
    pub(crate) fn new(machine: M, key: &[u8; KEY_LEN]) -> Box<Self> {
        let mut new = Box::new(Self { key: [0; KEY_LEN], machine });
        new.key.copy_from_slice(key);
        new
    }

    /// Encrypts `text` in place and returns the tag.
    #[inline]
    pub(crate) fn seal(&self, nonce: [u8; NONCE_LEN], aad: &[u8], text: &mut [u8]) -> [u8; TAG_LEN] {
        assert!(text.len() <= MAX_TEXT_LEN, "the caller checks what a block counter can count");
        let mut packet = Packet::new(nonce, aad, text, [0; TAG_LEN]);
        self.crypt::<true>(&mut packet);
        let tag = self.machine.tag(&packet.mac_key, packet.aad, packet.text);
        self.machine.wipe::<true>();
        tag
    }

    /// Decrypts `text` in place if `tag` is its tag; else `text` is zeros.
    #[inline]
    pub(crate) fn open(
        &self,
        nonce: [u8; NONCE_LEN],
        aad: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> Result<(), NotAuthentic> {
        if text.len() <= MAX_TEXT_LEN {
            let is_authentic = self.crypt::<false>(&mut Packet::new(nonce, aad, text, *tag));
            self.machine.wipe::<false>();
            if is_authentic {
                return Ok(());
            }
        }
        text.zeroize();
        Err(NotAuthentic)
    }

    /// Encrypts a packet; or decrypts it if its tag is right, and returns whether it is.
    #[inline]
    fn crypt<const SEAL: bool>(&self, packet: &mut Packet<'_>) -> bool {
        let machine = self.machine;
        while packet.counter == 0 || packet.done < packet.text.len() {
            // The needed number of blocks, if one batch can have them; else sixteen, the fastest
            // for a block.
            let is_right = match packet.blocks_left() {
                ..=8 => M::batch::<_, SEAL>(self, machine.eight(), packet),
                17..=24 => M::batch::<_, SEAL>(self, machine.twenty_four(), packet),
                _ => M::batch::<_, SEAL>(self, machine.sixteen(), packet),
            };
            if !is_right {
                return false;
            }
        }
        true
    }

    /// Encrypts or decrypts the next blocks of the packet. Before the first are decrypted, the tag
    /// is checked; returns whether it is right.
    #[inline(always)]
    pub(crate) fn batch_here<L: Lanes<Vector = M::Vector>, const SEAL: bool>(
        &self,
        lanes: L,
        packet: &mut Packet<'_>,
    ) -> bool {
        let machine = self.machine;
        let stream = chacha20::stream(lanes, &self.key, &packet.nonce, packet.counter);
        let mut stream = stream.as_ref();
        if packet.counter == 0 {
            let mut first = [0; BLOCK_LEN];
            machine.store(&mut first, stream[0]);
            stream = &stream[1..];
            for (word, bytes) in packet.mac_key.iter_mut().zip(first.as_chunks().0) {
                *word = u64::from_le_bytes(*bytes);
            }
            if !SEAL {
                let tag = machine.tag(&packet.mac_key, packet.aad, packet.text);
                if !machine.publish(tag.ct_eq(&packet.tag)) {
                    return false;
                }
            }
        }
        packet.counter += L::BLOCKS as u32;
        let end = packet.text.len().min(packet.done + BLOCK_LEN * stream.len());
        self.apply(stream, &mut packet.text[packet.done..end]);
        packet.done = end;
        true
    }

    /// Encrypts or decrypts at most as many bytes as there are of the key stream.
    #[inline(always)]
    fn apply(&self, stream: &[M::Vector], text: &mut [u8]) {
        let machine = self.machine;
        let (blocks, rest) = text.as_chunks_mut();
        for (block, stream) in blocks.iter_mut().zip(stream) {
            machine.store(block, machine.xor(machine.load(block), *stream));
        }
        if !rest.is_empty() {
            let part = machine.xor(machine.load_part(rest), stream[blocks.len()]);
            machine.store_part(rest, part);
        }
    }
}

impl<M> Key<M> {
    fn erase(&mut self) {
        self.key.zeroize();
    }
}

impl<M> Drop for Key<M> {
    fn drop(&mut self) {
        self.erase();
    }
}
