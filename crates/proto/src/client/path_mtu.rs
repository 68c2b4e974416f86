//! How large packets may be on the way to the gateway: the search of RFC 8899 (PROTOCOL §13).
//!
//! Probes are padded in-band probes of the first lane, rounds followed by a small companion: a
//! large probe is lost for its size only where a companion arrives. Their numbers have the top bit
//! set, which those of probes for life never have; the next bit tells companions, and the one after
//! it the probes of the test of batches. If both ends have
//! the feature, replies are padded too, so that one search finds what both directions carry, and
//! each probe states to the gateway what was found.
//!
//! Invariants: nothing is asked while no confirmed epoch seals, so the end of one decides nothing;
//! a session that is idle is left in peace once its path is known; the owner gets the MTU before
//! the tunnel is set up and whenever it changes, and is never above the one that the gateway
//! prescribes; only what was found on this path limits the shards.

use core::time::Duration;

use super::batches::BATCH_PROBE;
use super::{Action, Output, Reason, Terms};
use crate::control::FEATURE_PATH_SIZE;
use crate::inband::{PATH_PROBE_MIN, PROBE_MIN};
use crate::plane::{Command, Slot};
use crate::pmtu::{MAX_PROBE_ID, PathMtu, Probe, SearchConfig};
use crate::time::Time;
use crate::wire::HEADER_LEN;

/// The tunnel's MTU if the gateway names none.
pub const DEFAULT_MTU: u16 = 1_420;
/// How often an idle session is looked at.
const IDLE_WAIT: Duration = Duration::from_secs(30);
/// In the number of each probe of the search.
pub(super) const PATH_PROBE: u16 = 0x8000;
/// In the number of a small probe that accompanies a large one.
const COMPANION: u16 = 0x4000;

const _: () = assert!(
    MAX_PROBE_ID & (PATH_PROBE | COMPANION | BATCH_PROBE) == 0,
    "numbers leave room for the three bits"
);

/// The search on the session's path.
#[derive(Clone, Debug)]
pub(super) struct PathSearch {
    search: PathMtu,
    /// The MTU that the gateway prescribes.
    wanted: u16,
    /// Bytes of a datagram beyond the inner packet.
    overhead: u16,
    /// Another path may be in use since the search began.
    moved: bool,
    /// The small probe whose answer is awaited.
    companion: Option<u16>,
    /// The number of packets that the session had carried when a probe was sent last.
    packets: u64,
    /// The MTU that the owner got last.
    told: Option<u16>,
    /// The size that the shards got last.
    limit: Option<u16>,
}

impl PathSearch {
    /// The search for a session that begins.
    pub(super) fn new(now: Time, terms: &Terms) -> Self {
        let (wanted, overhead) = (prescribed(terms), overhead(terms));
        let search = PathMtu::new(SearchConfig::new(wanted.saturating_add(overhead)), now);
        let (companion, told, limit) = (None, None, None);
        Self { search, wanted, overhead, moved: false, companion, packets: 0, told, limit }
    }

    /// A new epoch is under `terms`. Its gateway may have `moved` to another address.
    pub(super) fn follow(&mut self, terms: &Terms, moved: bool) {
        let overhead = overhead(terms);
        self.moved |= moved | (core::mem::replace(&mut self.overhead, overhead) != overhead);
    }

    /// The path may be another one, of which nothing is known.
    pub(super) fn may_be_another(&mut self) {
        self.moved = true;
    }

    /// The gateway has prescribed an MTU. Returns whether to search from the beginning.
    pub(super) fn limit(&mut self, terms: &Terms) -> bool {
        let wanted = prescribed(terms);
        self.moved |= core::mem::replace(&mut self.wanted, wanted) != wanted;
        self.search.set_states(states(terms));
        self.moved
    }

    /// The path is in use again. Whether it may be another, and the search begins again;
    /// `is_certain` says whether it is this one from now on.
    pub(super) fn check(&mut self, now: Time, is_certain: bool) -> bool {
        let moved = self.moved;
        if moved {
            self.search.restart(self.wanted.saturating_add(self.overhead), now);
            self.moved = !is_certain;
        } else {
            self.search.on_loss_suspected(now);
        }
        moved
    }

    /// Large datagrams are on their way and may not arrive. Returns whether that is asked about.
    pub(super) fn doubt(&mut self, now: Time) -> bool {
        let is_resting = self.search.is_resting();
        if is_resting {
            self.search.on_loss_suspected(now);
        }
        is_resting
    }

    /// A probe of the search was answered. Returns whether that changes anything.
    pub(super) fn answered(&mut self, now: Time, id: u16) -> bool {
        if id & COMPANION == 0 {
            return self.search.on_reply(id & MAX_PROBE_ID, now);
        }
        let is_awaited = self.companion.take_if(|companion| *companion == id).is_some();
        if is_awaited {
            self.search.on_small_reply(now);
        }
        is_awaited
    }

    /// Sends the probes that are due, and reports results. `packets` is the number of packets that
    /// the session has carried, if its confirmed epoch seals.
    pub(super) fn advance(&mut self, now: Time, terms: &Terms, packets: Option<u64>, output: &mut Output) {
        match packets {
            None => output.timers.cancel(Reason::PathMtu),
            Some(packets) if self.search.is_resting() && packets == self.packets => {
                output.timers.set(Reason::PathMtu, now + IDLE_WAIT);
            }
            Some(packets) => self.send_round(now, terms, packets, output),
        }
        self.report(terms.slot, output);
    }

    fn send_round(&mut self, now: Time, terms: &Terms, packets: u64, output: &mut Output) {
        self.search.handle_timeout(now);
        let mut probes = Vec::new();
        let accompanied = self.search.poll_round(now, &mut probes);
        if !probes.is_empty() {
            self.packets = packets;
        }
        let last = probes.last().filter(|_| accompanied);
        let companion = last.map(|last| Probe { id: COMPANION | last.id, size: 0, ..*last });
        if let Some(companion) = companion {
            self.companion = Some(PATH_PROBE | companion.id);
        }
        match self.search.poll_timeout() {
            Some(at) => output.timers.set(Reason::PathMtu, at),
            None => output.timers.cancel(Reason::PathMtu),
        }
        for probe in probes.into_iter().chain(companion) {
            output.command(0, self.probe(terms, probe));
        }
    }

    /// The order to send a probe, of which the gateway states what it has received or not.
    fn probe(&self, terms: &Terms, probe: Probe) -> Command {
        let Probe { id, size, known } = probe;
        let (slot, id, size) = (terms.slot, PATH_PROBE | id, size.saturating_sub(self.overhead));
        if states(terms) {
            Command::PathProbe { slot, id, size: size.max(PATH_PROBE_MIN as u16), known }
        } else {
            Command::Probe { slot, id, size: size.max(PROBE_MIN as u16) }
        }
    }

    /// Reports what has changed of the sizes that shards and owner may use.
    pub(super) fn report(&mut self, slot: Slot, output: &mut Output) {
        if let Some(size) = self.search.known()
            && self.limit.replace(size) != Some(size)
        {
            output.command_all(|_| Command::PathSize { slot, size });
        }
        let mtu = self.search.size().saturating_sub(self.overhead).min(self.wanted);
        if self.told.replace(mtu) != Some(mtu) {
            output.push(Action::PathMtu(mtu));
        }
    }

    /// The longest plaintext of a probe that the path carries, once that is known.
    pub(super) fn full_plaintext(&self) -> Option<u16> {
        let size = self.search.known().filter(|_| self.search.is_resting())?;
        Some(size.saturating_sub(self.overhead))
    }
}

/// The MTU that the gateway prescribes.
fn prescribed(terms: &Terms) -> u16 {
    terms.granted.network.mtu.unwrap_or(DEFAULT_MTU)
}

/// Whether probes state to the gateway what was found.
fn states(terms: &Terms) -> bool {
    terms.features & FEATURE_PATH_SIZE != 0
}

fn overhead(terms: &Terms) -> u16 {
    (HEADER_LEN + terms.suite.suite.overhead()) as u16
}
