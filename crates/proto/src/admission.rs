//! Admission before anyone has authenticated: a decision for each first datagram and handshake.
//!
//! Two steps. An address that has not proved itself gets at most a stateless Retry, which is
//! shorter than what it answers; so nothing is kept for addresses that may be forged. One that has
//! proved itself may shake hands, as far as its networks' rates and the places for unauthenticated
//! connections go, which networks share fairly ([`shares`]). Sources of live sessions are judged by
//! their own address alone and have a share of the places for themselves, so a flood from their
//! network, or of strangers, does not keep them out.
//!
//! INVARIANT: memory depends on the limits, never on what arrives: rates are kept in tables of
//! fixed size ([`sketch`]), other state exists only for places and sessions, which are limited. It
//! must not know QUIC, nor what a login is.

pub mod network_rates;
pub mod shares;
pub mod sketch;
mod source;

use core::time::Duration;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher as _};

use crate::time::Time;
use network_rates::{cells, ladder};
use shares::{Displaced, Division, Entered, PermitId, Shares, Standing};
use sketch::{Cells, Rate, Sketch};
use source::LEVELS;
pub use source::{Network, Source};

/// Rates of a provider, a site and a host, in multiples of a host's.
const WIDER: [u64; LEVELS] = [8, 2, 1];
/// Rate of a source of live sessions, in multiples of others': many people may share its address.
const FAMILIAR: u64 = 4;
/// Burst of a source in seconds of its rate: many people log in at once in the morning.
const BURST_S: u64 = 6;
/// Answers to one unproved host for each handshake that a proved one may begin: a first flight has
/// two datagrams, each of which is answered, and some are sent again.
const ANSWERS: u64 = 4;
/// Datagrams of proved hosts that belong to handshakes, for each that may begin: two of a first
/// flight, acknowledgements, and what is sent again.
const INITIALS: u64 = 8;
/// Full batches in a row after which strangers are answered half as often, and how often at most.
const BACKLOG_STEP: u32 = 8;
const MOST_HALVINGS: u32 = 6;
/// A handshake takes three round trips. A connection with a place for longer loses it first.
const DISPLACE_AFTER: Duration = Duration::from_secs(1);

/// Limits of what is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections that have not authenticated, at once; at least 1.
    pub places: usize,
    /// Handshakes that one host may begin each second, at least 1: an IPv4 address or an IPv6 /64.
    /// Six times as many at once.
    pub handshakes_per_s: u32,
}

/// The decision about a first datagram whose source is not proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    /// Request a proof, with a datagram that is shorter.
    Retry,
    /// Nothing: the source's network has had its answers.
    Drop,
}

/// The decision about a handshake from an address that is proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionDecision {
    /// Let it in.
    Accept {
        /// Its place until [`Admission::leave`].
        permit: PermitId,
        /// This place was taken away for it: end the connection that had it.
        displaced: Option<PermitId>,
    },
    /// Refuse it: there is no place for its network, it may try again.
    Refuse,
    /// Nothing: the source's network begins too many handshakes.
    Ignore,
}

/// Decisions, counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Unproved sources that were asked for a proof.
    pub retried: u64,
    /// Datagrams that would begin a handshake, dropped since too many come from their network.
    pub dropped: u64,
    /// Handshakes let in.
    pub accepted: u64,
    /// Handshakes refused for lack of a place.
    pub refused: u64,
    /// Connections that lost their place to one from a network that held less.
    pub displaced: u64,
    /// Handshakes ignored because their network begins too many.
    pub ignored: u64,
}

/// Decides who is let in.
#[derive(Debug)]
pub struct Admission {
    secret: DefaultHasher,
    answers: [Sketch; LEVELS],
    initials: [Sketch; LEVELS],
    handshakes: [Sketch; LEVELS],
    familiar_handshakes: Sketch,
    /// Unauthenticated connections.
    places: Shares,
    /// Full batches in a row, and strangers that came while it mattered.
    backlog: u32,
    strangers: u64,
    /// Live sessions, by source.
    sessions: BTreeMap<Source, usize>,
    counts: Counts,
}

impl Admission {
    /// Without any connection. `secret` is random: no attacker knows which sources share a cell.
    pub fn new(limits: Limits, secret: [u8; 16]) -> Self {
        let per_s = u64::from(limits.handshakes_per_s.max(1));
        let rate = |per_s: u64| Rate { per_s, burst: per_s.saturating_mul(BURST_S) };
        let mut hasher = DefaultHasher::new();
        hasher.write(&secret);
        Self {
            secret: hasher,
            answers: ladder(per_s * ANSWERS),
            initials: ladder(per_s * INITIALS),
            handshakes: ladder(per_s),
            familiar_handshakes: Sketch::new(rate(per_s * FAMILIAR)),
            places: Shares::new(Division {
                limit: limits.places,
                displace_after: DISPLACE_AFTER,
                displaced: Displaced::Oldest,
            }),
            backlog: 0,
            strangers: 0,
            sessions: BTreeMap::new(),
            counts: Counts::default(),
        }
    }

    /// A batch of datagrams was read; if it was full, more are waiting. Answers cost several times
    /// what reading does: when they make the queue overflow, it loses datagrams of sources with a
    /// proof or a session together with those of strangers, so the longer it stays full, the fewer
    /// strangers are answered.
    pub fn batch_read(&mut self, full: bool) {
        self.backlog = if full { self.backlog.saturating_add(1) } else { 0 };
    }

    /// A first datagram came from `source`, which has not proved that it is there.
    pub fn on_initial(&mut self, now: Time, source: Source) -> RetryDecision {
        let cells = self.cells(source);
        // A forged source may be familiar: its own address is limited, but not by its neighbours.
        let familiar = self.is_familiar(source);
        let from = first_level(familiar);
        if (familiar || self.is_strangers_turn()) && take(&mut self.answers[from..], &cells[from..], now) {
            self.counts.retried += 1;
            RetryDecision::Retry
        } else {
            self.counts.dropped += 1;
            RetryDecision::Drop
        }
    }

    /// A datagram of a handshake came from `source`, which has proved its address. Whether to
    /// process it: a source may show its proof often, and each time keys are derived.
    pub fn on_validated(&mut self, now: Time, source: Source) -> bool {
        let cells = self.cells(source);
        let from = first_level(self.is_familiar(source));
        let allowed = take(&mut self.initials[from..], &cells[from..], now);
        self.counts.dropped += u64::from(!allowed);
        allowed
    }

    /// `source` has proved that it is there and begins a handshake. Every
    /// [`ConnectionDecision::Accept`] takes a place.
    pub fn on_connection(&mut self, now: Time, source: Source) -> ConnectionDecision {
        let (familiar, standing) = (self.is_familiar(source), self.standing(source));
        let cells = self.cells(source);
        let (sketches, cells) = if familiar {
            (std::slice::from_mut(&mut self.familiar_handshakes), &cells[LEVELS - 1..])
        } else {
            (&mut self.handshakes[..], &cells[..])
        };
        if !allows(sketches, cells, now) {
            self.counts.ignored += 1;
            return ConnectionDecision::Ignore;
        }
        match self.places.enter(now, source, standing) {
            Entered::In { permit, displaced } => {
                charge(sketches, cells, now);
                self.counts.accepted += 1;
                self.counts.displaced += u64::from(displaced.is_some());
                ConnectionDecision::Accept { permit, displaced }
            }
            Entered::Full => {
                self.counts.refused += 1;
                ConnectionDecision::Refuse
            }
        }
    }

    /// An accepted connection has authenticated or is gone: its place is free.
    pub fn leave(&mut self, permit: PermitId) {
        self.places.leave(permit);
    }

    /// A session is connected from `source`, until [`Admission::session_ended`].
    pub fn session_began(&mut self, source: Source) {
        *self.sessions.entry(source).or_default() += 1;
    }

    /// A session is not connected from `source` any more.
    pub fn session_ended(&mut self, source: Source) {
        if let Some(count) = self.sessions.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.sessions.remove(&source);
            }
        }
    }

    /// The decisions so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn is_strangers_turn(&mut self) -> bool {
        self.strangers = self.strangers.wrapping_add(1);
        let halvings = (self.backlog / BACKLOG_STEP).min(MOST_HALVINGS);
        self.strangers.is_multiple_of(1 << halvings)
    }

    /// How far a source is known.
    #[must_use]
    pub fn standing(&self, source: Source) -> Standing {
        if self.is_familiar(source) { Standing::Known } else { Standing::Stranger }
    }

    fn is_familiar(&self, source: Source) -> bool {
        self.sessions.contains_key(&source)
    }

    fn cells(&self, source: Source) -> [Cells; LEVELS] {
        cells(&self.secret, source)
    }
}

/// The widest level that a source is judged by: one with sessions by itself alone.
fn first_level(familiar: bool) -> usize {
    if familiar { LEVELS - 1 } else { 0 }
}

/// Takes one from each, or from none: what is turned away must not count against neighbours.
fn take(sketches: &mut [Sketch], cells: &[Cells], now: Time) -> bool {
    let allowed = allows(sketches, cells, now);
    if allowed {
        charge(sketches, cells, now);
    }
    allowed
}

fn allows(sketches: &[Sketch], cells: &[Cells], now: Time) -> bool {
    sketches.iter().zip(cells).all(|(sketch, cells)| sketch.allows(*cells, now))
}

fn charge(sketches: &mut [Sketch], cells: &[Cells], now: Time) {
    for (sketch, cells) in sketches.iter_mut().zip(cells) {
        sketch.charge(*cells, now);
    }
}

#[cfg(test)]
mod tests;
