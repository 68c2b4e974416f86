//! The static WireGuard key and the devices that may shake hands with it.
//!
//! Invariants: the key leaves this process in no form but handshakes. A timestamp is durable before
//! the message that it allows, so no restart lets an old one in again. Handshakes have a queue of
//! their own and a bound on their rate, so a flood of them takes no turn of a login. A device
//! shakes hands while its user is enabled and in a profile that allows it; whether it is let in is
//! decided when it asks for a session, which takes a handshake: no word of the worker stands for one.

pub mod configuration;
pub mod key_file;
pub mod new_device;
mod outer;

use std::collections::{BTreeMap, HashSet};
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
use vpnd_config::WireGuardProfile;
use vpnd_ipc::gateway::wireguard::{MAX_PEER_CHANGES, Peer, PeerChange, PeerChanges};
use vpnd_store::{HandshakeShown, Store, StoreError, User, UserId, WireGuardDevice};
use vpnd_sys::allowance::Allowance;
use vpnd_sys::clock::now;
use vpnd_sys::log_limit::LogLimit;

/// Lines of the log about the store: whoever sends handshakes could make one with each.
static STORE_FAILURES: LogLimit = LogLimit::new(5, Duration::from_secs(10));
/// Handshakes that wait, at most; more are refused at once.
const QUEUE: usize = 32;
/// Handshakes that are made at once, and then one for each interval.
const BURST: u32 = 2_000;
const INTERVAL: Duration = Duration::from_micros(500);
/// A handshake is good for a session for this long: it takes the worker moments to ask.
const SHOWN_LIFETIME: Duration = Duration::from_secs(30);

/// A handshake that waits, and the way back.
type Waiting = (Request, oneshot::Sender<Reply>);

/// The gateway's WireGuard devices.
pub(crate) struct WireGuard {
    store: Arc<dyn Store>,
    access: Arc<Access>,
    state: Mutex<State>,
    /// Held while the store is read, so that callers that need the state alone do not wait for it.
    reading: Mutex<()>,
    queue: mpsc::Sender<Waiting>,
    outer: outer::Keeper,
}

struct State {
    handshakes: Handshakes,
    allowance: Allowance,
    /// The store's version that the rest was made of; `None` if it must be read again.
    version: Option<u64>,
    /// How often there were other profiles.
    profiles: u64,
    /// Those that may shake hands, and those that might once.
    peers: BTreeMap<PublicKey, Entry>,
    devices: HashSet<(UserId, DeviceId)>,
    /// The number of the last change.
    changes: u64,
}

/// A peer as it is now, the number of its last change, and when it has shown its key last.
struct Entry {
    peer: Option<Peer>,
    change: u64,
    shown: Option<Time>,
}

impl WireGuard {
    /// Reads the devices, and begins to make handshakes.
    ///
    /// # Errors
    /// If the store can't be read.
    pub(crate) fn start(
        store: Arc<dyn Store>,
        access: Arc<Access>,
        key: StaticKey,
    ) -> Result<Arc<Self>, StoreError> {
        let random = Box::new(|bytes: &mut [u8]| rand::fill(bytes));
        let (queue, waiting) = mpsc::channel(QUEUE);
        let state = State {
            handshakes: Handshakes::new(key, random),
            allowance: Allowance::new(BURST, INTERVAL),
            version: None,
            profiles: 0,
            peers: BTreeMap::new(),
            devices: HashSet::new(),
            changes: 0,
        };
        let (state, reading) = (Mutex::new(state), Mutex::default());
        let outer = outer::Keeper::start(Arc::clone(&store));
        let this = Arc::new(Self { store, access, state, reading, queue, outer });
        this.refresh()?;
        tokio::spawn(Arc::clone(&this).make_handshakes(waiting));
        Ok(this)
    }

    /// Makes a step of a handshake.
    pub(crate) async fn handshake(&self, request: Request) -> Reply {
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
    pub(crate) fn changes_since(&self, seen: u64) -> Result<PeerChanges, StoreError> {
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

    /// The public half of the gateway's key.
    pub(crate) fn public(&self) -> PublicKey {
        self.state().handshakes.public()
    }

    /// Other profiles are in force.
    pub(crate) fn profiles_changed(&self) {
        let mut state = self.state();
        state.version = None;
        state.profiles += 1;
    }

    /// Whether this is a WireGuard device of the user: anybody's own client may claim its id.
    pub(crate) fn has_device(&self, user: UserId, device: DeviceId) -> bool {
        self.refresh_or_log();
        self.state().devices.contains(&(user, device))
    }

    /// Whether the peer has shown its key a moment ago: the worker could ask for any peer.
    pub(crate) fn has_shown(&self, key: [u8; 32]) -> bool {
        let state = self.state();
        let shown = state.peers.get(&PublicKey(key)).and_then(|entry| entry.shown);
        shown.is_some_and(|at| now().since(at) < SHOWN_LIFETIME)
    }

    /// Stores where devices are, soon; the caller does not wait for it.
    pub(crate) fn keep_outer(&self, heard: Vec<(DeviceId, Option<Endpoint>)>) {
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
                let reply = if state.allowance.take(now()) {
                    state.handshakes.handle(now(), since_1970, &request)
                } else {
                    Reply::Refused(Refused::Busy)
                };
                state.note(&request, &reply);
                (shown(&request, &reply), reply, back)
            })
            .collect();
        let kept: Vec<HandshakeShown> = made.iter().filter_map(|(shown, ..)| *shown).collect();
        drop(state);
        let is_kept = kept.is_empty() || self.keep(&kept);
        for (shown, reply, back) in made {
            let is_allowed = is_kept || shown.is_none();
            // A caller that has given up needs none.
            let _ = back.send(if is_allowed { reply } else { Reply::Refused(Refused::Busy) });
        }
    }

    fn keep(&self, shown: &[HandshakeShown]) -> bool {
        let kept = self.store.keep_handshakes(shown);
        if let Err(error) = &kept
            && STORE_FAILURES.admits()
        {
            tracing::error!(%error, "timestamps of WireGuard handshakes can't be stored: none is answered");
        }
        kept.is_ok()
    }

    /// Brings the peers up to what the store has, unless another caller reads it already. Handshakes
    /// and commits go on with the peers of before rather than wait for it.
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
        let version = self.store.wireguard_version()?;
        let profiles = {
            let state = self.state();
            if state.version == Some(version) {
                return Ok(());
            }
            state.profiles
        };
        let devices = self.store.wireguard_devices()?;
        let mut users: BTreeMap<UserId, Option<User>> = BTreeMap::new();
        let mut usable = Vec::new();
        let owners = devices.iter().map(|device| (device.user, device.id)).collect();
        for device in devices.into_iter().filter(|device| device.may_connect) {
            let user = match users.entry(device.user) {
                std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::btree_map::Entry::Vacant(free) => {
                    free.insert(self.store.user_by_id(device.user)?)
                }
            };
            let profile = user.as_ref().and_then(|user| self.access.of(user));
            let Some(profile) = profile.map(|profile| profile.wireguard).filter(|profile| profile.allowed)
            else {
                continue;
            };
            let peer = peer(&device, profile);
            usable.push((device, peer));
        }
        let mut state = self.state();
        state.devices = owners;
        usable.iter().for_each(|(device, _)| state.add(PublicKey(device.public_key), device));
        state
            .replace(usable.into_iter().map(|(device, peer)| (PublicKey(device.public_key), peer)).collect());
        // By other profiles it has to be read again.
        state.version = (state.profiles == profiles).then_some(version);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn add(&mut self, key: PublicKey, device: &WireGuardDevice) {
        let latest = device.latest.map(Timestamp::from_bytes);
        // An administrator has permitted earlier ones.
        if latest.is_none() && self.handshakes.latest(&key).is_some() {
            self.handshakes.remove(&key);
        }
        let known = Known {
            preshared: device.preshared.as_ref().map(|preshared| Secret::new(*preshared.expose())),
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

    /// These are the peers from now on.
    fn replace(&mut self, mut peers: BTreeMap<PublicKey, Peer>) {
        for (key, entry) in &mut self.peers {
            let peer = peers.remove(key);
            if peer.is_none() && entry.peer.is_some() {
                self.handshakes.remove(key);
            }
            if !is_same(entry.peer.as_ref(), peer.as_ref()) {
                self.changes += 1;
                let device = |peer: &Option<Peer>| peer.as_ref().map(|peer| peer.device);
                let shown = entry.shown.filter(|_| device(&entry.peer) == device(&peer));
                *entry = Entry { peer, change: self.changes, shown };
            }
        }
        for (key, peer) in peers {
            self.changes += 1;
            self.peers.insert(key, Entry { peer: Some(peer), change: self.changes, shown: None });
        }
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
