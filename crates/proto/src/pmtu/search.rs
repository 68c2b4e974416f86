//! The search for the largest datagram that a path carries (DPLPMTUD, RFC 8899), as a state machine.
//!
//! What moves it: probes that were answered or not. ICMP messages from outside are not trusted and play no part.
//! A new path starts at [`BASE_SIZE`], which is taken to work, tries the largest size first and then halves the
//! distance. When large packets seem to vanish, the size in use is probed again; only if that fails does the size
//! fall back. A lost probe counts only if something small arrived meanwhile: a path that is down, or congested, is
//! not a narrow one.

use std::time::Duration;

use crate::time::Time;
use crate::wire::MAX_DATAGRAM;

/// The datagram size every path is expected to carry (RFC 8899, section 5.1.2; as in QUIC).
pub const BASE_SIZE: u16 = 1200;

/// The largest number of a probe; then they begin again.
pub const MAX_PROBE_ID: u16 = 0x3FFF;

/// While nothing at all arrives, the wait for an answer doubles so often.
const MAX_DOUBLINGS: u32 = 5;

/// What to search and how patiently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchConfig {
    /// The largest datagram size worth trying: what the local interface carries. No less than [`BASE_SIZE`].
    pub max_size: u16,
    /// The search ends when the distance between what works and what does not is smaller.
    pub precision: u16,
    /// How long an answer to a probe is awaited (PROBE_TIMER).
    pub probe_timeout: Duration,
    /// Probes of one size that must be lost before it counts as too large (MAX_PROBES).
    pub max_probes: u8,
    /// How long after a finished search larger sizes are tried again (PMTU_RAISE_TIMER).
    pub raise_after: Duration,
    /// How often the size in use is confirmed after a finished search (CONFIRMATION_TIMER).
    pub confirm_every: Duration,
}

impl SearchConfig {
    /// The values of RFC 8899, section 5.1, up to `max_size`.
    pub fn new(max_size: u16) -> Self {
        Self {
            max_size: max_size.max(BASE_SIZE),
            precision: 8,
            probe_timeout: Duration::from_secs(1),
            max_probes: 3,
            raise_after: Duration::from_secs(600),
            confirm_every: Duration::from_secs(30),
        }
    }
}

/// A probe to send: a datagram of exactly `size` bytes that the peer answers with its `id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Names the probe in its answer.
    pub id: u16,
    /// Datagram size.
    pub size: u16,
}

/// What the probes are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Looking for the largest size that works, between `size` and `ceiling`.
    Search,
    /// Asking whether the size in use still works.
    Confirm,
    /// Nothing to ask before a timer ends.
    Done,
}

/// The search on one path.
#[derive(Clone, Debug)]
pub struct PathMtu {
    config: SearchConfig,
    phase: Phase,
    /// The largest size known to work.
    size: u16,
    /// The smallest size known not to work, or one more than the largest worth trying.
    ceiling: u16,
    next_id: u16,
    /// Probes of the present size that were lost while small datagrams arrived.
    lost: u8,
    /// Probes in a row that were lost together with everything else.
    undecided: u32,
    /// The probe whose answer is awaited, and until when.
    in_flight: Option<(Probe, Time)>,
    /// When to look for larger sizes again, once a search is finished.
    raise_at: Option<Time>,
    /// When to confirm the size in use.
    confirm_at: Option<Time>,
}

impl PathMtu {
    /// A new path, on which nothing was tried.
    pub fn new(config: SearchConfig, now: Time) -> Self {
        let max_size = config.max_size.clamp(BASE_SIZE, MAX_DATAGRAM as u16);
        let mut path = Self {
            config: SearchConfig { max_size, ..config },
            phase: Phase::Search,
            size: BASE_SIZE,
            ceiling: 0,
            next_id: 0,
            lost: 0,
            undecided: 0,
            in_flight: None,
            raise_at: None,
            confirm_at: None,
        };
        path.restart(max_size, now);
        path
    }

    /// Starts anew from [`BASE_SIZE`] up to `max_size`, as on a new path. Answers to earlier probes no longer count.
    pub fn restart(&mut self, max_size: u16, now: Time) {
        self.config.max_size = max_size.clamp(BASE_SIZE, MAX_DATAGRAM as u16);
        self.size = BASE_SIZE;
        self.search_below(self.config.max_size + 1, now);
    }

    /// An answer to probe `id` arrived. Returns whether it was awaited.
    pub fn on_reply(&mut self, id: u16, now: Time) -> bool {
        let Some((probe, _)) = self.in_flight.filter(|(probe, _)| probe.id == id) else { return false };
        if self.phase == Phase::Search {
            self.size = probe.size;
        }
        self.go_on(now);
        true
    }

    /// Large packets seem to vanish on the path while small ones arrive: asks the path at once whether the size in
    /// use still works.
    pub fn on_loss_suspected(&mut self) {
        if self.phase != Phase::Confirm && self.size > BASE_SIZE {
            self.begin(Phase::Confirm);
        }
    }

    /// The next probe to send at `now`, if one is due.
    pub fn poll_probe(&mut self, now: Time) -> Option<Probe> {
        if self.in_flight.is_some() {
            return None;
        }
        let size = match self.phase {
            Phase::Search => self.candidate(),
            Phase::Confirm => self.size,
            Phase::Done => return None,
        };
        let probe = Probe { id: self.next_id, size };
        self.next_id = (self.next_id + 1) & MAX_PROBE_ID;
        self.in_flight = Some((probe, now + self.config.probe_timeout * (1 << self.undecided)));
        Some(probe)
    }

    /// Handles what has become due by `now`; ask [`poll_probe`](Self::poll_probe) afterwards. `small_arrives`: a
    /// small datagram made the way there and back since the last probe was sent.
    pub fn handle_timeout(&mut self, now: Time, small_arrives: bool) {
        if let Some((probe, deadline)) = self.in_flight {
            if deadline <= now {
                self.in_flight = None;
                self.count_lost(probe, small_arrives, now);
            }
        } else if self.phase == Phase::Done {
            if self.raise_at.is_some_and(|at| at <= now) {
                self.search_below(self.config.max_size + 1, now);
            } else if self.confirm_at.is_some_and(|at| at <= now) {
                self.begin(Phase::Confirm);
            }
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) has to be called next. While a probe waits to be sent there is
    /// none.
    pub fn poll_timeout(&self) -> Option<Time> {
        match (self.in_flight, self.phase) {
            (Some((_, deadline)), _) => Some(deadline),
            (None, Phase::Done) => self.raise_at.into_iter().chain(self.confirm_at).min(),
            (None, Phase::Search | Phase::Confirm) => None,
        }
    }

    /// The largest datagram size that may be used now.
    pub const fn size(&self) -> u16 {
        self.size
    }

    /// Whether there is nothing to find out at present; what is due next can wait while nobody uses the path.
    pub fn is_resting(&self) -> bool {
        self.phase == Phase::Done
    }

    fn count_lost(&mut self, probe: Probe, small_arrives: bool, now: Time) {
        if !small_arrives {
            self.undecided = (self.undecided + 1).min(MAX_DOUBLINGS);
            return;
        }
        self.undecided = 0;
        self.lost += 1;
        if self.lost >= self.config.max_probes {
            self.give_up(probe.size, now);
        }
    }

    /// All probes of `size` were lost.
    fn give_up(&mut self, size: u16, now: Time) {
        if self.phase == Phase::Search {
            self.ceiling = size;
            self.go_on(now);
        } else {
            // A black hole: what worked no longer does. Nothing in between is known, so begin at the base.
            self.size = BASE_SIZE;
            self.search_below(size, now);
        }
    }

    /// The next size to try: the largest at all first, for most paths carry it; then the middle.
    fn candidate(&self) -> u16 {
        if self.ceiling > self.config.max_size {
            self.config.max_size
        } else {
            self.size + (self.ceiling - self.size) / 2
        }
    }

    fn search_below(&mut self, ceiling: u16, now: Time) {
        self.ceiling = ceiling;
        self.raise_at = None;
        self.go_on(now);
    }

    /// Searches on, or rests if the distance between what works and what does not is small enough.
    fn go_on(&mut self, now: Time) {
        if self.ceiling - self.size > self.config.precision.max(1) {
            self.begin(Phase::Search);
            return;
        }
        self.begin(Phase::Done);
        self.confirm_at = (self.size > BASE_SIZE).then(|| now + self.config.confirm_every);
        if self.ceiling <= self.config.max_size && self.raise_at.is_none() {
            self.raise_at = Some(now + self.config.raise_after);
        }
    }

    fn begin(&mut self, phase: Phase) {
        self.phase = phase;
        self.lost = 0;
        self.undecided = 0;
        self.in_flight = None;
        self.confirm_at = None;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn secs(secs: u64) -> Time {
        Time::ZERO + Duration::from_secs(secs)
    }

    /// Lets `path` run on a network that carries datagrams of up to `carries` bytes, until `end`. Returns how many
    /// probes were sent.
    fn run(path: &mut PathMtu, carries: u16, now: &mut Time, end: Time) -> usize {
        let mut replies = VecDeque::new();
        let mut probes = 0;
        while *now < end {
            while let Some(probe) = path.poll_probe(*now) {
                probes += 1;
                if probe.size <= carries {
                    replies.push_back((*now + Duration::from_millis(30), probe.id));
                }
            }
            let timeout = path.poll_timeout().unwrap_or(end);
            match replies.front().copied().filter(|(at, _)| *at <= timeout) {
                Some((at, id)) => {
                    *now = at;
                    replies.pop_front();
                    assert!(path.on_reply(id, at));
                }
                None => {
                    *now = timeout.max(*now).min(end);
                    path.handle_timeout(*now, true);
                }
            }
        }
        probes
    }

    #[test]
    fn a_path_that_carries_everything_is_found_with_one_probe() {
        let mut now = Time::ZERO;
        let mut path = PathMtu::new(SearchConfig::new(1472), now);
        assert_eq!(path.size(), BASE_SIZE);
        assert_eq!(run(&mut path, 1500, &mut now, secs(5)), 1);
        assert_eq!(path.size(), 1472);
        assert!(path.is_resting());
    }

    #[test]
    fn a_narrow_path_is_found_to_the_precision() {
        let mut now = Time::ZERO;
        let mut path = PathMtu::new(SearchConfig::new(1472), now);
        run(&mut path, 1412, &mut now, secs(60));
        assert!((1405..=1412).contains(&path.size()), "{}", path.size());
        assert!(path.is_resting());
    }

    #[test]
    fn one_lost_probe_decides_nothing() {
        let mut path = PathMtu::new(SearchConfig::new(1472), Time::ZERO);
        let first = path.poll_probe(Time::ZERO).unwrap();
        path.handle_timeout(secs(1), true);
        let second = path.poll_probe(secs(1)).unwrap();
        assert_eq!((first.size, second.size), (1472, 1472));
        assert!(!path.on_reply(first.id, secs(1)), "an answer that comes too late");
        assert!(path.on_reply(second.id, secs(2)));
        assert_eq!(path.size(), 1472);
    }

    #[test]
    fn a_path_that_carries_nothing_is_asked_ever_less_often_but_not_taken_for_narrow() {
        let mut path = PathMtu::new(SearchConfig::new(1472), Time::ZERO);
        let mut now = Time::ZERO;
        let mut waits = Vec::new();
        for _ in 0..8 {
            assert_eq!(path.poll_probe(now).map(|probe| probe.size), Some(1472));
            let deadline = path.poll_timeout().unwrap();
            waits.push((deadline - now).as_secs());
            now = deadline;
            path.handle_timeout(now, false);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 32, 32]);
        let probe = path.poll_probe(now).unwrap();
        assert!(path.on_reply(probe.id, now));
        assert_eq!(path.size(), 1472);
    }

    #[test]
    fn no_second_probe_before_the_first_is_decided() {
        let mut path = PathMtu::new(SearchConfig::new(1472), Time::ZERO);
        assert!(path.poll_probe(Time::ZERO).is_some());
        assert!(path.poll_probe(Time::ZERO).is_none());
        path.handle_timeout(Time::ZERO + Duration::from_millis(999), true);
        assert!(path.poll_probe(Time::ZERO).is_none());
    }

    #[test]
    fn a_black_hole_is_noticed_on_suspicion_and_without() {
        for (suspected, end) in [(true, 65), (false, 110)] {
            let mut now = Time::ZERO;
            let mut path = PathMtu::new(SearchConfig::new(1472), now);
            run(&mut path, 1500, &mut now, secs(31));
            assert_eq!(path.size(), 1472);
            if suspected {
                path.on_loss_suspected();
            }
            run(&mut path, 1300, &mut now, secs(end));
            assert!((1293..=1300).contains(&path.size()), "{}", path.size());
        }
    }

    #[test]
    fn congestion_does_not_shrink_the_size() {
        let mut now = Time::ZERO;
        let mut path = PathMtu::new(SearchConfig::new(1472), now);
        run(&mut path, 1500, &mut now, secs(5));
        path.on_loss_suspected();
        assert_eq!(run(&mut path, 1500, &mut now, secs(10)), 1);
        assert_eq!(path.size(), 1472);
    }

    #[test]
    fn a_path_that_grows_is_found_again() {
        let mut now = Time::ZERO;
        let mut path = PathMtu::new(SearchConfig::new(1472), now);
        run(&mut path, 1300, &mut now, secs(500));
        assert!(path.size() <= 1300);
        run(&mut path, 1500, &mut now, secs(700));
        assert_eq!(path.size(), 1472);
    }

    #[test]
    fn a_restart_forgets_the_old_path() {
        let mut path = PathMtu::new(SearchConfig::new(1472), Time::ZERO);
        let old = path.poll_probe(Time::ZERO).unwrap();
        path.restart(1300, Time::ZERO);
        assert!(!path.on_reply(old.id, Time::ZERO));
        assert_eq!(path.poll_probe(Time::ZERO).map(|probe| probe.size), Some(1300));
        assert_eq!(path.size(), BASE_SIZE);
    }

    #[test]
    fn an_interface_at_the_base_needs_no_search() {
        let mut path = PathMtu::new(SearchConfig::new(800), Time::ZERO);
        assert_eq!((path.size(), path.poll_probe(Time::ZERO), path.poll_timeout()), (BASE_SIZE, None, None));
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
                run(&mut path, carries, &mut now, secs(end));
                let best = carries.min(max);
                prop_assert!(path.size() <= best && best - path.size() < precision, "{} {best}", path.size());
                path.on_loss_suspected();
            }
        }
    }
}
