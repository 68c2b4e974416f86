//! Messages about WireGuard devices and the gateway's key for them.
//!
//! INVARIANT: no device's private key is in a message, and the gateway's own only in those of a
//! backup.

use std::net::IpAddr;

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};

use vpnd_ipc::messages::SecretBytes;
use vpnd_store::WireGuardDevice;

/// Devices of one answer, at most; the command asks again.
pub(crate) const MAX_DEVICES: usize = 256;

/// The gateway's public key; its private one is made if there is none yet.
#[derive(Debug, Encode, Decode)]
pub(crate) struct WireGuardKey;

/// Answered with the addresses that the device got, or nothing if none is free.
#[derive(Debug, Encode, Decode)]
pub(crate) struct AddWireGuardDevice {
    #[n(0)]
    pub(crate) name: String,
    #[n(1)]
    pub(crate) device: DeviceToAdd,
    #[n(2)]
    pub(crate) now_s: u64,
}

/// The devices after this public key.
#[derive(Debug, Encode, Decode)]
pub(crate) struct WireGuardDevicesAfter(#[n(0)] pub(crate) Option<ByteArray<32>>);

/// Answered with whether there is such a device.
#[derive(Debug, Encode, Decode)]
pub(crate) struct RenewWireGuardDevice {
    #[n(0)]
    pub(crate) name: String,
    #[n(1)]
    pub(crate) device: ByteArray<16>,
    /// Whether it may come with earlier timestamps than before.
    #[n(2)]
    pub(crate) resets_clock: bool,
    #[n(3)]
    pub(crate) now_s: u64,
}

/// The file with the gateway's key, if there is one.
#[derive(Debug, Encode, Decode)]
pub(crate) struct BackUpWireGuardKey;

/// Put that file in place.
#[derive(Debug, Encode, Decode)]
pub(crate) struct RestoreWireGuardKey(#[n(0)] pub(crate) SecretBytes);

#[derive(Debug, Encode, Decode)]
pub(crate) struct DeviceToAdd {
    #[n(0)]
    pub(crate) public_key: ByteArray<32>,
    #[n(1)]
    pub(crate) id: ByteArray<16>,
    #[n(2)]
    pub(crate) name: String,
    #[n(3)]
    pub(crate) preshared: Option<SecretBytes>,
    /// Addresses of each pool, of which it gets the first that is free.
    #[n(4)]
    pub(crate) candidates: Vec<Vec<IpAddr>>,
    /// WireGuard devices that the user may have, with this one.
    #[n(5)]
    pub(crate) most: u64,
}

/// A WireGuard device of a user.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WireGuardSummary {
    #[n(0)]
    pub user: String,
    #[n(1)]
    pub(crate) id: ByteArray<16>,
    #[n(2)]
    pub(crate) public_key: ByteArray<32>,
    #[n(3)]
    pub name: String,
    #[n(4)]
    pub addresses: Vec<IpAddr>,
    #[n(5)]
    pub renewed_s: u64,
    #[n(6)]
    pub walled_s: Option<u64>,
    /// Whether its user is enabled and has not expired.
    #[n(7)]
    pub may_connect: bool,
    #[n(8)]
    pub outer: Option<std::net::SocketAddr>,
}

impl WireGuardSummary {
    pub(crate) fn new(device: &WireGuardDevice, user: &vpnd_store::User) -> Self {
        let own = user.fixed_addresses.iter().filter(|fixed| fixed.device == Some(device.id));
        Self {
            user: user.name.clone(),
            id: device.id.0.into(),
            public_key: device.public_key.into(),
            name: device.name.clone(),
            addresses: own.map(|fixed| fixed.address).collect(),
            renewed_s: device.renewed_s,
            walled_s: device.walled_s,
            may_connect: device.may_connect,
            outer: device.outer.map(|at| at.remote),
        }
    }

    /// The device for a terminal.
    pub(crate) fn plain(mut self) -> Self {
        self.user = vpnd_sys::text::plain(&self.user);
        self.name = vpnd_sys::text::plain(&self.name);
        self
    }
}
