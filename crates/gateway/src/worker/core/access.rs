//! Changes of what sessions may reach: reloads, and users in other groups.
//!
//! INVARIANT: a session that the new settings have no place for loses its keys in the same batch of
//! effects in which they come into force, and the policy denies it everything before.

use vpnd_proto::control::Code;
use vpnd_proto::gateway::Gateway;
use vpnd_proto::policy::PolicyError;

use super::ToEnd;
use crate::worker::registry::{Registry, Unfit};
use crate::worker::settings;
use crate::worker::wireguard::WireGuard;
use vpnd_config::ServerConfig;

/// The reason in log and audit: a stock client receives none.
const NO_WIREGUARD: &str = "the user's access profile permits no WireGuard devices now";

/// Puts the settings into force that a reload changes.
pub(super) fn set(
    config: &ServerConfig,
    gateway: &mut Gateway,
    registry: &mut Registry,
) -> Result<(), PolicyError> {
    registry.set_access(config, gateway)?;
    registry.set_limits(config.limits.rates.clone(), gateway);
    registry.set_deadlines(gateway);
    gateway.set_renewal(settings::renewal(config));
    Ok(())
}

/// Holds what another process has handed over against the settings in force.
pub(super) fn begin(gateway: &mut Gateway, registry: &mut Registry, wireguard: Option<&mut WireGuard>) {
    registry.set_deadlines(gateway);
    let Some(wireguard) = wireguard else { return };
    wireguard.decide_all_again();
    // In a fleet the others may be another gateway's, until the parent names this machine's
    // addresses.
    if registry.hosts().is_none() {
        wireguard.begin_all();
    }
}

/// The sessions that can't go on under the settings in force.
pub(super) fn unfit(registry: &Registry, wireguard: Option<&WireGuard>) -> Vec<ToEnd> {
    let unfit = registry.unfit().into_iter();
    let unfit = unfit.map(|Unfit { session, code, text }| ToEnd::session(session, code, text));
    let stock = wireguard.into_iter().flat_map(WireGuard::sessions);
    let refused = stock.filter(|session| !registry.permits_wireguard(*session));
    let refused = refused.map(|session| ToEnd::session(session, Code::NoProfile, NO_WIREGUARD));
    unfit.chain(refused).collect()
}
