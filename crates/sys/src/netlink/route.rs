//! Routes: adding and removing our own, reading all.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures_util::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use serde::{Deserialize, Serialize};

use super::{Family, MAIN_TABLE, Netlink, NetlinkError, PROTOCOL};
use crate::change::{LAST_RESORT_METRIC, interface_of};

/// The router of [`RouteTarget::Closed`], which is no host (RFC 7600), behind the loopback
/// interface.
pub const NOWHERE: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);
/// The number of the loopback interface in each network namespace.
const LOOPBACK: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteTarget {
    /// Straight into an interface.
    Interface(String),
    /// To a router, reached through an interface.
    Gateway { address: IpAddr, interface: String },
    /// Nowhere: senders get an ICMP error, "unreachable".
    Unreachable,
    /// Back to the rules: the next one decides.
    Throw,
    /// Nowhere, but for what is bound to an interface, which goes back to the rules. IPv6 is
    /// refused; IPv4, of which an unreachable route would take what is bound, too, leads to
    /// [`NOWHERE`], and a firewall has to drop that.
    Closed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteSpec {
    pub destination: IpNet,
    pub target: RouteTarget,
    /// The source address that packets get, one of this machine's; `None` leaves it to the kernel.
    pub source: Option<IpAddr>,
    /// Number of the routing table; [`MAIN_TABLE`] for the system's own.
    pub table: u32,
    /// Preference among equal destinations, lower first; `None` leaves it to the kernel.
    pub metric: Option<u32>,
}

/// A place for a route: the kernel keeps one at each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RoutePlace {
    pub destination: IpNet,
    /// Number of the routing table.
    pub table: u32,
    /// Preference among equal destinations, lower first.
    pub metric: u32,
}

impl RouteSpec {
    /// The place that the route takes.
    pub fn place(&self) -> RoutePlace {
        let destination = self.destination.trunc();
        RoutePlace {
            destination,
            table: self.table,
            metric: self.metric.unwrap_or(default_metric(destination)),
        }
    }
}

/// The metric that the kernel gives a route that names none.
fn default_metric(destination: IpNet) -> u32 {
    if destination.addr().is_ipv4() { 0 } else { 1024 }
}

/// A route that the machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalRoute {
    /// Which destinations; `0.0.0.0/0` or `::/0` for a default route.
    pub destination: IpNet,
    /// The router, if it is not a directly connected network.
    pub gateway: Option<IpAddr>,
    /// Index of the interface, if it leads to one.
    pub interface: Option<u32>,
    /// The source address that packets get.
    pub source: Option<IpAddr>,
    /// Number of the routing table.
    pub table: u32,
    /// Preference among equal destinations, lower first.
    pub metric: u32,
    /// Whether the kernel looks for its hosts on the link itself: it names no router, and is not
    /// passed over because the link has no carrier.
    pub is_connected: bool,
}

/// A route of any kind, in whatever table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableRoute {
    pub place: RoutePlace,
    /// The source address that packets get.
    pub source: Option<IpAddr>,
    /// Whether vpnd has made it.
    pub made_by_vpnd: bool,
    /// The route as vpnd adds and removes it, if it is vpnd's and leads into no tunnel.
    pub ours: Option<RouteSpec>,
}

impl Netlink {
    /// Adds a route.
    ///
    /// # Errors
    /// [`NetlinkError`]; `EEXIST` if there is one for the same destination, table and metric.
    pub async fn add_route(&self, spec: &RouteSpec) -> Result<(), NetlinkError> {
        let message = self.message(spec, spec.source).await?;
        let added = self.handle.route().add(message).execute().await;
        added.map_err(|error| NetlinkError::new(format!("adding the route to {}", spec.destination), &error))
    }

    /// Puts a route in the place of the one for the same destination, table and metric; there is
    /// always one of the two.
    ///
    /// # Errors
    /// [`NetlinkError`]; the old one is there then.
    pub async fn replace_route(&self, spec: &RouteSpec) -> Result<(), NetlinkError> {
        let message = self.message(spec, spec.source).await?;
        let replaced = self.handle.route().add(message).replace().execute().await;
        replaced.map_err(|error| {
            NetlinkError::new(format!("replacing the route to {}", spec.destination), &error)
        })
    }

    /// Removes a route that vpnd added, whatever source it gives.
    ///
    /// # Errors
    /// [`NetlinkError`]; [`NetlinkError::is_not_there`] if there was none.
    pub async fn remove_route(&self, spec: &RouteSpec) -> Result<(), NetlinkError> {
        let mut message = self.message(spec, None).await?;
        let task = || format!("removing the route to {}", spec.destination);
        let removed = self.handle.route().del(message.clone()).execute().await;
        let removed = removed.map_err(|error| NetlinkError::new(task(), &error));
        if !removed.as_ref().is_err_and(NetlinkError::is_not_there) {
            return removed;
        }
        // Earlier versions gave this origin to all routes.
        message.header.protocol = RouteProtocol::Other(PROTOCOL);
        let removed = self.handle.route().del(message).execute().await;
        removed.map_err(|error| NetlinkError::new(task(), &error))
    }

    async fn message(&self, spec: &RouteSpec, source: Option<IpAddr>) -> Result<RouteMessage, NetlinkError> {
        let destination = spec.destination.trunc();
        let mut builder = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(destination.addr(), destination.prefix_len())
            .map_err(|error| inconsistent(spec, &error))?
            .table_id(spec.table)
            .protocol(origin(spec));
        if let Some(metric) = spec.metric {
            builder = builder.priority(metric);
        }
        if let Some(source) = source {
            builder = builder.pref_source(source).map_err(|error| inconsistent(spec, &error))?;
        }
        builder = match &spec.target {
            // A router is looked up among routes of the scope "link" or nearer. Behind a tunnel
            // there is none for the machine: with that scope, `ip route add default via ROUTER` in
            // the local network would lead into the tunnel.
            RouteTarget::Interface(name) => {
                builder.output_interface(self.require_interface(name).await?).scope(RouteScope::Universe)
            }
            RouteTarget::Gateway { address, interface } => builder
                .output_interface(self.require_interface(interface).await?)
                .gateway(*address)
                .map_err(|error| inconsistent(spec, &error))?,
            RouteTarget::Unreachable => builder.kind(RouteType::Unreachable),
            RouteTarget::Throw => builder.kind(RouteType::Throw),
            RouteTarget::Closed if destination.addr().is_ipv4() => builder
                .output_interface(LOOPBACK)
                .gateway(NOWHERE.into())
                .map_err(|error| inconsistent(spec, &error))?,
            RouteTarget::Closed => builder.kind(RouteType::Unreachable),
        };
        let mut message = builder.build();
        if spec.target == RouteTarget::Closed && destination.addr().is_ipv4() {
            message.header.flags.insert(RouteFlags::Onlink);
        }
        Ok(message)
    }

    /// All unicast routes of all tables but the kernel's own one for local addresses.
    pub async fn routes(&self) -> Result<Vec<LocalRoute>, NetlinkError> {
        Ok(self.route_messages().await?.iter().filter_map(parse).collect())
    }

    /// All routes of all kinds and tables.
    pub async fn table_routes(&self) -> Result<Vec<TableRoute>, NetlinkError> {
        Ok(self.route_messages().await?.iter().filter_map(parse_any).collect())
    }

    pub(super) async fn route_messages(&self) -> Result<Vec<RouteMessage>, NetlinkError> {
        let mut all = Vec::new();
        for request in
            [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()]
        {
            let messages = self.handle.route().get(request).execute();
            let messages: Result<Vec<_>, _> = messages.try_collect().await;
            all.extend(messages.map_err(|error| NetlinkError::new("listing routes", &error))?);
        }
        Ok(all)
    }

    /// The preferred default route of the system's table that does not lead into the interface
    /// `except`.
    pub async fn default_route(
        &self,
        family: Family,
        except: Option<&str>,
    ) -> Result<Option<LocalRoute>, NetlinkError> {
        let except = match except {
            Some(name) => self.interface_index(name).await?,
            None => None,
        };
        let routes = self.routes().await?;
        Ok(routes
            .into_iter()
            .filter(|route| route.table == MAIN_TABLE && route.destination.prefix_len() == 0)
            .filter(|route| Family::of(route.destination.addr()) == family)
            .filter(|route| route.interface.is_some() && (except.is_none() || route.interface != except))
            .min_by_key(|route| route.metric))
    }

    /// The way that packets with this mark take to `destination` now; `None` if there is none.
    pub async fn route_to(
        &self,
        destination: IpAddr,
        mark: Option<u32>,
    ) -> Result<Option<LocalRoute>, NetlinkError> {
        let whole = if destination.is_ipv4() { 32 } else { 128 };
        let task = format!("looking up the route to {destination}");
        let mut builder = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(destination, whole)
            .map_err(|error| NetlinkError::Protocol { what: task.clone(), detail: error.to_string() })?;
        if let Some(mark) = mark {
            builder = builder.mark(mark);
        }
        let mut answers = self.handle.route().get(builder.build()).execute();
        match answers.try_next().await {
            Ok(answer) => Ok(answer.as_ref().and_then(parse)),
            Err(error) => {
                let error = NetlinkError::new(task, &error);
                let nowhere = [rustix::io::Errno::NETUNREACH, rustix::io::Errno::HOSTUNREACH];
                if error.errno().is_some_and(|errno| nowhere.contains(&errno)) {
                    Ok(None)
                } else {
                    Err(error)
                }
            }
        }
    }
}

/// The origin of a route that vpnd adds. In a tunnel's own tables, and for a gateway's pool in the
/// system's, it is the kernel's: systemd-networkd, from 256 on, removes routes of other origins
/// that lead to no link when it configures one, and packets would leave in clear until they are
/// back.
fn origin(spec: &RouteSpec) -> RouteProtocol {
    let is_for_pool = (spec.table, spec.metric) == (MAIN_TABLE, Some(LAST_RESORT_METRIC))
        && spec.target == RouteTarget::Unreachable;
    let is_kernels = is_for_pool || interface_of(spec.table).is_some();
    if is_kernels { RouteProtocol::Kernel } else { RouteProtocol::Other(PROTOCOL) }
}

/// Whether vpnd has made it. The kernel itself adds no such route to a tunnel's own tables; where
/// one of them is a VRF device's, there are routes of other kinds, too, which are not taken for
/// vpnd's. Nor does the kernel give a route the metric of those for a gateway's pool.
pub(super) fn is_own(message: &RouteMessage) -> bool {
    let is_of_a_tunnel = || {
        matches!(message.header.kind, RouteType::Unicast | RouteType::Unreachable | RouteType::Throw)
            && interface_of(table_of(message)).is_some()
    };
    let is_for_pool = || {
        message.header.kind == RouteType::Unreachable
            && table_of(message) == MAIN_TABLE
            && message.attributes.contains(&RouteAttribute::Priority(LAST_RESORT_METRIC))
    };
    match message.header.protocol {
        // Also of an earlier version, wherever it is.
        RouteProtocol::Other(PROTOCOL) => true,
        RouteProtocol::Kernel => is_of_a_tunnel() || is_for_pool(),
        _ => false,
    }
}

/// The number of the table that a route is in.
pub(super) fn table_of(message: &RouteMessage) -> u32 {
    let named = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    named.unwrap_or(u32::from(message.header.table))
}

/// The parts of a route don't fit each other.
fn inconsistent(spec: &RouteSpec, detail: &dyn std::fmt::Display) -> NetlinkError {
    NetlinkError::Protocol {
        what: format!("describing the route to {}", spec.destination),
        detail: detail.to_string(),
    }
}

/// Reads a unicast route; `None` for all other kinds.
fn parse(message: &RouteMessage) -> Option<LocalRoute> {
    if message.header.kind != RouteType::Unicast {
        return None;
    }
    let any = unspecified(message)?;
    let mut destination = any;
    let mut route = LocalRoute {
        destination: IpNet::new(any, 0).ok()?,
        gateway: None,
        interface: None,
        source: None,
        table: u32::from(message.header.table),
        metric: 0,
        is_connected: !message.header.flags.contains(RouteFlags::Dead),
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => destination = ip(address)?,
            RouteAttribute::Gateway(address) => (route.gateway, route.is_connected) = (ip(address), false),
            RouteAttribute::Via(_) => route.is_connected = false,
            RouteAttribute::PrefSource(address) => route.source = ip(address),
            RouteAttribute::Oif(index) => route.interface = Some(*index),
            RouteAttribute::Table(table) => route.table = *table,
            RouteAttribute::Priority(metric) => route.metric = *metric,
            RouteAttribute::MultiPath(hops) => {
                route.interface = hops.first().map(|hop| hop.interface_index);
                route.is_connected = false;
            }
            _ => {}
        }
    }
    route.destination = IpNet::new(destination, message.header.destination_prefix_length).ok()?;
    Some(route)
}

/// Reads a route of any kind; `None` if it is of neither protocol version.
fn parse_any(message: &RouteMessage) -> Option<TableRoute> {
    let (mut destination, mut table) = (unspecified(message)?, u32::from(message.header.table));
    let (mut metric, mut router, mut source) = (None, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => destination = ip(address)?,
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Priority(number) => metric = Some(*number),
            RouteAttribute::Gateway(address) => router = ip(address),
            RouteAttribute::PrefSource(address) => source = ip(address),
            _ => {}
        }
    }
    let made_by_vpnd = is_own(message);
    let target = match message.header.kind {
        RouteType::Unreachable => Some(RouteTarget::Unreachable),
        RouteType::Throw => Some(RouteTarget::Throw),
        RouteType::Unicast if router == Some(NOWHERE.into()) => Some(RouteTarget::Closed),
        _ => None,
    };
    let destination = IpNet::new(destination, message.header.destination_prefix_length).ok()?;
    let ours = target.filter(|_| made_by_vpnd);
    let ours = ours.map(|target| RouteSpec { destination, target, source: None, table, metric });
    let place = RoutePlace { destination, table, metric: metric.unwrap_or_default() };
    Some(TableRoute { place, source, made_by_vpnd, ours })
}

/// The address of no host, of the route's protocol version.
fn unspecified(message: &RouteMessage) -> Option<IpAddr> {
    match message.header.address_family {
        rtnetlink::packet_route::AddressFamily::Inet => Some(Ipv4Addr::UNSPECIFIED.into()),
        rtnetlink::packet_route::AddressFamily::Inet6 => Some(Ipv6Addr::UNSPECIFIED.into()),
        _ => None,
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some((*v4).into()),
        RouteAddress::Inet6(v6) => Some((*v6).into()),
        _ => None,
    }
}
