//! The tunnel's settings that are in force, for the user's eyes.

use super::NetworkSetup;
use super::host_addresses;
use crate::user_messages::TunnelDetails;

impl NetworkSetup {
    /// The details that this process knows.
    pub(in crate::parent) fn in_force(&self) -> TunnelDetails {
        let interface = self.link.interface.clone();
        let Some(now) = &self.in_force else {
            return TunnelDetails { interface, ..TunnelDetails::default() };
        };
        let dns = self.dns.in_use();
        TunnelDetails {
            interface,
            addresses: host_addresses(&now.usable).iter().map(|own| own.addr().to_string()).collect(),
            routes: now.routing.destinations.iter().map(ToString::to_string).collect(),
            dns: dns.iter().flat_map(|dns| &dns.servers).map(ToString::to_string).collect(),
            search: dns.iter().flat_map(|dns| &dns.search).cloned().collect(),
            mtu: Some(self.mtu),
            ..TunnelDetails::default()
        }
    }
}
