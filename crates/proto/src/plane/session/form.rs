//! The outer form of what a session's peer is sent: a lane of our own, or WireGuard's data.

use std::sync::Arc;

use super::{Endpoint, Epoch, Session};
use crate::lane::{SealRefused, SendLane};
use crate::time::Time;
use crate::wireguard::{self, Sealer, SharedLane};

/// The number of the one epoch that a session of WireGuard has: its keys do not overlap.
const WIREGUARD_EPOCH: u32 = 0;

/// How packets are sealed.
#[derive(Debug)]
pub(super) enum Form {
    /// In a lane of our own.
    Lane(SendLane),
    /// The form of WireGuard's data.
    WireGuard(SharedLane),
}

impl Form {
    /// The lane of our own.
    pub(super) const fn lane(&self) -> Option<&SendLane> {
        match self {
            Self::Lane(lane) => Some(lane),
            Self::WireGuard(_) => None,
        }
    }

    /// Another packet is to be sealed, or several.
    #[inline]
    pub(super) fn begin(&mut self) {
        self.expect(1);
    }

    /// Announces that this many packets are to be sealed now.
    #[inline]
    pub(super) fn expect(&mut self, packets: usize) {
        if let Self::WireGuard(lane) = self {
            lane.expect(packets);
        }
    }

    /// True while the key may be used.
    #[inline]
    pub(super) fn usable(&self, now: Time) -> bool {
        match self {
            Self::Lane(lane) => lane.usable(now),
            Self::WireGuard(lane) => lane.usable(now),
        }
    }

    /// Whether the epoch should be replaced because of what was sent. For WireGuard the control
    /// plane looks at the counter itself.
    #[inline]
    pub(super) fn rekey_due(&self) -> bool {
        self.lane().is_some_and(SendLane::rekey_due)
    }

    /// Length of the datagram that `len` bytes make.
    #[inline]
    pub(super) fn datagram_len(&self, len: usize) -> usize {
        match self {
            Self::Lane(lane) => lane.datagram_len(len),
            Self::WireGuard(_) => Sealer::message_len(len),
        }
    }

    /// Seals the `len` bytes that stand at [`crate::wire::HEADER_LEN`] in `datagram`. Returns the
    /// datagram's length.
    #[inline]
    pub(super) fn seal(
        &mut self,
        now: Time,
        datagram: &mut [u8],
        len: usize,
        confirm: bool,
    ) -> Result<usize, SealRefused> {
        match self {
            Self::Lane(lane) => lane.seal(now, datagram, len, confirm),
            Self::WireGuard(lane) => lane.seal(now, datagram, len).map_err(|refused| match refused {
                wireguard::SealRefused::Exhausted | wireguard::SealRefused::RangeUsed => {
                    SealRefused::Exhausted
                }
                wireguard::SealRefused::NoRoom => SealRefused::NoRoom,
            }),
        }
    }
}

impl Session {
    /// Seals as WireGuard's data from now on, for the peer at `endpoint`.
    pub(in crate::plane) fn seal_by_wireguard(&mut self, sealer: Arc<Sealer>, endpoint: Endpoint) {
        self.epochs.clear();
        self.epochs.push(Epoch {
            number: WIREGUARD_EPOCH,
            send: Form::WireGuard(SharedLane::new(sealer)),
            endpoint: Some(endpoint),
            peer_lane: 0,
            follows_peer: true,
            // Stock clients have none of our features: they need whole checksums, and carry no mark
            // back over to the packet.
            features: 0,
            copied: 0,
            indexes: Vec::new(),
            rekey_reported: false,
        });
        self.sealing = Some(WIREGUARD_EPOCH);
        self.epoch_requested = false;
    }

    /// Seals no more.
    pub(in crate::plane) fn unseal_wireguard(&mut self) {
        self.epochs.clear();
        self.sealing = None;
        self.epoch_requested = false;
    }

    /// The peer is at `endpoint` now.
    pub(in crate::plane) fn move_wireguard(&mut self, endpoint: Endpoint) {
        for epoch in &mut self.epochs {
            epoch.endpoint = Some(endpoint);
        }
    }

    /// The control plane was asked for a key and has none: it is asked again.
    pub(in crate::plane) fn ask_again(&mut self) {
        self.epoch_requested = false;
    }
}
