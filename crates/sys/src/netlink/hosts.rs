//! Routes to single hosts in a tunnel, in a separate table.
//!
//! They come and go with sessions, too often to be written down one by one: what is written down is
//! the table. INVARIANT: only routes of whole addresses that vpnd has made are removed from it.

use std::net::IpAddr;

use ipnet::IpNet;
use rtnetlink::packet_route::route::{RouteMessage, RouteProtocol};
use serde::{Deserialize, Serialize};

use super::route::table_of;
use super::{Netlink, NetlinkError, PROTOCOL, RouteSpec, RouteTarget};

/// The table with the routes to single hosts in a tunnel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRoutes {
    /// Name of the TUN device.
    pub interface: String,
    pub table: u32,
}

impl HostRoutes {
    fn route(&self, address: IpAddr, metric: u32) -> RouteSpec {
        RouteSpec {
            destination: IpNet::from(address),
            target: RouteTarget::Interface(self.interface.clone()),
            source: None,
            table: self.table,
            metric: Some(metric),
        }
    }
}

impl Netlink {
    /// Adds the route to a host with this metric, if it is not there.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub async fn add_host(&self, routes: &HostRoutes, host: IpAddr, metric: u32) -> Result<(), NetlinkError> {
        match self.add_route(&routes.route(host, metric)).await {
            Err(error) if error.is_already_there() => Ok(()),
            added => added,
        }
    }

    /// Removes the route to a host with this metric, if it is there.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub async fn remove_host(
        &self,
        routes: &HostRoutes,
        host: IpAddr,
        metric: u32,
    ) -> Result<(), NetlinkError> {
        match self.remove_route(&routes.route(host, metric)).await {
            Err(error) if error.is_not_there() => Ok(()),
            removed => removed,
        }
    }

    /// Removes the routes to all hosts.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub async fn remove_host_routes(&self, routes: &HostRoutes) -> Result<(), NetlinkError> {
        for message in self.route_messages().await?.into_iter().filter(|message| is_of(routes, message)) {
            let removed = self.handle.route().del(message).execute().await;
            let removed = removed.map_err(|error| NetlinkError::new("removing the route to a host", &error));
            match removed {
                Err(error) if error.is_not_there() => {}
                removed => removed?,
            }
        }
        Ok(())
    }
}

fn is_of(routes: &HostRoutes, message: &RouteMessage) -> bool {
    let is_whole = matches!(
        (message.header.address_family, message.header.destination_prefix_length),
        (rtnetlink::packet_route::AddressFamily::Inet, 32)
            | (rtnetlink::packet_route::AddressFamily::Inet6, 128)
    );
    is_whole && table_of(message) == routes.table && message.header.protocol == RouteProtocol::Other(PROTOCOL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{in_namespace_async, run};

    #[test]
    fn only_own_routes_to_hosts_are_removed_from_the_table() {
        in_namespace_async(async || {
            for line in [
                "tuntap add tun9 mode tun",
                "link set tun9 up",
                "addr add 10.86.0.1/16 dev tun9",
                "route add 10.86.0.9 dev tun9 table 5118 proto static",
                "route add 10.86.0.8 dev tun9 table 5119 proto 118",
            ] {
                run("ip", &line.split(' ').collect::<Vec<_>>());
            }
            let (netlink, host) = (Netlink::open().unwrap(), |last| IpAddr::from([10, 86, 0, last]));
            let routes = HostRoutes { interface: "tun9".to_owned(), table: 5_118 };
            for metric in [7, 7, 6] {
                netlink.add_host(&routes, host(2), metric).await.unwrap();
            }
            netlink.add_host(&routes, "fd86::2".parse().unwrap(), 7).await.unwrap();
            let listed = async || {
                let found = netlink.table_routes().await.unwrap().into_iter();
                let ours = found.filter(|route| [5_118, 5_119].contains(&route.place.table));
                ours.map(|route| (route.place.destination.to_string(), route.place.metric))
                    .collect::<Vec<_>>()
            };
            assert_eq!(listed().await.len(), 5);
            for _ in 0..2 {
                netlink.remove_host(&routes, host(2), 7).await.unwrap();
            }
            assert_eq!(listed().await.len(), 4, "the other metric stays");
            netlink.remove_host_routes(&routes).await.unwrap();
            let mut left = listed().await;
            left.sort();
            assert_eq!(left, [("10.86.0.8/32".to_owned(), 0), ("10.86.0.9/32".to_owned(), 0)]);
        });
    }
}
