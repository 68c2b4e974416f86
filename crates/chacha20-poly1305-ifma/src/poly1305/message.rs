//! The input of Poly1305 (RFC 8439, section 2.8): associated data, text, both filled up with zeros
//! to whole blocks, and their lengths. Here are offsets and copies alone; all of it is public.

use crate::machine::{BLOCK_LEN, Machine};

/// Blocks of a group.
pub(super) const GROUP: usize = 8;
/// Bytes of a group.
pub(super) const GROUP_LEN: usize = 16 * GROUP;

/// A message in groups of eight blocks, of which the first may have fewer.
pub(super) struct Message<'a> {
    aad: &'a [u8],
    text: &'a [u8],
    lengths: [u8; 16],
    /// Blocks that the first group lacks.
    missing: usize,
    groups: usize,
}

impl<'a> Message<'a> {
    #[inline(always)]
    pub(super) fn new(aad: &'a [u8], text: &'a [u8]) -> Self {
        let blocks = aad.len().div_ceil(16) + text.len().div_ceil(16) + 1;
        let groups = blocks.div_ceil(GROUP);
        let mut lengths = [0; 16];
        lengths[..8].copy_from_slice(&(aad.len() as u64).to_le_bytes());
        lengths[8..].copy_from_slice(&(text.len() as u64).to_le_bytes());
        Self { aad, text, lengths, missing: groups * GROUP - blocks, groups }
    }

    /// At least one.
    #[inline(always)]
    pub(super) fn groups(&self) -> usize {
        self.groups
    }

    /// Blocks that the first group lacks, at its beginning.
    #[inline(always)]
    pub(super) fn missing(&self) -> usize {
        self.missing
    }

    /// Bytes before the text, those that are missing included.
    #[inline(always)]
    fn before_text(&self) -> usize {
        16 * (self.missing + self.aad.len().div_ceil(16))
    }

    /// Groups at the beginning that are not of the text alone; without the last, which never is.
    #[inline(always)]
    pub(super) fn copied_groups(&self) -> usize {
        self.before_text().div_ceil(GROUP_LEN).min(self.groups - 1)
    }

    /// The groups between these and the last: pairs of them, and perhaps one more.
    #[inline(always)]
    pub(super) fn pairs_in_text(&self) -> (&'a [[[u8; GROUP_LEN]; 2]], &'a [[u8; GROUP_LEN]]) {
        let begin = (GROUP_LEN * self.copied_groups()).saturating_sub(self.before_text());
        let groups = self.text.get(begin..).unwrap_or_default().as_chunks().0;
        let groups = &groups[..self.groups - 1 - self.copied_groups()];
        groups.as_chunks()
    }

    /// Copies what there is of a group, and zeros for the rest. By vectors: a call of `memcpy` here
    /// would drive all others onto the stack.
    #[inline(always)]
    pub(super) fn copy<M: Machine>(&self, machine: M, number: usize, room: &mut [u8; GROUP_LEN]) {
        *room = [0; GROUP_LEN];
        let begin = GROUP_LEN * number;
        let mut at = 16 * self.missing;
        for part in [self.aad, self.text, &self.lengths] {
            // Where the common bytes begin in the part and in the group.
            let (skipped, to) = (begin.saturating_sub(at), at.saturating_sub(begin));
            let (part_here, room) = (part.get(skipped..), room.get_mut(to..));
            let (part_here, room) = (part_here.unwrap_or_default(), room.unwrap_or_default());
            for (part, room) in part_here.chunks(BLOCK_LEN).zip(room.chunks_mut(BLOCK_LEN)) {
                let len = part.len().min(room.len());
                machine.store_part(&mut room[..len], machine.load_part(&part[..len]));
            }
            at += part.len().next_multiple_of(16);
        }
    }
}
