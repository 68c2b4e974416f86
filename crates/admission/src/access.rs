//! The access profiles in force in the auth process, which decides at a login which one is the
//! user's.

use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use vpnd_config::Tunnel;
use vpnd_config::access_profile::{AccessProfile, AccessProfiles, Who};
use vpnd_config::factor::{Factors, Requirement};
use vpnd_config::pool::Pools;
use vpnd_ipc::gateway::refusal::Refusal;
use vpnd_store::User;

/// The profiles, which a reload replaces as a whole.
#[derive(Debug)]
pub struct Access {
    /// Fixed at start; a reload does not change it.
    tunnel: Tunnel,
    in_force: RwLock<Arc<InForce>>,
}

#[derive(Debug)]
struct InForce {
    profiles: AccessProfiles,
    /// Pools of each profile.
    pools: Vec<Pools>,
}

/// Why a login of this user is refused although its credentials were right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// The user's time is over.
    Expired,
    /// No profile is for the user.
    NoProfile,
    /// The user's profile requires this besides.
    MissingFactor(Requirement),
    /// The user's profile requires a login that is newer.
    OldLogin,
}

impl From<NotAdmitted> for Refusal {
    fn from(why: NotAdmitted) -> Self {
        match why {
            NotAdmitted::Expired => Self::Expired,
            NotAdmitted::NoProfile => Self::NoProfile,
            NotAdmitted::MissingFactor(missing) => missing.into(),
            NotAdmitted::OldLogin => Self::OldLogin,
        }
    }
}

/// A profile that was in force when it was looked up.
#[derive(Debug)]
pub struct Decided {
    in_force: Arc<InForce>,
    position: usize,
}

impl Access {
    pub fn new(profiles: AccessProfiles, tunnel: &Tunnel) -> Self {
        let in_force = InForce { pools: profiles.pools(tunnel), profiles };
        Self { tunnel: tunnel.clone(), in_force: RwLock::new(Arc::new(in_force)) }
    }

    /// Profiles for logins and attaches from now on.
    pub fn replace(&self, profiles: AccessProfiles) {
        let in_force = InForce { pools: profiles.pools(&self.tunnel), profiles };
        *self.in_force.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(in_force);
    }

    /// The pools of all profiles.
    pub fn pools(&self) -> Vec<Pools> {
        self.now().pools.clone()
    }

    /// The profile of a user who has proved these factors, if it lets them in.
    pub fn admit(&self, user: &User, factors: Factors) -> Result<Decided, NotAdmitted> {
        let profile = self.of(user).ok_or(NotAdmitted::NoProfile)?;
        match factors.missing(&profile.require) {
            Some(missing) => Err(NotAdmitted::MissingFactor(missing)),
            None => Ok(profile),
        }
    }

    /// The profile of such a user, if it also takes a login of this age.
    pub fn admit_login(
        &self,
        user: &User,
        factors: Factors,
        auth_time_s: u64,
        now_s: u64,
    ) -> Result<Decided, NotAdmitted> {
        let profile = self.admit(user, factors)?;
        let age = Duration::from_secs(now_s.saturating_sub(auth_time_s));
        match profile.max_login_age {
            Some(longest) if age > longest => Err(NotAdmitted::OldLogin),
            _ => Ok(profile),
        }
    }

    /// The shortest age of a login that a profile requires: before a login it is not known whose
    /// profile counts.
    pub fn shortest_login_age(&self) -> Option<Duration> {
        self.now().profiles.iter().filter_map(|profile| profile.max_login_age).min()
    }

    /// The user's profile, if one is for them. A machine has none but one for machines.
    pub fn of(&self, user: &User) -> Option<Decided> {
        let profile =
            self.profile_of(Who { user: &user.name, source: &user.source, groups: &user.groups })?;
        (profile.machines || !user.is_machine()).then_some(profile)
    }

    /// The profile of such a user, if one is for them.
    pub fn profile_of(&self, who: Who<'_>) -> Option<Decided> {
        let in_force = self.now();
        let position = in_force.profiles.position(who)?;
        Some(Decided { in_force, position })
    }

    fn now(&self) -> Arc<InForce> {
        Arc::clone(&self.in_force.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Decided {
    /// Where its clients' addresses come from.
    pub fn pools(&self) -> &Pools {
        &self.in_force.pools[self.position]
    }
}

impl Deref for Decided {
    type Target = AccessProfile;

    fn deref(&self) -> &AccessProfile {
        self.in_force.profiles.at(self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_no_older_than_the_users_profile_takes() {
        let text = "[[profile]]\nname = 'staff'\ngroups = ['staff']\nmax_login_age_s = 600\n[[profile]]\nname = 'all'\n";
        let config = vpnd_config::testing::smallest(text);
        let access = Access::new(config.profiles, &Tunnel::default());
        let user = |group: &str| User { groups: vec![group.to_owned()], ..User::nobody() };
        let admitted = |group: &str, auth_time_s, now_s| {
            access.admit_login(&user(group), Factors::PASSWORD, auth_time_s, now_s).map(drop)
        };
        assert_eq!(admitted("staff", 1_000, 1_600), Ok(()));
        assert_eq!(admitted("staff", 1_000, 1_601), Err(NotAdmitted::OldLogin));
        assert_eq!(admitted("staff", 0, 1_000_000), Err(NotAdmitted::OldLogin), "it was not said");
        assert_eq!(admitted("staff", 2_000, 1_000), Ok(()), "a clock that was set back");
        assert_eq!(admitted("students", 0, 1_000_000), Ok(()), "another profile's");
        assert_eq!(access.shortest_login_age(), Some(Duration::from_secs(600)));
    }
}
