//! When a peer needs a handshake or a keepalive (§6.1 to §6.5). One state machine for each peer,
//! without keys.
//!
//! Two rules keep both ends honest about silence. An end that receives data and has nothing to send
//! answers with a keepalive [`KEEPALIVE_TIMEOUT`] after the data that it has not answered yet;
//! later data do not put that off, or a flow in one direction would never be answered. An end that
//! sends data and receives nothing at all for longer than that, and the time that a handshake
//! takes, begins a new handshake.

use core::time::Duration;

use vpnd_proto::time::Time;

/// The initiator of a session begins the next handshake when it sends after this time.
pub const REKEY_AFTER_TIME: Duration = Duration::from_secs(120);
/// A first message that is not answered is sent again after this time, and a random part of
/// [`JITTER`].
pub const REKEY_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that has not answered for this time is given up, until there is data for it.
pub const REKEY_ATTEMPT_TIME: Duration = Duration::from_secs(90);
/// Data are answered with a keepalive after this time.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Peers of a gateway that restarts must not all begin at once.
pub const JITTER: Duration = Duration::from_millis(333);
/// The shortest interval of persistent keepalives, as for WireGuard's tools.
pub const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Keys are erased when no session was made for this time: three lifetimes of a key.
pub const ERASE_AFTER: Duration = Duration::from_secs(540);
/// The initiator of a session that receives begins the next handshake at this age, early enough to
/// end before the key does.
pub const REKEY_ON_RECEIVE: Duration = Duration::from_secs(165);

/// A step that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Send a first message again.
    Retry,
    /// The peer has not answered for [`REKEY_ATTEMPT_TIME`].
    GiveUp,
    /// Begin a handshake: what was sent was not answered.
    Handshake,
    /// Send a keepalive.
    Keepalive,
    /// Erase all keys of the peer.
    Erase,
}

/// A handshake that this end has begun.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    until: Time,
    retry_at: Time,
}

/// The timers of one peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timers {
    attempt: Option<Attempt>,
    last_attempt: Option<Time>,
    /// Data were sent, and nothing was received since: then begin a handshake.
    unanswered: Option<Time>,
    /// Data were received, and nothing was sent since: then send a keepalive.
    keepalive: Option<Time>,
    /// So often something is sent at least.
    interval: Option<Duration>,
    persistent: Option<Time>,
    erase: Option<Time>,
}

impl Timers {
    /// A peer to which something is sent at least every `interval`, if there is one; 0 is none, as
    /// for WireGuard's tools.
    #[must_use]
    pub fn new(now: Time, interval: Option<Duration>) -> Self {
        let mut this = Self::default();
        this.set_interval(now, interval);
        this
    }

    /// Something is sent at least every `interval` from now on.
    pub fn set_interval(&mut self, now: Time, interval: Option<Duration>) {
        let interval =
            interval.filter(|interval| !interval.is_zero()).map(|interval| interval.max(MIN_INTERVAL));
        if self.interval != interval {
            self.interval = interval;
            self.passed(now);
        }
    }

    /// Something authentic was sent: data, a keepalive, or a message of a handshake.
    pub fn sent(&mut self, now: Time) {
        self.keepalive = None;
        self.passed(now);
    }

    /// Data were sent. `jitter` is a random part of [`JITTER`].
    pub fn sent_data(&mut self, now: Time, jitter: Duration) {
        self.sent(now);
        self.unanswered.get_or_insert(now + KEEPALIVE_TIMEOUT + REKEY_TIMEOUT + jitter);
    }

    /// Something authentic was received.
    pub fn received(&mut self, now: Time) {
        self.unanswered = None;
        self.passed(now);
    }

    /// Data were received.
    pub fn received_data(&mut self, now: Time) {
        self.received(now);
        self.keepalive.get_or_insert(now + KEEPALIVE_TIMEOUT);
    }

    /// Whether a handshake may be begun now: none is on its way, and the last message was not a
    /// moment ago. Then it counts as begun.
    pub fn begin(&mut self, now: Time) -> bool {
        let too_soon = self.last_attempt.is_some_and(|at| now.since(at) < REKEY_TIMEOUT);
        if self.attempt.is_some() || too_soon {
            return false;
        }
        self.unanswered = None;
        self.attempt = Some(Attempt { until: now + REKEY_ATTEMPT_TIME, retry_at: now + REKEY_TIMEOUT });
        true
    }

    /// Whether a handshake was begun and has not ended.
    #[must_use]
    pub const fn is_beginning(&self) -> bool {
        self.attempt.is_some()
    }

    /// The first message was sent.
    pub fn initiation_sent(&mut self, now: Time, jitter: Duration) {
        self.last_attempt = Some(now);
        if let Some(attempt) = &mut self.attempt {
            attempt.retry_at = now + REKEY_TIMEOUT + jitter;
        }
        self.sent(now);
    }

    /// There are keys of a new session.
    pub fn session_made(&mut self, now: Time) {
        self.erase = Some(now + ERASE_AFTER);
    }

    /// The peer has shown that it has the keys of a new session, whichever end began the handshake.
    pub fn handshake_done(&mut self) {
        self.attempt = None;
    }

    /// The next handshake may begin at once.
    pub fn forget_last_attempt(&mut self) {
        self.last_attempt = None;
    }

    /// When data that were received have to be answered, and when a handshake begins because data
    /// that were sent were not.
    #[must_use]
    pub const fn owed(&self) -> (Option<Time>, Option<Time>) {
        (self.keepalive, self.unanswered)
    }

    /// Takes over what another process owed.
    pub const fn owe(&mut self, keepalive: Option<Time>, unanswered: Option<Time>) {
        (self.keepalive, self.unanswered) = (keepalive, unanswered);
    }

    /// No session is left, and none is wanted: the interval of keepalives begins again when the
    /// peer is heard or sent to.
    pub fn session_erased(&mut self) {
        (self.attempt, self.unanswered, self.keepalive) = (None, None, None);
        (self.persistent, self.erase) = (None, None);
    }

    /// When something is due next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let retry = self.attempt.map(|attempt| attempt.retry_at);
        [retry, self.unanswered, self.keepalive, self.persistent, self.erase].into_iter().flatten().min()
    }

    /// Takes out what is due at `now`, one after the other.
    pub fn pop(&mut self, now: Time) -> Option<Due> {
        let is_due = |at: &Option<Time>| at.is_some_and(|at| at <= now);
        if is_due(&self.erase) {
            self.erase = None;
            return Some(Due::Erase);
        }
        if let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.retry_at <= now) {
            if now >= attempt.until {
                (self.attempt, self.keepalive) = (None, None);
                self.erase.get_or_insert(now + ERASE_AFTER);
                return Some(Due::GiveUp);
            }
            attempt.retry_at = now + REKEY_TIMEOUT;
            return Some(Due::Retry);
        }
        if is_due(&self.unanswered) {
            self.unanswered = None;
            return Some(Due::Handshake);
        }
        if is_due(&self.keepalive) {
            self.keepalive = None;
            return Some(Due::Keepalive);
        }
        if is_due(&self.persistent) {
            self.passed(now);
            return Some(Due::Keepalive);
        }
        None
    }

    fn passed(&mut self, now: Time) {
        self.persistent = self.interval.map(|interval| now + interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    /// All that is due up to `end`, with its second.
    fn run(timers: &mut Timers, end: Time) -> Vec<(u64, Due)> {
        let mut fired = Vec::new();
        while let Some(at) = timers.poll_timeout().filter(|at| *at <= end) {
            let due = timers.pop(at).expect("it is due");
            if due == Due::Retry {
                timers.initiation_sent(at, Duration::ZERO);
            }
            fired.push((at.as_nanos() / 1_000_000_000, due));
        }
        fired
    }

    #[test]
    fn data_are_answered_with_a_keepalive_however_much_follows() {
        let mut timers = Timers::new(s(0), None);
        timers.received_data(s(1));
        timers.received_data(s(9));
        assert_eq!(run(&mut timers, s(30)), [(11, Due::Keepalive)], "from the first data without an answer");
        timers.received_data(s(30));
        timers.sent(s(31));
        assert_eq!(run(&mut timers, s(60)), [], "something was sent meanwhile");
        timers.received(s(60));
        assert_eq!(run(&mut timers, s(90)), [], "a keepalive is not answered");
        timers.received_data(s(90));
        assert_eq!(
            run(&mut timers, s(101)),
            [(100, Due::Keepalive)],
            "from the data received, not the last sent"
        );
    }

    #[test]
    fn silence_after_data_begins_a_handshake() {
        let mut timers = Timers::new(s(0), None);
        timers.sent_data(s(0), Duration::ZERO);
        timers.sent_data(s(14), Duration::ZERO);
        assert_eq!(run(&mut timers, s(60)), [(15, Due::Handshake)], "from the first data");
        timers.sent_data(s(60), Duration::ZERO);
        timers.received(s(70));
        assert_eq!(run(&mut timers, s(99)), []);
        timers.sent(s(100));
        assert_eq!(run(&mut timers, s(200)), [], "keepalives need no answer");
    }

    #[test]
    fn a_peer_that_does_not_answer_is_asked_for_ninety_seconds() {
        let mut timers = Timers::new(s(0), None);
        assert!(timers.begin(s(0)) && !timers.begin(s(0)));
        timers.initiation_sent(s(0), Duration::ZERO);
        let fired = run(&mut timers, s(600));
        let retries: Vec<_> = (1..18).map(|number| (number * 5, Due::Retry)).collect();
        assert_eq!(fired[..17], retries);
        assert_eq!(fired[17], (90, Due::GiveUp));
        assert_eq!(fired[18..], [], "what keys there were go later");
        assert_eq!(run(&mut timers, s(630)), [(630, Due::Erase)]);
        assert!(timers.begin(s(700)), "data begin it again");
    }

    #[test]
    fn handshakes_do_not_follow_each_other_closely() {
        let mut timers = Timers::new(s(0), None);
        assert!(timers.begin(s(10)));
        timers.initiation_sent(s(10), Duration::ZERO);
        timers.session_made(s(11));
        assert!(timers.is_beginning(), "the peer's own handshake may come to nothing");
        timers.handshake_done();
        assert!(!timers.is_beginning() && !timers.begin(s(14)) && timers.begin(s(15)));
    }

    #[test]
    fn jitter_puts_retries_and_handshakes_off() {
        let mut timers = Timers::new(s(0), None);
        timers.sent_data(s(0), JITTER);
        assert_eq!(timers.poll_timeout(), Some(s(15) + JITTER));
        assert!(timers.begin(s(0)));
        timers.initiation_sent(s(0), JITTER);
        assert_eq!(timers.poll_timeout(), Some(s(5) + JITTER));
    }

    #[test]
    fn a_persistent_keepalive_counts_from_the_last_packet_either_way() {
        let mut timers = Timers::new(s(0), Some(Duration::from_secs(25)));
        assert_eq!(run(&mut timers, s(60)), [(25, Due::Keepalive), (50, Due::Keepalive)]);
        timers.received(s(70));
        assert_eq!(timers.poll_timeout(), Some(s(95)));
        timers.sent(s(80));
        assert_eq!(timers.poll_timeout(), Some(s(105)));
        timers.session_erased();
        assert_eq!(timers.poll_timeout(), None, "a peer that is gone is not asked for ever");
        timers.received(s(110));
        assert_eq!(timers.poll_timeout(), Some(s(135)));
        assert_eq!(Timers::new(s(0), Some(Duration::ZERO)).poll_timeout(), None);
        timers.set_interval(s(112), Some(Duration::from_secs(5)));
        assert_eq!(timers.poll_timeout(), Some(s(117)), "another interval counts at once");
        timers.set_interval(s(113), None);
        assert_eq!(timers.poll_timeout(), None);
        let short = Timers::new(s(0), Some(Duration::from_nanos(1)));
        assert_eq!(run(&mut { short }, s(3)).len(), 3, "it ends");
    }
}
