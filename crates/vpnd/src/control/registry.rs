//! Sessions in the store: what the control plane asks to be remembered, written in its order.
//!
//! INVARIANT: a write that failed is reported to whoever waits for it; nothing is acknowledged on the strength of it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use vpnd_proto::control::{Code, UserName};
use vpnd_proto::gateway::{Addresses, SessionRecord};
use vpnd_proto::policy::{Names, Principal};
use vpnd_proto::session::{DeviceId, SessionId};
use vpnd_proto::time::Time;

use crate::lease::{LeaseError, Pools};
use crate::shard::now;
use crate::store::{self, AuditEntry, Family, LeaseOwner, SessionChange, Store, StoreError, User, UserId};

/// Seconds since 1970.
pub(crate) fn wall_clock_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A session that is over, for the audit log.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) session: SessionId,
    pub(crate) user: UserName,
    pub(crate) code: Code,
}

/// Whose a session is, and for how long.
#[derive(Clone, Debug)]
struct Owner {
    user: UserId,
    device: DeviceId,
    generation: u64,
    started_s: u64,
    expires_s: u64,
    /// Whether the store knows the session.
    stored: bool,
}

/// What a login is given before the control plane hears of it.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) session: SessionId,
    pub(crate) addresses: Addresses,
    pub(crate) expires_s: u64,
}

/// The sessions of this gateway in its store.
pub(crate) struct Registry {
    store: Arc<dyn Store>,
    /// Policy knows users and groups by numbers, which come from here.
    pub(crate) names: Names,
    owners: HashMap<SessionId, Owner>,
    changes: Vec<SessionChange>,
}

/// Why the store does not say whether a session is known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegistryError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the store's thread failed: {0}")]
    Thread(#[from] tokio::task::JoinError),
}

/// Leases addresses for a new session of `user` on a thread that may wait.
pub(crate) async fn admit(
    store: Arc<dyn Store>,
    pools: Pools,
    user: UserId,
    device: DeviceId,
    lifetime: Option<Duration>,
) -> Result<Admission, LeaseError> {
    let task = move || {
        let session = SessionId(rand::random());
        let now_s = wall_clock_s();
        // No limit is written as one that nobody lives to see.
        let expires_s =
            now_s.saturating_add(lifetime.map_or(u64::from(u32::MAX), |lifetime| lifetime.as_secs()));
        let owner = LeaseOwner { user, device };
        let leased = pools.acquire(store.as_ref(), owner, session, now_s, expires_s)?;
        Ok(Admission { session, addresses: Addresses { ipv4: leased.v4, ipv6: leased.v6 }, expires_s })
    };
    tokio::task::spawn_blocking(task).await.expect("leasing an address does not panic")
}

impl Registry {
    pub(crate) fn new(store: Arc<dyn Store>, names: Names) -> Self {
        Self { store, names, owners: HashMap::new(), changes: Vec::new() }
    }

    /// Whom policy takes this user for.
    pub(crate) fn principal(&mut self, user: &User) -> Principal {
        self.names.principal(&user.name, user.groups.iter().map(String::as_str))
    }

    /// A user has logged in: the session that is about to begin is theirs.
    pub(crate) fn begin(&mut self, user: &User, device: DeviceId, admission: &Admission) {
        let owner = Owner {
            user: user.id,
            device,
            generation: user.generation,
            started_s: wall_clock_s(),
            expires_s: admission.expires_s,
            stored: false,
        };
        self.owners.insert(admission.session, owner);
    }

    /// A login was refused after [`Registry::begin`]: its addresses are free again.
    pub(crate) fn abandon(&mut self, session: SessionId) {
        self.forget(session);
    }

    /// A session of an earlier run of the gateway, if the store has it and it is not known yet.
    pub(crate) async fn restore(&mut self, id: SessionId) -> Result<Option<SessionRecord>, RegistryError> {
        if self.owners.contains_key(&id) {
            return Ok(None);
        }
        let store = Arc::clone(&self.store);
        let found = tokio::task::spawn_blocking(move || load(store.as_ref(), id)).await??;
        let Some(Stored { record, user, addresses }) = found else { return Ok(None) };
        let Ok(name) = UserName::new(user.name.as_str()) else { return Ok(None) };
        let owner = Owner {
            user: user.id,
            device: record.device,
            generation: user.generation,
            started_s: record.started_s,
            expires_s: record.expires_s,
            stored: true,
        };
        self.owners.insert(id, owner);
        Ok(Some(SessionRecord {
            id,
            user: name,
            device: record.device,
            principal: self.principal(&user),
            addresses,
            deadline: deadline(record.expires_s),
            epoch: record.epoch,
            tokens: record.tokens,
        }))
    }

    /// Remember the session as it is now.
    pub(crate) fn persist(&mut self, record: SessionRecord) {
        let Some(owner) = self.owners.get_mut(&record.id) else { return };
        if std::mem::replace(&mut owner.stored, true) {
            self.changes.push(SessionChange::Tokens(record.id, record.tokens, record.epoch));
            return;
        }
        let stored = store::SessionRecord {
            id: record.id,
            user: owner.user,
            device: owner.device,
            epoch: record.epoch,
            tokens: record.tokens,
            started_s: owner.started_s,
            expires_s: owner.expires_s,
        };
        self.changes.push(SessionChange::Add(stored, owner.generation));
    }

    /// The session is over; its addresses are free.
    pub(crate) fn forget(&mut self, session: SessionId) {
        self.owners.remove(&session);
        self.changes.push(SessionChange::End(session));
    }

    /// Makes everything durable that was asked for so far, in one step. Returns the sessions for which that failed.
    pub(crate) async fn commit(&mut self, endings: Vec<Ending>) -> HashSet<SessionId> {
        let mut changes = std::mem::take(&mut self.changes);
        let now_s = wall_clock_s();
        changes.extend(endings.iter().map(|ending| SessionChange::Audit(audit_entry(ending, now_s))));
        if changes.is_empty() {
            return HashSet::new();
        }
        let store = Arc::clone(&self.store);
        let all: Vec<SessionId> = changes.iter().filter_map(session_of).collect();
        tokio::task::spawn_blocking(move || write(store.as_ref(), &changes, now_s)).await.unwrap_or_else(
            |error| {
                tracing::error!(%error, "the store's thread failed");
                all.into_iter().collect()
            },
        )
    }
}

/// The deadline on this process's clock.
pub(crate) fn deadline(expires_s: u64) -> Time {
    now() + Duration::from_secs(expires_s.saturating_sub(wall_clock_s()))
}

/// A session as the store has it.
struct Stored {
    record: store::SessionRecord,
    user: User,
    addresses: Addresses,
}

fn load(store: &dyn Store, id: SessionId) -> Result<Option<Stored>, StoreError> {
    let now_s = wall_clock_s();
    let Some(record) = store.session(id, now_s)? else { return Ok(None) };
    let Some(user) = store.user_by_id(record.user)? else { return Ok(None) };
    let owner = LeaseOwner { user: record.user, device: record.device };
    let leased = |family| -> Result<_, StoreError> {
        // An address that another session of the device took over is no longer this one's.
        let lease = store.lease_of(owner, family)?;
        Ok(lease.filter(|lease| lease.session == id && lease.is_live(now_s)).map(|lease| lease.address))
    };
    let addresses = Addresses {
        ipv4: leased(Family::V4)?.and_then(|address| match address {
            std::net::IpAddr::V4(v4) => Some(v4),
            std::net::IpAddr::V6(_) => None,
        }),
        ipv6: leased(Family::V6)?.and_then(|address| match address {
            std::net::IpAddr::V6(v6) => Some(v6),
            std::net::IpAddr::V4(_) => None,
        }),
    };
    let usable = addresses.ipv4.is_some() || addresses.ipv6.is_some();
    Ok(usable.then_some(Stored { record, user, addresses }))
}

/// Writes all changes in one step. If that can't be done each is tried by itself, for one that fails must not take the
/// others with it. Returns the sessions whose changes are not in the store.
fn write(store: &dyn Store, changes: &[SessionChange], now_s: u64) -> HashSet<SessionId> {
    match store.change_sessions(changes, now_s) {
        Ok(done) => {
            let failed = changes.iter().zip(done).filter(|(_, done)| !done);
            let failed: HashSet<SessionId> = failed.filter_map(|(change, _)| session_of(change)).collect();
            for session in &failed {
                tracing::warn!(%session, "the user was disabled, removed or given another password meanwhile");
            }
            failed
        }
        Err(_) if changes.len() > 1 => {
            changes.iter().flat_map(|change| write(store, std::slice::from_ref(change), now_s)).collect()
        }
        Err(error) => {
            tracing::error!(%error, "the store did not take a change of sessions");
            changes.iter().filter_map(session_of).collect()
        }
    }
}

/// Whose change it is.
fn session_of(change: &SessionChange) -> Option<SessionId> {
    match change {
        SessionChange::Add(record, _) => Some(record.id),
        SessionChange::Tokens(id, ..) | SessionChange::End(id) => Some(*id),
        SessionChange::Audit(_) => None,
    }
}

fn audit_entry(ending: &Ending, now_s: u64) -> AuditEntry {
    AuditEntry {
        at_s: now_s,
        event: "session-ended".to_owned(),
        user: ending.user.to_string(),
        source: String::new(),
        detail: format!("{} ({})", ending.session, ending.code),
    }
}
