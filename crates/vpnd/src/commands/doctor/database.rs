//! The database with the users, where the store is one.

use super::Finding;
use crate::admin_store::{DatabaseFacts, Opening, Stores};
use vpnd_config::ServerConfig;
use vpnd_store::postgres::CLOCK_TOLERANCE_S;

const CHECK: &str = "store.database";
/// Connections that a gateway takes.
const OF_GATEWAY: u64 = 4;
/// Seconds by which a clock may differ without a word.
const UNREMARKABLE_S: u64 = 3;

/// Whether it can be used, and whether it keeps what it acknowledges.
pub(super) fn findings(config: &ServerConfig, stores: &dyn Stores) -> Vec<Finding> {
    if config.store.database().is_none() {
        return Vec::new();
    }
    let facts = stores.open(config, Opening::Inspect).and_then(|mut store| store.facts());
    let facts = match facts {
        Ok(Some(facts)) => facts,
        // Its faults are among the findings of `vpnd check`.
        Ok(None) | Err(_) => return Vec::new(),
    };
    judged(&facts, config.fleet.is_some())
}

fn judged(facts: &DatabaseFacts, is_in_fleet: bool) -> Vec<Finding> {
    let mut findings = vec![Finding::good(CHECK, format!("PostgreSQL {}", facts.version))];
    let left = facts.connections_left;
    if left < OF_GATEWAY {
        findings.push(Finding::warning(
            "store.database.connections",
            format!("it has {left} connections left for this role: a gateway that starts takes {OF_GATEWAY}"),
            "raise 'max_connections' there, or the limit of the role or database; 'SELECT * FROM pg_stat_activity' shows who has them",
        ));
    }
    let apart_s = facts.clock_apart_s;
    if is_in_fleet && apart_s > UNREMARKABLE_S {
        findings.push(Finding::warning(
            "store.database.clock",
            format!("its clock is {apart_s} s apart from this machine's: from {CLOCK_TOLERANCE_S} s on no gateway joins"),
            "have both synchronised (chrony, systemd-timesyncd)",
        ));
    }
    if !facts.fsync {
        findings.push(Finding::problem(
            CHECK,
            "fsync is off on the database server: it loses what it has acknowledged if its machine fails",
            "set fsync = on in its postgresql.conf",
        ));
    }
    if facts.synchronous_commit == "off" {
        findings.push(Finding::warning(
            CHECK,
            "synchronous_commit is off for this database or role; vpnd switches it on for its own changes",
            "set synchronous_commit = on there, for other programs that change the database",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_judged_by_what_it_has_left_and_by_its_clock() {
        let facts = |connections_left, clock_apart_s| DatabaseFacts {
            version: "15.1".to_owned(),
            synchronous_commit: "on".to_owned(),
            fsync: true,
            connections_left,
            clock_apart_s,
        };
        let found = |facts: &DatabaseFacts, is_in_fleet| {
            let findings = judged(facts, is_in_fleet);
            findings.iter().map(|finding| finding.check).skip(1).collect::<Vec<_>>()
        };
        assert!(found(&facts(4, 3), true).is_empty());
        assert_eq!(found(&facts(3, 0), false), ["store.database.connections"]);
        assert_eq!(found(&facts(40, 4), true), ["store.database.clock"]);
        assert!(found(&facts(40, 400), false).is_empty(), "alone it needs no common clock");
    }
}
