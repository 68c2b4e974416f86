//! Effects of the settings in force on a session's user: whom policy takes them for, the rate
//! limits, when the session ends, and whether it may go on at all. This module must not know which
//! sessions there are.

use vpnd_proto::control::Code;
use vpnd_proto::gateway::{Addresses, Gateway};
use vpnd_proto::policy::{Names, PolicyError, Principal, ProfileId};
use vpnd_proto::rate::{Rates, SessionLimits};
use vpnd_proto::session::SessionId;
use vpnd_proto::time::Time;

use super::Member;
use crate::worker::access::Access;
use crate::worker::rates::RateTable;
use vpnd_config::ServerConfig;
use vpnd_config::rate::RateLimits;
use vpnd_sys::clock::{self, Origin};

/// Text for a client whose addresses are none of its profile's. It logs in again and gets some that
/// are.
const OTHER_ADDRESSES: &str = "the user's access profile has other inner addresses now; log in again";

/// The reason for a user who has logged in by fewer factors than are required now. The next login
/// shows which.
const MORE_FACTORS: &str = "the user's access profile requires another factor now; log in again";

/// The access profiles and rate limits in force.
pub(super) struct Rules {
    /// Sessions' ends are seconds of its clock.
    pub(super) origin: Origin,
    /// Policy knows users, groups and profiles by numbers, which come from here.
    names: Names,
    access: Access,
    /// Rate limits by users' groups.
    rates: RateTable,
}

impl Rules {
    /// Those of a configuration, but for its rate limits.
    ///
    /// # Errors
    /// If rules make no sense.
    pub(super) fn new(config: &ServerConfig) -> Result<Self, PolicyError> {
        let mut names = Names::new();
        let access = Access::new(config, &mut names)?;
        Ok(Self { origin: clock::origin(), names, access, rates: RateTable::default() })
    }

    pub(super) fn access(&self) -> &Access {
        &self.access
    }

    /// These access profiles hold from now on, for all sessions of `gateway`.
    ///
    /// # Errors
    /// If rules make no sense; then nothing has changed.
    pub(super) fn set_access<'m>(
        &mut self,
        config: &ServerConfig,
        gateway: &mut Gateway,
        member: impl Fn(SessionId) -> Option<&'m Member>,
    ) -> Result<(), PolicyError> {
        let mut names = self.names.renewed();
        self.access = Access::new(config, &mut names)?;
        self.names = names;
        let (policy, settings) = (self.access.policy.clone(), self.access.settings.clone());
        gateway.set_profiles(&policy, settings, |session| match member(session) {
            Some(member) => self.principal(member),
            None => Principal::default().in_profile(ProfileId::NONE),
        });
        Ok(())
    }

    /// These rate limits, and those of the access profiles, hold from now on. Returns those that
    /// sessions share, by their numbers.
    pub(super) fn set_limits(&mut self, limits: RateLimits) -> Vec<Rates> {
        self.rates.set(limits, self.access.profiles())
    }

    /// The rate limits as they are configured.
    pub(super) fn rate_limits(&self) -> RateLimits {
        self.rates.limits().clone()
    }

    /// The user as policy has them, in their access profile.
    pub(super) fn principal(&mut self, member: &Member) -> Principal {
        let profile = if member.is_walled { ProfileId::WALLED } else { self.access.of(member.who()) };
        self.names.principal(&member.user, member.groups.iter().map(String::as_str)).in_profile(profile)
    }

    /// The limits of the member's session, or of a session without a member.
    pub(super) fn limits(&self, member: Option<&Member>) -> SessionLimits {
        let Some(member) = member else { return self.rates.of(None, &[]) };
        let profile = self.access.profile_of(member.who());
        self.rates.of(profile.and_then(|profile| profile.name.as_deref()), &member.groups)
    }

    /// When the member's session ends.
    pub(super) fn deadline(&self, member: &Member) -> Time {
        // A walled one has outlived its profile's, and is granted its own.
        let profile = self.access.profile_of(member.who()).filter(|_| !member.is_walled);
        let lifetime = profile.and_then(|profile| profile.session_lifetime);
        self.origin.boot_time(member.span.end_s(lifetime))
    }

    /// Reason why the member's session can't go on, if it can't.
    pub(super) fn misfit(&self, member: &Member) -> Option<(Code, &'static str)> {
        let who = member.who();
        let (Some(profile), Some(pools)) = (self.access.profile_of(who), self.access.pools_of(who)) else {
            return Some((Code::NoProfile, Code::NoProfile.explanation()));
        };
        if member.factors.missing(&profile.require).is_some() {
            return Some((Code::Token, MORE_FACTORS));
        }
        let Addresses { ipv4, ipv6 } = member.addresses;
        (!pools.fit(ipv4, ipv6)).then_some((Code::Token, OTHER_ADDRESSES))
    }
}
