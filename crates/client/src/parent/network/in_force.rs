//! The tunnel's settings that are in force, for the user's eyes.

use super::NetworkSetup;
use super::host_addresses;
use crate::user_messages::TunnelDetails;

impl NetworkSetup {
    /// As much of the details as is known here.
    pub(in crate::parent) fn in_force(&self) -> TunnelDetails {
        let interface = self.link.interface.clone();
        let Some((network, routing)) = &self.in_force else {
            return TunnelDetails { interface, ..TunnelDetails::default() };
        };
        let dns = self.dns.in_use();
        TunnelDetails {
            interface,
            addresses: host_addresses(network).iter().map(|own| own.addr().to_string()).collect(),
            routes: routing.destinations.iter().map(ToString::to_string).collect(),
            dns: dns.iter().flat_map(|dns| &dns.servers).map(ToString::to_string).collect(),
            search: dns.iter().flat_map(|dns| &dns.search).cloned().collect(),
            mtu: Some(self.mtu),
            ..TunnelDetails::default()
        }
    }
}
