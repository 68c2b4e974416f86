//! The life of epochs at the client: installed when an answer comes, confirmed by the first
//! authentic datagram, replaced when used and old, expired when idle (PROTOCOL §5.1, §11).

use std::sync::Arc;

use vpnd_crypto::{EpochSecret, Suite};

use super::{Action, Attempt, Client, Reason, Session};
use crate::control::{Code, Established, Message, Offer};
use crate::plane::{Command, Endpoint, EpochSpec, ReceiveSpec, SessionSpec, Slot};
use crate::policy::Principal;
use crate::session::{ConnectionId, LocalSuite};
use crate::time::Time;
use crate::wire::{Index, MAX_GATEWAY_LANES};

/// The keys of one handshake, as far as the control plane knows them.
#[derive(Clone, Debug)]
pub(super) struct Epoch {
    pub(super) number: u32,
    /// Our receive indexes.
    pub(super) indexes: Vec<Index>,
    pub(super) began: Time,
    /// The number of packets that the session had carried before.
    pub(super) packets_before: u64,
}

/// The epochs that are alive.
#[derive(Clone, Debug, Default)]
pub(super) struct Epochs {
    pub(super) current: Option<Epoch>,
    pub(super) pending: Option<Epoch>,
    pub(super) retiring: Option<Epoch>,
    /// The last one ended since nothing was sent, and none has failed since: the next packet makes
    /// another.
    pub(super) is_at_rest: bool,
}

impl Epochs {
    fn all(&self) -> impl Iterator<Item = &Epoch> {
        self.current.iter().chain(&self.pending).chain(&self.retiring)
    }

    /// Whether something can be sealed, as far as known here.
    pub(super) fn is_alive(&self) -> bool {
        self.current.is_some() || self.pending.is_some()
    }

    pub(super) fn newest(&self) -> Option<&Epoch> {
        self.pending.as_ref().or(self.current.as_ref())
    }

    pub(super) fn is_newest(&self, number: u32) -> bool {
        self.newest().is_some_and(|epoch| epoch.number == number)
    }

    pub(super) fn uses(&self, index: Index) -> bool {
        self.all().any(|epoch| epoch.indexes.contains(&index))
    }

    fn take(&mut self, number: u32) -> Option<Epoch> {
        [&mut self.current, &mut self.pending, &mut self.retiring]
            .into_iter()
            .find(|place| place.as_ref().is_some_and(|epoch| epoch.number == number))
            .and_then(Option::take)
    }
}

/// A request for an epoch, and its result.
struct Granted<'a> {
    offer: &'a Offer,
    established: &'a Established,
    suite: LocalSuite,
    secret: EpochSecret,
    gateway: Endpoint,
}

impl Client {
    /// The gateway, which is at `gateway`, granted what `connection` asked for; its exporter gave
    /// `secret`.
    pub fn established(
        &mut self,
        now: Time,
        connection: ConnectionId,
        established: &Established,
        secret: EpochSecret,
        gateway: Endpoint,
    ) {
        let Some(attempt) = self.take_attempt(now, connection) else {
            self.output.disconnect(connection, Code::Bye);
            return;
        };
        let Some(suite) = self.check(&attempt, established) else {
            self.output.disconnect(connection, Code::BadRequest);
            self.retry(now, core::time::Duration::ZERO);
            return;
        };
        if let Some(before) = self.connection.replace(connection) {
            // A login elsewhere leaves the old session behind; an attach takes it along.
            let is_over = attempt.is_move && attempt.is_login;
            let code = if is_over { Code::Bye } else { Code::Superseded };
            if is_over {
                self.output.push(Action::Send { connection: before, message: Message::Bye });
            }
            self.output.disconnect(before, code);
        }
        self.superseded = false;
        self.output.timers.cancel(Reason::Reconnect);
        let slot = self.enter_session(established);
        self.in_force = self.config.timers.prescribed(&established.timers);
        self.features = self.config.features & established.features;
        self.install(now, slot, Granted { offer: &attempt.offer, established, suite, secret, gateway });
        self.follow_path(suite.suite, gateway);
        self.configure(now);
        self.probe_epoch(now);
    }

    /// The suite to use, if the answer fits what was asked.
    fn check(&self, attempt: &Attempt, established: &Established) -> Option<LocalSuite> {
        let suite = Suite::from_id(established.suite)?;
        let local = *self.config.suites.iter().find(|local| local.suite == suite)?;
        let permitted = !suite.is_lab_only() || self.config.lab.is_some();
        let lanes = (1..=MAX_GATEWAY_LANES).contains(&usize::from(established.gateway_lanes))
            && established.indexes.len() == attempt.offer.indexes.len();
        // An attach goes on with its session and in its order of epochs; a login makes a session of
        // its own.
        let continues = attempt.is_login
            || (self.session.as_ref().is_some_and(|session| session.id == established.session)
                && self.epochs.all().all(|epoch| epoch.number < established.epoch));
        (permitted && lanes && continues).then_some(local)
    }

    /// Takes up the session that was granted, or goes on with ours.
    fn enter_session(&mut self, established: &Established) -> Slot {
        let network = &established.network;
        if let Some(session) = &mut self.session
            && session.id == established.session
            && (session.network.ipv4, session.network.ipv6) == (network.ipv4, network.ipv6)
        {
            session.token = established.token.clone();
            session.network = network.clone();
            return session.slot;
        }
        self.drop_session();
        self.sessions_begun += 1;
        let slot = Slot { index: 0, generation: self.sessions_begun };
        let addresses = crate::gateway::Addresses { ipv4: network.ipv4, ipv6: network.ipv6 }.nets();
        let spec = SessionSpec {
            slot,
            addresses,
            principal: Principal::default(),
            limits: None,
            flows: Arc::default(),
            path: Arc::default(),
        };
        self.output.command_all(|_| Command::Open(spec.clone()));
        self.session = Some(Session {
            id: established.session,
            token: established.token.clone(),
            slot,
            network: network.clone(),
        });
        slot
    }

    fn install(&mut self, now: Time, slot: Slot, granted: Granted<'_>) {
        self.erase_pending();
        let Granted { offer, established, suite, secret, gateway } = granted;
        let secret = Arc::new(secret);
        let lanes = self.config.lanes;
        let gateway_lanes = established.gateway_lanes;
        let reject_at = now + self.in_force.reject_after;
        let lab = self.config.lab;
        let features = self.features;
        self.output.command_all(|shard| {
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
                reject_at,
            }))
        });
        self.epochs.pending = Some(Epoch {
            number: established.epoch,
            indexes: offer.indexes.iter().copied().map(Index).collect(),
            began: now,
            packets_before: self.liveness.packets(),
        });
        self.output.timers.set(Reason::Unconfirmed, now + self.in_force.confirm_within);
        self.schedule_keepalives(now);
    }

    /// The gateway was heard in `epoch`.
    pub(super) fn heard(&mut self, now: Time, epoch: u32) {
        if self.epochs.pending.as_ref().is_none_or(|pending| pending.number != epoch) {
            return;
        }
        self.erase_retiring();
        let Some(confirmed) = self.epochs.pending.take() else { return };
        let timers = self.in_force;
        self.output.timers.cancel(Reason::Unconfirmed);
        self.output.timers.set(Reason::Rekey, confirmed.began + timers.rekey_after);
        self.output.timers.set(Reason::Expire, confirmed.began + timers.reject_after + timers.retire_after);
        self.epochs.retiring = self.epochs.current.replace(confirmed);
        self.epochs.is_at_rest = false;
        if self.epochs.retiring.is_some() {
            self.output.timers.set(Reason::Retire, now + timers.retire_after);
        }
        self.failures = 0;
        self.check_path(now);
    }

    /// The epoch is old: replaced now if it carried packets, or as soon as it does.
    pub(super) fn rekey_if_used(&mut self) {
        let used = self.liveness.packets();
        if self.epochs.current.as_ref().is_some_and(|current| used > current.packets_before) {
            self.connect_unless_pending();
        }
    }

    /// Packets came after the time to rekey an epoch that was idle until then.
    pub(super) fn check_overdue(&mut self, now: Time) {
        let rekey_after = self.in_force.rekey_after;
        if self.epochs.current.as_ref().is_some_and(|current| now - current.began >= rekey_after) {
            self.rekey_if_used();
        }
    }

    pub(super) fn erase(&mut self, number: u32) {
        let Some(slot) = self.session.as_ref().map(|session| session.slot) else { return };
        self.output.retire(slot, self.epochs.take(number));
    }

    pub(super) fn erase_current(&mut self) {
        if let Some(number) = self.epochs.current.as_ref().map(|epoch| epoch.number) {
            self.erase(number);
        }
    }

    /// The epoch was idle, and is over.
    pub(super) fn rest(&mut self) {
        let is_wanted = self.attempt.is_some() || self.epochs.pending.is_some();
        let waits = self.output.timers.get(Reason::Reconnect).is_some();
        self.epochs.is_at_rest = self.is_up() && !is_wanted && !waits;
        self.erase_current();
    }

    pub(super) fn erase_pending(&mut self) {
        if let Some(number) = self.epochs.pending.as_ref().map(|epoch| epoch.number) {
            self.erase(number);
        }
    }

    pub(super) fn erase_retiring(&mut self) {
        if let Some(number) = self.epochs.retiring.as_ref().map(|epoch| epoch.number) {
            self.erase(number);
        }
    }
}
