//! A gateway that is being emptied before it stops (PROTOCOL §5.2).
//!
//! INVARIANT: no session is added, and existing ones go on until the end or until they leave: keys
//! are renewed meanwhile.

use super::session::Session;
use super::{Effect, Gateway};
use crate::control::{Code, Drain, Message};
use crate::session::SessionId;

impl Gateway {
    /// Refuses logins from now on, and notifies the connected clients, again at each call;
    /// `is_shared` says whether other gateways go on with the sessions.
    pub fn drain(&mut self, is_shared: bool) {
        self.draining = true;
        for connection in self.table.iter().filter_map(|session| session.connection) {
            self.effects.push_back(Effect::Send { connection, message: Message::Drain(Drain { is_shared }) });
        }
    }

    /// Lets clients in again.
    pub fn end_drain(&mut self) {
        self.draining = false;
    }

    /// Sessions that are in use: with a connection or with keys.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.table.iter().filter(|session| !session.is_detached()).count()
    }

    /// Each session, and whether its client is away.
    pub fn absences(&self) -> impl Iterator<Item = (SessionId, bool)> {
        self.table.iter().map(|session| (session.record.id, session.is_detached()))
    }

    /// Other gateways have this many sessions, which count for the limit of all.
    pub fn set_elsewhere(&mut self, sessions: usize) {
        self.elsewhere = sessions;
    }

    /// Closes all connections with `code` and erases all keys; sessions stay in the store, to be
    /// attached to later.
    pub fn close_all(&mut self, code: Code) {
        for slot in self.table.slots() {
            if let Some(session) = self.remove(slot)
                && let Some(connection) = session.connection
            {
                self.close_connection(connection, code, code.explanation());
            }
        }
    }

    /// Whether an attach to this session would bring a client back that is away.
    pub(super) fn is_closed_to(&self, session: &Session) -> bool {
        self.draining && session.is_detached()
    }
}
