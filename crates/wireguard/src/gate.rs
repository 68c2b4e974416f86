//! Which messages of handshakes are worth the static key's time: the worker's check, for which the
//! public key suffices (§5.3).
//!
//! In this order: the first MAC; then a right second MAC, which proves the address, as far as the
//! rates of its host, site and provider go; without one, as far as theirs and that of all together
//! go, and a cookie beyond. So one flooder is asked for a proof while others are not; when forged
//! addresses use up what all have together, all are asked, and no longer once the flood is over:
//! rates refill by themselves. Who has all addresses of a network has that network's rate.

use std::net::SocketAddr;

use vpnd_proto::admission::Source;
use vpnd_proto::admission::network_rates::NetworkRates;
use vpnd_proto::admission::sketch::{Rate, Share};
use vpnd_proto::session::{Random, random_bytes};
use vpnd_proto::time::Time;
use vpnd_proto::wire::Index;

use crate::cookie::CookieMaker;
use crate::key::PublicKey;
use crate::mac::{HandshakeMessage, Mac1Key};
use crate::message::CookieReply;

/// Rates beyond which a message is not passed on: those of a host each second, several times as
/// many at once, and more of its site and provider ([`NetworkRates`]).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Messages of one host that has not proved its address: beyond, it is asked to. A campus
    /// behind one NAT is one host.
    pub unproved: u64,
    /// Messages of one host that has: beyond, they are dropped.
    pub proved: u64,
    /// Messages of all that have not proved their address.
    pub all_unproved: Rate,
}

impl Default for Limits {
    fn default() -> Self {
        Self { unproved: 10, proved: 100, all_unproved: Rate { per_s: 500, burst: 500 } }
    }
}

/// The decision about a message of a handshake.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Pass it on.
    Pass,
    /// Send this back, and do nothing else.
    Cookie(CookieReply),
    /// Do nothing: the host, whose address is proved, or its network sends too many.
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
    /// Messages dropped because their host or its network sends too many.
    pub too_many: u64,
}

/// Decides what is passed on.
#[derive(Debug)]
pub struct Gate {
    key: Mac1Key,
    cookies: CookieMaker,
    unproved: NetworkRates,
    proved: NetworkRates,
    all: Share,
    all_used_until: u64,
    counts: Counts,
}

impl Gate {
    /// In front of the key `own`.
    #[must_use]
    pub fn new(now: Time, own: PublicKey, limits: Limits, random: &mut Random) -> Self {
        Self {
            key: Mac1Key::new(own),
            cookies: CookieMaker::new(now, own, random),
            unproved: NetworkRates::new(limits.unproved, random_bytes(random)),
            proved: NetworkRates::new(limits.proved, random_bytes(random)),
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
        let source = Source::from(from.ip());
        if self.cookies.is_proof(now, from, message, random) {
            if !self.proved.take(now, source) {
                self.counts.too_many += 1;
                return Verdict::TooMany;
            }
        } else {
            if !self.all.allows(self.all_used_until, now) || !self.unproved.take(now, source) {
                self.counts.cookies += 1;
                return Verdict::Cookie(self.cookies.reply(now, from, sender, message, random));
            }
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
}

#[cfg(test)]
mod tests;
