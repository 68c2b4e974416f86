//! Access profiles as configured, in the terms of the protocol's core: what the worker applies and
//! `vpnd policy test` explains is compiled here, once.

use std::net::IpAddr;

use vpnd_proto::policy::{self, Names, Policy, PolicyError, Pools, ProfileId, RuleSet, RuleSpec, Verdict};

use crate as config;
use crate::{AccessProfile, Action, ServerConfig, Tunnel};

/// The policy of all profiles.
#[derive(Debug)]
pub struct Compiled {
    pub policy: Policy,
    /// Numbers of the profiles, in the order of the configuration.
    pub numbers: Vec<ProfileId>,
}

/// Compiles the profiles of a configuration. Each keeps its number in `names`.
///
/// # Errors
/// If rules make no sense.
pub fn compile(config: &ServerConfig, names: &mut Names) -> Result<Compiled, PolicyError> {
    let (mut numbers, mut sets) = (Vec::new(), Vec::new());
    for profile in config.profiles.iter() {
        let number = profile.name.as_ref().map_or(ProfileId::IMPLIED, |name| names.profile(name));
        let set = rule_set(profile, names)?;
        // The firewall is open to services of the gateway for all clients alike, or for none of
        // them but DNS.
        let is_open = config.policy.client_to_gateway;
        sets.push((number, if is_open { set } else { set.with_own_name_servers(profile.push.dns.clone()) }));
        numbers.push(number);
    }
    Ok(Compiled { policy: Policy::of_profiles(sets).with_pools(pools(&config.tunnel)), numbers })
}

fn rule_set(profile: &AccessProfile, names: &mut Names) -> Result<RuleSet, PolicyError> {
    let rules: Vec<_> = profile.rules.iter().map(rule).collect();
    let reach: Vec<_> = profile.push.reach().collect();
    let set = RuleSet::compile(&rules, profile.client_to_client, names)?.with_reach(&reach);
    // Where everybody is given the same, the firewall decides alone about what comes in, as it
    // always has.
    Ok(if profile.name.is_some() { set.with_inbound_from_reach() } else { set })
}

/// Where clients' addresses come from.
fn pools(tunnel: &Tunnel) -> Pools {
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
