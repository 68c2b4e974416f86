//! Requests of RADIUS servers about sessions (RFC 5176), as the idp process passes them on.
//!
//! Invariants: a request reaches sessions of users of its source alone, however it names
//! them, and those to which all that it names applies; who was disabled here stays so. It counts
//! once, and not after a later one of the same user ([`sequence`]). WireGuard devices that are
//! disconnected have to be renewed, since their clients come back by themselves.
//! Requests are done one after the other and not faster than [`INTERVAL`], whatever the idp process
//! sends.

mod sequence;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use vpnd_proto::session::{DeviceId, SessionId};

use super::login_record::LoginRecord;
use super::sources::{ExternalSource, Sources};
use crate::ending;
use crate::notices::Notices;
use sequence::{Late, Sequence, Stamp};
use vpnd_config::revocation_cause::RevocationCause;
use vpnd_config::user_name;
use vpnd_ipc::gateway::idp::{
    DynamicAction, DynamicRequest, DynamicResult, ErrorCause, NextDynamicRequest, SessionAttributes,
};
use vpnd_store::audit::AuditEntry;
use vpnd_store::{ExternalUser, Store, StoreError, User, UserId};
use vpnd_sys::clock::{steady_s, wall_s};

/// Time from one request to the next at least: each writes to the store.
const INTERVAL: Duration = Duration::from_millis(20);
/// The idp process replies when a server has asked.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);
/// Time for an idp process that has ended to be there again.
const RETRY: Duration = Duration::from_millis(500);

/// Why a request is not done.
enum NotDone {
    Because(ErrorCause),
    Store(StoreError),
}

impl From<StoreError> for NotDone {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Sessions of one user: that of a device, or all.
struct Target {
    user: User,
    device: Option<DeviceId>,
}

pub(super) struct DynamicRequests {
    store: Arc<dyn Store>,
    sources: Arc<Sources>,
    record: Arc<LoginRecord>,
    sequence: Arc<Sequence>,
}

impl DynamicRequests {
    pub(super) fn new(store: Arc<dyn Store>, sources: Arc<Sources>, record: Arc<LoginRecord>) -> Self {
        Self { store, sources, record, sequence: Arc::default() }
    }

    /// Requests count once at all gateways of this fleet from now on.
    pub(super) fn share(&self, notices: &Arc<Notices>) {
        self.sequence.join(notices);
    }

    /// Does what servers request; never returns. Does nothing if no source is configured for it.
    pub(super) async fn follow(self: Arc<Self>) {
        if self.sources.all().iter().all(|source| source.source.dynamic().is_none()) {
            return;
        }
        let mut result = None;
        loop {
            match self.sources.idp.request(NextDynamicRequest(result.take()), FOREVER).await {
                Ok(request) => {
                    let (this, number) = (Arc::clone(&self), request.number);
                    let done = tokio::task::spawn_blocking(move || this.handle(&request)).await;
                    let error = done.unwrap_or(Some(ErrorCause::Resources));
                    result = Some(DynamicResult { number, error });
                    tokio::time::sleep(INTERVAL).await;
                }
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }

    /// Does one request; why it is not done, if it is not.
    fn handle(&self, request: &DynamicRequest) -> Option<ErrorCause> {
        match self.try_handle(request) {
            Ok(()) => None,
            Err(NotDone::Because(cause)) => {
                tracing::info!(source = &*request.source, ?cause, "a request about sessions is refused");
                Some(cause)
            }
            Err(NotDone::Store(error)) => {
                tracing::error!(%error, "a request about sessions failed");
                Some(ErrorCause::Resources)
            }
        }
    }

    fn try_handle(&self, request: &DynamicRequest) -> Result<(), NotDone> {
        let mut sources = self.sources.all().iter().filter(|source| source.source.dynamic().is_some());
        let source = sources.find(|source| source.source.name == *request.source);
        let source = source.ok_or(NotDone::Because(ErrorCause::SessionNotFound))?;
        let target = self.target(source, &request.which)?;
        let (authenticator, made_s) = (request.authenticator.into(), request.made_s);
        let stamp = Stamp { authenticator, made_s, user: target.as_ref().map(|target| target.user.id) };
        // A Disconnect of one session undoes nothing newer, however late it comes.
        let is_final = matches!(request.action, DynamicAction::Disconnect) && request.which.id.is_some();
        // One that reaches no session now may reach one when it is sent again.
        if let Err(late) = self.sequence.take(stamp, wall_s())?
            && !(is_final && late == Late::Overtaken)
        {
            let (source, reason) = (&*request.source, late.reason());
            tracing::warn!(source, reason, "a request about sessions does not count");
            return Err(NotDone::Because(ErrorCause::InvalidRequest));
        }
        let target = target.ok_or(NotDone::Because(ErrorCause::SessionNotFound))?;
        let Target { user, device } = target;
        let (event, detail) = match &request.action {
            DynamicAction::Disconnect => {
                let cause = RevocationCause::Disconnected;
                ending::end(self.store.as_ref(), &user, device, cause, wall_s())?;
                ("disconnected", source.source.name.clone())
            }
            DynamicAction::Regroup(groups) => {
                let groups: Vec<_> = groups.iter().map(ToString::to_string).collect();
                let detail = format!("{}: {}", source.source.name, groups.join(","));
                let external = ExternalUser {
                    source: user.source.clone(),
                    subject: user.subject.clone(),
                    name: user.name.clone(),
                    groups,
                };
                match self.store.update_external(&external, wall_s()) {
                    Err(StoreError::Unusable { .. }) => {
                        return Err(NotDone::Because(ErrorCause::InvalidValue));
                    }
                    refreshed => refreshed.map(drop)?,
                }
                ("regrouped", detail)
            }
        };
        tracing::info!(
            user = user.name.as_str(),
            source = source.source.name,
            event,
            "a server has asked for this"
        );
        let entry = AuditEntry {
            at_s: wall_s(),
            event: event.to_owned(),
            user: user.name,
            source: String::new(),
            detail,
            by: format!("server of {}", source.source.name),
        };
        self.record.add(entry);
        Ok(())
    }

    /// The sessions to which all of `which` applies, if there are any of this source.
    fn target(
        &self,
        source: &ExternalSource,
        which: &SessionAttributes,
    ) -> Result<Option<Target>, StoreError> {
        let SessionAttributes { user, id, ipv4, ipv6 } = which;
        let mut owners = Vec::new();
        if let Some(id) = id {
            let session = self.sources.accounting.session(&source.source.name, id);
            owners.push(session.map(|session| self.owner(session)).transpose()?.flatten());
        }
        for address in ipv4.map(IpAddr::from).into_iter().chain(ipv6.map(IpAddr::from)) {
            let lease = self.store.lease_on(address)?.filter(|lease| lease.is_live(steady_s()));
            owners.push(lease.map(|lease| self.owner(lease.session)).transpose()?.flatten());
        }
        let device = match owners.first() {
            Some(first) if owners.iter().any(|owner| owner != first) => return Ok(None),
            Some(None) => return Ok(None),
            Some(owner) => *owner,
            None => None,
        };
        let found = match (user, device) {
            (Some(name), _) => {
                let Some(name) = user_name::canonical(&source.source.full_name(name)) else {
                    return Ok(None);
                };
                self.store.user(&name)?
            }
            (None, Some((id, _))) => self.store.user_by_id(id)?,
            (None, None) => None,
        };
        let is_of_source =
            |found: &User| found.source == source.source.name && device.is_none_or(|(id, _)| id == found.id);
        let Some(user) = found.filter(is_of_source) else { return Ok(None) };
        let has_session = || -> Result<bool, StoreError> {
            Ok(self.store.devices(user.id)?.iter().any(|device| device.session_since_s.is_some()))
        };
        let device = device.map(|(_, device)| device);
        if device.is_none() && !has_session()? {
            return Ok(None);
        }
        Ok(Some(Target { user, device }))
    }

    fn owner(&self, session: SessionId) -> Result<Option<(UserId, DeviceId)>, StoreError> {
        Ok(self.store.session(session, steady_s())?.map(|record| (record.user, record.device)))
    }
}

#[cfg(test)]
mod tests;
