//! Changes of what sessions may reach: reloads, and users in other groups.
//!
//! INVARIANT: a session that the new settings have no place for loses its keys in the same batch of
//! effects in which they come into force, and the policy denies it everything before.

use vpnd_proto::control::{Code, UserName};
use vpnd_proto::policy::PolicyError;

use super::{CoreTask, ToEnd};
use crate::worker::registry::Unfit;
use crate::worker::settings;
use crate::worker::wireguard::WireGuard;
use vpnd_config::ServerConfig;

/// The reason in log and audit: a stock client receives none.
const NO_WIREGUARD: &str = "the user's access profile permits no WireGuard devices now";

impl CoreTask {
    /// Puts the settings into force that a reload changes.
    pub(super) fn set(&mut self, config: &ServerConfig) -> Result<(), PolicyError> {
        self.registry.set_access(config, &mut self.gateway)?;
        self.registry.set_limits(config.limits.rates.clone(), &mut self.gateway);
        self.registry.set_deadlines(&mut self.gateway);
        self.gateway.set_renewal(settings::renewal(config));
        self.end_unfit();
        if let Some(wireguard) = &mut self.wireguard {
            wireguard.decide_all_again();
        }
        Ok(())
    }

    /// Users are in these groups now. Returns the number of their sessions, those that end by it
    /// included.
    pub(super) fn regroup(&mut self, users: Vec<(UserName, Vec<String>)>) -> usize {
        let count = self.registry.regroup(users, &mut self.gateway);
        self.end_unfit();
        count
    }

    /// Ends the sessions that can't go on under the settings in force.
    pub(super) fn end_unfit(&mut self) {
        for Unfit { session, code, text } in self.registry.unfit() {
            self.endings.end(ToEnd::session(session, code, text), &self.gateway);
        }
        let stock = self.wireguard.iter().flat_map(WireGuard::sessions);
        let refused: Vec<_> = stock.filter(|session| !self.registry.permits_wireguard(*session)).collect();
        for session in refused {
            self.endings.end(ToEnd::session(session, Code::NoProfile, NO_WIREGUARD), &self.gateway);
        }
    }
}
