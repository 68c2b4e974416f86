//! Chooses the two routing tables of a tunnel, used by no other program: one that leads into it,
//! and one that holds back what the first of a full tunnel has let pass.
//!
//! A foreign route in our table would lead around the tunnel, or make the kernel refuse
//! ours ("File exists"). What vpnd itself has left behind, after a kill and without its journal, is
//! taken away: it carries our origin, and the number of its interface is this tunnel's or unused.
//!
//! Pure but for [`choose`].

use super::NetworkError;
use vpnd_sys::change::{Change, interface_of, tables_of};
use vpnd_sys::netlink::{Netlink, TableRoute, TableRule};

/// The tables of the tunnel with this interface; `now` are those in use, kept while they can be.
///
/// # Errors
/// If the kernel does not list its routes or rules, or there is no table.
pub(super) async fn choose(
    netlink: &Netlink,
    interface_index: u32,
    now: Option<[u32; 2]>,
) -> Result<[u32; 2], NetworkError> {
    if now.is_none() {
        let others = netlink.interface_indexes().await?;
        let is_abandoned = |index| index == interface_index || !others.contains(&index);
        for change in leftovers(is_abandoned, &netlink.table_routes().await?, &netlink.rules().await?) {
            let left = change.to_string();
            match change.undo(netlink).await {
                Ok(_) => {
                    tracing::info!(%left, "removed leftovers of a tunnel of vpnd without a journal")
                }
                Err(error) => {
                    tracing::warn!(%left, %error, "leftovers of a tunnel of vpnd could not be removed")
                }
            }
        }
    }
    let (routes, rules) = (netlink.table_routes().await?, netlink.rules().await?);
    let found = pick(interface_index, now, &routes, &rules).ok_or(NetworkError::NoTable)?;
    let usual = tables_of(interface_index).next();
    if now.map(|now| now[0]).or(usual) != Some(found[0]) {
        tracing::warn!(
            table = found[0],
            "another program uses the usual routing table of this tunnel, so it takes another"
        );
    }
    Ok(found)
}

/// Routes and rules of tunnels that are no more: those whose interface's number is abandoned.
fn leftovers(is_abandoned: impl Fn(u32) -> bool, routes: &[TableRoute], rules: &[TableRule]) -> Vec<Change> {
    let is_ours = |table: u32| interface_of(table).is_some_and(&is_abandoned);
    let rules = rules.iter().filter_map(|rule| rule.ours.clone());
    let rules = rules.filter(|rule| is_ours(rule.table)).map(Change::Rule);
    let routes = routes.iter().filter_map(|route| route.ours.clone());
    let routes = routes.filter(|route| is_ours(route.table)).map(Change::Route);
    // Rules first, or packets would meet half a table.
    rules.chain(routes).collect()
}

/// The first tables that no other program uses, and each of those in use while it can be.
fn pick(
    interface_index: u32,
    now: Option<[u32; 2]>,
    routes: &[TableRoute],
    rules: &[TableRule],
) -> Option<[u32; 2]> {
    let is_free = |table: &u32| is_free(*table, routes, rules);
    let is_in_use = |table: &u32| now.is_some_and(|now| now.contains(table));
    let mut others = tables_of(interface_index).filter(|table| !is_in_use(table) && is_free(table));
    let mut choose = |place: usize| now.map(|now| now[place]).filter(is_free).or_else(|| others.next());
    Some([choose(0)?, choose(1)?])
}

/// Whether no other program has routes in this table, or rules that name it.
pub(super) fn is_free(table: u32, routes: &[TableRoute], rules: &[TableRule]) -> bool {
    !routes.iter().any(|route| route.place.table == table && !route.made_by_vpnd)
        && !rules.iter().any(|rule| rule.table == table && !rule.made_by_vpnd)
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;
    use vpnd_sys::change::{LAST_RESORT_METRIC, Layer};
    use vpnd_sys::netlink::{Family, RoutePlace, RouteSpec, RouteTarget, RuleMatch, RuleSpec};

    const INDEX: u32 = 7;

    fn place(table: u32) -> RoutePlace {
        RoutePlace { destination: "192.0.2.0/24".parse().unwrap(), table, metric: 0 }
    }

    fn table(number: usize) -> u32 {
        tables_of(INDEX).nth(number).unwrap()
    }

    fn usual() -> u32 {
        table(0)
    }

    #[test]
    fn a_routing_table_in_use_is_not_taken() {
        let usual_tables = Some([usual(), table(1)]);
        assert_eq!(pick(INDEX, None, &[], &[]), usual_tables);
        let route = TableRoute { place: place(usual()), source: None, made_by_vpnd: false, ours: None };
        let rule = TableRule { table: usual(), made_by_vpnd: false, ours: None };
        for (now, others) in [(None, [table(1), table(2)]), (usual_tables, [table(2), table(1)])] {
            assert_eq!(pick(INDEX, now, from_ref(&route), &[]), Some(others));
            assert_eq!(pick(INDEX, now, &[], from_ref(&rule)), Some(others));
        }
        let own = TableRoute { made_by_vpnd: true, ..route };
        assert_eq!(pick(INDEX, usual_tables, &[own], &[]), usual_tables);
    }

    #[test]
    fn another_table_is_kept_once_it_is_taken() {
        let others = Some([table(3), table(0)]);
        assert_eq!(pick(INDEX, others, &[], &[]), others);
    }

    #[test]
    fn without_two_free_tables_there_are_none() {
        let taken = tables_of(INDEX).map(|table| TableRoute {
            place: place(table),
            source: None,
            made_by_vpnd: false,
            ours: None,
        });
        let taken: Vec<_> = taken.collect();
        assert_eq!(pick(INDEX, None, &taken[2..], &[]), Some([table(0), table(1)]));
        assert_eq!(pick(INDEX, None, &taken[1..], &[]), None);
    }

    #[test]
    fn only_vpnds_routes_and_rules_of_this_table_are_leftovers() {
        let spec = |table| RouteSpec {
            destination: "::/0".parse().unwrap(),
            target: RouteTarget::Unreachable,
            source: None,
            table,
            metric: Some(LAST_RESORT_METRIC),
        };
        let layer = Layer::all().next().unwrap();
        let (mark, mask) = layer.passed_over();
        let (matches, priority) = (RuleMatch::NotMarked { mark, mask }, layer.priority(Layer::TUNNEL_RULE));
        let rule_spec = |table| RuleSpec { family: Family::V6, priority, matches, table };
        let route = |table| TableRoute {
            place: place(table),
            source: None,
            made_by_vpnd: true,
            ours: Some(spec(table)),
        };
        let rule = |table| TableRule { table, made_by_vpnd: true, ours: Some(rule_spec(table)) };
        let (own, other) = (usual(), usual() + 1);
        let foreign = TableRoute { place: place(own), source: None, made_by_vpnd: false, ours: None };
        let left = leftovers(
            |index| index == INDEX,
            &[route(own), route(other), foreign],
            &[rule(own), rule(other)],
        );
        assert_eq!(left, [Change::Rule(rule_spec(own)), Change::Route(spec(own))]);
    }
}
