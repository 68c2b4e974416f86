//! The gateways of a fleet, as administrators see them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::gateway::auth::GatewayState;

/// A gateway of a fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetMember {
    /// The fleet's id.
    pub fleet: String,
    /// The gateway's name.
    pub name: String,
}

/// A gateway of the fleet, by its last report to the database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetGateway {
    pub name: String,
    /// Whether it is the one that was asked.
    pub here: bool,
    /// Whether it was heard of lately. A gateway that was not may be gone, stand still, or be cut
    /// off from the database.
    pub alive: bool,
    /// Seconds since it was heard of; `None` if it never was.
    pub heard_s: Option<u64>,
    /// The address at which it listens, or from which it uses the database.
    pub address: Option<IpAddr>,
    pub version: String,
    /// Sessions that are in use there.
    pub sessions: u64,
    /// Use of its shards' CPUs.
    pub load_percent: u64,
    pub draining: bool,
    /// Those of `addresses` in [server] that its machine has; an older daemon does not say.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
}

impl From<GatewayState> for FleetGateway {
    fn from(state: GatewayState) -> Self {
        Self {
            name: state.name.to_string(),
            here: state.is_here,
            alive: state.is_alive,
            heard_s: state.heard_s,
            address: state.address,
            version: state.version.to_string(),
            sessions: state.sessions,
            load_percent: state.load_percent,
            draining: state.is_draining,
            addresses: state.addresses,
        }
    }
}
