//! From the gateway's configuration to the terms of the protocol's core.

use vpnd_crypto::LabPermit;
use vpnd_proto::control::{
    AsText, FEATURE_RENEWAL, FEATURES, KILL_SWITCH_ON, KILL_SWITCH_PERSISTENT, List, Network, Renewal, Text,
};
use vpnd_proto::gateway::{Config, ProfileSettings};
use vpnd_proto::session::{LocalSuite, Timers};

use super::access::Access;
use vpnd_config::pool::Pools;
use vpnd_config::profile::KillSwitchMode;
use vpnd_config::source::Source;
use vpnd_config::{AccessProfile, Push, ServerConfig, Timeouts};

/// The core of a gateway with this many shards.
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
        features: FEATURES | FEATURE_RENEWAL,
        lab,
        timers: timers(&config.timeouts),
        idle_timeout: config.timeouts.idle_timeout,
        max_sessions: config.limits.max_sessions,
        profiles: access.settings.clone(),
        renewal: renewal(config),
    }
}

/// The addresses that clients are to keep.
pub(super) fn renewal(config: &ServerConfig) -> Option<Renewal> {
    if config.server.addresses.is_empty() {
        return None;
    }
    let addresses = config.server.reached_at(Vec::new());
    let texts = addresses.iter().map(|address| Text::cut(&address.to_string()));
    Some(Renewal { addresses: list(texts), weights: None })
}

pub(super) fn admission(config: &ServerConfig) -> vpnd_proto::admission::Limits {
    vpnd_proto::admission::Limits {
        places: config.limits.max_handshakes,
        handshakes_per_s: config.limits.handshakes_per_address_s,
    }
}

/// Logins at most that are under way: a source that is silent takes no permits that others need.
pub(super) fn logins(config: &ServerConfig) -> usize {
    let external: usize = config.sources.iter().map(Source::max_under_way).sum();
    config.limits.max_handshakes + config.limits.password_queue + external
}

/// The settings of an access profile for the core.
pub(super) fn profile(config: &ServerConfig, profile: &AccessProfile, pools: &Pools) -> ProfileSettings {
    ProfileSettings {
        network: network(config, &profile.push, pools),
        max_sessions_per_user: profile.max_sessions_per_user,
    }
}

/// Settings of devices that reach nothing but the portal. They are stock clients, to which nothing
/// is pushed.
pub(super) fn walled() -> ProfileSettings {
    ProfileSettings { network: Network::default(), max_sessions_per_user: 0 }
}

/// Network settings that are pushed to clients.
fn network(config: &ServerConfig, push: &Push, own: &Pools) -> Network {
    Network {
        ipv4: None,
        ipv6: None,
        gateway_ipv4: config.tunnel.gateway_v4().filter(|_| own.v4.is_some()),
        gateway_ipv6: config.tunnel.gateway_v6().filter(|_| own.v6.is_some()),
        mtu: Some(config.tunnel.mtu),
        routes: list(push.networks(&config.tunnel).map(AsText)),
        dns: list(push.dns.iter().map(|server| AsText(*server))),
        search: list(push.search.iter().map(|name| Text::cut(name.as_str()))),
        kill_switch: match push.kill_switch {
            KillSwitchMode::Off => None,
            KillSwitchMode::On => Some(KILL_SWITCH_ON),
            KillSwitchMode::Persistent => Some(KILL_SWITCH_PERSISTENT),
        },
    }
}

fn list<T, const MAX: usize>(items: impl Iterator<Item = T>) -> List<T, MAX> {
    List::new(items.collect()).expect("a configuration with more is refused when it is read")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_has_permits_for_all_logins_that_it_may_keep_waiting() {
        let source = |name: &str| {
            format!(
                "[[source]]\nname = '{name}'\nkind = 'radius'\nmatch = '{name}-*'\nservers = 'radius://10.0.0.1'\n\
                 secret_file = 's'\nmax_logins = 32\n"
            )
        };
        let [local, external] = [String::new(), source("a") + &source("b")]
            .map(|sources| vpnd_config::testing::smallest(&sources));
        assert_eq!(logins(&local), local.limits.max_handshakes + local.limits.password_queue);
        let waiting = external.sources.iter().map(|source| 9 * source.max_logins + source.max_waiting());
        assert!(logins(&external) >= logins(&local) + waiting.sum::<usize>());
    }
}
