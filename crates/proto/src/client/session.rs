//! The session that a client has: its terms, its epochs, and what is known of the way to the
//! gateway (PROTOCOL §5.1, §9, §11, §13).
//!
//! INVARIANT: all here ends with the session. What takes a connection is left, as a [`Finding`].

use std::sync::Arc;

use vpnd_crypto::{EpochSecret, LabPermit};

use super::batches::{BATCH_PROBE, Batches};
use super::epoch::{Epoch, Epochs};
use super::liveness::{Cause, Liveness};
use super::path_mtu::{PATH_PROBE, PathSearch};
use super::{Config, Output, Purpose, Reason};
use crate::control::{Established, Network, Offer};
use crate::gateway::Addresses;
use crate::plane::{Command, Endpoint, EpochSpec, Event, ReceiveSpec, SessionSpec, Slot};
use crate::policy::Principal;
use crate::session::{LocalSuite, Timers};
use crate::time::Time;
use crate::wire::Index;

/// The terms of the session, as the gateway granted them with the newest epoch.
pub(super) struct Terms {
    pub(super) slot: Slot,
    pub(super) granted: Established,
    pub(super) suite: LocalSuite,
    lab: Option<LabPermit>,
    /// The features of both ends.
    pub(super) features: u32,
    /// The timers in force: the configuration's, as far as the gateway did not shorten them.
    pub(super) timers: Timers,
    /// Where the gateway was then.
    pub(super) gateway: Endpoint,
}

impl Terms {
    pub(super) fn new(
        slot: Slot,
        granted: Established,
        suite: LocalSuite,
        config: &Config,
        gateway: Endpoint,
    ) -> Self {
        let timers = config.timers.prescribed(&granted.timers);
        let features = config.features & granted.features;
        Self { slot, granted, suite, lab: config.lab, features, timers, gateway }
    }

    /// The purpose of a connection that goes on with the session, perhaps at another gateway.
    pub(super) fn claim(&self, elsewhere: bool) -> Purpose {
        let (session, token) = (self.granted.session, self.granted.token.clone());
        if elsewhere { Purpose::Transfer { session, token } } else { Purpose::Attach { session, token } }
    }

    fn addresses(&self) -> Addresses {
        let Network { ipv4, ipv6, .. } = self.granted.network;
        Addresses { ipv4, ipv6 }
    }
}

/// A finding of the session that concerns the client's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// The newest epoch was heard.
    Confirmed,
    /// Another epoch is needed soon.
    EpochWanted,
    /// The gateway has answered the first probe.
    Answered,
    /// The first probes were not answered, while others go on.
    InDoubt { has_moved: bool },
    /// The last probes were not answered either.
    Unanswered,
    /// The last probes of a new epoch were not answered, and it is over.
    EpochFailed,
}

/// A session, from the answer that granted it.
pub(super) struct Session {
    pub(super) terms: Terms,
    /// Another client took it over; if the token is void too, that is final.
    pub(super) is_superseded: bool,
    pub(super) epochs: Epochs,
    pub(super) liveness: Liveness,
    path: PathSearch,
    batches: Batches,
}

impl Session {
    /// A session that begins, which gets its first epoch next.
    pub(super) fn new(now: Time, terms: Terms, output: &mut Output) -> Self {
        let spec = SessionSpec {
            slot: terms.slot,
            addresses: terms.addresses().nets(),
            principal: Principal::default(),
            limits: None,
            flows: Arc::default(),
            path: Arc::default(),
        };
        output.command_all(|_| Command::Open(spec.clone()));
        Self {
            path: PathSearch::new(now, &terms),
            terms,
            is_superseded: false,
            epochs: Epochs::default(),
            liveness: Liveness::new(output.ports.lanes()),
            batches: Batches::default(),
        }
    }

    /// Whether an answer to an attach goes on with the session and in its order of epochs.
    pub(super) fn is_continued_by(&self, established: &Established) -> bool {
        self.terms.granted.session == established.session
            && self.epochs.all().all(|epoch| epoch.number < established.epoch)
    }

    /// Whether these are new terms of the same session.
    pub(super) fn may_go_on(&self, terms: &Terms) -> bool {
        self.terms.granted.session == terms.granted.session && self.terms.addresses() == terms.addresses()
    }

    /// Goes on under new terms, with an epoch that comes next.
    pub(super) fn go_on(mut self, terms: Terms) -> Self {
        self.path.follow(&terms, terms.gateway != self.terms.gateway);
        self.terms = Terms { slot: self.terms.slot, ..terms };
        self.is_superseded = false;
        self
    }

    /// Takes up the epoch that came with the terms, and probes its lanes.
    pub(super) fn enter(&mut self, now: Time, offer: &Offer, secret: EpochSecret, output: &mut Output) {
        let Terms { slot, granted: ref established, suite, lab, features, timers, gateway } = self.terms;
        output.retire(slot, self.epochs.pending.take());
        let secret = Arc::new(secret);
        let (lanes, gateway_lanes) = (offer.indexes.len(), established.gateway_lanes);
        output.command_all(|shard| {
            let peer_index = Index(established.indexes[shard]);
            let senders = (0..gateway_lanes).filter(|lane| usize::from(*lane) % lanes == shard).collect();
            Command::Install(Box::new(EpochSpec {
                slot,
                epoch: established.epoch,
                suite: suite.suite,
                backend: suite.backend,
                lab,
                secret: Arc::clone(&secret),
                features,
                lane: shard as u8,
                peer_index,
                peer_lane: peer_index.shard(gateway_lanes.into()) as u8,
                endpoint: Some(gateway),
                receive: vec![ReceiveSpec { index: Index(offer.indexes[shard]), lanes: senders }],
                reject_at: now + timers.reject_after,
            }))
        });
        self.epochs.pending = Some(Epoch {
            number: established.epoch,
            indexes: offer.indexes.iter().copied().map(Index).collect(),
            began: now,
            packets_before: self.liveness.packets(),
        });
        output.timers.set(Reason::Unconfirmed, now + timers.confirm_within);
        for lane in 0..lanes {
            output.timers.set(Reason::Keepalive(lane as u8), now + timers.keepalive);
        }
        self.configure(now, output);
        self.liveness.begin(now, Cause::Epoch, &self.terms, output);
    }

    /// The gateway has changed the network. The addresses of a session never change.
    pub(super) fn update(&mut self, now: Time, network: Network, output: &mut Output) {
        let Addresses { ipv4, ipv6 } = self.terms.addresses();
        self.terms.granted.network = Network { ipv4, ipv6, ..network };
        self.configure(now, output);
    }

    fn configure(&mut self, now: Time, output: &mut Output) {
        if self.path.limit(&self.terms) {
            self.check_path(now, output);
        }
        self.path.report(self.terms.slot, output);
        output.configure(&self.terms.granted.network);
    }

    /// A shard's data plane saw something.
    pub(super) fn handle_event(&mut self, now: Time, event: Event, output: &mut Output) -> Option<Finding> {
        let (Event::Heard { slot, .. }
        | Event::ProbeReply { slot, .. }
        | Event::EpochWanted { slot }
        | Event::PathInUse { slot }
        | Event::PathStated { slot, .. }
        | Event::WireGuardOpened { slot, .. }
        | Event::RekeyDue { slot, .. }
        | Event::EpochExhausted { slot, .. }) = event;
        if self.terms.slot != slot {
            return None;
        }
        match event {
            Event::Heard { epoch, .. } => return self.heard(now, epoch, output),
            Event::ProbeReply { id, .. } if id & PATH_PROBE == 0 => {
                let confirming = self.epochs.pending.is_some();
                return self.liveness.answered(id, confirming, output).then_some(Finding::Answered);
            }
            Event::ProbeReply { id, .. } if id & BATCH_PROBE != 0 => self.batches.replied(id),
            Event::ProbeReply { id, .. } => {
                if self.path.answered(now, id) {
                    self.search_path(now, output);
                }
            }
            Event::PathInUse { .. } => {
                if self.path.doubt(now) {
                    self.search_path(now, output);
                }
            }
            Event::EpochWanted { .. } => return Some(Finding::EpochWanted),
            Event::RekeyDue { epoch, .. } => {
                return self.epochs.is_newest(epoch).then_some(Finding::EpochWanted);
            }
            Event::EpochExhausted { epoch, .. } => {
                output.retire(slot, self.epochs.take(epoch));
                return Some(Finding::EpochWanted);
            }
            // Only clients state a size, and none has peers of WireGuard.
            Event::PathStated { .. } | Event::WireGuardOpened { .. } => {}
        }
        None
    }

    /// The gateway was heard in `epoch`.
    fn heard(&mut self, now: Time, epoch: u32, output: &mut Output) -> Option<Finding> {
        let confirmed = self.epochs.pending.take_if(|pending| pending.number == epoch)?;
        output.retire(self.terms.slot, self.epochs.retiring.take());
        let Timers { rekey_after, reject_after, retire_after, .. } = self.terms.timers;
        output.timers.cancel(Reason::Unconfirmed);
        output.timers.set(Reason::Rekey, confirmed.began + rekey_after);
        output.timers.set(Reason::Expire, confirmed.began + reject_after + retire_after);
        self.epochs.retiring = self.epochs.current.replace(confirmed);
        self.epochs.is_at_rest = false;
        if self.epochs.retiring.is_some() {
            output.timers.set(Reason::Retire, now + retire_after);
        }
        self.check_path(now, output);
        Some(Finding::Confirmed)
    }

    /// Does what is due.
    pub(super) fn handle_timer(&mut self, now: Time, due: Reason, output: &mut Output) -> Option<Finding> {
        let slot = self.terms.slot;
        match due {
            Reason::Rekey => return self.rekey_if_used(),
            Reason::Probe => return self.probe_again(now, output),
            Reason::Unconfirmed => output.retire(slot, self.epochs.pending.take()),
            Reason::Retire => output.retire(slot, self.epochs.retiring.take()),
            Reason::PathMtu => self.search_path(now, output),
            Reason::Keepalive(lane) => self.keep_alive(now, lane, output),
            // The client's own.
            Reason::Reconnect | Reason::Expire => {}
        }
        None
    }

    /// The epoch is old: replaced now if it carried packets, or as soon as it does.
    fn rekey_if_used(&self) -> Option<Finding> {
        let used = self.liveness.packets();
        self.epochs.current.as_ref().filter(|current| used > current.packets_before)?;
        Some(Finding::EpochWanted)
    }

    /// Traffic was reported, or none: lanes that are silent are probed.
    pub(super) fn check_traffic(&mut self, now: Time, output: &mut Output) -> Option<Finding> {
        if self.liveness.is_silent(now, self.terms.timers.silence) && self.epochs.is_alive() {
            self.liveness.begin(now, Cause::Silence, &self.terms, output);
        }
        if self.epochs.is_alive() {
            self.liveness.check_quiet_lanes(now, &self.terms, output);
        }
        // Packets may come after the time to rekey an epoch that was idle until then.
        let began = self.epochs.current.as_ref()?.began;
        if now - began >= self.terms.timers.rekey_after { self.rekey_if_used() } else { None }
    }

    /// Takes the next step of the test of batches if it is due.
    pub(super) fn test_batches(&mut self, now: Time, output: &mut Output) {
        if let Some(size) = self.path.full_plaintext().filter(|_| self.epochs.current.is_some()) {
            self.batches.test(now, &self.terms, self.liveness.packets(), size, output);
        }
    }

    /// Packets have flowed, and none does any more.
    pub(super) fn check_way(&mut self, now: Time, output: &mut Output) {
        if !self.liveness.is_probing() && self.epochs.is_alive() {
            self.liveness.begin(now, Cause::Rest, &self.terms, output);
        }
    }

    /// The way to the gateway may be another. Returns whether that is asked, if `is_connected`.
    pub(super) fn roam(&mut self, now: Time, is_connected: bool, output: &mut Output) -> bool {
        self.path.may_be_another();
        let is_asked = is_connected && self.epochs.is_alive();
        if is_asked {
            self.liveness.begin(now, Cause::Roaming, &self.terms, output);
            self.check_path(now, output);
        }
        is_asked
    }

    /// Sends the next round of probes, or takes the silence for an answer.
    fn probe_again(&mut self, now: Time, output: &mut Output) -> Option<Finding> {
        if !self.epochs.is_alive() {
            self.liveness.stop();
            return None;
        }
        let finding = self.liveness.next_round(now, &self.terms, output)?;
        if finding != Finding::Unanswered {
            return Some(finding);
        }
        self.path.may_be_another();
        let Some(pending) = self.epochs.pending.take() else { return Some(finding) };
        output.check_blocked(pending.began);
        self.epochs.is_at_rest = false;
        output.retire(self.terms.slot, Some(pending));
        Some(Finding::EpochFailed)
    }

    /// Keeps the bindings of address translators on the way alive, while there are keys.
    fn keep_alive(&self, now: Time, lane: u8, output: &mut Output) {
        let Timers { keepalive, reject_after, .. } = self.terms.timers;
        // Keys that are too old for packets would be renewed for this one, by a client at rest.
        if self.epochs.newest().is_none_or(|epoch| now - epoch.began >= reject_after) {
            return;
        }
        let mut due = self.liveness.last_tx(lane) + keepalive;
        if due <= now {
            output.command(lane.into(), Command::Keepalive(self.terms.slot));
            due = now + keepalive;
        }
        output.timers.set(Reason::Keepalive(lane), due);
    }

    /// The path is in use again: one that may be another is searched, else its size is confirmed.
    fn check_path(&mut self, now: Time, output: &mut Output) {
        // Before the new epoch is confirmed, it is not certain which path that will be.
        let is_certain = self.epochs.current.is_some() && self.epochs.pending.is_none();
        if self.path.check(now, is_certain) {
            self.batches.restart(now);
        }
        self.search_path(now, output);
    }

    fn search_path(&mut self, now: Time, output: &mut Output) {
        let seals = |epoch: &&Epoch| now - epoch.began < self.terms.timers.reject_after;
        let packets = self.epochs.current.as_ref().filter(seals).map(|_| self.liveness.packets());
        self.path.advance(now, &self.terms, packets, output);
    }
}
