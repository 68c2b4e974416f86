//! WireGuard's data: the outer form of sessions of stock WireGuard clients, in place of the lanes
//! of our own. Sections (§) are those of WireGuard's paper; its handshakes are the crate
//! `vpnd-wireguard`.
//!
//! A message's header is as long as that of our own data, so that a packet stands at the same place
//! in both, and one can be made the other where it stands.
//!
//! WireGuard has one counter for each direction, and several shards send for one peer. So a shard
//! reserves a range of counters for a batch, by one atomic addition ([`Sealer::reserve`]); what it
//! does not use stays unused. One shard owns each receiving index, and so the one [`Opener`].
//!
//! INVARIANT: no counter is given out twice. The addition cannot wrap: nothing is added at or
//! beyond [`REJECT_AFTER_MESSAGES`], and all shards together add less than what is left behind it.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use std::sync::Arc;

use vpnd_crypto::{Backend, NoiseKey, Secret};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::replay::ReplayWindow;
use crate::time::Time;
use crate::wire::{HEADER_LEN, HeaderError, Index, MAX_GATEWAY_LANES};

/// Bytes of an authentication tag.
pub const TAG_LEN: usize = 16;
/// Bytes of a message of data before its ciphertext.
pub const TRANSPORT_HEADER_LEN: usize = 16;
/// Plaintexts are padded to multiples of this (§5.4.6).
pub const PADDING: usize = 16;
/// The type of a message of data, with the three zero bytes behind it.
const TRANSPORT: u32 = 4;

/// A sender begins a handshake after this many messages.
pub const REKEY_AFTER_MESSAGES: u64 = 1 << 60;
/// The first counter that is not used: a whole replay window is left before the counter ends.
pub const REJECT_AFTER_MESSAGES: u64 = u64::MAX - (1 << 13);
/// A key is neither sealed nor opened with after this time.
pub const REJECT_AFTER_TIME: Duration = Duration::from_secs(180);
/// Counters that one reservation may take: few, because what one shard has reserved arrives among
/// the later counters of others. How many those are depends on how long the shard takes to send.
pub const MAX_RANGE: u16 = 16;
/// The smallest replay window among clients, boringtun's.
const SMALLEST_WINDOW: u64 = 1_024;

// The addition does not wrap, since a whole window of the kernel is left behind the last counter.
const _: () = assert!(MAX_GATEWAY_LANES as u64 * MAX_RANGE as u64 <= SMALLEST_WINDOW);
const _: () = assert!(TRANSPORT_HEADER_LEN == HEADER_LEN, "packets stand at the same place in both forms");

/// The header of sealed data (§5.4.6).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
struct TransportLayout {
    kind: U32,
    receiver: U32,
    counter: U64,
}

const _: () = assert!(size_of::<TransportLayout>() == TRANSPORT_HEADER_LEN);

/// The parsed header of sealed data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportHeader {
    /// The receiver's index.
    pub receiver: Index,
    /// The number of the message under its key.
    pub counter: u64,
}

impl TransportHeader {
    /// Reads the header of a datagram of type 4, which has room for a tag behind it.
    ///
    /// # Errors
    /// If it is of another type or too short.
    #[inline]
    pub fn parse(datagram: &[u8]) -> Result<Self, HeaderError> {
        let (layout, sealed) =
            TransportLayout::ref_from_prefix(datagram).map_err(|_| HeaderError::Truncated)?;
        if layout.kind.get() != TRANSPORT {
            return Err(HeaderError::Kind);
        }
        if sealed.len() < TAG_LEN {
            return Err(HeaderError::Truncated);
        }
        Ok(Self { receiver: Index(layout.receiver.get()), counter: layout.counter.get() })
    }

    /// The header's bytes.
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; TRANSPORT_HEADER_LEN] {
        let layout = TransportLayout {
            kind: U32::new(TRANSPORT),
            receiver: U32::new(self.receiver.0),
            counter: U64::new(self.counter),
        };
        zerocopy::transmute!(layout)
    }
}

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
    /// A key agreed on at `now`, for messages to `receiver`; none without ChaCha20-Poly1305.
    #[must_use]
    pub fn new(now: Time, backend: Backend, key: &Secret<32>, receiver: Index) -> Option<Self> {
        let key = NoiseKey::new(backend, key)?;
        Some(Self { key, receiver, next: AtomicU64::new(0), reject_at: now + REJECT_AFTER_TIME })
    }

    /// Goes on where another process has ended, which seals no more.
    #[must_use]
    pub fn resume_at(self, counter: u64) -> Self {
        Self { next: AtomicU64::new(counter), ..self }
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

    /// The index in its messages.
    #[must_use]
    pub const fn receiver(&self) -> Index {
        self.receiver
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

    /// The most bytes of plaintext that a message of `len` bytes holds.
    #[must_use]
    pub(crate) const fn contents_len(len: usize) -> usize {
        len.saturating_sub(TRANSPORT_HEADER_LEN + TAG_LEN) / PADDING * PADDING
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

/// A shard's way to seal with a key that shards share: it reserves counters for packets to send.
#[derive(Debug)]
pub(crate) struct SharedLane {
    sealer: Arc<Sealer>,
    next: u64,
    end: u64,
    /// Packets that are still to be sealed together.
    expected: usize,
}

impl SharedLane {
    pub(crate) fn new(sealer: Arc<Sealer>) -> Self {
        Self { sealer, next: 0, end: 0, expected: 1 }
    }

    /// True while the key may be used.
    #[inline]
    pub(crate) fn usable(&self, now: Time) -> bool {
        now < self.sealer.reject_at && self.sealer.reserved() < REJECT_AFTER_MESSAGES
    }

    /// Announces that this many packets are to be sealed now. Counters that were reserved before
    /// and not used are given up: until they arrive, others may have used more than a whole window.
    #[inline]
    pub(crate) fn expect(&mut self, packets: usize) {
        (self.next, self.end) = (0, 0);
        self.expected = packets;
    }

    /// Seals as [`Range::seal`] does.
    ///
    /// # Errors
    /// Those of [`Range::seal`].
    #[inline]
    pub(crate) fn seal(&mut self, now: Time, message: &mut [u8], len: usize) -> Result<usize, SealRefused> {
        let mut range = if self.next < self.end {
            Range { sealer: &self.sealer, next: self.next, end: self.end }
        } else {
            self.sealer.reserve(now, self.expected.clamp(1, MAX_RANGE.into()) as u16)?
        };
        let sealed = range.seal(message, len);
        (self.next, self.end) = (range.next, range.end);
        self.expected = self.expected.saturating_sub(1);
        sealed
    }
}

/// An opened message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Bytes of plaintext with padding, at [`TRANSPORT_HEADER_LEN`]; 0 for a keepalive.
    pub len: usize,
    /// True if no message of this key with a higher counter was accepted before.
    pub newest: bool,
}

/// The receiving key of a session.
#[derive(Debug)]
pub struct Opener {
    key: NoiseKey,
    pub(crate) window: ReplayWindow,
    reject_at: Time,
}

impl Opener {
    /// A key that was agreed on at `now`. Nothing if the backend has no ChaCha20-Poly1305.
    #[must_use]
    pub fn new(now: Time, backend: Backend, key: &Secret<32>) -> Option<Self> {
        let key = NoiseKey::new(backend, key)?;
        Some(Self { key, window: ReplayWindow::new(), reject_at: now + REJECT_AFTER_TIME })
    }

    /// Goes on where another process has ended, which opened none above `highest`; any late one
    /// counts as a replay.
    #[must_use]
    pub fn resume_after(self, highest: Option<u64>) -> Self {
        Self { window: ReplayWindow::closed_up_to(highest), ..self }
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
