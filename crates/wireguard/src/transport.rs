//! Sealing and opening data with the keys of one session (§5.4.6, §6.2).
//!
//! WireGuard has one counter for each direction, and several shards send for one peer. So a shard
//! reserves a range of counters for a batch, by one atomic addition ([`Sealer::reserve`]); what it
//! does not use stays unused. One shard owns each receiving index, and so the one [`Opener`].
//!
//! INVARIANT: no counter is given out twice. The addition cannot wrap: nothing is added at or
//! beyond [`REJECT_AFTER_MESSAGES`], and all shards together add less than what is left behind it.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use vpnd_crypto::{Backend, NoiseKey, Secret};
use vpnd_proto::replay::ReplayWindow;
use vpnd_proto::time::Time;
use vpnd_proto::wire::{Index, MAX_GATEWAY_LANES};

use crate::message::{PADDING, TAG_LEN, TRANSPORT_HEADER_LEN, TransportHeader};

/// A sender begins a handshake after so many messages.
pub const REKEY_AFTER_MESSAGES: u64 = 1 << 60;
/// The first counter that is neither sealed nor opened: a whole replay window is left before the
/// counter ends.
pub const REJECT_AFTER_MESSAGES: u64 = u64::MAX - (1 << 13);
/// A key is neither sealed nor opened with after this time.
pub const REJECT_AFTER_TIME: Duration = Duration::from_secs(180);
/// Counters that one reservation may take: few, because what one shard has reserved arrives among
/// the later counters of others.
pub const MAX_RANGE: u16 = 16;
/// The smallest replay window among clients, boringtun's.
const SMALLEST_WINDOW: u64 = 1_024;

// The addition does not wrap, since a whole window of the kernel is left behind the last counter.
const _: () = assert!(MAX_GATEWAY_LANES as u64 * MAX_RANGE as u64 <= SMALLEST_WINDOW);

/// The error of data that is not sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealRefused {
    /// The key is too old, or has sealed all that it may: only a handshake helps.
    #[error("the session needs a new handshake")]
    Exhausted,
    /// The reserved counters are used up.
    #[error("no reserved counter is left")]
    RangeUsed,
    /// The buffer has no room for header, padding and tag.
    #[error("the buffer is too short")]
    NoRoom,
}

/// The error of data that is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenRefused {
    /// The key is too old, or the counter too high.
    #[error("the session has ended")]
    Exhausted,
    /// The counter was accepted before or is too old to tell.
    #[error("a replay")]
    Replayed,
    /// It is not what the peer sealed.
    #[error("not authentic")]
    NotAuthentic,
}

/// The sending key of a session, which shards share.
#[derive(Debug)]
pub struct Sealer {
    key: NoiseKey,
    receiver: Index,
    next: AtomicU64,
    reject_at: Time,
}

impl Sealer {
    /// A key that was agreed on at `now`, for messages to the index `receiver`. Nothing if the
    /// backend has no ChaCha20-Poly1305.
    #[must_use]
    pub fn new(now: Time, backend: Backend, key: &Secret<32>, receiver: Index) -> Option<Self> {
        let key = NoiseKey::new(backend, key)?;
        Some(Self { key, receiver, next: AtomicU64::new(0), reject_at: now + REJECT_AFTER_TIME })
    }

    /// Reserves `count` counters, of which there are at most [`MAX_RANGE`], for a batch.
    ///
    /// # Errors
    /// If the key may not be used any more.
    #[inline]
    pub fn reserve(&self, now: Time, count: u16) -> Result<Range<'_>, SealRefused> {
        // Only that each counter is given out once matters, not in which order other memory
        // changes.
        if now >= self.reject_at || self.next.load(Ordering::Relaxed) >= REJECT_AFTER_MESSAGES {
            return Err(SealRefused::Exhausted);
        }
        let count = u64::from(count.min(MAX_RANGE));
        let first = self.next.fetch_add(count, Ordering::Relaxed);
        let end = (first + count).min(REJECT_AFTER_MESSAGES);
        Ok(Range { sealer: self, next: first, end })
    }

    /// Counters reserved so far.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Length of the message that `len` bytes of plaintext make.
    #[must_use]
    pub const fn message_len(len: usize) -> usize {
        TRANSPORT_HEADER_LEN + len.next_multiple_of(PADDING) + TAG_LEN
    }
}

/// Reserved counters of one shard.
#[derive(Debug)]
pub struct Range<'a> {
    sealer: &'a Sealer,
    next: u64,
    end: u64,
}

impl Range<'_> {
    /// Seals the `len` bytes that stand at [`TRANSPORT_HEADER_LEN`] in `message`, padded with
    /// zeros, and writes the header before them. No bytes make a keepalive. Returns the message's
    /// length, [`Sealer::message_len`].
    ///
    /// # Errors
    /// If no counter is left, or the buffer has no room.
    #[inline]
    pub fn seal(&mut self, message: &mut [u8], len: usize) -> Result<usize, SealRefused> {
        if self.next >= self.end {
            return Err(if self.end == REJECT_AFTER_MESSAGES {
                SealRefused::Exhausted
            } else {
                SealRefused::RangeUsed
            });
        }
        let padded = len.checked_next_multiple_of(PADDING).ok_or(SealRefused::NoRoom)?;
        let (header, body) = message.split_at_mut_checked(TRANSPORT_HEADER_LEN).ok_or(SealRefused::NoRoom)?;
        if body.len() < padded.saturating_add(TAG_LEN) {
            return Err(SealRefused::NoRoom);
        }
        let counter = self.next;
        self.next += 1;
        header.copy_from_slice(&TransportHeader { receiver: self.sealer.receiver, counter }.to_bytes());
        body[len..padded].fill(0);
        let sealed =
            self.sealer.key.seal_in_place(counter, &[], body, padded).map_err(|_| SealRefused::NoRoom)?;
        Ok(TRANSPORT_HEADER_LEN + sealed)
    }

    /// Counters that are left.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.end.saturating_sub(self.next)
    }
}

/// An opened message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Bytes of plaintext with its padding, which stand at [`TRANSPORT_HEADER_LEN`]; 0 for a
    /// keepalive.
    pub len: usize,
    /// True if no message of this key with a higher counter was accepted before.
    pub newest: bool,
}

/// The receiving key of a session.
#[derive(Debug)]
pub struct Opener {
    key: NoiseKey,
    window: ReplayWindow,
    reject_at: Time,
}

impl Opener {
    /// A key that was agreed on at `now`. Nothing if the backend has no ChaCha20-Poly1305.
    #[must_use]
    pub fn new(now: Time, backend: Backend, key: &Secret<32>) -> Option<Self> {
        let key = NoiseKey::new(backend, key)?;
        Some(Self { key, window: ReplayWindow::new(), reject_at: now + REJECT_AFTER_TIME })
    }

    /// Opens `message`, whose header is `header`, in place.
    ///
    /// # Errors
    /// If the session has ended, or the message is a replay or not authentic; nothing changes then.
    #[inline]
    pub fn open(
        &mut self,
        now: Time,
        header: TransportHeader,
        message: &mut [u8],
    ) -> Result<Opened, OpenRefused> {
        if now >= self.reject_at || header.counter >= REJECT_AFTER_MESSAGES {
            return Err(OpenRefused::Exhausted);
        }
        if !self.window.check(header.counter) {
            return Err(OpenRefused::Replayed);
        }
        let (_, body) =
            message.split_at_mut_checked(TRANSPORT_HEADER_LEN).ok_or(OpenRefused::NotAuthentic)?;
        let opened =
            self.key.open_in_place(header.counter, &[], body).map_err(|_| OpenRefused::NotAuthentic)?;
        let len = opened.len();
        let newest = self.window.is_newest(header.counter);
        if !self.window.commit(header.counter) {
            return Err(OpenRefused::Replayed);
        }
        Ok(Opened { len, newest })
    }
}

#[cfg(test)]
mod tests;
