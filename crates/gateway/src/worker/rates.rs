//! The rate limits of a session, by the access profile and the groups of its user.
//!
//! INVARIANT: a group's or profile's number is its own as long as the process lives, whatever a
//! reload does to their order: its buckets stay with it.

use vpnd_proto::rate::{RateGroup, Rates, SessionLimits};

use vpnd_config::AccessProfile;
use vpnd_config::access_profile::is_in;
use vpnd_config::rate::{GroupRates, RateLimits};

/// Rate limits as configured, and the numbers of those that sessions share.
#[derive(Debug, Default)]
pub(super) struct RateTable {
    limits: RateLimits,
    /// Rates of the profiles that have some.
    profiles: Vec<GroupRates>,
    /// All that have or had a limit for their sessions together, by number.
    sharers: Vec<Sharer>,
}

/// Sessions that share a limit, by the name of what they have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sharer {
    Group(String),
    Profile(String),
}

impl RateTable {
    /// The limits as they are configured.
    pub(super) fn limits(&self) -> &RateLimits {
        &self.limits
    }

    /// These limits and those of these profiles hold from now on. Returns those that are shared, by
    /// their numbers.
    pub(super) fn set<'p>(
        &mut self,
        limits: RateLimits,
        profiles: impl Iterator<Item = &'p AccessProfile>,
    ) -> Vec<Rates> {
        self.limits = limits;
        self.profiles = profiles.filter_map(|profile| profile.rates.clone()).collect();
        let groups =
            self.limits.groups.iter().map(|group| (Sharer::Group(group.name.clone()), group.together));
        let profiles =
            self.profiles.iter().map(|profile| (Sharer::Profile(profile.name.clone()), profile.together));
        let shared: Vec<_> = groups.chain(profiles).collect();
        for (sharer, _) in &shared {
            if !self.sharers.contains(sharer) {
                self.sharers.push(sharer.clone());
            }
        }
        let rates = |sharer| shared.iter().find(|(one, _)| one == sharer).map(|(_, rates)| *rates);
        self.sharers.iter().map(|sharer| rates(sharer).unwrap_or_default()).collect()
    }

    /// The limits of a session in this profile, of a user in these groups. A profile with rates of
    /// its own decides alone.
    pub(super) fn of(&self, profile: Option<&str>, groups: &[String]) -> SessionLimits {
        let of_profile = self.profiles.iter().find(|rates| profile == Some(rates.name.as_str()));
        if let Some(rates) = of_profile {
            return self.shared(&Sharer::Profile(rates.name.clone()), rates);
        }
        match self.limits.groups.iter().find(|group| is_in(&group.name, groups)) {
            Some(rates) => self.shared(&Sharer::Group(rates.name.clone()), rates),
            None => SessionLimits { rates: self.limits.session, user: self.limits.user, group: None },
        }
    }

    fn shared(&self, sharer: &Sharer, rates: &GroupRates) -> SessionLimits {
        let number = self.sharers.iter().position(|one| one == sharer);
        let number = number.filter(|_| !rates.together.are_unlimited());
        let group = number.map(|number| RateGroup(number as u32));
        SessionLimits { rates: rates.session, user: rates.user, group }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(down: u64) -> Rates {
        Rates { down, up: 0 }
    }

    fn group(name: &str, together: u64, session: u64) -> GroupRates {
        let user = rates(session * 2);
        GroupRates { name: name.to_owned(), together: rates(together), session: rates(session), user }
    }

    fn limits(session: u64, groups: Vec<GroupRates>) -> RateLimits {
        RateLimits { session: rates(session), user: rates(session * 2), groups }
    }

    fn of(table: &RateTable, groups: &[&str]) -> (u64, Option<u32>) {
        of_profile(table, "", groups)
    }

    fn of_profile(table: &RateTable, profile: &str, groups: &[&str]) -> (u64, Option<u32>) {
        let groups: Vec<String> = groups.iter().copied().map(str::to_owned).collect();
        let limits = table.of(Some(profile), &groups);
        assert_eq!(limits.user.down, limits.rates.down * 2, "both are of one entry");
        (limits.rates.down, limits.group.map(|group| group.0))
    }

    #[test]
    fn the_first_group_decides_and_keeps_its_number() {
        let mut table = RateTable::default();
        assert_eq!(of(&table, &["staff"]), (0, None));
        let groups = vec![group("guests", 1_000, 10), group("staff", 2_000, 0), group("admins", 0, 30)];
        assert_eq!(table.set(limits(5, groups), [].iter()), [1_000, 2_000, 0].map(rates));
        assert_eq!(of(&table, &[]), (5, None));
        assert_eq!(of(&table, &["staff", "guests"]), (10, Some(0)), "by the order of the file");
        assert_eq!(of(&table, &["admins", "staff"]), (0, Some(1)));
        assert_eq!(of(&table, &["admins"]), (30, None), "nothing is shared");
        // Guests are gone, and a new group comes first.
        let groups = vec![group("pupils", 3_000, 1), group("staff", 4_000, 2)];
        assert_eq!(table.set(limits(6, groups), [].iter()), [0, 4_000, 0, 3_000].map(rates), "numbers stay");
        assert_eq!(of(&table, &["staff"]), (2, Some(1)));
        assert_eq!(of(&table, &["pupils"]), (1, Some(3)));
        assert_eq!(of(&table, &["guests"]), (6, None));
    }

    #[test]
    fn a_profile_with_rates_decides_in_place_of_groups_and_is_no_group_of_its_name() {
        let profile = |name: &str, rates: Option<GroupRates>| AccessProfile {
            name: Some(name.to_owned()),
            rates,
            ..AccessProfile::default()
        };
        let profiles = [profile("staff", Some(group("staff", 500, 7))), profile("guests", None)];
        let limits = limits(5, vec![group("staff", 1_000, 10)]);
        let mut table = RateTable::default();
        assert_eq!(table.set(limits.clone(), profiles.iter()), [1_000, 500].map(rates));
        assert_eq!(of_profile(&table, "staff", &["staff"]), (7, Some(1)), "its own");
        assert_eq!(of_profile(&table, "guests", &["staff"]), (10, Some(0)), "of the group");
        assert_eq!(of_profile(&table, "guests", &[]), (5, None));
        assert_eq!(table.set(limits, [].iter()), [1_000, 0].map(rates), "numbers stay");
        assert_eq!(of_profile(&table, "staff", &["staff"]), (10, Some(0)));
    }
}
