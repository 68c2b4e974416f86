//! Block writes over TCP: a writer, a target that answers each block once it is on disk, and
//! encryption above TCP.
//!
//! A writer keeps up to `ahead` blocks in progress: while it waits for an answer it seals and sends
//! the next ones. With `ahead` 1 it waits for the answer of each block, as a plain initiator does.
//!
//! On the connection (integers little-endian):
//!
//! ```text
//! writer -> target: salt (16) | proof (16)                    target -> writer: salt (16)
//! writer -> target, each block: number u64 | offset u64 | bytes u32 | zero u32 | data
//! target -> writer, answers: blocks on disk so far, u64
//! ```
//!
//! Where the target asks for each block first, as an iSCSI target does that takes no unsolicited
//! data (ready to transfer, R2T), a block takes two round trips, and the last field of its headers
//! says which it is:
//!
//! ```text
//! writer -> target, command: number u64 | offset u64 | bytes u32 | one u32
//! target -> writer, ready for this block: number u64 with its highest bit set
//! writer -> target, data: number u64 | offset u64 | bytes u32 | two u32 | data
//! ```
//!
//! Sealed, data and answers are records of an AEAD (see [`seal`]); plain, they are as they are.
//!
//! INVARIANT: an answer counts only blocks that were written and synced before it was sent
//! ([`target`]). INVARIANT: a block is written only whole, and sealed ones only after every record
//! of them proved authentic.

pub mod content;
pub mod place;
pub mod seal;
pub mod target;
pub mod writer;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

use seal::Sealing;

use super::congestion::CongestionControl;

/// Smallest and largest block in bytes.
pub const BLOCK_BYTES: std::ops::RangeInclusive<u32> = 512..=16 << 20;
/// Most blocks in progress.
pub const MAX_AHEAD: u32 = 256;
/// Largest part of the target that is written, in bytes.
pub const MAX_SPAN_BYTES: u64 = 1 << 40;
/// Time that either end waits for the other.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest warm-up and longest counted time, in milliseconds: a day.
const MOST_MS: u64 = 86_400_000;
/// Salt of each end and proof of the writer, in bytes.
const SALT_BYTES: usize = 16;
/// Bytes before the data of a block.
const HEADER_BYTES: usize = 24;
/// Tells the target's readiness for a block from an answer.
const READY: u64 = 1 << 63;
/// Most bytes that a writer holds sealed until the target is ready for them.
const MOST_HELD_BYTES: u64 = 1 << 28;

/// Which part of a block follows a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// All of it, unasked.
    Block = 0,
    /// Nothing yet.
    Command = 1,
    /// The data that the target asked for.
    Data = 2,
}

/// Whether blocks are encrypted above TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protection {
    Plain,
    Sealed,
}

/// Shared by both ends of one connection, from their coordinator. One connection uses it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub struct Secret([u8; 32]);

impl Secret {
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// The secret that only those have who also hold `key`: the ends use it where others may read
    /// how they were told.
    #[must_use]
    pub fn bound(&self, key: &[u8; 32]) -> Self {
        seal::bound(self, key)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The shape of the blocks, which both ends know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blocks {
    /// Shared by the two ends.
    pub secret: Secret,
    pub protection: Protection,
    /// Cipher of sealed blocks.
    #[serde(default, skip_serializing_if = "Sealing::is_default")]
    pub sealing: Sealing,
    pub block_bytes: u32,
    /// Bytes of the target that are written, again and again from the start; a multiple of the
    /// block.
    pub span_bytes: u64,
    /// Congestion control of both ends of the connection.
    pub congestion: CongestionControl,
    /// The target asks for a block's data before they are sent: two round trips for each.
    pub ready_first: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriterJob {
    pub blocks: Blocks,
    /// Seed of their content.
    pub seed: u64,
    /// Blocks in progress at most.
    pub ahead: u32,
    pub warmup_ms: u64,
    /// Counted, but at least until enough answers for a rate have come.
    pub duration_ms: u64,
    /// End after this many blocks, whatever the time.
    pub most_blocks: Option<u64>,
    pub peer: SocketAddr,
}

impl WriterJob {
    /// The first thing that is out of bounds, in words.
    pub fn problem(&self) -> Option<String> {
        let Self { ahead, warmup_ms, duration_ms, .. } = *self;
        if !(1..=MAX_AHEAD).contains(&ahead) {
            return Some(format!("{ahead} blocks in progress asked for, 1 to {MAX_AHEAD} are possible"));
        }
        let held = u64::from(ahead) * u64::from(self.blocks.block_bytes);
        if self.blocks.ready_first && held > MOST_HELD_BYTES {
            return Some(format!(
                "{ahead} blocks of {} bytes would be held until the target is ready for them, {MOST_HELD_BYTES} bytes are possible",
                self.blocks.block_bytes
            ));
        }
        if warmup_ms.max(duration_ms) > MOST_MS {
            return Some(format!(
                "{duration_ms} ms asked for after {warmup_ms} ms, each up to {MOST_MS} is possible"
            ));
        }
        self.blocks.problem()
    }
}

impl Blocks {
    /// The first thing that is out of bounds, in words.
    pub fn problem(&self) -> Option<String> {
        if !BLOCK_BYTES.contains(&self.block_bytes) {
            let (least, most) = (BLOCK_BYTES.start(), BLOCK_BYTES.end());
            return Some(format!(
                "blocks of {} bytes asked for, {least} to {most} are possible",
                self.block_bytes
            ));
        }
        let whole = self.span_bytes > 0 && self.span_bytes.is_multiple_of(u64::from(self.block_bytes));
        if !whole || self.span_bytes > MAX_SPAN_BYTES {
            return Some(format!(
                "{} bytes to write are no whole number of blocks up to {MAX_SPAN_BYTES}",
                self.span_bytes
            ));
        }
        None
    }

    /// Where block `number` is written.
    pub fn offset(&self, number: u64) -> u64 {
        number.wrapping_mul(u64::from(self.block_bytes)) % self.span_bytes
    }

    /// Blocks that lie side by side.
    pub fn slots(&self) -> u64 {
        self.span_bytes / u64::from(self.block_bytes)
    }
}

/// Why a connection ended early.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// The connection broke, or nothing came for [`IDLE_TIMEOUT`].
    #[error("{action}: {source}")]
    Connection {
        /// The call that failed.
        action: &'static str,
        source: std::io::Error,
    },
    /// The file or device failed; what was not answered may be lost.
    #[error("the target cannot {action}: {source}")]
    Disk {
        /// The call that failed.
        action: &'static str,
        source: std::io::Error,
    },
    /// The other end does not hold the secret, or data were changed on the way.
    #[error("what the other end sent is not authentic")]
    NotAuthentic,
    /// The other end broke the rules.
    #[error("the other end sent {0}")]
    Broken(&'static str),
    /// The coordinator ended it.
    #[error("ended by the coordinator")]
    Stopped,
    /// The key has sealed all that it may.
    #[error("the key of this connection has sealed all that it may; write less or in larger blocks")]
    Exhausted,
}

impl BlockError {
    fn connection(action: &'static str) -> impl Fn(std::io::Error) -> Self {
        move |source| Self::Connection { action, source }
    }
}

#[cfg(test)]
mod tests;
