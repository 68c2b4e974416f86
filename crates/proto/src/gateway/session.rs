//! One session as the gateway's control plane has it.
//!
//! INVARIANT: at most one current, one pending and one retiring epoch. The current epoch was
//! confirmed by an authentic datagram; the pending one was not yet; the retiring one only opens
//! what was under way.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use minicbor::{Decode, Encode};
use vpnd_crypto::{EpochSecret, LabPermit};

use crate::attach::Tokens;
use crate::control::{Network, UserName};
use crate::flows::Flows;
use crate::plane::{Activity, Endpoint, Limits, SessionSpec, Slot, UserBuckets};
use crate::policy::{Principal, ProfileId};
use crate::rate::{Buckets, SessionLimits};
use crate::session::{ConnectionId, DeviceId, LocalSuite, SessionId};
use crate::time::Time;
use crate::wire::Index;

/// The inner addresses of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Inner IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// Inner IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
}

impl Addresses {
    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = IpAddr> {
        let Self { ipv4, ipv6 } = self;
        ipv4.map(IpAddr::V4).into_iter().chain(ipv6.map(IpAddr::V6))
    }

    /// Returns them as host routes.
    #[must_use]
    pub fn nets(&self) -> Vec<IpNet> {
        self.iter().map(IpNet::from).collect()
    }

    /// `template` with these addresses.
    #[must_use]
    pub fn network(&self, template: &Network) -> Network {
        Network { ipv4: self.ipv4, ipv6: self.ipv6, ..template.clone() }
    }
}

/// The part of a session that survives a restart. Holds no secret: tokens are hashes.
#[derive(Clone, Debug)]
pub struct SessionRecord {
    /// The session.
    pub id: SessionId,
    /// Its user.
    pub user: UserName,
    /// On which of the user's devices.
    pub device: DeviceId,
    /// Its user, groups and access profile for policy; not stored, but looked up when restored.
    pub principal: Principal,
    /// Its rate limits; not stored either.
    pub limits: SessionLimits,
    /// Its inner addresses.
    pub addresses: Addresses,
    /// When it ends, by the clock of this process. In a store it has to stand in wall-clock time.
    pub deadline: Time,
    /// Time without a packet of the client after which it ends, if shorter than the gateway's.
    pub idle_timeout: Option<Duration>,
    /// Number of its last epoch.
    pub epoch: u32,
    /// The tokens that are good.
    pub tokens: Tokens,
}

/// The keys of one handshake, as far as the control plane knows them.
#[derive(Clone, Debug)]
pub(super) struct Epoch {
    pub(super) number: u32,
    pub(super) suite: LocalSuite,
    /// The gateway's receive indexes.
    pub(super) indexes: Vec<Index>,
    /// The client's, one for each of its lanes.
    pub(super) peer_indexes: Vec<Index>,
    /// Features of both ends (PROTOCOL §3.4).
    pub(super) features: u32,
    /// Present if both ends were started for the laboratory.
    pub(super) lab: Option<LabPermit>,
    /// The secret of the shards' keys, for a process that takes over; erased with them.
    pub(super) secret: Arc<EpochSecret>,
    /// Where each of the client's lanes was heard, or is taken to be until it is.
    pub(super) endpoints: Vec<Option<Endpoint>>,
    pub(super) began: Time,
    /// When it was heard first.
    pub(super) confirmed: Option<Time>,
}

/// The outer form of a session without epochs: WireGuard's. Its keys are with the owner's peers.
#[derive(Clone, Copy, Debug, Encode, Decode)]
pub(super) struct WireGuard {
    #[n(0)]
    pub(super) endpoint: Option<Endpoint>,
    /// When its newest keys were made.
    #[n(1)]
    pub(super) handshake: Time,
    /// When two devices with its key were noticed last.
    #[n(2)]
    pub(super) two_places: Option<Time>,
}

/// A session.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) record: SessionRecord,
    pub(super) slot: Slot,
    /// The buckets of its rate limits, for life: neither an attach nor another limit fills them.
    pub(super) buckets: Arc<Buckets>,
    /// The buckets of the rate limits that it shares with the user's other sessions.
    pub(super) user_buckets: UserBuckets,
    /// Its flows that policy remembers.
    pub(super) flows: Arc<Flows>,
    /// Whether the shards know it.
    pub(super) open: bool,
    pub(super) connection: Option<ConnectionId>,
    /// The features of both ends of that connection.
    pub(super) features: u32,
    pub(super) current: Option<Epoch>,
    pub(super) pending: Option<Epoch>,
    pub(super) retiring: Option<Epoch>,
    /// The state of a stock WireGuard client.
    pub(super) wireguard: Option<WireGuard>,
    pub(super) activity: Activity,
    /// The largest datagram that the client has found its path to carry.
    pub(super) path_size: Option<u16>,
    /// When it began, or was restored.
    pub(super) since: Time,
    /// When something authentic was heard last, as far as events reported it.
    pub(super) heard: Time,
    pub(super) woken: Option<Time>,
}

impl Session {
    pub(super) fn new(
        now: Time,
        slot: Slot,
        shards: usize,
        record: SessionRecord,
        flows: Flows,
        user_buckets: UserBuckets,
    ) -> Self {
        Self {
            record,
            slot,
            buckets: Arc::new(Buckets::new(now, shards)),
            user_buckets,
            flows: Arc::new(flows),
            open: false,
            connection: None,
            features: 0,
            current: None,
            pending: None,
            retiring: None,
            wireguard: None,
            activity: Activity::default(),
            path_size: None,
            since: now,
            heard: now,
            woken: None,
        }
    }

    pub(super) fn spec(&self) -> SessionSpec {
        SessionSpec {
            slot: self.slot,
            addresses: self.record.addresses.nets(),
            principal: self.record.principal.clone(),
            limits: Some(self.limits()),
            flows: Arc::clone(&self.flows),
            path: Arc::default(),
        }
    }

    pub(super) fn limits(&self) -> Limits {
        let (buckets, user) = (Arc::clone(&self.buckets), self.user_buckets.clone());
        Limits { limits: self.record.limits, buckets, user }
    }

    /// Neither a connection nor keys: only addresses and tokens are kept.
    pub(super) fn is_detached(&self) -> bool {
        self.connection.is_none() && self.epochs().next().is_none() && self.wireguard.is_none()
    }

    pub(super) fn epochs(&self) -> impl Iterator<Item = &Epoch> {
        self.current.iter().chain(&self.pending).chain(&self.retiring)
    }

    /// Takes out the epoch with this number.
    pub(super) fn take_epoch(&mut self, number: u32) -> Option<Epoch> {
        [&mut self.current, &mut self.pending, &mut self.retiring]
            .into_iter()
            .find(|place| place.as_ref().is_some_and(|epoch| epoch.number == number))
            .and_then(Option::take)
    }

    /// When something authentic came from the client last.
    pub(super) fn last_heard(&self) -> Time {
        self.heard.max(self.activity.last_rx)
    }

    /// When the client used the session last.
    pub(super) fn last_used(&self) -> Time {
        self.since.max(self.activity.last_rx_packet)
    }

    pub(super) fn status(&self) -> SessionStatus {
        let mut endpoints: Vec<Endpoint> = Vec::new();
        let lanes = self.current.iter().flat_map(|epoch| &epoch.endpoints);
        for endpoint in lanes.chain(self.wireguard.iter().map(|peer| &peer.endpoint)).flatten() {
            if !endpoints.contains(endpoint) {
                endpoints.push(*endpoint);
            }
        }
        SessionStatus {
            id: self.record.id,
            slot: self.slot,
            user: self.record.user.clone(),
            device: self.record.device,
            addresses: self.record.addresses,
            limits: self.record.limits,
            profile: self.record.principal.profile(),
            connection: self.connection,
            endpoints,
            suite: self.current.as_ref().map(|epoch| epoch.suite),
            epoch: self.current.as_ref().map(|epoch| epoch.number),
            activity: self.activity,
            path_size: self.path_size,
            since: self.since,
            wireguard: self.wireguard.is_some(),
            two_places: self.wireguard.and_then(|peer| peer.two_places),
            last_handshake: self
                .epochs()
                .map(|epoch| epoch.began)
                .chain(self.wireguard.map(|peer| peer.handshake))
                .max(),
            deadline: self.record.deadline,
        }
    }
}

/// A session as an administrator sees it.
#[derive(Clone, Debug)]
pub struct SessionStatus {
    /// The session.
    pub id: SessionId,
    /// Its place in the data plane.
    pub slot: Slot,
    /// Its user.
    pub user: UserName,
    /// On which device.
    pub device: DeviceId,
    /// Inner addresses.
    pub addresses: Addresses,
    /// Rate limits.
    pub limits: SessionLimits,
    /// Its access profile.
    pub profile: ProfileId,
    /// The control connection, if there is one.
    pub connection: Option<ConnectionId>,
    /// Where the client is: each outer address once. Empty while there is no confirmed epoch.
    pub endpoints: Vec<Endpoint>,
    /// Whether its client is a stock WireGuard client.
    pub wireguard: bool,
    /// When two devices with its WireGuard key were noticed last.
    pub two_places: Option<Time>,
    /// Suite and backend of the current epoch.
    pub suite: Option<LocalSuite>,
    /// Number of the current epoch.
    pub epoch: Option<u32>,
    /// Its traffic as last reported.
    pub activity: Activity,
    /// The largest datagram, in bytes, that the client has stated that its path carries.
    pub path_size: Option<u16>,
    /// When it began, or was restored after a restart.
    pub since: Time,
    /// When the newest epoch that is alive was made.
    pub last_handshake: Option<Time>,
    /// When it will end.
    pub deadline: Time,
}
