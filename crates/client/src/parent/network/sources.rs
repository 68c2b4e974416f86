//! Checks of sources, by the kernel (`rp_filter`) or by rules of a firewall, and the tunnel's own
//! datagrams: what arrives for the tunnel is marked as what it sends ([`Returning`]), and the way
//! back is looked up with that mark.

use std::time::Duration;

use super::{NetworkSetup, Routing};
use vpnd_sys::change::Change;
use vpnd_sys::clock::now;
use vpnd_sys::log_limit::LogLimit;
use vpnd_sys::netlink::Family;
use vpnd_sys::nft::Returning;
use vpnd_sys::sysctl;

impl NetworkSetup {
    /// Has the tunnel's own datagrams pass where sources are checked; logs a warning if that can't
    /// be. For the guard that is set next. Called again and again: a setting that another program
    /// has put back is set again.
    pub(super) async fn pass_source_checks(&mut self, routing: &Routing) {
        let is_checked = sysctl::checks_sources_beside(&self.interface).unwrap_or_else(|error| {
            log_drops(&vpnd_sys::text::format_chain(&error.into()));
            false
        });
        // The kernel checks sources of IPv4 alone.
        let arp = is_checked && routing.families().any(|family| family == Family::V4);
        // Rules of a firewall check both, and may come at any time.
        let leads_in = routing.families().next().is_some();
        let returning = Returning { mark: self.layer.mark(), lookups: self.options.lookups, arp };
        self.returning = leads_in.then_some(returning);
        if arp && let Err(reason) = self.make_marks_valid().await {
            log_drops(&reason);
        }
    }

    async fn make_marks_valid(&mut self) -> Result<(), String> {
        let change = Change::Sysctl(sysctl::valid_marks());
        let made = match self.valid_marks {
            Some(_) if change.is_in_force() => Ok(()),
            Some(Some(id)) => {
                let made = self.journal.renew(&self.netlink, id).await;
                made.inspect(|()| self.renewals.note(&[change.to_string()], now()))
            }
            _ => {
                let made = self.journal.apply_shared(&self.netlink, change).await;
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
