//! The path to a session's peer as one shard sees it: how large a datagram may be, whether large
//! ones seem to arrive, and how often its probes may be answered and ICMP errors sent about its
//! packets (PROTOCOL §9, §12, §13).
//!
//! INVARIANT: nothing but what the peer sealed changes the limit, and never below [`BASE_SIZE`].

use std::sync::Arc;

use core::time::Duration;

use super::reports::Reports;
use super::session::Session;
use super::shared_path::SharedPath;
use super::{DropReason, Event, Opened, Plane, Role, Slot, find};
use crate::inband::Inband;
use crate::pmtu::BASE_SIZE;
use crate::time::Time;
use crate::wire::HEADER_LEN;

/// While large datagrams are sent, the path is asked about so often, whatever comes back.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// With fewer large datagrams than these since it was asked about, half as often: a question and
/// its answer are a datagram each way, however little a session carries.
const MANY: u16 = 500;
/// If nothing has come from the peer for this long after large datagrams were sent, they may be
/// lost: then the path is checked at once, and at this interval.
const SILENCE: Duration = Duration::from_millis(100);
/// After this time the silence is no sign any more. A shard that sends to a peer which sends to
/// another shard never receives anything.
const SILENCE_ENDS: Duration = Duration::from_secs(2);
/// A datagram of almost the size in use that came so shortly before a request to probe the path
/// shows that the path carries it.
const JUST_NOW: Duration = Duration::from_millis(50);
/// If large datagrams were confirmed and then are not for this long, the path is checked.
const UNCONFIRMED: Duration = Duration::from_millis(200);
/// The difference that "almost" permits, in bytes.
const ALMOST: usize = 32;
/// Shortest time between two sizes that a client states: it must not flood the control plane.
const STATE_INTERVAL: Duration = Duration::from_millis(20);
/// ICMP errors: this many at once, and one more for each [`ANSWER_EVERY`].
const ANSWERS: u32 = 32;
/// Answers to probes: likewise. They are sent by themselves and no rate limit counts them. A search
/// has fewer than 90 probes on a path of 1,500 bytes, fewer than 200 on any.
const PROBE_ANSWERS: u32 = 512;
const ANSWER_EVERY: Duration = Duration::from_millis(10);
/// Shortest time between two batches for a client: each is eight times as long as its request.
const BATCH_EVERY: Duration = Duration::from_millis(500);

/// The path of one session in one shard.
#[derive(Debug)]
pub(super) struct Path {
    /// The largest datagram; unlimited until it is known.
    limit: u16,
    /// Large datagrams that were sent since `asked`.
    large_sent: u16,
    stated_at: Time,
    /// When a datagram of almost the size in use came last.
    large_received: Time,
    /// When the path was asked about, or the first large datagram was sent after a confirmation.
    asked: Time,
    shared: Arc<SharedPath>,
    /// The newest confirmation of the peer that is known here.
    confirmed: Time,
    /// Whether `asked` is the time of a datagram after a confirmation: the next one is soon.
    confirms: bool,
    /// Whether anything has come since a large datagram was sent.
    heard: bool,
    /// When the first large datagram was sent since anything came.
    unheard_since: Time,
    /// Until when ICMP errors, and answers to probes, are used up.
    errors_until: Time,
    probes_until: Time,
    /// When a probe was answered by a batch last.
    batched: Time,
}

impl Path {
    pub(super) fn new(shared: Arc<SharedPath>) -> Self {
        Self {
            limit: u16::MAX,
            large_sent: 0,
            stated_at: Time::ZERO,
            large_received: Time::ZERO,
            asked: Time::ZERO,
            shared,
            confirmed: Time::ZERO,
            confirms: false,
            heard: false,
            unheard_since: Time::ZERO,
            errors_until: Time::ZERO,
            probes_until: Time::ZERO,
            batched: Time::ZERO,
        }
    }

    #[inline]
    pub(super) fn limit(&self) -> usize {
        self.limit.into()
    }

    pub(super) fn set_limit(&mut self, size: u16) {
        self.limit = size.max(BASE_SIZE);
    }

    /// A datagram of `len` bytes came.
    #[inline]
    pub(super) fn received(&mut self, now: Time, len: usize) {
        self.heard = true;
        if len + ALMOST > self.limit() {
            self.large_received = now;
            self.shared.owe(now);
        }
    }

    /// Whether the packet that is sent now is to confirm that a large one came.
    #[inline]
    pub(super) fn takes_confirmation(&self, now: Time) -> bool {
        self.shared.take_owed(now)
    }

    /// The peer has received a datagram of almost the size in use: as good as an answer.
    #[inline]
    pub(super) fn confirmed(&self, now: Time) {
        self.shared.receive(now);
    }

    /// Whether datagrams to the peer are sent outside batches.
    #[inline]
    pub(super) fn avoids_batches(&self, now: Time) -> bool {
        self.shared.avoids_batches(now)
    }

    /// Batches to the peer are lost on the way.
    pub(super) fn avoid_batches(&self, until: Time) {
        self.shared.avoid_batches(until);
    }

    /// The peer is at another address: the path is not known.
    pub(super) fn moved(&self) {
        self.shared.try_batches();
    }

    /// A datagram of `len` bytes goes. Returns whether the path is to be asked about.
    #[inline]
    pub(super) fn sent(&mut self, now: Time, len: usize) -> bool {
        if len <= BASE_SIZE.into() {
            return false;
        }
        let confirmed = self.shared.received();
        if core::mem::replace(&mut self.confirmed, confirmed) != confirmed {
            (self.asked, self.large_sent, self.confirms) = (self.asked.max(now), 0, true);
        }
        self.large_sent = self.large_sent.saturating_add(1);
        let waited = now.since(self.asked);
        let every = match (self.confirms, self.large_sent) {
            (true, _) => UNCONFIRMED,
            (false, ..MANY) => 2 * ASK_EVERY,
            (false, _) => ASK_EVERY,
        };
        if core::mem::take(&mut self.heard) {
            self.unheard_since = now;
        }
        let silent = (SILENCE..SILENCE_ENDS).contains(&now.since(self.unheard_since));
        let due = waited >= every || (waited >= SILENCE && silent);
        if due {
            (self.asked, self.large_sent, self.confirms) = (now, 0, false);
        }
        due
    }

    /// The client sent a probe of `size` bytes of plaintext, whose reply is as long: if that is
    /// almost the size in use, the path is being asked about.
    fn probed(&mut self, now: Time, size: u16) {
        if HEADER_LEN + usize::from(size) + ALMOST > self.limit() {
            // A peer that sends large datagrams, too, sends the next one before a check is due.
            (self.asked, self.large_sent) = (now + ASK_EVERY / 2, 0);
        }
    }

    /// Whether a probe may be answered by a batch now.
    fn may_answer_by_batch(&mut self, now: Time) -> bool {
        let may = now.since(self.batched) >= BATCH_EVERY;
        if may {
            self.batched = now;
        }
        may
    }

    /// Whether an ICMP error may be sent.
    pub(super) fn may_answer(&mut self, now: Time) -> bool {
        take(&mut self.errors_until, now, ANSWERS)
    }

    /// The client states the size that its path carries.
    fn state(&mut self, now: Time, slot: Slot, size: u16, reports: &mut Reports) {
        let size = size.max(BASE_SIZE);
        if size == self.limit || now.since(self.stated_at) < STATE_INTERVAL {
            return;
        }
        if reports.push(Event::PathStated { slot, size }) {
            self.stated_at = now;
            self.limit = size;
        }
    }
}

/// Takes one of `burst` at once and one more for each [`ANSWER_EVERY`], if there is one. They are
/// used up `until` then.
fn take(until: &mut Time, now: Time, burst: u32) -> bool {
    let may = until.since(now) <= ANSWER_EVERY * (burst - 1);
    if may {
        *until = now.max(*until) + ANSWER_EVERY;
    }
    may
}

impl Plane {
    /// A session to whose peer [`super::Outgoing::PathCheck`] is to be sent.
    #[inline]
    pub fn poll_path_check(&mut self) -> Option<Slot> {
        self.reports.pop_path_check()
    }

    /// At a gateway: the session that `address` belongs to.
    #[must_use]
    pub fn session_of(&self, address: core::net::IpAddr) -> Option<Slot> {
        self.forwarding.session_of(address)
    }

    pub(super) fn set_path_size(&mut self, slot: Slot, size: u16) {
        if let Some(session) = find(&mut self.sessions, slot) {
            session.path.set_limit(size);
        }
    }
}

impl Session {
    /// Decides about an authentic in-band message.
    pub(super) fn handle_inband(
        &mut self,
        now: Time,
        role: Role,
        lane: u8,
        message: Option<Inband>,
        reports: &mut Reports,
    ) -> Result<Opened, DropReason> {
        let (slot, gateway) = (self.slot, role == Role::Gateway);
        match message {
            Some(Inband::Probe { .. } | Inband::PathProbe { .. })
                if !take(&mut self.path.probes_until, now, PROBE_ANSWERS) =>
            {
                Err(DropReason::RateLimit)
            }
            Some(Inband::Probe { id, size }) => Ok(Opened::Probe { slot, id, size, padded: false }),
            Some(Inband::PathProbe { id, size, known }) if gateway => {
                if let Some(known) = known {
                    self.path.state(now, slot, known, reports);
                }
                self.path.probed(now, size);
                Ok(Opened::Probe { slot, id, size, padded: true })
            }
            // A gateway sends no probes, so it expects no replies: else a client could make an
            // event of each datagram.
            Some(Inband::Reply { .. } | Inband::PathReply { .. }) if gateway => Err(DropReason::UnaskedReply),
            Some(Inband::Reply { id, size } | Inband::PathReply { id, size }) => {
                // A reply that finds no room is as good as lost: the client probes again.
                let _ = reports.push(Event::ProbeReply { slot, lane, id, size });
                Ok(Opened::Consumed)
            }
            Some(Inband::PathCheck) if !gateway => {
                if now.since(self.path.large_received) > JUST_NOW {
                    // The gateway repeats its request while large packets go.
                    let _ = reports.push(Event::PathInUse { slot });
                }
                Ok(Opened::Consumed)
            }
            Some(Inband::BatchProbe { id, size }) if gateway => {
                if self.path.may_answer_by_batch(now) {
                    Ok(Opened::BatchProbe { slot, id, size })
                } else {
                    Ok(Opened::Consumed)
                }
            }
            Some(
                Inband::PathProbe { .. }
                | Inband::PathCheck
                | Inband::BatchProbe { .. }
                | Inband::BatchesLost,
            )
            | None => Err(DropReason::UnknownInband),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = 1_400;

    fn path() -> Path {
        Path::new(Arc::default())
    }

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_secs(100) + Duration::from_millis(millis)
    }

    #[test]
    fn large_datagrams_have_the_path_asked_about_more_often_in_silence() {
        let asked = |every: usize, heard_every: u64| {
            let mut path = path();
            let due = (0..10_000).step_by(every).filter(|millis| {
                if millis % heard_every == 0 {
                    path.received(at(*millis), 100);
                }
                path.sent(at(*millis), LARGE)
            });
            due.count()
        };
        assert_eq!(asked(1, 50), 20, "something comes back");
        assert_eq!(asked(1, 100_000), 1 + 19 + 16, "nothing does, which is news for two seconds");
        assert_eq!(asked(200, 200), 10, "between datagrams that are answered there may be silence");
    }

    #[test]
    fn a_few_large_datagrams_have_the_path_asked_about_half_as_often() {
        let asked = |every: usize| {
            let mut path = path();
            let due = (0..10_000).step_by(every).filter(|millis| {
                path.received(at(*millis), 100);
                path.sent(at(*millis), LARGE)
            });
            due.count()
        };
        assert_eq!((asked(1), asked(2)), (20, 10), "500 in half a second, and fewer");
    }

    #[test]
    fn a_long_probe_of_the_client_is_as_good_as_a_question() {
        let asked = |size: u16| {
            let mut path = path();
            path.set_limit(1_452);
            (0..10_000)
                .filter(|millis| {
                    if millis % 600 == 0 {
                        path.probed(at(*millis), size);
                    }
                    path.received(at(*millis), 100);
                    path.sent(at(*millis), LARGE)
                })
                .count()
        };
        assert_eq!((asked(1_420), asked(1_380)), (0, 20), "the path is asked about anyway");
        assert_eq!(asked(6), 20, "a small one shows nothing");
    }

    #[test]
    fn a_path_whose_large_datagrams_are_confirmed_is_asked_about_once_they_are_not() {
        let asked = |every: u64, confirmed_until: u64| {
            let mut path = path();
            let due = (0..10_000).step_by(every as usize).filter(|millis| {
                path.received(at(*millis), 100);
                let due = path.sent(at(*millis), LARGE);
                if *millis < confirmed_until {
                    path.confirmed(at(*millis));
                }
                due
            });
            due.collect::<Vec<_>>()
        };
        for every in [1, 100, 700] {
            assert_eq!(asked(every, 10_000), [0], "one each {every} ms");
        }
        let at_first = |every: u64| asked(every, 5_000)[1];
        assert_eq!((at_first(1), at_first(100)), (5_200, 5_200), "few or many");
        assert_eq!(asked(100, 5_000)[2..], [6_200, 7_200, 8_200, 9_200], "then as without confirmations");
    }

    #[test]
    fn a_large_datagram_is_confirmed_once_and_soon() {
        let mut path = path();
        path.set_limit(1_452);
        assert!(!path.takes_confirmation(at(0)), "none came");
        path.received(at(0), 1_452 - ALMOST);
        assert!(!path.takes_confirmation(at(0)), "it is a little too short");
        path.received(at(0), 1_453 - ALMOST);
        path.received(at(900), 100);
        assert!(path.takes_confirmation(at(1_000)));
        assert!(!path.takes_confirmation(at(1_000)), "it is confirmed already");
        path.received(at(2_000), 1_452);
        assert!(!path.takes_confirmation(at(3_001)), "it came too long ago");
    }

    #[test]
    fn small_datagrams_ask_nothing() {
        let mut path = path();
        assert!(!path.sent(at(0), BASE_SIZE.into()));
    }

    #[test]
    fn a_client_states_no_less_than_the_base_and_not_too_often() {
        let slot = Slot { index: 1, generation: 0 };
        let (mut path, mut reports) = (path(), Reports::default());
        for (millis, stated, limit) in
            [(0, 1_400, 1_400), (5, 1_300, 1_400), (25, 1_300, 1_300), (50, 0, 1_200)]
        {
            path.state(at(millis), slot, stated, &mut reports);
            assert_eq!(path.limit(), limit, "after {millis} ms");
        }
        path.state(at(90), slot, 1_200, &mut reports);
        let stated_events: Vec<_> = core::iter::from_fn(|| reports.pop()).collect();
        let stated = |size| Event::PathStated { slot, size };
        assert_eq!(stated_events, [stated(1_400), stated(1_300), stated(1_200)]);
    }

    #[test]
    fn answers_are_limited() {
        let mut path = path();
        let in_time = |path: &mut Path, from: u64, to: u64| {
            (from * 10..to * 10).filter(|tenths| path.may_answer(at(tenths / 10))).count()
        };
        assert_eq!(in_time(&mut path, 0, 5), ANSWERS as usize, "at once");
        assert_eq!(in_time(&mut path, 5, 1_005), 100, "then a hundred a second");
        assert_eq!(in_time(&mut path, 2_000, 2_005), ANSWERS as usize, "after a pause");
    }
}
