//! Access profiles in the worker: their policy and networks in the core's terms, and the profile of each user.
//!
//! The auth process decides about the profile when somebody logs in: by it, it leases addresses and limits the session's life. Here the same
//! rules are applied again to sessions that are there, whenever a reload or a change of groups concerns them.

use std::sync::Arc;

use vpnd_proto::gateway::{Profiles, SessionStatus};
use vpnd_proto::policy::{Names, Policy, PolicyError, ProfileId};

use super::settings;
use crate::config::ServerConfig;
use crate::config::access_profile::{AccessProfiles, Who};

/// The access profiles in force.
#[derive(Debug)]
pub(crate) struct Access {
    profiles: AccessProfiles,
    /// Numbers of the profiles, in their order.
    numbers: Vec<ProfileId>,
    /// As the core has them.
    pub(crate) settings: Profiles,
    pub(crate) policy: Arc<Policy>,
}

impl Access {
    /// Those of a configuration. A profile keeps its number in `names`.
    ///
    /// # Errors
    /// If rules make no sense.
    pub(crate) fn new(config: &ServerConfig, names: &mut Names) -> Result<Self, PolicyError> {
        let (mut numbers, mut sets, mut settings) = (Vec::new(), Vec::new(), Profiles::new());
        for profile in config.profiles.iter() {
            let number = profile.name.as_ref().map_or(ProfileId::IMPLIED, |name| names.profile(name));
            sets.push((number, settings::rule_set(profile, names)?));
            settings.insert(number, settings::profile(config, profile));
            numbers.push(number);
        }
        let policy = Arc::new(Policy::of_profiles(sets).with_pools(settings::pools(&config.tunnel)));
        Ok(Self { profiles: config.profiles.clone(), numbers, settings, policy })
    }

    /// The number of the user's profile; [`ProfileId::NONE`] if no profile is for them.
    pub(crate) fn of(&self, who: Who<'_>) -> ProfileId {
        let position = self.profiles.position(who);
        position.and_then(|position| self.numbers.get(position)).copied().unwrap_or(ProfileId::NONE)
    }

    /// The names of the sessions' profiles.
    pub(crate) fn names_of(&self, sessions: &[SessionStatus]) -> Vec<Option<String>> {
        sessions.iter().map(|session| self.name(session.profile).map(str::to_owned)).collect()
    }

    fn name(&self, number: ProfileId) -> Option<&str> {
        let position = self.numbers.iter().position(|one| *one == number)?;
        self.profiles.iter().nth(position)?.name.as_deref()
    }
}
