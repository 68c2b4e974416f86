//! Inner addresses whose sessions are over: the kernel forgets their connections, so that whoever gets an address next gets no
//! packet of them, by state of the firewall or of translation.
//!
//! INVARIANT: nothing but entries of addresses of the pools is removed, and none of the gateway's own. Which of these are in use is
//! the worker's word: it carries their packets, and could drop these as well.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use tokio::task::JoinHandle;

use super::machine;
use crate::clock::now;
use crate::config::{NatMode, ServerConfig};
use crate::gateway::messages::MAX_RELEASED;
use crate::privsep::allowance::Allowance;
use crate::privsep::child::ChildRole;
use crate::privsep::spawn::ChildError;
use crate::sys::conntrack;

/// The removal of entries, one after the other.
pub(super) struct Releases {
    pools: Vec<IpNet>,
    /// The gateway's own addresses.
    own: Vec<IpAddr>,
    is_forwarding: bool,
    allowance: Allowance,
    under_way: Option<JoinHandle<io::Result<usize>>>,
}

impl Releases {
    pub(super) fn new(config: &ServerConfig) -> Self {
        // Each request lists all connections of the machine.
        let allowance = Allowance::new(32, Duration::from_millis(200));
        Self {
            pools: config.tunnel.pools().collect(),
            own: machine::gateway_addresses(config).iter().map(IpNet::addr).collect(),
            is_forwarding: config.nat.mode != NatMode::None,
            allowance,
            under_way: None,
        }
    }

    /// Begins to remove the entries of these addresses, once those before are done.
    ///
    /// # Errors
    /// If no worker releases such addresses.
    pub(super) async fn begin(&mut self, addresses: Vec<IpAddr>) -> Result<(), ChildError> {
        let addresses = self.check(addresses).ok_or(ChildError::Unexpected(ChildRole::Worker))?;
        if self.under_way.is_some() {
            self.done().await;
        }
        let is_allowed = self.allowance.take(now());
        let forget = move || match is_allowed {
            true => conntrack::forget_addresses(&addresses),
            false => Err(io::Error::other("the worker asks for it too often")),
        };
        // Without forwarding, which connections the kernel knows is the affair of the machine's own firewall.
        self.under_way = Some(match self.is_forwarding {
            true => tokio::task::spawn_blocking(forget),
            false => tokio::task::spawn_blocking(|| Ok(0)),
        });
        Ok(())
    }

    /// `None` if no session can have had one of these addresses.
    fn check(&self, addresses: Vec<IpAddr>) -> Option<BTreeSet<IpAddr>> {
        let is_releasable = |address: &IpAddr| {
            self.pools.iter().any(|pool| pool.contains(address)) && !self.own.contains(address)
        };
        let all = addresses.len() <= MAX_RELEASED && addresses.iter().all(is_releasable);
        all.then(|| addresses.into_iter().collect())
    }

    /// Waits until the removal that is under way is over; for ever if there is none.
    pub(super) async fn done(&mut self) {
        let Some(task) = &mut self.under_way else { return std::future::pending().await };
        let removed = task.await.map_err(io::Error::other).and_then(|removed| removed);
        self.under_way = None;
        match removed {
            Ok(removed) => tracing::debug!(removed, "connections of ended sessions are forgotten"),
            Err(error) => tracing::warn!(
                %error,
                "connections of ended sessions stay in the kernel's table until they time out; whoever gets an address next may \
                 get packets of them"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn releases() -> Releases {
        Releases {
            pools: vec!["10.86.0.0/16".parse().unwrap(), "fd86::/64".parse().unwrap()],
            own: vec!["10.86.0.1".parse().unwrap()],
            is_forwarding: true,
            allowance: Allowance::new(1, Duration::from_secs(1)),
            under_way: None,
        }
    }

    #[test]
    fn nothing_but_addresses_of_the_pools_is_released() {
        let check = |text: &[&str]| {
            let addresses = text.iter().map(|text| text.parse().unwrap()).collect();
            releases().check(addresses).map(|addresses| addresses.len())
        };
        assert_eq!(check(&["10.86.0.7", "10.86.0.7", "fd86::7"]), Some(2));
        for other in ["10.85.255.255", "10.87.0.0", "192.0.2.1", "fd87::1", "::ffff:10.86.0.7", "10.86.0.1"] {
            assert_eq!(check(&["10.86.0.7", other]), None, "{other}");
        }
        assert_eq!(check(&vec!["10.86.0.7"; MAX_RELEASED + 1]), None);
    }
}
