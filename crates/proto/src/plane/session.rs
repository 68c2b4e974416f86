//! A session as one shard sees it: addresses, live epochs, and packets that wait for one.

mod form;
mod sender;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use core::hash::BuildHasherDefault;
use core::net::IpAddr;
use core::time::Duration;

use ipnet::IpNet;
use vpnd_crypto::{Direction, KeyError, OpenKey, SealKey};

use super::command::{Activity, EpochSpec, Event, Heard, Limits, Progress, SessionSpec, Slot};
use super::count::DropReason;
use super::halves::Halves;
use super::hash::IndexHasher;
use super::limiter::{Limiter, Shared};
use super::path::Path;
use super::reports::Reports;
use super::{Endpoint, Role};
use crate::control::{FEATURE_ECN, FEATURE_PATH_CONFIRM};
use crate::flows::Flows;
use crate::inband;
use crate::lane::{OpenRefused, ReceiveLane, SendLane};
use crate::policy::Principal;
use crate::rate::{Segments, Way};
use crate::time::Time;
use crate::wire::{Header, Index};
use form::Form;
pub use sender::{NoSender, Outer, PacketQueue, Sealed, Sender};
use vpnd_packet::SourceFilter;
use vpnd_packet::ecn;

/// Shortest time between two moves of a lane: no peer floods the control plane by hopping.
const MOVE_INTERVAL: Duration = Duration::from_millis(20);
/// Packets of one session that wait for an epoch at most (PROTOCOL §11).
const MAX_WAITING: usize = 64;
/// Longer packets do not wait; a flow's first packets are short.
const MAX_WAITING_LEN: usize = 2_048;

/// One session in one shard.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) slot: Slot,
    pub(super) addresses: Vec<IpNet>,
    pub(super) filter: SourceFilter,
    pub(super) principal: Arc<Principal>,
    pub(super) flows: Arc<Flows>,
    /// Since it was taken last.
    pub(super) activity: Activity,
    /// Whether there is some to take.
    pub(super) in_use: bool,
    /// `None` if nothing is limited.
    limiter: Option<Box<Limiter>>,
    pub(super) path: Path,
    pub(super) halves: Halves,
    /// At most three: retiring, current, pending.
    epochs: Vec<Epoch>,
    /// Number of the epoch that seals.
    sealing: Option<u32>,
    epoch_requested: bool,
    waiting: VecDeque<Box<[u8]>>,
    /// The indexes at which this shard opens WireGuard's data.
    pub(super) wireguard_indexes: Vec<Index>,
}

/// The sending half of an epoch, and where its peer is.
#[derive(Debug)]
struct Epoch {
    number: u32,
    send: Form,
    endpoint: Option<Endpoint>,
    peer_lane: u8,
    /// A client goes on sending to the gateway's address that it dialled.
    follows_peer: bool,
    features: u32,
    /// The bits of a packet's traffic class that its outer header gets.
    copied: u8,
    indexes: Vec<Index>,
    rekey_reported: bool,
}

/// A receive index: the session and epoch it belongs to, and its lanes.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) slot: Slot,
    epoch: u32,
    /// The features of both ends; what uses any other is unknown here (PROTOCOL §3.4).
    pub(super) features: u32,
    /// Few: a gateway's index has one lane, a client's as many as the gateway has shards for it.
    lanes: Vec<Receiving>,
}

/// The receive indexes of a shard.
pub(super) type Receivers = HashMap<Index, Receiver, BuildHasherDefault<IndexHasher>>;

/// A receiving lane, and where it was heard last.
#[derive(Debug)]
struct Receiving {
    lane: u8,
    receive: ReceiveLane,
    heard_at: Option<(Endpoint, Time)>,
    rekey_reported: bool,
    exhausted_reported: bool,
}

impl Session {
    pub(super) fn new(spec: SessionSpec, principal: Arc<Principal>, shared: &mut Shared) -> Self {
        Self {
            slot: spec.slot,
            filter: SourceFilter::new(spec.addresses.iter().copied()),
            addresses: spec.addresses,
            principal,
            flows: spec.flows,
            activity: Activity::default(),
            in_use: false,
            limiter: Limiter::new(spec.limits, shared),
            path: Path::new(spec.path),
            halves: Halves::default(),
            epochs: Vec::new(),
            sealing: None,
            epoch_requested: false,
            waiting: VecDeque::new(),
            wireguard_indexes: Vec::new(),
        }
    }

    /// Makes the keys of an epoch. Returns its receive indexes.
    pub(super) fn install(
        &mut self,
        role: Role,
        spec: &EpochSpec,
        copies_dscp: bool,
    ) -> Result<Vec<(Index, Receiver)>, KeyError> {
        let (sending, receiving) = match role {
            Role::Client => (Direction::ToGateway, Direction::ToClient),
            Role::Gateway => (Direction::ToClient, Direction::ToGateway),
        };
        let limits = spec.suite.limits();
        let key = spec.secret.lane_key(spec.suite, sending, spec.lane);
        let key = SealKey::new(spec.suite, spec.backend, &key, spec.lab)?;
        let mut receivers = Vec::with_capacity(spec.receive.len());
        for receive in &spec.receive {
            let mut lanes = Vec::with_capacity(receive.lanes.len());
            for &lane in &receive.lanes {
                let key = spec.secret.lane_key(spec.suite, receiving, lane);
                let key = OpenKey::new(spec.suite, spec.backend, &key, spec.lab)?;
                lanes.push(Receiving {
                    lane,
                    receive: ReceiveLane::new(key, limits),
                    heard_at: None,
                    rekey_reported: false,
                    exhausted_reported: false,
                });
            }
            receivers.push((
                receive.index,
                Receiver { slot: self.slot, epoch: spec.epoch, features: spec.features, lanes },
            ));
        }
        self.epochs.push(Epoch {
            number: spec.epoch,
            send: Form::Lane(SendLane::new(key, spec.suite, spec.lane, spec.peer_index, spec.reject_at)),
            endpoint: spec.endpoint,
            peer_lane: spec.peer_lane,
            follows_peer: role == Role::Gateway,
            features: spec.features,
            copied: copied_bits(spec.features, copies_dscp),
            indexes: spec.receive.iter().map(|receive| receive.index).collect(),
            rekey_reported: false,
        });
        self.epoch_requested = false;
        if spec.endpoint.is_some() {
            self.seal_with(spec.epoch);
        }
        Ok(receivers)
    }

    /// The peer's `lane` was heard at `endpoint` in `epoch`.
    pub(super) fn reach(&mut self, epoch: u32, lane: u8, endpoint: Endpoint) {
        let Some(found) = self.epochs.iter_mut().find(|e| e.number == epoch && e.peer_lane == lane) else {
            return;
        };
        if found.endpoint.replace(endpoint).is_some_and(|before| before.remote != endpoint.remote) {
            self.path.moved();
        }
        self.seal_with(epoch);
    }

    /// This shard itself heard the peer, and need not wait for the control plane to send it there.
    fn heard(&mut self, epoch: u32, lane: u8, endpoint: Endpoint) {
        if self.epochs.iter().any(|e| e.number == epoch && e.follows_peer) {
            self.reach(epoch, lane, endpoint);
        }
    }

    /// Whether the peer is at `endpoint` in an epoch, so that datagrams for it go there.
    pub(super) fn is_at(&self, endpoint: Endpoint) -> bool {
        self.epochs.iter().any(|epoch| epoch.endpoint == Some(endpoint))
    }

    /// How far the session's lanes have come.
    pub(super) fn progress(&self, receivers: &Receivers) -> impl Iterator<Item = Progress> {
        self.epochs.iter().filter_map(|epoch| {
            let heard = epoch.indexes.iter().filter_map(|index| Some((*index, receivers.get(index)?)));
            let heard = heard.flat_map(|(index, receiver)| {
                receiver.lanes.iter().map(move |receiving| {
                    let (highest, failed_opens) = receiving.receive.progress();
                    Heard { index, lane: receiving.lane, highest, failed_opens }
                })
            });
            let unused = epoch.send.lane()?.counter();
            Some(Progress { slot: self.slot, epoch: epoch.number, unused, heard: heard.collect() })
        })
    }

    /// Goes on where another process has ended.
    pub(super) fn resume(&mut self, progress: &Progress) {
        for epoch in self.epochs.iter_mut().filter(|epoch| epoch.number == progress.epoch) {
            if let Form::Lane(lane) = &mut epoch.send {
                lane.resume_at(progress.unused);
            }
        }
    }

    /// Erases an epoch's keys. Returns the indexes that received in it. If it sealed, the newest
    /// one that can takes its place: the one before an epoch that was never confirmed is good.
    pub(super) fn retire(&mut self, epoch: u32) -> Vec<Index> {
        let Some(at) = self.epochs.iter().position(|e| e.number == epoch) else { return Vec::new() };
        let erased = self.epochs.remove(at);
        if self.sealing == Some(epoch) {
            let reachable = self.epochs.iter().filter(|epoch| epoch.endpoint.is_some());
            self.sealing = reachable.map(|epoch| epoch.number).max();
        }
        erased.indexes
    }

    /// All receive indexes of the session in this shard.
    pub(super) fn indexes(&self) -> impl Iterator<Item = Index> + '_ {
        self.epochs.iter().flat_map(|epoch| epoch.indexes.iter().copied())
    }

    /// True if `address` is the session's own.
    #[inline]
    pub(super) fn owns(&self, address: IpAddr) -> bool {
        self.filter.permits_address(address)
    }

    /// The lane that seals now. If there is none, an epoch is requested, once until one comes.
    #[inline]
    pub(super) fn sender<'a>(
        &'a mut self,
        now: Time,
        used: &mut Vec<Slot>,
        shared: &'a mut Shared,
        reports: &'a mut Reports,
    ) -> Result<Sender<'a>, NoSender<'a>> {
        let number = self.sealing;
        let sealing = self.epochs.iter_mut().find(|epoch| Some(epoch.number) == number);
        let Some(epoch) = sealing.filter(|epoch| epoch.can_seal(now)) else {
            if !self.epoch_requested {
                self.epoch_requested = reports.push(Event::EpochWanted { slot: self.slot });
            }
            return Err(NoSender::NoEpoch(PacketQueue { waiting: &mut self.waiting, reports }));
        };
        epoch.send.begin();
        note_use(self.slot, &mut self.in_use, used);
        let (slot, activity, path) = (self.slot, &mut self.activity, &mut self.path);
        let limiter = self.limiter.as_deref_mut();
        let single = path.avoids_batches(now);
        Ok(Sender { slot, now, epoch, activity, path, single, limiter, shared, reports })
    }

    /// Lists the session as one whose activity is to be taken.
    #[inline]
    pub(super) fn note_use(&mut self, used: &mut Vec<Slot>) {
        note_use(self.slot, &mut self.in_use, used);
    }

    /// Packets that wait for an epoch.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The oldest waiting packet, if it can be sealed now.
    pub(super) fn poll_waiting(&mut self, now: Time) -> Option<Box<[u8]>> {
        let sealing = self.epochs.iter().find(|epoch| Some(epoch.number) == self.sealing)?;
        if sealing.can_seal(now) { self.waiting.pop_front() } else { None }
    }

    /// Counts an inner packet of the peer's that is passed on, if the session's limits allow that.
    #[inline]
    pub(super) fn receive_packet(
        &mut self,
        now: Time,
        len: usize,
        shared: &mut Shared,
    ) -> Result<(), DropReason> {
        if let Some(limiter) = &mut self.limiter
            && limiter.admit(now, Way::Up, Segments::one(len), shared) == 0
        {
            return Err(DropReason::RateLimit);
        }
        self.activity.rx_packets += 1;
        self.activity.rx_bytes += len as u64;
        self.activity.last_rx_packet = now;
        Ok(())
    }

    /// Other rate limits hold from now on.
    pub(super) fn limit(&mut self, limits: Limits, shared: &mut Shared) {
        if let Some(limiter) = &mut self.limiter {
            limiter.give_back();
        }
        self.limiter = Limiter::new(Some(limits), shared);
    }

    /// Seals with `epoch` from now on, unless a later one is in use.
    fn seal_with(&mut self, epoch: u32) {
        if self.sealing.is_none_or(|sealing| sealing < epoch) {
            self.sealing = Some(epoch);
        }
        self.epoch_requested = false;
    }
}

impl Epoch {
    /// True if the epoch may seal now, and it is known where its datagrams go.
    #[inline]
    fn can_seal(&self, now: Time) -> bool {
        self.send.usable(now) && self.endpoint.is_some()
    }
}

impl Receiver {
    /// Goes on where another process has ended.
    pub(super) fn resume(&mut self, progress: &Progress, heard: &Heard) {
        if (self.slot, self.epoch) == (progress.slot, progress.epoch) {
            for receiving in self.lanes.iter_mut().filter(|receiving| receiving.lane == heard.lane) {
                receiving.receive.resume_after(heard.highest, heard.failed_opens);
            }
        }
    }

    /// Whether the newest authentic datagram of `lane` came from `endpoint`.
    pub(super) fn was_heard_at(&self, lane: u8, endpoint: Endpoint) -> bool {
        let mut lanes = self.lanes.iter().filter(|receiving| receiving.lane == lane);
        lanes.any(|receiving| receiving.heard_at.is_some_and(|(at, _)| at == endpoint))
    }

    /// Opens a datagram (PROTOCOL §7.2, steps 2 to 6). Returns the plaintext's length.
    #[inline]
    pub(super) fn open(
        &mut self,
        now: Time,
        header: Header,
        datagram: &mut [u8],
        from: Endpoint,
        session: &mut Session,
        reports: &mut Reports,
    ) -> Result<usize, DropReason> {
        let (slot, epoch) = (self.slot, self.epoch);
        if header.confirm && self.features & FEATURE_PATH_CONFIRM == 0 {
            return Err(DropReason::BadHeader);
        }
        let found = self.lanes.iter_mut().find(|receiving| receiving.lane == header.lane);
        let receiving = found.ok_or(DropReason::WrongLane)?;
        let authentic = match receiving.receive.open(header, datagram) {
            Ok(authentic) => authentic,
            Err(OpenRefused::Replayed) => return Err(DropReason::Replayed),
            Err(OpenRefused::NotAuthentic) => {
                if receiving.receive.exhausted() && !receiving.exhausted_reported {
                    receiving.exhausted_reported = reports.push(Event::EpochExhausted { slot, epoch });
                }
                return Err(DropReason::NotAuthentic);
            }
        };
        session.activity.rx_datagrams += 1;
        session.activity.last_rx = now;
        session.path.received(now, datagram.len());
        if header.confirm {
            session.path.confirmed(now);
        }
        if receiving.receive.rekey_due() && !receiving.rekey_reported {
            receiving.rekey_reported = reports.push(Event::RekeyDue { slot, epoch });
        }
        // Only the newest authentic datagram moves an endpoint: a replayed or delayed one must not.
        if authentic.newest && may_move(receiving.heard_at, now, from) {
            session.heard(epoch, header.lane, from);
            if reports.push(Event::Heard { slot, epoch, lane: header.lane, endpoint: from }) {
                receiving.heard_at = Some((from, now));
            }
        }
        Ok(authentic.len)
    }
}

/// True if a lane was never heard, or is heard at another place and may move again.
#[inline]
pub(super) fn may_move(heard_at: Option<(Endpoint, Time)>, now: Time, from: Endpoint) -> bool {
    heard_at.is_none_or(|(at, since)| at != from && now.since(since) >= MOVE_INTERVAL)
}

/// Lists a session as one in use, unless it is listed already.
#[inline]
fn note_use(slot: Slot, in_use: &mut bool, used: &mut Vec<Slot>) {
    if !core::mem::replace(in_use, true) {
        used.push(slot);
    }
}

/// The bits of a packet's traffic class that go to its outer header. Marks do only to a peer that
/// carries them back over to the packet (RFC 6040): with any other they would be lost, and with
/// them the sender's only sign of congestion.
fn copied_bits(features: u32, copies_dscp: bool) -> u8 {
    let ecn = if features & FEATURE_ECN != 0 { ecn::MASK } else { 0 };
    let dscp = if copies_dscp { !ecn::MASK } else { 0 };
    ecn | dscp
}

const _: () = assert!(inband::PROBE_MIN <= MAX_WAITING_LEN);
