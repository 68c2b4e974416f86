//! The way from the changes in force to those that are wanted, without a moment in between that is
//! neither: what is in both stays, what is new comes first, and only then goes what is not wanted
//! any more.
//!
//! Pure: a plan is a list of steps in order, without access to the machine.

use vpnd_sys::change::Change;

/// Steps in the order in which they are carried out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan<Id> {
    pub(super) first: Vec<Step<Id>>,
    /// Taken back at the end, in this order.
    pub(super) obsolete: Vec<Id>,
}

/// One of the changes that are wanted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step<Id> {
    /// It is in force already.
    Keep(Id),
    /// It is added to what is in force.
    Make(Change),
    /// It takes the place of one that is in force: the kernel has room for one of the two.
    Replace(Id, Change),
}

/// Plans the way. `wanted` is in the order in which its changes are made where nothing is in force;
/// `in_force` in the order in which they were made.
pub(super) fn plan<Id: Copy + PartialEq>(in_force: &[(Id, Change)], wanted: Vec<Change>) -> Plan<Id> {
    let mut obsolete: Vec<_> = in_force.iter().collect();
    let mut take = |fits: &dyn Fn(&Change) -> bool| {
        let place = obsolete.iter().position(|(_, change)| fits(change))?;
        Some(obsolete.remove(place).0)
    };
    // A change that stays is no candidate for being replaced.
    let kept: Vec<_> = wanted.iter().map(|change| take(&|other| other == change)).collect();
    let steps = wanted.into_iter().zip(kept).map(|(change, kept)| match kept {
        Some(id) => Step::Keep(id),
        None => match take(&|other| is_same_place(other, &change)) {
            Some(id) => Step::Replace(id, change),
            None => Step::Make(change),
        },
    });
    let first = steps.collect();
    Plan { first, obsolete: obsolete.into_iter().rev().map(|(id, _)| *id).collect() }
}

/// Whether the kernel takes only one of the two.
fn is_same_place(one: &Change, other: &Change) -> bool {
    match (one, other) {
        (Change::Route(one), Change::Route(other)) => one.place() == other.place(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vpnd_sys::netlink::{AddressSpec, RouteSpec, RouteTarget};

    fn address(text: &str) -> Change {
        let (interface, address) = ("vpn0".to_owned(), text.parse().unwrap());
        Change::Address(AddressSpec { interface, index: Some(7), address })
    }

    fn route(destination: &str, source: &str) -> Change {
        Change::Route(RouteSpec {
            destination: destination.parse().unwrap(),
            target: RouteTarget::Interface("vpn0".to_owned()),
            source: source.parse().ok(),
            table: 30_007,
            metric: None,
        })
    }

    fn numbered(changes: &[Change]) -> Vec<(usize, Change)> {
        changes.iter().cloned().enumerate().collect()
    }

    #[test]
    fn a_plan_keeps_common_changes_and_adds_before_it_removes() {
        let old = [address("10.0.0.9/32"), route("10.1.0.0/16", ""), route("10.2.0.0/16", "")];
        let new = vec![address("10.0.0.9/32"), route("10.3.0.0/16", ""), route("10.1.0.0/16", "")];
        let planned = plan(&numbered(&old), new);
        assert_eq!(planned.first, [Step::Keep(0), Step::Make(route("10.3.0.0/16", "")), Step::Keep(1)]);
        assert_eq!(planned.obsolete, [2]);
    }

    #[test]
    fn the_last_change_is_removed_first() {
        let old = [address("10.0.0.9/32"), route("10.1.0.0/16", ""), route("10.2.0.0/16", "")];
        let planned = plan(&numbered(&old), Vec::new());
        assert_eq!((planned.first.len(), planned.obsolete), (0, vec![2, 1, 0]));
    }

    #[test]
    fn a_route_takes_the_place_of_the_one_to_the_same_destination() {
        let old = [address("10.0.0.9/32"), route("10.1.0.0/16", "10.0.0.9")];
        let new = vec![address("10.0.0.7/32"), route("10.1.0.0/16", "10.0.0.7")];
        let planned = plan(&numbered(&old), new.clone());
        assert_eq!(planned.first, [Step::Make(new[0].clone()), Step::Replace(1, new[1].clone())]);
        assert_eq!(planned.obsolete, [0], "the old address goes when no route has it any more");
    }

    #[test]
    fn each_wanted_change_is_there_once_and_nothing_else_stays() {
        let all = [
            address("10.0.0.9/32"),
            address("fd00::9/128"),
            route("10.1.0.0/16", "10.0.0.9"),
            route("10.1.0.0/16", "10.0.0.7"),
        ];
        let subset = |bits: usize| {
            (0..all.len()).filter(|n| bits >> n & 1 == 1).map(|n| all[n].clone()).collect::<Vec<_>>()
        };
        for (old, new) in (0..16).flat_map(|old| (0..16).map(move |new| (subset(old), subset(new)))) {
            let in_force = numbered(&old);
            let planned = plan(&in_force, new.clone());
            let mut result = old.clone();
            for step in planned.first {
                match step {
                    Step::Keep(_) => {}
                    Step::Make(change) => result.push(change),
                    Step::Replace(id, change) => result[id] = change,
                }
            }
            let mut gone = planned.obsolete;
            gone.sort_unstable();
            gone.into_iter().rev().for_each(|id| drop(result.remove(id)));
            assert_eq!(result.len(), new.len(), "{old:?} to {new:?}");
            assert!(new.iter().all(|change| result.contains(change)), "{old:?} to {new:?}");
        }
    }
}
