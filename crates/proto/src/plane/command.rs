//! The commands of the control plane to a shard's data plane, and the events that come back.
//!
//! Commands reach every shard in the same order through a queue that is read between batches;
//! events go the other way. So neither side ever waits for the other, and no table is shared.

use std::sync::Arc;

use minicbor::{Decode, Encode};
use vpnd_crypto::{Backend, EpochSecret, LabPermit, Suite};

use crate::flows::Flows;
use crate::plane::{Endpoint, SharedPath, WireGuardCommand};
use crate::policy::{Policy, Principal};
use crate::rate::{Buckets, Rates, SessionLimits};
use crate::time::Time;
use crate::wire::Index;
use crate::wireguard;

/// A session's index in the data plane's tables. The generation tells a slot's tenants apart, so
/// that an event about a session that has gone is not taken for its successor's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// Index in the tables; small numbers, given out again.
    pub index: u32,
    /// How often the index was given out before.
    pub generation: u32,
}

/// A session in the data plane, apart from its keys.
#[derive(Clone, Debug)]
pub struct SessionSpec {
    /// Its slot.
    pub slot: Slot,
    /// Inner addresses (host routes) of the session. At a gateway: what the client may send from
    /// and is reached at. At a client: its own addresses, which is all it accepts packets for.
    pub addresses: Vec<ipnet::IpNet>,
    /// Its user, groups and access profile, as policy knows them; unused at a client.
    pub principal: Principal,
    /// Its rate limits, if it has some; a client has none.
    pub limits: Option<Limits>,
    /// Its flows that policy remembers, in all shards; unused at a client.
    pub flows: Arc<Flows>,
    /// State of the path to the peer, common to all shards.
    pub path: Arc<SharedPath>,
}

/// The rate limits of a session, and the buckets that it has for life, whatever its limits.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The limits.
    pub limits: SessionLimits,
    /// Its buckets in all shards.
    pub buckets: Arc<Buckets>,
    /// The buckets that it shares with the other sessions of its user.
    pub user: UserBuckets,
}

/// The buckets of a user, as long as the user has sessions.
#[derive(Clone, Debug)]
pub struct UserBuckets {
    /// A number that no other user has at the same time; small, given out again.
    pub number: u32,
    /// The buckets in all shards.
    pub buckets: Arc<Buckets>,
}

/// The rate limits that the sessions of a group share.
#[derive(Clone, Debug)]
pub struct GroupLimits {
    /// The limits.
    pub rates: Rates,
    /// Its buckets in all shards.
    pub buckets: Arc<Buckets>,
}

/// One receive index of this shard and the peer's lanes that may send to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveSpec {
    /// The index that the peer writes into its datagrams.
    pub index: Index,
    /// The peer's lanes that may use it.
    pub lanes: Vec<u8>,
}

/// One epoch as one shard needs it.
#[derive(Clone, Debug)]
pub struct EpochSpec {
    /// The session.
    pub slot: Slot,
    /// Number of the epoch in its session; grows.
    pub epoch: u32,
    /// Cipher suite.
    pub suite: Suite,
    /// Implementation of the suite to use on this host.
    pub backend: Backend,
    /// Present if laboratory suites are allowed in this process.
    pub lab: Option<LabPermit>,
    /// The secret that lane keys come from; erased when the last shard has derived its keys.
    pub secret: Arc<EpochSecret>,
    /// The features both ends understand (PROTOCOL §3.4).
    pub features: u32,
    /// This shard's sending lane.
    pub lane: u8,
    /// The peer's index that this lane sends to.
    pub peer_index: Index,
    /// The peer's lane heard from where `peer_index` is: its [`Command::Reach`] moves the endpoint.
    pub peer_lane: u8,
    /// Where the peer is, if that is known before it was heard (a client knows its gateway).
    pub endpoint: Option<Endpoint>,
    /// The epoch's receive indexes that this shard owns.
    pub receive: Vec<ReceiveSpec>,
    /// Sealing is refused from this time on.
    pub reject_at: Time,
}

/// How far an epoch's lanes have come in one shard, for the process that goes on with them: what
/// they must neither use nor accept again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The session.
    pub slot: Slot,
    /// The epoch.
    pub epoch: u32,
    /// The first counter that the shard's sending lane has not used.
    pub unused: u64,
    /// The receiving lanes.
    pub heard: Vec<Heard>,
}

/// How far one receiving lane has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Heard {
    /// Its index.
    #[n(0)]
    pub index: Index,
    /// The peer's lane.
    #[n(1)]
    pub lane: u8,
    /// The highest counter accepted.
    #[n(2)]
    pub highest: Option<u64>,
    /// Datagrams that were not authentic.
    #[n(3)]
    pub failed_opens: u64,
}

/// A command to one shard's data plane.
#[derive(Debug)]
pub enum Command {
    /// A session begins; it has no keys yet.
    Open(SessionSpec),
    /// Keys of a new epoch: to open with from now on, and to seal with once the endpoint is known.
    Install(Box<EpochSpec>),
    /// The epoch was in use in another process: go on where that has ended. Comes after
    /// [`Command::Install`] and before anything is sealed or opened.
    Resume(Progress),
    /// The peer's lane that this shard sends to was heard at `endpoint` in `epoch`: seal with that
    /// epoch from now on, unless a later one is in use already.
    Reach {
        /// The session.
        slot: Slot,
        /// The epoch in which the peer was heard.
        epoch: u32,
        /// The peer's lane that was heard; of interest to the shards that send to it.
        lane: u8,
        /// Where it is.
        endpoint: Endpoint,
    },
    /// Send a probe of `size` bytes of plaintext (at least 4).
    Probe {
        /// The session.
        slot: Slot,
        /// Number that the reply repeats.
        id: u16,
        /// Length of the plaintext in bytes.
        size: u16,
    },
    /// Send a probe of both directions of the path, of `size` bytes of plaintext (at least 6).
    PathProbe {
        /// The session.
        slot: Slot,
        /// Number that the reply repeats.
        id: u16,
        /// Length of the plaintext in bytes.
        size: u16,
        /// The datagram size that is known to work.
        known: Option<u16>,
    },
    /// Send [`BATCH_LEN`](crate::inband::BATCH_LEN) probes of both directions as one batch.
    ProbeByBatch {
        /// The session.
        slot: Slot,
        /// Number of the first one.
        id: u16,
        /// Length of each plaintext in bytes.
        size: u16,
    },
    /// Send a probe that is answered by a batch.
    BatchProbe {
        /// The session.
        slot: Slot,
        /// Number of the first reply.
        id: u16,
        /// Length of the plaintext in bytes.
        size: u16,
    },
    /// Report to the gateway that its batches are lost.
    BatchesLost(Slot),
    /// Batches to the peer are lost: send single datagrams.
    AvoidBatches {
        /// The session.
        slot: Slot,
        /// Until when.
        until: Time,
    },
    /// The path to the peer carries datagrams of this many bytes at most.
    PathSize {
        /// The session.
        slot: Slot,
        /// The largest datagram in bytes.
        size: u16,
    },
    /// Send an empty datagram.
    Keepalive(Slot),
    /// Erase one epoch's keys.
    Retire {
        /// The session.
        slot: Slot,
        /// Which epoch.
        epoch: u32,
    },
    /// The session is over: erase all its keys and forget it.
    Close(Slot),
    /// Policy and principals, from the next packet on.
    Access(Access),
    /// Other rate limits hold for a session from now on.
    Limit {
        /// The session.
        slot: Slot,
        /// Its limits.
        limits: Limits,
    },
    /// These rate limits hold for groups from now on, by their numbers.
    Groups(Arc<[GroupLimits]>),
    /// About a session whose outer form is WireGuard's.
    WireGuard(WireGuardCommand),
}

/// A change of policy and principals. They change together, for no packet may be judged by the
/// policy of one moment and the principals of another: a user who moves to a narrower profile while
/// the old one becomes wider would have the wider rules for a moment.
#[derive(Clone, Debug)]
pub struct Access {
    /// The policy, if it is another one.
    pub policy: Option<Arc<Policy>>,
    /// New principals of sessions whose users' groups or profile have changed.
    pub principals: Arc<[(Slot, Principal)]>,
}

/// An event in the data plane that concerns the control plane. Each kind is reported once per
/// cause, not per packet, but for the replies to a client's probes; and no more than the plane
/// keeps wait at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A lane of the peer was heard first in an epoch, or its newest counter at a new endpoint.
    Heard {
        /// The session.
        slot: Slot,
        /// The epoch of the datagram.
        epoch: u32,
        /// The peer's lane.
        lane: u8,
        /// Where the datagram came from.
        endpoint: Endpoint,
    },
    /// The reply to a probe that this shard sent.
    ProbeReply {
        /// The session.
        slot: Slot,
        /// The peer's lane that it came on.
        lane: u8,
        /// The probe's number.
        id: u16,
        /// Length of the probe's plaintext as the peer received it, in bytes.
        size: u16,
    },
    /// At a client: large datagrams are on their way, and nothing shows that they arrive.
    PathInUse {
        /// The session.
        slot: Slot,
    },
    /// At a gateway: the client has found another size of the largest datagram on its path.
    PathStated {
        /// The session.
        slot: Slot,
        /// The size in bytes.
        size: u16,
    },
    /// WireGuard's data were opened at an index first, or as the newest from another endpoint.
    WireGuardOpened {
        /// The session.
        slot: Slot,
        /// The index.
        index: Index,
        /// Where they came from.
        endpoint: Endpoint,
        /// The result.
        opened: wireguard::Opened,
    },
    /// A packet is to be sent and no epoch can seal it.
    EpochWanted {
        /// The session.
        slot: Slot,
    },
    /// The epoch should be replaced because of the number of datagrams on one lane.
    RekeyDue {
        /// The session.
        slot: Slot,
        /// The epoch.
        epoch: u32,
    },
    /// The epoch must end now because of the number of forgeries.
    EpochExhausted {
        /// The session.
        slot: Slot,
        /// The epoch.
        epoch: u32,
    },
}

/// A session's traffic over one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Activity {
    /// Authentic datagrams received.
    #[n(0)]
    pub rx_datagrams: u64,
    /// Inner packets received, accepted or forwarded.
    #[n(1)]
    pub rx_packets: u64,
    /// Bytes of these inner packets.
    #[n(2)]
    pub rx_bytes: u64,
    /// Inner packets sealed for the peer.
    #[n(3)]
    pub tx_packets: u64,
    /// Bytes of these inner packets.
    #[n(4)]
    pub tx_bytes: u64,
    /// When anything authentic came last.
    #[n(5)]
    pub last_rx: Time,
    /// When an inner packet (no keepalive, no probe) came last.
    #[n(6)]
    pub last_rx_packet: Time,
    /// When anything was sealed last.
    #[n(7)]
    pub last_tx: Time,
    /// When an inner packet was sealed last.
    #[n(8)]
    pub last_tx_packet: Time,
    /// Inner packets sealed in two halves, because the path carries no whole one.
    #[n(9)]
    #[cbor(default)]
    pub tx_halved: u64,
    /// Inner packets that came in two halves.
    #[n(10)]
    #[cbor(default)]
    pub rx_halved: u64,
    /// Inner packets sent outside batches, because batches to the peer are lost on the way.
    #[n(11)]
    #[cbor(default)]
    pub tx_single: u64,
    /// When a WireGuard message with contents came last, whether they were passed on or not.
    #[n(12)]
    #[cbor(default)]
    pub last_rx_contents: Time,
}

impl Activity {
    /// The activity of a session over several shards together.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        Self {
            rx_datagrams: self.rx_datagrams + other.rx_datagrams,
            rx_packets: self.rx_packets + other.rx_packets,
            rx_bytes: self.rx_bytes + other.rx_bytes,
            tx_packets: self.tx_packets + other.tx_packets,
            tx_bytes: self.tx_bytes + other.tx_bytes,
            last_rx: self.last_rx.max(other.last_rx),
            last_rx_packet: self.last_rx_packet.max(other.last_rx_packet),
            last_rx_contents: self.last_rx_contents.max(other.last_rx_contents),
            last_tx: self.last_tx.max(other.last_tx),
            last_tx_packet: self.last_tx_packet.max(other.last_tx_packet),
            tx_halved: self.tx_halved + other.tx_halved,
            tx_single: self.tx_single + other.tx_single,
            rx_halved: self.rx_halved + other.rx_halved,
        }
    }
}
