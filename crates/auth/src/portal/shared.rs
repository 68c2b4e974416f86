//! The web pages of all gateways of a fleet.
//!
//! INVARIANT: what is good once is good once over all gateways. Logins that wait for a second step,
//! and what a page offers for the next, are one gateway's.

use std::sync::Arc;
use std::time::Duration;

use super::{Portal, now};
use crate::notices::{self, Notice, Notices, Subscriber, Taken};
use vpnd_store::UserId;

impl Portal {
    /// Shares visits and logins with the other gateways from now on.
    pub(crate) fn share(&self, notices: &Arc<Notices>) {
        self.fleet.join(notices);
    }
}

impl Subscriber for Portal {
    fn learn(&self, notice: &Notice) {
        match notice {
            Notice::Visit(hash, shared) => {
                let now_s = (self.clocks.steady)();
                self.visits().learn((*hash).into(), shared.as_ref(), now(), now_s);
            }
            Notice::Login(hash, shared, began_s) => {
                let age = Duration::from_secs((self.clocks.steady)().saturating_sub(*began_s));
                self.connects().learn((*hash).into(), shared.as_ref(), age, now());
            }
            Notice::Taken(Taken::Code(user, from), at_s) => {
                let (user, age) = (UserId((*user).into()), notices::age(*at_s));
                self.connects().learn_of_code(user, *from, age, now());
            }
            Notice::Guess(..)
            | Notice::Asked(..)
            | Notice::Answered(..)
            | Notice::Taken(..)
            | Notice::Gateway(..) => {}
        }
    }

    fn made(&self) -> Vec<Notice> {
        let now_s = (self.clocks.steady)();
        let visits = self.visits().made(now(), now_s).into_iter();
        let mut made: Vec<Notice> = visits.map(|(hash, shared)| Notice::Visit(hash.into(), shared)).collect();
        made.extend(self.connects().made(now()).into_iter().map(|(hash, shared)| {
            let (shared, age_s) = shared.unzip();
            Notice::Login(hash.into(), shared, now_s.saturating_sub(age_s.unwrap_or_default()))
        }));
        made.extend(self.connects().codes_typed().into_iter().map(Taken::now));
        made
    }

    fn has_missed(&self) {
        self.visits().forget();
        self.connects().forget();
    }
}
