//! Access profiles: which networks their clients get, and how many sessions their users have.
//!
//! INVARIANT: what sessions may reach changes in one command to each shard, the policy together
//! with the sessions whose principal changes; and before a client is sent its networks.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Effect, Gateway, Reason};
use crate::control::{Message, Network, Update};
use crate::plane::{Access, Command, Slot};
use crate::policy::{Policy, Principal, ProfileId};
use crate::session::SessionId;
use crate::time::Time;

/// The settings of an access profile that the core needs.
#[derive(Clone, Debug)]
pub struct ProfileSettings {
    /// The clients' network configuration, without the addresses of the client itself.
    pub network: Network,
    /// Sessions of one user at most.
    pub max_sessions_per_user: usize,
}

impl ProfileSettings {
    /// Makes them those of the only profile.
    #[must_use]
    pub fn alone(self) -> Profiles {
        [(ProfileId::IMPLIED, self)].into()
    }
}

/// The access profiles that there are.
pub type Profiles = BTreeMap<ProfileId, ProfileSettings>;

impl Gateway {
    /// A new policy holds for all packets, in the profiles that there are.
    pub fn set_policy(&mut self, policy: &Arc<Policy>) {
        let access = Access { policy: Some(Arc::clone(policy)), principals: [].into() };
        self.sessions.command_all(|_| Command::Access(access.clone()));
    }

    /// These profiles and their policy hold from now on, and policy takes each session for what
    /// `principal_of` has. Clients for which that changes their network get it.
    pub fn set_profiles(
        &mut self,
        policy: &Arc<Policy>,
        profiles: Profiles,
        mut principal_of: impl FnMut(SessionId) -> Principal,
    ) {
        let principals =
            self.sessions.table.iter().map(|session| (session.slot, principal_of(session.record.id)));
        let principals: Vec<_> = principals.collect();
        let before = core::mem::replace(&mut self.config.profiles, profiles);
        self.change_access(Some(policy), Some(&before), principals);
    }

    /// Changes the principals of these sessions, and the networks of clients that this concerns.
    pub fn set_principals(&mut self, principals: impl IntoIterator<Item = (SessionId, Principal)>) {
        let of_slot = |(id, principal)| Some((self.sessions.table.by_id(id)?, principal));
        let principals: Vec<_> = principals.into_iter().filter_map(of_slot).collect();
        self.change_access(None, None, principals);
    }

    /// Sessions end at these times from now on; `None` leaves one as it is. One whose time is over
    /// ends when it is looked for next.
    pub fn set_deadlines(&mut self, deadline_of: impl Fn(SessionId) -> Option<Time>) {
        for slot in self.sessions.table.slots() {
            let Some(session) = self.sessions.table.get_mut(slot) else { continue };
            let Some(deadline) = deadline_of(session.record.id) else { continue };
            session.record.deadline = deadline;
            self.sessions.timers.set((slot, Reason::Lifetime), deadline);
        }
    }

    /// Number of the routes that a session's client is not given because it lacks the feature.
    #[must_use]
    pub fn routes_left_out(&self, id: SessionId) -> usize {
        let session = self.sessions.table.by_id(id).and_then(|slot| self.sessions.table.get(slot));
        let of_session = |session: &super::session::Session| {
            let network = &self.settings_of(&session.record.principal)?.network;
            Some(network.routes.len() - network.clone().within(session.features).routes.len())
        };
        session.and_then(of_session).unwrap_or(0)
    }

    /// The settings of a session's profile; `None` if there is no such profile.
    pub(super) fn settings_of(&self, principal: &Principal) -> Option<&ProfileSettings> {
        self.config.profiles.get(&principal.profile())
    }

    /// `before` are the profiles until now, if there are others from now on.
    fn change_access(
        &mut self,
        policy: Option<&Arc<Policy>>,
        before: Option<&Profiles>,
        principals: Vec<(Slot, Principal)>,
    ) {
        let (mut open, mut updates) = (Vec::new(), Vec::new());
        for (slot, principal) in principals {
            let Some(session) = self.sessions.table.get_mut(slot) else { continue };
            let old = core::mem::replace(&mut session.record.principal, principal.clone());
            let network = network_in(&self.config.profiles, &principal);
            if let (Some(connection), Some(template)) = (session.connection, network)
                && network != network_in(before.unwrap_or(&self.config.profiles), &old)
            {
                let network = session.record.addresses.network(template).within(session.features);
                updates.push(Effect::Send { connection, message: Message::Update(Update { network }) });
            }
            // Shards get the principal of the others with their keys.
            if session.open && old != principal {
                open.push((slot, principal));
            }
        }
        if policy.is_some() || !open.is_empty() {
            let access = Access { policy: policy.cloned(), principals: open.into() };
            self.sessions.command_all(|_| Command::Access(access.clone()));
        }
        self.sessions.effects.extend(updates);
    }
}

fn network_in<'p>(profiles: &'p Profiles, principal: &Principal) -> Option<&'p Network> {
    profiles.get(&principal.profile()).map(|settings| &settings.network)
}
