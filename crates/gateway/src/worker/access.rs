//! Access profiles in the worker: their policy and networks in the core's terms, and the profile of
//! each user.
//!
//! The auth process decides about the profile when a user logs in: by it, auth leases addresses and
//! limits the session's life. Here the same rules are applied again to sessions that are there,
//! whenever a reload or a change of groups concerns them.

use std::sync::Arc;

use vpnd_proto::gateway::{Profiles, SessionStatus};
use vpnd_proto::policy::{Names, Policy, PolicyError, ProfileId};

use super::settings;
use vpnd_config::ServerConfig;
use vpnd_config::access_profile::{AccessProfile, AccessProfiles, WALLED, Who};
use vpnd_config::policy::{self, Compiled};
use vpnd_config::pool::Pools;

/// The access profiles in force.
#[derive(Debug)]
pub struct Access {
    profiles: AccessProfiles,
    /// Numbers of the profiles, in their order.
    numbers: Vec<ProfileId>,
    /// Where addresses of their clients come from, in the same order.
    pools: Vec<Pools>,
    /// In the core's form.
    pub settings: Profiles,
    pub policy: Arc<Policy>,
}

impl Access {
    /// Those of a configuration. A profile keeps its number in `names`.
    ///
    /// # Errors
    /// If rules make no sense.
    pub fn new(config: &ServerConfig, names: &mut Names) -> Result<Self, PolicyError> {
        let Compiled { policy, numbers } = policy::compile(config, names)?;
        let profiles = numbers.iter().zip(config.profiles.iter());
        let pools = config.profiles.pools(&config.tunnel);
        let settings = profiles.zip(&pools);
        let settings =
            settings.map(|((number, profile), pools)| (*number, settings::profile(config, profile, pools)));
        let mut settings: Profiles = settings.collect();
        if config.portal.is_some() {
            settings.insert(ProfileId::WALLED, settings::walled());
        }
        Ok(Self { profiles: config.profiles.clone(), numbers, pools, settings, policy: Arc::new(policy) })
    }

    /// The user's profile, if one is for them.
    pub fn profile_of(&self, who: Who<'_>) -> Option<&AccessProfile> {
        self.profiles.of(who)
    }

    /// The pools of the user's profile.
    pub fn pools_of(&self, who: Who<'_>) -> Option<&Pools> {
        self.pools.get(self.profiles.position(who)?)
    }

    /// All profiles.
    pub fn profiles(&self) -> impl Iterator<Item = &AccessProfile> {
        self.profiles.iter()
    }

    /// The number of the user's profile; [`ProfileId::NONE`] if no profile is for them.
    pub fn of(&self, who: Who<'_>) -> ProfileId {
        let position = self.profiles.position(who);
        position.and_then(|position| self.numbers.get(position)).copied().unwrap_or(ProfileId::NONE)
    }

    /// The names of the sessions' profiles.
    pub fn names_of(&self, sessions: &[SessionStatus]) -> Vec<Option<String>> {
        sessions.iter().map(|session| self.name(session.profile).map(str::to_owned)).collect()
    }

    fn name(&self, number: ProfileId) -> Option<&str> {
        if number == ProfileId::WALLED {
            return Some(WALLED);
        }
        let position = self.numbers.iter().position(|one| *one == number)?;
        self.profiles.iter().nth(position)?.name.as_deref()
    }
}
