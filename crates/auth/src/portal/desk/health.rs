//! The gateway's state and health at the desk, the latter in the words of `vpnd doctor`.
//!
//! INVARIANT: it is judged here, by what this process knows and the worker has reported; the portal
//! shows it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::actor::Actor;
use crate::portal::first;
use crate::portal::process::Process;
use crate::portal::record::Record;
use crate::store::reported;
use vpnd_admission::access::Access;
use vpnd_admission::authenticator::Authenticator;
use vpnd_admission::lease;
use vpnd_admission::notices::Membership;
use vpnd_config::access_profile::Who;
use vpnd_ipc::admin::status::{self, FleetGateway, Source};
use vpnd_ipc::gateway::auth::AuditHealth;
use vpnd_ipc::gateway::portal::desk::{DeskState, ListedFinding, MAX_LISTED, ProfileCount, WorkerShown};
use vpnd_ipc::health::{self, Finding};
use vpnd_ipc::request::Reason;
use vpnd_proto::control::Text;
use vpnd_store::{Owner, Store, StoreError};
use vpnd_sys::clock::{Clocks, now};

pub(super) struct Health {
    pub(super) store: Arc<dyn Store>,
    pub(super) authenticator: Arc<Authenticator>,
    pub(super) access: Arc<Access>,
    pub(super) clocks: Clocks,
    pub(super) record: Arc<Record>,
    pub(super) fleet: Arc<Membership>,
    pub(super) process: Arc<Process>,
}

impl Health {
    pub(super) fn state(&self, actor: &Actor) -> Result<DeskState, StoreError> {
        let steady_s = (self.clocks.steady)();
        let mut counts: BTreeMap<Option<String>, u64> = BTreeMap::new();
        for Owner { user, source, groups, sessions } in self.store.session_owners(steady_s)? {
            let who = Who { user: &user, source: &source, groups: &groups };
            let profile = self.access.profile_of(who);
            *counts.entry(profile.map(|profile| profile.title().to_owned())).or_default() += sessions;
        }
        let count = |(profile, sessions): (Option<String>, u64)| ProfileCount {
            profile: profile.as_deref().map(Text::cut),
            sessions,
        };
        Ok(DeskState {
            role: actor.role,
            users: self.store.find_users("", None, 0)?.more,
            profiles: first(counts.into_iter().map(count)),
            pools: first(lease::usage(&self.access.pools(), self.store.as_ref(), steady_s)?),
            sources: first(self.authenticator.source_health()),
            audit: self.record.health().map(|health| AuditHealth {
                lost: health.lost,
                failure: health.failure.as_deref().map(Reason::cut),
            }),
            portal: self.process.health(),
            worker: actor.desk.watch.state(now()).map(|state| WorkerShown {
                version: state.version,
                uptime_s: state.uptime_s,
                certificate_left_s: state.certificate_left_s,
                drops: first(state.drops),
            }),
            findings: first(self.findings(actor)?),
            refused: first(self.record.refusals.counts()),
        })
    }

    /// All findings, the worst first.
    fn findings(&self, actor: &Actor) -> Result<Vec<ListedFinding>, StoreError> {
        let mut findings = vec![match actor.desk.watch.state(now()) {
            Some(worker) => health::certificate(worker.certificate_left_s),
            None => {
                let advice = "look at: journalctl -u vpnd-server";
                Finding::unknown("gateway", "the gateway has not reported its state in time", advice)
            }
        }];
        if let Some(portal) = self.process.health().map(status::Portal::from) {
            findings.push(health::portal(&portal));
            findings.extend(health::portal_certificate(&portal));
        }
        if let Some(audit) = self.record.health() {
            findings.push(health::audit(audit.failure.as_deref(), audit.lost));
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

const _: () = assert!(MAX_LISTED > 64, "there are as many profiles, and users in none");
