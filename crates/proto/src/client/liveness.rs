//! Whether the gateway is still there: probes after a new epoch, after silence and after a change
//! of network; keepalives (PROTOCOL §5.1, §9, §11).
//!
//! A probe's number names its round of probing and its lane, so that answers need no table: the low
//! four bits are the lane, the next eleven count. Numbers with the top bit belong to the search for
//! the path's MTU.

use core::time::Duration;

use super::epoch::Epoch;
use super::path_mtu::PATH_PROBE;
use super::{Client, Reason};
use crate::plane::{Activity, Command};
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
enum Cause {
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
    in_doubt: bool,
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

    /// Whether anything of the gateway's came after `at`, as far as reported.
    pub(super) fn is_heard_since(&self, at: Time) -> bool {
        self.total().last_rx > at
    }

    /// Returns the time for which packets have been sent and nothing has come back.
    fn silence(&mut self, now: Time) -> Duration {
        let total = self.total();
        if total.last_rx > self.last_rx {
            self.last_rx = total.last_rx;
            self.silent_since = None;
            self.in_doubt = false;
        }
        if total.last_tx_packet > total.last_rx {
            self.silent_since.get_or_insert(total.last_tx_packet);
        }
        self.silent_since.map_or(Duration::ZERO, |since| now - since)
    }

    /// The next lane on which nothing has come for `at_first` while others received packets, for
    /// longer if it was probed since; and whether that went unanswered. It counts as probed from
    /// now on.
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
    pub(super) fn silent_lanes(&self, now: Time, time: Duration) -> u16 {
        let lanes = self.lanes.iter().enumerate();
        let silent = lanes.filter(|(_, lane)| now - lane.last_rx >= time);
        silent.fold(0, |silent, (lane, _)| silent | 1 << lane)
    }

    fn begin(&mut self, cause: Cause) {
        let all = ((1u32 << self.lanes.len()) - 1) as u16;
        self.begin_on(all, cause, REOPEN_AFTER_SILENCE);
    }

    fn begin_on(&mut self, waiting: u16, cause: Cause, reopen_after: u32) {
        let serial = self.serial();
        // Lanes are quiet while others receive, which is an answer.
        let answered = cause == Cause::Lanes;
        self.probing = Some(Probing { cause, serial, waiting, answered, rounds: 0, reopen_after });
    }
}

impl Client {
    /// Whether the gateway has left probes unanswered: it may be down, or at another address by
    /// now.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.liveness.in_doubt
    }

    /// A new epoch is to be confirmed.
    pub(super) fn probe_epoch(&mut self, now: Time) {
        let was_in_doubt = core::mem::take(&mut self.liveness.in_doubt);
        self.liveness.silent_since = None;
        self.liveness.begin(Cause::Epoch);
        if let (false, Some(probing)) = (was_in_doubt, &mut self.liveness.probing) {
            probing.reopen_after = REOPEN_AFTER;
        }
        self.probe_again(now);
    }

    /// The way to the gateway may have changed.
    pub(super) fn probe_roaming(&mut self, now: Time) {
        self.liveness.begin(Cause::Roaming);
        self.probe_again(now);
    }

    pub(super) fn check_silence(&mut self, now: Time) {
        let silence = self.liveness.silence(now);
        // Probes for one lane go on while others answer, without end if nothing passes there.
        let is_asked = self.liveness.probing.as_ref().is_some_and(|probing| !probing.answered);
        if silence >= self.in_force.silence && !is_asked && self.epochs.is_alive() {
            self.liveness.begin(Cause::Silence);
            self.probe_again(now);
        }
    }

    /// Packets have flowed, and none does any more. Asks once whether the way is still open: a peer
    /// that waits for what is lost on its way here sends nothing.
    pub fn check_way(&mut self, now: Time) {
        if self.liveness.probing.is_none() && self.epochs.is_alive() {
            self.liveness.begin(Cause::Rest);
            self.probe_again(now);
        }
    }

    /// Probes lanes on which nothing comes while others receive: an address translator may have
    /// forgotten them.
    pub(super) fn check_quiet_lanes(&mut self, now: Time) {
        if self.liveness.probing.is_some() || !self.epochs.is_alive() {
            return;
        }
        let Some(slot) = self.session.as_ref().map(|session| session.slot) else { return };
        let mut unanswered = 0;
        while let Some((lane, is_unanswered)) = self.liveness.quiet_lane(now, self.in_force.silence) {
            if is_unanswered {
                unanswered |= 1 << lane;
                continue;
            }
            // The answer is not awaited: it only counts as received traffic.
            let id = self.liveness.serial() << 4 | lane as u16;
            let command = Command::Probe { slot, id, size: PROBE_LEN };
            self.output.command(lane, command);
        }
        if unanswered != 0 {
            self.liveness.begin_on(unanswered, Cause::Lanes, REOPEN_AFTER_SILENCE);
            self.probe_again(now);
        }
    }

    /// An answer came. While an epoch is to be confirmed, one that came in the epoch before does
    /// not count.
    pub(super) fn answered(&mut self, now: Time, id: u16) {
        let confirming = self.epochs.pending.is_some();
        let Some(probing) = &mut self.liveness.probing else { return };
        if probing.serial != id >> 4 || (confirming && probing.cause == Cause::Epoch) {
            return;
        }
        let is_first = !probing.answered;
        probing.answered = true;
        self.liveness.in_doubt = false;
        probing.waiting &= !(1 << (id & 0xF));
        if probing.waiting == 0 {
            self.liveness.probing = None;
            self.output.timers.cancel(Reason::Probe);
        }
        if is_first {
            self.back_in_reach(now);
        }
    }

    /// Sends the next round of probes, or takes the silence for an answer.
    pub(super) fn probe_again(&mut self, now: Time) {
        let timers = self.in_force;
        let alive = self.epochs.is_alive();
        let Some(probing) = self.liveness.probing.as_mut().filter(|_| alive) else {
            self.liveness.probing = None;
            return;
        };
        let limit = if probing.cause == Cause::Roaming { ROUNDS_AFTER_MOVE } else { timers.probe_limit };
        if probing.rounds >= limit && !probing.answered {
            self.liveness.probing = None;
            self.unanswered(now);
            return;
        }
        let wait = match (probing.cause, probing.rounds) {
            (Cause::Epoch, round) if (round as usize) < FIRST_WAITS.len() => FIRST_WAITS[round as usize],
            (Cause::Roaming, 0) => DOUBT_AFTER_MOVE.min(timers.roam_within),
            (Cause::Roaming, 1) => timers.roam_within,
            (Cause::Silence | Cause::Lanes, 0) => DOUBT.min(timers.probe_interval),
            (_, round) if round < PATIENT_ROUNDS => timers.probe_interval,
            _ => timers.probe_interval * PATIENT_ROUNDS,
        };
        probing.rounds += 1;
        let in_doubt = probing.cause != Cause::Epoch && probing.rounds == 2 && !probing.answered;
        let has_moved = probing.cause == Cause::Roaming;
        let (serial, waiting) = (probing.serial, probing.waiting);
        // A gateway that has granted an epoch is there, too.
        let is_there = probing.answered || probing.cause == Cause::Epoch;
        let reopens = is_there && probing.rounds > probing.reopen_after;
        if probing.cause == Cause::Lanes && reopens {
            // Answers at the other ports count as received traffic.
            self.liveness.probing = None;
            self.output.timers.cancel(Reason::Probe);
        } else {
            self.output.timers.set(Reason::Probe, now + wait);
        }
        let Some(slot) = self.session.as_ref().map(|session| session.slot) else { return };
        if reopens {
            self.reopen(now, waiting);
        }
        for lane in (0..self.config.lanes).filter(|lane| waiting & (1 << lane) != 0) {
            let command = Command::Probe { slot, id: serial << 4 | lane as u16, size: PROBE_LEN };
            self.output.command(lane, command);
        }
        if in_doubt {
            self.liveness.in_doubt = true;
            if has_moved && self.epochs.pending.is_none() {
                // A wait that began in the network before means nothing in this one.
                self.hasten(now);
            } else {
                self.connect_unless_pending();
            }
        }
    }

    /// The gateway does not answer: a new connection finds out whether it is there at all. Not at
    /// once if the last epoch came to nothing too.
    fn unanswered(&mut self, now: Time) {
        self.liveness.silent_since = None;
        self.liveness.in_doubt = true;
        self.path.may_be_another();
        if self.epochs.pending.is_some() {
            self.check_blocked();
            self.epochs.is_at_rest = false;
            self.erase_pending();
            self.retry(now, Duration::ZERO);
        } else {
            self.attach(now);
        }
    }

    pub(super) fn schedule_keepalives(&mut self, now: Time) {
        for lane in 0..self.config.lanes {
            self.output.timers.set(Reason::Keepalive(lane as u8), now + self.in_force.keepalive);
        }
    }

    /// Keeps the bindings of address translators on the way alive, while there are keys.
    pub(super) fn keep_alive(&mut self, now: Time, lane: u8) {
        let Some(slot) = self.session.as_ref().map(|session| session.slot) else { return };
        // Keys that are too old for packets would be renewed for this one, by a client at rest.
        let is_too_old = |epoch: &Epoch| now - epoch.began >= self.in_force.reject_after;
        if self.epochs.newest().is_none_or(is_too_old) {
            return;
        }
        let last_tx = self.liveness.lanes[usize::from(lane)].last_tx;
        let mut due = last_tx + self.in_force.keepalive;
        if due <= now {
            let command = Command::Keepalive(slot);
            self.output.command(lane.into(), command);
            due = now + self.in_force.keepalive;
        }
        self.output.timers.set(Reason::Keepalive(lane), due);
    }
}
