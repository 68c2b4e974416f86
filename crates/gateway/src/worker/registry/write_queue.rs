//! Changes of sessions on their way to the store, in order.
//!
//! INVARIANT: a write that failed is reported to the waiting caller; the reason for an end comes
//! before it.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use vpnd_proto::control::Code;
use vpnd_proto::gateway::{Claim, SessionRecord};
use vpnd_proto::plane::Endpoint;
use vpnd_proto::session::SessionId;
use vpnd_proto::time::Time;

use super::Ending;
use crate::worker::auth_client::AuthClient;
use crate::worker::outer_addresses::OuterAddresses;
use vpnd_ipc::gateway::auth::{
    Commit, Committed, MAX_WRITES, MissingQuery, Reason, SessionClaim, SessionQuery, StoredSession, Traffic,
    Write, id,
};
use vpnd_ipc::requests::NoReply;
use vpnd_sys::clock::now;

/// Limit for a commit, for which everything else waits; the store puts changes off long before it.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Limit for a look at a session of a fleet, for which its client waits.
pub(super) const CLAIM_TIMEOUT: Duration = Duration::from_secs(2);
/// The reason for the log when it is over.
pub(in crate::worker) const LATE: &str = "the user database does not answer in time";

/// The changes since the last commit.
pub(super) struct WriteQueue {
    auth: AuthClient,
    pub(super) writes: Vec<Write>,
    outer: OuterAddresses,
}

impl WriteQueue {
    pub(super) fn new(auth: AuthClient) -> Self {
        Self { auth, writes: Vec::new(), outer: OuterAddresses::default() }
    }

    /// The session, as the store has it; in a fleet it moves here `until` then if it is another
    /// gateway's and the claim is good. `late` is done when that takes longer than its client
    /// waits.
    pub(super) fn look_up<L: Future<Output = ()> + Send>(
        &self,
        claim: Claim,
        until: Option<Time>,
        late: L,
    ) -> impl Future<Output = Result<Option<StoredSession>, NoReply>> + Send + use<L> {
        let auth = self.auth.clone();
        async move {
            let Claim { session, token, device } = claim;
            let Some(until) = until else { return auth.request(SessionQuery(id(session))).await };
            let claim = SessionClaim { session: id(session), token, device: device.0.into(), until };
            let late_at = Instant::now() + CLAIM_TIMEOUT;
            let Ok(begun) = timeout_at(late_at, auth.begin(claim)).await else {
                return Err(NoReply::Failed(Reason::cut(LATE)));
            };
            let mut reply = pin!(begun?);
            if let Ok(reply) = timeout_at(late_at, &mut reply).await {
                return reply;
            }
            late.await;
            // It may still move here, and would be nowhere then.
            reply.await
        }
    }

    /// Whether the store does not have the session for this gateway.
    pub(super) fn is_missing(&self, session: SessionId) -> impl Future<Output = bool> + Send + use<> {
        let auth = self.auth.clone();
        async move {
            let request = auth.request(MissingQuery(vec![id(session)]));
            let answer = tokio::time::timeout(CLAIM_TIMEOUT, request).await;
            answer.is_ok_and(|answer| answer.is_ok_and(|missing| !missing.is_empty()))
        }
    }

    /// Remember the session as it is now.
    pub(super) fn keep(&mut self, record: &SessionRecord) {
        let tokens = (&record.tokens).into();
        self.writes.push(Write::Keep { session: id(record.id), tokens, epoch: record.epoch });
    }

    /// A lane of the session's client is heard from this address.
    pub(super) fn heard_at(&mut self, session: SessionId, lane: u8, outer: Endpoint) {
        self.writes.extend(self.outer.heard(now(), session, lane, outer));
    }

    /// Two devices use the configuration of the session's one.
    pub(super) fn two_devices(&mut self, session: SessionId, outer: SocketAddr) {
        self.writes.push(Write::TwoDevices(id(session), outer.ip().to_canonical()));
    }

    /// Takes addresses that had to wait, as far as there is room.
    pub(super) fn add_late_addresses(&mut self) {
        self.writes.extend(self.outer.late(now()));
    }

    /// The session is over because its device has another one; [`WriteQueue::end`] comes after
    /// this.
    pub(super) fn superseded(&mut self, session: SessionId) {
        let (code, traffic) = (Code::Superseded, Traffic::default());
        self.writes.push(Write::Ended { session: id(session), code, traffic });
    }

    /// The session is over.
    pub(super) fn end(&mut self, session: SessionId) {
        self.writes.extend(self.outer.forget(session));
        self.writes.push(Write::End(id(session)));
    }

    /// The addresses of clients are another process's to write.
    pub(super) fn forget_addresses(&mut self) {
        self.outer.clear();
    }

    /// Makes all of them durable, in one step if it is not very much. Returns the sessions for
    /// which that failed.
    pub(super) async fn commit(&mut self, endings: Vec<Ending>) -> HashSet<SessionId> {
        let reason = |Ending { session, code, traffic }| Write::Ended { session: id(session), code, traffic };
        let writes: Vec<Write> =
            endings.into_iter().map(reason).chain(std::mem::take(&mut self.writes)).collect();
        let mut failed = HashSet::new();
        for part in writes.chunks(MAX_WRITES) {
            let request = self.auth.request(Commit(part.to_vec()));
            let error = match tokio::time::timeout(COMMIT_TIMEOUT, request).await {
                Ok(Ok(Committed { failed: some })) => {
                    failed.extend(some.into_iter().map(|session| SessionId(session.into())));
                    continue;
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => {
                    format!("the auth process has not answered within {} s", COMMIT_TIMEOUT.as_secs())
                }
            };
            let sessions: HashSet<SessionId> = part.iter().filter_map(Write::session).collect();
            tracing::error!(error, sessions = sessions.len(), "sessions can't be stored");
            failed.extend(sessions);
        }
        failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::testing::{auth, logged};

    #[test]
    fn an_unanswered_commit_is_logged_with_its_number_of_sessions() {
        let text = logged(async {
            let (auth, _silent) = auth();
            let mut queue = WriteQueue::new(auth);
            let sessions = [1, 2].map(|number| SessionId([number; 16]));
            sessions.iter().for_each(|session| queue.superseded(*session));
            sessions.iter().for_each(|session| queue.end(*session));
            assert_eq!(queue.commit(Vec::new()).await, sessions.into());
        });
        let first = text.lines().next().unwrap();
        assert!(first.contains("the auth process has not answered within 5 s"), "{text}");
        assert!(first.contains("sessions=2"), "{text}");
    }
}
