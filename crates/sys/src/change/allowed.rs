//! The list of permitted changes: no other is made, and none is undone, whatever a process requests
//! or a journal contains.
//!
//! INVARIANT: the lists here name what vpnd does by itself and nothing else. So a journal that an
//! attacker managed to write, or a mistake in what asks for changes, reaches only tunnels, the
//! tables and rules with our numbers, the switches of forwarding and of marks, the resolver's file
//! and our own firewall tables.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Change, LAST_RESORT_METRIC, Layer, TABLE_BASE, interface_of};
use crate::dns::DnsSystem;
use crate::netlink::{
    AddressSpec, HostRoutes, MAIN_TABLE, NO_TABLE, RouteSpec, RouteTarget, RuleMatch, RuleSpec,
};
use crate::nft::{GuardRules, MarkMatch, Returning};

/// No pool of a gateway is larger than this prefix.
const SHORTEST_POOL: u8 = 8;
/// The kernel's own tables: default, main and local.
const SYSTEM_TABLES: std::ops::RangeInclusive<u32> = 253..=255;

/// The reason why vpnd never makes this change; `None` if it may.
pub(super) fn fault(change: &Change, system: &DnsSystem) -> Option<String> {
    let fault = match change {
        Change::LinkUp { interface } => of_name(interface),
        Change::Address(spec) => of_address(spec),
        Change::Route(spec) => of_route(spec),
        Change::Rule(spec) => of_rule(spec),
        Change::Dns(change) => change.check(system).map_err(|error| error.to_string()),
        Change::Sysctl(change) => change.check().map_err(|error| error.to_string()),
        Change::Firewall(rules) => rules.check().map_err(|error| error.to_string()),
        Change::Guard(rules) => of_guard(rules),
        Change::HostRoutes(routes) => of_host_routes(routes),
    };
    fault.err()
}

/// The tunnel that a change is for, by its name and, if the change has it, by its number. A device
/// of that name that is no tunnel, or another one, is left alone.
pub(super) fn tunnel(change: &Change) -> Option<(&str, Option<u32>)> {
    match change {
        Change::LinkUp { interface } => Some((interface, None)),
        Change::Address(spec) => Some((&spec.interface, spec.index)),
        Change::Route(RouteSpec { target: RouteTarget::Interface(name), table, .. }) => {
            Some((name, Some(interface_of(*table).unwrap_or_default())))
        }
        Change::Dns(change) => change.interface(),
        // The firewall's tables only mention it, and have names of our own.
        // Only routes with our origin are removed.
        Change::Route(_)
        | Change::Rule(_)
        | Change::Sysctl(_)
        | Change::Firewall(_)
        | Change::Guard(_)
        | Change::HostRoutes(_) => None,
    }
}

fn of_name(interface: &str) -> Result<(), String> {
    // Programs would take a name with a hyphen in front for an option.
    let good = crate::text::is_interface_name(interface) && !interface.starts_with('-');
    if good { Ok(()) } else { Err(format!("{interface:?} is no name of a tunnel")) }
}

fn of_address(spec: &AddressSpec) -> Result<(), String> {
    of_host(spec.address.addr())?;
    of_name(&spec.interface)
}

fn of_host(address: IpAddr) -> Result<(), String> {
    let nobodys = address.is_loopback() || address.is_unspecified() || address.is_multicast();
    let mapped = matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    if nobodys || mapped { Err(format!("no tunnel has the address {address}")) } else { Ok(()) }
}

fn of_route(spec: &RouteSpec) -> Result<(), String> {
    let is_source = |source: IpAddr| {
        source.is_ipv4() == spec.destination.addr().is_ipv4()
            && matches!(spec.target, RouteTarget::Interface(_))
            && of_host(source).is_ok()
    };
    if let Some(source) = spec.source.filter(|source| !is_source(*source)) {
        return Err(format!("no route of vpnd gives the source {source}"));
    }
    let interface = match &spec.target {
        RouteTarget::Interface(interface) => interface,
        // Rejects packets for a gateway's pool while there is no tunnel, and those that a full
        // tunnel does not carry.
        RouteTarget::Unreachable if spec.metric == Some(LAST_RESORT_METRIC) => {
            let length = spec.destination.prefix_len();
            let for_pool = spec.table == MAIN_TABLE && length >= SHORTEST_POOL;
            let for_rest = is_table_of_a_tunnel(spec.table) && length == 0;
            return if for_pool || for_rest {
                Ok(())
            } else {
                Err("too much would be unreachable".to_owned())
            };
        }
        // Holds back what a full tunnel has lost.
        RouteTarget::Closed if spec.metric == Some(LAST_RESORT_METRIC) => {
            let is_for_all = is_table_of_a_tunnel(spec.table) && spec.destination.prefix_len() == 0;
            return if is_for_all { Ok(()) } else { Err("too much would be unreachable".to_owned()) };
        }
        // A local network that stays outside a tunnel.
        RouteTarget::Throw if spec.metric == Some(LAST_RESORT_METRIC) && is_table_of_a_tunnel(spec.table) => {
            let plausible = is_plausible_local(spec.destination);
            return if plausible { Ok(()) } else { Err(format!("{} is no local network", spec.destination)) };
        }
        RouteTarget::Unreachable | RouteTarget::Throw | RouteTarget::Closed | RouteTarget::Gateway { .. } => {
            return Err(
                "routes of vpnd lead into a tunnel, or nowhere, or around a tunnel into a local network"
                    .to_owned(),
            );
        }
    };
    if !is_table_of_a_tunnel(spec.table) || spec.metric.is_some() {
        return Err(format!("table {} is not one of vpnd's", spec.table));
    }
    of_name(interface)
}

fn of_host_routes(routes: &HostRoutes) -> Result<(), String> {
    let is_own = (1..TABLE_BASE).contains(&routes.table) && !SYSTEM_TABLES.contains(&routes.table);
    if !is_own {
        return Err(format!("table {} is not one of vpnd's", routes.table));
    }
    of_name(&routes.interface)
}

fn of_rule(spec: &RuleSpec) -> Result<(), String> {
    let Some((layer, place)) = Layer::of_priority(spec.priority) else {
        return Err(format!("priority {} is not one of vpnd's", spec.priority));
    };
    let good = match spec.matches {
        // The process that looks up the gateway's name is never root.
        RuleMatch::User(user) => {
            let is_lookups = (spec.table, place) == (MAIN_TABLE, Layer::LOOKUP_RULE);
            let is_refusal = (spec.table, place) == (NO_TABLE, Layer::REFUSAL_RULE);
            user != 0 && (is_lookups || is_refusal)
        }
        RuleMatch::NotMarked { mark, mask } => {
            is_table_of_a_tunnel(spec.table)
                && (mark, mask) == layer.passed_over()
                && matches!(place, Layer::TUNNEL_RULE | Layer::CLOSING_RULE)
        }
    };
    if good { Ok(()) } else { Err("its parts are not vpnd's, or don't belong together".to_owned()) }
}

fn of_guard(rules: &GuardRules) -> Result<(), String> {
    let is_ours = |returning: &Returning| {
        Layer::all().any(|layer| layer.mark() == returning.mark) && returning.lookups != Some(0)
    };
    if !rules.returning.as_ref().is_none_or(is_ours) {
        return Err("it would mark more than what arrives for a tunnel itself".to_owned());
    }
    let is_of_a_layer = |excluded: &MarkMatch| {
        Layer::all().any(|layer| layer.passed_over() == (excluded.mark, excluded.mask))
    };
    if !rules.excluded.as_ref().is_none_or(is_of_a_layer) {
        return Err("it would keep more out of the tunnel than what carries it".to_owned());
    }
    rules.check().map_err(|error| error.to_string())
}

/// Whether a network that the machine is directly connected to is one that a local network can be:
/// of private (RFC 1918), unique local (RFC 4193) or link-local addresses, and no wider than one
/// site has them.
pub fn is_plausible_local(net: IpNet) -> bool {
    match net {
        IpNet::V4(v4) => v4.prefix_len() >= 16 && (v4.addr().is_private() || v4.addr().is_link_local()),
        IpNet::V6(v6) => v6.prefix_len() >= 48 && v6.addr().is_unique_local(),
    }
}

fn is_table_of_a_tunnel(table: u32) -> bool {
    interface_of(table).is_some()
}

#[cfg(test)]
mod tests;
