//! Gateways that share a store: which of them carries a session.
//!
//! INVARIANT: a session has one carrier by the store, which changes only by [`Fleet::move_here`];
//! of two moves from the same generation one succeeds. Clocks play no part.

use std::net::IpAddr;

use vpnd_proto::session::SessionId;
use vpnd_sys::clock::Clocks;

use crate::{Kicks, Lease, LeaseOwner, SessionRecord, StoreError, User};

/// Seconds without a report after which a gateway does not count as alive.
pub const GATEWAY_SILENCE_S: u64 = 12;

/// A session of the fleet, with what decides whether its client may go on with it: all of one
/// moment.
#[derive(Clone, Debug)]
pub struct HeldSession {
    pub record: SessionRecord,
    /// Whether this gateway carries it.
    pub is_here: bool,
    pub user: User,
    /// Leases of its device, those that last longest first.
    pub leases: Vec<Lease>,
}

/// A session that is about to begin, as far as other gateways matter for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    pub generation: u64,
    /// Sessions of the user at other gateways that count for the user's limit.
    pub elsewhere: u64,
}

/// A notice of one process of the fleet's gateways to the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Grows, in the order of the changes that made notices.
    pub number: u64,
    /// The process.
    pub origin: [u8; 16],
    pub body: Vec<u8>,
}

/// The next notices in their order, [`MAX_NOTICES`] at most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notices {
    pub found: Vec<Notice>,
    /// Whether earlier ones are gone that were to be among them.
    pub is_cut: bool,
}

/// Notices that are read at once.
pub const MAX_NOTICES: usize = 1_024;

/// A session that another gateway has taken over, and the latest generation at that time: it was
/// here since an earlier one, and has a later one if it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenAway {
    pub session: SessionId,
    pub generation: u64,
}

/// The report of a gateway about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayReport {
    /// The address at which it listens; `None` if that is any.
    pub address: Option<IpAddr>,
    /// Where clients reach it, as far as it knows.
    pub addresses: Vec<IpAddr>,
    pub version: String,
    /// Sessions that are in use there.
    pub sessions: u64,
    /// Use of its shards' CPUs.
    pub load_percent: u64,
    /// `None` if it is as it was reported before.
    pub is_draining: Option<bool>,
    /// Which clients are away.
    pub absences: Absences,
}

/// The sessions of a gateway whose clients are away, as far as that is another than at its last
/// report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Absences {
    /// Whether all those are away that are not named: the gateway has just started.
    pub are_new: bool,
    pub away: Vec<SessionId>,
    pub back: Vec<SessionId>,
}

/// A gateway that shares the store, by its last report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayState {
    pub name: String,
    /// Whether it is this gateway.
    pub is_here: bool,
    /// Whether it is connected to the store at this moment.
    pub is_connected: bool,
    /// Seconds since its last report; `None` before the first.
    pub heard_s: Option<u64>,
    /// The address of the report, or the one from which the gateway uses the store.
    pub address: Option<IpAddr>,
    /// Where clients reach it, as far as it knows.
    pub addresses: Vec<IpAddr>,
    pub version: String,
    pub sessions: u64,
    /// Sessions that the store has of it, with those whose clients are away.
    pub held: u64,
    pub load_percent: u64,
    pub is_draining: bool,
}

impl GatewayState {
    /// Whether the gateway was heard of lately, by its reports and by its connection: the server
    /// notices within moments that a process is gone, but not that it stands still.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.is_connected && self.heard_s.is_some_and(|heard_s| heard_s <= GATEWAY_SILENCE_S)
    }
}

/// The sessions of a fleet. In the embedded store there are none, and to change what a fleet shares
/// is an error.
pub trait Fleet: Send + Sync {
    /// A session of this device is about to begin. If its user has `most` sessions elsewhere,
    /// counted without the device's own, one makes room whose client is away.
    fn begin_session(&self, owner: LeaseOwner, most: Option<u64>, now_s: u64) -> Result<Begun, StoreError>;
    /// These sessions, each if it has not expired and its user is enabled. Fails while the database
    /// is away.
    fn held(&self, sessions: &[SessionId], now_s: u64) -> Result<Vec<Option<HeldSession>>, StoreError>;
    /// Moves sessions to this gateway, each unless it has moved since it had this generation.
    /// Returns those that have moved, as their last gateways have left them.
    fn move_here(&self, sessions: &[(SessionId, u64)], now_s: u64) -> Result<Vec<SessionRecord>, StoreError>;
    /// The sessions that other gateways have taken over from this one.
    fn taken_away(&self) -> Result<Vec<TakenAway>, StoreError>;
    /// This gateway has dropped these: their addresses may be any device's again.
    fn dropped(&self, sessions: &[TakenAway]) -> Result<(), StoreError>;
    /// Keeps this gateway's report.
    fn report(&self, report: &GatewayReport) -> Result<(), StoreError>;
    /// The gateways that share the store, by name.
    fn gateways(&self) -> Result<Vec<GatewayState>, StoreError>;
    /// Whether this is the public half of the WireGuard key that the fleet's gateways have. It
    /// becomes that if they have none yet, if this gateway is alone, or if there is no device and
    /// no other gateway is connected.
    fn agree_on_wireguard_key(&self, public: &[u8; 32]) -> Result<bool, StoreError>;
    /// The notices after the one with this number, which must be one or 0.
    fn notices(&self, after: u64) -> Result<Notices, StoreError>;
    /// Leaves the notice that `decide` makes of those after this number, if it makes one. None is
    /// between them and this one. `decide` is called at most once, and never without a connection.
    fn leave_notice(
        &self,
        origin: [u8; 16],
        after: u64,
        decide: &mut dyn FnMut(Notices) -> Option<Vec<u8>>,
    ) -> Result<(), StoreError>;
    /// Notes that this gateway is to be drained if another one is alive that is not; whether there
    /// is. Of two gateways that ask at the same time, one is refused.
    fn drain_unless_last(&self) -> Result<bool, StoreError>;
    /// The kicks of users that wait for the store and for other gateways. Those who are disabled by
    /// them are disabled by all that is read here, too.
    fn kicks(&self) -> &Kicks;
    /// Makes kicks that the store does not have; how many. Those of this gateway wait a moment for
    /// others to know of them, which `is_sent` shows; those of others wait for their gateway, until
    /// this one `writes_others`.
    fn write_kicks(
        &self,
        is_sent: &dyn Fn(&[u8; 16]) -> bool,
        writes_others: bool,
        clocks: Clocks,
    ) -> Result<usize, StoreError>;
}
