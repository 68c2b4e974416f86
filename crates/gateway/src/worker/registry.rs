//! Sessions in the store: the control plane's writes, sent to the auth process in order.
//!
//! INVARIANT: a write that failed is reported to the waiting caller; nothing is acknowledged on
//! the strength of it.

mod certificates;
mod rules;
mod write_queue;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use minicbor::{Decode, Encode};
use vpnd_proto::control::{Code, UserName};
use vpnd_proto::gateway::{Addresses, Authenticated, Claim, EndedSession, Gateway, SessionRecord};
use vpnd_proto::plane::Endpoint;
use vpnd_proto::policy::{PolicyError, Principal};
use vpnd_proto::rate::SessionLimits;
use vpnd_proto::session::{DeviceId, SessionId};
use vpnd_proto::time::Time;

use crate::worker::access::Access;
use crate::worker::auth_client::AuthClient;
use crate::worker::hosts::Hosts;
use crate::worker::relayed::Relayed;
use crate::worker::releases::Releases;
use certificates::Certificates;
use rules::Rules;
use vpnd_config::access_profile::Who;
use vpnd_config::factor::Factors;
use vpnd_config::rate::RateLimits;
use vpnd_config::{ServerConfig, WireGuardProfile};
use vpnd_ipc::gateway::auth::{Account, Granted, SourceName, StoredSession, Traffic};
use vpnd_ipc::requests::NoReply;
use vpnd_pki::revocation_list::{CertificateNumber, RevocationList};
use vpnd_sys::clock::now;
pub(super) use write_queue::LATE;
use write_queue::{CLAIM_TIMEOUT, WriteQueue};

/// Text of a refusal of a revoked certificate.
pub(super) const REVOKED: &str = "your certificate was revoked by the authority that signed it";

/// A session that is over, for the audit file.
#[derive(Debug)]
pub struct Ending {
    pub session: SessionId,
    pub code: Code,
    pub traffic: Traffic,
}

impl From<EndedSession> for Ending {
    fn from(EndedSession { session, code, activity, .. }: EndedSession) -> Self {
        Self { session, code, traffic: activity.into() }
    }
}

/// A session granted to a login, before the control plane has it.
#[derive(Debug)]
pub struct AdmittedSession {
    pub account: Account,
    pub session: SessionId,
    pub addresses: Addresses,
    pub span: Span,
    pub factors: Factors,
    /// Whether the device had the addresses before, and no other device since.
    pub own_addresses: bool,
    pub idle_timeout: Option<Duration>,
    /// Whether it reaches nothing but the portal.
    pub is_walled: bool,
    /// In a fleet, that of its beginning; else 0.
    pub generation: u64,
    /// Sessions of the user at other gateways.
    pub elsewhere: usize,
}

impl From<Granted> for AdmittedSession {
    fn from(granted: Granted) -> Self {
        Self {
            account: granted.account,
            session: SessionId(granted.session.into()),
            addresses: granted.addresses.into(),
            span: Span { started_s: granted.started_s, expires_s: granted.expires_s },
            factors: granted.factors,
            own_addresses: granted.own_addresses,
            idle_timeout: granted.idle_timeout_s.map(|idle_s| Duration::from_secs(idle_s.into())),
            is_walled: false,
            generation: granted.generation,
            elsewhere: usize::try_from(granted.elsewhere).unwrap_or(usize::MAX / 2),
        }
    }
}

/// The sessions of this gateway in its store.
pub struct Registry {
    rules: Rules,
    writes: WriteQueue,
    /// Sessions that are kept, and their users.
    known: HashMap<SessionId, Member>,
    certificates: Certificates,
    /// The sources whose sessions are accounted for.
    accounted: BTreeSet<String>,
    releases: Releases,
    relayed: Relayed,
    /// The addresses that others learn of, in a fleet.
    hosts: Option<Hosts>,
}

/// The user of a session, as far as access goes by it, and when the session was granted.
#[derive(Clone, Debug)]
pub struct Member {
    pub user: UserName,
    pub source: SourceName,
    pub groups: Box<[String]>,
    pub addresses: Addresses,
    /// The factors by which the user has logged in, as auth has checked them.
    pub factors: Factors,
    pub span: Span,
    /// Whether it reaches nothing but the portal.
    pub is_walled: bool,
    /// In a fleet, that of its last move; else 0.
    pub generation: u64,
}

/// When a session began, and the latest time of its end: seconds of the steady clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Span {
    #[n(0)]
    pub started_s: u64,
    #[n(1)]
    pub expires_s: u64,
}

impl Span {
    /// When the session ends in a profile whose sessions last this long. A profile never makes it
    /// longer than was granted.
    fn end_s(self, lifetime: Option<Duration>) -> u64 {
        let end_s = lifetime.map(|lifetime| self.started_s.saturating_add(lifetime.as_secs()));
        end_s.unwrap_or(u64::MAX).min(self.expires_s)
    }
}

impl Member {
    fn new(account: Account, addresses: Addresses, factors: Factors, span: Span) -> Self {
        let Account { name: user, groups, source } = account;
        let groups = groups.into();
        Self { user, source, groups, addresses, factors, span, is_walled: false, generation: 0 }
    }
}

/// Reason why a session can't go on under the settings in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfit {
    pub session: SessionId,
    pub code: Code,
    pub text: &'static str,
}

impl Registry {
    /// Without sessions, with the access profiles of this configuration.
    ///
    /// # Errors
    /// If rules make no sense.
    pub fn new(auth: AuthClient, config: &ServerConfig) -> Result<Self, PolicyError> {
        let accounted = config.sources.iter().filter(|source| source.accounting().is_some());
        Ok(Self {
            rules: Rules::new(config)?,
            writes: WriteQueue::new(auth),
            known: HashMap::new(),
            certificates: Certificates::default(),
            accounted: accounted.map(|source| source.name.clone()).collect(),
            releases: Releases::default(),
            relayed: Relayed::default(),
            hosts: config.fleet.as_ref().map(|_| Hosts::default()),
        })
    }

    /// Sets who releases the addresses of ended sessions.
    pub fn releasing(self, releases: Releases) -> Self {
        Self { releases, ..self }
    }

    /// Sets which certificates are revoked.
    pub fn revoking(mut self, revoked: RevocationList) -> Self {
        self.certificates.revoke(revoked);
        self
    }

    /// Sets the relays of some clients' datagrams.
    pub fn relayed(self, relayed: &Relayed) -> Self {
        Self { relayed: relayed.clone(), ..self }
    }

    /// The addresses that others learn of, in a fleet.
    pub(super) fn hosts(&self) -> Option<&Hosts> {
        self.hosts.as_ref()
    }

    /// The clients whose datagrams are relayed.
    pub(super) fn relays(&self) -> &Relayed {
        &self.relayed
    }

    /// The access profiles in force.
    pub fn access(&self) -> &Access {
        self.rules.access()
    }

    /// A user has logged in on `device`, or a device of theirs was let in: the session that is
    /// about to begin is theirs. Returns it as the core needs it.
    pub fn authenticated(&mut self, admission: &AdmittedSession, device: DeviceId) -> Authenticated {
        let AdmittedSession { account, addresses, factors, span, is_walled, generation, .. } = admission;
        let member = Member::new(account.clone(), *addresses, *factors, *span);
        let member = Member { is_walled: *is_walled, generation: *generation, ..member };
        if !admission.own_addresses {
            // Whatever the kernel knows of them is of a holder before, who may have left while no
            // gateway ran.
            self.releases.add(member.addresses.iter().collect());
        }
        let deadline = self.rules.deadline(&member);
        let (principal, limits) = self.add(admission.session, member);
        self.announce(admission.session);
        Authenticated {
            session: admission.session,
            user: account.name.clone(),
            principal,
            limits,
            device,
            addresses: *addresses,
            deadline,
            idle_timeout: admission.idle_timeout,
            elsewhere: admission.elsewhere,
        }
    }

    /// The largest inner packet of a session whose client is a stock WireGuard client.
    pub fn wireguard_mtu(&self, session: SessionId) -> u16 {
        self.wireguard_profile(session).mtu
    }

    /// Whether the access profile of the session's user permits stock WireGuard clients.
    pub fn permits_wireguard(&self, session: SessionId) -> bool {
        self.wireguard_profile(session).allowed
    }

    fn wireguard_profile(&self, session: SessionId) -> WireGuardProfile {
        let profile = self.known.get(&session).and_then(|member| self.access().profile_of(member.who()));
        profile.map(|profile| profile.wireguard).unwrap_or_default()
    }

    fn add(&mut self, session: SessionId, member: Member) -> (Principal, SessionLimits) {
        let (principal, limits) = (self.rules.principal(&member), self.rules.limits(Some(&member)));
        self.known.insert(session, member);
        (principal, limits)
    }

    /// Announces a session's addresses, where the gateway is one of a fleet.
    fn announce(&self, session: SessionId) {
        if let (Some(hosts), Some(member)) = (&self.hosts, self.known.get(&session)) {
            hosts.announce(member.addresses, member.generation);
        }
    }

    /// These access profiles hold from now on, for all sessions of `gateway`.
    ///
    /// # Errors
    /// If rules make no sense; then nothing has changed.
    pub fn set_access(&mut self, config: &ServerConfig, gateway: &mut Gateway) -> Result<(), PolicyError> {
        self.rules.set_access(config, gateway, |session| self.known.get(&session))
    }

    /// The sessions that can't go on under the settings in force, or with their certificates.
    pub fn unfit(&self) -> Vec<Unfit> {
        let unfit = |(session, member): (&SessionId, &Member)| {
            let (code, text) = self.rules.misfit(member)?;
            Some(Unfit { session: *session, code, text })
        };
        let revoked = self.certificates.revoked().map(|session| Unfit {
            session,
            code: Code::Certificate,
            text: REVOKED,
        });
        self.known.iter().filter_map(unfit).chain(revoked).collect()
    }

    /// A login was refused after [`Registry::begin`]: its addresses are free again.
    pub fn abandon(&mut self, session: SessionId) {
        self.forget(session);
    }

    /// Looks a claim up that is of no session known here: one of an earlier run of the gateway, or
    /// of another one of its fleet, which then moves here if its client `is_there`. `late` is done
    /// when that takes longer than the client waits.
    pub fn look_up<L: Future<Output = ()> + Send>(
        &self,
        claim: &Claim,
        is_there: bool,
        late: L,
    ) -> impl Future<Output = Result<Option<StoredSession>, NoReply>> + Send + use<L> {
        let until = if is_there { now() + CLAIM_TIMEOUT } else { Time::ZERO };
        self.writes.look_up(claim.clone(), self.hosts.as_ref().map(|_| until), late)
    }

    /// A session that was looked up is here from now on. Its addresses are announced once its
    /// client is heard: until then another gateway may carry its packets.
    pub fn restore(&mut self, session: SessionId, stored: StoredSession) -> SessionRecord {
        let user = stored.account.name.clone();
        let span = Span { started_s: stored.started_s, expires_s: stored.expires_s };
        let addresses = stored.addresses.into();
        let member = Member::new(stored.account, addresses, stored.factors, span);
        let member = Member { generation: stored.generation, ..member };
        let deadline = self.rules.deadline(&member);
        let (principal, limits) = self.add(session, member);
        SessionRecord {
            id: session,
            principal,
            limits,
            user,
            device: DeviceId(stored.device.into()),
            addresses,
            deadline,
            // It is not stored.
            idle_timeout: None,
            epoch: stored.epoch,
            tokens: stored.tokens.into_tokens(),
        }
    }

    /// Whether the store does not have the session for this gateway.
    pub fn is_missing(&self, session: SessionId) -> impl Future<Output = bool> + Send + use<> {
        self.writes.is_missing(session)
    }

    /// Users are in other groups now: profile, policy, rate limits and lifetime of these hold for
    /// the sessions. Returns how many there are. One call for thousands of users looks at each
    /// session once.
    pub fn regroup(&mut self, users: Vec<(UserName, Vec<String>)>, gateway: &mut Gateway) -> usize {
        let users: BTreeMap<UserName, Vec<String>> = users.into_iter().collect();
        let mut principals = Vec::new();
        for (session, member) in &mut self.known {
            let Some(groups) = users.get(&member.user) else { continue };
            member.groups = groups.as_slice().into();
            principals.push((*session, self.rules.principal(member)));
        }
        let count = principals.len();
        gateway.set_principals(principals);
        self.set_limits(self.rules.rate_limits(), gateway);
        self.set_deadlines(gateway);
        count
    }

    /// The user of a session, by which another process applies policy to it.
    pub fn member(&self, session: SessionId) -> Option<&Member> {
        self.known.get(&session)
    }

    /// Whether the traffic of this session is accounted for.
    pub fn is_accounted(&self, session: SessionId) -> bool {
        self.known.get(&session).is_some_and(|member| self.accounted.contains(&*member.source))
    }

    /// A session of another process goes on in this one. Whom policy takes it for, and its rate
    /// limits.
    pub fn take_over(&mut self, session: SessionId, member: Member) -> (Principal, SessionLimits) {
        let rules = self.add(session, member);
        self.announce(session);
        rules
    }

    /// These rate limits, and those of the access profiles, hold from now on, for all sessions of
    /// `gateway`.
    pub fn set_limits(&mut self, limits: RateLimits, gateway: &mut Gateway) {
        let groups = self.rules.set_limits(limits);
        gateway.set_limits(now(), &groups, |session| self.rules.limits(self.known.get(&session)));
    }

    /// The lifetimes of the access profiles hold from now on, for all sessions of `gateway`.
    pub fn set_deadlines(&self, gateway: &mut Gateway) {
        gateway.set_deadlines(|session| self.known.get(&session).map(|member| self.rules.deadline(member)));
    }

    /// Remember the session as it is now.
    pub fn persist(&mut self, record: &SessionRecord) {
        if self.known.contains_key(&record.id) {
            self.writes.keep(record);
        }
    }

    /// The session's client has shown this certificate.
    pub fn shown(&mut self, session: SessionId, certificate: Option<CertificateNumber>) {
        if let Some(certificate) = certificate.filter(|_| self.known.contains_key(&session)) {
            self.certificates.show(session, certificate);
        }
    }

    /// A lane of the session's client is heard from this address: if it is another one, it is
    /// written with the next changes.
    pub fn heard_at(&mut self, session: SessionId, lane: u8, outer: Endpoint) {
        if self.known.contains_key(&session) {
            let remote = self.relayed.client(outer.remote);
            // A relayed client can't be reached from the address that the relay uses.
            let local = outer.local.filter(|_| remote == outer.remote);
            self.announce(session);
            self.writes.heard_at(session, lane, Endpoint { remote, local });
        }
    }

    /// Two devices use the configuration of the session's one, which is written with the next
    /// changes.
    pub fn two_devices(&mut self, session: SessionId, outer: SocketAddr) {
        if self.known.contains_key(&session) {
            self.writes.two_devices(session, self.relayed.client(outer));
        }
    }

    /// Addresses that had to wait are written with the next changes, as far as there is room.
    pub fn note_late_addresses(&mut self) {
        self.writes.add_late_addresses();
    }

    /// The certificate that the session's client has shown, for another process.
    pub fn certificate(&self, session: SessionId) -> Option<CertificateNumber> {
        self.certificates.shown(session)
    }

    /// These certificates are revoked now.
    pub fn revoke(&mut self, revoked: RevocationList) {
        self.certificates.revoke(revoked);
    }

    /// Whether the certificate was revoked.
    pub fn is_revoked(&self, certificate: &CertificateNumber) -> bool {
        self.certificates.is_revoked(certificate)
    }

    /// The session is over; its addresses are free.
    pub fn forget(&mut self, session: SessionId) {
        let member = self.known.remove(&session);
        if let (Some(member), Some(hosts)) = (member, &self.hosts) {
            hosts.withdraw(member.addresses, member.generation);
        }
        self.certificates.forget(session);
        self.writes.end(session);
    }

    /// A session of the store that can't go on, because its device has another one, is over.
    pub fn supersede(&mut self, session: SessionId, addresses: Addresses) {
        self.writes.superseded(session);
        self.forget(session);
        self.release(addresses.iter().collect());
    }

    /// Sessions with these addresses are over, unless another one of the same device has them by
    /// now: its connections go on.
    pub fn release(&self, mut over: BTreeSet<IpAddr>) {
        if over.is_empty() {
            return;
        }
        for address in self.known.values().flat_map(|member| member.addresses.iter()) {
            over.remove(&address);
        }
        self.releases.add(over);
    }

    /// Whether the addresses of the session, if it is there, have nothing left of sessions before.
    pub fn is_released(&self, session: SessionId) -> bool {
        self.known.get(&session).is_none_or(|member| self.releases.are_released(member.addresses.iter()))
    }

    /// The addresses of sessions that are over.
    pub fn releases(&self) -> &Releases {
        &self.releases
    }

    /// The sessions are in the store only, and an attach looks them up there.
    pub fn release_all(&mut self) {
        self.known.clear();
        self.certificates.forget_all();
        self.hosts.iter().for_each(Hosts::withdraw_all);
        self.writes.forget_addresses();
    }

    /// Makes all pending writes durable, in one step if it is not very much. Returns the sessions
    /// for which that failed.
    pub async fn commit(&mut self, endings: Vec<Ending>) -> HashSet<SessionId> {
        self.writes.commit(endings).await
    }
}

impl Member {
    fn who(&self) -> Who<'_> {
        Who { user: &self.user, source: &self.source, groups: &self.groups }
    }
}

#[cfg(test)]
mod clock_steps;

#[cfg(test)]
mod tests {
    use vpnd_ipc::gateway::auth::Write;

    use super::*;

    #[test]
    fn a_profile_shortens_a_session_and_never_makes_it_longer_than_granted() {
        let span = Span { started_s: 1_000, expires_s: 1_100 };
        let ends = [None, Some(40), Some(100), Some(4_000)].map(|s| span.end_s(s.map(Duration::from_secs)));
        assert_eq!(ends, [1_100, 1_040, 1_100, 1_100]);
    }

    #[tokio::test]
    async fn a_session_that_is_withdrawn_leaves_nothing_in_the_registry() {
        let (auth, _) = crate::worker::testing::auth();
        let mut registry =
            Registry::new(auth, &vpnd_config::testing::smallest("")).unwrap().releasing(Releases::default());
        let account = Account {
            name: UserName::new("ann").unwrap(),
            groups: Vec::new(),
            source: SourceName::cut("local"),
        };
        let span = Span { started_s: 1, expires_s: 2 };
        let session = SessionId([1; 16]);
        let addresses = Addresses { ipv4: Some([10, 86, 0, 2].into()), ipv6: None };
        registry.add(session, Member::new(account, addresses, Factors::default(), span));
        registry.supersede(session, addresses);
        assert!(registry.member(session).is_none());
        assert!(
            !registry.releases.are_released(addresses.iter()),
            "the kernel is asked to forget its connections"
        );
        assert!(matches!(
            registry.writes.writes[..],
            [Write::Ended { code: Code::Superseded, .. }, Write::End(_)]
        ));
    }
}
