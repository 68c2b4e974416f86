//! Kicks of WireGuard devices that wait for the store.

use vpnd_proto::session::DeviceId;

use crate::{FoundDevice, WireGuardDevice};
use vpnd_sys::clock::wall_s;

/// A WireGuard device, and since when its sessions are not valid until it is renewed.
pub(crate) type Wall = (DeviceId, u64);

/// The walls that are not in the store yet.
pub(crate) struct Walls {
    pub(super) kept: Vec<Wall>,
    /// Whether there may be more: any device with a session may have been kicked.
    pub(super) are_lost: bool,
}

impl Walls {
    /// Since when the sessions of a device are not valid, as the store found it after this was
    /// read.
    pub(crate) fn of(&self, FoundDevice { device, has_session, .. }: &FoundDevice) -> Option<u64> {
        self.kept(device).or_else(|| (self.are_lost && *has_session).then(wall_s))
    }

    /// Since when they are not valid, by walls that were not lost.
    pub(crate) fn kept(&self, device: &WireGuardDevice) -> Option<u64> {
        let of_it = |(id, at_s): &&Wall| *id == device.id && *at_s >= device.renewed_s;
        self.kept.iter().find(of_it).map(|(_, at_s)| *at_s)
    }
}
