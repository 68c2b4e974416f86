//! Routes to the clients of a gateway of a fleet, as the worker has them announced.
//!
//! INVARIANT: only addresses of the pools are announced, and none of the gateway's own. Which of
//! these have sessions is the worker's word: it carries their packets.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use super::machine;
use vpnd_config::ServerConfig;
use vpnd_ipc::child::ChildRole;
use vpnd_ipc::gateway::{HostRouteChanges, MAX_HOSTS};
use vpnd_ipc::spawn::ChildError;
use vpnd_sys::allowance::Allowance;
use vpnd_sys::clock::now;

/// Requests at once, and time for each further one.
const BURST: u32 = 64;
const INTERVAL: Duration = Duration::from_millis(20);

/// Limits of the worker's requests.
pub(super) struct Hosts {
    pools: Vec<IpNet>,
    /// The gateway's own addresses.
    own: Vec<IpAddr>,
    rate: Allowance,
}

impl Hosts {
    /// For a gateway of a fleet; others announce nothing.
    pub(super) fn new(config: &ServerConfig) -> Self {
        let pools = if config.fleet.is_some() { config.tunnel.pools().collect() } else { Vec::new() };
        let own = machine::gateway_addresses(config).iter().map(IpNet::addr).collect();
        Self { pools, own, rate: Allowance::new(BURST, INTERVAL) }
    }

    /// Whether there is time for a request now.
    ///
    /// # Errors
    /// If no worker sends such a request.
    pub(super) fn admit(&mut self, changes: &HostRouteChanges) -> Result<bool, ChildError> {
        if !self.is_plausible(changes) {
            return Err(ChildError::Unexpected(ChildRole::Worker));
        }
        Ok(self.rate.take(now()))
    }

    fn is_plausible(&self, changes: &HostRouteChanges) -> bool {
        let routes = || changes.added.iter().chain(&changes.removed);
        routes().count() <= MAX_HOSTS
            && routes().all(|route| {
                self.pools.iter().any(|pool| pool.contains(&route.address))
                    && !self.own.contains(&route.address)
            })
    }
}

#[cfg(test)]
mod tests {
    use vpnd_ipc::gateway::HostRoute;

    use super::*;

    fn hosts() -> Hosts {
        Hosts {
            pools: vec!["10.86.0.0/16".parse().unwrap(), "fd86::/64".parse().unwrap()],
            own: vec!["10.86.0.1".parse().unwrap()],
            rate: Allowance::new(BURST, INTERVAL),
        }
    }

    fn routes(addresses: &[&str]) -> Vec<HostRoute> {
        let route = |address: &&str| HostRoute { address: address.parse().unwrap(), metric: 1 };
        addresses.iter().map(route).collect()
    }

    #[test]
    fn nothing_but_addresses_of_the_pools_is_announced() {
        let is_plausible = |added: &[&str], removed: &[&str]| {
            hosts().is_plausible(&HostRouteChanges { added: routes(added), removed: routes(removed) })
        };
        assert!(is_plausible(&["10.86.0.7", "fd86::7"], &["10.86.0.8"]));
        for other in ["10.87.0.0", "0.0.0.0", "192.0.2.1", "fd87::1", "::ffff:10.86.0.7", "10.86.0.1"] {
            assert!(!is_plausible(&[other], &[]) && !is_plausible(&[], &[other]), "{other}");
        }
        assert!(!is_plausible(&["10.86.0.7"; MAX_HOSTS], &["10.86.0.7"]));
        let alone = vpnd_config::testing::smallest("");
        let changes = HostRouteChanges { added: routes(&["10.86.0.7"]), removed: Vec::new() };
        assert!(Hosts::new(&alone).admit(&changes).is_err(), "a gateway of no fleet");
    }

    #[test]
    fn announcements_of_a_worker_are_rate_limited() {
        let mut hosts = hosts();
        let admitted = (0..BURST * 2).filter(|_| hosts.admit(&HostRouteChanges::default()).unwrap()).count();
        assert!(admitted < BURST as usize * 2);
    }
}
