//! The addresses that the gateway has from now on, for the profiles of its clients (PROTOCOL §5.3).
//!
//! INVARIANT: a client that has not agreed on it is sent nothing.

use super::{Effect, Gateway};
use crate::control::{FEATURE_RENEWAL, Message, Renewal};
use crate::session::ConnectionId;

impl Gateway {
    /// Clients are to keep these addresses from now on; `None` leaves them what they have.
    pub fn set_renewal(&mut self, renewal: Option<Renewal>) {
        if renewal == self.config.renewal {
            return;
        }
        self.config.renewal = renewal;
        let connected: Vec<_> =
            self.table.iter().filter_map(|session| Some((session.connection?, session.features))).collect();
        for (connection, features) in connected {
            self.renew(connection, features);
        }
    }

    /// Sends a client with these features the addresses that it is to keep.
    pub(super) fn renew(&mut self, connection: ConnectionId, features: u32) {
        if let Some(renewal) = self.config.renewal.clone().filter(|_| features & FEATURE_RENEWAL != 0) {
            self.effects.push_back(Effect::Send { connection, message: Message::Renewal(renewal) });
        }
    }
}
