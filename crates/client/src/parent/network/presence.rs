//! Which of a tunnel's changes the kernel has: other programs remove routes, rules and addresses
//! that they did not make.
//!
//! Pure but for [`Present::read`].

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::table;
use vpnd_sys::change::Change;
use vpnd_sys::netlink::{Netlink, NetlinkError, RoutePlace, TableRoute, TableRule};

/// Addresses, routes and rules as the kernel had them at one moment.
#[derive(Debug, Default)]
pub(super) struct Present {
    /// Whether the tunnel's interface is up.
    is_up: bool,
    /// Addresses of the tunnel's interface.
    addresses: Vec<IpNet>,
    routes: Vec<TableRoute>,
    /// Those of vpnd: their places, and the sources that they give.
    own_routes: HashSet<(RoutePlace, Option<IpAddr>)>,
    rules: Vec<TableRule>,
}

impl Present {
    /// # Errors
    /// If the kernel does not list them.
    pub(super) async fn read(netlink: &Netlink, interface: &str, index: u32) -> Result<Self, NetlinkError> {
        let link = netlink.link(interface).await?;
        let addresses = netlink.addresses().await?.into_iter().filter(|own| own.interface == index);
        let routes = netlink.table_routes().await?;
        let own_routes = routes.iter().filter(|route| route.made_by_vpnd);
        Ok(Self {
            is_up: link.is_some_and(|link| link.is_up),
            addresses: addresses.map(|own| own.address).collect(),
            own_routes: own_routes.map(|route| (route.place, route.source)).collect(),
            routes,
            rules: netlink.rules().await?,
        })
    }

    /// Whether a change is in force; also if it is one that is not read here.
    pub(super) fn has(&self, change: &Change) -> bool {
        match change {
            Change::LinkUp { .. } => self.is_up,
            Change::Address(spec) => self.addresses.contains(&spec.address),
            Change::Route(spec) => self.own_routes.contains(&(spec.place(), spec.source)),
            Change::Rule(spec) => self.rules.iter().any(|rule| rule.ours.as_ref() == Some(spec)),
            Change::Dns(_)
            | Change::Sysctl(_)
            | Change::Firewall(_)
            | Change::Guard(_)
            | Change::HostRoutes(_) => true,
        }
    }

    /// Whether no other program has routes in this table, or rules that name it.
    pub(super) fn leaves_free(&self, table: u32) -> bool {
        table::is_free(table, &self.routes, &self.rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vpnd_sys::change::TABLE_BASE;
    use vpnd_sys::netlink::{AddressSpec, RouteSpec, RouteTarget};
    use vpnd_sys::testing::{in_namespace_async, run};

    #[test]
    fn removed_routes_and_those_with_another_source_are_missing() {
        in_namespace_async(async || {
            run("ip", &["tuntap", "add", "vp0", "mode", "tun"]);
            let netlink = Netlink::open().unwrap();
            let index = netlink.interface_index("vp0").await.unwrap().unwrap();
            let address = |text: &str| {
                let (interface, address) = ("vp0".to_owned(), text.parse().unwrap());
                Change::Address(AddressSpec { interface, index: Some(index), address })
            };
            let route = |destination: &str, source: &str| {
                Change::Route(RouteSpec {
                    destination: destination.parse().unwrap(),
                    target: RouteTarget::Interface("vp0".to_owned()),
                    source: source.parse().ok(),
                    table: TABLE_BASE + index,
                    metric: None,
                })
            };
            let changes = [
                address("10.86.0.9/32"),
                address("fd86::9/128"),
                Change::LinkUp { interface: "vp0".to_owned() },
                route("0.0.0.0/0", "10.86.0.9"),
                route("::/0", "fd86::9"),
            ];
            for change in &changes {
                change.apply(&netlink).await.unwrap();
            }
            let missing = async || {
                let present = Present::read(&netlink, "vp0", index).await.unwrap();
                changes
                    .iter()
                    .filter(|change| !present.has(change))
                    .map(Change::to_string)
                    .collect::<Vec<_>>()
            };
            assert!(missing().await.is_empty(), "{:?}", missing().await);
            run("ip", &["-6", "address", "flush", "dev", "vp0"]);
            // The kernel keeps the route, without its source.
            assert_eq!(missing().await, [changes[1].to_string(), changes[4].to_string()]);
            for change in &changes {
                let _ = change.replace(&netlink).await;
            }
            assert!(missing().await.is_empty(), "{:?}", missing().await);
            run("ip", &["link", "set", "vp0", "down"]);
            let gone = missing().await;
            assert!(
                gone.contains(&changes[2].to_string()) && gone.contains(&changes[3].to_string()),
                "{gone:?}"
            );
        });
    }
}
