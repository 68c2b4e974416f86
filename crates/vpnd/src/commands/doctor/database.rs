//! The database with the users, where the store is one.

use super::Finding;
use crate::admin_store::{Opening, Stores};
use vpnd_config::ServerConfig;

const CHECK: &str = "store.database";

/// Whether it can be used, and whether it keeps what it acknowledges.
pub(super) fn findings(config: &ServerConfig, stores: &dyn Stores) -> Vec<Finding> {
    if config.store.database().is_none() {
        return Vec::new();
    }
    let facts = stores.open(config, Opening::Inspect).and_then(|mut store| store.facts());
    let facts = match facts {
        Ok(Some(facts)) => facts,
        // What is wrong with it stands among the findings of `vpnd check`.
        Ok(None) | Err(_) => return Vec::new(),
    };
    let mut findings = vec![Finding::good(CHECK, format!("PostgreSQL {}", facts.version))];
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
            "set synchronous_commit = on there, for whoever else changes the database",
        ));
    }
    findings
}
