//! The sessions of a gateway in memory, for while its database is away.
//!
//! INVARIANT: a session that was revoked is not here once the gateway has learnt of that. Nothing
//! here gives a right that the database did not give.

use std::collections::HashMap;

use parking_lot::Mutex;
use vpnd_proto::session::SessionId;

use crate::{Revocation, RevocationCause, SessionChange, SessionRecord};

/// Sessions that are over are removed when there are so many more.
const SWEEP: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Mirror {
    sessions: Mutex<HashMap<SessionId, SessionRecord>>,
}

impl Mirror {
    pub(super) fn fill(&self, sessions: Vec<SessionRecord>) {
        *self.sessions.lock() = sessions.into_iter().map(|session| (session.id, session)).collect();
    }

    pub(super) fn session(&self, id: SessionId, now_s: u64) -> Option<SessionRecord> {
        self.sessions.lock().get(&id).filter(|session| session.expires_s > now_s).cloned()
    }

    /// What the database has about a session.
    pub(super) fn found(&self, id: SessionId, session: Option<&SessionRecord>) {
        match session {
            Some(session) => drop(self.sessions.lock().insert(id, session.clone())),
            None => drop(self.sessions.lock().remove(&id)),
        }
    }

    /// Goes along with changes that were made.
    pub(super) fn changed(&self, changes: &[SessionChange], done: &[bool], now_s: u64) {
        let mut sessions = self.sessions.lock();
        for (change, _) in changes.iter().zip(done).filter(|(_, done)| **done) {
            match change {
                SessionChange::Add(session, _) => drop(sessions.insert(session.id, session.clone())),
                SessionChange::Tokens(id, tokens, epoch) => {
                    if let Some(session) = sessions.get_mut(id) {
                        (session.tokens, session.epoch) = (*tokens, *epoch);
                    }
                }
                SessionChange::End(id) => drop(sessions.remove(id)),
            }
        }
        if sessions.len() % SWEEP == SWEEP - 1 {
            sessions.retain(|_, session| session.expires_s > now_s);
        }
    }

    /// Forgets what was revoked.
    pub(super) fn revoked(&self, revocations: &[Revocation]) {
        if revocations.is_empty() {
            return;
        }
        self.sessions.lock().retain(|_, session| {
            !revocations.iter().any(|revocation| {
                revocation.user == session.user
                    && revocation.cause != RevocationCause::Groups
                    && revocation.device.is_none_or(|device| device == session.device)
            })
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UserId;
    use crate::conformance::session_of;

    #[test]
    fn a_revoked_session_is_forgotten_and_others_stay() {
        let mirror = Mirror::default();
        let sessions: Vec<_> =
            [(1, 1), (1, 2), (2, 3)].map(|(user, id)| session_of(UserId([user; 16]), id)).into();
        mirror.fill(sessions.clone());
        let there = || sessions.iter().map(|s| mirror.session(s.id, 1500).is_some()).collect::<Vec<_>>();
        let revocation = |device, cause| Revocation {
            seq: 1,
            user: UserId([1; 16]),
            name: "ann".to_owned(),
            cause,
            device,
        };
        mirror.revoked(&[revocation(None, RevocationCause::Groups)]);
        assert_eq!(there(), [true; 3]);
        mirror.revoked(&[revocation(Some(sessions[0].device), RevocationCause::Device)]);
        assert_eq!(there(), [false, true, true]);
        mirror.revoked(&[revocation(None, RevocationCause::Disabled)]);
        assert_eq!(there(), [false, false, true]);
        assert!(mirror.session(sessions[2].id, sessions[2].expires_s).is_none(), "it is over");
    }
}
