//! Flows that were opened a short time ago, by which policy tells a reply from a packet that only
//! looks like one (PROTOCOL §12).
//!
//! Each session has one [`Flows`], which all shards share: what one of them saw open is known to
//! the others. It has two tables: of flows that the session's client opened, and of those that
//! hosts of the campus opened to it. A client's packets write into the tables of its session only,
//! so no session displaces another's flows; and there are none while policy asks for none.
//!
//! A table takes a fixed room. An entry is one atomic word: a keyed fingerprint and the time of the
//! opener's last packet in units of four seconds, so that a flow costs one write in that time and
//! is only read otherwise. In a full set the oldest entry gives way, of those of TCP or of the
//! others, so that a flood of questions displaces no connections; a flow that gave way is known
//! again from its opener's next packet on.
//!
//! Two more tables have packets in fragments whose first one has passed ([`Flows::note_passed`]):
//! the others have no ports, and follow it.
//!
//! INVARIANT: only packets of its opener enter a flow and keep it. A flow that was not opened is
//! taken for one that was with a probability of 2^-40, and no attacker can compute for which that
//! is so.

mod fragments;
mod key;

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::OnceLock;

use fragments::Passed;
pub use key::FlowKey;
pub(crate) use key::is_error;

use crate::time::Time;
use vpnd_packet::{ICMP, ICMPV6, Packet, TCP};

/// Sets of a table, and entries of each: as many as a line of the processor's cache holds.
const SETS: usize = 128;
const WAYS: usize = 8;

/// Bits of an entry that are its time, in units of 2^[`UNIT_BITS`] ns: 4.3 s, and 52 days in all.
const TIME_BITS: u32 = 20;
const UNIT_BITS: u32 = 32;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;
/// Set if the flow is one of TCP. The bits above are the fingerprint.
const TCP_BIT: u64 = 1 << TIME_BITS;
/// Shards read the clock once a batch, so one may be ahead of the other by this many units.
const SKEW: u64 = 2;

/// A flow of TCP whose opener was silent for longer is over (RFC 5382).
const TCP_IDLE: u64 = units(2 * 3_600 + 240);
/// One of another protocol (RFC 4787).
const OTHER_IDLE: u64 = units(300);
/// A request of ICMP (RFC 5508).
const ICMP_IDLE: u64 = units(60);

/// Time after [`Flows::excuse`] for which a packet that looks like a reply of TCP is taken for one.
const EXCUSED: Duration = Duration::from_secs(120);

/// Length of a seed in bytes.
pub const SEED_LEN: usize = 16;
/// Length of an entry as it is handed over: its place, and itself.
const EXPORTED: usize = 2 + 8;

const fn units(seconds: u64) -> u64 {
    (seconds * 1_000_000_000) >> UNIT_BITS
}

/// The flows of one session.
#[derive(Default)]
pub struct Flows {
    seed: Seed,
    by_client: Table,
    by_campus: Table,
    fragments_of_client: Passed,
    fragments_of_campus: Passed,
    excused_until: AtomicU64,
}

/// A question of policy about earlier packets.
#[derive(Clone, Copy, Debug)]
pub enum Earlier<'a> {
    /// Whether this flow was opened by its opener, a short time ago.
    Flow(&'a FlowKey),
    /// Whether the first fragment of this packet has passed, a short time ago.
    FirstFragment(&'a FlowKey),
}

/// Answers policy's questions about a packet. Each end is that of a session, whose flows it has.
pub fn known<'a>(
    now: Time,
    sender: (&'a Flows, Opener),
    receiver: (&'a Flows, Opener),
) -> impl Fn(Earlier<'_>) -> bool + 'a {
    move |earlier| match earlier {
        Earlier::Flow(key) => receiver.0.knows(now, receiver.1, key),
        Earlier::FirstFragment(key) => sender.0.fragments(sender.1).has(now, sender.0.seed.place(key).1),
    }
}

/// The end that opens a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opener {
    /// The session's client.
    Client,
    /// A host of the campus.
    Campus,
}

impl Flows {
    /// No flows. `seed` must be random.
    #[must_use]
    pub fn new(seed: [u8; SEED_LEN]) -> Self {
        Self { seed: Seed::new(seed), ..Self::default() }
    }

    /// Lets packets that look like replies of TCP pass for a while from `now` on: the session had
    /// flows in another process, which are not known here, and the end that opened one may have
    /// nothing to send before the other does.
    pub fn excuse(&self, now: Time) {
        self.excused_until.store((now + EXCUSED).as_nanos(), Ordering::Relaxed);
    }

    /// Enters the flow that this packet of its opener belongs to.
    #[inline]
    pub fn enter(&self, now: Time, opener: Opener, packet: &Packet<'_>) {
        if let Some(key) = FlowKey::of_opener(packet) {
            self.table(opener).enter(now, &key, self.seed);
        }
    }

    /// Notes that this packet has passed: if it is a first fragment, the others may follow.
    #[inline]
    pub fn note_passed(&self, now: Time, sender: Opener, packet: &Packet<'_>) {
        if packet.fragment().is_some_and(|fragment| fragment.is_first() && fragment.more)
            && let Some(key) = FlowKey::of_fragment(packet)
        {
            self.fragments(sender).enter(now, self.seed.place(&key).1);
        }
    }

    /// Whether `opener` opened this flow.
    #[inline]
    #[must_use]
    pub fn knows(&self, now: Time, opener: Opener, key: &FlowKey) -> bool {
        self.table(opener).knows(now, key, self.seed)
            || (key.protocol == TCP && now.as_nanos() < self.excused_until.load(Ordering::Relaxed))
    }

    /// Everything, for the process that goes on with the session and shares the clock.
    pub(crate) fn export(&self) -> Vec<u8> {
        let mut bytes = self.seed.bytes().to_vec();
        bytes.extend(self.excused_until.load(Ordering::Relaxed).to_le_bytes());
        for (first, table) in [(0, &self.by_client), (SETS * WAYS, &self.by_campus)] {
            for (place, entry) in (first..).zip(table.entries()) {
                let entry = entry.load(Ordering::Relaxed);
                if entry != 0 {
                    bytes.extend((place as u16).to_le_bytes());
                    bytes.extend(entry.to_le_bytes());
                }
            }
        }
        bytes
    }

    /// Reads what another process has exported; `None` if it is not whole.
    pub(crate) fn import(bytes: &[u8]) -> Option<Self> {
        let (seed, rest) = bytes.split_first_chunk::<SEED_LEN>()?;
        let (excused_until, rest) = rest.split_first_chunk::<8>()?;
        let this = Self::new(*seed);
        this.excused_until.store(u64::from_le_bytes(*excused_until), Ordering::Relaxed);
        let (entries, []) = rest.as_chunks::<EXPORTED>() else { return None };
        for [low, high, entry @ ..] in entries {
            let place = usize::from(u16::from_le_bytes([*low, *high]));
            let table = if place < SETS * WAYS { &this.by_client } else { &this.by_campus };
            let place = table.sets_or_new().as_flattened().get(place % (SETS * WAYS))?;
            place.store(u64::from_le_bytes(*entry), Ordering::Relaxed);
        }
        Some(this)
    }

    /// Whether none was ever entered.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_client.0.get().is_none() && self.by_campus.0.get().is_none()
    }

    fn fragments(&self, sender: Opener) -> &Passed {
        match sender {
            Opener::Client => &self.fragments_of_client,
            Opener::Campus => &self.fragments_of_campus,
        }
    }

    #[inline]
    fn table(&self, opener: Opener) -> &Table {
        match opener {
            Opener::Client => &self.by_client,
            Opener::Campus => &self.by_campus,
        }
    }
}

impl fmt::Debug for Flows {
    /// Without the seed, which is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flows").finish_non_exhaustive()
    }
}

/// The key of the fingerprints.
#[derive(Clone, Copy, Default)]
struct Seed([u64; 2]);

impl Seed {
    fn new(bytes: [u8; SEED_LEN]) -> Self {
        let seed = u128::from_le_bytes(bytes);
        Self([seed as u64, (seed >> 64) as u64])
    }

    fn bytes(self) -> [u8; SEED_LEN] {
        (u128::from(self.0[1]) << 64 | u128::from(self.0[0])).to_le_bytes()
    }

    /// The set of a flow, and its entry without its time.
    #[inline]
    fn place(self, key: &FlowKey) -> (usize, u64) {
        let hash = key.hash(self.0);
        // An entry of zero is empty.
        let fingerprint = (hash & !TIME_MASK & !TCP_BIT) | 1 << 63;
        let tcp = if key.protocol == TCP { TCP_BIT } else { 0 };
        (hash as usize % SETS, fingerprint | tcp)
    }
}

type Sets = [[AtomicU64; WAYS]; SETS];

/// Flows of one kind of opener; takes no room before the first.
#[derive(Default)]
struct Table(OnceLock<Box<Sets>>);

impl Table {
    #[inline]
    fn enter(&self, now: Time, key: &FlowKey, seed: Seed) {
        let (set, flow) = seed.place(key);
        let set = &self.sets_or_new()[set];
        let now = time(now);
        for place in set {
            let entry = place.load(Ordering::Relaxed);
            if entry & !TIME_MASK == flow {
                if entry & TIME_MASK != now {
                    place.store(flow | now, Ordering::Relaxed);
                }
                return;
            }
        }
        // Two shards may choose one place: the next packet of the flow that loses it enters it.
        victim(set, flow, now).store(flow | now, Ordering::Relaxed);
    }

    #[inline]
    fn knows(&self, now: Time, key: &FlowKey, seed: Seed) -> bool {
        let Some(sets) = self.0.get() else { return false };
        let (set, flow) = seed.place(key);
        let idle = match key.protocol {
            ICMP | ICMPV6 => ICMP_IDLE,
            _ => idle(flow),
        };
        let entries = sets[set].iter().map(|place| place.load(Ordering::Relaxed));
        entries.filter(|entry| entry & !TIME_MASK == flow).any(|entry| age(entry, time(now)) <= idle)
    }

    #[inline]
    fn sets_or_new(&self) -> &Sets {
        self.0.get_or_init(|| Box::new(core::array::from_fn(|_| core::array::from_fn(|_| AtomicU64::new(0)))))
    }

    fn entries(&self) -> impl Iterator<Item = &AtomicU64> {
        self.0.get().into_iter().flat_map(|sets| sets.as_flattened())
    }
}

#[inline]
fn time(now: Time) -> u64 {
    (now.as_nanos() >> UNIT_BITS) & TIME_MASK
}

/// Units since the opener's last packet.
#[inline]
fn age(entry: u64, now: u64) -> u64 {
    let age = now.wrapping_sub(entry) & TIME_MASK;
    if age > TIME_MASK - SKEW { 0 } else { age }
}

/// How old an entry may be.
#[inline]
const fn idle(entry: u64) -> u64 {
    if entry & TCP_BIT == 0 { OTHER_IDLE } else { TCP_IDLE }
}

/// The place that a new flow takes in a set: an empty one or one whose flow is over, else the
/// oldest of the kind that has its half.
fn victim(set: &[AtomicU64; WAYS], flow: u64, now: u64) -> &AtomicU64 {
    let is_alike = |entry: u64| (entry ^ flow) & TCP_BIT == 0;
    let entries = || set.iter().map(|place| place.load(Ordering::Relaxed));
    let has_half = entries().filter(|entry| is_alike(*entry)).count() >= WAYS / 2;
    let rank = |entry: u64| match age(entry, now) {
        _ if entry == 0 => u64::MAX,
        age if age > idle(entry) => u64::MAX,
        age if is_alike(entry) == has_half => 1 + age,
        _ => 0,
    };
    let oldest = (0..WAYS).zip(entries()).max_by_key(|(_, entry)| rank(*entry));
    &set[oldest.map_or(0, |(at, _)| at)]
}

#[cfg(test)]
mod tests;
