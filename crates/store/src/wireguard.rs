//! WireGuard devices of users: public keys that stock clients show in place of a login.

use std::net::IpAddr;

use vpnd_proto::plane::Endpoint;
use vpnd_proto::session::DeviceId;
use zeroize::Zeroizing;

use crate::{StoreError, User, UserId};

/// Bytes of a timestamp of WireGuard (TAI64N), which compare as times do.
pub type HandshakeTime = [u8; 12];

/// A preshared key of WireGuard. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct PresharedKey(Zeroizing<[u8; 32]>);

impl PresharedKey {
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PresharedKey(<secret>)")
    }
}

/// A WireGuard device that is to be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewWireGuardDevice {
    pub public_key: [u8; 32],
    pub id: DeviceId,
    /// For people; may be empty.
    pub name: String,
    pub preshared: Option<PresharedKey>,
    /// WireGuard devices that its user may have, with this one.
    pub most: u64,
    /// The addresses in its configuration, which stay its own.
    pub addresses: Vec<IpAddr>,
}

/// A WireGuard device of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireGuardDevice {
    pub public_key: [u8; 32],
    pub user: UserId,
    pub id: DeviceId,
    pub name: String,
    pub preshared: Option<PresharedKey>,
    /// When it was added or renewed last: its sessions end a lifetime after that.
    pub renewed_s: u64,
    /// Since when no session of it is valid, until it is renewed.
    pub walled_s: Option<u64>,
    /// The latest timestamp that it has shown.
    pub latest: Option<HandshakeTime>,
    /// The latest timestamp that was shown to it.
    pub latest_own: Option<HandshakeTime>,
    /// Where it was heard from last, and the gateway's own address that it talks to, until its
    /// session ends.
    pub outer: Option<Endpoint>,
    /// Whether its user is enabled and not known to have expired.
    pub may_connect: bool,
}

/// A device with its user.
#[derive(Debug)]
pub struct FoundDevice {
    pub device: WireGuardDevice,
    pub user: User,
    /// Whether it has a session that is not over.
    pub has_session: bool,
}

/// A device, and what the access profile of its user depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedDevice {
    pub device: WireGuardDevice,
    pub user_name: String,
    pub source: String,
    pub groups: Vec<String>,
}

/// Devices that have changed, or whose users have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceChanges {
    /// The number of the last change.
    pub last: u64,
    /// Whether these are all devices that there are.
    pub are_all: bool,
    /// By public key.
    pub devices: Vec<OwnedDevice>,
    /// Keys that are no device's any more.
    pub removed: Vec<[u8; 32]>,
}

/// A timestamp that was shown, or is about to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeShown {
    pub public_key: [u8; 32],
    pub time: HandshakeTime,
    /// Whether the gateway shows it, rather than the device.
    pub is_own: bool,
}

/// The WireGuard devices of a gateway's users.
///
/// INVARIANT: a public key is that of one device at most, and timestamps only become later, but for
/// [`WireGuardDevices::forget_handshakes`].
pub trait WireGuardDevices: Send + Sync {
    /// Adds a device of the user, with its own addresses.
    fn add_wireguard_device(
        &self,
        name: &str,
        device: &NewWireGuardDevice,
        now_s: u64,
    ) -> Result<(), StoreError>;
    /// All of them, by public key.
    fn wireguard_devices(&self) -> Result<Vec<WireGuardDevice>, StoreError>;
    /// Those of a user, by public key.
    fn wireguard_devices_of(&self, user: UserId) -> Result<Vec<WireGuardDevice>, StoreError>;
    /// The device with this public key, at this time of sessions.
    fn find_wireguard_device(
        &self,
        public_key: &[u8; 32],
        now_s: u64,
    ) -> Result<Option<FoundDevice>, StoreError>;
    /// Its sessions are valid again, for another lifetime: `false` if the user has no such device.
    fn renew_wireguard_device(&self, name: &str, id: DeviceId, now_s: u64) -> Result<bool, StoreError>;
    /// Its sessions are not valid from now on, until it is renewed.
    fn wall_wireguard_device(&self, id: DeviceId, now_s: u64) -> Result<(), StoreError>;
    /// Forgets the timestamps that the device has shown, so that it may come with earlier ones:
    /// `false` if the user has no such device.
    fn forget_handshakes(&self, name: &str, id: DeviceId) -> Result<bool, StoreError>;
    /// Keeps timestamps, all of them in one step; which of them are the latest by now. Another
    /// gateway may have kept later ones, or the same. Those of devices that are gone count as kept,
    /// and those that are put off.
    fn keep_handshakes(&self, shown: &[HandshakeShown]) -> Result<Vec<bool>, StoreError>;
    /// Keeps where devices were heard from, or that they are nowhere now; the last of each counts.
    fn keep_outer(&self, heard: &[(DeviceId, Option<Endpoint>)]) -> Result<(), StoreError>;
    /// Devices that have changed after the change of this number, or whose users have; all devices
    /// without one, or if it is too long ago. Timestamps and outer addresses are no changes.
    fn wireguard_changes(&self, since: Option<u64>) -> Result<DeviceChanges, StoreError>;
}
