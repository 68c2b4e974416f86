//! A client's move to another gateway, because the one that it uses is being drained (PROTOCOL
//! §5.2): with its session, where the gateways share these, or by a login.
//!
//! INVARIANT: what there is of the session goes on until another gateway has granted it or another
//! one; a move that fails changes nothing.

use core::time::Duration;

use crate::control::{Code, Drain};
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

impl Notices {
    /// The gateway asks its clients to leave. Returns whether that is followed.
    pub(super) fn follow(&mut self, now: Time, notice: &Drain) -> bool {
        let is_due = self.followed.is_none_or(|followed| now.since(followed) >= SPACING);
        if is_due {
            self.followed = Some(now);
            self.tries_left = TRIES;
            self.with_session = notice.is_shared;
        }
        is_due
    }

    /// Takes one of the tries that are left; whether it is one with the session.
    pub(super) fn take_try(&mut self) -> Option<bool> {
        let may_go = self.tries_left > 0 && (self.with_session || !self.is_unwelcome);
        self.tries_left -= u8::from(may_go);
        may_go.then_some(self.with_session)
    }

    /// A try has failed, by `code` if it was refused. Returns whether to try the next one at once.
    pub(super) fn failed(&mut self, is_login: bool, code: Option<Code>) -> bool {
        match code {
            // It was another address of this gateway, or the next one is to stop, too.
            Some(Code::Drain) => return true,
            // The others do not know the session, or not its newest token.
            Some(Code::Token | Code::Lifetime) if !is_login => {
                self.with_session = false;
                return true;
            }
            None | Some(Code::Busy | Code::TooMany | Code::NoAddress | Code::Internal | Code::Throttled) => {}
            // Wrong credentials are never tried twice.
            Some(_) if is_login => self.is_unwelcome = true,
            Some(_) => {}
        }
        false
    }
}
