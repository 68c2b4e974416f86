//! Clients that attach. A claim of a session that is not known here is looked up in the store,
//! while the control plane goes on.
//!
//! Invariants: what was found counts only if nothing has changed for sessions meanwhile: a
//! revocation that is carried out finds no session that is on its way here. A session moves here
//! only until its client is refused, and goes elsewhere; one that has moved here stays, with its
//! client or not.

use tokio::sync::mpsc;
use vpnd_crypto::EpochSecret;
use vpnd_proto::control::{Code, Offer};
use vpnd_proto::gateway::{Claim, Gateway};
use vpnd_proto::session::ConnectionId;

use super::announce::Outboxes;
use super::fleet::MOVED;
use super::{CoreRequest, ToEnd};
use crate::worker::registry::{LATE, Registry};
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
    /// The changes until its claim was looked up last.
    as_of: Changes,
}

impl Attaching {
    pub(crate) fn new(
        connection: ConnectionId,
        claim: Claim,
        certificate: Option<CertificateNumber>,
        offer: Offer,
        secret: EpochSecret,
    ) -> Self {
        Self { connection, claim, certificate, offer, secret, attempts: 0, as_of: Changes::default() }
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
struct Changes(u64);

impl Changes {
    fn note(&mut self, request: &CoreRequest) {
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

/// The clients that attach while sessions change.
pub(super) struct Attaches {
    /// The task gets the answers to lookups here.
    requests: mpsc::WeakSender<CoreRequest>,
    changes: Changes,
}

impl Attaches {
    pub(super) fn new(requests: mpsc::WeakSender<CoreRequest>) -> Self {
        Self { requests, changes: Changes::default() }
    }

    /// Notes a request before it is carried out.
    pub(super) fn note(&mut self, request: &CoreRequest) {
        self.changes.note(request);
    }

    /// Attaches the client, or has its session looked up first. While the gateway `is_draining`,
    /// no session comes here that another gateway of the fleet may have.
    pub(super) fn attach(
        &self,
        attaching: Box<Attaching>,
        is_draining: bool,
        gateway: &mut Gateway,
        registry: &mut Registry,
        outboxes: &mut Outboxes,
    ) {
        let (connection, claim) = (attaching.connection, &attaching.claim);
        if outboxes.refuse_revoked(connection, attaching.certificate.as_ref(), registry) {
            return;
        }
        let (is_known, is_in_fleet) = (registry.member(claim.session).is_some(), registry.hosts().is_some());
        if is_draining && is_in_fleet && !is_known {
            // It stays where it is.
            return outboxes.refuse(connection, Code::Drain, Code::Drain.explanation());
        }
        if !is_known {
            let late = tell(self.requests.clone(), CoreRequest::Unanswered(connection));
            let stored = registry.look_up(claim, outboxes.is_open(connection), late);
            self.look(
                attaching,
                async move { Found::Stored(stored.await.map(|stored| stored.map(Box::new))) },
            );
        } else if is_in_fleet && !gateway.accepts(now(), claim) {
            let is_missing = registry.is_missing(claim.session);
            self.look(attaching, async move { Found::HasLeft(is_missing.await) });
        } else {
            grant(*attaching, gateway, registry, outboxes);
        }
    }

    /// Comes back to it with what was found.
    fn look(&self, mut attaching: Box<Attaching>, look: impl Future<Output = Found> + Send + 'static) {
        attaching.attempts = attaching.attempts.saturating_add(1);
        attaching.as_of = self.changes;
        let core = self.requests.clone();
        tokio::spawn(async move {
            let found = look.await;
            tell(core, CoreRequest::LookedUp { attaching, found }).await;
        });
    }

    /// Goes on with an attach whose claim was looked up. Returns the session to end, if it is
    /// another gateway's.
    pub(super) fn looked_up(
        &self,
        attaching: Box<Attaching>,
        found: Found,
        is_draining: bool,
        gateway: &mut Gateway,
        registry: &mut Registry,
        outboxes: &mut Outboxes,
    ) -> Option<ToEnd> {
        let (connection, session) = (attaching.connection, attaching.claim.session);
        match found {
            Found::Stored(found) if attaching.as_of != self.changes => {
                if attaching.attempts >= ATTEMPTS {
                    outboxes.refuse_for_now(connection);
                    if !matches!(found, Ok(Some(_))) {
                        return None;
                    }
                }
                self.attach(attaching, is_draining, gateway, registry, outboxes);
                return None;
            }
            Found::Stored(Ok(Some(stored))) if registry.member(session).is_none() => {
                let record = registry.restore(session, *stored);
                let addresses = record.addresses;
                if !gateway.restore(now(), record) {
                    registry.supersede(session, addresses);
                }
            }
            Found::Stored(Err(error)) if outboxes.is_open(connection) => {
                tracing::error!(%error, "a session could not be looked up in the store");
                // It may be good, and go on later.
                if registry.hosts().is_some() {
                    outboxes.refuse_for_now(connection);
                    return None;
                }
            }
            Found::HasLeft(true) if !gateway.accepts(now(), &attaching.claim) => {
                outboxes.refuse_for_now(connection);
                let is_here = registry.member(session).is_some();
                return is_here.then(|| ToEnd::session(session, Code::Superseded, MOVED));
            }
            Found::Stored(_) | Found::HasLeft(_) => {}
        }
        grant(*attaching, gateway, registry, outboxes);
        None
    }
}

/// A refusal is among the effects.
fn grant(attaching: Attaching, gateway: &mut Gateway, registry: &mut Registry, outboxes: &Outboxes) {
    // A session has moved here even if its client has gone, which may have new keys by now.
    if !outboxes.is_open(attaching.connection) {
        return;
    }
    let Attaching { connection, claim, certificate, offer, secret, .. } = attaching;
    if gateway.attach(now(), connection, &claim, &offer, secret).is_ok() {
        registry.shown(claim.session, certificate);
    }
}

/// Refuses a client that waits for the store, and that may go on at another gateway now.
pub(super) fn unanswered(connection: ConnectionId, outboxes: &mut Outboxes) {
    if outboxes.is_open(connection) {
        tracing::error!(error = LATE, "a session could not be looked up in the store");
        outboxes.refuse_for_now(connection);
    }
}

/// Sends a request to the control plane, unless it has stopped.
async fn tell(core: mpsc::WeakSender<CoreRequest>, request: CoreRequest) {
    if let Some(core) = core.upgrade() {
        let _ = core.send(request).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;
    use vpnd_ipc::channel::Channel;
    use vpnd_ipc::gateway::auth::{
        Account, AuthRequest, Leased, SessionClaim, SourceName, TakenAway, TokenHashes,
    };
    use vpnd_ipc::request::{Numbered, encoded};
    use vpnd_proto::attach::{Token, Tokens};
    use vpnd_proto::control::{Message, UserName};
    use vpnd_proto::session::{DeviceId, SessionId};
    use vpnd_proto::time::Time;

    use super::*;
    use crate::worker::core::{Core, Outgoing};
    use crate::worker::testing;

    const SESSION: SessionId = SessionId([1; 16]);

    /// A client claims the session. Returns its outbox.
    async fn attach(core: &Core) -> mpsc::Receiver<Outgoing> {
        let claim = Claim { session: SESSION, token: Token::from_bytes([5; 32]), device: DeviceId([1; 16]) };
        let attaching =
            Attaching::new(ConnectionId(1), claim, None, testing::offer(), EpochSecret::new([1; 32]));
        let (outbox, told) = mpsc::channel(8);
        core.send(CoreRequest::Attach { attaching: Box::new(attaching), outbox }).await.unwrap();
        told
    }

    async fn claimed(auth: &Channel) -> (u64, SessionClaim) {
        let asked = tokio::time::timeout(Duration::from_secs(10), auth.receive()).await;
        let Numbered { number, content } = asked.expect("it asks").unwrap().unwrap().message;
        let AuthRequest::Claim(claim) = content else { panic!("{content:?}") };
        (number, claim)
    }

    /// Answers that the session is this gateway's.
    async fn answer(auth: &Channel, number: u64) {
        let name = UserName::new("ann").unwrap();
        let stored = StoredSession {
            account: Account { name, groups: Vec::new(), source: SourceName::cut("local") },
            device: [1; 16].into(),
            addresses: Leased { ipv4: Some([10, 86, 0, 2].into()), ipv6: None },
            epoch: 1,
            tokens: TokenHashes::from(&Tokens::new(Token::from_bytes([5; 32]).hash())),
            expires_s: u64::MAX,
            started_s: 1,
            factors: Default::default(),
            generation: 7,
        };
        auth.send(&Numbered { number, content: encoded(&Ok(Some(stored))) }, &[]).await.unwrap();
    }

    async fn is_refused(outbox: &mut mpsc::Receiver<Outgoing>) -> bool {
        let Some(Outgoing::Message(message)) = outbox.recv().await else { return false };
        matches!(*message, Message::Refused(_))
    }

    /// Waits until the session is here without its client.
    async fn is_here_and_away(core: &Core) {
        let until = now() + Duration::from_secs(10);
        while core.reported().await.unwrap().absences != [(SESSION, true)] {
            assert!(now() < until, "it is nowhere");
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_session_may_move_back_after_its_client_was_redirected() {
        let (core, auth) = testing::core();
        let mut outbox = attach(&core).await;
        let (number, claim) = claimed(&auth).await;
        assert!(is_refused(&mut outbox).await);
        assert!(now() >= claim.until, "not before that");
        answer(&auth, number).await;
        is_here_and_away(&core).await;
    }

    #[tokio::test]
    async fn a_session_that_has_moved_here_while_much_has_changed_is_here() {
        let (core, auth) = testing::core();
        let mut outbox = attach(&core).await;
        for _ in 0..ATTEMPTS {
            let (number, claim) = claimed(&auth).await;
            assert!(now() < claim.until);
            let kick = ToEnd::session(SessionId([9; 16]), Code::Kicked, "");
            core.end(vec![kick]).await.unwrap();
            answer(&auth, number).await;
        }
        assert!(is_refused(&mut outbox).await);
        let (number, claim) = claimed(&auth).await;
        assert_eq!(claim.until, Time::ZERO, "it moves no session that its client has taken elsewhere");
        answer(&auth, number).await;
        is_here_and_away(&core).await;
    }

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
