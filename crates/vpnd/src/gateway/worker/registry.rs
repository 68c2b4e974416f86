//! Sessions in the store: the control plane's writes, sent to the auth process in order.
//!
//! INVARIANT: a write that failed is reported to whoever waits for it; nothing is acknowledged on the strength of it.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use vpnd_proto::control::{Code, UserName};
use vpnd_proto::gateway::{Addresses, EndedSession, Gateway, SessionRecord};
use vpnd_proto::policy::{Names, Principal};
use vpnd_proto::rate::SessionLimits;
use vpnd_proto::session::{DeviceId, SessionId};
use vpnd_proto::time::Time;

use crate::clock::{self, now};
use crate::config::rate::RateLimits;
use crate::gateway::messages::auth::{Account, AuthReply, AuthRequest, Granted, MAX_WRITES, Write, id};
use crate::gateway::worker::auth_client::AuthClient;
use crate::gateway::worker::rates::RateTable;
use crate::privsep::requests::Gone;
use crate::revocation_list::{CertificateNumber, RevocationList};

/// A session that is over, for the audit log.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) session: SessionId,
    pub(crate) user: UserName,
    pub(crate) code: Code,
}

impl From<EndedSession> for Ending {
    fn from(EndedSession { session, user, code, .. }: EndedSession) -> Self {
        Self { session, user, code }
    }
}

/// A session granted to a login, before the control plane has it.
#[derive(Debug)]
pub(crate) struct AdmittedSession {
    pub(crate) account: Account,
    pub(crate) session: SessionId,
    pub(crate) addresses: Addresses,
    pub(crate) expires_s: u64,
}

impl From<Granted> for AdmittedSession {
    fn from(granted: Granted) -> Self {
        Self {
            account: granted.account,
            session: SessionId(granted.session.into()),
            addresses: granted.addresses.into(),
            expires_s: granted.expires_s,
        }
    }
}

/// The sessions of this gateway in its store.
pub(crate) struct Registry {
    auth: AuthClient,
    /// Policy knows users and groups by numbers, which come from here.
    pub(crate) names: Names,
    /// Rate limits by users' groups.
    rates: RateTable,
    /// Sessions that are kept, and the groups of their users.
    known: HashMap<SessionId, Box<[String]>>,
    /// The certificates that clients of sessions have shown last.
    certificates: HashMap<SessionId, CertificateNumber>,
    writes: Vec<Write>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RegistryError {
    #[error(transparent)]
    Gone(#[from] Gone),
    #[error("{0}")]
    Failed(String),
    #[error("the auth process has answered something else")]
    Unexpected,
}

impl Registry {
    pub(crate) fn new(auth: AuthClient, names: Names) -> Self {
        Self {
            auth,
            names,
            rates: RateTable::default(),
            known: HashMap::new(),
            certificates: HashMap::new(),
            writes: Vec::new(),
        }
    }

    /// The user as policy has it.
    pub(crate) fn principal(&mut self, account: &Account) -> Principal {
        self.names.principal(&account.name, account.groups.iter().map(String::as_str))
    }

    /// A user has logged in: the session that is about to begin is theirs.
    pub(crate) fn session_started(&mut self, admission: &AdmittedSession) {
        self.known.insert(admission.session, admission.account.groups.clone().into());
    }

    /// A login was refused after [`Registry::begin`]: its addresses are free again.
    pub(crate) fn abandon(&mut self, session: SessionId) {
        self.forget(session);
    }

    /// A session of an earlier run of the gateway, if the store has it and it is not known yet.
    pub(crate) async fn restore(
        &mut self,
        session: SessionId,
    ) -> Result<Option<SessionRecord>, RegistryError> {
        if self.known.contains_key(&session) {
            return Ok(None);
        }
        let stored = match self.auth.request(AuthRequest::Session(id(session))).await? {
            AuthReply::Session(Some(stored)) => stored,
            AuthReply::Session(None) => return Ok(None),
            AuthReply::Failed(reason) => return Err(RegistryError::Failed(reason.to_string())),
            _ => return Err(RegistryError::Unexpected),
        };
        self.known.insert(session, stored.account.groups.clone().into());
        Ok(Some(SessionRecord {
            id: session,
            principal: self.principal(&stored.account),
            limits: self.rates.of(&stored.account.groups),
            user: stored.account.name,
            device: DeviceId(stored.device.into()),
            addresses: stored.addresses.into(),
            deadline: deadline(stored.expires_s),
            epoch: stored.epoch,
            tokens: stored.tokens.into_tokens(),
        }))
    }

    /// A user is in other groups now: policy and rate limits of these hold for the sessions. Returns how many there are.
    pub(crate) fn regroup(&mut self, account: &Account, gateway: &mut Gateway) -> usize {
        let sessions = gateway.set_principal(&account.name, &self.principal(account));
        for session in &sessions {
            if let Some(known) = self.known.get_mut(session) {
                *known = account.groups.clone().into();
            }
        }
        self.set_limits(self.rates.limits().clone(), gateway);
        sessions.len()
    }

    /// The groups of a session's user, by which another process applies policy to it.
    pub(crate) fn groups(&self, session: SessionId) -> Box<[String]> {
        self.known.get(&session).cloned().unwrap_or_default()
    }

    /// A session of another process goes on in this one. Whom policy takes it for, and its rate limits.
    pub(crate) fn take_over(
        &mut self,
        session: SessionId,
        user: &UserName,
        groups: Box<[String]>,
    ) -> (Principal, SessionLimits) {
        let principal = self.names.principal(user, groups.iter().map(String::as_str));
        let limits = self.rates.of(&groups);
        self.known.insert(session, groups);
        (principal, limits)
    }

    /// The rate limits of a user's sessions.
    pub(crate) fn limits(&self, account: &Account) -> SessionLimits {
        self.rates.of(&account.groups)
    }

    /// These rate limits hold from now on, for all sessions of `gateway`.
    pub(crate) fn set_limits(&mut self, limits: RateLimits, gateway: &mut Gateway) {
        let groups = self.rates.set(limits);
        let limits_of = |session| self.rates.of(self.known.get(&session).map_or(&[], |groups| groups));
        gateway.set_limits(now(), &groups, limits_of);
    }

    /// Remember the session as it is now.
    pub(crate) fn persist(&mut self, record: &SessionRecord) {
        if self.known.contains_key(&record.id) {
            let tokens = (&record.tokens).into();
            self.writes.push(Write::Keep { session: id(record.id), tokens, epoch: record.epoch });
        }
    }

    /// The session's client has shown this certificate.
    pub(crate) fn shown(&mut self, session: SessionId, certificate: Option<CertificateNumber>) {
        if let Some(certificate) = certificate.filter(|_| self.known.contains_key(&session)) {
            self.certificates.insert(session, certificate);
        }
    }

    /// The certificate that the session's client has shown, for another process.
    pub(crate) fn certificate(&self, session: SessionId) -> Option<CertificateNumber> {
        self.certificates.get(&session).cloned()
    }

    /// The sessions whose certificate is among these.
    pub(crate) fn sessions_of(&self, revoked: &RevocationList) -> Vec<SessionId> {
        let named = self.certificates.iter().filter(|(_, certificate)| revoked.names(certificate));
        named.map(|(session, _)| *session).collect()
    }

    /// The session is over; its addresses are free.
    pub(crate) fn forget(&mut self, session: SessionId) {
        self.known.remove(&session);
        self.certificates.remove(&session);
        self.writes.push(Write::End(id(session)));
    }

    /// Makes all pending writes durable, in one step if it is not very much. Returns the sessions for
    /// which that failed.
    pub(crate) async fn commit(&mut self, endings: Vec<Ending>) -> HashSet<SessionId> {
        let mut writes = std::mem::take(&mut self.writes);
        writes.extend(endings.into_iter().map(|Ending { session, user, code }| Write::Ended {
            session: id(session),
            user,
            code,
        }));
        let mut failed = HashSet::new();
        for part in writes.chunks(MAX_WRITES) {
            match self.auth.request(AuthRequest::Commit(part.to_vec())).await {
                Ok(AuthReply::Committed { failed: some }) => {
                    failed.extend(some.into_iter().map(|session| SessionId(session.into())));
                }
                other => {
                    tracing::error!(answer = ?other, "sessions can't be stored");
                    failed.extend(part.iter().filter_map(Write::session));
                }
            }
        }
        failed
    }
}

/// The deadline on this process's clock.
pub(crate) fn deadline(expires_s: u64) -> Time {
    now() + Duration::from_secs(expires_s.saturating_sub(clock::steady_s()))
}
