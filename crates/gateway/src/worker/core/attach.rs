//! Clients that attach. A claim of a session that is not known here is looked up in the store, while
//! the control plane goes on.
//!
//! INVARIANT: what was found counts only if nothing has changed for sessions meanwhile: a revocation
//! that is carried out finds no session that is on its way here.

use vpnd_crypto::EpochSecret;
use vpnd_proto::control::{Code, Offer};
use vpnd_proto::gateway::Claim;
use vpnd_proto::session::ConnectionId;

use super::fleet::MOVED;
use super::{CoreRequest, CoreTask, REVOKED, ToEnd};
use vpnd_ipc::gateway::auth::StoredSession;
use vpnd_ipc::requests::NoReply;
use vpnd_pki::revocation_list::CertificateNumber;
use vpnd_sys::clock::now;

/// Looks at the store for one claim, while things change.
const ATTEMPTS: u8 = 4;

/// A connection that claims a session, and has proved its device.
pub(crate) struct Attaching {
    pub(crate) connection: ConnectionId,
    pub(crate) claim: Claim,
    pub(crate) certificate: Option<CertificateNumber>,
    pub(crate) offer: Offer,
    pub(crate) secret: EpochSecret,
    attempts: u8,
}

impl Attaching {
    pub(crate) fn new(
        connection: ConnectionId,
        claim: Claim,
        certificate: Option<CertificateNumber>,
        offer: Offer,
        secret: EpochSecret,
    ) -> Self {
        Self { connection, claim, certificate, offer, secret, attempts: 0 }
    }
}

/// The store's answer about a claim.
pub(crate) enum Found {
    /// The session was not known here.
    Stored(Result<Option<Box<StoredSession>>, NoReply>),
    /// It was, and the claim was not good: whether it is another gateway's by now.
    HasLeft(bool),
}

/// Counts what may change who has a session, and by which rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes(u64);

impl Changes {
    /// Notes a request before it is carried out.
    pub(super) fn note(&mut self, request: &CoreRequest) {
        let changes = match request {
            CoreRequest::End { .. }
            | CoreRequest::EndBegun { .. }
            | CoreRequest::Regroup { .. }
            | CoreRequest::Revoke { .. }
            | CoreRequest::Settings { .. } => true,
            CoreRequest::Leave { sessions, .. } => !sessions.is_empty(),
            _ => false,
        };
        self.0 += u64::from(changes);
    }
}

impl CoreTask {
    /// Attaches the client, or has its session looked up first.
    pub(super) fn attach(&mut self, attaching: Box<Attaching>) {
        let (connection, claim) = (attaching.connection, &attaching.claim);
        if self.is_revoked(connection, attaching.certificate.as_ref()) {
            return;
        }
        if self.is_closed_to(claim.session) {
            // It stays where it is.
            return self.outboxes.refuse(connection, Code::Drain, Code::Drain.explanation());
        }
        if self.registry.member(claim.session).is_none() {
            let stored = self.registry.look_up(claim);
            self.look(
                attaching,
                async move { Found::Stored(stored.await.map(|stored| stored.map(Box::new))) },
            );
        } else if self.registry.hosts().is_some() && !self.gateway.accepts(now(), claim) {
            let is_missing = self.registry.is_missing(claim.session);
            self.look(attaching, async move { Found::HasLeft(is_missing.await) });
        } else {
            self.grant(*attaching);
        }
    }

    /// Comes back to it with what was found.
    fn look(&mut self, mut attaching: Box<Attaching>, look: impl Future<Output = Found> + Send + 'static) {
        attaching.attempts += 1;
        let (core, as_of) = (self.requests.clone(), self.changes);
        tokio::spawn(async move {
            let found = look.await;
            if let Some(core) = core.upgrade() {
                // It may have stopped meanwhile.
                let _ = core.send(CoreRequest::LookedUp { attaching, found, as_of }).await;
            }
        });
    }

    /// Goes on with an attach whose claim was looked up.
    pub(super) fn looked_up(&mut self, attaching: Box<Attaching>, found: Found, as_of: Changes) {
        let (connection, session) = (attaching.connection, attaching.claim.session);
        match found {
            Found::Stored(_) if as_of != self.changes => {
                if attaching.attempts < ATTEMPTS {
                    return self.attach(attaching);
                }
                return self.outboxes.refuse_for_now(connection);
            }
            Found::Stored(Ok(Some(stored))) if self.registry.member(session).is_none() => {
                let record = self.registry.restore(session, *stored);
                let addresses = record.addresses;
                if !self.gateway.restore(now(), record) {
                    self.registry.supersede(session, addresses);
                }
            }
            Found::Stored(Err(error)) => {
                tracing::error!(%error, "a session could not be looked up in the store");
                // It may be good, and go on later.
                if self.registry.hosts().is_some() {
                    return self.outboxes.refuse_for_now(connection);
                }
            }
            Found::HasLeft(true) if !self.gateway.accepts(now(), &attaching.claim) => {
                if self.registry.member(session).is_some() {
                    self.end_with_batch(ToEnd::session(session, Code::Superseded, MOVED));
                }
                return self.outboxes.refuse_for_now(connection);
            }
            Found::Stored(Ok(_)) | Found::HasLeft(_) => {}
        }
        // A session has moved here even if its client has gone.
        if self.outboxes.is_open(connection) {
            self.grant(*attaching);
        }
    }

    /// A refusal is among the effects.
    fn grant(&mut self, attaching: Attaching) {
        let Attaching { connection, claim, certificate, offer, secret, .. } = attaching;
        if self.gateway.attach(now(), connection, &claim, &offer, secret).is_ok() {
            self.registry.shown(claim.session, certificate);
        }
    }

    /// Refuses a connection that has shown a certificate which was revoked meanwhile.
    pub(super) fn is_revoked(
        &mut self,
        connection: ConnectionId,
        certificate: Option<&CertificateNumber>,
    ) -> bool {
        let revoked = certificate.is_some_and(|certificate| self.revoked.names(certificate));
        if revoked {
            self.outboxes.refuse(connection, Code::Certificate, REVOKED);
        }
        revoked
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use vpnd_ipc::gateway::auth::TakenAway;

    use super::*;

    /// Whether the request counts as a change.
    fn is_change(request: &CoreRequest) -> bool {
        let mut changes = Changes::default();
        changes.note(request);
        changes != Changes::default()
    }

    #[test]
    fn what_takes_rights_away_counts_as_a_change_for_a_session_that_is_looked_up() {
        assert!(is_change(&CoreRequest::End { which: Vec::new(), reply: oneshot::channel().0 }));
        assert!(is_change(&CoreRequest::Regroup { users: Vec::new(), reply: oneshot::channel().0 }));
        let leave = |sessions| CoreRequest::Leave { sessions, reply: oneshot::channel().0 };
        assert!(is_change(&leave(vec![TakenAway { session: [1; 16].into(), generation: 7 }])));
        // It is asked several times a second, and a session would never be found.
        assert!(!is_change(&leave(Vec::new())));
        assert!(!is_change(&CoreRequest::Status(oneshot::channel().0)));
        assert!(!is_change(&CoreRequest::Reported(oneshot::channel().0)));
    }
}
