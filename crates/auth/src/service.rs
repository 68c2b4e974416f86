//! The auth process's end: it answers the network worker from the store.
//!
//! Invariants: the worker is not trusted. Its requests are bounded in length and number; it gets no
//! hash, no secret and no user's id; a session is kept only for the user who was let in for it,
//! once.

mod answers;
mod commit;
mod fleet;
mod grants;
mod leftover;
mod orders;
mod revocation_feed;
mod session_audit;
mod stored;
mod wireguard;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use minicbor::bytes::ByteArray;
use tokio::sync::Semaphore;
use vpnd_proto::control::{Code, UserName};
use vpnd_proto::session::{DeviceId, SessionId};

use commit::write;
use grants::{Grant, Grants};
pub(crate) use orders::Courier;
use revocation_feed::RevocationFeed;
use session_audit::SessionAudit;

use crate::portal::Portal;
use vpnd_admission::access::Access;
use vpnd_admission::accounting::Accounting;
use vpnd_admission::authenticator::{self, Authenticated, Authenticator};
use vpnd_admission::lease::{self, Acquired};
use vpnd_admission::wireguard::WireGuard;
use vpnd_config::access_profile::WALLED;
use vpnd_ipc::channel::{Channel, ChannelError};
use vpnd_ipc::gateway::auth::{
    Account, AuthRequest, AuthStatus, Committed, Granted, Leased, LoginReply, LoginRequest, MAX_WRITES,
    ProfileName, Reason, RevocationQuery, Revocations, SessionTraffic, SourceName, Write, id,
};
use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_ipc::request;
use vpnd_store::audit::SessionStart;
use vpnd_store::audit::recorder::Recorder;
use vpnd_store::password::Password;
use vpnd_store::{LeaseOwner, SessionChange, Store, StoreError, User};
use vpnd_sys::clock::Clocks;

/// Requests under way besides those that wait for a password check.
const OTHER_REQUESTS: usize = 64;

/// Answers the worker.
pub(crate) struct Service {
    store: Arc<dyn Store>,
    authenticator: Arc<Authenticator>,
    access: Arc<Access>,
    portal: Arc<Portal>,
    grants: Grants,
    permits: Arc<Semaphore>,
    clocks: Clocks,
    audit: SessionAudit,
    revocations: RevocationFeed,
    /// Sessions of the process before whose clients have not attached yet, and their devices.
    absent: Mutex<leftover::Absent>,
    /// `None` if it is not enabled.
    wireguard: Option<Arc<WireGuard>>,
    /// `None` unless other gateways may share the store.
    fleet: Option<fleet::Member>,
}

impl Service {
    /// `logins` is how many logins may be under way.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        authenticator: Authenticator,
        access: Arc<Access>,
        logins: usize,
        clocks: Clocks,
    ) -> Self {
        let authenticator = Arc::new(authenticator);
        let for_portal = (Arc::clone(&store), Arc::clone(&authenticator), Arc::clone(&access));
        let portal = Arc::new(Portal::new(for_portal.0, for_portal.1, for_portal.2, clocks, None));
        let revocations = RevocationFeed::new(Arc::clone(&store), Arc::clone(&access), clocks);
        Self {
            store,
            authenticator,
            access,
            portal,
            grants: Grants::default(),
            permits: Arc::new(Semaphore::new(logins + OTHER_REQUESTS)),
            clocks,
            audit: SessionAudit::new(None, clocks),
            revocations,
            absent: Mutex::default(),
            wireguard: None,
            fleet: None,
        }
    }

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
        self.audit = SessionAudit::new(Some(audit), self.clocks);
        self
    }

    /// Logs how many lines about refused logins were left out since the last call.
    pub(crate) fn report_log(&self) {
        self.authenticator.report_log();
        self.portal.report();
    }

    /// Checks users with sessions again, and does what servers request for these; never returns.
    pub(crate) async fn follow_sources(self: Arc<Self>) {
        let portal = Arc::downgrade(&self.portal);
        let visitors = move || portal.upgrade().map_or_else(Vec::new, |portal| portal.visitors());
        self.authenticator.follow_visitors(Box::new(visitors));
        tokio::join!(self.authenticator.recheck(), self.authenticator.follow_servers());
    }

    /// Answers until the worker is gone.
    ///
    /// # Errors
    /// If the worker breaks the rules of the channel.
    pub(crate) async fn run(self: Arc<Self>, channel: Channel) -> Result<(), ChannelError> {
        let permits = Arc::clone(&self.permits);
        request::serve::<AuthRequest, _>(channel, self, permits).await
    }

    /// Leases addresses for the user who was just let in, and notes that their session may be kept.
    fn admit(
        &self,
        user: &Authenticated,
        device: DeviceId,
        outer: Option<IpAddr>,
        is_walled: bool,
    ) -> Result<LoginReply, Reason> {
        let refused = |refusal: Refusal| Ok(LoginReply::Refused(refusal.into()));
        // The profiles may be others than those by which the login was let in.
        let (factors, now_s) = (user.factors, (self.clocks.wall)());
        let auth_time_s = user.asked_at_s(now_s);
        let profile = match self.access.admit_login(user, factors, auth_time_s, now_s) {
            Ok(profile) => profile,
            // To a password alone nothing shows that it was right, as for a login that is checked
            // now.
            Err(_) if !factors.has_second() => return refused(Refusal::Credentials),
            Err(why) => return refused(why.into()),
        };
        let (session, started_s) = (SessionId(rand::random()), (self.clocks.steady)());
        let lifetime = profile.session_lifetime.filter(|_| !is_walled);
        let expires_s = latest_end_s(started_s, user.limits.lifetime(lifetime));
        let name = if is_walled { Some(WALLED) } else { profile.name.as_deref() };
        let start = session_audit::start(session, user, name, (device, outer), expires_s);
        let owner = LeaseOwner { user: user.id, device };
        let most = (!is_walled).then_some(profile.max_sessions_per_user as u64);
        let begun = match self.begun(owner, most, started_s) {
            Ok(begun) => begun,
            Err(error) => return lease::LeaseError::from(error).reply(),
        };
        let grant = Grant {
            user: user.id,
            device,
            generation: user.generation,
            started_s,
            expires_s,
            factors,
            auth_time_s,
            before: Vec::new(),
            of_fleet: begun.generation,
            most,
            start,
        };
        if !self.grants.add(grant, profile.max_sessions_per_user) {
            return refused(Refusal::Busy);
        }
        let wanted = lease::Wanted { owner, addresses: user.addresses };
        let until_s = self.lease_end_s(expires_s);
        let leased = lease::acquire(profile.pools(), &*self.store, wanted, session, started_s, until_s);
        let account = account(user)?;
        match leased {
            Ok(Acquired { addresses: leased, are_own }) => {
                self.grants.set_addresses(session, leased);
                self.accounting().granted(session, user, device, leased);
                Ok(LoginReply::Granted(Granted {
                    account,
                    session: id(session),
                    addresses: Leased { ipv4: leased.v4, ipv6: leased.v6 },
                    started_s,
                    expires_s,
                    factors,
                    profile: name.map(ProfileName::cut),
                    own_addresses: are_own,
                    idle_timeout_s: user.limits.idle_s,
                    generation: begun.generation,
                    elsewhere: begun.elsewhere,
                }))
            }
            Err(error) => {
                self.grants.remove(session);
                error.reply()
            }
        }
    }

    /// Does all writes, in one step if that is possible.
    fn commit(&self, mut writes: Vec<Write>) -> Result<Committed, Reason> {
        if writes.len() > MAX_WRITES {
            return Err(Reason::cut("too many writes at once"));
        }
        let now_s = (self.clocks.steady)();
        let not_kept = self.note_devices(&writes, now_s);
        writes.extend(self.ends(self.replaced_by(&writes), Code::Token));
        let mut starts = Vec::new();
        let changes: Vec<_> =
            writes.iter().filter_map(|write| self.change(write.clone(), now_s, &mut starts)).collect();
        let failed = write(self.store.as_ref(), &changes, now_s);
        self.audit.record(&writes, &changes, starts, &failed);
        // A session that has begun by these writes has to be known before its end.
        let (ends, others): (Vec<_>, Vec<_>) =
            writes.iter().partition(|write| matches!(write, Write::Ended { .. }));
        for write in others.into_iter().chain(ends) {
            self.account_for(write, &failed);
        }
        let failed: HashSet<SessionId> = failed.into_iter().chain(not_kept).collect();
        Ok(Committed { failed: failed.into_iter().map(id).collect() })
    }

    /// Translates a write for the store. Only a granted session becomes a new one there, and is
    /// added to `starts`.
    fn change(&self, write: Write, now_s: u64, starts: &mut Vec<SessionStart>) -> Option<SessionChange> {
        Some(match write {
            Write::Keep { session, tokens, epoch } => {
                let (id, tokens) = (SessionId(session.into()), tokens.into_tokens());
                // The user may be disabled by an order that the store does not have.
                let is_held = |grant: &Grant| self.store.kicks().holds(&grant.start.user).unwrap_or(true);
                match self.grants.take(id, now_s).filter(|grant| !is_held(grant)) {
                    Some(grant) => {
                        if let Some(outer) = grant.start.outer {
                            self.portal.heard().began(id, grant.user, grant.device, outer);
                        }
                        let (change, start) = grant.into_session(tokens, epoch);
                        starts.push(start);
                        change
                    }
                    None => SessionChange::Tokens(id, tokens, epoch),
                }
            }
            Write::End(session) => {
                let session = SessionId(session.into());
                self.grants.remove(session);
                self.portal.heard().ended(session);
                SessionChange::End(session)
            }
            Write::Ended { session, code, .. } => {
                let session = SessionId(session.into());
                self.audit.note_reason(session, code.name());
                // A revocation, as of a device, ends no visit.
                if code == Code::Kicked
                    && let Ok(Some((user, device))) = self.owner_of(session, now_s)
                    && !self.revocations.ends(user, device)
                {
                    self.portal.kicked(user);
                }
                return None;
            }
            Write::Moved { session, outer, .. } => {
                self.portal.heard().moved(SessionId(session.into()), outer.remote.ip());
                return None;
            }
            Write::TwoDevices(session, _) => {
                self.portal.heard().in_two_places(SessionId(session.into()));
                return None;
            }
        })
    }

    /// The beginnings and ends of sessions that are accounted for.
    fn account_for(&self, write: &Write, failed: &HashSet<SessionId>) {
        let session_id = |session: &ByteArray<16>| SessionId((*session).into());
        match write {
            Write::Keep { session, .. } if !failed.contains(&session_id(session)) => {
                self.accounting().kept(session_id(session));
            }
            Write::Keep { session, .. } | Write::End(session) => {
                self.accounting().abandoned(session_id(session))
            }
            Write::Ended { session, code, traffic } => {
                self.accounting().ended(session_id(session), *code, *traffic);
            }
            Write::Moved { .. } | Write::TwoDevices(..) => {}
        }
    }

    /// Takes the traffic of sessions, and says of which it is due.
    fn account(&self, used: Vec<SessionTraffic>) -> Vec<ByteArray<16>> {
        for SessionTraffic { session, traffic } in used.into_iter().take(MAX_WRITES) {
            self.accounting().has_used(SessionId(session.into()), traffic);
        }
        self.accounting().due().into_iter().map(id).collect()
    }

    /// The answers to the portal.
    pub(crate) fn portal(&self) -> &Arc<Portal> {
        &self.portal
    }

    fn accounting(&self) -> &Accounting {
        self.authenticator.accounting()
    }

    fn status(&self) -> Result<AuthStatus, StoreError> {
        let pools = lease::usage(&self.access.pools(), self.store.as_ref(), (self.clocks.steady)())?;
        Ok(AuthStatus {
            pools,
            sources: self.authenticator.source_health(),
            audit: self.audit.health(),
            portal: self.portal.health(),
            portal_refusals: self.portal.refusals(),
        })
    }

    fn revocations(&self, query: &RevocationQuery) -> Result<Revocations, StoreError> {
        let reply = self.revocations.read(query, self.fleet.is_some(), |read, begun| {
            if let Some(courier) = self.courier() {
                courier.has_read(read, begun);
            }
        })?;
        if reply.went_back {
            self.forget_peers();
        }
        Ok(reply)
    }
}

fn credentials(login: LoginRequest) -> authenticator::Login {
    authenticator::Login {
        user: login.user.to_string(),
        password: Password::new(login.password.expose().to_owned()),
        code: login.code.map(|code| Password::new(code.expose().to_owned())),
        certificate: login.certificate.map(Into::into),
        source: login.source,
        entrance: authenticator::Entrance::Tunnel,
        device: DeviceId(login.device.into()),
    }
}

/// When a session ends that began then.
fn latest_end_s(started_s: u64, lifetime: Option<Duration>) -> u64 {
    // No limit is stored as a time in the far future.
    started_s.saturating_add(lifetime.map_or(u64::from(u32::MAX), |lifetime| lifetime.as_secs()))
}

/// The part of a user's record that the worker may have.
fn account(user: &User) -> Result<Account, Reason> {
    let name = UserName::new(user.name.as_str());
    let name = name.map_err(|error| Reason::cut(&format!("the name of a user can't be used: {error}")))?;
    Ok(Account { name, groups: user.groups.clone(), source: SourceName::cut(&user.source) })
}

#[cfg(test)]
mod tests;
