//! The sessions of a gateway in memory, for while its database is away.
//!
//! INVARIANT: a session that was revoked is not here once the gateway has learnt of that. Nothing
//! here gives a right that the database did not give.

use std::collections::HashMap;

use parking_lot::Mutex;
use vpnd_proto::session::SessionId;

use crate::{Revocation, SessionChange, SessionRecord};

/// Sessions that are over are removed when there are this many more.
const SWEEP: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Mirror {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    sessions: HashMap<SessionId, SessionRecord>,
    /// How often sessions were removed.
    removals: u64,
}

/// A moment before a query.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before(u64);

impl Mirror {
    pub(super) fn fill(&self, sessions: Vec<SessionRecord>) {
        let mut known = self.known.lock();
        known.sessions = sessions.into_iter().map(|session| (session.id, session)).collect();
        known.removals += 1;
    }

    pub(super) fn session(&self, id: SessionId, now_s: u64) -> Option<SessionRecord> {
        self.known.lock().sessions.get(&id).filter(|session| session.expires_s > now_s).cloned()
    }

    /// To be taken before a session is read.
    pub(super) fn before(&self) -> Before {
        Before(self.known.lock().removals)
    }

    /// Takes over what the database had about a session at some time after `before`: nothing newer
    /// is forgotten for it.
    pub(super) fn found(&self, before: Before, id: SessionId, session: Option<&SessionRecord>) {
        let mut known = self.known.lock();
        let is_older = |session: &SessionRecord| {
            known.removals != before.0
                || known.sessions.get(&id).is_some_and(|newer| newer.epoch > session.epoch)
        };
        match session {
            Some(session) if is_older(session) => {}
            Some(session) => drop(known.sessions.insert(id, session.clone())),
            None => known.remove(id),
        }
    }

    /// Follows changes that were made.
    pub(super) fn changed(&self, changes: &[SessionChange], done: &[bool], now_s: u64) {
        let mut known = self.known.lock();
        for (change, _) in changes.iter().zip(done).filter(|(_, done)| **done) {
            match change {
                SessionChange::Add(session, _) => drop(known.sessions.insert(session.id, session.clone())),
                SessionChange::Tokens(id, tokens, epoch) => {
                    if let Some(session) = known.sessions.get_mut(id) {
                        (session.tokens, session.epoch) = (*tokens, *epoch);
                    }
                }
                SessionChange::End(id) => known.remove(*id),
            }
        }
        if known.sessions.len() % SWEEP == SWEEP - 1 {
            known.sessions.retain(|_, session| session.expires_s > now_s);
        }
    }

    /// Forgets what was revoked.
    pub(super) fn revoked(&self, revocations: &[Revocation]) {
        if revocations.is_empty() {
            return;
        }
        let mut known = self.known.lock();
        known.removals += 1;
        known.sessions.retain(|_, session| {
            !revocations.iter().any(|revocation| revocation.ends(session.user, session.device))
        });
    }
}

impl Known {
    fn remove(&mut self, id: SessionId) {
        self.sessions.remove(&id);
        self.removals += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::session_of;
    use crate::{RevocationCause, UserId};

    #[test]
    fn a_revoked_session_is_forgotten_and_others_stay() {
        let mirror = Mirror::default();
        let sessions: Vec<_> =
            [(1, 1), (1, 2), (2, 3)].map(|(user, id)| session_of(UserId([user; 16]), id)).into();
        mirror.fill(sessions.clone());
        let remembered = || sessions.iter().map(|s| mirror.session(s.id, 1500).is_some()).collect::<Vec<_>>();
        let revocation = |device, cause| Revocation {
            seq: 1,
            user: UserId([1; 16]),
            name: "ann".to_owned(),
            cause,
            device,
        };
        mirror.revoked(&[revocation(None, RevocationCause::Groups)]);
        assert_eq!(remembered(), [true; 3]);
        mirror.revoked(&[revocation(Some(sessions[0].device), RevocationCause::Device)]);
        assert_eq!(remembered(), [false, true, true]);
        mirror.revoked(&[revocation(None, RevocationCause::Disabled)]);
        assert_eq!(remembered(), [false, false, true]);
        assert!(mirror.session(sessions[2].id, sessions[2].expires_s).is_none(), "it is over");
    }

    #[test]
    fn a_stale_read_replaces_no_newer_entry() {
        let mirror = Mirror::default();
        let session = session_of(UserId([1; 16]), 1);
        mirror.found(mirror.before(), session.id, Some(&session));
        let before = mirror.before();
        let newer = SessionChange::Tokens(session.id, session.tokens, session.epoch + 1);
        mirror.changed(&[newer], &[true], 1500);
        mirror.found(before, session.id, Some(&session));
        assert_eq!(mirror.session(session.id, 1500).unwrap().epoch, session.epoch + 1);
        let revocation = Revocation {
            seq: 1,
            user: session.user,
            name: "ann".to_owned(),
            cause: RevocationCause::Disabled,
            device: None,
        };
        mirror.revoked(&[revocation]);
        mirror.found(before, session.id, Some(&session));
        assert_eq!(mirror.session(session.id, 1500), None);
    }
}
