//! Datagrams that a plane makes by itself: probes, their answers, keepalives.

use super::Slot;
use crate::inband::{BATCH_LEN, Inband};

/// A datagram that the plane itself makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// A probe of ours.
    Probe {
        /// The session that it goes to.
        slot: Slot,
        /// Number that the reply repeats.
        id: u16,
        /// Length of the plaintext in bytes.
        size: u16,
    },
    /// The answer to the peer's probe.
    Reply {
        /// The session that it goes to.
        slot: Slot,
        /// The probe's number.
        id: u16,
        /// Length of the probe's plaintext in bytes.
        size: u16,
        /// Whether the answer is as long.
        padded: bool,
    },
    /// A probe of both directions of the path.
    PathProbe {
        /// The session that it goes to.
        slot: Slot,
        /// Number that the reply repeats.
        id: u16,
        /// Length of the plaintext in bytes.
        size: u16,
        /// The size that is known to work.
        known: Option<u16>,
    },
    /// A request that the peer probe the path.
    PathCheck(Slot),
    /// [`BATCH_LEN`] probes of the path or replies to such, numbered from `id` on, to be sent as
    /// one batch: [`Outgoing::parts`] has each.
    Batch {
        /// The session that it goes to.
        slot: Slot,
        /// Number of the first one.
        id: u16,
        /// Length of each plaintext in bytes.
        size: u16,
        /// Whether they are replies.
        replies: bool,
    },
    /// A probe that requests a batch of replies.
    BatchProbe {
        /// The session that it goes to.
        slot: Slot,
        /// Number of the first reply.
        id: u16,
        /// Length of the plaintext in bytes.
        size: u16,
    },
    /// The report that batches from the peer are lost.
    BatchesLost(Slot),
    /// An empty datagram.
    Keepalive(Slot),
}

impl Outgoing {
    /// The session that it goes to.
    #[must_use]
    pub fn slot(self) -> Slot {
        match self {
            Self::Probe { slot, .. } | Self::Reply { slot, .. } | Self::PathProbe { slot, .. } => slot,
            Self::Batch { slot, .. } | Self::BatchProbe { slot, .. } => slot,
            Self::Keepalive(slot) | Self::PathCheck(slot) | Self::BatchesLost(slot) => slot,
        }
    }

    /// The datagrams that it consists of.
    pub fn parts(self) -> impl Iterator<Item = Self> {
        let count = if matches!(self, Self::Batch { .. }) { BATCH_LEN } else { 1 };
        (0..count).map(move |part| match self {
            Self::Batch { slot, id, size, replies: true } => {
                Self::Reply { slot, id: id.wrapping_add(part), size, padded: true }
            }
            Self::Batch { slot, id, size, replies: false } => {
                Self::PathProbe { slot, id: id.wrapping_add(part), size, known: None }
            }
            single => single,
        })
    }

    /// Writes the plaintext, that of the first part if there are several; its length, if it fits.
    pub(super) fn write(self, out: &mut [u8]) -> Option<usize> {
        match self {
            Self::Probe { id, size, .. } => Inband::Probe { id, size }.write(out),
            Self::Reply { id, size, padded: false, .. } => Inband::Reply { id, size }.write(out),
            Self::Reply { id, size, padded: true, .. } => Inband::PathReply { id, size }.write(out),
            Self::PathProbe { id, size, known, .. } => Inband::PathProbe { id, size, known }.write(out),
            Self::Batch { id, size, replies: true, .. } => Inband::PathReply { id, size }.write(out),
            Self::Batch { id, size, replies: false, .. } => {
                Inband::PathProbe { id, size, known: None }.write(out)
            }
            Self::BatchProbe { id, size, .. } => Inband::BatchProbe { id, size }.write(out),
            Self::PathCheck(_) => Inband::PathCheck.write(out),
            Self::BatchesLost(_) => Inband::BatchesLost.write(out),
            Self::Keepalive(_) => Some(0),
        }
    }
}
