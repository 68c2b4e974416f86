//! Sessions on their way from one process of a gateway to the next, in an upgrade.
//!
//! Invariants: a handed-over session is whole or refused: an epoch comes with the progress of every
//! one of its lanes, so that no counter is used and none accepted twice; a control connection can't
//! be handed over, so its client attaches again. The process that hands over seals and opens no
//! more, and the two processes share one clock. The form has a version ([`FORMAT`]); it holds keys,
//! so it goes straight from process to process and is erased there. This module must not know how.

use core::net::{Ipv4Addr, Ipv6Addr};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use minicbor::bytes::{ByteArray, ByteVec};
use minicbor::decode::{self, Decoder};
use minicbor::encode::{self, Encoder, Write};
use minicbor::{Decode, Encode};
use vpnd_crypto::{EpochSecret, Suite};

use super::session::{Addresses, Epoch, Session, SessionRecord, WireGuard};
use super::{Effect, Gateway, Reason};
use crate::attach::{TokenHash, Tokens};
use crate::control::UserName;
use crate::flows::Flows;
use crate::plane::{Activity, Command, Endpoint, Heard, Progress, Slot};
use crate::policy::Principal;
use crate::rate::SessionLimits;
use crate::session::{DeviceId, SessionId};
use crate::time::Time;
use crate::wire::{Index, MAX_CLIENT_LANES};
use crate::wireguard::REJECT_AFTER_TIME;

/// Time for a stock WireGuard client to come back: that after which its keys are erased anyway.
const WIREGUARD_SILENCE: Duration = REJECT_AFTER_TIME.saturating_mul(3);

/// The form of what is handed over. Another one is not understood.
pub const FORMAT: u32 = 1;

/// One session.
#[derive(Debug, Encode, Decode)]
pub struct HandedSession {
    /// The session.
    #[n(0)]
    pub id: SessionId,
    /// Its user.
    #[n(1)]
    pub user: UserName,
    #[n(2)]
    pub(super) device: DeviceId,
    #[n(3)]
    pub(super) ipv4: Option<Ipv4Addr>,
    #[n(4)]
    pub(super) ipv6: Option<Ipv6Addr>,
    #[n(5)]
    pub(super) deadline: Time,
    #[n(6)]
    pub(super) last_epoch: u32,
    #[n(7)]
    pub(super) settled: ByteArray<32>,
    #[n(8)]
    pub(super) fresh: Option<ByteArray<32>>,
    /// Whether the shards know it.
    #[n(9)]
    pub(super) open: bool,
    #[n(10)]
    pub(super) since: Time,
    #[n(11)]
    pub(super) activity: Activity,
    #[n(12)]
    pub(super) current: Option<HandedEpoch>,
    #[n(13)]
    pub(super) pending: Option<HandedEpoch>,
    #[n(14)]
    pub(super) retiring: Option<HandedEpoch>,
    /// The largest datagram that the client's path carries, if it has stated that.
    #[n(15)]
    pub(super) path_size: Option<u16>,
    /// Its flows that policy remembers.
    #[n(16)]
    pub(super) flows: ByteVec,
    /// Its own limit for being idle, milliseconds, if it has one.
    #[n(17)]
    pub(super) idle_timeout_ms: Option<u64>,
    /// The state of a stock WireGuard client.
    #[n(18)]
    pub(super) wireguard: Option<WireGuard>,
}

impl HandedSession {
    /// Its inner addresses.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        Addresses { ipv4: self.ipv4, ipv6: self.ipv6 }
    }

    /// The keys of its stock WireGuard client are not handed over, if it is one's: the client comes
    /// back to a new session, or this one ends soon.
    pub fn lose_wireguard_keys(&mut self) {
        if self.wireguard.take().is_some() {
            let silence = WIREGUARD_SILENCE.as_millis() as u64;
            self.idle_timeout_ms = self.idle_timeout_ms.into_iter().chain([silence]).min();
        }
    }
}

/// The keys of one handshake, and how far they are used.
#[derive(Debug, Encode, Decode)]
pub(super) struct HandedEpoch {
    #[n(0)]
    pub(super) number: u32,
    #[n(1)]
    pub(super) suite: u16,
    #[n(2)]
    pub(super) secret: HandedSecret,
    #[n(3)]
    pub(super) features: u32,
    #[n(4)]
    pub(super) lab: bool,
    #[n(5)]
    pub(super) indexes: Vec<Index>,
    #[n(6)]
    pub(super) peer_indexes: Vec<Index>,
    #[n(7)]
    pub(super) endpoints: Vec<Option<Endpoint>>,
    #[n(8)]
    pub(super) began: Time,
    #[n(9)]
    pub(super) confirmed: Option<Time>,
    /// The progress of each shard.
    #[n(10)]
    pub(super) progress: Vec<HandedProgress>,
}

/// How far an epoch is used in one shard.
#[derive(Debug, Encode, Decode)]
pub(super) struct HandedProgress {
    #[n(0)]
    pub(super) unused: u64,
    #[n(1)]
    pub(super) heard: Vec<Heard>,
}

/// The secret that lane keys come from.
#[derive(Debug)]
pub(super) struct HandedSecret(Arc<EpochSecret>);

impl<C> Encode<C> for HandedSecret {
    fn encode<W: Write>(&self, e: &mut Encoder<W>, _: &mut C) -> Result<(), encode::Error<W::Error>> {
        e.bytes(self.0.expose())?.ok()
    }
}

impl<'b, C> Decode<'b, C> for HandedSecret {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
        let (at, bytes) = (d.position(), d.bytes()?);
        let secret = EpochSecret::try_export(|out| {
            *out = bytes.try_into().map_err(|_| decode::Error::message("a secret has 32 bytes").at(at))?;
            Ok::<_, decode::Error>(())
        });
        Ok(Self(Arc::new(secret?)))
    }
}

/// The error of a session that can't be taken over. Then none must be: the other process goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// It, or one of its device or with one of its addresses, is here already.
    #[error("a session was handed over twice")]
    Twice,
    /// Lists disagree with each other.
    #[error(
        "a session does not fit together: an epoch has other lanes, indexes or shards than it should, or its flows are torn"
    )]
    Torn,
    /// Two epochs use one index.
    #[error("an index belongs to two epochs")]
    IndexTaken,
}

impl Gateway {
    /// All sessions, for the process that goes on. `progress` is each shard's, which has stopped.
    #[must_use]
    pub fn hand_over(&self, progress: Vec<Vec<Progress>>) -> Vec<HandedSession> {
        let mut progress: Vec<BTreeMap<(Slot, u32), Progress>> = progress
            .into_iter()
            .map(|shard| shard.into_iter().map(|of| ((of.slot, of.epoch), of)).collect())
            .collect();
        self.sessions.table.iter().map(|session| hand_session(session, &mut progress)).collect()
    }

    /// Goes on with a session that another process has handed over, as `principal` and with
    /// `limits`. Its buckets begin empty. The effects are commands to the shards, which must be
    /// carried out before anything is received. A session whose suite this gateway does not allow
    /// comes without keys. Returns the session's place in the data plane.
    ///
    /// # Errors
    /// [`NotTaken`].
    pub fn take_over(
        &mut self,
        now: Time,
        mut handed: HandedSession,
        principal: Principal,
        limits: SessionLimits,
    ) -> Result<Slot, NotTaken> {
        let epochs = [handed.retiring.take(), handed.current.take(), handed.pending.take()];
        let (open, since, activity) = (handed.open, handed.since, handed.activity);
        let (path_size, wireguard) = (handed.path_size, handed.wireguard);
        let flows = Flows::import(&handed.flows).ok_or(NotTaken::Torn)?;
        let record = record(handed, principal, limits);
        let slot = self.sessions.insert(now, record, flows).ok_or(NotTaken::Twice)?;
        let spec = self.sessions.table.get_mut(slot).map(|session| {
            (session.open, session.since, session.activity) = (open, since, activity);
            (session.path_size, session.wireguard) = (path_size, wireguard);
            session.spec()
        });
        if let Some(spec) = spec.filter(|_| open) {
            self.sessions.command_all(|_| Command::Open(spec.clone()));
        }
        if let Some(size) = path_size.filter(|_| open) {
            self.sessions.command_all(|_| Command::PathSize { slot, size });
        }
        let [retiring, current, pending] = epochs.map(|epoch| self.take_epoch_over(slot, epoch));
        let (retiring, current, pending) = (retiring?, current?, pending?);
        let Some(session) = self.sessions.table.get_mut(slot) else { return Err(NotTaken::Twice) };
        (session.retiring, session.current, session.pending) = (retiring, current, pending);
        if session.epochs().next().is_some() {
            self.sessions.timers.set((slot, Reason::DeadPeer), now + self.sessions.waits.dead_peer);
        }
        self.sessions.schedule(now, slot);
        self.reach_again(slot);
        Ok(slot)
    }

    /// Gives the shards an epoch's keys, and how far they are used.
    fn take_epoch_over(
        &mut self,
        slot: Slot,
        handed: Option<HandedEpoch>,
    ) -> Result<Option<Epoch>, NotTaken> {
        let Some(handed) = handed else { return Ok(None) };
        if !is_whole(&handed, self.config.shards) {
            return Err(NotTaken::Torn);
        }
        let suite = Suite::from_id(handed.suite);
        let suite = self.config.suites.iter().find(|local| Some(local.suite) == suite).copied();
        let Some(suite) = suite else { return Ok(None) };
        for index in &handed.indexes {
            if !self.sessions.indexes.take(*index) {
                return Err(NotTaken::IndexTaken);
            }
        }
        let epoch = Epoch {
            number: handed.number,
            suite,
            indexes: handed.indexes,
            peer_indexes: handed.peer_indexes,
            features: handed.features & self.config.features,
            lab: self.config.lab.filter(|_| handed.lab),
            secret: handed.secret.0,
            endpoints: handed.endpoints,
            began: handed.began,
            confirmed: handed.confirmed,
        };
        self.sessions.install(slot, &epoch);
        for (shard, HandedProgress { unused, heard }) in handed.progress.into_iter().enumerate() {
            let progress = Progress { slot, epoch: epoch.number, unused, heard };
            self.sessions.effects.push_back(Effect::Command { shard, command: Command::Resume(progress) });
        }
        Ok(Some(epoch))
    }

    /// Sends the shards the client's endpoints.
    fn reach_again(&mut self, slot: Slot) {
        let session = self.sessions.table.get(slot);
        let Some(current) = session.and_then(|session| session.current.as_ref()) else { return };
        let (epoch, endpoints) = (current.number, current.endpoints.clone());
        for (lane, endpoint) in (0..).zip(&endpoints) {
            if let Some(endpoint) = *endpoint {
                self.sessions.reach(slot, epoch, (lane, endpoints.len()), endpoint);
            }
        }
    }
}

fn hand_session(session: &Session, progress: &mut [BTreeMap<(Slot, u32), Progress>]) -> HandedSession {
    let mut epoch = |epoch: &Option<Epoch>| hand_epoch(session.slot, epoch.as_ref()?, progress);
    let record = &session.record;
    let bytes = |hash: TokenHash| ByteArray::from(*hash.as_bytes());
    HandedSession {
        id: record.id,
        user: record.user.clone(),
        device: record.device,
        ipv4: record.addresses.ipv4,
        ipv6: record.addresses.ipv6,
        deadline: record.deadline,
        last_epoch: record.epoch,
        settled: bytes(record.tokens.settled()),
        fresh: record.tokens.fresh().map(bytes),
        open: session.open,
        since: session.since,
        activity: session.activity,
        current: epoch(&session.current),
        pending: epoch(&session.pending),
        retiring: epoch(&session.retiring),
        path_size: session.path_size,
        flows: session.flows.export().into(),
        idle_timeout_ms: record.idle_timeout.map(|idle| idle.as_millis() as u64),
        wireguard: session.wireguard,
    }
}

/// An epoch, unless a shard does not have it: then its keys end here, and the client attaches.
fn hand_epoch(
    slot: Slot,
    epoch: &Epoch,
    progress: &mut [BTreeMap<(Slot, u32), Progress>],
) -> Option<HandedEpoch> {
    let progress = progress.iter_mut().map(|shard| {
        let Progress { unused, heard, .. } = shard.remove(&(slot, epoch.number))?;
        Some(HandedProgress { unused, heard })
    });
    Some(HandedEpoch {
        number: epoch.number,
        suite: epoch.suite.suite.id(),
        secret: HandedSecret(Arc::clone(&epoch.secret)),
        features: epoch.features,
        lab: epoch.lab.is_some(),
        indexes: epoch.indexes.clone(),
        peer_indexes: epoch.peer_indexes.clone(),
        endpoints: epoch.endpoints.clone(),
        began: epoch.began,
        confirmed: epoch.confirmed,
        progress: progress.collect::<Option<_>>()?,
    })
}

fn record(handed: HandedSession, principal: Principal, limits: SessionLimits) -> SessionRecord {
    let hash = |bytes: ByteArray<32>| TokenHash::from_bytes(bytes.into());
    SessionRecord {
        id: handed.id,
        user: handed.user,
        device: handed.device,
        principal,
        limits,
        addresses: Addresses { ipv4: handed.ipv4, ipv6: handed.ipv6 },
        deadline: handed.deadline,
        idle_timeout: handed.idle_timeout_ms.map(Duration::from_millis),
        epoch: handed.last_epoch,
        tokens: Tokens::restore(hash(handed.settled), handed.fresh.map(hash)),
    }
}

/// Whether all lanes are there, and the progress of each.
fn is_whole(epoch: &HandedEpoch, shards: usize) -> bool {
    let lanes = epoch.indexes.len();
    let listed = (1..=MAX_CLIENT_LANES).contains(&lanes)
        && epoch.peer_indexes.len() == lanes
        && epoch.endpoints.len() == lanes
        && epoch.progress.len() == shards;
    listed
        && epoch.progress.iter().enumerate().all(|(shard, progress)| {
            let owned = (0..).zip(&epoch.indexes).filter(|(_, index)| index.shard(shards) == shard);
            let mut owned = owned.map(|(lane, index)| (*index, lane));
            owned.all(|lane| progress.heard.iter().any(|heard| (heard.index, heard.lane) == lane))
        })
}
