//! The rate limits of a session, by the groups of its user.
//!
//! INVARIANT: a group's number is its own as long as the process lives, whatever a reload does to the order of groups: its buckets
//! stay with it.

use vpnd_proto::rate::{RateGroup, Rates, SessionLimits};

use crate::config::rate::RateLimits;

/// Rate limits as configured, and the numbers of groups.
#[derive(Debug, Default)]
pub(crate) struct RateTable {
    limits: RateLimits,
    /// Names of groups that have or had a limit, by number.
    names: Vec<String>,
}

impl RateTable {
    /// The limits as they are configured.
    pub(crate) fn limits(&self) -> &RateLimits {
        &self.limits
    }

    /// These limits hold from now on. Returns those of each group by its number.
    pub(crate) fn set(&mut self, limits: RateLimits) -> Vec<Rates> {
        for group in &limits.groups {
            if !self.names.contains(&group.name) {
                self.names.push(group.name.clone());
            }
        }
        self.limits = limits;
        let together = |name: &String| self.limits.groups.iter().find(|group| group.name == *name);
        self.names
            .iter()
            .map(|name| together(name).map_or(Rates::default(), |group| group.together))
            .collect()
    }

    /// The limits of a session of a user in these groups.
    pub(crate) fn of(&self, groups: &[String]) -> SessionLimits {
        let Some(group) = self.limits.groups.iter().find(|group| groups.contains(&group.name)) else {
            return SessionLimits { rates: self.limits.session, group: None };
        };
        let number = self.names.iter().position(|name| *name == group.name);
        let number = number.filter(|_| !group.together.are_unlimited());
        SessionLimits { rates: group.session, group: number.map(|number| RateGroup(number as u32)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::rate::GroupRates;

    fn rates(down: u64) -> Rates {
        Rates { down, up: 0 }
    }

    fn group(name: &str, together: u64, session: u64) -> GroupRates {
        GroupRates { name: name.to_owned(), together: rates(together), session: rates(session) }
    }

    fn of(table: &RateTable, groups: &[&str]) -> (u64, Option<u32>) {
        let groups: Vec<String> = groups.iter().copied().map(str::to_owned).collect();
        let limits = table.of(&groups);
        (limits.rates.down, limits.group.map(|group| group.0))
    }

    #[test]
    fn the_first_group_decides_and_keeps_its_number() {
        let mut table = RateTable::default();
        assert_eq!(of(&table, &["staff"]), (0, None));
        let groups = vec![group("guests", 1_000, 10), group("staff", 2_000, 0), group("admins", 0, 30)];
        assert_eq!(table.set(RateLimits { session: rates(5), groups }), [1_000, 2_000, 0].map(rates));
        assert_eq!(of(&table, &[]), (5, None));
        assert_eq!(of(&table, &["staff", "guests"]), (10, Some(0)), "by the order of the file");
        assert_eq!(of(&table, &["admins", "staff"]), (0, Some(1)));
        assert_eq!(of(&table, &["admins"]), (30, None), "nothing is shared");
        // Guests are gone, and somebody new comes first.
        let groups = vec![group("pupils", 3_000, 1), group("staff", 4_000, 2)];
        assert_eq!(
            table.set(RateLimits { session: rates(6), groups }),
            [0, 4_000, 0, 3_000].map(rates),
            "numbers stay"
        );
        assert_eq!(of(&table, &["staff"]), (2, Some(1)));
        assert_eq!(of(&table, &["pupils"]), (1, Some(3)));
        assert_eq!(of(&table, &["guests"]), (6, None));
    }
}
