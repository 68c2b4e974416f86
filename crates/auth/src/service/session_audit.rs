//! Sessions in the audit file: what the worker has asked for is recorded once it is in the store.
//!
//! INVARIANT: whose session it is and which inner addresses it has comes from the login that it was
//! granted to; the worker only says from where a client is heard, and why a session ends that is
//! over in the store.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Mutex;

use vpnd_proto::session::{DeviceId, SessionId};

use vpnd_admission::notices::lock;
use vpnd_ipc::gateway::auth::{AuditHealth, Reason, Write};
use vpnd_store::audit::recorder::Recorder;
use vpnd_store::audit::{AuditEntry, Event, Move, SessionStart};
use vpnd_store::{SessionChange, User};
use vpnd_sys::clock::Clocks;

/// Reasons of sessions that are not over in the store yet, at most.
const MAX_REASONS: usize = 16_384;

/// A session that may begin, for the user who was let in. Addresses and the time are added later.
pub(super) fn start(
    session: SessionId,
    user: &User,
    profile: Option<&str>,
    (device, outer): (DeviceId, Option<IpAddr>),
    expires_s: u64,
) -> SessionStart {
    SessionStart {
        session,
        user: user.name.clone(),
        source: user.source.clone(),
        profile: profile.unwrap_or_default().to_owned(),
        device,
        outer,
        ipv4: None,
        ipv6: None,
        at_s: 0,
        expires_s,
    }
}

/// Records sessions, if there is a recorder.
pub(super) struct SessionAudit {
    recorder: Option<Recorder>,
    clocks: Clocks,
    /// Why sessions end, until they are over in the store.
    reasons: Mutex<HashMap<SessionId, &'static str>>,
}

impl SessionAudit {
    pub(super) fn new(recorder: Option<Recorder>, clocks: Clocks) -> Self {
        Self { recorder, clocks, reasons: Mutex::default() }
    }

    /// A session will end for this reason.
    pub(super) fn note_reason(&self, session: SessionId, reason: &'static str) {
        let mut reasons = lock(&self.reasons);
        // Those of sessions that never end are the worker's fault.
        if reasons.len() >= MAX_REASONS {
            reasons.clear();
        }
        reasons.insert(session, reason);
    }

    /// Records what is in the store now: beginnings first, for nothing is added to a session that
    /// has none, and ends last.
    pub(super) fn record(
        &self,
        writes: &[Write],
        changes: &[SessionChange],
        starts: Vec<SessionStart>,
        failed: &HashSet<SessionId>,
    ) {
        let Some(recorder) = &self.recorder else { return };
        let at_s = (self.clocks.wall)();
        for start in starts.into_iter().filter(|start| !failed.contains(&start.session)) {
            recorder.record(Event::Began(SessionStart { at_s, ..start }));
        }
        for write in writes {
            if let Write::Moved { session, outer, lane, left_out } = *write {
                let to = Move { lane, outer: outer.remote, left_out };
                recorder.record(Event::Moved { session: SessionId(session.into()), at_s, to });
            }
        }
        for change in changes {
            if let SessionChange::End(session) = change
                && let reason = lock(&self.reasons).remove(session)
                && !failed.contains(session)
            {
                let reason = reason.unwrap_or("not-stated").to_owned();
                recorder.record(Event::Ended { session: *session, at_s, reason });
            }
        }
    }

    /// Records that a session which began at another gateway goes on here.
    pub(super) fn moved_here(&self, start: SessionStart) {
        if let Some(recorder) = &self.recorder {
            recorder.record(Event::Began(SessionStart { at_s: (self.clocks.wall)(), ..start }));
        }
    }

    /// Records that two clients use the configuration of a user's WireGuard device, one of them at
    /// this address.
    pub(super) fn in_two_places(&self, user: String, device: &str, outer: IpAddr) {
        let Some(recorder) = &self.recorder else { return };
        recorder.record(Event::Entry(AuditEntry {
            at_s: (self.clocks.wall)(),
            event: "device-in-two-places".to_owned(),
            user,
            source: outer.to_string(),
            detail: format!("WireGuard device {device}: two use its configuration"),
            by: String::new(),
        }));
    }

    /// State of the audit file; `None` if nothing is to be recorded.
    pub(super) fn health(&self) -> Option<AuditHealth> {
        let recorder = self.recorder.as_ref().filter(|recorder| recorder.is_enabled())?;
        let health = recorder.health();
        Some(AuditHealth { lost: health.lost, failure: health.failure.as_deref().map(Reason::cut) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vpnd_store::audit::testing::Recorded;

    const ONE: SessionId = SessionId([1; 16]);
    const OTHER: SessionId = SessionId([2; 16]);

    fn audit(recorded: &Recorded) -> SessionAudit {
        SessionAudit::new(Some(recorded.recorder()), Clocks { wall: || 70, steady: || 7 })
    }

    /// Records the ends of these sessions; `failed` are not in the store.
    fn end(audit: &SessionAudit, sessions: &[SessionId], failed: &[SessionId]) {
        let changes: Vec<_> = sessions.iter().copied().map(SessionChange::End).collect();
        audit.record(&[], &changes, Vec::new(), &failed.iter().copied().collect());
    }

    /// The ends in the audit file, in order.
    fn ends(recorded: &Recorded) -> Vec<(SessionId, String)> {
        let end = |event| match event {
            Event::Ended { session, at_s: 70, reason } => (session, reason),
            other => panic!("{other:?}"),
        };
        recorded.events().into_iter().map(end).collect()
    }

    fn ended(session: SessionId, reason: &str) -> (SessionId, String) {
        (session, reason.to_owned())
    }

    #[test]
    fn an_end_has_the_reason_that_was_noted_once() {
        let recorded = Recorded::default();
        let audit = audit(&recorded);
        audit.note_reason(ONE, "idle");
        end(&audit, &[ONE, OTHER], &[]);
        end(&audit, &[ONE], &[]);
        let expected = [ended(ONE, "idle"), ended(OTHER, "not-stated"), ended(ONE, "not-stated")];
        assert_eq!(ends(&recorded), expected);
    }

    #[test]
    fn an_end_that_is_not_in_the_store_is_not_recorded() {
        let recorded = Recorded::default();
        let audit = audit(&recorded);
        audit.note_reason(ONE, "idle");
        end(&audit, &[ONE, OTHER], &[ONE]);
        assert_eq!(ends(&recorded), [ended(OTHER, "not-stated")]);
    }

    #[test]
    fn reasons_are_limited() {
        let recorded = Recorded::default();
        let audit = audit(&recorded);
        audit.note_reason(ONE, "idle");
        for number in 0..MAX_REASONS as u128 {
            audit.note_reason(SessionId((number + (1 << 64)).to_be_bytes()), "token");
        }
        assert!(lock(&audit.reasons).len() <= MAX_REASONS);
        end(&audit, &[ONE], &[]);
        assert_eq!(ends(&recorded), [ended(ONE, "not-stated")]);
    }

    #[test]
    fn nothing_is_recorded_without_a_recorder() {
        let audit = SessionAudit::new(None, Clocks::default());
        assert!(audit.health().is_none());
        audit.note_reason(ONE, "idle");
        end(&audit, &[ONE], &[]);
    }
}
