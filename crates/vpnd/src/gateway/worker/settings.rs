//! From the gateway's configuration to the terms of the protocol's core.

use std::net::IpAddr;

use vpnd_crypto::LabPermit;
use vpnd_proto::control::{AsText, List, Network, Text};
use vpnd_proto::gateway::{Config, ProfileSettings};
use vpnd_proto::policy::{self, Names, PolicyError, Pools, RuleSet, RuleSpec, Verdict};
use vpnd_proto::session::{LocalSuite, Timers};

use super::access::Access;
use crate::config::{self, AccessProfile, Action, Push, ServerConfig, Timeouts, Tunnel};

/// The core of a gateway with so many shards.
pub(super) fn core(
    config: &ServerConfig,
    access: &Access,
    shards: usize,
    suites: Vec<LocalSuite>,
    lab: Option<LabPermit>,
) -> Config {
    Config {
        shards,
        suites,
        features: vpnd_proto::control::FEATURES,
        lab,
        timers: timers(&config.timeouts),
        idle_timeout: config.timeouts.idle_timeout,
        max_sessions: config.limits.max_sessions,
        profiles: access.settings.clone(),
    }
}

pub(super) fn admission(config: &ServerConfig) -> vpnd_proto::admission::Limits {
    vpnd_proto::admission::Limits {
        places: config.limits.max_handshakes,
        handshakes_per_s: config.limits.handshakes_per_address_s,
    }
}

/// What the core needs of an access profile.
pub(super) fn profile(config: &ServerConfig, profile: &AccessProfile) -> ProfileSettings {
    ProfileSettings {
        network: network(config, &profile.push),
        max_sessions_per_user: config.limits.max_sessions_per_user,
    }
}

/// Network settings that are pushed to clients.
fn network(config: &ServerConfig, push: &Push) -> Network {
    // The tunnel's own network always leads into the tunnel: without these routes, packets for other clients would leave in
    // clear by the client's default route.
    let pools = config.tunnel.pools().filter(|pool| !push.routes.contains(pool));
    Network {
        ipv4: None,
        ipv6: None,
        gateway_ipv4: config.tunnel.gateway_v4(),
        gateway_ipv6: config.tunnel.gateway_v6(),
        mtu: Some(config.tunnel.mtu),
        routes: list(pools.chain(push.routes.iter().copied()).map(AsText)),
        dns: list(push.dns.iter().map(|server| AsText(*server))),
        search: list(push.search.iter().map(|name| Text::cut(name.as_str()))),
    }
}

/// The items that fit into a message; the configuration's check warns of more.
fn list<T, const MAX: usize>(items: impl Iterator<Item = T>) -> List<T, MAX> {
    List::new(items.take(MAX).collect()).unwrap_or_default()
}

/// The rules of an access profile in the core's terms.
pub(crate) fn rule_set(profile: &AccessProfile, names: &mut Names) -> Result<RuleSet, PolicyError> {
    let rules: Vec<_> = profile.rules.iter().map(rule).collect();
    let reach: Vec<_> = profile.push.reach().collect();
    let set = RuleSet::compile(&rules, profile.client_to_client, names)?.with_reach(&reach);
    // Where everybody is given the same, the firewall decides alone about what comes in, as it always has.
    Ok(if profile.name.is_some() { set.with_inbound_from_reach() } else { set })
}

/// Where clients' addresses come from.
pub(crate) fn pools(tunnel: &Tunnel) -> Pools {
    let own = tunnel.gateway_v4().map(IpAddr::V4).into_iter().chain(tunnel.gateway_v6().map(IpAddr::V6));
    Pools { nets: tunnel.pools().collect(), own: own.collect() }
}

fn rule(rule: &config::Rule) -> RuleSpec {
    RuleSpec {
        action: match rule.action {
            Action::Allow => Verdict::Allow,
            Action::Deny => Verdict::Deny,
        },
        from: rule.from.iter().map(selector).collect(),
        to: rule.to.iter().map(selector).collect(),
        protocol: match rule.protocol {
            None => policy::Protocol::Any,
            Some(config::Protocol::Tcp) => policy::Protocol::Tcp,
            Some(config::Protocol::Udp) => policy::Protocol::Udp,
            Some(config::Protocol::Icmp) => policy::Protocol::Icmp,
        },
        ports: rule.ports.iter().map(|range| range.first..=range.last).collect(),
    }
}

fn selector(selector: &config::Selector) -> policy::Selector {
    match selector {
        config::Selector::Any => policy::Selector::Any,
        config::Selector::Clients => policy::Selector::Clients,
        config::Selector::Group(name) => policy::Selector::Group(name.clone()),
        config::Selector::User(name) => policy::Selector::User(name.clone()),
        config::Selector::Net(net) => policy::Selector::Net(*net),
    }
}

/// The protocol's timers with what is configured.
fn timers(timeouts: &Timeouts) -> Timers {
    let standard = Timers::default();
    // Half as long again as the rekey age, as in the protocol's own values.
    let reject_after = (timeouts.rekey_after * 3 / 2).min(standard.reject_after);
    Timers {
        rekey_after: timeouts.rekey_after,
        reject_after,
        keepalive: timeouts.keepalive,
        dead_peer: timeouts.dead_peer_timeout,
        ..standard
    }
}
