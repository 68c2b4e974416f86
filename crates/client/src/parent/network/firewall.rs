//! The firewall's part of the tunnel: the guard of its addresses, and marks that let its own
//! datagrams pass where sources are checked.
//!
//! Sources are checked by the kernel (`rp_filter`) or by rules of a firewall. What arrives for the
//! tunnel is marked as what it sends ([`Returning`]), and the way back is looked up with that mark.

use std::net::IpAddr;
use std::time::Duration;

use super::guard::Guard;
use super::renewals::Renewals;
use super::{NetworkError, Routing, TunnelLink};
use vpnd_journal::ChangeId;
use vpnd_sys::change::Change;
use vpnd_sys::clock::now;
use vpnd_sys::log_limit::LogLimit;
use vpnd_sys::netlink::Family;
use vpnd_sys::nft::{GuardRules, MarkMatch, Returning};
use vpnd_sys::sysctl;

/// The part in force.
#[derive(Default)]
pub(super) struct Firewall {
    guard: Option<Guard>,
    /// Datagrams that the guard marks on arrival.
    returning: Option<Returning>,
    /// Set once the kernel looks for the way back with a packet's mark; with the change, unless
    /// another program has made it.
    valid_marks: Option<Option<ChangeId>>,
}

impl Firewall {
    /// The guarded addresses; none before there is a guard.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        self.guard.as_ref().map(|guard| guard.addresses().to_vec()).unwrap_or_default()
    }

    /// Guards these addresses in place of those before. The first guard is for some address.
    pub(super) async fn guard(
        &mut self,
        link: &mut TunnelLink,
        addresses: Vec<IpAddr>,
        closes_names: bool,
    ) -> Result<(), NetworkError> {
        let (mark, mask) = link.layer.passed_over();
        let rules = GuardRules {
            tunnel: link.interface.clone(),
            addresses,
            returning: self.returning,
            excluded: Some(MarkMatch { mark, mask }),
            closes_names,
        };
        match &mut self.guard {
            Some(guard) => guard.replace(&mut link.journal, &link.netlink, rules).await?,
            None if rules.addresses.is_empty() => {}
            None => self.guard = Some(Guard::apply(&mut link.journal, &link.netlink, rules).await?),
        }
        Ok(())
    }

    /// Puts the guard back if another program has removed or changed it.
    pub(super) async fn renew(
        &mut self,
        link: &TunnelLink,
        renewals: &mut Renewals,
    ) -> Result<(), NetworkError> {
        if let Some(guard) = &mut self.guard
            && let Some(changed) = guard.check(&link.journal, &link.netlink).await?
        {
            renewals.note(&[changed], now());
        }
        Ok(())
    }

    /// Whether the guard is to be compared without a report of the kernel.
    pub(super) fn is_contested(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_contested)
    }

    /// Waits until another program may have removed or changed the guard. Safe to cancel.
    pub(super) async fn disturbed(&mut self) {
        match &mut self.guard {
            Some(guard) => guard.disturbed().await,
            None => std::future::pending().await,
        }
    }

    /// Has the tunnel's own datagrams pass where sources are checked; logs a warning if that can't
    /// be. For the guard that is set next. Called again and again: a setting that another program
    /// has put back is set again.
    pub(super) async fn pass_source_checks(
        &mut self,
        link: &mut TunnelLink,
        routing: &Routing,
        lookups: Option<u32>,
        renewals: &mut Renewals,
    ) {
        let is_checked = sysctl::checks_sources_beside(&link.interface).unwrap_or_else(|error| {
            log_drops(&vpnd_sys::text::format_chain(&error.into()));
            false
        });
        // The kernel checks sources of IPv4 alone.
        let arp = is_checked && routing.families().any(|family| family == Family::V4);
        // Rules of a firewall check both, and may come at any time.
        let leads_in = routing.families().next().is_some();
        let returning = Returning { mark: link.layer.mark(), lookups, arp };
        self.returning = leads_in.then_some(returning);
        if arp && let Err(reason) = self.make_marks_valid(link, renewals).await {
            log_drops(&reason);
        }
    }

    async fn make_marks_valid(
        &mut self,
        link: &mut TunnelLink,
        renewals: &mut Renewals,
    ) -> Result<(), String> {
        let change = Change::Sysctl(sysctl::valid_marks());
        let made = match self.valid_marks {
            Some(_) if change.is_in_force() => Ok(()),
            Some(Some(id)) => {
                let made = link.journal.renew(&link.netlink, id).await;
                made.inspect(|()| renewals.note(&[change.to_string()], now()))
            }
            _ => {
                let made = link.journal.apply_shared(&link.netlink, change).await;
                made.map(|id| self.valid_marks = Some(id))
            }
        };
        made.map_err(|error| vpnd_sys::text::format_chain(&error.into()))
    }
}

static DROPS: LogLimit = LogLimit::new(1, Duration::from_secs(60));

fn log_drops(reason: &str) {
    if !DROPS.admits() {
        return;
    }
    tracing::warn!(
        error = reason,
        "the kernel checks sources (net.ipv4.conf.*.rp_filter), and may drop the tunnel's own datagrams: if the tunnel carries \
         nothing, set net.ipv4.conf.all.src_valid_mark = 1 in a file in /etc/sysctl.d"
    );
}
