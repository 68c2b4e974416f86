//! Memory for the messages that wait: a fixed number of long buffers, which change hands without a
//! copy, and a fixed number of blocks, into which short messages are copied, so that a flood of
//! short ones does not use up a long buffer each.
//!
//! INVARIANT: whatever comes, no more is allocated than these. A long buffer is made when it is
//! first needed, and then kept: most shards are never behind, and those of clients can't be.

use super::BUFFER_LEN;

/// Long buffers: enough that hundreds of connections can have a dozen packets each on their way.
/// With fewer, senders lose so much that their super-packets become short, and each packet costs
/// more.
const BUFFERS: usize = 256;
/// Length of a block in bytes: a full-size datagram fits.
const BLOCK_LEN: usize = 2 << 10;
const BLOCKS: usize = 2_048;
/// Messages from this length on keep their buffer.
const LONG: usize = 16 << 10;
/// The end of a list of blocks.
const NONE: u32 = u32::MAX;

/// The most messages that fit.
pub(super) const MAX_MESSAGES: usize = BUFFERS + BLOCKS;

/// Where a message is.
#[derive(Debug)]
pub(super) enum Contents {
    /// In its own buffer.
    Long(Box<[u8]>),
    /// In blocks, of which this is the first.
    Blocks(u32),
}

/// Room for messages.
#[derive(Debug)]
pub(super) struct Store {
    buffers: Vec<Box<[u8]>>,
    /// Long buffers that were not needed yet.
    unmade: usize,
    blocks: Box<[u8]>,
    /// The block behind each, in a message or among the free ones.
    next: Box<[u32]>,
    free: u32,
    free_count: usize,
}

impl Store {
    pub(super) fn new() -> Self {
        let next = (1..BLOCKS as u32).chain([NONE]).collect();
        Self {
            buffers: Vec::with_capacity(BUFFERS),
            unmade: BUFFERS,
            blocks: vec![0; BLOCKS * BLOCK_LEN].into_boxed_slice(),
            next,
            free: 0,
            free_count: BLOCKS,
        }
    }

    /// Puts the first `len` bytes of `buffer` away; `None` if there is no room. A buffer that is
    /// kept is replaced by another.
    pub(super) fn put(&mut self, buffer: &mut Box<[u8]>, len: usize) -> Option<Contents> {
        // Either kind of room will do when the better one is used up.
        let fits_blocks = len.div_ceil(BLOCK_LEN).max(1) <= self.free_count;
        if fits_blocks && (len < LONG || self.buffers.is_empty() && self.unmade == 0) {
            return Some(Contents::Blocks(self.copy(&buffer[..len])));
        }
        let spare = self.buffers.pop().or_else(|| self.make())?;
        Some(Contents::Long(std::mem::replace(buffer, spare)))
    }

    /// A new long buffer, if there may be one more.
    fn make(&mut self) -> Option<Box<[u8]>> {
        self.unmade = self.unmade.checked_sub(1)?;
        Some(vec![0; BUFFER_LEN].into_boxed_slice())
    }

    /// Bytes of memory that a message of `len` bytes takes.
    pub(super) fn room(contents: &Contents, len: usize) -> usize {
        match contents {
            Contents::Long(_) => BUFFER_LEN,
            Contents::Blocks(_) => len.div_ceil(BLOCK_LEN).max(1) * BLOCK_LEN,
        }
    }

    /// Takes a message of `len` bytes out, to stand at `start` of `buffer`. A long one replaces the
    /// buffer, so it stands at its beginning.
    pub(super) fn take(&mut self, contents: Contents, len: usize, buffer: &mut Box<[u8]>, start: usize) {
        match contents {
            Contents::Long(kept) => self.buffers.push(std::mem::replace(buffer, kept)),
            Contents::Blocks(first) => {
                let mut block = first;
                for piece in buffer[start..start + len].chunks_mut(BLOCK_LEN) {
                    piece.copy_from_slice(&self.blocks[block as usize * BLOCK_LEN..][..piece.len()]);
                    block = self.next[block as usize];
                }
                self.release(first);
            }
        }
    }

    /// Forgets a message.
    pub(super) fn drop(&mut self, contents: Contents) {
        match contents {
            Contents::Long(buffer) => self.buffers.push(buffer),
            Contents::Blocks(first) => self.release(first),
        }
    }

    /// Copies bytes into blocks, of which there are enough. Returns the first.
    fn copy(&mut self, bytes: &[u8]) -> u32 {
        let first = self.free;
        let mut last = first;
        let mut pieces = bytes.chunks(BLOCK_LEN);
        let mut piece = pieces.next().unwrap_or_default();
        loop {
            self.free_count -= 1;
            self.blocks[last as usize * BLOCK_LEN..][..piece.len()].copy_from_slice(piece);
            let Some(following) = pieces.next() else { break };
            (last, piece) = (self.next[last as usize], following);
        }
        self.free = std::mem::replace(&mut self.next[last as usize], NONE);
        first
    }

    fn release(&mut self, first: u32) {
        let mut last = first;
        self.free_count += 1;
        while self.next[last as usize] != NONE {
            last = self.next[last as usize];
            self.free_count += 1;
        }
        self.next[last as usize] = self.free;
        self.free = first;
    }

    /// Long buffers that were made.
    #[cfg(test)]
    pub(super) fn made(&self) -> usize {
        BUFFERS - self.unmade
    }

    #[cfg(test)]
    pub(super) fn is_unused(&self) -> bool {
        self.buffers.len() + self.unmade == BUFFERS && self.free_count == BLOCKS
    }
}
