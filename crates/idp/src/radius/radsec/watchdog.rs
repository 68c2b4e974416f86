//! Whether the server at the other end of a connection is still there (RFC 3539): asked by
//! Status-Server (RFC 5997) when nothing has come for a while, or a request has got no reply.
//!
//! INVARIANT: a connection without an answer is over, unless the server may be waiting for a person
//! and has never answered such a question: a server need not offer it, and its silence says nothing
//! then.

use std::time::Duration;

use tokio::time::Instant;

use super::{Packet, SECRET};
use crate::radius::packet::accounting::made_for;
use crate::radius::packet::{ACCESS_ACCEPT, ACCOUNTING_RESPONSE, status_server};

/// The number of its requests, which no other request has.
pub(super) const NUMBER: u8 = 0;
/// How connections are watched.
#[derive(Clone)]
pub(in crate::radius) struct Options {
    pub(in crate::radius) nas_identifier: String,
    /// Time without a packet after which the server is asked.
    pub(in crate::radius) idle: Duration,
    /// Limit for the answer.
    pub(in crate::radius) timeout: Duration,
    /// Whether the server may wait for a person before it replies to a request.
    pub(in crate::radius) may_wait: bool,
}

pub(super) struct Watchdog {
    options: Options,
    due: Instant,
    /// The question that is not answered yet.
    asked: Option<Packet>,
    is_offered: bool,
}

impl Watchdog {
    pub(super) fn new(options: &Options) -> Self {
        Self { due: Instant::now() + options.idle, options: options.clone(), asked: None, is_offered: false }
    }

    /// When [`Watchdog::next`] is to be called.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// A packet has come.
    pub(super) fn is_alive(&mut self) {
        self.due = Instant::now() + self.options.idle;
    }

    /// A request has got no reply.
    pub(super) fn suspect(&mut self) {
        if self.asked.is_none() {
            self.due = Instant::now();
        }
    }

    /// The next question, if there is one; or why the connection is over. `is_awaited` says whether
    /// requests are under way.
    pub(super) fn next(&mut self, is_awaited: bool) -> Result<Option<Packet>, String> {
        if self.asked.is_none() {
            let asked =
                status_server(NUMBER, rand::random(), &self.options.nas_identifier, SECRET.as_bytes());
            self.due = Instant::now() + self.options.timeout;
            return Ok(Some(self.asked.insert(asked).clone()));
        }
        if is_awaited && self.options.may_wait && !self.is_offered {
            self.due = Instant::now() + self.options.idle;
            return Ok(None);
        }
        Err("the server gives no answer any more".to_owned())
    }

    /// Takes the answer; why it is none, if it is none.
    pub(super) fn reply(&mut self, packet: &[u8]) -> Result<(), String> {
        let asked = self.asked.take().ok_or("an unexpected reply")?;
        let made = made_for(&asked, packet, SECRET.as_bytes());
        match made.map_err(|reason| reason.to_string())?.0 {
            ACCESS_ACCEPT | ACCOUNTING_RESPONSE => {
                self.is_offered = true;
                Ok(())
            }
            _ => Err("a reply of another kind".to_owned()),
        }
    }
}
