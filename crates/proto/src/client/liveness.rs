//! Whether the gateway is still there: probes after a new epoch, after silence and after a change
//! of network; keepalives (PROTOCOL §5.1, §9, §11).
//!
//! A probe's number names its round of probing and its lane, so that answers need no table: the low
//! four bits are the lane, the next eleven count. Those with the top bit search for the path's MTU.

use core::time::Duration;

use super::path_mtu::PATH_PROBE;
use super::{Finding, Output, Reason, Terms};
use crate::plane::{Activity, Command, Slot};
use crate::session::Timers;
use crate::time::Time;
use crate::wire::MAX_CLIENT_LANES;

/// A probe for life is no larger than it must be.
const PROBE_LEN: u16 = 4;
/// Waits between the first probes for a new epoch.
const FIRST_WAITS: [Duration; 2] = [Duration::from_millis(250), Duration::from_millis(500)];
/// After this time without an answer to the first probe after silence, an attach is tried while
/// probing goes on: a gateway that restarted has lost the keys, and will never answer a probe.
const DOUBT: Duration = Duration::from_millis(500);
/// The time after a change of network, when the way to the gateway's address is more likely to
/// be gone: an attach finds another of its addresses.
const DOUBT_AFTER_MOVE: Duration = Duration::from_millis(250);
/// The longest time between two probes of a lane on which nothing comes while others receive.
/// Address translators keep a binding for longer.
const QUIET_LANE_MAX: Duration = Duration::from_secs(8);
/// Rounds of probes after a change of network.
const ROUNDS_AFTER_MOVE: u32 = 2;
/// After this many rounds, lanes that do not answer while others do are probed less often.
const PATIENT_ROUNDS: u32 = 10;

/// The number of rounds with different numbers.
const SERIALS: u16 = PATH_PROBE >> 4;

/// Rounds of probes that go unanswered before lanes are opened at other ports.
const REOPEN_AFTER: u32 = 3;
/// Rounds where the lanes had been silent before, and for a lane that was asked already.
const REOPEN_AFTER_SILENCE: u32 = 2;

const _: () = assert!(MAX_CLIENT_LANES <= 16, "a lane fits into four bits");

/// The purpose of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// To confirm a new epoch, on every lane.
    Epoch,
    /// Nothing came back for a while.
    Silence,
    /// The machine's network changed.
    Roaming,
    /// Some lanes are quiet while others receive.
    Lanes,
    /// Packets have flowed, and none does any more.
    Rest,
}

/// Probes under way.
#[derive(Clone, Debug)]
struct Probing {
    cause: Cause,
    /// Counts probings, in eleven bits of probe numbers.
    serial: u16,
    /// A bit for each lane that has not answered.
    waiting: u16,
    /// Whether any lane has.
    answered: bool,
    rounds: u32,
    /// The rounds after which lanes that have not answered are opened at other ports.
    reopen_after: u32,
}

impl Probing {
    /// The time for an answer to the next round.
    fn wait(&self, timers: &Timers) -> Duration {
        match (self.cause, self.rounds) {
            (Cause::Epoch, round) if (round as usize) < FIRST_WAITS.len() => FIRST_WAITS[round as usize],
            (Cause::Roaming, 0) => DOUBT_AFTER_MOVE.min(timers.roam_within),
            (Cause::Roaming, 1) => timers.roam_within,
            (Cause::Silence | Cause::Lanes, 0) => DOUBT.min(timers.probe_interval),
            (_, round) if round < PATIENT_ROUNDS => timers.probe_interval,
            _ => timers.probe_interval * PATIENT_ROUNDS,
        }
    }
}

/// When a lane was probed because nothing came on it while others received.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at: Time,
    /// The time for which it may be quiet afterwards.
    wait: Duration,
}

/// The session's traffic, as far as reported.
#[derive(Clone, Debug)]
pub(super) struct Liveness {
    lanes: Vec<Activity>,
    asked: Vec<Asked>,
    probing: Option<Probing>,
    next_serial: u16,
    /// Since when packets go out and nothing comes back.
    silent_since: Option<Time>,
    last_rx: Time,
    /// Whether probes were not answered, and nothing else came since.
    pub(super) in_doubt: bool,
}

impl Liveness {
    pub(super) fn new(lanes: usize) -> Self {
        Self {
            lanes: vec![Activity::default(); lanes],
            asked: vec![Asked { at: Time::ZERO, wait: Duration::ZERO }; lanes],
            probing: None,
            next_serial: 0,
            silent_since: None,
            last_rx: Time::ZERO,
            in_doubt: false,
        }
    }

    pub(super) fn record(&mut self, shard: usize, activity: Activity) {
        if let Some(lane) = self.lanes.get_mut(shard) {
            *lane = lane.merge(activity);
        }
    }

    fn total(&self) -> Activity {
        self.lanes.iter().copied().fold(Activity::default(), Activity::merge)
    }

    /// Inner packets that the session carried, both ways.
    pub(super) fn packets(&self) -> u64 {
        let total = self.total();
        total.tx_packets + total.rx_packets
    }

    pub(super) fn last_tx(&self, lane: u8) -> Time {
        self.lanes[usize::from(lane)].last_tx
    }

    /// Whether anything of the gateway's came after `at`, as far as reported.
    pub(super) fn is_heard_since(&self, at: Time) -> bool {
        self.total().last_rx > at
    }

    /// Whether packets went out for `time` and nothing came back, which is not asked about yet.
    pub(super) fn is_silent(&mut self, now: Time, time: Duration) -> bool {
        let total = self.total();
        if total.last_rx > self.last_rx {
            self.last_rx = total.last_rx;
            self.silent_since = None;
            self.in_doubt = false;
        }
        if total.last_tx_packet > total.last_rx {
            self.silent_since.get_or_insert(total.last_tx_packet);
        }
        // Probes for one lane go on while others answer, without end if nothing passes there.
        let is_asked = self.probing.as_ref().is_some_and(|probing| !probing.answered);
        self.silent_since.map_or(Duration::ZERO, |since| now - since) >= time && !is_asked
    }

    /// The next lane on which nothing has come for `at_first` while others received packets, for
    /// longer if it was probed since; and whether that went unanswered. It counts as probed now.
    fn quiet_lane(&mut self, now: Time, at_first: Duration) -> Option<(usize, bool)> {
        if now - self.total().last_rx_packet >= at_first {
            return None;
        }
        let lanes = self.lanes.iter().zip(&mut self.asked).enumerate();
        for (lane, (seen, asked)) in lanes {
            if seen.last_rx_packet > asked.at || asked.wait.is_zero() {
                asked.wait = at_first;
            }
            if now - seen.last_rx.max(asked.at) >= asked.wait {
                let is_unanswered = asked.at > seen.last_rx;
                *asked = Asked { at: now, wait: (asked.wait * 2).min(QUIET_LANE_MAX) };
                return Some((lane, is_unanswered));
            }
        }
        None
    }

    fn serial(&mut self) -> u16 {
        let serial = self.next_serial;
        self.next_serial = (serial + 1) % SERIALS;
        serial
    }

    /// The lanes on which nothing has come for `time`, as far as reported.
    fn silent_lanes(&self, now: Time, time: Duration) -> u16 {
        let lanes = self.lanes.iter().enumerate();
        let silent = lanes.filter(|(_, lane)| now - lane.last_rx >= time);
        silent.fold(0, |silent, (lane, _)| silent | 1 << lane)
    }

    pub(super) fn is_probing(&self) -> bool {
        self.probing.is_some()
    }

    /// There are no keys to probe with any more.
    pub(super) fn stop(&mut self) {
        self.probing = None;
    }

    /// Probes all lanes, from now on until they answer.
    pub(super) fn begin(&mut self, now: Time, cause: Cause, terms: &Terms, output: &mut Output) {
        let mut reopen_after = REOPEN_AFTER_SILENCE;
        if cause == Cause::Epoch {
            self.silent_since = None;
            if !core::mem::take(&mut self.in_doubt) {
                reopen_after = REOPEN_AFTER;
            }
        }
        let all = ((1u32 << self.lanes.len()) - 1) as u16;
        self.begin_on(all, cause, reopen_after);
        self.send_round(now, terms, output);
    }

    fn begin_on(&mut self, waiting: u16, cause: Cause, reopen_after: u32) {
        let serial = self.serial();
        // Lanes are quiet while others receive, which is an answer.
        let answered = cause == Cause::Lanes;
        self.probing = Some(Probing { cause, serial, waiting, answered, rounds: 0, reopen_after });
    }

    /// Probes lanes on which nothing comes while others receive: an address translator may have
    /// forgotten them. Those that were asked before and did not answer are probed in rounds.
    pub(super) fn check_quiet_lanes(&mut self, now: Time, terms: &Terms, output: &mut Output) {
        if self.is_probing() {
            return;
        }
        let mut unanswered = 0;
        while let Some((lane, is_unanswered)) = self.quiet_lane(now, terms.timers.silence) {
            if is_unanswered {
                unanswered |= 1 << lane;
                continue;
            }
            // The answer is not awaited: it only counts as received traffic.
            let serial = self.serial();
            output.command(lane, probe(terms.slot, serial, lane));
        }
        if unanswered != 0 {
            self.begin_on(unanswered, Cause::Lanes, REOPEN_AFTER_SILENCE);
            self.send_round(now, terms, output);
        }
    }

    /// An answer came; whether it is the first. While an epoch is to be confirmed, one that came in
    /// the epoch before does not count.
    pub(super) fn answered(&mut self, id: u16, confirming: bool, output: &mut Output) -> bool {
        let Some(probing) = &mut self.probing else { return false };
        if probing.serial != id >> 4 || (confirming && probing.cause == Cause::Epoch) {
            return false;
        }
        let is_first = !probing.answered;
        probing.answered = true;
        self.in_doubt = false;
        probing.waiting &= !(1 << (id & 0xF));
        if probing.waiting == 0 {
            self.probing = None;
            output.timers.cancel(Reason::Probe);
        }
        is_first
    }

    /// Sends the next round of probes, or takes the silence for an answer.
    pub(super) fn next_round(&mut self, now: Time, terms: &Terms, output: &mut Output) -> Option<Finding> {
        let Probing { cause, answered, rounds, .. } = *self.probing.as_ref()?;
        let has_moved = cause == Cause::Roaming;
        let limit = if has_moved { ROUNDS_AFTER_MOVE } else { terms.timers.probe_limit };
        if rounds >= limit && !answered {
            self.probing = None;
            self.silent_since = None;
            self.in_doubt = true;
            return Some(Finding::Unanswered);
        }
        self.send_round(now, terms, output);
        let becomes_doubtful = rounds == 1 && !answered && cause != Cause::Epoch;
        self.in_doubt |= becomes_doubtful;
        becomes_doubtful.then_some(Finding::InDoubt { has_moved })
    }

    fn send_round(&mut self, now: Time, terms: &Terms, output: &mut Output) {
        let Some(probing) = &mut self.probing else { return };
        let wait = probing.wait(&terms.timers);
        probing.rounds += 1;
        let Probing { cause, serial, waiting, answered, rounds, reopen_after } = *probing;
        // A gateway that has granted an epoch is there, too.
        let is_there = answered || cause == Cause::Epoch;
        let reopens = is_there && rounds > reopen_after;
        if cause == Cause::Lanes && reopens {
            // Answers at the other ports count as received traffic.
            self.probing = None;
            output.timers.cancel(Reason::Probe);
        } else {
            output.timers.set(Reason::Probe, now + wait);
        }
        if reopens {
            output.reopen(now, waiting & self.silent_lanes(now, terms.timers.silence));
        }
        for lane in (0..self.lanes.len()).filter(|lane| waiting & (1 << lane) != 0) {
            output.command(lane, probe(terms.slot, serial, lane));
        }
    }
}

/// The order to probe a lane.
fn probe(slot: Slot, serial: u16, lane: usize) -> Command {
    Command::Probe { slot, id: serial << 4 | lane as u16, size: PROBE_LEN }
}
