//! The guard of the tunnel's addresses in force: what another program removes or changes of it is
//! put back.
//!
//! INVARIANT: the kernel's tables are compared with what they were when they were applied. That
//! counts only once two applications have given the same, for another program may come in between.

use std::net::IpAddr;

use super::NetworkError;
use vpnd_journal::{ChangeId, Journal};
use vpnd_sys::change::Change;
use vpnd_sys::netlink::Netlink;
use vpnd_sys::nft::{GuardRules, NftError, TableWatch};
use vpnd_sys::nft_listing::Listing;

/// Applications at a time before another program's changes win until the next comparison.
const APPLICATIONS: usize = 4;

/// The guard of a running client.
pub(super) struct Guard {
    id: ChangeId,
    rules: GuardRules,
    /// `None` if the kernel reports no changes; the tables are then read at each comparison.
    watch: Option<TableWatch>,
    /// The tables as they were applied.
    applied: Option<Tables>,
    /// Whether the tables may be other than they were applied.
    is_due: bool,
    /// Whether another program changed them as often as they were applied at the last comparison.
    is_contested: bool,
    /// The program that changed them last, if it is known.
    program: Option<String>,
}

/// Tables of the guard as the kernel has them.
#[derive(Clone, PartialEq)]
struct Tables {
    packets: Listing,
    arp: Option<Listing>,
}

impl Tables {
    /// `None` if there is no guard.
    async fn read(rules: &GuardRules) -> Result<Option<Self>, NftError> {
        let table = rules.table()?;
        // Not every kernel has tables of ARP.
        let arp = if rules.marks_arp() { Listing::read_arp(&table).await.unwrap_or_default() } else { None };
        Ok(Listing::read(&table).await?.map(|packets| Self { packets, arp }))
    }
}

impl Guard {
    /// Puts it in force for the first time.
    pub(super) async fn apply(
        journal: &mut Journal,
        netlink: &Netlink,
        rules: GuardRules,
    ) -> Result<Self, NetworkError> {
        // Before the tables are read: no change passes unseen.
        let watch = TableWatch::open(&rules.table()?).inspect_err(|error| {
            tracing::info!(%error, "the kernel does not report changes of firewall tables, so the guard's are read each second");
        });
        let id = journal.apply(netlink, Change::Guard(rules.clone())).await?;
        Ok(Self {
            id,
            rules,
            watch: watch.ok(),
            applied: None,
            is_due: true,
            is_contested: false,
            program: None,
        })
    }

    /// Puts other rules in the place of those before. There is no moment without.
    pub(super) async fn replace(
        &mut self,
        journal: &mut Journal,
        netlink: &Netlink,
        rules: GuardRules,
    ) -> Result<(), NetworkError> {
        if self.rules != rules {
            journal.replace(netlink, self.id, Change::Guard(rules.clone())).await?;
            (self.rules, self.applied, self.is_due) = (rules, None, true);
        }
        Ok(())
    }

    pub(super) fn addresses(&self) -> &[IpAddr] {
        &self.rules.addresses
    }

    /// Whether the next comparison waits for no report of the kernel.
    pub(super) fn is_contested(&self) -> bool {
        self.is_contested || self.watch.is_none()
    }

    /// Waits until the tables may be other than they were applied. Safe to cancel.
    pub(super) async fn disturbed(&mut self) {
        let changed = match &mut self.watch {
            // The first report is of the application itself. What another program still changes
            // waits for the next second.
            Some(watch) if !self.is_contested => watch.changed().await,
            _ => std::future::pending().await,
        };
        self.is_due = true;
        self.program = changed.unwrap_or_else(|error| {
            tracing::warn!(%error, "the kernel does not report changes of firewall tables any more");
            self.watch = None;
            None
        });
    }

    /// Puts the tables back if they are other than they were applied. Returns what was put back,
    /// for people.
    pub(super) async fn check(
        &mut self,
        journal: &Journal,
        netlink: &Netlink,
    ) -> Result<Option<String>, NetworkError> {
        if !self.is_due && self.watch.is_some() {
            return Ok(None);
        }
        let mut found = Tables::read(&self.rules).await?;
        self.is_contested = false;
        if found.is_some() && found == self.applied {
            self.is_due = false;
            return Ok(None);
        }
        let mut is_change = self.applied.is_some() || found.is_none();
        self.is_contested = true;
        let mut last = self.applied.clone().or(found.clone());
        for _ in 0..APPLICATIONS {
            if found.is_some_and(|found| found.packets.has_other_chains()) {
                self.rules.remove().await?;
            }
            journal.renew(netlink, self.id).await?;
            found = Tables::read(&self.rules).await?;
            if found.is_some() && found == last {
                (self.applied, self.is_due, self.is_contested) = (found, false, false);
                break;
            }
            is_change |= found.is_none();
            last = found.clone();
        }
        let program = self.program.take().unwrap_or_else(|| "an unknown program".to_owned());
        Ok(is_change.then(|| format!("{} (by {program})", Change::Guard(self.rules.clone()))))
    }
}
