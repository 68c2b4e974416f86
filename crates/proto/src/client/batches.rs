//! Whether batches of datagrams (UDP segmentation offload) arrive on the path as well as single
//! ones: some kernels, drivers and hosts of virtual machines damage them (PROTOCOL §9.4).
//!
//! A round is three bursts of path probes of full size, one behind the other in time: a batch from
//! the gateway, a batch to it, single ones both ways. After [`ROUNDS`] rounds in a row in which a
//! way lost half of a batch or more, and the single ones arrived, that way is to do without. Single
//! ones have the least time to be answered, so a path that is too slow for them decides nothing.
//!
//! INVARIANTS: an idle session sends no round; loss that single datagrams have too decides nothing.

use core::time::Duration;

use super::path_mtu::PATH_PROBE;
use super::{Action, Output, Terms};
use crate::control::{FEATURE_BATCHES, FEATURE_PATH_SIZE};
use crate::inband::{BATCH_LEN, BATCH_SIZE_MAX};
use crate::plane::{AVOID_BATCHES, Command, Slot};
use crate::time::Time;

/// In the number of each probe of a round, beside [`PATH_PROBE`].
pub(super) const BATCH_PROBE: u16 = 0x2000;
/// Between the bursts of a round, and after the last one until it is judged: longer than most round
/// trips, and than the shortest time between two batches of the gateway.
const BURST_WAIT: Duration = Duration::from_millis(600);
/// Until the next round, if one was bad.
const AGAIN: Duration = Duration::from_secs(1);
/// Until the next round, if single datagrams were lost or a way was told to do without batches.
const CHECK: Duration = Duration::from_secs(10);
/// Time until the next round after a good one, and for which a direction does without batches.
const PAUSE: Duration = AVOID_BATCHES;
/// Time for which a way is not told again that has lost single datagrams, sent at once, as batches.
const CLEARED: Duration = Duration::from_secs(3_600);
/// Bad rounds in a row that decide.
const ROUNDS: u8 = 3;
/// How often a lane reports that batches are lost: the test sees the first lane only, so no later
/// round would show that another one's report was lost.
const REPORTS: usize = 3;
/// A batch that lost this many of its datagrams is bad.
const BAD: u32 = BATCH_LEN as u32 / 2;
/// If more single ones are lost, the round decides nothing.
const TOLERATED: u32 = 1;

const _: () = assert!(BATCH_LEN == 8, "a number has three bits for the place in a burst");

/// The bursts of a round. They are sent in the order from the last to the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Burst {
    Singles,
    Up,
    Down,
}

/// The result of a round for both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Nothing, or not enough yet.
    Open,
    /// Batches arrive.
    Good,
    /// Batches to the gateway are lost, those from it, or both.
    Lost { up: bool, down: bool },
}

/// The test's state.
#[derive(Clone, Debug, Default)]
pub(super) struct Batches {
    /// When the next step is due.
    due: Time,
    /// The burst that was sent last in the round under way.
    sent: Option<Burst>,
    /// Counts rounds, in eight bits of the probes' numbers.
    round: u8,
    /// A bit for each reply, by burst.
    replies: [u8; 3],
    /// To the gateway, and from it.
    ways: [Way; 2],
    /// Packets that the session had carried at the last round.
    packets: u64,
}

/// One direction of the path.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    /// Bad rounds in a row.
    bad: u8,
    /// When it was told to do without batches.
    told: Option<Time>,
    /// Batches are not to blame until then.
    cleared_until: Time,
}

impl Way {
    /// Adds a round with `lost` datagrams lost. Returns whether it is to do without batches.
    fn judge(&mut self, now: Time, lost: u32) -> bool {
        self.bad = if lost >= BAD && now >= self.cleared_until { self.bad + 1 } else { 0 };
        if self.bad < ROUNDS {
            return false;
        }
        self.bad = 0;
        // Single datagrams are sent by then, and a limit on the way may drop what comes at once.
        let is_cleared = self.told.replace(now).is_some_and(|told| now - told < PAUSE);
        if is_cleared {
            self.cleared_until = now + CLEARED;
        }
        !is_cleared
    }
}

impl Batches {
    /// The path may be another one.
    pub(super) fn restart(&mut self, now: Time) {
        *self = Self { due: now + AGAIN, round: self.round.wrapping_add(1), ..Self::default() };
    }

    fn id(&self, burst: Burst) -> u16 {
        PATH_PROBE | BATCH_PROBE | u16::from(self.round) << 5 | (burst as u16) << 3
    }

    /// A probe of the test was answered.
    pub(super) fn replied(&mut self, id: u16) {
        let burst = usize::from(id >> 3 & 3);
        if (id >> 5) as u8 == self.round
            && let Some(replies) = self.replies.get_mut(burst)
        {
            *replies |= 1 << (id & 7);
        }
    }

    /// Ends the round. The next one may begin as soon as its verdict says.
    fn judge(&mut self, now: Time) -> Verdict {
        let [singles, up, down] = self.replies.map(u8::count_zeros);
        (self.replies, self.sent, self.round) = ([0; 3], None, self.round.wrapping_add(1));
        if singles > TOLERATED {
            self.due = now + CHECK;
            return Verdict::Open;
        }
        let [to_gateway, from_gateway] = &mut self.ways;
        let (up, down) = (to_gateway.judge(now, up), from_gateway.judge(now, down));
        if up || down {
            self.ways.iter_mut().for_each(|way| way.bad = 0);
            self.due = now + CHECK;
            Verdict::Lost { up, down }
        } else if self.ways.iter().all(|way| way.bad == 0) {
            self.due = now + PAUSE;
            Verdict::Good
        } else {
            self.due = now + AGAIN;
            Verdict::Open
        }
    }

    /// Takes the next step if it is due. `packets` is the number of packets that the session has
    /// carried, and `size` what a plaintext may have on this path.
    pub(super) fn test(&mut self, now: Time, terms: &Terms, packets: u64, size: u16, output: &mut Output) {
        const NEEDED: u32 = FEATURE_BATCHES | FEATURE_PATH_SIZE;
        let is_idle = self.sent.is_none() && packets == self.packets;
        if now < self.due || is_idle || terms.features & NEEDED != NEEDED {
            return;
        }
        self.packets = packets;
        let next = match self.sent {
            None => Burst::Down,
            Some(Burst::Down) => Burst::Up,
            Some(Burst::Up) => Burst::Singles,
            Some(Burst::Singles) => return report(self.judge(now), now, terms, output),
        };
        self.sent = Some(next);
        self.due = now + BURST_WAIT;
        self.send_burst(terms.slot, next, size.min(BATCH_SIZE_MAX), output);
    }

    fn send_burst(&self, slot: Slot, burst: Burst, size: u16, output: &mut Output) {
        let id = self.id(burst);
        match burst {
            Burst::Singles => (id..id + BATCH_LEN)
                .for_each(|id| output.command(0, Command::PathProbe { slot, id, size, known: None })),
            Burst::Up => output.command(0, Command::ProbeByBatch { slot, id, size }),
            Burst::Down => output.command(0, Command::BatchProbe { slot, id, size }),
        }
    }
}

/// Tells the directions in which batches are lost to do without.
fn report(verdict: Verdict, now: Time, terms: &Terms, output: &mut Output) {
    let Verdict::Lost { up, down } = verdict else { return };
    let slot = terms.slot;
    if up {
        output.push(Action::BatchesLost(terms.gateway.remote));
        output.command(0, Command::AvoidBatches { slot, until: now + AVOID_BATCHES });
    }
    if down {
        (0..REPORTS).for_each(|_| output.command_all(|_| Command::BatchesLost(slot)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Judges a round in which `answered` of each burst were answered.
    fn round(batches: &mut Batches, now: Time, answered: [u16; 3]) -> Verdict {
        for (burst, answered) in [Burst::Singles, Burst::Up, Burst::Down].into_iter().zip(answered) {
            let first = batches.id(burst);
            (first..first + answered).for_each(|id| batches.replied(id));
        }
        batches.judge(now)
    }

    #[test]
    fn three_rounds_in_a_row_decide_about_the_way_that_loses_batches() {
        let now = Time::ZERO + Duration::from_secs(100);
        for (answered, lost) in [
            ([8, 0, 8], Verdict::Lost { up: true, down: false }),
            ([7, 8, 4], Verdict::Lost { up: false, down: true }),
            ([8, 1, 0], Verdict::Lost { up: true, down: true }),
        ] {
            let mut batches = Batches::default();
            assert_eq!(round(&mut batches, now, answered), Verdict::Open);
            assert_eq!((round(&mut batches, now, answered), batches.due), (Verdict::Open, now + AGAIN));
            assert_eq!((round(&mut batches, now, answered), batches.due), (lost, now + CHECK));
            assert_eq!(round(&mut batches, now, answered), Verdict::Open, "counted from the beginning");
        }
    }

    #[test]
    fn a_way_that_loses_single_datagrams_in_the_same_way_gets_its_batches_back() {
        let mut batches = Batches::default();
        let mut now = Time::ZERO + Duration::from_secs(100);
        let mut three = |now| [(); 3].map(|()| round(&mut batches, now, [8, 8, 2]));
        let lost = Verdict::Lost { up: false, down: true };
        assert_eq!(three(now), [Verdict::Open, Verdict::Open, lost]);
        now = now + CHECK;
        assert_eq!(three(now), [Verdict::Open, Verdict::Open, Verdict::Good], "it was not the batches");
        assert_eq!(three(now + PAUSE), [Verdict::Good; 3]);
        assert_eq!(three(now + CLEARED), [Verdict::Open, Verdict::Open, lost], "an hour later");
    }

    #[test]
    fn a_good_round_between_bad_ones_ends_the_row() {
        let (now, mut batches) = (Time::ZERO, Batches::default());
        for _ in 0..3 {
            assert_eq!(round(&mut batches, now, [8, 0, 8]), Verdict::Open);
            assert_eq!(round(&mut batches, now, [8, 2, 8]), Verdict::Open);
            assert_eq!((round(&mut batches, now, [8, 5, 7]), batches.due), (Verdict::Good, now + PAUSE));
        }
    }

    #[test]
    fn loss_of_single_datagrams_too_decides_nothing() {
        let (now, mut batches) = (Time::ZERO, Batches::default());
        for _ in 0..2 {
            assert_eq!(round(&mut batches, now, [8, 0, 0]), Verdict::Open);
        }
        for _ in 0..10 {
            assert_eq!((round(&mut batches, now, [6, 0, 0]), batches.due), (Verdict::Open, now + CHECK));
        }
        assert_eq!(round(&mut batches, now, [7, 0, 0]), Verdict::Lost { up: true, down: true });
    }

    #[test]
    fn replies_count_once_and_in_their_round_only() {
        let (now, mut batches) = (Time::ZERO, Batches::default());
        let late = batches.id(Burst::Up);
        assert_eq!(round(&mut batches, now, [8, 0, 8]), Verdict::Open);
        (late..late + 8).for_each(|id| batches.replied(id));
        assert_eq!(round(&mut batches, now, [8, 0, 8]), Verdict::Open);
        (0..8).for_each(|_| batches.replied(batches.id(Burst::Up)));
        assert_eq!(round(&mut batches, now, [8, 0, 8]), Verdict::Lost { up: true, down: false });
        assert_eq!(batches.id(Burst::Singles) & !0x1FFF, PATH_PROBE | BATCH_PROBE);
    }
}
