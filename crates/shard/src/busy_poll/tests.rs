use super::*;

const LIMIT: Duration = Duration::from_micros(50);
const QUICK: Duration = Duration::from_micros(1);

/// A shard's waits, on a clock of the test.
struct Waits {
    poll: BusyPoll,
    now: Time,
}

impl Waits {
    fn new(limit: Duration) -> Self {
        Self { poll: BusyPoll::new(limit), now: Time::ZERO + Duration::from_secs(1) }
    }

    /// After `waits` waits that all ended in time.
    fn in_time(waits: u32) -> Self {
        let mut all = Self::new(LIMIT);
        (0..waits).for_each(|_| all.wait(LIMIT));
        all
    }

    fn begin(&mut self) {
        self.poll.wait_began(self.now);
    }

    /// A look that finds nothing, and the turns of others after it.
    fn look(&mut self, others: Duration) {
        let yielded = self.now;
        self.now = yielded + others;
        self.poll.look_failed(yielded, self.now);
    }

    fn end(&mut self) {
        self.poll.wait_ended(self.now);
    }

    /// A whole wait without a look, and the begin of the next one.
    fn wait(&mut self, length: Duration) {
        self.begin();
        self.now = self.now + length;
        self.end();
        self.begin();
    }
}

#[test]
fn a_limit_of_zero_never_polls() {
    let mut waits = Waits::new(Duration::ZERO);
    assert!(!waits.poll.is_enabled());
    for _ in 0..2 * REMEMBERED {
        waits.wait(Duration::ZERO);
        assert!(!waits.poll.is_polling());
    }
    assert_eq!(waits.poll.counts(), PollCounts::default());
}

#[test]
fn polling_begins_when_half_of_the_last_waits_ended_in_time() {
    assert!(!Waits::in_time(ENOUGH - 1).poll.is_polling());
    let mut waits = Waits::in_time(ENOUGH);
    assert!(waits.poll.is_polling());
    // The others are too long by a nanosecond. Those in time are forgotten after as many as are
    // remembered.
    let long = LIMIT + Duration::from_nanos(1);
    for _ in 0..REMEMBERED - ENOUGH {
        waits.wait(long);
        assert!(waits.poll.is_polling());
    }
    waits.wait(long);
    assert!(!waits.poll.is_polling());
    for _ in 0..REMEMBERED {
        waits.wait(LIMIT);
    }
    for _ in 0..ENOUGH {
        waits.wait(long);
        assert!(waits.poll.is_polling());
    }
    waits.wait(long);
    assert!(!waits.poll.is_polling());
}

#[test]
fn a_packet_within_the_limit_is_found_by_polling() {
    let mut waits = Waits::in_time(REMEMBERED);
    (0..5).for_each(|_| waits.look(QUICK));
    assert!(waits.poll.is_polling());
    waits.end();
    let counts = PollCounts { found: 1, time: 5 * QUICK, ..PollCounts::default() };
    assert_eq!(waits.poll.counts(), counts);
    // One that was there before the first look was no reason to poll.
    waits.begin();
    waits.end();
    assert_eq!(waits.poll.counts(), counts);
}

#[test]
fn polling_ends_after_the_limit_and_is_right_again_with_the_next_waits() {
    let mut waits = Waits::in_time(REMEMBERED);
    let mut looks = 0;
    while waits.poll.is_polling() && looks < 1_000 {
        waits.look(QUICK);
        looks += 1;
    }
    assert_eq!(looks, LIMIT.as_nanos() / QUICK.as_nanos());
    let counts = PollCounts { expired: 1, time: LIMIT, ..PollCounts::default() };
    assert_eq!(waits.poll.counts(), counts);
    waits.now = waits.now + Duration::from_secs(60);
    waits.end();
    assert_eq!(waits.poll.counts(), counts, "nothing was found by polling");
    waits.begin();
    assert!(waits.poll.is_polling(), "one wait of sixteen was too long");
}

#[test]
fn polling_pauses_ever_longer_while_others_need_the_core() {
    let mut waits = Waits::in_time(REMEMBERED);
    let mut pause = FIRST_PAUSE;
    for turn in 1..=20 {
        waits.look(LONG_YIELD - Duration::from_nanos(1 + LIMIT.as_nanos() as u64));
        assert!(waits.poll.is_polling(), "a short turn of another thread is no reason to stop");
        waits.look(LONG_YIELD);
        assert!(!waits.poll.is_polling());
        assert_eq!(waits.poll.counts().yielded, turn);
        let asleep = waits.now;
        // Traffic goes on, and the shard sleeps between packets.
        waits.now = asleep + (pause - QUICK);
        waits.begin();
        assert!(!waits.poll.is_polling());
        waits.now = asleep + pause;
        waits.begin();
        assert!(waits.poll.is_polling());
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    assert_eq!(pause, LONGEST_PAUSE);
    assert_eq!(waits.poll.counts().expired, 0);
}

#[test]
fn packets_that_polling_finds_shorten_the_next_pause() {
    let mut waits = Waits::in_time(REMEMBERED);
    for _ in 0..20 {
        waits.look(LONG_YIELD);
        waits.now = waits.now + LONGEST_PAUSE;
        waits.begin();
    }
    for _ in 0..20 {
        waits.look(QUICK);
        waits.end();
        waits.begin();
    }
    waits.look(LONG_YIELD);
    waits.now = waits.now + FIRST_PAUSE;
    waits.begin();
    assert!(waits.poll.is_polling());
}

#[test]
fn counts_of_shards_add_up() {
    let one = PollCounts { found: 1, expired: 2, yielded: 3, time: Duration::from_micros(1_600) };
    let all = (one + one).by_name();
    assert_eq!(all, [("found", 2), ("expired", 4), ("yielded", 6), ("time_ms", 3)]);
}
