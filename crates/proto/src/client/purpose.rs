//! The purpose of a client's connection.

use crate::attach::Token;
use crate::session::SessionId;

/// The purpose of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Send `Login` with the user's credentials, and a one-time code if the gateway requests one.
    Login,
    /// Send `Login` at another gateway than the one that is connected; if there is none, the
    /// connection fails.
    Move,
    /// Send `Attach` with this token.
    Attach {
        /// The session.
        session: SessionId,
        /// Its token.
        token: Token,
    },
    /// Send it at another gateway than the one that is connected; if there is none, the connection
    /// fails.
    Transfer {
        /// The session.
        session: SessionId,
        /// Its token.
        token: Token,
    },
}

impl Purpose {
    /// Whether it leads to another gateway than the one that is connected.
    #[must_use]
    pub fn leads_elsewhere(&self) -> bool {
        matches!(self, Self::Move | Self::Transfer { .. })
    }
}
