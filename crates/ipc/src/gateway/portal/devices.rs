//! Messages about the devices of the user who looks.
//!
//! INVARIANT: no private key of a device is in one: it is made in the browser and stays there.

use std::net::{IpAddr, SocketAddr};

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};
use vpnd_proto::control::{List, Text};

use super::{Browser, MAX_SESSIONS};

/// The longest configuration, bytes: it has to fit into a frame.
pub const MAX_CONFIGURATION: usize = 48 << 10;

/// The devices of this browser's user; no reply if it has none.
#[derive(Debug, Encode, Decode)]
pub struct DevicesQuery(#[n(0)] pub Browser);

/// Remove this device of the browser's user; its session ends.
#[derive(Debug, Encode, Decode)]
pub struct RemoveDevice {
    #[n(0)]
    pub browser: Browser,
    #[n(1)]
    pub device: ByteArray<16>,
}

/// Let this WireGuard device of the browser's user in for another lifetime.
#[derive(Debug, Encode, Decode)]
pub struct RenewDevice {
    #[n(0)]
    pub browser: Browser,
    #[n(1)]
    pub device: ByteArray<16>,
}

/// Add a WireGuard device of the browser's user.
#[derive(Debug, Encode, Decode)]
pub struct AddDevice {
    #[n(0)]
    pub browser: Browser,
    #[n(1)]
    pub public_key: ByteArray<32>,
    #[n(2)]
    pub name: Text<64>,
}

/// A user's devices.
#[derive(Clone, Debug, Encode, Decode)]
pub struct OwnDevices {
    #[n(0)]
    pub devices: List<OwnDevice, MAX_SESSIONS>,
    /// Whether the user may add WireGuard devices.
    #[n(1)]
    pub wireguard: bool,
    /// Whether there is a profile for vpnd's own client.
    #[cbor(n(2), default)]
    pub profile: bool,
}

/// The profile of vpnd's own client for this browser's user.
#[derive(Debug, Encode, Decode)]
pub struct ProfileQuery(#[n(0)] pub Browser);

/// A file for vpnd's own client.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum OwnProfile {
    /// Its text, without a secret.
    #[n(0)]
    File(#[n(0)] Text<MAX_CONFIGURATION>),
    /// There is none for everybody.
    #[n(1)]
    NotThere,
    /// The browser has no visit.
    #[n(2)]
    NoVisit,
}

/// A device of the user who looks.
#[derive(Clone, Debug, Encode, Decode)]
pub struct OwnDevice {
    #[n(0)]
    pub device: ByteArray<16>,
    /// Inner addresses.
    #[n(1)]
    pub addresses: List<IpAddr, 2>,
    /// Age of its session, seconds, if it has one.
    #[n(2)]
    pub session_age_s: Option<u64>,
    /// Where it was heard from last, if that is known.
    #[n(3)]
    pub from: Option<IpAddr>,
    /// If it is a WireGuard client.
    #[n(4)]
    pub wireguard: Option<OwnWireGuard>,
    /// Since when it is known, seconds, if that is.
    #[n(5)]
    pub added_age_s: Option<u64>,
    /// Since when it was not there, seconds; 0 while it has a session, `None` if it never was.
    #[n(6)]
    pub unseen_s: Option<u64>,
    /// The network in which it was there last.
    #[n(7)]
    pub network: Option<Text<48>>,
}

/// Further data of a WireGuard device.
#[derive(Clone, Debug, Encode, Decode)]
pub struct OwnWireGuard {
    #[n(0)]
    pub name: Text<64>,
    /// The first characters of its public key.
    #[n(1)]
    pub key: Text<16>,
    /// Since when it has been added or renewed, seconds.
    #[n(2)]
    pub renewed_age_s: u64,
    /// For how long it is let in yet, seconds; `None` is without end, 0 if it has to be renewed.
    #[n(3)]
    pub left_s: Option<u64>,
    /// This and the rest as `vpnd device list --json` has it.
    #[n(4)]
    pub public_key: Text<44>,
    #[n(5)]
    pub renewed_s: u64,
    #[n(6)]
    pub walled_s: Option<u64>,
    #[n(7)]
    pub outer: Option<SocketAddr>,
    #[n(8)]
    pub state: Text<128>,
    /// Whether two devices use its configuration.
    #[cbor(n(9), default)]
    pub in_two_places: bool,
}

/// The outcome for a WireGuard device that was to be added or renewed.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum DeviceChange {
    #[n(0)]
    Renewed,
    /// Its configuration, but for the private key.
    #[n(1)]
    Added(#[n(0)] Text<MAX_CONFIGURATION>),
    /// The browser has no visit.
    #[n(2)]
    NoVisit,
    /// The login is too old for this.
    #[n(3)]
    LogInAgain,
    /// The user may have no WireGuard device, or none is served.
    #[n(4)]
    NotAllowed,
    /// The user has no such device.
    #[n(5)]
    NotThere,
    /// The key is none, or another device's already, or the name is another device's.
    #[n(6)]
    Unusable,
    /// No address is free.
    #[n(7)]
    Full,
    /// The user has changed too much of late.
    #[n(8)]
    TooOften,
    /// The user has as many as the access profile allows.
    #[n(9)]
    TooMany,
    /// Its configuration would be longer than [`MAX_CONFIGURATION`].
    #[n(10)]
    TooManyRoutes,
}
