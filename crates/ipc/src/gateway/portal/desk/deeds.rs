//! Changes of users that are asked for at the desk, and what comes of them.

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};
use vpnd_proto::control::{List, SecretText, Text};

use super::{MAX_GROUPS, Typed};
use crate::gateway::portal::devices::MAX_CONFIGURATION;

/// The link of an invitation, which is shown once.
pub type Link = SecretText<640>;

/// A result of a change that its sender needs.
#[derive(Debug, Encode, Decode)]
pub enum Made {
    #[n(0)]
    Link(#[n(0)] Link),
    /// A WireGuard device, with its configuration but for the private key.
    #[n(1)]
    Device {
        #[n(0)]
        device: ByteArray<16>,
        #[n(1)]
        configuration: Text<MAX_CONFIGURATION>,
    },
}

/// A change of a user.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Deed {
    /// End the sessions of the user, or of this device. WireGuard devices have to be renewed.
    #[n(0)]
    Kick(#[n(0)] Option<ByteArray<16>>),
    #[n(1)]
    Disable,
    #[n(2)]
    Enable,
    /// Take the one-time codes away. The next login needs none, and a local user sets others up.
    #[n(3)]
    ResetCodes,
    /// Let a guest in until this day.
    #[n(4)]
    Extend(#[n(0)] Typed),
    /// Make a link by which the user chooses another password and second factor.
    #[n(5)]
    Invite,
    /// Remove this device; its session ends.
    #[n(6)]
    RemoveDevice(#[n(0)] ByteArray<16>),
    /// Add the user, with an invitation.
    #[n(7)]
    Add(#[n(0)] NewAccount),
    #[n(8)]
    Remove,
    #[n(9)]
    SetGroups(#[n(0)] List<Typed, MAX_GROUPS>),
    /// Let this WireGuard device in for another lifetime.
    #[n(10)]
    RenewDevice {
        #[n(0)]
        device: ByteArray<16>,
        /// Whether it may come with earlier timestamps than before.
        #[n(1)]
        reset_clock: bool,
    },
    #[n(11)]
    Modify(#[n(0)] AccountChange),
    /// Add a WireGuard device whose private key only the device has.
    #[n(12)]
    AddDevice {
        #[n(0)]
        public_key: ByteArray<32>,
        #[n(1)]
        name: Text<64>,
    },
    /// Revoke the user's client certificates, or the one with this SHA-256. Sessions end, and the
    /// user has to show another.
    #[n(13)]
    RevokeCertificates(#[n(0)] Option<ByteArray<32>>),
}

/// New values for an account; `None` leaves one as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct AccountChange {
    /// The last day, or `never`.
    #[n(0)]
    pub expires: Option<Typed>,
    /// An empty name removes the sponsor.
    #[n(1)]
    pub sponsor: Option<Typed>,
    #[n(2)]
    pub note: Option<Text<512>>,
}

/// A user who is to be added.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NewAccount {
    #[n(0)]
    pub groups: List<Typed, MAX_GROUPS>,
    /// The last day.
    #[n(1)]
    pub expires: Option<Typed>,
    #[n(2)]
    pub sponsor: Option<Typed>,
    #[n(3)]
    pub note: Text<512>,
}
