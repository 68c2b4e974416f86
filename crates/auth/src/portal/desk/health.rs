//! The gateway's health at the desk, in the words of `vpnd doctor`.
//!
//! INVARIANT: it is judged here, by what this process knows and the worker has reported; the portal
//! shows it.

use std::cmp::Reverse;

use super::{Actor, Portal};
use crate::lease;
use crate::portal::now;
use crate::store::reported;
use vpnd_ipc::admin::status::{self, FleetGateway, Source};
use vpnd_ipc::gateway::portal::desk::ListedFinding;
use vpnd_ipc::health::{self, Finding};
use vpnd_store::StoreError;

impl Portal {
    /// All findings, the worst first.
    pub(super) fn findings(&self, actor: &Actor) -> Result<Vec<ListedFinding>, StoreError> {
        let mut findings = vec![match actor.desk.watch.state(now()) {
            Some(worker) => health::certificate(worker.certificate_left_s),
            None => {
                let advice = "look at: journalctl -u vpnd-server";
                Finding::unknown("gateway", "the gateway has not reported its state in time", advice)
            }
        }];
        if let Some(portal) = self.health().map(status::Portal::from) {
            findings.push(health::portal(&portal));
            findings.extend(health::portal_certificate(&portal));
        }
        if let Some(health) = self.record.health() {
            findings.push(health::audit(health.failure.as_deref(), health.lost));
        }
        for source in self.authenticator.source_health() {
            findings.extend(health::source(&Source::from(source)));
        }
        let pools = self.access.pools();
        for usage in lease::usage(&pools, self.store.as_ref(), (self.clocks.steady)())? {
            findings.push(health::pool(&usage.pool, usage.total, usage.taken));
        }
        if self.fleet.is_in_fleet() {
            let gateways =
                self.store.gateways()?.into_iter().map(|state| FleetGateway::from(reported(state)));
            // Which addresses clients are given the worker knows, and `vpnd doctor`.
            findings.extend(health::fleet::findings(&gateways.collect::<Vec<_>>(), &[]));
        }
        findings.sort_by_key(|finding| Reverse(finding.verdict));
        Ok(findings.into_iter().map(ListedFinding::from).collect())
    }
}
