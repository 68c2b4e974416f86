//! The gateway's firewall table stays in force: what another program removes or changes is put back.
//!
//! Many programs begin by removing all tables (`nft flush ruleset`), and forwarding stays on: the machine would be an open router.
//!
//! INVARIANT: the kernel's table is compared with what it was when it was applied, so own changes need no exception. What that was
//! counts only once two applications have given the same, for another program may come between application and look.
//! INVARIANT: while the table can't be put back, vpnd forwards nothing by a setting of its own.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::clock::now;
use crate::journal::{ChangeId, Journal, JournalError};
use crate::log_limit::LogLimit;
use crate::privsep::allowance::Allowance;
use crate::sys::change::Change;
use crate::sys::netlink::Netlink;
use crate::sys::nft::{GatewayRules, Listing, NftError, TableWatch};
use crate::sys::sysctl::SysctlChange;

/// Applications before another program's changes win.
const APPLICATIONS: usize = 4;
/// Shortest time between two renewals.
const RENEWAL_INTERVAL: Duration = Duration::from_millis(200);
/// Failed renewals in a row until forwarding is switched off.
const MAX_FAILURES: u32 = 3;

/// The table of a running gateway.
pub(super) struct Firewall {
    id: ChangeId,
    rules: GatewayRules,
    table: String,
    /// `None` if the kernel reports no changes, or the table can't be read.
    watch: Option<TableWatch>,
    /// The table as it was applied; `None` while it is not known to be in force.
    applied: Option<Listing>,
    /// A change that was reported and not looked at, with the program that made it, if that is known.
    pending: Option<Option<String>>,
    not_before: Instant,
    renewals: u64,
    failures: u32,
    recent: Allowance,
    fights: LogLimit,
}

#[derive(Debug, thiserror::Error)]
enum RenewalError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Nft(#[from] NftError),
    #[error("another program changes the table as soon as it is applied")]
    Contested,
}

impl Firewall {
    /// Applies `rules`, in place of those of an earlier gateway if there are some, and watches them from then on.
    ///
    /// # Errors
    /// If they can't be applied.
    pub(super) async fn apply(
        journal: &mut Journal,
        netlink: &Netlink,
        earlier: Option<ChangeId>,
        rules: GatewayRules,
    ) -> anyhow::Result<Self> {
        let table = rules.table()?;
        // Before the table is read: no change passes unseen.
        let watch = TableWatch::open(&table);
        let change = Change::Firewall(rules.clone());
        let id = match earlier {
            Some(id) => {
                journal.replace(netlink, id, change).await?;
                id
            }
            None => journal.apply(netlink, change).await?,
        };
        let mut firewall = Self {
            id,
            rules,
            table,
            watch: None,
            applied: None,
            pending: None,
            not_before: Instant::now(),
            renewals: 0,
            failures: 0,
            recent: Allowance::new(5, Duration::from_secs(12)),
            fights: LogLimit::new(1, Duration::from_secs(60)),
        };
        match watch {
            Ok(watch) => firewall.watch = Some(watch),
            Err(error) => tracing::warn!(
                %error,
                "the kernel does not report changes of firewall tables: a table that another program removes is put back \
                 some seconds later"
            ),
        }
        firewall.confirm(journal, netlink).await;
        Ok(firewall)
    }

    /// Applies other rules.
    ///
    /// # Errors
    /// If they can't be applied; those of before stay in force.
    pub(super) async fn replace(
        &mut self,
        journal: &mut Journal,
        netlink: &Netlink,
        rules: GatewayRules,
    ) -> Result<(), JournalError> {
        journal.replace(netlink, self.id, Change::Firewall(rules.clone())).await?;
        if self.rules != rules {
            (self.rules, self.applied) = (rules, None);
        }
        self.confirm(journal, netlink).await;
        Ok(())
    }

    pub(super) fn rules(&self) -> &GatewayRules {
        &self.rules
    }

    /// Waits until the table may be other than it was applied. Safe to cancel.
    pub(super) async fn disturbed(&mut self) {
        if self.pending.is_none() && self.failures == 0 {
            let program = match &mut self.watch {
                Some(watch) => watch.changed().await,
                None => std::future::pending().await,
            };
            self.pending = Some(program.unwrap_or_else(|error| {
                tracing::error!(%error, "the kernel does not report changes of firewall tables any more");
                self.watch = None;
                None
            }));
        }
        sleep_until(self.not_before).await;
    }

    /// Looks at the table, and puts it back if it is other than it was applied. Returns whether that was necessary.
    pub(super) async fn check(&mut self, journal: &Journal, netlink: &Netlink) -> bool {
        let reported = self.pending.take();
        match Listing::read(&self.table).await {
            Ok(Some(found)) if self.applied.as_ref() == Some(&found) => return false,
            // Nothing has changed it, but for the program that reads it.
            Err(error) if reported.is_none() && self.failures == 0 => {
                tracing::warn!(%error, "the firewall table can't be looked at");
                return false;
            }
            Ok(_) | Err(_) => {}
        }
        self.not_before = Instant::now() + RENEWAL_INTERVAL;
        match self.renew(journal, netlink).await {
            Ok(()) => self.renewed(journal, reported.flatten().as_deref()),
            Err(error) => self.failed(journal, &error),
        }
        true
    }

    /// Reads the rules back that were just applied.
    async fn confirm(&mut self, journal: &Journal, netlink: &Netlink) {
        match self.settle(journal, netlink).await {
            Ok(()) => self.failures = 0,
            Err(RenewalError::Nft(error)) => {
                tracing::error!(
                    %error,
                    "the firewall table can't be read back, so it is not watched: what another program removes of it stays \
                     removed until 'vpnd reload'"
                );
                (self.watch, self.applied) = (None, None);
            }
            Err(_) => self.pending = Some(None),
        }
    }

    async fn renew(&mut self, journal: &Journal, netlink: &Netlink) -> Result<(), RenewalError> {
        journal.renew(netlink, self.id).await?;
        self.settle(journal, netlink).await
    }

    /// Applies the rules until the kernel has twice the same, or the same as before.
    async fn settle(&mut self, journal: &Journal, netlink: &Netlink) -> Result<(), RenewalError> {
        let mut last = self.applied.clone();
        for application in 1.. {
            let found = Listing::read(&self.table).await?;
            if found.as_ref().is_some_and(|found| !found.has_other_chains()) && found == last {
                self.applied = found;
                return Ok(());
            }
            if application == APPLICATIONS {
                break;
            }
            if found.as_ref().is_some_and(Listing::has_other_chains) {
                self.rules.apply_to_new_table().await?;
            } else {
                journal.renew(netlink, self.id).await?;
            }
            last = found;
        }
        Err(RenewalError::Contested)
    }

    fn renewed(&mut self, journal: &Journal, program: Option<&str>) {
        self.renewals += 1;
        if self.failures >= MAX_FAILURES {
            for setting in settings(journal) {
                if let Err(error) = setting.apply() {
                    tracing::error!(%error, "forwarding stays off");
                }
            }
        }
        self.failures = 0;
        let (program, renewals, table) = (program.unwrap_or("unknown"), self.renewals, &self.table);
        if self.recent.take(now()) {
            tracing::warn!(
                program,
                renewals,
                "another program has removed or changed the gateway's firewall table inet {table}; it is in force again"
            );
        } else if self.fights.admits() {
            tracing::error!(
                program,
                renewals,
                "another program removes or changes the gateway's firewall table again and again, and packets pass without it for \
                 moments: have that program leave the table inet {table} alone (instead of all tables, flush its own), or have it \
                 do the gateway's work, with mode = \"none\" in [nat]"
            );
        }
    }

    fn failed(&mut self, journal: &Journal, error: &RenewalError) {
        self.failures = self.failures.saturating_add(1);
        if self.failures != MAX_FAILURES {
            tracing::warn!(%error, "the gateway's firewall table is removed or changed, and can't be put back yet");
            return;
        }
        let mut is_off = false;
        for setting in settings(journal).into_iter().rev() {
            match setting.undo() {
                Ok(_) => is_off = true,
                Err(error) => tracing::error!(%error, "forwarding stays on"),
            }
        }
        let state = if is_off {
            "forwarding, which vpnd had switched on, is off until it can"
        } else {
            "this machine forwarded before vpnd did and goes on without these rules"
        };
        tracing::error!(%error, "the gateway's firewall table is removed or changed and can't be put back: {state}");
    }
}

/// The kernel's settings that vpnd has changed, in that order.
fn settings(journal: &Journal) -> Vec<SysctlChange> {
    let settings = journal.in_force().into_iter().filter_map(|(_, change)| match change {
        Change::Sysctl(setting) => Some(setting),
        _ => None,
    });
    settings.collect()
}
