//! Whom the gateway listens to before anyone has authenticated: a decision for each first datagram and for each handshake.
//!
//! Two steps. An address that has not proved itself gets at most a stateless Retry, which is shorter than what it answers;
//! so nothing is kept for addresses that may be forged. One that has proved itself may shake hands, as far as its networks'
//! rates and the places for unauthenticated connections go. Sources of live sessions are judged by their own address alone and
//! have a share of the places for themselves, so a flood from their network, or of strangers, does not keep them out.
//!
//! INVARIANT: memory depends on the limits, never on what arrives: rates are kept in tables of fixed size ([`sketch`]), other
//! state exists only for places and sessions, which are limited. It must not know QUIC, nor what a login is.

mod sketch;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher as _};
use std::net::IpAddr;

use crate::time::Time;
use sketch::{Cells, Rate, Sketch};

/// Bits of a prefix from narrow to wide: a host, a site, a provider. Whoever has one IPv6 address has its /64.
const V4_BITS: [u32; LEVELS] = [32, 24, 16];
const V6_BITS: [u32; LEVELS] = [64, 56, 48];
const LEVELS: usize = 3;
/// How much more a wider network may do than one host.
const WIDER: [u64; LEVELS] = [1, 2, 8];
/// How much more a source of live sessions may do than others: many people may share its address.
const FAMILIAR: u64 = 4;
/// How many seconds' worth of its rate a source may use at once: people come in the morning.
const BURST_S: u64 = 6;
/// Answers to one unproved host for each handshake that a proved one may begin: a first flight has two datagrams, each of
/// which is answered, and some are sent again.
const ANSWERS: u64 = 4;
/// Datagrams of proved hosts that belong to handshakes, for each that may begin: two of a first flight, acknowledgements, and
/// what is sent again.
const INITIALS: u64 = 8;
/// Full batches in a row after which strangers are answered half as often, again and again, and how often at most.
const BACKLOG_STEP: u32 = 8;
const MOST_HALVINGS: u32 = 6;
/// Of so many places one is kept for sources of live sessions.
const RESERVE: usize = 4;

/// How much is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections that have not authenticated, at once; at least 1.
    pub places: usize,
    /// Handshakes that one host may begin each second, at least 1: an IPv4 address or an IPv6 /64. Six times as many at once.
    pub handshakes_per_s: u32,
}

/// What to do with a first datagram whose source is not proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// Ask for a proof, with a datagram that is shorter.
    Answer,
    /// Nothing: the source's network has had its answers.
    Drop,
}

/// What to do with a handshake from an address that is proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Let it in: it has a place until [`Admission::leave`].
    Accept,
    /// Say no: there is no place, it may try again.
    Refuse,
    /// Nothing: the source's network begins too many handshakes.
    Ignore,
}

/// What was decided, counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Unproved sources that were asked for a proof.
    pub retried: u64,
    /// Datagrams that would begin a handshake and were dropped, because too many come from their network.
    pub dropped: u64,
    /// Handshakes let in.
    pub accepted: u64,
    /// Handshakes refused for want of a place.
    pub refused: u64,
    /// Handshakes ignored because their network begins too many.
    pub ignored: u64,
}

/// A host, as far as addresses tell: an IPv4 address or an IPv6 /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    v6: bool,
    /// The address, its first bit in front; of IPv6 the first 64 bits.
    bits: u64,
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self { v6: false, bits: u64::from(v4.to_bits()) << 32 },
            IpAddr::V6(v6) => Self { v6: true, bits: (v6.to_bits() >> 64) as u64 },
        }
    }
}

/// Decides who is let in.
#[derive(Debug)]
pub struct Admission {
    places: usize,
    secret: DefaultHasher,
    answers: [Sketch; LEVELS],
    initials: [Sketch; LEVELS],
    handshakes: [Sketch; LEVELS],
    familiar_handshakes: Sketch,
    /// Unauthenticated connections, by source.
    inside: BTreeMap<Source, usize>,
    taken: usize,
    /// Full batches in a row, and strangers that came while it mattered.
    backlog: u32,
    strangers: u64,
    /// Live sessions, by source.
    sessions: BTreeMap<Source, usize>,
    counts: Counts,
}

impl Admission {
    /// Nobody is there yet. `secret` is random, so that nobody outside knows which sources share a cell of a table.
    pub fn new(limits: Limits, secret: [u8; 16]) -> Self {
        let per_s = u64::from(limits.handshakes_per_s.max(1));
        let rate = |per_s: u64| Rate { per_s, burst: per_s.saturating_mul(BURST_S) };
        let ladder = |per_s: u64| WIDER.map(|wider| Sketch::new(rate(per_s.saturating_mul(wider))));
        let mut hasher = DefaultHasher::new();
        hasher.write(&secret);
        Self {
            places: limits.places.max(1),
            secret: hasher,
            answers: ladder(per_s * ANSWERS),
            initials: ladder(per_s * INITIALS),
            handshakes: ladder(per_s),
            familiar_handshakes: Sketch::new(rate(per_s * FAMILIAR)),
            inside: BTreeMap::new(),
            taken: 0,
            backlog: 0,
            strangers: 0,
            sessions: BTreeMap::new(),
            counts: Counts::default(),
        }
    }

    /// A batch of datagrams was read; if it was full, more are waiting. Answers cost several times what reading does: when
    /// they make the queue overflow, it loses datagrams of whoever has a proof or a session with those of strangers, so the
    /// longer it stays full, the fewer strangers are answered.
    pub fn batch_read(&mut self, full: bool) {
        self.backlog = if full { self.backlog.saturating_add(1) } else { 0 };
    }

    /// A first datagram came from `source`, which has not proved that it is there.
    pub fn greet(&mut self, now: Time, source: Source) -> Greeting {
        let cells = self.cells(source);
        // A forged source may be familiar, so its own address is limited like any other, but not by its neighbours.
        let familiar = self.is_familiar(source);
        let levels = if familiar { 1 } else { LEVELS };
        if (familiar || self.is_strangers_turn()) && take(&mut self.answers[..levels], &cells, now) {
            self.counts.retried += 1;
            Greeting::Answer
        } else {
            self.counts.dropped += 1;
            Greeting::Drop
        }
    }

    /// A datagram of a handshake came from `source`, which has proved that it is there. Whether to look at it: whoever has a
    /// proof may show it often, and each look costs the derivation of keys.
    pub fn hear(&mut self, now: Time, source: Source) -> bool {
        let cells = self.cells(source);
        let levels = if self.is_familiar(source) { 1 } else { LEVELS };
        let heard = take(&mut self.initials[..levels], &cells, now);
        self.counts.dropped += u64::from(!heard);
        heard
    }

    /// `source` has proved that it is there and begins a handshake. Every [`Verdict::Accept`] takes a place.
    pub fn arrive(&mut self, now: Time, source: Source) -> Verdict {
        let familiar = self.is_familiar(source);
        if !self.has_place(source, familiar) {
            self.counts.refused += 1;
            return Verdict::Refuse;
        }
        let cells = self.cells(source);
        let sketches =
            if familiar { std::slice::from_mut(&mut self.familiar_handshakes) } else { &mut self.handshakes };
        if !take(sketches, &cells, now) {
            self.counts.ignored += 1;
            return Verdict::Ignore;
        }
        *self.inside.entry(source).or_default() += 1;
        self.taken += 1;
        self.counts.accepted += 1;
        Verdict::Accept
    }

    /// An accepted connection of `source` has authenticated or is gone: its place is free.
    pub fn leave(&mut self, source: Source) {
        if decrement(&mut self.inside, source) {
            self.taken -= 1;
        }
    }

    /// A session is connected from `source`, until [`Admission::session_ended`].
    pub fn session_began(&mut self, source: Source) {
        *self.sessions.entry(source).or_default() += 1;
    }

    /// A session is not connected from `source` any more.
    pub fn session_ended(&mut self, source: Source) {
        decrement(&mut self.sessions, source);
    }

    /// What was decided so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Strangers leave a share of the places alone, and one source another share: it may not be the only one.
    fn has_place(&self, source: Source, familiar: bool) -> bool {
        let reserve = self.places / RESERVE;
        let limit = if familiar { self.places } else { self.places - reserve };
        let held = self.inside.get(&source).copied().unwrap_or_default();
        self.taken < limit && held < limit - reserve
    }

    fn is_strangers_turn(&mut self) -> bool {
        self.strangers = self.strangers.wrapping_add(1);
        let halvings = (self.backlog / BACKLOG_STEP).min(MOST_HALVINGS);
        self.strangers.is_multiple_of(1 << halvings)
    }

    fn is_familiar(&self, source: Source) -> bool {
        self.sessions.contains_key(&source)
    }

    fn cells(&self, source: Source) -> [Cells; LEVELS] {
        let lengths = if source.v6 { V6_BITS } else { V4_BITS };
        lengths.map(|length| {
            let mut hasher = self.secret.clone();
            hasher.write_u64(source.bits >> (64 - length));
            hasher.write_u32(length);
            hasher.write_u8(u8::from(source.v6));
            Cells::from_hash(hasher.finish())
        })
    }
}

/// Takes one from each, or from none if one of them has none left: what is turned away must not count against neighbours.
fn take(sketches: &mut [Sketch], cells: &[Cells; LEVELS], now: Time) -> bool {
    let allowed = sketches.iter().zip(cells).all(|(sketch, cells)| sketch.allows(*cells, now));
    if allowed {
        for (sketch, cells) in sketches.iter_mut().zip(cells) {
            sketch.charge(*cells, now);
        }
    }
    allowed
}

/// Takes one away; false if there was none.
fn decrement(counts: &mut BTreeMap<Source, usize>, source: Source) -> bool {
    let Some(count) = counts.get_mut(&source) else { return false };
    *count -= 1;
    if *count == 0 {
        counts.remove(&source);
    }
    true
}

#[cfg(test)]
mod tests;
