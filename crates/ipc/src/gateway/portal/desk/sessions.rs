//! Messages about live sessions.
//!
//! INVARIANT: no outer address of a client is in one, only its network.

use std::net::IpAddr;

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};
use vpnd_proto::control::{List, Text};

use super::{Caller, MAX_LISTED, Typed};
use crate::gateway::auth::SourceName;
use crate::gateway::portal::MAX_SESSIONS;

/// The sessions that there are.
#[derive(Debug, Encode, Decode)]
pub struct ListSessions {
    #[n(0)]
    pub caller: Caller,
    #[n(1)]
    pub order: Order,
    /// Sessions of one reply, [`MAX_SESSIONS`] at most.
    #[n(2)]
    pub most: u64,
}

/// The order of sessions in a list.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Order {
    /// By the names of their users, behind the one that [`ListedSessions::next`] has named.
    #[n(0)]
    ByUser(#[n(0)] Option<Typed>),
    /// Those with the highest rates first.
    #[n(1)]
    ByRate,
}

/// Sessions, and sums over all of them.
#[derive(Clone, Debug, Encode, Decode)]
pub struct ListedSessions {
    #[n(0)]
    pub sessions: List<ListedSession, MAX_SESSIONS>,
    /// Those behind them.
    #[n(1)]
    pub more: u64,
    /// The last one, if there are more, and they are by user.
    #[n(2)]
    pub next: Option<Typed>,
    /// Sums by access profile; those of users in none have no name.
    #[n(3)]
    pub profiles: List<ProfileUse, MAX_LISTED>,
}

#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ListedSession {
    #[n(0)]
    pub user: Text<128>,
    #[n(1)]
    pub source: SourceName,
    #[n(2)]
    pub device: ByteArray<16>,
    #[n(3)]
    pub addresses: List<IpAddr, 2>,
    /// Seconds since it began, and until its deadline.
    #[n(4)]
    pub age_s: u64,
    #[n(5)]
    pub left_s: u64,
    /// The name of the device, if it is a WireGuard device.
    #[n(6)]
    pub wireguard: Option<Text<64>>,
    /// The network from which the client was heard last: a /24 or a /48.
    #[n(7)]
    pub network: Option<Text<48>>,
    #[n(8)]
    pub profile: Option<Text<64>>,
    /// `None` if the worker has not reported it in time.
    #[n(9)]
    pub throughput: Option<Throughput>,
    /// Whether it reaches the web pages alone, until its user renews it.
    #[n(10)]
    pub walled: bool,
}

/// Bytes of inner packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Throughput {
    /// Received from clients, and sent to them.
    #[n(0)]
    pub bytes: [u64; 2],
    /// Bytes each second, once two reports have come.
    #[n(1)]
    pub rates: Option<[u64; 2]>,
}

/// Throughput of a device's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct DeviceTraffic {
    #[n(0)]
    pub device: ByteArray<16>,
    #[n(1)]
    pub throughput: Throughput,
}

/// The sessions of one access profile.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ProfileUse {
    #[n(0)]
    pub profile: Option<Text<64>>,
    #[n(1)]
    pub sessions: u64,
    #[n(2)]
    pub throughput: Throughput,
}
