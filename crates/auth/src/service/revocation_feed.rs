//! Revocations on their way from the store to the worker.
//!
//! INVARIANT: the worker has carried out what it was given before it asks for more. One that asks
//! in a history that the store has left gets none: the sessions that the store lacks end.

use std::sync::{Arc, Mutex};

use minicbor::bytes::ByteArray;
use vpnd_proto::control::UserName;
use vpnd_proto::session::DeviceId;
use vpnd_proto::time::Time;

use vpnd_admission::access::Access;
use vpnd_admission::notices::lock;
use vpnd_config::revocation_cause::RevocationCause;
use vpnd_ipc::gateway::auth::{MAX_GROUP_BYTES, MAX_REVOCATIONS, RevocationQuery, Revocations, Revoked};
use vpnd_store::{Revocation, Store, StoreError, UserId};
use vpnd_sys::clock::{Clocks, now};

/// Reads revocations for the worker.
pub(super) struct RevocationFeed {
    store: Arc<dyn Store>,
    access: Arc<Access>,
    clocks: Clocks,
    /// The revocations that the worker has now.
    given: Mutex<Vec<Revocation>>,
}

impl RevocationFeed {
    pub(super) fn new(store: Arc<dyn Store>, access: Arc<Access>, clocks: Clocks) -> Self {
        Self { store, access, clocks, given: Mutex::default() }
    }

    /// Answers the worker. `has_read` takes the revocations that are in the answer, and when the
    /// read of them began.
    pub(super) fn read(
        &self,
        query: &RevocationQuery,
        is_in_fleet: bool,
        has_read: impl FnOnce(&[Revocation], Time),
    ) -> Result<Revocations, StoreError> {
        // The worker has carried out the last ones.
        lock(&self.given).clear();
        // The end of a user's time is a date in a calendar, so it goes by the clock that people
        // set.
        let expired = self.store.end_expired((self.clocks.wall)())?;
        if expired > 0 {
            tracing::info!(users = expired, "accounts have expired");
        }
        let (history, begun) = (self.store.history(), now());
        let last = self.store.last_revocation()?;
        let all = Revocations { seen: last, found: Vec::new(), history, went_back: false };
        let Some(seen) = query.seen else { return Ok(all) };
        // Others have carried out, and forgotten, what came while this gateway was without the
        // database.
        let has_missed = is_in_fleet && seen < self.store.last_forgotten()?;
        // The database gives numbers again then, to revocations that no gateway has carried out.
        if has_missed || last < seen || query.history.is_some_and(|before| before != history) {
            tracing::warn!(
                seen,
                last,
                "the user database was away for long or restored, or another server has taken over: sessions that it \
                 lacks end"
            );
            self.store.begin_again()?;
            return Ok(Revocations { went_back: true, ..all });
        }
        self.store.forget_revocations(seen);
        let (read, found) = self.after(seen)?;
        has_read(&read, begun);
        let seen = read.last().map_or(seen, |revocation| revocation.seq);
        *lock(&self.given) = read;
        Ok(Revocations { seen, found, ..all })
    }

    /// Whether a revocation that the worker has now ends the sessions of this device.
    pub(super) fn ends(&self, user: UserId, device: DeviceId) -> bool {
        lock(&self.given).iter().any(|revocation| revocation.ends(user, device))
    }

    /// The revocations after this number that fit into one answer, also in the worker's form.
    fn after(&self, seen: u64) -> Result<(Vec<Revocation>, Vec<Revoked>), StoreError> {
        let (mut found, mut group_bytes) = (Vec::new(), 0);
        let mut read = self.store.revocations_since(seen)?;
        read.truncate(MAX_REVOCATIONS);
        for revocation in &read {
            let revoked = self.revoked(revocation)?;
            group_bytes += revoked.groups.iter().flatten().map(|group| group.len() + 8).sum::<usize>();
            found.push(revoked);
            if group_bytes >= MAX_GROUP_BYTES {
                break;
            }
        }
        read.truncate(found.len());
        Ok((read, found))
    }

    fn revoked(&self, revocation: &Revocation) -> Result<Revoked, StoreError> {
        // The groups as they are now: of several changes the last counts. A user who is gone has a
        // revocation for that.
        let user = match revocation.cause {
            RevocationCause::Groups => self.store.user_by_id(revocation.user)?,
            _ => None,
        };
        // Gateways don't know who is a machine: to them its session would fit a profile for people.
        let (cause, groups) = match user {
            Some(user) if user.is_machine() && self.access.of(&user).is_none() => {
                (RevocationCause::NoProfile, None)
            }
            user => (revocation.cause, user.map(|user| user.groups)),
        };
        Ok(Revoked {
            name: UserName::cut(&revocation.name),
            cause,
            device: revocation.device.map(|device| ByteArray::from(device.0)),
            groups,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::service::tests::access;
    use vpnd_config::AccessProfiles;
    use vpnd_store::sqlite::Sqlite;
    use vpnd_store::{NewUser, PasswordHash};

    const DEVICE: DeviceId = DeviceId([3; 16]);

    /// One on a store with a user.
    fn feed(directory: &Path) -> (RevocationFeed, UserId) {
        let store = Sqlite::open_or_create(&directory.join("vpnd.db")).unwrap();
        let access = access(AccessProfiles::of_everybody());
        let feed = RevocationFeed::new(Arc::new(store), access, Clocks::default());
        let user = NewUser::new("ann", PasswordHash::new("x".to_owned()));
        let user = feed.store.add_user(&user, 1).unwrap();
        (feed, user)
    }

    fn after(seen: u64) -> RevocationQuery {
        RevocationQuery { seen: Some(seen), history: None }
    }

    fn last(feed: &RevocationFeed) -> Revocations {
        let query = RevocationQuery { seen: None, history: None };
        feed.read(&query, false, |_, _| panic!("none are read")).unwrap()
    }

    #[test]
    fn a_revocation_is_the_workers_until_its_next_query() {
        let directory = tempfile::tempdir().unwrap();
        let (feed, ann) = feed(directory.path());
        let seen = last(&feed).seen;
        feed.store.set_enabled("ann", false, 2).unwrap();
        assert!(!feed.ends(ann, DEVICE), "the worker does not have it");
        let mut read = Vec::new();
        let reply = feed.read(&after(seen), false, |found, _| read = found.to_vec()).unwrap();
        assert_eq!((reply.found.len(), read.len()), (1, 1));
        assert_eq!((reply.seen, reply.went_back), (read[0].seq, false));
        assert!(feed.ends(ann, DEVICE));
        assert!(!feed.ends(UserId([9; 16]), DEVICE), "another user");
        let next = feed.read(&after(reply.seen), false, |found, _| assert!(found.is_empty())).unwrap();
        assert!(next.found.is_empty());
        assert!(!feed.ends(ann, DEVICE), "it was carried out");
    }

    #[test]
    fn a_query_of_another_history_gets_no_revocation() {
        let directory = tempfile::tempdir().unwrap();
        let (feed, ann) = feed(directory.path());
        let before = last(&feed);
        feed.store.set_enabled("ann", false, 2).unwrap();
        let seen = last(&feed).seen;
        let restored = RevocationQuery { seen: Some(before.seen), history: Some(before.history ^ 1) };
        for query in [after(seen + 1), restored] {
            let reply = feed.read(&query, false, |_, _| panic!("none are read")).unwrap();
            assert!(reply.went_back && reply.found.is_empty());
            assert_eq!(reply.seen, seen);
            assert!(!feed.ends(ann, DEVICE));
        }
    }
}
