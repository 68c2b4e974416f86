//! Kicks, and users who are disabled, that reach the fleet's other gateways without the database,
//! and revocations that reach those which alone are without it, as orders (PROTOCOL §19).
//!
//! INVARIANT: an order begins with a kick that a command or the help desk has left in the state
//! directory, or with a revocation of the store, so the worker can withhold one and make none. An
//! order of another gateway ends sessions alone that began before it, and disables a user only if
//! it was sent just now.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use minicbor::bytes::ByteArray;
use vpnd_fleet::orders::{Confirmation, Order, OrderId, Orders};
use vpnd_fleet::seal::{OwnKey, PublicKey};
use vpnd_ipc::gateway::auth::{
    FleetDatagram, MAX_FLEET_DATAGRAMS, OrderDone, OrderedEnd, OrdersReply, OrdersTurn, Reason, Revoked,
};
use vpnd_ipc::request::Answer;
use vpnd_pki::key_file::{self, Content};
use vpnd_proto::control::UserName;
use vpnd_proto::time::Time;
use vpnd_store::postgres::CLOCK_TOLERANCE_S;
use vpnd_store::{GatewayState, Kick, Kicks, Revocation, RevocationCause, SeenKick, Store, StoreError};
use vpnd_sys::clock::{Clocks, now};
use vpnd_sys::log_limit::LogLimit;

use super::Service;
use vpnd_admission::notices::{Notice, Subscriber};

/// The file with this gateway's key.
const KEY_FILE: &str = "fleet.key";
/// Interval at which a gateway lets the others know where it is; notices are kept for 40 minutes.
const NOTICE_INTERVAL_S: u64 = 15 * 60;
/// Time for the command that has left a kick to read what has become of it, seconds.
const KEPT_S: u64 = 60;
/// A kick that the store has is forgotten then, also without all confirmations: a gateway that
/// starts reads the store.
const KEPT_AT_MOST_S: u64 = 3_600;
/// Time with the store, seconds, after which this gateway writes what another one has ordered and
/// not written: that one may be gone, or without the store for long.
const WRITES_OTHERS_AFTER_S: u64 = 10;
/// Time between two attempts to write within which the store was there, seconds.
const ATTEMPTS_S: u64 = 2;
/// An order that disables a user is dropped if it was sent before or after this time, seconds. It
/// may be a recorded one, and its user enabled since. Clocks of gateways may differ by a third of
/// it.
const SENT_WITHIN_S: u64 = 60;
const _: () = assert!(SENT_WITHIN_S >= 6 * CLOCK_TOLERANCE_S && SENT_WITHIN_S < KEPT_AT_MOST_S);
/// Time for a kick that was sent to be written, or to wait for the store by its age.
const SENT_FOR: Duration = Duration::from_secs(10);

/// Gateways, the next ones by name, to which each passes what it reads of revocations: that each
/// has several that do is enough.
const PASSED_TO: usize = 2;
/// Revocations are as old as they look if those before them were read within this time.
const CURRENT: Duration = Duration::from_secs(2);
/// Time for this gateway to read in the store what another one has passed on; longer than the
/// worker's interval.
const HOLD: Duration = Duration::from_millis(450);
/// Orders that wait for that, at most.
const MAX_HELD: usize = 512;

/// Limits the log's lines about kicks that can't be read or kept.
static FAILURES: LogLimit = LogLimit::new(1, Duration::from_secs(60));

/// Confirmations of kicks.
type Confirmed = Vec<(OrderId, Vec<Confirmation>)>;

/// Has other gateways carry kicks out.
pub(crate) struct Courier {
    /// This gateway's, in its fleet.
    name: String,
    port: u16,
    clocks: Clocks,
    kicks: Kicks,
    state: Mutex<State>,
}

struct State {
    orders: Orders,
    /// The confirmations that are kept for the commands, and since when.
    kept: HashMap<OrderId, (Vec<Confirmation>, Time)>,
    /// Where the others reach this gateway, once that is known.
    place: Option<SocketAddr>,
    /// The place that the others were let know last, and when.
    said: Option<(SocketAddr, u64)>,
    /// The gateways that read the store by their last reports.
    readers: BTreeSet<String>,
    /// When revocations were read last: the beginning of that.
    read: Option<Time>,
    /// Since when the store was there at each attempt to write, and the last one; by the clock of
    /// sessions.
    writes: Option<(u64, u64)>,
    /// Orders that were passed on, and when they came.
    held: Vec<(Order, Time)>,
}

impl State {
    /// Holds orders that this gateway may read in the store; those that are to be carried out.
    fn sift(&mut self, orders: Vec<Order>, now: Time) -> Vec<Order> {
        let (passed_on, mut due): (Vec<Order>, Vec<Order>) =
            orders.into_iter().partition(|order| order.is_stored);
        self.held.extend(passed_on.into_iter().map(|order| (order, now)));
        for (order, since) in std::mem::take(&mut self.held) {
            if self.read.is_some_and(|read| read > since) {
                self.orders.carried_out(order.id, Some(0));
            } else if now.since(since) > HOLD {
                due.push(order);
            } else if self.held.len() < MAX_HELD {
                self.held.push((order, since));
            } else {
                // It is sent again.
                self.orders.put_off(order.id);
            }
        }
        due
    }
}

impl Courier {
    /// The one of this state directory, where the gateway's key is made if there is none. A damaged
    /// one is replaced: the others learn of the new one.
    pub(crate) fn open(
        state_dir: &Path,
        kicks: Kicks,
        name: &str,
        port: u16,
        clocks: Clocks,
    ) -> io::Result<Self> {
        let path = state_dir.join(KEY_FILE);
        let (mut file, content) = key_file::open_or_create(&path)?;
        let key = match content {
            Content::Key(key) => key,
            Content::Nothing => key_file::make(&mut file, &path)?,
            Content::Damaged => key_file::make_again(&mut file, &path)?,
        };
        let orders = Orders::new(OwnKey::new(key), vpnd_sys::random::random());
        let state = State {
            orders,
            kept: HashMap::new(),
            place: None,
            said: None,
            readers: BTreeSet::new(),
            read: None,
            writes: None,
            held: Vec::new(),
        };
        Ok(Self { name: name.to_owned(), port, clocks, kicks, state: Mutex::new(state) })
    }

    /// Takes what has come, and says what is to be sent and done. Waits for no database but the
    /// kicks' own, and for that without the lock: notices are made under one of the whole fleet.
    pub(super) fn turn(&self, turn: OrdersTurn, now: Time) -> OrdersReply {
        let kicks = self.see().and_then(|()| logged(self.kicks.unconfirmed()));
        let own = self.to_disable_here(kicks.as_deref().unwrap_or_default(), &turn.done);
        let (mut reply, mut orders, news) = self.take_turn(turn, kicks.as_deref(), now);
        orders.retain(|order| !is_to_disable(order) || self.disables(order));
        // Before a kick counts as given.
        for (id, confirmed) in news {
            let confirmations: Vec<_> =
                confirmed.iter().map(|at| (at.gateway.clone(), at.sessions)).collect();
            if logged(self.kicks.confirm(&id, &confirmations)).is_some() {
                self.state().kept.insert(id, (confirmed, now));
            }
        }
        reply.orders = own.into_iter().chain(orders).map(|order| self.ordered(order)).collect();
        reply
    }

    /// Has those hold who were disabled since the last call; nothing after an error of the disk.
    pub(super) fn see(&self) -> Option<()> {
        logged(self.kicks.see(self.clocks))
    }

    /// The orders of this gateway that its worker has to carry out, too, but for those that it has
    /// done.
    fn to_disable_here(&self, kicks: &[SeenKick], done: &[OrderDone]) -> Vec<Order> {
        let mut orders = Vec::new();
        for seen in kicks.iter().filter(|seen| seen.kick.is_disable && seen.here.is_none()) {
            let done = done.iter().find(|done| *done.id == seen.kick.id).and_then(|done| done.ended);
            match done {
                Some(sessions) => _ = logged(self.kicks.carried_out(&seen.kick.id, sessions)),
                None => orders.extend(order(seen)),
            }
        }
        orders
    }

    /// Disables a user here by the order of another gateway, until the store has it; whether the
    /// order was sent just now. One that is not kept is not confirmed.
    fn disables(&self, order: &Order) -> bool {
        let steady_s = (self.clocks.steady)();
        let is_fresh = order.sent_s.abs_diff(steady_s) <= SENT_WITHIN_S;
        let (id, user, at_s) = (order.id.into(), order.user.to_string(), order.at_s.min(steady_s));
        let kick = Kick { id, user, at_s, is_disable: true, source: None };
        if !is_fresh && FAILURES.admits() {
            tracing::warn!(
                user = kick.user,
                sent_s = order.sent_s,
                "an order was not sent just now: compare the clocks"
            );
        }
        if !is_fresh || logged(self.kicks.take(&kick, steady_s)).is_none() {
            self.state().orders.put_off(order.id);
        }
        is_fresh
    }

    /// The part of a turn under the lock: also the orders of others, and the confirmations that are
    /// new. `kicks` are those that some gateway has not confirmed, if they could be read.
    fn take_turn(
        &self,
        turn: OrdersTurn,
        kicks: Option<&[SeenKick]>,
        now: Time,
    ) -> (OrdersReply, Vec<Order>, Confirmed) {
        let mut state = self.state();
        if let Some(kicks) = kicks {
            let ids: BTreeSet<OrderId> = kicks.iter().map(|seen| seen.kick.id).collect();
            state.orders.keep_given(&ids);
            state.kept.retain(|id, (_, since)| ids.contains(id) || now.since(*since) < SENT_FOR);
            for seen in kicks {
                give(&mut state.orders, seen, now);
            }
        }
        for OrderDone { id, ended } in turn.done {
            state.orders.carried_out(id, ended);
        }
        let received = turn.received.into_iter().take(MAX_FLEET_DATAGRAMS);
        let orders: Vec<Order> = received.filter_map(|datagram| state.orders.receive(&datagram)).collect();
        let orders = state.sift(orders, now);
        let to_send = state.orders.poll(now, (self.clocks.steady)()).into_iter();
        let to_send = to_send.map(|sent| FleetDatagram { to: sent.to, bytes: sent.datagram.into() });
        let reply = OrdersReply {
            filter: state.orders.filter().0.into(),
            to_send: to_send.collect(),
            orders: Vec::new(),
        };
        let ids = kicks.into_iter().flatten().map(|seen| seen.kick.id);
        let confirmed = ids.map(|id| (id, state.orders.confirmations(&id)));
        let is_new = |(id, confirmed): &(OrderId, Vec<_>)| {
            state.kept.get(id).is_none_or(|(kept, _)| kept != confirmed)
        };
        let news = confirmed.filter(is_new).collect();
        (reply, orders, news)
    }

    fn ordered(&self, order: Order) -> OrderedEnd {
        let now_s = (self.clocks.steady)();
        // One who is disabled now has no session, however late the order is.
        let is_out = is_to_disable(&order) && self.kicks.holds(&order.user).unwrap_or(false);
        // Another gateway's clock may be ahead; none is so by more.
        let at_s = if is_out { now_s } else { order.at_s.min(now_s) };
        let Order { id, user, device, cause, .. } = order;
        tracing::info!(user = &*user, ?cause, "the end of sessions is ordered");
        OrderedEnd {
            id,
            revoked: Revoked { name: user, cause, device, groups: None },
            begun_until_s: at_s.saturating_add(2 * CLOCK_TOLERANCE_S),
        }
    }

    /// Passes revocations on that were just read, to the gateways that may be without the store;
    /// the read began at that time.
    pub(super) fn has_read(&self, found: &[Revocation], begun: Time) {
        let mut state = self.state();
        let before = state.read.replace(begun);
        let is_current = before.is_some_and(|before| begun.since(before) < CURRENT);
        let (to, at_s) = (self.receivers(&state), (self.clocks.steady)());
        if !is_current || to.is_empty() {
            return;
        }
        let order = |Revocation { name, cause, device, .. }: &Revocation| {
            let user = UserName::new(name.as_str()).ok().filter(|_| *cause != RevocationCause::Groups)?;
            let (id, device) = (ByteArray::from(rand::random::<[u8; 16]>()), device.map(|id| id.0.into()));
            Some(Order { id, user, device, cause: *cause, at_s, is_stored: true, sent_s: at_s })
        };
        let orders: Vec<Order> = found.iter().filter_map(order).collect();
        let left_out = state.orders.pass_on(begun, &orders, to);
        if left_out > 0 {
            tracing::warn!(left_out, "gateways without the user database don't learn of all revocations");
        }
    }

    /// The gateways to which this one passes revocations on: the next ones, and all that may not
    /// read them.
    fn receivers(&self, state: &State) -> BTreeSet<String> {
        let names: Vec<&str> = state.orders.gateways().collect();
        let at = names.partition_point(|name| *name < &*self.name);
        let next = names[at..].iter().chain(&names[..at]).take(PASSED_TO);
        let silent = names.iter().filter(|name| !state.readers.contains(**name));
        next.chain(silent).map(|name| (*name).to_owned()).collect()
    }

    /// Writes kicks to the store, after they were given to the other gateways: a command that reads
    /// that the store has one waits for those that are named then. A worker that withholds them
    /// holds a kick back for a second.
    pub(super) fn write(&self, store: &dyn Store) -> Result<(), StoreError> {
        self.see();
        let is_sent = |id: &OrderId| self.state().kept.contains_key(id);
        let written =
            store.write_kicks(&is_sent, self.writes_others(), self.clocks).inspect_err(|error| {
                if !error.is_for_now() && FAILURES.admits() {
                    tracing::error!(%error, "kicks are not in the user database");
                }
            })?;
        if written > 0 {
            tracing::info!(kicks = written, "kicks are in the user database now");
        }
        Ok(())
    }

    /// Whether the store was there for long; called at each attempt to write.
    fn writes_others(&self) -> bool {
        let (mut state, now_s) = (self.state(), (self.clocks.steady)());
        let is_there = |(_, last_s): &(u64, u64)| last_s.abs_diff(now_s) <= ATTEMPTS_S;
        let since_s = state.writes.filter(is_there).map_or(now_s, |(since_s, _)| since_s);
        state.writes = Some((since_s, now_s));
        since_s.abs_diff(now_s) > WRITES_OTHERS_AFTER_S
    }

    /// Goes by the fleet as the store has it: other gateways give no more orders, and kicks are
    /// forgotten that each gateway has carried out or reads in the store, and old ones.
    pub(super) fn know(&self, gateways: &[GatewayState]) {
        let names: BTreeSet<&str> = gateways.iter().map(|gateway| &*gateway.name).collect();
        let reads = |name: &str| gateways.iter().any(|known| known.name == name && known.is_alive());
        let own = gateways.iter().find(|gateway| gateway.is_here);
        let host = own.and_then(|own| own.address.or(own.addresses.first().copied()));
        let silent: Vec<String> = {
            let mut state = self.state();
            state.place = host.map(|host| SocketAddr::new(host.to_canonical(), self.port)).or(state.place);
            state.orders.keep_only(&names);
            state.readers = names.iter().filter(|name| reads(name)).map(|name| (*name).to_owned()).collect();
            state.orders.gateways().filter(|name| !reads(name)).map(str::to_owned).collect()
        };
        for seen in logged(self.kicks.stored(KEPT_S, self.clocks)).unwrap_or_default() {
            let id = &seen.kick.id;
            let is_over = || {
                let known = logged(self.kicks.progress(id))?.unwrap_or_default().gateways;
                let confirmed = |name: &String| known.iter().any(|(at, ended)| at == name && ended.is_some());
                Some(silent.iter().all(confirmed))
            };
            let is_old = (self.clocks.steady)().abs_diff(seen.steady_s) > KEPT_AT_MOST_S;
            // Another gateway's order is to be known if it comes again.
            if is_old || seen.is_own && is_over() == Some(true) {
                logged(self.kicks.forget(id));
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber for Courier {
    fn learn(&self, notice: &Notice) {
        if let Notice::Gateway(name, key, at) = notice
            && *name != self.name
            && self.state().orders.learn(name, PublicKey((*key).into()), *at)
        {
            tracing::info!("orders go to {} at {at}", vpnd_sys::text::plain(name));
        }
    }

    fn made(&self) -> Vec<Notice> {
        let (mut state, now_s) = (self.state(), (self.clocks.steady)());
        let Some(place) = state.place else { return Vec::new() };
        let is_known =
            |(said, at_s): (SocketAddr, u64)| said == place && now_s.saturating_sub(at_s) < NOTICE_INTERVAL_S;
        if state.said.is_some_and(is_known) {
            return Vec::new();
        }
        state.said = Some((place, now_s));
        let key = ByteArray::from(state.orders.public_key().0);
        vec![Notice::Gateway(self.name.clone(), key, place)]
    }

    /// Then others have missed this gateway's, too.
    fn has_missed(&self) {
        self.state().said = None;
    }
}

impl Answer<OrdersTurn> for Service {
    async fn answer(self: &Arc<Self>, turn: OrdersTurn) -> Result<OrdersReply, Reason> {
        self.blocking(move |service| {
            let courier = service.courier().ok_or_else(|| Reason::cut("this gateway is of no fleet"))?;
            Ok(courier.turn(turn, now()))
        })
        .await
    }
}

fn give(orders: &mut Orders, seen: &SeenKick, now: Time) {
    if let (false, Some(order)) = (orders.is_given(&seen.kick.id), order(seen)) {
        orders.give(now, order);
    }
}

fn order(seen: &SeenKick) -> Option<Order> {
    let SeenKick { kick, steady_s, .. } = seen;
    let user = UserName::new(kick.user.as_str()).ok()?;
    let cause = if kick.is_disable { RevocationCause::Disabled } else { RevocationCause::Kicked };
    let (id, at_s) = (kick.id.into(), *steady_s);
    Some(Order { id, user, device: None, cause, at_s, is_stored: false, sent_s: at_s })
}

/// Whether the order disables its user: the store does not do so.
fn is_to_disable(order: &Order) -> bool {
    order.cause == RevocationCause::Disabled && !order.is_stored
}

/// The result, or nothing after an error of the disk: orders of others are carried out meanwhile.
fn logged<T>(done: Result<T, StoreError>) -> Option<T> {
    let log = |error: &StoreError| {
        if FAILURES.admits() {
            tracing::error!(%error, "kicks on their way to other gateways can't be read or kept");
        }
    };
    done.inspect_err(log).ok()
}

#[cfg(test)]
mod tests;
