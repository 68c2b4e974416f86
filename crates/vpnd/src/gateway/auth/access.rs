//! The access profiles in force in the auth process, which decides at a login which one is the user's.

use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock};

use crate::config::access_profile::{AccessProfile, AccessProfiles, Who};
use crate::store::User;

/// The profiles, which a reload replaces as a whole.
#[derive(Debug)]
pub(crate) struct Access(RwLock<Arc<AccessProfiles>>);

/// A profile that was in force when it was looked up.
#[derive(Debug)]
pub(crate) struct Decided {
    profiles: Arc<AccessProfiles>,
    position: usize,
}

impl Access {
    pub(crate) fn new(profiles: AccessProfiles) -> Self {
        Self(RwLock::new(Arc::new(profiles)))
    }

    /// These profiles hold for whoever logs in or comes back from now on.
    pub(crate) fn replace(&self, profiles: AccessProfiles) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(profiles);
    }

    /// The user's profile, if one is for them.
    pub(crate) fn of(&self, user: &User) -> Option<Decided> {
        let profiles = Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner));
        let position =
            profiles.position(Who { user: &user.name, source: &user.source, groups: &user.groups })?;
        Some(Decided { profiles, position })
    }
}

impl Deref for Decided {
    type Target = AccessProfile;

    fn deref(&self) -> &AccessProfile {
        self.profiles.at(self.position)
    }
}
