//! Tasks of the core for its owner.

use core::net::SocketAddr;

use super::{Addresses, SessionRecord};
use crate::control::{Code, Message, UserName};
use crate::plane::{Activity, Command};
use crate::session::{ConnectionId, SessionId};
use crate::time::Time;

/// A task for the owner; they are to be carried out in order.
#[derive(Debug)]
pub enum Effect {
    /// Give a command to a shard.
    Command {
        /// Which shard.
        shard: usize,
        /// The command.
        command: Command,
    },
    /// Send a message on a control connection.
    Send {
        /// Which connection.
        connection: ConnectionId,
        /// The message.
        message: Message,
    },
    /// Close a control connection, once what was sent on it is on its way.
    CloseConnection {
        /// Which connection.
        connection: ConnectionId,
        /// The application close code.
        code: Code,
    },
    /// Store the session; must be durable before a later `Send` goes out.
    Persist(SessionRecord),
    /// Remove the session from the store; must be durable before a later `Send` goes out.
    Forget(SessionId),
    /// A lane of the client is heard from this address, which may be known. For the audit file.
    HeardAt {
        /// Which session.
        session: SessionId,
        /// The client's lane.
        lane: u8,
        /// From where.
        outer: SocketAddr,
    },
    /// The session is over; its addresses are free. For log and audit file.
    Ended(EndedSession),
}

/// A session that is over.
#[derive(Clone, Debug)]
pub struct EndedSession {
    /// Which session.
    pub session: SessionId,
    /// Its user.
    pub user: UserName,
    /// Its inner addresses.
    pub addresses: Addresses,
    /// Why.
    pub code: Code,
    /// When it began, or was restored after a restart.
    pub since: Time,
    /// Its traffic, as far as shards have reported it.
    pub activity: Activity,
}
