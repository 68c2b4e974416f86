//! A client's move to another gateway, because the one that it uses is being drained (PROTOCOL
//! §5.2).
//!
//! INVARIANT: the session that there is goes on until another one is granted; a move that fails
//! changes nothing.

use core::time::Duration;

use super::reconnect::Attempt;
use super::{Action, Client, Purpose};
use crate::control::Code;
use crate::session::ConnectionId;
use crate::time::Time;

/// Gateways that are tried after one notice. The next notice comes soon.
const TRIES: u8 = 8;
/// Notices that come sooner after the last that was followed are not: two gateways that send their
/// clients to each other would have them log in all the time. A gateway sends one each 30 s.
const SPACING: Duration = Duration::from_secs(20);

impl Client {
    /// The gateway asks its clients to leave.
    pub(super) fn leave(&mut self, now: Time) {
        if !self.unwelcome && self.left.is_none_or(|left| now.since(left) >= SPACING) {
            self.left = Some(now);
            self.moves_left = TRIES;
            self.log_in_elsewhere();
        }
    }

    fn log_in_elsewhere(&mut self) {
        if self.over || self.attempt.is_some() || !self.is_up() || self.moves_left == 0 {
            return;
        }
        self.moves_left -= 1;
        let connection = ConnectionId(self.next_connection);
        self.next_connection += 1;
        let offer = self.make_offer();
        self.attempt = Some(Attempt { connection, offer: offer.clone(), is_login: true, is_move: true });
        self.actions.push_back(Action::Connect { connection, purpose: Purpose::Move, offer });
    }

    /// Whether `attempt`, which has failed, was a move from a connection that is still there: then
    /// nothing is lost. `code` is the refusal, if there was one.
    pub(super) fn stays(&mut self, attempt: &Attempt, code: Option<Code>) -> bool {
        if !attempt.is_move || self.connection.is_none() {
            return false;
        }
        match code {
            // It was another address of this gateway, or the next one is to stop, too.
            Some(Code::Drain) => self.log_in_elsewhere(),
            None | Some(Code::Busy | Code::TooMany | Code::NoAddress | Code::Internal | Code::Throttled) => {}
            // Wrong credentials are never tried twice.
            Some(_) => self.unwelcome = true,
        }
        true
    }
}
