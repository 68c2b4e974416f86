//! The contents of the blocks, and whether a file holds them: every block differs from every other
//! in its bytes.

use std::io;

use serde::{Deserialize, Serialize};

use super::Blocks;
use crate::load::payload::Payload;

/// The content of all blocks of one seed.
pub struct Content(Payload);

impl Content {
    /// The content that belongs to `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Payload::new(seed))
    }

    /// Fills `data` with block `number`.
    pub fn fill(&self, number: u64, data: &mut [u8]) {
        let mut done = 0;
        while done < data.len() {
            let chunk = self.0.chunk(Self::stream(number), done as u64, data.len() - done);
            data[done..done + chunk.len()].copy_from_slice(chunk);
            done += chunk.len();
        }
    }

    /// Whether `data` is block `number`.
    pub fn is(&self, number: u64, data: &[u8]) -> bool {
        self.0.matches(Self::stream(number), 0, data)
    }

    fn stream(number: u64) -> u32 {
        // Streams repeat after 2^20 blocks, far more than lie side by side or are in progress at
        // once.
        (number & 0xf_ffff) as u32
    }
}

/// The contents of a file, compared with what should be there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// Places that hold the block that was acknowledged there last.
    pub right: u64,
    /// Places that do not.
    pub wrong: u64,
    /// Places where a later block was under way when the connection ended: they may hold either, or
    /// be torn.
    pub open: u64,
}

/// Reads every place that was written and compares it, by `read(offset, buffer)`, with what was
/// `acknowledged` of the blocks that were `sent`.
///
/// # Errors
/// The result of `read`.
pub fn verify(
    blocks: &Blocks,
    content: &Content,
    acknowledged: u64,
    sent: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
) -> io::Result<Verified> {
    let mut verified = Verified::default();
    let mut data = vec![0; blocks.block_bytes as usize];
    let slots = blocks.slots();
    for number in acknowledged.saturating_sub(slots)..acknowledged {
        if number.saturating_add(slots) < sent {
            verified.open += 1;
            continue;
        }
        read(blocks.offset(number), &mut data)?;
        let right = content.is(number, &data);
        *(if right { &mut verified.right } else { &mut verified.wrong }) += 1;
    }
    Ok(verified)
}
