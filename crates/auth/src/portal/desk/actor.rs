//! The person or program that acts at the desk.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::Desk;
use vpnd_ipc::gateway::portal::desk::{DeskRefusal, Replied, Role};
use vpnd_store::User;
use vpnd_store::audit::{AuditEntry, AuditFile, Event};

pub(super) struct Actor {
    pub(super) who: Who,
    pub(super) role: Role,
    pub(super) address: IpAddr,
    pub(super) desk: Arc<Desk>,
}

pub(super) enum Who {
    Person(Box<User>),
    /// The name of its token.
    Program(String),
}

impl Actor {
    /// An entry of the audit file about something that was done.
    pub(super) fn entry(&self, event: &str, user: &str, detail: String, at_s: u64) -> AuditEntry {
        AuditEntry {
            at_s,
            event: event.to_owned(),
            user: user.to_owned(),
            source: self.address.to_string(),
            detail,
            by: self.to_string(),
        }
    }

    /// Records what is about to be done or shown; the file that has it.
    pub(super) fn record(&self, event: &str, user: &str, detail: String, at_s: u64) -> Replied<AuditFile> {
        let mut file = self.desk.audit_file().ok_or(DeskRefusal::NotRecorded)?;
        let recorded = file.record(&[Event::Entry(self.entry(event, user, detail, at_s))]);
        recorded.map_err(|error| {
            tracing::error!(%error, event, user, by = %self, "it can't be recorded, and so is not done");
            DeskRefusal::NotRecorded
        })?;
        Ok(file)
    }

    /// Whether it adds users.
    pub(super) fn adds_users(&self) -> bool {
        self.role == Role::Administrator
    }

    pub(super) fn person(&self) -> Option<&User> {
        match &self.who {
            Who::Person(user) => Some(user),
            Who::Program(_) => None,
        }
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.who {
            Who::Person(user) => write!(f, "{} on the web pages", user.name),
            Who::Program(token) => write!(f, "token {token}"),
        }
    }
}
