//! The search for the largest datagram of a path (DPLPMTUD, RFC 8899), as a state machine.
//!
//! Only probes that were answered, or not, change the size: an ICMP message from outside may be a
//! reason to ask, never an answer. A round is a set of probes with a small one behind them. The
//! probes of a round count as lost once the small one was answered and they were not: a path that
//! is down, or congested, is not a narrow one. Three lost rounds decide. A size that is known to
//! work is asked for without a small probe at first, since it is nearly always answered; if it is
//! not, it was lost should the next round's small probe be answered. The first round asks for one
//! size, the one in use or the largest; the others also ask for many below it at once, so that a
//! path that has shrunk costs three rounds and not three for each halving of the distance.

use std::time::Duration;

use crate::time::Time;
use crate::wire::MAX_DATAGRAM;

/// The datagram size every path is expected to carry (RFC 8899, section 5.1.2; as in QUIC).
pub const BASE_SIZE: u16 = 1200;

/// The largest number of a probe; then they begin again.
pub const MAX_PROBE_ID: u16 = 0x1FFF;

/// While nothing at all arrives, the wait for an answer doubles so often.
const MAX_DOUBLINGS: u32 = 5;

/// A distance is divided into this many parts.
const PARTS: u16 = 16;

/// Once the small probe was answered, the others have this long at least: it may be ahead of them.
const MIN_SLACK: Duration = Duration::from_millis(50);

/// Time to wait for an answer while not even the small probe is answered (PROBE_TIMER).
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Rounds that must be lost before a size counts as too large (as in RFC 8899, section 5.1.2).
const MAX_PROBES: u8 = 3;
/// Time after a finished search until larger sizes are tried again (PMTU_RAISE_TIMER).
const RAISE_AFTER: Duration = Duration::from_secs(600);
/// How often the size in use is confirmed after a finished search (CONFIRMATION_TIMER).
const CONFIRM_EVERY: Duration = Duration::from_secs(30);

/// The range of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchConfig {
    /// The largest size worth trying, [`BASE_SIZE`] at least: what the local interface carries.
    pub max_size: u16,
    /// The search ends when the distance between what works and what does not is smaller.
    pub precision: u16,
    /// Whether the size is to be sent to the peer.
    pub states: bool,
}

impl SearchConfig {
    /// A search up to `max_size`.
    pub fn new(max_size: u16) -> Self {
        Self { max_size: max_size.max(BASE_SIZE), precision: 8, states: true }
    }
}

/// A probe to send: a datagram of exactly `size` bytes that the peer answers with its `id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Names the probe in its answer.
    pub id: u16,
    /// Datagram size.
    pub size: u16,
    /// The size that the peer may use, which the probe states; `None` while that is not known.
    pub known: Option<u16>,
}

/// A set of sizes that is asked for in rounds until it is decided.
#[derive(Clone, Debug)]
struct Level {
    /// Ascending. The first round of a question about one size asks for the last of them alone.
    sizes: Vec<u16>,
    one_first: bool,
    /// Is known not to work, or not worth trying; above all of `sizes`.
    ceiling: u16,
    /// Works, or is taken to.
    floor: u16,
    rounds: Rounds,
}

/// The rounds of a level.
#[derive(Clone, Debug, Default)]
struct Rounds {
    sent: Vec<Probe>,
    lost: u8,
    /// Rounds without a small probe that were not answered since then: 1 at most.
    unproved: u8,
    /// Rounds in a row that were lost together with their small probes.
    undecided: u32,
    best: Option<u16>,
    in_flight: Option<Round>,
    /// When the first of `sent` was sent.
    asked_at: Time,
}

/// Probes whose answers are awaited.
#[derive(Clone, Copy, Debug)]
struct Round {
    sent_at: Time,
    deadline: Time,
    /// Whether a small probe is behind them.
    accompanied: bool,
    /// Whether anything was answered.
    answered: bool,
}

impl Rounds {
    /// An answer to probe `id` arrived. Returns the probe if it was awaited.
    fn on_reply(&mut self, id: u16, now: Time) -> Option<Probe> {
        let probe = self.sent.iter().find(|probe| probe.id == id).copied()?;
        if let Some(round) = &mut self.in_flight {
            round.answered = true;
            // The small probe may be lost; a larger one had to wait no longer than this did.
            round.deadline = round.deadline.min(now + now.since(round.sent_at).max(MIN_SLACK));
        }
        self.best = self.best.max(Some(probe.size));
        Some(probe)
    }

    /// Ends the round that is over by `now`. Returns whether enough were lost to decide.
    fn expire(&mut self, now: Time) -> bool {
        let Some(round) = self.in_flight.take_if(|round| round.deadline <= now) else { return false };
        if !round.accompanied {
            self.unproved = 1;
            return false;
        }
        let unproved = std::mem::take(&mut self.unproved);
        if !round.answered {
            self.undecided = (self.undecided + 1).min(MAX_DOUBLINGS);
            // It is unknown whether these were too large.
            self.sent.clear();
            return false;
        }
        self.undecided = 0;
        self.lost += 1 + unproved;
        self.lost >= MAX_PROBES
    }
}

/// When a search that rests goes on: what is here counts only then.
#[derive(Clone, Debug, Default)]
struct Schedule {
    /// When to look for larger sizes again, once a search is finished.
    raise_at: Option<Time>,
    /// When to confirm the size in use.
    confirm_at: Option<Time>,
}

impl Schedule {
    /// A search up to `max_size` has found `size`.
    fn plan(&mut self, size: u16, max_size: u16, now: Time) {
        self.confirm_at = (size > BASE_SIZE).then(|| now + CONFIRM_EVERY);
        self.raise_at = (size < max_size).then(|| self.raise_at.unwrap_or(now + RAISE_AFTER));
    }
}

/// The search on one path.
#[derive(Clone, Debug)]
pub struct PathMtu {
    config: SearchConfig,
    /// The largest size known to work.
    size: u16,
    /// Whether that was found on this path.
    settled: bool,
    /// The size that was sent to the peer and that it has answered to.
    stated: Option<u16>,
    /// The question under way; without one the search rests.
    level: Option<Level>,
    next_id: u16,
    /// The last round trip of the first probe of a round.
    round_trip: Duration,
    schedule: Schedule,
}

impl PathMtu {
    /// A new path, on which nothing was tried.
    pub fn new(config: SearchConfig, now: Time) -> Self {
        let mut path = Self {
            config,
            size: BASE_SIZE,
            settled: false,
            stated: None,
            level: None,
            next_id: 0,
            round_trip: Duration::ZERO,
            schedule: Schedule::default(),
        };
        path.restart(config.max_size, now);
        path
    }

    /// Starts again from [`BASE_SIZE`] to `max_size`. Answers to earlier probes no longer count.
    pub fn restart(&mut self, max_size: u16, now: Time) {
        self.config.max_size = max_size.clamp(BASE_SIZE, MAX_DATAGRAM as u16);
        self.size = BASE_SIZE;
        self.settled = false;
        self.stated = None;
        self.schedule = Schedule::default();
        self.ask(BASE_SIZE, self.config.max_size, now);
    }

    /// Whether the peer understands what probes state; else none is sent for that alone.
    pub fn set_states(&mut self, states: bool) {
        self.config.states = states;
    }

    /// An answer to probe `id` arrived. Returns whether it was awaited.
    pub fn on_reply(&mut self, id: u16, now: Time) -> bool {
        let Some(level) = &mut self.level else { return false };
        let Some(probe) = level.rounds.on_reply(id, now) else { return false };
        if level.rounds.sent.first() == Some(&probe) {
            self.round_trip = now.since(level.rounds.asked_at);
        }
        if probe.known == Some(self.size) {
            self.stated = probe.known;
        }
        if level.sizes.last() == Some(&probe.size) {
            self.conclude(now);
        }
        true
    }

    /// The small probe behind the round under way was answered.
    pub fn on_small_reply(&mut self, now: Time) {
        let round = self.level.as_mut().and_then(|level| level.rounds.in_flight.as_mut());
        if let Some(round) = round {
            round.answered = true;
            round.deadline = round.deadline.min(now + (now.since(round.sent_at) / 2).max(MIN_SLACK));
        }
    }

    /// Large packets may vanish: asks whether the size works, unless a question is under way.
    pub fn on_loss_suspected(&mut self, now: Time) {
        if self.level.is_none() && self.size > BASE_SIZE {
            self.ask(BASE_SIZE, self.size, now);
        }
    }

    /// Adds the probes that are due to `probes`. Returns whether a small one follows them.
    pub fn poll_round(&mut self, now: Time, probes: &mut Vec<Probe>) -> bool {
        let level = self.level.as_mut().filter(|level| level.rounds.in_flight.is_none());
        let Some(Level { sizes, one_first, rounds, .. }) = level else { return false };
        let known = self.settled.then_some(self.size);
        let alone = *one_first && rounds.lost + rounds.unproved == 0;
        let first = if alone { sizes.len().saturating_sub(1) } else { 0 };
        let is_answered_nearly_always = alone && known == sizes.last().copied() && rounds.undecided == 0;
        let accompanied = !is_answered_nearly_always;
        if rounds.sent.is_empty() {
            rounds.asked_at = now;
        }
        for size in &sizes[first..] {
            let probe = Probe { id: self.next_id, size: *size, known };
            self.next_id = (self.next_id + 1) & MAX_PROBE_ID;
            rounds.sent.push(probe);
            probes.push(probe);
        }
        let wait = if accompanied {
            PROBE_TIMEOUT * (1 << rounds.undecided)
        } else {
            (self.round_trip * 2).clamp(MIN_SLACK, PROBE_TIMEOUT)
        };
        rounds.in_flight = Some(Round { sent_at: now, deadline: now + wait, accompanied, answered: false });
        accompanied
    }

    /// Handles what has become due by `now`; ask [`poll_round`](Self::poll_round) afterwards.
    pub fn handle_timeout(&mut self, now: Time) {
        if let Some(level) = &mut self.level {
            if level.rounds.expire(now) {
                self.conclude(now);
            }
        } else if self.schedule.raise_at.take_if(|at| *at <= now).is_some() {
            self.ask(self.size, self.config.max_size, now);
        } else if self.schedule.confirm_at.is_some_and(|at| at <= now) {
            self.ask(BASE_SIZE, self.size, now);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) has to be called next. While a round waits to
    /// be sent there is none.
    pub fn poll_timeout(&self) -> Option<Time> {
        match &self.level {
            Some(level) => level.rounds.in_flight.map(|round| round.deadline),
            None => self.schedule.raise_at.into_iter().chain(self.schedule.confirm_at).min(),
        }
    }

    /// The largest datagram size that may be used now.
    pub const fn size(&self) -> u16 {
        self.size
    }

    /// The size, once it was found on this path; until then a larger one may work, too.
    pub fn known(&self) -> Option<u16> {
        self.settled.then_some(self.size)
    }

    /// Whether nothing is to be found out now: the next step can wait while the path is not used.
    pub fn is_resting(&self) -> bool {
        self.level.is_none()
    }

    /// Asks whether `top` works; if not, how much above `floor` does.
    fn ask(&mut self, floor: u16, top: u16, now: Time) {
        if top <= BASE_SIZE {
            self.rest(now);
            return;
        }
        let mut sizes = between(floor, top);
        sizes.push(top);
        self.begin(sizes, true, floor, top.saturating_add(1));
    }

    fn begin(&mut self, sizes: Vec<u16>, one_first: bool, floor: u16, ceiling: u16) {
        self.level = Some(Level { sizes, one_first, ceiling, floor, rounds: Rounds::default() });
    }

    /// The rounds of a level have decided.
    fn conclude(&mut self, now: Time) {
        let Some(level) = self.level.take() else { return };
        self.size = level.rounds.best.unwrap_or(level.floor);
        self.settled = true;
        let above = level.sizes.iter().copied().find(|size| *size > self.size);
        let ceiling = above.unwrap_or(level.ceiling);
        if ceiling - self.size > self.config.precision.max(1) {
            self.begin(between(self.size, ceiling), false, self.size, ceiling);
        } else if self.config.states && self.stated != Some(self.size) && level.sizes != [self.size] {
            // A question whose answer shows that the peer knows the size now.
            let mut sizes = between(BASE_SIZE, self.size);
            sizes.push(self.size);
            self.begin(sizes, true, BASE_SIZE, self.size.saturating_add(1));
        } else {
            self.rest(now);
        }
    }

    fn rest(&mut self, now: Time) {
        self.level = None;
        self.settled = true;
        self.schedule.plan(self.size, self.config.max_size, now);
    }
}

/// Sizes that divide the distance between two others evenly; none if there is no room.
fn between(low: u16, high: u16) -> Vec<u16> {
    let distance = u32::from(high.saturating_sub(low));
    let mut sizes: Vec<u16> =
        (1..PARTS).map(|part| low + (distance * u32::from(part) / u32::from(PARTS)) as u16).collect();
    sizes.retain(|size| *size > low && *size < high);
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// To the peer and back.
    const ROUND_TRIP: Duration = Duration::from_millis(30);

    fn secs(secs: u64) -> Time {
        Time::ZERO + Duration::from_secs(secs)
    }

    fn round(path: &mut PathMtu, now: Time) -> Vec<Probe> {
        accompanied_round(path, now).0
    }

    /// Returns a round, and whether a small probe follows it.
    fn accompanied_round(path: &mut PathMtu, now: Time) -> (Vec<Probe>, bool) {
        let mut probes = Vec::new();
        let accompanied = path.poll_round(now, &mut probes);
        (probes, accompanied)
    }

    /// An answer on its way: to a probe, or to the small one behind a round.
    type Answer = (Time, Option<u16>);

    /// Lets `path` run on a network that carries datagrams of up to `carries` bytes, until `end` or
    /// until it rests. Returns how many probes were sent.
    fn run(path: &mut PathMtu, carries: u16, now: &mut Time, end: Time, to_rest: bool) -> usize {
        let mut answers: VecDeque<Answer> = VecDeque::new();
        let mut sent = 0;
        while *now < end && !(to_rest && path.is_resting()) {
            let (probes, accompanied) = accompanied_round(path, *now);
            sent += probes.len();
            let arriving = probes.iter().filter(|probe| probe.size <= carries).map(|probe| Some(probe.id));
            let small = accompanied.then_some(None);
            answers.extend(arriving.chain(small).map(|id| (*now + ROUND_TRIP, id)));
            let timeout = path.poll_timeout().unwrap_or(end);
            match answers.front().copied().filter(|(at, _)| *at <= timeout) {
                Some((at, id)) => {
                    *now = at;
                    answers.pop_front();
                    match id {
                        Some(id) => {
                            path.on_reply(id, at);
                        }
                        None => path.on_small_reply(at),
                    }
                }
                None => {
                    *now = timeout.max(*now).min(end);
                    path.handle_timeout(*now);
                }
            }
        }
        sent
    }

    /// A path on which all of `size` has been found.
    fn found(size: u16) -> (PathMtu, Time) {
        let mut now = Time::ZERO;
        let mut path = PathMtu::new(SearchConfig::new(size), now);
        run(&mut path, size, &mut now, secs(5), true);
        assert_eq!((path.size(), path.known(), path.is_resting()), (size, Some(size), true));
        (path, now)
    }

    #[test]
    fn a_path_that_carries_everything_is_found_with_one_probe_and_stated_with_another() {
        let mut now = Time::ZERO;
        let mut path = PathMtu::new(SearchConfig::new(1472), now);
        assert_eq!((path.size(), path.known()), (BASE_SIZE, None), "not even the base is certain");
        assert_eq!(run(&mut path, 1500, &mut now, secs(5), false), 2);
        assert_eq!((path.size(), path.known()), (1472, Some(1472)));
        assert!(path.is_resting());
    }

    #[test]
    fn a_narrow_path_is_found_to_the_precision() {
        let mut now = Time::ZERO;
        let mut path = PathMtu::new(SearchConfig::new(1472), now);
        run(&mut path, 1412, &mut now, secs(2), true);
        assert!((1405..=1412).contains(&path.size()), "{}", path.size());
        assert!(path.is_resting());
    }

    #[test]
    fn a_search_has_no_more_probes_than_a_gateway_answers_at_once() {
        for (max, carries, most) in [(1472, 1412, 90), (MAX_DATAGRAM as u16, 40_001, 200)] {
            let mut now = Time::ZERO;
            let mut path = PathMtu::new(SearchConfig::new(max), now);
            let sent = run(&mut path, carries, &mut now, secs(5), true);
            assert!(path.is_resting() && sent < most, "{sent}");
        }
    }

    #[test]
    fn a_black_hole_costs_three_rounds_once_it_is_suspected() {
        for carries in BASE_SIZE..1472 {
            let (mut path, mut now) = found(1472);
            path.on_loss_suspected(now);
            // Three rounds; what they have found fits, and is not much smaller than what is found
            // in the end.
            let decided = now + (ROUND_TRIP + MIN_SLACK) * 3 + Duration::from_millis(1);
            run(&mut path, carries, &mut now, decided, false);
            assert!(path.size() <= carries && path.size() + 18 > carries, "{} of {carries}", path.size());
        }
    }

    #[test]
    fn a_size_that_works_is_confirmed_with_one_probe_and_one_reply() {
        let (mut path, now) = found(1472);
        path.on_loss_suspected(now);
        let (probes, accompanied) = accompanied_round(&mut path, now);
        assert_eq!((probes.len(), probes[0].size, accompanied), (1, 1472, false));
        assert!(path.on_reply(probes[0].id, now + ROUND_TRIP));
        assert_eq!((path.size(), path.is_resting()), (1472, true));
    }

    #[test]
    fn a_probe_without_a_small_one_is_lost_if_the_next_is_answered() {
        // Whether the small probes of these rounds are answered; the first round has none.
        let cases: [(&[bool], bool); 3] = [
            (&[false, false, false], false),
            (&[false, true, true], true),
            // The path was down for a while: what was lost then says nothing about sizes.
            (&[false, false, true, true], false),
        ];
        for (answered, lost) in cases {
            let (mut path, mut now) = found(1472);
            path.on_loss_suspected(now);
            for answered in answered {
                if accompanied_round(&mut path, now).1 && *answered {
                    path.on_small_reply(now);
                }
                now = path.poll_timeout().unwrap();
                path.handle_timeout(now);
            }
            assert_eq!(path.size() < 1472, lost, "{answered:?}");
            // The size in use is asked for with a small probe as long as the path may be down.
            assert!(lost || accompanied_round(&mut path, now).1);
        }
    }

    #[test]
    fn an_answer_is_awaited_for_two_round_trips_and_at_most_a_second() {
        let (mut path, now) = found(1472);
        for round_trip in [ROUND_TRIP * 4, ROUND_TRIP * 10, ROUND_TRIP * 20] {
            path.on_loss_suspected(now);
            let first = round(&mut path, now)[0];
            // Late, behind the second round: it still shows the round trip.
            let deadline = path.poll_timeout().unwrap();
            path.handle_timeout(deadline);
            round(&mut path, deadline);
            assert!(path.on_reply(first.id, now + round_trip));
            path.on_loss_suspected(now);
            let next = round(&mut path, now)[0];
            assert_eq!(path.poll_timeout().unwrap(), now + (round_trip * 2).min(Duration::from_secs(1)));
            assert!(path.on_reply(next.id, now + round_trip));
        }
    }

    #[test]
    fn two_lost_rounds_decide_nothing() {
        let (mut path, mut now) = found(1472);
        path.on_loss_suspected(now);
        for expected in [(1, false), (16, true)] {
            let (probes, accompanied) = accompanied_round(&mut path, now);
            assert_eq!((probes.len(), accompanied), expected);
            if accompanied {
                path.on_small_reply(now);
            }
            now = path.poll_timeout().unwrap();
            path.handle_timeout(now);
        }
        let last = round(&mut path, now).last().copied().unwrap();
        assert_eq!(last.size, 1472);
        assert!(path.on_reply(last.id, now));
        assert_eq!((path.size(), path.is_resting()), (1472, true));
    }

    #[test]
    fn a_probe_answer_one_round_late_counts() {
        let (mut path, mut now) = found(1472);
        path.on_loss_suspected(now);
        let first = round(&mut path, now)[0];
        path.on_small_reply(now);
        now = path.poll_timeout().unwrap();
        path.handle_timeout(now);
        round(&mut path, now);
        assert!(path.on_reply(first.id, now));
        assert_eq!((path.size(), path.is_resting()), (1472, true));
    }

    #[test]
    fn a_path_that_carries_nothing_is_asked_ever_less_often_but_not_taken_for_narrow() {
        let mut path = PathMtu::new(SearchConfig::new(1472), Time::ZERO);
        let mut now = Time::ZERO;
        let mut waits = Vec::new();
        for _ in 0..8 {
            assert_eq!(round(&mut path, now).iter().map(|probe| probe.size).collect::<Vec<_>>(), [1472]);
            let deadline = path.poll_timeout().unwrap();
            waits.push((deadline - now).as_secs());
            now = deadline;
            path.handle_timeout(now);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 32, 32]);
        let probes = round(&mut path, now);
        assert!(path.on_reply(probes[0].id, now));
        assert_eq!(path.size(), 1472);
    }

    #[test]
    fn no_second_round_before_the_first_is_decided() {
        let mut path = PathMtu::new(SearchConfig::new(1472), Time::ZERO);
        assert_eq!(round(&mut path, Time::ZERO).len(), 1);
        assert_eq!(round(&mut path, Time::ZERO), []);
        path.handle_timeout(Time::ZERO + Duration::from_millis(999));
        assert_eq!(round(&mut path, Time::ZERO), []);
    }

    #[test]
    fn a_black_hole_is_noticed_on_suspicion_and_without() {
        for (suspected, within) in [(true, 1), (false, 32)] {
            let (mut path, mut now) = found(1472);
            if suspected {
                path.on_loss_suspected(now);
            }
            let end = now + Duration::from_secs(within);
            run(&mut path, 1300, &mut now, end, false);
            assert!((1293..=1300).contains(&path.size()), "{}", path.size());
        }
    }

    #[test]
    fn congestion_does_not_shrink_the_size() {
        let (mut path, mut now) = found(1472);
        path.on_loss_suspected(now);
        assert_eq!(run(&mut path, 1500, &mut now, secs(10), true), 1);
        assert_eq!(path.size(), 1472);
    }

    #[test]
    fn a_path_that_grows_is_found_again() {
        let mut now = Time::ZERO;
        let mut path = PathMtu::new(SearchConfig::new(1472), now);
        run(&mut path, 1300, &mut now, secs(500), false);
        assert!(path.size() <= 1300);
        run(&mut path, 1500, &mut now, secs(700), false);
        assert_eq!(path.size(), 1472);
    }

    #[test]
    fn a_size_is_stated_until_the_peer_has_answered() {
        let (mut path, mut now) = found(1472);
        path.on_loss_suspected(now);
        run(&mut path, 1380, &mut now, secs(60), true);
        assert!(path.size() <= 1380);
        assert_eq!(path.stated, Some(path.size()), "the last question carried what was found");
    }

    #[test]
    fn a_restart_forgets_the_old_path() {
        let mut path = PathMtu::new(SearchConfig::new(1472), Time::ZERO);
        let old = round(&mut path, Time::ZERO)[0];
        path.restart(1300, Time::ZERO);
        assert!(!path.on_reply(old.id, Time::ZERO));
        assert_eq!(round(&mut path, Time::ZERO)[0].size, 1300);
        assert_eq!((path.size(), path.known()), (BASE_SIZE, None));
    }

    #[test]
    fn an_interface_at_the_base_needs_no_search() {
        let mut path = PathMtu::new(SearchConfig::new(800), Time::ZERO);
        assert_eq!((path.size(), round(&mut path, Time::ZERO), path.is_resting()), (BASE_SIZE, vec![], true));
    }

    proptest! {
        #[test]
        fn settles_just_below_what_the_path_carries(
            max in BASE_SIZE..9100, first in BASE_SIZE..9100, second in BASE_SIZE..9100, precision in 1_u16..40,
        ) {
            let mut now = Time::ZERO;
            let config = SearchConfig { precision, ..SearchConfig::new(max) };
            let mut path = PathMtu::new(config, now);
            for (carries, end) in [(first, 300), (second, 1500)] {
                run(&mut path, carries, &mut now, secs(end), false);
                let best = carries.min(max);
                prop_assert!(path.size() <= best && best - path.size() < precision.max(2), "{} {best}", path.size());
                path.on_loss_suspected(now);
            }
        }
    }
}
