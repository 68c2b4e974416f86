//! Live sessions at the desk, with their throughput.
//!
//! Invariants: who has which session is what the store says; what the worker reports is shown
//! beside it. A list has the networks of clients, not their addresses: who has an address is a
//! question, which is recorded.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::Desk;
use super::watch::{Use, Uses};
use crate::portal::devices::Devices;
use crate::portal::first;
use vpnd_admission::access::Access;
use vpnd_ipc::gateway::auth::SourceName;
use vpnd_ipc::gateway::portal::MAX_SESSIONS;
use vpnd_ipc::gateway::portal::desk::sessions::{
    DeviceTraffic, ListSessions, ListedSession, ListedSessions, Order, ProfileUse, Throughput,
};
use vpnd_proto::control::Text;
use vpnd_store::{LiveSession, Owner, Store, StoreError, User, UserId, client_network};
use vpnd_sys::clock::{Clocks, now};

/// The profiles of users who have sessions, by the users' names.
type Profiles = BTreeMap<String, Option<String>>;

pub(super) struct Sessions {
    pub(super) store: Arc<dyn Store>,
    pub(super) access: Arc<Access>,
    pub(super) clocks: Clocks,
    pub(super) devices: Arc<Devices>,
}

impl Sessions {
    pub(super) fn list(&self, desk: &Desk, list: &ListSessions) -> Result<ListedSessions, StoreError> {
        let now_s = (self.clocks.steady)();
        let uses = desk.watch.sessions(now());
        let profiles = self.profiles_of_owners(now_s)?;
        let mut sessions = self.store.live_sessions(now_s)?;
        let sums = sums(&sessions, &profiles, &uses);
        match &list.order {
            Order::ByUser(after) => {
                sessions.sort_by_cached_key(place);
                sessions
                    .retain(|session| after.as_ref().is_none_or(|after| place(session).as_str() > &**after));
            }
            Order::ByRate => {
                let rate = |session: &LiveSession| {
                    let rates = uses.get(&session.id).and_then(|used| used.throughput.rates);
                    rates.map_or(0, |[rx, tx]| rx.saturating_add(tx))
                };
                sessions.sort_by_cached_key(|session| (Reverse(rate(session)), place(session)));
            }
        }
        let most = usize::try_from(list.most).unwrap_or(MAX_SESSIONS).clamp(1, MAX_SESSIONS);
        let more = sessions.len().saturating_sub(most) as u64;
        sessions.truncate(most);
        let last = sessions.last().filter(|_| more > 0 && list.order != Order::ByRate);
        let next = last.map(|session| Text::cut(&place(session)));
        let shown = sessions.into_iter().map(|session| {
            let profile = profiles.get(&session.user).cloned().flatten();
            self.shown_session(session, profile, &uses, now_s)
        });
        Ok(ListedSessions { sessions: first(shown), more, next, profiles: first(sums) })
    }

    fn shown_session(
        &self,
        session: LiveSession,
        profile: Option<String>,
        uses: &Uses,
        now_s: u64,
    ) -> ListedSession {
        let used = uses.get(&session.id);
        let from = used.and_then(|used| used.outer).map(|outer| outer.to_canonical());
        let from = from.or_else(|| self.devices.heard().from(session.owner, session.device));
        ListedSession {
            user: Text::cut(&session.user),
            source: SourceName::cut(&session.source),
            device: session.device.0.into(),
            addresses: first(session.addresses),
            age_s: now_s.saturating_sub(session.started_s),
            left_s: session.expires_s.saturating_sub(now_s),
            wireguard: session.wireguard.as_deref().map(Text::cut),
            network: from.map(|from| Text::cut(&client_network(from))),
            profile: profile.as_deref().map(Text::cut),
            throughput: used.map(|used| used.throughput),
            walled: used.is_some_and(|used| used.walled),
        }
    }

    /// The access profiles of the users who have sessions.
    fn profiles_of_owners(&self, now_s: u64) -> Result<Profiles, StoreError> {
        let owners = self.store.session_owners(now_s)?.into_iter();
        let profile = |Owner { user, source, groups, .. }: Owner| {
            let owner = User { name: user.clone(), source, groups, ..User::nobody() };
            (user, self.access.of(&owner).map(|profile| profile.title().to_owned()))
        };
        Ok(owners.map(profile).collect())
    }
}

/// The traffic of a user's sessions, by device, as far as the worker has reported it in time.
pub(super) fn traffic_of(
    store: &dyn Store,
    desk: &Desk,
    user: UserId,
) -> Result<Vec<DeviceTraffic>, StoreError> {
    let uses = desk.watch.sessions(now());
    let devices = store.devices(user)?.into_iter();
    let traffic = devices.filter_map(|device| {
        let Use { throughput, .. } = *uses.get(&device.session?)?;
        Some(DeviceTraffic { device: device.id.0.into(), throughput })
    });
    Ok(traffic.collect())
}

/// The place of a session in the list of all.
fn place(session: &LiveSession) -> String {
    let number = u128::from_be_bytes(session.id.0);
    format!("{} {number:032x}", session.user)
}

/// Sums by access profile.
fn sums(sessions: &[LiveSession], profiles: &Profiles, uses: &Uses) -> Vec<ProfileUse> {
    let mut sums: BTreeMap<Option<&str>, (u64, Throughput)> = BTreeMap::new();
    for session in sessions {
        let profile = profiles.get(&session.user).and_then(Option::as_deref);
        let (count, sum) = sums.entry(profile).or_default();
        *count += 1;
        if let Some(Use { throughput, .. }) = uses.get(&session.id) {
            let added = |one: [u64; 2], other: [u64; 2]| [0, 1].map(|at| one[at].saturating_add(other[at]));
            sum.bytes = added(sum.bytes, throughput.bytes);
            sum.rates =
                throughput.rates.map(|rates| added(sum.rates.unwrap_or_default(), rates)).or(sum.rates);
        }
    }
    let sum = |(profile, (sessions, throughput)): (Option<&str>, _)| ProfileUse {
        profile: profile.map(Text::cut),
        sessions,
        throughput,
    };
    sums.into_iter().map(sum).collect()
}
