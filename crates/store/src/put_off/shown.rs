//! Timestamps of WireGuard handshakes that wait for the store.
//!
//! INVARIANT: who reads a device of the store reads these with it, or a handshake that was put off
//! could be replayed.

use std::collections::HashMap;

use crate::{HandshakeShown, HandshakeTime, WireGuardDevice};

/// The timestamps, by public key and whether the gateway has shown them.
#[derive(Debug, Default)]
pub(crate) struct Shown(HashMap<([u8; 32], bool), HandshakeTime>);

impl Shown {
    pub(super) fn new(kept: Vec<HandshakeShown>) -> Self {
        let times = kept.into_iter().map(|shown| ((shown.public_key, shown.is_own), shown.time));
        Self(times.collect())
    }

    /// Gives a device, as the store found it after this was read, the timestamps that are later.
    pub(crate) fn add_to(&self, device: &mut WireGuardDevice) {
        let key = device.public_key;
        let latest = |is_own| self.0.get(&(key, is_own)).copied();
        device.latest = device.latest.max(latest(false));
        device.latest_own = device.latest_own.max(latest(true));
    }
}
