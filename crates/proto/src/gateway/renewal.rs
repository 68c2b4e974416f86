//! The addresses that the gateway has from now on, for the profiles of its clients (PROTOCOL §5.3).
//!
//! INVARIANT: a client that has not agreed on it is sent nothing. Weights alone are sent with the
//! next epoch: all clients at once would be too many messages for what changes every few seconds.

use super::{Effect, Gateway};
use crate::control::{FEATURE_RENEWAL, List, MAX_GATEWAY_ADDRESSES, Message, Renewal, Text};
use crate::session::ConnectionId;

impl Gateway {
    /// Clients are to keep these addresses from now on; `None` leaves them what they have. Weights
    /// stay if the addresses do.
    pub fn set_renewal(&mut self, renewal: Option<Renewal>) {
        let addresses = |renewal: &Option<Renewal>| renewal.as_ref().map(|renewal| renewal.addresses.clone());
        if addresses(&renewal) == addresses(&self.config.renewal) {
            return;
        }
        self.config.renewal = renewal;
        let connected: Vec<_> =
            self.table.iter().filter_map(|session| Some((session.connection?, session.features))).collect();
        for (connection, features) in connected {
            self.renew(connection, features);
        }
    }

    /// The addresses that clients are to keep.
    #[must_use]
    pub fn addresses(&self) -> &[Text<259>] {
        self.config.renewal.as_ref().map_or(&[][..], |renewal| &renewal.addresses[..])
    }

    /// The weights of these addresses, in their order, from the next epochs on.
    pub fn set_weights(&mut self, weights: Option<List<u32, MAX_GATEWAY_ADDRESSES>>) {
        if let Some(renewal) = &mut self.config.renewal {
            renewal.weights = weights;
        }
    }

    /// Sends a client with these features the addresses that it is to keep.
    pub(super) fn renew(&mut self, connection: ConnectionId, features: u32) {
        if let Some(renewal) = self.config.renewal.clone().filter(|_| features & FEATURE_RENEWAL != 0) {
            self.effects.push_back(Effect::Send { connection, message: Message::Renewal(renewal) });
        }
    }
}
