//! Datagrams that a plane makes by itself: probes, their answers, keepalives.

use super::Slot;
use crate::inband::Inband;

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
    /// An empty datagram.
    Keepalive(Slot),
}

impl Outgoing {
    /// The session that it goes to.
    #[must_use]
    pub fn slot(self) -> Slot {
        match self {
            Self::Probe { slot, .. } | Self::Reply { slot, .. } | Self::PathProbe { slot, .. } => slot,
            Self::Keepalive(slot) | Self::PathCheck(slot) => slot,
        }
    }

    /// Writes the plaintext; its length, if it fits.
    pub(super) fn write(self, out: &mut [u8]) -> Option<usize> {
        match self {
            Self::Probe { id, size, .. } => Inband::Probe { id, size }.write(out),
            Self::Reply { id, size, padded: false, .. } => Inband::Reply { id, size }.write(out),
            Self::Reply { id, size, padded: true, .. } => Inband::PathReply { id, size }.write(out),
            Self::PathProbe { id, size, known, .. } => Inband::PathProbe { id, size, known }.write(out),
            Self::PathCheck(_) => Inband::PathCheck.write(out),
            Self::Keepalive(_) => Some(0),
        }
    }
}
