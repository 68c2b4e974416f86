//! The web pages of all gateways of a fleet.
//!
//! INVARIANT: what is good once is good once over all gateways. Logins that wait for a second step,
//! and what a page offers for the next, are one gateway's.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{Browsers, Portal, now};
use crate::notices::{self, Notice, Notices, Subscriber, Taken};
use vpnd_store::UserId;

impl Portal {
    /// Shares visits and logins with the other gateways from now on.
    pub(crate) fn share(&self, notices: &Arc<Notices>) {
        self.fleet.join(notices);
        let browsers: Weak<Browsers> = Arc::downgrade(&self.browsers);
        notices.subscribe(browsers);
    }
}

impl Subscriber for Portal {
    fn learn(&self, notice: &Notice) {
        match notice {
            Notice::Login(hash, shared, began_s) => {
                let age = Duration::from_secs((self.clocks.steady)().saturating_sub(*began_s));
                self.connects().learn((*hash).into(), shared.as_ref(), age, now());
            }
            Notice::Taken(Taken::Code(user, from), at_s) => {
                let (user, age) = (UserId((*user).into()), notices::age(*at_s));
                self.connects().learn_of_code(user, *from, age, now());
            }
            Notice::Visit(..)
            | Notice::Guess(..)
            | Notice::Asked(..)
            | Notice::Answered(..)
            | Notice::Taken(..)
            | Notice::Gateway(..) => {}
        }
    }

    fn made(&self) -> Vec<Notice> {
        let now_s = (self.clocks.steady)();
        let logins = self.connects().made(now()).into_iter().map(|(hash, shared)| {
            let (shared, age_s) = shared.unzip();
            Notice::Login(hash.into(), shared, now_s.saturating_sub(age_s.unwrap_or_default()))
        });
        let mut made: Vec<Notice> = logins.collect();
        made.extend(self.connects().codes_typed().into_iter().map(Taken::now));
        made
    }

    fn has_missed(&self) {
        self.connects().forget();
    }
}
