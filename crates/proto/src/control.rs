//! The control messages and their encoding (PROTOCOL §3).
//!
//! INVARIANT: every message that can be built here fits into [`MAX_MESSAGE`] bytes, and decoding
//! allocates no more than a small multiple of the bytes it was given: texts and lists carry their
//! limits in their types. Secrets inside are erased when dropped and never printed. This module
//! knows nothing of sessions, connections or time.

mod bounded;
mod browser;
mod challenge;
mod code;
mod frame;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use minicbor::{Decode, Encode};

pub use bounded::{AsText, List, SecretText, Text, TooLong};
pub use browser::{Grant, LoginAt, LoginStart, ShortCode};
pub use challenge::{Challenge, ChallengeAnswer, ChallengeKind, ChallengeResponse, ChallengeText};
pub use code::Code;
pub use frame::{Decoder, MAX_MESSAGE, MessageError, encode};

use crate::attach::Token;
use crate::device::DeviceProof;
use crate::session::SessionId;
use crate::wire::MAX_CLIENT_LANES;

/// Feature bit 0 (PROTOCOL §3.4): this end understands packets with an unfilled transport checksum.
pub const FEATURE_PARTIAL_CHECKSUM: u32 = 1;
/// Feature bit 1: this end searches for what the path carries in both directions (PROTOCOL §13).
pub const FEATURE_PATH_SIZE: u32 = 2;
/// Feature bit 2: this end joins packets that come in two halves (PROTOCOL §9.3).
pub const FEATURE_HALVES: u32 = 4;
/// Feature bit 3: this end carries congestion marks of datagrams over to packets (PROTOCOL §12.1).
pub const FEATURE_ECN: u32 = 8;
/// Feature bit 4: there is a person behind this client, who gets challenges (PROTOCOL §4.2).
pub const FEATURE_CHALLENGES: u32 = 16;
/// Feature bit 5: headers of this end's datagrams confirm that large ones arrive (PROTOCOL §13.2).
pub const FEATURE_PATH_CONFIRM: u32 = 32;
/// Feature bit 6: this end joins routes of a network from several messages (PROTOCOL §3.5).
pub const FEATURE_MORE_ROUTES: u32 = 64;
/// Feature bit 7: this client keeps the addresses that the gateway has from now on (PROTOCOL §5.3).
/// Only a client that a file of a person's tells where the gateway is sets it.
pub const FEATURE_RENEWAL: u32 = 128;
/// Feature bit 8: this end takes part in the test of batches (PROTOCOL §9.4).
pub const FEATURE_BATCHES: u32 = 256;
/// Feature bit 9: this client logs in through a browser where the gateway wants that (PROTOCOL
/// §4.3). Only a client with a person behind it sets it.
pub const FEATURE_BROWSER: u32 = 512;
/// Features of a client with a person behind it.
pub const FEATURES_OF_PERSON: u32 = FEATURE_CHALLENGES | FEATURE_BROWSER;
/// All features that this implementation has, but those that need a person.
pub const FEATURES: u32 = FEATURE_PARTIAL_CHECKSUM
    | FEATURE_PATH_SIZE
    | FEATURE_HALVES
    | FEATURE_ECN
    | FEATURE_PATH_CONFIRM
    | FEATURE_MORE_ROUTES
    | FEATURE_BATCHES;

/// Suites that an offer may name.
pub const MAX_SUITES: usize = 32;
/// Routes that a network may carry, in all messages together; the configuration refuses more.
pub const MAX_ROUTES: usize = 2_048;
/// Routes that one message may carry, and so all that an end without [`FEATURE_MORE_ROUTES`] takes.
pub const ROUTES_IN_MESSAGE: usize = 192;
/// DNS servers that a network may carry.
pub const MAX_DNS: usize = 8;
/// Addresses that a gateway may have in a profile.
pub const MAX_GATEWAY_ADDRESSES: usize = 16;
/// Search domains that a network may carry.
pub const MAX_SEARCH: usize = 16;

/// A user's name as it travels.
pub type UserName = Text<128>;
/// The text for a person in a refusal or a close.
pub type Explanation = Text<256>;
/// A one-time code.
pub type OneTimePassword = SecretText<16>;
/// Name and version of the peer's software, for the log only.
pub type Software = Text<64>;

/// An end of the control channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The one that logs in or attaches.
    Client,
    /// The one that grants or refuses.
    Gateway,
}

/// A control message (PROTOCOL §3.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// 0, from the client: a user logs in.
    Login(Login),
    /// 1, from the client: a session gets a new epoch.
    Attach(Attach),
    /// 2, from the client: the answer to [`Message::OneTimeCodeWanted`].
    OneTimeCode(OneTimeCode),
    /// 3, from the client: the user ends the session.
    Bye,
    /// 4, from the client: the answer to [`Message::Challenge`].
    ChallengeResponse(ChallengeResponse),
    /// 5, from the client: a login through a browser begins.
    LoginStart(Box<LoginStart>),
    /// 16, from the gateway: the user has a second factor.
    OneTimeCodeWanted,
    /// 17, from the gateway: a new epoch.
    Established(Box<Established>),
    /// 18, from the gateway: no.
    Refused(Refused),
    /// 19, from the gateway: the session or the connection ends.
    Close(Close),
    /// 20, from the gateway: the client's network changed.
    Update(Update),
    /// 21, from the gateway: the client should attach now.
    Wake,
    /// 22, from the gateway: a login goes on with a challenge.
    Challenge(Challenge),
    /// 23, from the gateway: it is being drained, and the client should move to another gateway.
    Drain(Drain),
    /// 24, from the gateway: routes of the network that follows. [`Decoder`] joins them to it.
    Routes(MoreRoutes),
    /// 25, from the gateway: the addresses that it has from now on.
    Renewal(Renewal),
    /// 26, from the gateway: the page where a login through a browser goes on.
    LoginAt(LoginAt),
    /// A message of a later version, by its number.
    Unknown(u32),
}

/// A user logs in (message 0).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Login {
    /// The user.
    #[n(0)]
    pub user: UserName,
    /// The user's password.
    #[n(1)]
    pub password: SecretText<1024>,
    /// Which of the user's devices, proved on this connection.
    #[n(2)]
    pub device: DeviceProof,
    /// The client's offer for the epoch.
    #[n(3)]
    pub offer: Offer,
    /// The one-time code, if the client has one already.
    #[n(4)]
    pub code: Option<OneTimePassword>,
    /// The client's software.
    #[n(5)]
    pub software: Option<Software>,
    /// The grant of a login through a browser. User and password do not count then.
    #[n(6)]
    pub grant: Option<Box<Grant>>,
}

/// A session gets a new epoch (message 1).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Attach {
    /// The token of the last answer.
    #[n(0)]
    pub token: Token,
    /// The client's offer for the epoch.
    #[n(1)]
    pub offer: Offer,
    /// Which session.
    #[n(2)]
    pub session: SessionId,
    /// The client's software.
    #[n(3)]
    pub software: Option<Software>,
    /// The device that the session belongs to, proved on this connection.
    #[n(4)]
    pub device: DeviceProof,
}

/// A one-time code (message 2).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct OneTimeCode {
    /// The digits.
    #[n(0)]
    pub code: OneTimePassword,
}

/// A new epoch (message 17).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Established {
    /// The session that it belongs to.
    #[n(0)]
    pub session: SessionId,
    /// Its number in the session.
    #[n(1)]
    pub epoch: u32,
    /// The suite's number (PROTOCOL §6.2).
    #[n(2)]
    pub suite: u16,
    /// The gateway's receive indexes, one for each of the client's lanes.
    #[n(3)]
    pub indexes: List<u32, MAX_CLIENT_LANES>,
    /// The number of lanes on which the gateway sends.
    #[n(4)]
    pub gateway_lanes: u8,
    /// The features that both ends understand.
    #[n(5)]
    pub features: u32,
    /// For the next attach.
    #[n(6)]
    pub token: Token,
    /// How the client's side of the tunnel is to be set up.
    #[n(7)]
    pub network: Network,
    /// Timers that differ from those of PROTOCOL §11.
    #[n(8)]
    pub timers: TimersMs,
}

/// No (message 18).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Refused {
    /// The reason, for the client.
    #[n(0)]
    pub code: Code,
    /// The reason, for a person.
    #[n(1)]
    pub text: Explanation,
    /// When to try again, in milliseconds from now.
    #[n(2)]
    pub retry_after_ms: Option<u32>,
}

/// The session or the connection ends (message 19).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Close {
    /// The reason, for the client.
    #[n(0)]
    pub code: Code,
    /// The reason, for a person.
    #[n(1)]
    pub text: Explanation,
}

/// The client's network changed (message 20).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Update {
    /// Replaces the one before.
    #[n(0)]
    pub network: Network,
}

/// Routes of the network in the message that follows (message 24).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct MoreRoutes {
    /// The networks to reach through the tunnel.
    #[n(0)]
    pub routes: List<AsText<IpNet>, ROUTES_IN_MESSAGE>,
}

/// The notice of a gateway that is being drained (message 23).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Drain {
    /// Whether other gateways go on with the session: an attach to one of them moves it there.
    #[n(0)]
    #[cbor(default)]
    pub is_shared: bool,
}

/// The addresses that the gateway has from now on (message 25).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Renewal {
    /// Addresses in the form of a profile (PROTOCOL §15).
    #[n(0)]
    pub addresses: List<Text<259>, MAX_GATEWAY_ADDRESSES>,
    /// The part of clients that each of them should get; without it they are tried in their order.
    #[n(1)]
    pub weights: Option<List<u32, MAX_GATEWAY_ADDRESSES>>,
}

impl Renewal {
    /// The addresses with their weights, if each has one.
    pub fn weighted(&self) -> Option<impl Iterator<Item = (&str, u32)>> {
        let weights = self.weights.as_ref().filter(|weights| weights.len() == self.addresses.len())?;
        Some(self.addresses.iter().map(|address| &**address).zip(weights.iter().copied()))
    }
}

/// A client's offer for an epoch (PROTOCOL §3.3).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Offer {
    /// The client's receive indexes, one for each of its lanes.
    #[n(0)]
    pub indexes: List<u32, MAX_CLIENT_LANES>,
    /// The suites it accepts, and how fast it is with each.
    #[n(1)]
    pub suites: List<SuiteSpeed, MAX_SUITES>,
    /// The features it understands (PROTOCOL §3.4).
    #[n(2)]
    pub features: u32,
    /// Whether the client was started with the insecure switch.
    #[n(3)]
    #[cbor(default)]
    pub lab: bool,
}

/// A suite in an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(array)]
pub struct SuiteSpeed {
    /// The suite's number (PROTOCOL §6.2).
    #[n(0)]
    pub suite: u16,
    /// How fast the client seals with it, in MB/s.
    #[n(1)]
    pub mbps: u32,
}

/// The client's side of the tunnel (PROTOCOL §3.5).
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Network {
    /// The client's inner IPv4 address.
    #[n(0)]
    pub ipv4: Option<Ipv4Addr>,
    /// The client's inner IPv6 address.
    #[n(1)]
    pub ipv6: Option<Ipv6Addr>,
    /// The gateway's inner IPv4 address.
    #[n(2)]
    pub gateway_ipv4: Option<Ipv4Addr>,
    /// The gateway's inner IPv6 address.
    #[n(3)]
    pub gateway_ipv6: Option<Ipv6Addr>,
    /// Largest inner packet, in bytes.
    #[n(4)]
    pub mtu: Option<u16>,
    /// The networks to reach through the tunnel; from [`ROUTES_IN_MESSAGE`] on in other messages.
    #[n(5)]
    #[cbor(default)]
    pub routes: List<AsText<IpNet>, MAX_ROUTES>,
    /// DNS servers to ask.
    #[n(6)]
    #[cbor(default)]
    pub dns: List<AsText<IpAddr>, MAX_DNS>,
    /// Domains to search, or to ask these servers for.
    #[n(7)]
    #[cbor(default)]
    pub search: List<Text<253>, MAX_SEARCH>,
    /// The kill switch that the gateway requires: [`KILL_SWITCH_ON`] or [`KILL_SWITCH_PERSISTENT`].
    #[n(8)]
    pub kill_switch: Option<u8>,
}

/// Nothing leaves the client's machine but by the tunnel, until the client ends in order.
pub const KILL_SWITCH_ON: u8 = 1;
/// Nothing leaves it but by the tunnel, until a person ends that.
pub const KILL_SWITCH_PERSISTENT: u8 = 2;

impl Network {
    /// Returns as much of it as an end with these features takes.
    #[must_use]
    pub fn within(mut self, features: u32) -> Self {
        if features & FEATURE_MORE_ROUTES == 0 {
            self.routes = self.routes.first(ROUTES_IN_MESSAGE);
        }
        self
    }
}

/// Timers that the gateway prescribes (PROTOCOL §3.6), in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct TimersMs {
    /// Send an empty datagram after that long without sending.
    #[n(0)]
    pub keepalive: Option<u32>,
    /// Make a new epoch after that long, if this one was used.
    #[n(1)]
    pub rekey_after: Option<u32>,
    /// Refuse to seal after that long.
    #[n(2)]
    pub reject_after: Option<u32>,
}

#[cfg(test)]
mod tests;
