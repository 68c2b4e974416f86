//! Sessions and leases that no client comes back for.
//!
//! Leases without a session: a user was disabled or removed, a device forgotten, a password
//! changed. INVARIANT: such a lease does not end while a gateway may still carry its session. One
//! that runs ends the session within moments, and the lease with it; what is left here are leases
//! of sessions that no gateway had. A process that takes a session out of the store needs no clock
//! for its lease, so a clock that disagrees frees no address.
//!
//! Sessions of the process before: their clients attach, or are idle like others. One that its
//! user's profile has no addresses for any more is over at once. No client attaches to one of a
//! WireGuard device, whose next session takes its place: it is looked at when most devices are
//! back, and is over after the silence that ends such sessions.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use vpnd_proto::control::Code;
use vpnd_proto::session::{DeviceId, SessionId};

use super::Service;
use super::fleet::MAX_CLAIMS;
use vpnd_admission::notices::lock;
use vpnd_config::AccessProfiles;
use vpnd_ipc::gateway::auth::{MAX_WRITES, Traffic, Write, id};
use vpnd_store::{HeldSession, StoreError};

/// The user and the device of a session. Anybody's client may claim the id of another's device.
type Holder = (String, DeviceId);

/// Sessions of the former process that no client has taken up yet.
#[derive(Default)]
pub(super) struct Absent {
    holders: HashMap<SessionId, Holder>,
    by_holder: HashMap<Holder, Vec<SessionId>>,
    /// Those of WireGuard devices.
    of_devices: HashSet<SessionId>,
}

impl Absent {
    fn add(&mut self, session: SessionId, holder: Holder) {
        if self.holders.insert(session, holder.clone()).is_none() {
            self.by_holder.entry(holder).or_default().push(session);
        }
    }

    pub(super) fn remove(&mut self, session: SessionId) {
        self.of_devices.remove(&session);
        let Some(holder) = self.holders.remove(&session) else { return };
        if let Some(sessions) = self.by_holder.get_mut(&holder) {
            sessions.retain(|other| *other != session);
            if sessions.is_empty() {
                self.by_holder.remove(&holder);
            }
        }
    }

    /// All of them, or those that are not of WireGuard devices.
    fn sessions(&self, with_devices: bool) -> Vec<SessionId> {
        let of_client = |session: &&SessionId| !self.of_devices.contains(session);
        self.holders.keys().filter(|session| with_devices || of_client(session)).copied().collect()
    }

    /// The sessions of this user on this device.
    pub(super) fn of(&self, user: &str, device: DeviceId) -> Vec<SessionId> {
        self.by_holder.get(&(user.to_owned(), device)).cloned().unwrap_or_default()
    }
}

const INTERVAL: Duration = Duration::from_secs(10);
/// Time for a gateway to end a session that the store has no more, seconds.
const END_S: u64 = 60;
/// Time for a WireGuard device to come back.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(600);

impl Service {
    /// Remembers the sessions that there are as absent, until a client attaches to them or the
    /// worker has taken them over. At a start no client is attached, so what has no session is
    /// freed.
    ///
    /// # Errors
    /// If the store can't be read.
    pub(crate) fn begin(&self, is_start: bool) -> Result<(), StoreError> {
        if is_start {
            if let Some(member) = &self.fleet {
                member.is_new.store(true, Ordering::Relaxed);
            }
            self.end_orphans(&mut HashMap::new(), 0)?;
        }
        let live = self.store.live_sessions((self.clocks.steady)())?;
        let mut heard = self.portal.heard();
        live.iter().for_each(|session| heard.goes_on(session.id, session.owner, session.device));
        drop(heard);
        let mut absent = lock(&self.absent);
        for session in live {
            absent.of_devices.extend(session.wireguard.map(|_| session.id));
            absent.add(session.id, (session.user, session.device));
        }
        Ok(())
    }

    /// The worker carries these sessions.
    pub(super) fn are_there(&self, sessions: impl Iterator<Item = SessionId>) {
        let mut absent = lock(&self.absent);
        for session in sessions {
            absent.remove(session);
        }
    }

    /// These access profiles are in force from now on.
    pub(crate) fn profiles_changed(&self, profiles: AccessProfiles) {
        self.access.replace(profiles);
        if let Some(wireguard) = &self.wireguard {
            wireguard.profiles_changed();
        }
        self.end_misfits(true);
    }

    /// Ends those absent sessions to which no client could attach; those of WireGuard devices only
    /// `with_devices`.
    pub(super) fn end_misfits(&self, with_devices: bool) {
        let absent = lock(&self.absent).sessions(with_devices);
        let misfits: Vec<_> = absent.chunks(MAX_CLAIMS).flat_map(|part| self.misfits(part)).collect();
        self.end(misfits, Code::Token);
    }

    /// Those of these sessions, without those that the store can't say anything about.
    fn misfits(&self, sessions: &[SessionId]) -> Vec<SessionId> {
        let held = match self.store.held(sessions, (self.clocks.steady)()) {
            Ok(held) => held,
            Err(error) if error.is_for_now() => return Vec::new(),
            // One that can't be read takes no other with it.
            Err(_) => vec![None; sessions.len()],
        };
        // The embedded store finds none of them together.
        let is_misfit = |(session, held): &(&SessionId, Option<HeldSession>)| match held {
            Some(held) => self.usable_by(&held.record, &held.user, &held.leases).is_none(),
            None => matches!(self.usable(**session), Ok(None)),
        };
        sessions.iter().zip(held).filter(is_misfit).map(|(session, _)| *session).collect()
    }

    /// Ends leftover sessions when they are due; never returns. `idle` is how long a session may be
    /// unused.
    pub(crate) async fn end_leftover(self: Arc<Self>, idle: Option<Duration>, is_start: bool) {
        let idle_at = idle.map(|idle| Instant::now() + idle);
        let devices_at = Instant::now() + DEVICE_TIMEOUT;
        let mut since = HashMap::new();
        if is_start {
            let service = Arc::clone(&self);
            let _ = tokio::task::spawn_blocking(move || service.end_misfits(false)).await;
        }
        let mut is_first = is_start;
        loop {
            tokio::time::sleep(INTERVAL).await;
            let service = Arc::clone(&self);
            let is_first = std::mem::take(&mut is_first);
            let is_idle = idle_at.is_some_and(|at| at <= Instant::now());
            let ended = tokio::task::spawn_blocking(move || {
                if is_first {
                    service.end_misfits(true);
                }
                if is_idle {
                    service.end_absent();
                } else if devices_at <= Instant::now() {
                    service.end_absent_devices();
                }
                let ended = service.end_orphans(&mut since, END_S);
                (since, ended)
            });
            let Ok((seen, ended)) = ended.await else { return };
            since = seen;
            if let Err(error) = ended {
                tracing::warn!(%error, "addresses of ended sessions can't be freed; trying again");
            }
        }
    }

    /// Ends the sessions of before whose clients have not attached.
    pub(super) fn end_absent(&self) {
        let absent = std::mem::take(&mut *lock(&self.absent));
        self.end(absent.holders.into_keys(), Code::Idle);
    }

    /// Ends those of WireGuard devices.
    pub(super) fn end_absent_devices(&self) {
        let absent = lock(&self.absent).of_devices.iter().copied().collect::<Vec<_>>();
        self.end(absent, Code::Idle);
    }

    /// Ends leases without a session that were found for `after_s` seconds; `since` says from when
    /// on.
    pub(super) fn end_orphans(
        &self,
        since: &mut HashMap<SessionId, u64>,
        after_s: u64,
    ) -> Result<(), StoreError> {
        let now_s = (self.clocks.steady)();
        let mut orphans = self.store.orphaned(now_s)?;
        // A session gets its lease before it is in the store.
        self.grants.leave_out_granted(&mut orphans, now_s);
        since.retain(|session, _| orphans.contains(session));
        orphans.retain(|session| since.entry(*session).or_insert(now_s).saturating_add(after_s) <= now_s);
        self.end(orphans, Code::Disabled);
        Ok(())
    }

    pub(super) fn end(&self, sessions: impl IntoIterator<Item = SessionId>, code: Code) {
        let writes = self.ends(sessions, code);
        for part in writes.chunks(MAX_WRITES) {
            // A change that the store refuses is logged there, and found again.
            let _ = self.commit(part.to_vec());
        }
    }

    /// The writes that end sessions which no gateway carries.
    pub(super) fn ends(&self, sessions: impl IntoIterator<Item = SessionId>, code: Code) -> Vec<Write> {
        let traffic = Traffic::default();
        let end = |session| {
            lock(&self.absent).remove(session);
            [Write::Ended { session: id(session), code, traffic }, Write::End(id(session))]
        };
        sessions.into_iter().flat_map(end).collect()
    }
}
