//! A client's move to another gateway, because the one that it uses is being drained (PROTOCOL
//! §5.2): with its session, where the gateways share these, or by a login.
//!
//! INVARIANT: what there is of the session goes on until another gateway has granted it or another
//! one; a move that fails changes nothing.

use core::time::Duration;

use super::reconnect::Attempt;
use super::{Action, Client, Purpose};
use crate::control::{Code, Drain};
use crate::session::ConnectionId;
use crate::time::Time;

/// Gateways that are tried after one notice. The next notice comes soon.
const TRIES: u8 = 8;
/// Notices that come sooner after the last that was followed are not: two gateways that send their
/// clients to each other would have them log in all the time. A gateway sends one each 30 s.
const SPACING: Duration = Duration::from_secs(20);

/// Notices to leave, as far as they were followed.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// When the last was.
    followed: Option<Time>,
    /// Other gateways that may still be tried after it.
    tries_left: u8,
    /// Whether they are tried with the session that there is.
    with_session: bool,
    /// Another gateway has refused a login for good.
    is_unwelcome: bool,
}

impl Client {
    /// The gateway asks its clients to leave.
    pub(super) fn leave(&mut self, now: Time, notice: Drain) {
        let notices = &mut self.notices;
        if notices.followed.is_none_or(|followed| now.since(followed) >= SPACING) {
            notices.followed = Some(now);
            notices.tries_left = TRIES;
            notices.with_session = notice.is_shared;
            self.go_elsewhere();
        }
    }

    fn go_elsewhere(&mut self) {
        let Notices { tries_left, with_session, is_unwelcome, .. } = self.notices;
        let may_go = tries_left > 0 && (with_session || !is_unwelcome);
        if self.over || self.attempt.is_some() || !self.is_up() || !may_go {
            return;
        }
        self.notices.tries_left -= 1;
        let purpose = match &self.session {
            Some(session) if with_session => {
                Purpose::Transfer { session: session.id, token: session.token.clone() }
            }
            _ => Purpose::Move,
        };
        let connection = ConnectionId(self.next_connection);
        self.next_connection += 1;
        let (offer, is_login) = (self.make_offer(), purpose == Purpose::Move);
        self.attempt = Some(Attempt { connection, offer: offer.clone(), is_login, is_move: true });
        self.output.push(Action::Connect { connection, purpose, offer });
    }

    /// Whether `attempt`, which has failed, was a move from a connection that is still there: then
    /// nothing is lost. `code` is the refusal, if there was one.
    pub(super) fn stays(&mut self, attempt: &Attempt, code: Option<Code>) -> bool {
        if !attempt.is_move || self.connection.is_none() {
            return false;
        }
        match code {
            // It was another address of this gateway, or the next one is to stop, too.
            Some(Code::Drain) => self.go_elsewhere(),
            // The others do not know the session, or not its newest token.
            Some(Code::Token | Code::Lifetime) if !attempt.is_login => {
                self.notices.with_session = false;
                self.go_elsewhere();
            }
            None | Some(Code::Busy | Code::TooMany | Code::NoAddress | Code::Internal | Code::Throttled) => {}
            // Wrong credentials are never tried twice.
            Some(_) if attempt.is_login => self.notices.is_unwelcome = true,
            Some(_) => {}
        }
        true
    }
}
