//! Orders that this gateway gives to the others, and takes from them (PROTOCOL §19.2).
//!
//! INVARIANT: an order is sent to each gateway until that has confirmed it, or the owner forgets
//! it; an order is returned to be carried out once, and confirmed only after that. Numbers of
//! gateways and orders have a limit, and so has what one call returns; repetitions don't keep
//! others from being sent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use minicbor::bytes::ByteArray;
use minicbor::{Decode, Encode};
use vpnd_config::revocation_cause::RevocationCause;
use vpnd_proto::control::UserName;
use vpnd_proto::session::{Random, random_bytes};
use vpnd_proto::time::Time;

use crate::seal::{FilterKey, OwnKey, Pair, PublicKey, SenderId};

/// Other gateways, at most.
pub const MAX_GATEWAYS: usize = 256;
/// Orders under way to all gateways, at most; the owner gives others later.
pub const MAX_GIVEN: usize = 256;
/// Orders under way to some gateways, at most: the oldest that were sent are forgotten, and so are
/// old ones.
const MAX_PASSED_ON: usize = MAX_TAKEN;
const PASSED_ON_FOR: Duration = Duration::from_secs(600);
/// Orders of others that are known again when they are repeated.
const MAX_TAKEN: usize = 4_096;
/// Datagrams of one call.
pub const MAX_AT_ONCE: usize = 128;
/// Interval of repetitions while an administrator may wait, and how long that is.
const FAST: Duration = Duration::from_millis(150);
const FAST_FOR: Duration = Duration::from_secs(3);
/// Interval afterwards.
const SLOW: Duration = Duration::from_secs(5);

/// The name of an order: random bytes.
pub type OrderId = [u8; 16];

/// Sessions of a user are to end.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Order {
    /// Its name.
    #[n(0)]
    pub id: ByteArray<16>,
    /// The user's login name.
    #[n(1)]
    pub user: UserName,
    /// The one device that it is about, if it is not about all.
    #[n(2)]
    pub device: Option<ByteArray<16>>,
    /// Why they end.
    #[n(3)]
    pub cause: RevocationCause,
    /// When it was given, in seconds since 1970: later sessions are not meant.
    #[n(4)]
    pub at_s: u64,
    /// Whether the database has it, too: it is for gateways that can't read that.
    #[n(5)]
    pub is_stored: bool,
    /// When this datagram was sent, by the same clock. Given by [`Orders::poll`].
    #[n(6)]
    pub sent_s: u64,
}

/// A message in a datagram.
#[derive(Debug, PartialEq, Eq, Encode, Decode)]
enum Message {
    #[n(0)]
    Order(#[n(0)] Order),
    /// The sender has carried this order out; with the number of sessions that have ended.
    #[n(1)]
    CarriedOut(#[n(0)] ByteArray<16>, #[n(1)] u64),
}

/// A datagram to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The other gateway.
    pub to: SocketAddr,
    /// Its bytes.
    pub datagram: Vec<u8>,
}

/// The state of an order at another gateway.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Confirmation {
    /// The name of the gateway.
    #[n(0)]
    pub gateway: String,
    /// The sessions that have ended there; `None` as long as it has not confirmed the order.
    #[n(1)]
    pub sessions: Option<u64>,
}

/// Another gateway.
struct Gateway {
    key: PublicKey,
    pair: Pair,
    at: SocketAddr,
}

/// An order of this gateway.
struct Given {
    order: Order,
    since: Time,
    /// The gateways that it is for, if not for all.
    to: Option<Arc<BTreeSet<String>>>,
    /// By the names of the gateways that it was sent to.
    sent: BTreeMap<String, Sent>,
}

#[derive(Clone, Copy)]
struct Sent {
    next: Time,
    confirmed: Option<u64>,
}

/// An order of another gateway.
struct Taken {
    from: String,
    id: ByteArray<16>,
    /// The sessions that it has ended, once it is carried out.
    ended: Option<u64>,
}

/// The orders of a gateway.
pub struct Orders {
    key: OwnKey,
    random: Random,
    /// By name.
    gateways: BTreeMap<String, Gateway>,
    given: BTreeMap<OrderId, Given>,
    /// The latest last.
    taken: VecDeque<Taken>,
    /// The confirmations that are due, with their receivers.
    confirmations: VecDeque<(String, ByteArray<16>, u64)>,
}

impl fmt::Debug for Orders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Orders").field("gateways", &self.gateways.keys()).finish_non_exhaustive()
    }
}

impl Orders {
    /// The orders of the gateway with this key.
    #[must_use]
    pub fn new(key: OwnKey, random: Random) -> Self {
        Self {
            key,
            random,
            gateways: BTreeMap::new(),
            given: BTreeMap::new(),
            taken: VecDeque::new(),
            confirmations: VecDeque::new(),
        }
    }

    /// The half of this gateway's key for the others.
    #[must_use]
    pub const fn public_key(&self) -> PublicKey {
        self.key.public()
    }

    /// The key of the last MAC of datagrams to this gateway.
    #[must_use]
    pub fn filter(&self) -> FilterKey {
        FilterKey::of(self.key.public())
    }

    /// The gateway of this name has this key and this address: whether that is new. This gateway's
    /// key is ignored.
    pub fn learn(&mut self, name: &str, key: PublicKey, at: SocketAddr) -> bool {
        if let Some(known) = self.gateways.get_mut(name).filter(|known| known.key == key) {
            return std::mem::replace(&mut known.at, at) != at;
        }
        let is_full = self.gateways.len() >= MAX_GATEWAYS && !self.gateways.contains_key(name);
        let Some(pair) = self.key.pair(key).filter(|_| !is_full) else { return false };
        self.gateways.insert(name.to_owned(), Gateway { key, pair, at });
        // It is another one, which has confirmed nothing.
        for given in self.given.values_mut() {
            given.sent.remove(name);
        }
        true
    }

    /// Gateways but for these are of the fleet no more.
    pub fn keep_only(&mut self, names: &BTreeSet<&str>) {
        self.gateways.retain(|name, _| names.contains(&**name));
    }

    /// The names of the other gateways, sorted.
    pub fn gateways(&self) -> impl Iterator<Item = &str> {
        self.gateways.keys().map(String::as_str)
    }

    /// Gives an order to all other gateways, those included that become known later. `false` if too
    /// many are under way.
    pub fn give(&mut self, now: Time, order: Order) -> bool {
        if self.given.values().filter(|given| given.to.is_none()).count() >= MAX_GIVEN {
            return false;
        }
        let given = Given { order, since: now, to: None, sent: BTreeMap::new() };
        self.given.entry(given.order.id.into()).or_insert(given);
        true
    }

    /// Gives orders to these gateways, for some time at most. The oldest ones that were sent are
    /// forgotten where there is no room; how many are left out because that makes too little.
    pub fn pass_on(&mut self, now: Time, orders: &[Order], to: BTreeSet<String>) -> usize {
        let passed_on = self.given.iter().filter(|(_, given)| given.to.is_some());
        let surplus = (passed_on.clone().count() + orders.len()).saturating_sub(MAX_PASSED_ON);
        let mut oldest = Vec::new();
        if surplus > 0 {
            let sent = passed_on.filter(|(_, given)| given.was_sent());
            oldest.extend(sent.map(|(id, given)| (given.since, *id)));
            oldest.sort_unstable();
            oldest.truncate(surplus);
        }
        oldest.iter().for_each(|(_, id)| drop(self.given.remove(id)));
        let (to, left_out) = (Arc::new(to), surplus - oldest.len());
        for order in &orders[..orders.len() - left_out] {
            let (order, to) = (order.clone(), Some(Arc::clone(&to)));
            let given = Given { order, since: now, to, sent: BTreeMap::new() };
            self.given.entry(given.order.id.into()).or_insert(given);
        }
        left_out
    }

    /// Whether this order is under way.
    #[must_use]
    pub fn is_given(&self, id: &OrderId) -> bool {
        self.given.contains_key(id)
    }

    /// Sends orders to all gateways no more but for these.
    pub fn keep_given(&mut self, ids: &BTreeSet<OrderId>) {
        self.given.retain(|id, given| given.to.is_some() || ids.contains(id));
    }

    /// The confirmations of an order of this gateway, by name.
    #[must_use]
    pub fn confirmations(&self, id: &OrderId) -> Vec<Confirmation> {
        let sent = self.given.get(id).map(|given| &given.sent);
        let confirmed = |name: &String| sent.and_then(|sent| sent.get(name)).and_then(|sent| sent.confirmed);
        let names = self.gateways.keys();
        names.map(|name| Confirmation { gateway: name.clone(), sessions: confirmed(name) }).collect()
    }

    /// Takes a datagram; the order in it, if it is to be carried out now.
    pub fn receive(&mut self, datagram: &[u8]) -> Option<Order> {
        if !self.filter().admits(datagram) {
            return None;
        }
        let sender = SenderId::in_datagram(datagram)?;
        let (name, gateway) = self.gateways.iter().find(|(_, gateway)| gateway.pair.theirs() == sender)?;
        let (from, message) = (name.clone(), minicbor::decode(&gateway.pair.open(datagram)?).ok()?);
        match message {
            Message::Order(order) => self.take(from, order),
            Message::CarriedOut(id, sessions) => {
                let sent = self.given.get_mut(&*id).and_then(|given| given.sent.get_mut(&from));
                if let Some(sent) = sent {
                    sent.confirmed.get_or_insert(sessions);
                }
                None
            }
        }
    }

    fn take(&mut self, from: String, order: Order) -> Option<Order> {
        if let Some(known) = self.taken.iter().find(|taken| taken.id == order.id && taken.from == from) {
            // Its confirmation was lost.
            if let Some(ended) = known.ended {
                self.confirm(from, order.id, ended);
            }
            return None;
        }
        if self.taken.len() >= MAX_TAKEN {
            self.taken.pop_front();
        }
        self.taken.push_back(Taken { from, id: order.id, ended: None });
        Some(order)
    }

    /// An order of another gateway is carried out. `None`: sessions have ended and that could not
    /// be stored. It is never confirmed then, for one that is repeated finds no session to end.
    pub fn carried_out(&mut self, id: ByteArray<16>, ended: Option<u64>) {
        let (Some(at), Some(ended)) = (self.under_way(id), ended) else { return };
        self.taken[at].ended = Some(ended);
        self.confirm(self.taken[at].from.clone(), id, ended);
    }

    /// An order of another gateway is put off until it is repeated.
    pub fn put_off(&mut self, id: ByteArray<16>) {
        if let Some(at) = self.under_way(id) {
            self.taken.remove(at);
        }
    }

    fn under_way(&self, id: ByteArray<16>) -> Option<usize> {
        self.taken.iter().position(|taken| taken.id == id && taken.ended.is_none())
    }

    fn confirm(&mut self, to: String, id: ByteArray<16>, ended: u64) {
        if self.confirmations.len() < MAX_TAKEN {
            self.confirmations.push_back((to, id, ended));
        }
    }

    /// The datagrams that are to be sent now, [`MAX_AT_ONCE`] at most; `now_s` is the time in
    /// seconds since 1970.
    pub fn poll(&mut self, now: Time, now_s: u64) -> Vec<Outgoing> {
        let Self { gateways, given, confirmations, random, .. } = self;
        let mut outgoing = Vec::new();
        while let Some((to, id, ended)) = confirmations.pop_front() {
            let Some(gateway) = gateways.get(&to) else { continue };
            outgoing.push(gateway.seal(random, &Message::CarriedOut(id, ended)));
            if outgoing.len() == MAX_AT_ONCE {
                return outgoing;
            }
        }
        given.retain(|_, given| !given.is_over(now));
        let mut due: Vec<_> = given.iter().flat_map(|(id, given)| given.due(*id, gateways, now)).collect();
        due.sort_unstable();
        for (.., id, name) in due.into_iter().take(MAX_AT_ONCE - outgoing.len()) {
            let (Some(given), Some(gateway)) = (given.get_mut(&id), gateways.get(name)) else { continue };
            let interval = if now.since(given.since) < FAST_FOR { FAST } else { SLOW };
            given.sent.insert(name.clone(), Sent { next: now + interval, confirmed: None });
            let order = Order { sent_s: now_s, ..given.order.clone() };
            outgoing.push(gateway.seal(random, &Message::Order(order)));
        }
        outgoing
    }
}

/// An order that is due at a gateway: whether it is passed on, whether it was sent, and since when.
/// The first in this order are sent first.
type Due<'g> = (bool, bool, Time, OrderId, &'g String);

impl Given {
    /// The gateways that it is to be sent to now.
    fn due<'g>(&self, id: OrderId, gateways: &'g BTreeMap<String, Gateway>, now: Time) -> Vec<Due<'g>> {
        let meant: Vec<&String> = match &self.to {
            Some(to) => {
                to.iter().filter_map(|name| gateways.get_key_value(name)).map(|(name, _)| name).collect()
            }
            None => gateways.keys().collect(),
        };
        let due = |name| match self.sent.get(name) {
            Some(sent) if sent.confirmed.is_some() || sent.next > now => None,
            sent => {
                let next = sent.map_or(self.since, |sent| sent.next);
                Some((self.to.is_some(), sent.is_some(), next, id, name))
            }
        };
        meant.into_iter().filter_map(due).collect()
    }

    fn was_sent(&self) -> bool {
        self.to.iter().flat_map(|to| to.iter()).all(|name| self.sent.contains_key(name))
    }

    /// Whether one that was passed on needs no more repetitions.
    fn is_over(&self, now: Time) -> bool {
        let confirmed = |name: &String| self.sent.get(name).is_some_and(|sent| sent.confirmed.is_some());
        let is_old = now.since(self.since) > PASSED_ON_FOR;
        self.to.as_ref().is_some_and(|to| is_old || to.iter().all(confirmed))
    }
}

impl Gateway {
    fn seal(&self, random: &mut Random, message: &Message) -> Outgoing {
        let message = minicbor::to_vec(message).expect("a vector takes all bytes");
        let datagram = self.pair.seal(random_bytes(random), &message);
        Outgoing { to: self.at, datagram: datagram.expect("a message has room in a datagram") }
    }
}

#[cfg(test)]
mod tests;
