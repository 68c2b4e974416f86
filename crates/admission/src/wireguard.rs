//! The static WireGuard key and the devices that may shake hands with it.
//!
//! Invariants: the key leaves this process in no form but handshakes. A timestamp is durable before
//! the message that it allows, so no restart lets an old one in again. Handshakes have a queue of
//! their own and a bound on their rate, so a flood of them takes no turn of a login; messages that
//! show no device's key have a separate one. A device shakes hands while its user is enabled and in
//! a profile that allows it; whether it is let in is decided when it asks for a session, which
//! takes a handshake: no word of the worker stands for one.

pub mod configuration;
pub mod new_device;

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{mpsc, oneshot};
use vpnd_crypto::Secret;
use vpnd_proto::plane::Endpoint;
use vpnd_proto::session::DeviceId;
use vpnd_proto::time::Time;
use vpnd_wireguard::handshakes::{Known, Refused, Reply, Request};
use vpnd_wireguard::key::StaticKey;
use vpnd_wireguard::timestamp::Timestamp;
use vpnd_wireguard::{Handshakes, PublicKey};

use crate::access::Access;
use crate::keeper::Keeper;
use vpnd_config::WireGuardProfile;
use vpnd_config::access_profile::Who;
use vpnd_ipc::gateway::wireguard::{DeviceAt, MAX_PEER_CHANGES, Peer, PeerChange, PeerChanges};
use vpnd_store::{FoundDevice, HandshakeShown, OwnedDevice, Store, StoreError, UserId, WireGuardDevice};
use vpnd_sys::allowance::Allowance;
use vpnd_sys::clock::{now, steady_s};
use vpnd_sys::log_limit::LogLimit;

/// Lines of the log about the store: each handshake could otherwise make one.
static STORE_FAILURES: LogLimit = LogLimit::new(5, Duration::from_secs(10));
/// Handshakes that wait, at most; more are refused at once.
const QUEUE: usize = 32;
/// Handshakes that are made at once, and then one for each interval.
const BURST: u32 = 2_000;
const INTERVAL: Duration = Duration::from_micros(500);
/// First messages that show no device's key, or are replayed: to find that out costs a fraction of
/// a handshake.
const STRANGERS_BURST: u32 = 4_000;
const STRANGERS_INTERVAL: Duration = Duration::from_micros(250);
/// A handshake is good for a session for this long: it takes the worker moments to ask.
const SHOWN_LIFETIME: Duration = Duration::from_secs(30);

/// A handshake that waits, and the way back.
type Waiting = (Request, oneshot::Sender<Reply>);

/// The gateway's WireGuard devices.
pub struct WireGuard {
    store: Arc<dyn Store>,
    access: Arc<Access>,
    state: Mutex<State>,
    /// Held while the store is read, so that callers that need the state alone do not wait for it.
    reading: Mutex<()>,
    queue: mpsc::Sender<Waiting>,
    /// Where devices are: hints for the next start.
    outer: Keeper<DeviceId, Option<Endpoint>>,
}

struct State {
    handshakes: Handshakes,
    allowance: Allowance,
    strangers: Allowance,
    /// The store's last change that the rest has; `None` if all must be read again.
    last: Option<u64>,
    /// How often there were other profiles.
    profiles: u64,
    /// All devices, and those that there were.
    peers: BTreeMap<PublicKey, Entry>,
    devices: HashSet<(UserId, DeviceId)>,
    /// The number of the last change.
    changes: u64,
}

/// A device as it is now, the number of its last change as a peer, and when it has shown its key
/// last.
#[derive(Default)]
struct Entry {
    owner: Option<(UserId, DeviceId)>,
    /// `None` if it may not shake hands.
    peer: Option<Peer>,
    change: u64,
    shown: Option<Time>,
}

impl WireGuard {
    /// Reads the devices, and begins to make handshakes.
    ///
    /// # Errors
    /// If the store can't be read.
    pub fn start(
        store: Arc<dyn Store>,
        access: Arc<Access>,
        key: StaticKey,
    ) -> Result<Arc<Self>, StoreError> {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let (state, reading) = (Mutex::new(State::new(key)), Mutex::default());
        let hints = Arc::clone(&store);
        let outer = Keeper::start(Duration::ZERO, move |heard: Vec<_>| {
            if let Err(error) = hints.keep_outer(&heard) {
                tracing::error!(%error, "it could not be stored where WireGuard devices are");
            }
        });
        let this = Arc::new(Self { store, access, state, reading, queue, outer });
        this.refresh()?;
        tokio::spawn(Arc::clone(&this).make_handshakes(waiting));
        Ok(this)
    }

    /// Makes a step of a handshake.
    pub async fn handshake(&self, request: Request) -> Reply {
        let (reply, made) = oneshot::channel();
        if self.queue.try_send((request, reply)).is_err() {
            return Reply::Refused(Refused::Busy);
        }
        made.await.unwrap_or(Reply::Refused(Refused::Busy))
    }

    /// Peers that have changed since `seen`.
    ///
    /// # Errors
    /// If the store can't be read.
    pub fn changes_since(&self, seen: u64) -> Result<PeerChanges, StoreError> {
        self.refresh()?;
        let state = self.state();
        let mut newer: Vec<_> = state.peers.iter().filter(|(_, entry)| entry.change > seen).collect();
        newer.sort_unstable_by_key(|(_, entry)| entry.change);
        newer.truncate(MAX_PEER_CHANGES);
        let changed =
            newer.iter().map(|(key, entry)| PeerChange { key: key.0.into(), peer: entry.peer.clone() });
        Ok(PeerChanges {
            own: state.handshakes.public().0.into(),
            seen: newer.last().map_or(seen, |(_, entry)| entry.change),
            changed: changed.collect(),
        })
    }

    /// The devices after this one that have talked last to one of these addresses of the gateway's,
    /// wherever that was then. The first question reads all of them again, with the timestamps that
    /// another gateway has kept.
    ///
    /// # Errors
    /// If the store can't be read.
    pub fn devices_at(
        &self,
        addresses: &[IpAddr],
        after: Option<[u8; 32]>,
    ) -> Result<Vec<DeviceAt>, StoreError> {
        let from = match after {
            Some(after) => Bound::Excluded(PublicKey(after)),
            None => {
                self.state().last = None;
                self.refresh()?;
                Bound::Unbounded
            }
        };
        let state = self.state();
        let found = state.peers.range((from, Bound::Unbounded)).filter_map(|(key, entry)| {
            let outer = entry.peer.as_ref()?.outer?;
            let is_there = addresses.contains(&outer.local?.to_canonical());
            is_there.then(|| DeviceAt { key: key.0.into(), outer })
        });
        Ok(found.take(MAX_PEER_CHANGES).collect())
    }

    /// The public half of the gateway's key.
    pub fn public(&self) -> PublicKey {
        self.state().handshakes.public()
    }

    /// Other profiles are in force.
    pub fn profiles_changed(&self) {
        let mut state = self.state();
        state.last = None;
        state.profiles += 1;
    }

    /// Whether this is a WireGuard device of the user: anybody's own client may claim its id. One
    /// that has a session here is known: it has shaken hands.
    pub fn has_device(&self, user: UserId, device: DeviceId) -> bool {
        self.state().devices.contains(&(user, device))
    }

    /// Whether a device has shown this key a moment ago: the worker could ask for any peer.
    pub fn has_shown(&self, key: [u8; 32]) -> bool {
        let state = self.state();
        let entry = state.peers.get(&PublicKey(key)).filter(|entry| entry.peer.is_some());
        entry.and_then(|entry| entry.shown).is_some_and(|at| now().since(at) < SHOWN_LIFETIME)
    }

    /// Stores where devices are, soon; the caller does not wait for it.
    pub fn keep_outer(&self, heard: Vec<(DeviceId, Option<Endpoint>)>) {
        self.outer.keep(heard);
    }

    /// Those of one turn are durable together; never returns.
    async fn make_handshakes(self: Arc<Self>, mut waiting: mpsc::Receiver<Waiting>) {
        let mut turn = Vec::with_capacity(QUEUE);
        while waiting.recv_many(&mut turn, QUEUE).await > 0 {
            let this = Arc::clone(&self);
            let taken = std::mem::take(&mut turn);
            // A panic in it has dropped the ways back: those requests are refused.
            let _ = tokio::task::spawn_blocking(move || this.make(taken)).await;
        }
    }

    fn make(&self, turn: Vec<Waiting>) {
        self.refresh_or_log();
        let mut state = self.state();
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let made: Vec<_> = turn
            .into_iter()
            .map(|(request, back)| {
                let reply = state.handle(now(), since_1970, &request);
                state.note(&request, &reply);
                (shown(&request, &reply), reply, back)
            })
            .collect();
        drop(state);
        let (mut kept, mut waiting) = (Vec::new(), Vec::new());
        // A caller that has given up needs no reply.
        for (shown, reply, back) in made {
            match shown {
                Some(shown) => {
                    kept.push(shown);
                    waiting.push((reply, back));
                }
                None => _ = back.send(reply),
            }
        }
        for ((reply, back), refused) in waiting.into_iter().zip(self.keep(&kept)) {
            let _ = back.send(refused.map_or(reply, Reply::Refused));
        }
    }

    /// Keeps timestamps; why a message may not go with each, if it may not.
    fn keep(&self, shown: &[HandshakeShown]) -> Vec<Option<Refused>> {
        if shown.is_empty() {
            return Vec::new();
        }
        let kept = match self.store.keep_handshakes(shown) {
            Ok(kept) => kept,
            Err(error) => {
                if STORE_FAILURES.admits() {
                    tracing::error!(%error, "timestamps of WireGuard handshakes can't be stored: none is answered");
                }
                return shown.iter().map(|_| Some(Refused::Busy)).collect();
            }
        };
        // Another gateway of the fleet has had later ones.
        let late = shown.iter().zip(&kept).filter(|(_, is_kept)| !**is_kept);
        late.for_each(|(shown, _)| self.learn_latest(&shown.public_key));
        let refused = |(shown, is_kept): (&HandshakeShown, bool)| match (is_kept, shown.is_own) {
            (true, _) => None,
            // The worker tries again, with a later one.
            (false, true) => Some(Refused::Busy),
            (false, false) => Some(Refused::Replayed(PublicKey(shown.public_key))),
        };
        shown.iter().zip(kept).map(refused).collect()
    }

    /// Takes over which handshakes the store has of a peer.
    fn learn_latest(&self, key: &[u8; 32]) {
        match self.store.find_wireguard_device(key, steady_s()) {
            Ok(Some(FoundDevice { device, .. })) => {
                let mut state = self.state();
                if state.peers.get(&PublicKey(*key)).is_some_and(|entry| entry.peer.is_some()) {
                    state.add(PublicKey(*key), &device);
                }
            }
            Ok(None) => {}
            Err(_) => self.state().last = None,
        }
    }

    /// Brings the peers up to what the store has, unless another caller reads it already.
    /// Handshakes and commits go on with the peers of before rather than wait for it.
    fn refresh_or_log(&self) {
        let Ok(_reading) = self.reading.try_lock() else { return };
        if let Err(error) = self.read()
            && STORE_FAILURES.admits()
        {
            tracing::error!(%error, "WireGuard devices can't be read; those of before stay");
        }
    }

    /// Brings the peers up to what the store has.
    fn refresh(&self) -> Result<(), StoreError> {
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        self.read()
    }

    /// The caller holds `reading`.
    fn read(&self) -> Result<(), StoreError> {
        let (since, profiles) = {
            let state = self.state();
            (state.last, state.profiles)
        };
        let changes = self.store.wireguard_changes(since)?;
        let peer = |owned: OwnedDevice| {
            let peer = self.peer(&owned);
            (owned.device, peer)
        };
        let found: Vec<_> = changes.devices.into_iter().map(peer).collect();
        let mut state = self.state();
        if changes.are_all {
            let kept: HashSet<_> = found.iter().map(|(device, _)| PublicKey(device.public_key)).collect();
            let gone: Vec<_> = state.peers.keys().filter(|key| !kept.contains(key)).copied().collect();
            gone.into_iter().for_each(|key| state.remove(key));
        }
        changes.removed.into_iter().for_each(|key| state.remove(PublicKey(key)));
        found.into_iter().for_each(|(device, peer)| state.set(&device, peer));
        // By other profiles all have to be read again.
        state.last = (state.profiles == profiles).then_some(changes.last);
        Ok(())
    }

    /// The device as a peer, if it may connect.
    fn peer(&self, owned: &OwnedDevice) -> Option<Peer> {
        let OwnedDevice { device, user_name, source, groups } = owned;
        let profile = self.access.profile_of(Who { user: user_name, source, groups })?.wireguard;
        (device.may_connect && profile.allowed).then(|| peer(device, profile))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new(key: StaticKey) -> Self {
        Self {
            handshakes: Handshakes::new(key, Box::new(|bytes: &mut [u8]| rand::fill(bytes))),
            allowance: Allowance::new(BURST, INTERVAL),
            strangers: Allowance::new(STRANGERS_BURST, STRANGERS_INTERVAL),
            last: None,
            profiles: 0,
            peers: BTreeMap::new(),
            devices: HashSet::new(),
            changes: 0,
        }
    }

    /// Makes a step, as far as the rates go: which of them a first message uses, it shows itself.
    fn handle(&mut self, now: Time, since_1970: Duration, request: &Request) -> Reply {
        use Refused::{Busy, NotAuthentic, Replayed, UnknownKey};
        let is_first = matches!(request, Request::Respond(_));
        if !self.allowance.has_one(now) || (is_first && !self.strangers.has_one(now)) {
            return Reply::Refused(Busy);
        }
        let reply = self.handshakes.handle(now, since_1970, request);
        let is_strange = matches!(reply, Reply::Refused(UnknownKey(_) | NotAuthentic(_) | Replayed(_)));
        let used = if is_first && is_strange { &mut self.strangers } else { &mut self.allowance };
        used.take(now);
        reply
    }

    fn add(&mut self, key: PublicKey, device: &WireGuardDevice) {
        let latest = device.latest.map(Timestamp::from_bytes);
        // An administrator has permitted earlier ones.
        if latest.is_none() && self.handshakes.latest(&key).is_some() {
            self.handshakes.remove(&key);
        }
        let known = Known {
            preshared: device.preshared.as_ref().map(|preshared| Secret::copy_of(preshared.expose())),
            latest,
            latest_own: device.latest_own.map(Timestamp::from_bytes),
        };
        if let Err(error) = self.handshakes.add(key, known) {
            tracing::warn!(key = key.short(), %error, "a WireGuard device can't be used");
        }
    }

    /// Remembers who has shown a key.
    fn note(&mut self, request: &Request, reply: &Reply) {
        let peer = match (request, reply) {
            (_, Reply::Responded(responded)) => responded.peer,
            (Request::Finish(peer, _), Reply::Finished(_)) => *peer,
            _ => return,
        };
        if let Some(entry) = self.peers.get_mut(&peer) {
            entry.shown = Some(now());
        }
    }

    /// The device is this peer from now on, or none.
    fn set(&mut self, device: &WireGuardDevice, peer: Option<Peer>) {
        let key = PublicKey(device.public_key);
        if peer.is_some() {
            self.add(key, device);
        }
        self.replace(key, Some((device.user, device.id)), peer);
    }

    /// The key is no device's any more.
    fn remove(&mut self, key: PublicKey) {
        self.replace(key, None, None);
    }

    fn replace(&mut self, key: PublicKey, owner: Option<(UserId, DeviceId)>, peer: Option<Peer>) {
        let entry = self.peers.entry(key).or_default();
        if entry.owner != owner {
            if let Some(before) = std::mem::replace(&mut entry.owner, owner) {
                self.devices.remove(&before);
            }
            self.devices.extend(owner);
        }
        if peer.is_none() && entry.peer.is_some() {
            self.handshakes.remove(&key);
        }
        if !is_same(entry.peer.as_ref(), peer.as_ref()) {
            self.changes += 1;
            entry.change = self.changes;
            let device = |peer: &Option<Peer>| peer.as_ref().map(|peer| peer.device);
            entry.shown = entry.shown.filter(|_| device(&entry.peer) == device(&peer));
        }
        // Where it is another gateway may have heard, which is no change.
        entry.peer = peer;
    }
}

/// Whether the worker has nothing to learn of it. Where a peer is, it knows better.
fn is_same(before: Option<&Peer>, after: Option<&Peer>) -> bool {
    let known = |peer: &Peer| (peer.device, peer.keepalive_s, peer.renewed_s);
    before.map(known) == after.map(known)
}

fn peer(device: &WireGuardDevice, profile: WireGuardProfile) -> Peer {
    Peer {
        device: device.id.0.into(),
        keepalive_s: profile.keepalive.and_then(|keepalive| u16::try_from(keepalive.as_secs()).ok()),
        outer: device.outer,
        renewed_s: device.renewed_s,
    }
}

/// The timestamp that a reply gives away or lets in.
fn shown(request: &Request, reply: &Reply) -> Option<HandshakeShown> {
    match (request, reply) {
        (_, Reply::Responded(responded)) => Some(HandshakeShown {
            public_key: responded.peer.0,
            time: responded.timestamp.to_bytes(),
            is_own: false,
        }),
        (Request::Initiate(peer), Reply::Initiated(_, timestamp)) => {
            Some(HandshakeShown { public_key: peer.0, time: timestamp.to_bytes(), is_own: true })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use vpnd_wireguard::message::Initiation;

    use super::*;

    const SINCE_1970: Duration = Duration::from_secs(1_000);

    fn key(byte: u8) -> StaticKey {
        StaticKey::new(Secret::new([byte; 32]))
    }

    /// The first message of a device with this key to the gateway.
    fn first_message(byte: u8) -> Initiation {
        let mut device = State::new(key(byte)).handshakes;
        device.add(key(1).public(), Known::default()).expect("an ordinary key");
        let begun = device.handle(now(), SINCE_1970, &Request::Initiate(key(1).public()));
        let Reply::Initiated(message, _) = begun else { panic!("{begun:?}") };
        message
    }

    #[test]
    fn messages_of_strangers_use_up_no_handshake_of_a_device() {
        let (start, second) = (now(), Duration::from_secs(1));
        let mut state = State::new(key(1));
        (state.allowance, state.strangers) = (Allowance::new(1, second), Allowance::new(20, second));
        state.handshakes.add(key(2).public(), Known::default()).expect("an ordinary key");
        let [strange, own] = [3, 2].map(|byte| Request::Respond(first_message(byte)));
        let mut refused = |now| {
            let Reply::Refused(why) = state.handle(now, SINCE_1970, &strange) else {
                panic!("it is unknown")
            };
            why
        };
        let unknown = Refused::UnknownKey(key(3).public());
        assert!((0..20).all(|_| refused(start) == unknown));
        assert_eq!(refused(start), Refused::Busy, "they have a rate, too");
        let later = start + second;
        assert_eq!(refused(later), unknown);
        let later = later + second;
        assert!(matches!(state.handle(later, SINCE_1970, &own), Reply::Responded(_)));
        // A stranger who has recorded it leaves the device its rate.
        let later = later + second;
        let again = state.handle(later, SINCE_1970, &own);
        assert!(matches!(again, Reply::Refused(Refused::Replayed(_))), "{again:?}");
        assert!(state.allowance.has_one(later));
    }
}
