//! How large packets may be on the way to the gateway: the search of RFC 8899 on the data path
//! (PROTOCOL §13).
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

use vpnd_crypto::Suite;

use super::batches::BATCH_PROBE;
use super::{Action, Client, Reason};
use crate::control::FEATURE_PATH_SIZE;
use crate::inband::{PATH_PROBE_MIN, PROBE_MIN};
use crate::plane::{Command, Endpoint, Slot};
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
#[derive(Clone, Debug, Default)]
pub(super) struct PathSearch {
    /// There is one once the tunnel's MTU is known.
    search: Option<PathMtu>,
    /// The MTU that the gateway prescribes.
    wanted: u16,
    /// Bytes of a datagram beyond the inner packet.
    overhead: u16,
    /// The gateway's address when it last granted something.
    gateway: Option<Endpoint>,
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
    /// The path may be another one, of which nothing is known.
    pub(super) fn may_be_another(&mut self) {
        self.moved = true;
    }

    /// The longest plaintext of a probe that the path carries, once that is known.
    pub(super) fn full_plaintext(&self) -> Option<u16> {
        let search = self.search.as_ref().filter(|search| search.is_resting())?;
        search.known().map(|size| size.saturating_sub(self.overhead))
    }

    /// The gateway's address, once it granted something.
    pub(super) fn gateway(&self) -> Option<Endpoint> {
        self.gateway
    }

    /// The largest inner packet whose datagram is not above `size`.
    fn inner(&self, size: u16) -> u16 {
        size.saturating_sub(self.overhead).min(self.wanted)
    }

    /// The order to send a probe, of which the gateway `states` what it has received or not.
    fn probe(&self, slot: Slot, probe: Probe, states: bool) -> Command {
        let Probe { id, size, known } = probe;
        let (id, size) = (PATH_PROBE | id, size.saturating_sub(self.overhead));
        if states {
            Command::PathProbe { slot, id, size: size.max(PATH_PROBE_MIN as u16), known }
        } else {
            Command::Probe { slot, id, size: size.max(PROBE_MIN as u16) }
        }
    }

    fn max_size(&self) -> u16 {
        self.wanted.saturating_add(self.overhead)
    }
}

impl Client {
    /// A new epoch goes to `gateway`, under `suite`.
    pub(super) fn follow_path(&mut self, suite: Suite, gateway: Endpoint) {
        let overhead = (HEADER_LEN + suite.overhead()) as u16;
        self.path.moved |= self.path.gateway.replace(gateway) != Some(gateway);
        self.path.moved |= core::mem::replace(&mut self.path.overhead, overhead) != overhead;
    }

    /// The gateway has prescribed an MTU, perhaps again.
    pub(super) fn limit_path(&mut self, now: Time) {
        let Some(session) = &self.session else { return };
        let wanted = session.network.mtu.unwrap_or(DEFAULT_MTU);
        let changed = core::mem::replace(&mut self.path.wanted, wanted) != wanted;
        if self.path.search.is_none() {
            self.path.search = Some(PathMtu::new(SearchConfig::new(self.path.max_size()), now));
            self.path.moved = false;
        }
        let states = self.features & FEATURE_PATH_SIZE != 0;
        if let Some(search) = &mut self.path.search {
            search.set_states(states);
        }
        self.path.moved |= changed && self.path.told.is_some();
        if self.path.moved {
            self.check_path(now);
        }
        self.tell_path_mtu();
    }

    /// The path is in use again: it is searched from the beginning if it may be another, else the
    /// size in use is confirmed.
    pub(super) fn check_path(&mut self, now: Time) {
        let max_size = self.path.max_size();
        let confirmed = self.epochs.current.is_some();
        let Some(search) = &mut self.path.search else { return };
        if self.path.moved {
            search.restart(max_size, now);
            self.batches.restart(now);
            // Before the new epoch is confirmed, it is not certain which path that will be.
            self.path.moved = !confirmed || self.epochs.pending.is_some();
        } else {
            search.on_loss_suspected(now);
        }
        self.search_path(now);
    }

    /// Large datagrams are on their way and may not arrive.
    pub(super) fn doubt_path(&mut self, now: Time) {
        if let Some(search) = self.path.search.as_mut().filter(|search| search.is_resting()) {
            search.on_loss_suspected(now);
            self.search_path(now);
        }
    }

    /// Sends the probes that are due, and reports results.
    pub(super) fn search_path(&mut self, now: Time) {
        let Some(slot) = self.session.as_ref().map(|session| session.slot) else { return };
        let Some(search) = &mut self.path.search else { return };
        let (reject_after, packets) = (self.in_force.reject_after, self.liveness.packets());
        if self.epochs.current.as_ref().is_none_or(|epoch| now - epoch.began >= reject_after) {
            self.output.timers.cancel(Reason::PathMtu);
        } else if search.is_resting() && packets == self.path.packets {
            self.output.timers.set(Reason::PathMtu, now + IDLE_WAIT);
        } else {
            search.handle_timeout(now);
            let mut probes = Vec::new();
            let accompanied = search.poll_round(now, &mut probes);
            if !probes.is_empty() {
                self.path.packets = packets;
            }
            let last = probes.last().filter(|_| accompanied);
            let companion = last.map(|last| Probe { id: COMPANION | last.id, size: 0, ..*last });
            if let Some(companion) = companion {
                self.path.companion = Some(PATH_PROBE | companion.id);
            }
            match search.poll_timeout() {
                Some(at) => self.output.timers.set(Reason::PathMtu, at),
                None => self.output.timers.cancel(Reason::PathMtu),
            }
            let states = self.features & FEATURE_PATH_SIZE != 0;
            for probe in probes.into_iter().chain(companion) {
                let command = self.path.probe(slot, probe, states);
                self.output.command(0, command);
            }
        }
        self.tell_path_mtu();
    }

    /// A probe of the search was answered.
    pub(super) fn path_answered(&mut self, now: Time, id: u16) {
        let Some(search) = &mut self.path.search else { return };
        if id & COMPANION != 0 {
            if self.path.companion.take_if(|companion| *companion == id).is_some() {
                search.on_small_reply(now);
                self.search_path(now);
            }
        } else if search.on_reply(id & MAX_PROBE_ID, now) {
            self.search_path(now);
        }
    }

    fn tell_path_mtu(&mut self) {
        let Some(search) = &self.path.search else { return };
        if let (Some(size), Some(session)) = (search.known(), &self.session)
            && self.path.limit.replace(size) != Some(size)
        {
            let slot = session.slot;
            self.output.command_all(|_| Command::PathSize { slot, size });
        }
        let Some(search) = &self.path.search else { return };
        let mtu = self.path.inner(search.size());
        if self.path.told.replace(mtu) != Some(mtu) {
            self.output.push(Action::PathMtu(mtu));
        }
    }
}
