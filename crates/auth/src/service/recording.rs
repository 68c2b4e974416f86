//! Sessions for the audit file: what the worker has asked for is recorded once it is in the store.
//!
//! INVARIANT: whose session it is and which inner addresses it has comes from the login that it was
//! granted to; the worker only says from where a client is heard, and why a session ends that is
//! over in the store.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use vpnd_proto::session::{DeviceId, SessionId};

use super::{MAX_GRANTS, Service};
use crate::portal::Portal;
use vpnd_admission::notices::lock;
use vpnd_ipc::gateway::auth::{AuditHealth, Reason, Write};
use vpnd_store::audit::recorder::Recorder;
use vpnd_store::audit::{Event, Move, SessionStart};
use vpnd_store::{SessionChange, User};

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

impl Service {
    /// Sets the recorder of sessions.
    pub(crate) fn with_audit(mut self, audit: Recorder) -> Self {
        let portal = Portal::new(
            Arc::clone(&self.store),
            Arc::clone(&self.authenticator),
            Arc::clone(&self.access),
            self.clocks,
            Some(audit.clone()),
        );
        self.portal = Arc::new(portal);
        self.audit = Some(audit);
        self
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
        let Some(audit) = &self.audit else { return };
        let at_s = (self.clocks.wall)();
        for start in starts.into_iter().filter(|start| !failed.contains(&start.session)) {
            audit.record(Event::Began(SessionStart { at_s, ..start }));
        }
        for write in writes {
            if let Write::Moved { session, outer, lane, left_out } = *write {
                let to = Move { lane, outer: outer.remote, left_out };
                audit.record(Event::Moved { session: SessionId(session.into()), at_s, to });
            }
        }
        for change in changes {
            if let SessionChange::End(session) = change
                && let reason = lock(&self.reasons).remove(session)
                && !failed.contains(session)
            {
                let reason = reason.unwrap_or("not-stated").to_owned();
                audit.record(Event::Ended { session: *session, at_s, reason });
            }
        }
    }

    /// State of the audit file; `None` if nothing is to be recorded.
    pub(super) fn audit_health(&self) -> Option<AuditHealth> {
        let audit = self.audit.as_ref().filter(|audit| audit.is_enabled())?;
        let health = audit.health();
        Some(AuditHealth { lost: health.lost, failure: health.failure.as_deref().map(Reason::cut) })
    }

    /// A session will end for this reason.
    pub(super) fn note_reason(&self, session: SessionId, reason: &'static str) {
        let mut reasons = lock(&self.reasons);
        // Those of sessions that never end are the worker's fault.
        if reasons.len() >= MAX_GRANTS {
            reasons.clear();
        }
        reasons.insert(session, reason);
    }
}
