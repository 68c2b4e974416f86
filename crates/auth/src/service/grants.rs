//! Sessions of logins that were let in, until the worker has them kept.
//!
//! INVARIANT: a grant is good once, and void [`LIFETIME_S`] after its session began: the worker
//! keeps a session at once.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use vpnd_proto::attach::Tokens;
use vpnd_proto::session::{DeviceId, SessionId};

use vpnd_admission::lease::Addresses;
use vpnd_admission::notices::lock;
use vpnd_config::factor::Factors;
use vpnd_store::audit::SessionStart;
use vpnd_store::{SessionChange, SessionRecord, UserId};

/// Grants whose sessions are not kept yet, at most.
const MAX_GRANTS: usize = 16_384;
/// Time for the worker to have a session kept, seconds.
const LIFETIME_S: u64 = 120;

/// A session that may be kept.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) user: UserId,
    pub(super) device: DeviceId,
    pub(super) generation: u64,
    pub(super) started_s: u64,
    pub(super) expires_s: u64,
    /// In the form that was checked here.
    pub(super) factors: Factors,
    pub(super) auth_time_s: u64,
    /// Sessions of the process before that end when this one is kept: they have its addresses.
    pub(super) before: Vec<SessionId>,
    /// In its fleet.
    pub(super) of_fleet: u64,
    /// Sessions that its user may have, if it counts.
    pub(super) most: Option<u64>,
    /// For the audit file. INVARIANT: nothing of it comes from the worker but the outer address.
    pub(super) start: SessionStart,
}

impl Grant {
    const fn is_void(&self, now_s: u64) -> bool {
        self.started_s.saturating_add(LIFETIME_S) <= now_s
    }

    /// The session for the store and for the audit file.
    pub(super) fn into_session(self, tokens: Tokens, epoch: u32) -> (SessionChange, SessionStart) {
        let record = SessionRecord {
            id: self.start.session,
            user: self.user,
            device: self.device,
            epoch,
            tokens,
            started_s: self.started_s,
            expires_s: self.expires_s,
            factors: self.factors,
            auth_time_s: self.auth_time_s,
            generation: self.of_fleet,
            most: self.most,
        };
        (SessionChange::Add(record, self.generation), self.start)
    }
}

/// The grants by their sessions.
#[derive(Default)]
pub(super) struct Grants(Mutex<HashMap<SessionId, Grant>>);

impl Grants {
    /// Adds a grant. `false` if too many wait for their sessions, of all users or `of_user`.
    pub(super) fn add(&self, grant: Grant, of_user: usize) -> bool {
        let mut grants = lock(&self.0);
        let is_full = |grants: &HashMap<SessionId, Grant>| {
            let under_way = grants.values().filter(|other| other.user == grant.user).count();
            grants.len() >= MAX_GRANTS || under_way >= of_user
        };
        if is_full(&grants) {
            grants.retain(|_, old| !old.is_void(grant.started_s));
        }
        !is_full(&grants) && grants.insert(grant.start.session, grant).is_none()
    }

    /// The session has these addresses.
    pub(super) fn set_addresses(&self, session: SessionId, addresses: Addresses) {
        if let Some(grant) = lock(&self.0).get_mut(&session) {
            (grant.start.ipv4, grant.start.ipv6) = (addresses.v4, addresses.v6);
        }
    }

    /// The session takes the place of these once it is kept.
    pub(super) fn set_before(&self, session: SessionId, before: Vec<SessionId>) {
        if let Some(grant) = lock(&self.0).get_mut(&session) {
            grant.before = before;
        }
    }

    /// The sessions whose place these take.
    pub(super) fn before(&self, sessions: impl Iterator<Item = SessionId>) -> Vec<SessionId> {
        let grants = lock(&self.0);
        let granted = sessions.filter_map(|session| grants.get(&session));
        granted.flat_map(|grant| grant.before.iter().copied()).collect()
    }

    /// Takes the grant of a session that is to be kept, unless it is void.
    pub(super) fn take(&self, session: SessionId, now_s: u64) -> Option<Grant> {
        let grant = lock(&self.0).remove(&session);
        grant.filter(|grant| !grant.is_void(now_s))
    }

    pub(super) fn remove(&self, session: SessionId) {
        lock(&self.0).remove(&session);
    }

    /// Removes from `sessions` those that may still be kept.
    pub(super) fn leave_out_granted(&self, sessions: &mut HashSet<SessionId>, now_s: u64) {
        let grants = lock(&self.0);
        sessions.retain(|session| grants.get(session).is_none_or(|grant| grant.is_void(now_s)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vpnd_proto::attach::TokenHash;

    const ANN: UserId = UserId([1; 16]);
    const BOB: UserId = UserId([2; 16]);

    fn session(number: u8) -> SessionId {
        SessionId([number; 16])
    }

    fn grant(number: u8, user: UserId, started_s: u64) -> Grant {
        let device = DeviceId([3; 16]);
        let start = SessionStart {
            session: session(number),
            user: "ann".to_owned(),
            source: String::new(),
            profile: String::new(),
            device,
            outer: None,
            ipv4: None,
            ipv6: None,
            at_s: 0,
            expires_s: 9_000,
        };
        Grant {
            user,
            device,
            generation: 4,
            started_s,
            expires_s: 9_000,
            factors: Factors::PASSWORD,
            auth_time_s: 7,
            before: Vec::new(),
            of_fleet: 5,
            most: Some(6),
            start,
        }
    }

    #[test]
    fn a_grant_is_good_once_and_for_its_lifetime() {
        let grants = Grants::default();
        assert!(grants.add(grant(1, ANN, 1_000), 2));
        assert!(grants.add(grant(2, ANN, 1_000), 2));
        assert!(grants.take(session(1), 1_000 + LIFETIME_S - 1).is_some());
        assert!(grants.take(session(1), 1_000).is_none(), "it was used");
        assert!(grants.take(session(2), 1_000 + LIFETIME_S).is_none(), "it is void");
        assert!(grants.take(session(2), 1_000).is_none(), "a void one is gone");
    }

    #[test]
    fn a_user_has_a_limit_that_void_grants_do_not_count_for() {
        let grants = Grants::default();
        assert!(grants.add(grant(1, ANN, 1_000), 1));
        assert!(!grants.add(grant(2, ANN, 1_000 + LIFETIME_S - 1), 1));
        assert!(grants.add(grant(3, BOB, 1_000), 1), "another user has another limit");
        assert!(grants.add(grant(4, ANN, 1_000 + LIFETIME_S), 1));
        grants.remove(session(4));
        assert!(grants.add(grant(5, ANN, 1_000 + LIFETIME_S), 1));
    }

    #[test]
    fn all_users_have_a_limit_together() {
        let grants = Grants::default();
        for number in 0..MAX_GRANTS as u128 {
            let mut one = grant(0, UserId(number.to_be_bytes()), 1_000);
            one.start.session = SessionId(number.to_be_bytes());
            lock(&grants.0).insert(one.start.session, one);
        }
        assert!(!grants.add(grant(255, BOB, 1_000), 1));
        assert!(grants.add(grant(255, BOB, 1_000 + LIFETIME_S), 1));
    }

    #[test]
    fn a_kept_session_has_what_was_granted() {
        let grants = Grants::default();
        assert!(grants.add(grant(1, ANN, 1_000), 1));
        let v4 = Some([10, 0, 0, 2].into());
        grants.set_addresses(session(1), Addresses { v4, v6: None });
        let granted = grants.take(session(1), 1_000).expect("it is good");
        let tokens = Tokens::new(TokenHash::from_bytes([8; 32]));
        let (change, start) = granted.into_session(tokens, 9);
        let SessionChange::Add(record, 4) = change else { panic!("it is a new session") };
        assert_eq!((record.id, record.user, record.epoch), (session(1), ANN, 9));
        assert_eq!((record.started_s, record.generation, record.most), (1_000, 5, Some(6)));
        assert_eq!((start.session, start.ipv4, start.ipv6), (session(1), v4, None));
    }

    #[test]
    fn sessions_of_before_are_those_of_the_grants() {
        let grants = Grants::default();
        assert!(grants.add(grant(1, ANN, 1_000), 2));
        assert!(grants.add(grant(2, ANN, 1_000), 2));
        grants.set_before(session(1), vec![session(7), session(8)]);
        grants.set_before(session(3), vec![session(9)]);
        let before = grants.before((1..=3).map(session));
        assert_eq!(before, [session(7), session(8)]);
    }

    #[test]
    fn sessions_that_may_still_be_kept_are_left_out() {
        let grants = Grants::default();
        assert!(grants.add(grant(1, ANN, 1_000), 2));
        assert!(grants.add(grant(2, ANN, 1_001), 2));
        let mut sessions: HashSet<SessionId> = (1..=3).map(session).collect();
        grants.leave_out_granted(&mut sessions, 1_000 + LIFETIME_S);
        assert_eq!(sessions, HashSet::from([session(1), session(3)]));
    }
}
