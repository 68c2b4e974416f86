//! Which messages of handshakes are worth the static key's time: the worker's check, for which the
//! public key suffices (§5.3).
//!
//! In this order: the first MAC; then a right second MAC, which proves the address, as far as that
//! address's own rate goes; without one, as far as the rate of its network and that of all together
//! go, and a cookie beyond. So one flooder is asked for a proof while others are not; when forged
//! addresses use up what all have together, all are asked, and no longer once the flood is over:
//! rates refill by themselves.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::SocketAddr;

use vpnd_proto::admission::Source;
use vpnd_proto::admission::sketch::{Cells, Rate, Share, Sketch};
use vpnd_proto::session::{Random, random_bytes};
use vpnd_proto::time::Time;
use vpnd_proto::wire::Index;

use crate::cookie::CookieMaker;
use crate::key::PublicKey;
use crate::mac::{HandshakeMessage, Mac1Key};
use crate::message::CookieReply;

/// Rates beyond which a message is not passed on.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Messages of one host that has not proved its address: beyond, it is asked to. A campus
    /// behind one NAT is one host.
    pub unproved: Rate,
    /// Messages of one host that has: beyond, they are dropped.
    pub proved: Rate,
    /// Messages of all that have not proved their address.
    pub all_unproved: Rate,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            unproved: Rate { per_s: 10, burst: 60 },
            proved: Rate { per_s: 100, burst: 600 },
            all_unproved: Rate { per_s: 500, burst: 500 },
        }
    }
}

/// The decision about a message of a handshake.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Pass it on.
    Pass,
    /// Send this back, and do nothing else.
    Cookie(CookieReply),
    /// Do nothing: the host, whose address is proved, sends too many.
    TooMany,
}

/// Messages, counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// First MACs that were wrong.
    pub wrong_mac: u64,
    /// Messages passed on.
    pub passed: u64,
    /// Cookies given.
    pub cookies: u64,
    /// Messages dropped because their host sends too many.
    pub too_many: u64,
}

/// Decides what is passed on.
#[derive(Debug)]
pub struct Gate {
    key: Mac1Key,
    cookies: CookieMaker,
    secret: DefaultHasher,
    unproved: Sketch,
    proved: Sketch,
    all: Share,
    all_used_until: u64,
    counts: Counts,
}

impl Gate {
    /// In front of the key `own`.
    #[must_use]
    pub fn new(now: Time, own: PublicKey, limits: Limits, random: &mut Random) -> Self {
        let mut secret = DefaultHasher::new();
        secret.write(&random_bytes::<16>(random));
        Self {
            key: Mac1Key::new(own),
            cookies: CookieMaker::new(now, own, random),
            secret,
            unproved: Sketch::new(limits.unproved),
            proved: Sketch::new(limits.proved),
            all: Share::new(limits.all_unproved),
            all_used_until: 0,
            counts: Counts::default(),
        }
    }

    /// Whether the first MAC is right: to be asked before anything else is done for a message.
    pub fn is_for_us(&mut self, message: &impl HandshakeMessage) -> bool {
        let right = message.is_for(&self.key);
        self.counts.wrong_mac += u64::from(!right);
        right
    }

    /// Decides about a message whose first MAC is right. `sender` is the index in it, to which a
    /// cookie goes.
    pub fn admit(
        &mut self,
        now: Time,
        from: SocketAddr,
        sender: Index,
        message: &impl HandshakeMessage,
        random: &mut Random,
    ) -> Verdict {
        let cells = self.cells(from);
        if self.cookies.is_proof(now, from, message, random) {
            if !self.proved.allows(cells, now) {
                self.counts.too_many += 1;
                return Verdict::TooMany;
            }
            self.proved.charge(cells, now);
        } else {
            if !self.unproved.allows(cells, now) || !self.all.allows(self.all_used_until, now) {
                self.counts.cookies += 1;
                return Verdict::Cookie(self.cookies.reply(now, from, sender, message, random));
            }
            self.unproved.charge(cells, now);
            self.all_used_until = self.all.charged(self.all_used_until, now);
        }
        self.counts.passed += 1;
        Verdict::Pass
    }

    /// The messages so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    fn cells(&self, from: SocketAddr) -> Cells {
        let mut hasher = self.secret.clone();
        Source::from(from.ip()).hash(&mut hasher);
        Cells::from_hash(hasher.finish())
    }
}

#[cfg(test)]
mod tests;
