//! Limits of a user's logins. Each costs writes to the store, a line of the audit file
//! and, with a new device, an address.
//!
//! Invariants: a user has a number at once and then one for each interval, whatever the number of
//! devices, places and gateways; a login beyond that leaves no trace in the store.

use std::sync::Mutex;
use std::time::Duration;

use minicbor::bytes::ByteArray;

use crate::notices::{self, Notice, Subscriber, Taken, lock};
use vpnd_store::UserId;
use vpnd_sys::clock::now;

/// Limits of users, or of what has another key.
pub type Allowances<K = UserId> = vpnd_sys::allowances::Allowances<K>;

/// Logins of one user at once, unless configured otherwise.
pub(super) const LOGINS: u32 = 30;
/// The time from one to the next, when those are used up.
const INTERVAL: Duration = Duration::from_secs(20);

/// The things that are limited, each apart from the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limited {
    Logins,
    /// The allowance of WireGuard devices.
    Admissions,
}

/// Limits of one of them, over all gateways of a fleet.
pub(super) struct Limit {
    limited: Limited,
    allowances: Mutex<Allowances>,
}

impl Limit {
    pub(super) fn new(limited: Limited, at_once: u32) -> Self {
        Self { limited, allowances: Mutex::new(Allowances::new(at_once, INTERVAL)) }
    }

    /// Counts at all gateways of a fleet from now on.
    pub(super) fn share(&self) {
        lock(&self.allowances).share();
    }

    /// Takes one of this user, or returns the seconds after which there is another.
    pub(super) fn take(&self, user: UserId) -> Result<(), u64> {
        lock(&self.allowances).take(user, now())
    }

    fn taken(&self, user: ByteArray<16>) -> Taken {
        match self.limited {
            Limited::Logins => Taken::Login(user),
            Limited::Admissions => Taken::Device(user),
        }
    }
}

impl Subscriber for Limit {
    fn learn(&self, notice: &Notice) {
        let (user, at_s) = match (notice, self.limited) {
            (Notice::Taken(Taken::Login(user), at_s), Limited::Logins)
            | (Notice::Taken(Taken::Device(user), at_s), Limited::Admissions) => (*user, *at_s),
            _ => return,
        };
        lock(&self.allowances).learn(UserId(user.into()), notices::age(at_s), now());
    }

    fn made(&self) -> Vec<Notice> {
        let taken = lock(&self.allowances).take_shared().into_iter();
        taken.map(|user| self.taken(user.0.into()).now()).collect()
    }
}
