//! The gateway's firewall table stays in force: what another program removes or changes is put
//! back.
//!
//! Many programs begin by removing all tables (`nft flush ruleset`), and forwarding stays on: the
//! machine would be an open router.
//!
//! INVARIANT: the kernel's table is compared with what it was when it was applied, so own changes
//! need no exception. What that was counts only once two applications have given the same, for
//! another program may come between application and look. INVARIANT: while the table can't be put
//! back, vpnd forwards nothing by a setting that it made.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use vpnd_ipc::admin::status;
use vpnd_journal::{ChangeId, Journal, JournalError};
use vpnd_sys::change::Change;
use vpnd_sys::clock::now;
use vpnd_sys::log_limit::LogLimit;
use vpnd_sys::netlink::Netlink;
use vpnd_sys::nft::{GatewayRules, NftError, TableWatch, table_name};
use vpnd_sys::nft_listing::Listing;
use vpnd_sys::renewal_log::{RenewalLine, RenewalLog};
use vpnd_sys::sysctl::SysctlChange;

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
    /// A change that was reported and not looked at, with the program that made it, if that is
    /// known.
    pending: Option<Option<String>>,
    not_before: Instant,
    renewals: u64,
    /// Packets over the limit of connections, and how many of them the rules in force have counted.
    over_limit: u64,
    counted: u64,
    failures: u32,
    log: RenewalLog,
    full: LogLimit,
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
    /// Applies `rules`, in place of those of an earlier gateway if there are some, and watches them
    /// afterwards.
    ///
    /// # Errors
    /// If they can't be applied.
    pub(super) async fn apply(
        journal: &mut Journal,
        netlink: &Netlink,
        earlier: Option<ChangeId>,
        rules: GatewayRules,
    ) -> anyhow::Result<Self> {
        let table = table_name(&rules.tunnel)?;
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
            over_limit: 0,
            counted: 0,
            failures: 0,
            log: RenewalLog::new(),
            full: LogLimit::new(1, Duration::from_secs(60)),
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
        // For its counts alone.
        let _ = self.look().await;
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

    /// Whether packets pass without the table, because it can't be put back.
    pub(super) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    pub(super) fn report(&self) -> status::Firewall {
        status::Firewall {
            table: self.table.clone(),
            rules: self.applied.as_ref().map(Listing::digest),
            renewals: self.renewals,
            over_limit: self.over_limit,
        }
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

    /// Looks at the table, and puts it back if it is other than it was applied.
    pub(super) async fn check(&mut self, journal: &Journal, netlink: &Netlink) {
        let reported = self.pending.take();
        match self.look().await {
            Ok(Some(found)) if self.applied.as_ref() == Some(&found) => return,
            // Nothing has changed it, but for the program that reads it.
            Err(error) if reported.is_none() && self.failures == 0 => {
                return tracing::warn!(%error, "the firewall table can't be read");
            }
            Ok(_) | Err(_) => {}
        }
        self.not_before = Instant::now() + RENEWAL_INTERVAL;
        match self.renew(journal, netlink).await {
            Ok(()) => self.renewed(journal, reported.flatten().as_deref()),
            Err(error) => self.failed(journal, &error),
        }
    }

    /// Reads the table, and what its rules have counted.
    async fn look(&mut self) -> Result<Option<Listing>, NftError> {
        let found = Listing::read(&self.table).await?;
        if let Some(found) = &found {
            self.count(found);
        }
        Ok(found)
    }

    /// Adds what the rules have dropped since the last look; rules that are applied count from 0.
    fn count(&mut self, found: &Listing) {
        let more = found.dropped().checked_sub(self.counted).unwrap_or_else(|| found.dropped());
        (self.counted, self.over_limit) = (found.dropped(), self.over_limit.saturating_add(more));
        if let Some(limit) = self.rules.connections
            && more > 0
            && self.full.admits()
        {
            tracing::warn!(
                packets = more,
                "clients have more connections than max_connections_per_address in [limits] ({}), and get no more; \
                 'conntrack -L' lists them by address",
                limit.per_address
            );
        }
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
                self.counted = 0;
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
        match self.log.note(now()) {
            Some(RenewalLine::Once) => tracing::warn!(
                program,
                renewals,
                "another program has removed or changed the gateway's firewall table inet {table}; it is in force again"
            ),
            Some(RenewalLine::Fight) => tracing::error!(
                program,
                renewals,
                "another program removes or changes the gateway's firewall table again and again, and packets pass without it for \
                 moments: have that program leave the table inet {table} alone (instead of all tables, flush its own), or have it \
                 do the gateway's work, with mode = \"none\" in [nat]"
            ),
            None => {}
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
