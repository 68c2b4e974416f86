//! Tasks of the core for its owner.

use core::net::SocketAddr;

use crate::attach::Token;
use crate::control::{Code, Message, Network, Offer, Renewal};
use crate::plane::Command;
use crate::session::{ConnectionId, SessionId};

/// A task for the owner; they are to be carried out in order.
#[derive(Debug)]
pub enum Action {
    /// Open a connection to the gateway, and send the message that `purpose` names with this offer.
    Connect {
        /// The connection's number from now on.
        connection: ConnectionId,
        /// Login or attach.
        purpose: Purpose,
        /// The offer for the epoch.
        offer: Offer,
    },
    /// Give a command to a shard.
    Command {
        /// Which shard.
        shard: usize,
        /// The command.
        command: Command,
    },
    /// Set addresses, routes and DNS to this; replaces what was set before. The MTU comes by
    /// [`Action::PathMtu`], before the first of these.
    Configure(Network),
    /// From now on the tunnel carries inner packets of up to this many bytes: the gateway's
    /// setting, or less if the path carries less. May be below what IPv6 needs.
    PathMtu(u16),
    /// Batches to this address are lost on the way, and avoided from now on. For the log only.
    BatchesLost(SocketAddr),
    /// Open these lanes (a bit for each) at other ports: nothing passes at theirs any more.
    Reopen(u16),
    /// The gateway answers, and other ports do not help the lanes, or not for long: the next
    /// connection should go another way than over UDP.
    /// [`Client::change_way`](super::Client::change_way) makes it at once.
    LanesBlocked,
    /// Keep the addresses that the gateway has from now on, if the user permits.
    Renew(Renewal),
    /// Send a message on an established connection.
    Send {
        /// Which connection.
        connection: ConnectionId,
        /// The message.
        message: Message,
    },
    /// Close a connection, or abandon one. Nothing about it needs to be reported any more.
    Disconnect {
        /// Which connection.
        connection: ConnectionId,
        /// The application close code.
        code: Code,
    },
    /// There is nothing more to try: show the user why, and stop.
    GiveUp {
        /// Why.
        code: Code,
        /// The reason, for a person.
        text: String,
    },
}

/// The purpose of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Send `Login` with the user's credentials, and a one-time code if the gateway requests one.
    Login,
    /// Send `Login` at another gateway than the connected one; without one, the connection fails.
    Move,
    /// Send `Attach` with this token.
    Attach {
        /// The session.
        session: SessionId,
        /// Its token.
        token: Token,
    },
    /// Send it at another gateway than the connected one; without one, the connection fails.
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
