//! One lane: the key, the counter and the replay window of one sender in one epoch (PROTOCOL §7).
//!
//! INVARIANT: a [`SendLane`] is the only owner of its key, and its counter only grows, so no nonce
//! is used twice. A lane is never copied; a new epoch makes new lanes. A lane that moves to another
//! process begins there where it ended.

use vpnd_crypto::{Limits, OpenKey, SealKey, Suite};

use crate::replay::ReplayWindow;
use crate::time::Time;
use crate::wire::{HEADER_LEN, Header, Index};

/// The error of a lane that does not seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealRefused {
    /// The epoch is too old, or its counter is used up (PROTOCOL §11).
    #[error("the key is used up")]
    Exhausted,
    /// The buffer has no room for what the suite adds.
    #[error("the buffer is too short")]
    NoRoom,
}

/// The sending half of a lane.
#[derive(Debug)]
pub struct SendLane {
    key: SealKey,
    suite: Suite,
    lane: u8,
    peer_index: Index,
    counter: u64,
    limits: Limits,
    reject_at: Time,
}

impl SendLane {
    /// A lane that starts at counter 0 and refuses to seal from `reject_at` on.
    #[must_use]
    pub fn new(key: SealKey, suite: Suite, lane: u8, peer_index: Index, reject_at: Time) -> Self {
        Self { key, suite, lane, peer_index, counter: 0, limits: suite.limits(), reject_at }
    }

    /// Goes on where another process has ended, which seals no more: at `counter`, not below.
    pub fn resume_at(&mut self, counter: u64) {
        self.counter = self.counter.max(counter);
    }

    /// The counter that the next datagram gets.
    #[must_use]
    pub const fn counter(&self) -> u64 {
        self.counter
    }

    /// Length of the datagram that `plaintext_len` bytes make.
    #[inline]
    #[must_use]
    pub fn datagram_len(&self, plaintext_len: usize) -> usize {
        HEADER_LEN + self.suite.sealed_len(plaintext_len)
    }

    /// Seals the `plaintext_len` bytes that stand at [`HEADER_LEN`] in `datagram` and writes the
    /// header before them, with `confirm` in it ([`Header::confirm`]). Returns the length.
    ///
    /// # Errors
    /// If the key may not be used any more, or the buffer has no room behind the plaintext for the
    /// suite's overhead.
    #[inline]
    pub fn seal(
        &mut self,
        now: Time,
        datagram: &mut [u8],
        plaintext_len: usize,
        confirm: bool,
    ) -> Result<usize, SealRefused> {
        if !self.usable(now) {
            return Err(SealRefused::Exhausted);
        }
        let (head, body) = datagram.split_at_mut_checked(HEADER_LEN).ok_or(SealRefused::NoRoom)?;
        let header = Header { lane: self.lane, confirm, index: self.peer_index, counter: self.counter };
        head.copy_from_slice(&header.to_bytes());
        let sealed = self
            .key
            .seal_in_place(self.counter, head, body, plaintext_len)
            .map_err(|_| SealRefused::NoRoom)?;
        self.counter += 1;
        Ok(HEADER_LEN + sealed)
    }

    /// True while the lane may seal.
    #[inline]
    #[must_use]
    pub fn usable(&self, now: Time) -> bool {
        now < self.reject_at && self.counter < self.limits.refuse_after
    }

    /// True once the epoch should be replaced because of what was sent.
    #[inline]
    #[must_use]
    pub fn rekey_due(&self) -> bool {
        self.counter >= self.limits.rekey_after
    }
}

/// The error of a datagram that is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenRefused {
    /// Its counter was accepted before or is too old to tell.
    #[error("a replay")]
    Replayed,
    /// It is not what the peer sealed.
    #[error("not authentic")]
    NotAuthentic,
}

/// An opened datagram.
#[derive(Debug, PartialEq, Eq)]
pub struct Authentic {
    /// Bytes of plaintext, which stand at [`HEADER_LEN`].
    pub len: usize,
    /// True if no datagram of this lane with a higher counter was accepted before.
    pub newest: bool,
}

/// The receiving half of a lane.
#[derive(Debug)]
pub struct ReceiveLane {
    key: OpenKey,
    window: ReplayWindow,
    limits: Limits,
    failed_opens: u64,
}

impl ReceiveLane {
    /// A lane that has received nothing yet.
    #[must_use]
    pub fn new(key: OpenKey, limits: Limits) -> Self {
        Self { key, window: ReplayWindow::new(), limits, failed_opens: 0 }
    }

    /// Goes on where another process has ended: what that may have accepted is not accepted again.
    pub fn resume_after(&mut self, highest: Option<u64>, failed_opens: u64) {
        self.window = ReplayWindow::closed_up_to(highest);
        self.failed_opens = failed_opens;
    }

    /// The highest counter accepted, and how many datagrams were not authentic.
    #[must_use]
    pub const fn progress(&self) -> (Option<u64>, u64) {
        (self.window.highest(), self.failed_opens)
    }

    /// Opens `datagram`, whose header is `header`, in place (PROTOCOL §7.2, steps 3 to 5).
    ///
    /// # Errors
    /// If the datagram is a replay or not authentic; nothing but the count of failures changes
    /// then.
    #[inline]
    pub fn open(&mut self, header: Header, datagram: &mut [u8]) -> Result<Authentic, OpenRefused> {
        if !self.window.check(header.counter) {
            return Err(OpenRefused::Replayed);
        }
        let (head, body) = datagram.split_at_mut_checked(HEADER_LEN).ok_or(OpenRefused::NotAuthentic)?;
        let len = match self.key.open_in_place(header.counter, head, body) {
            Ok(plaintext) => plaintext.len(),
            Err(_) => {
                self.failed_opens += 1;
                return Err(OpenRefused::NotAuthentic);
            }
        };
        let newest = self.window.is_newest(header.counter);
        if !self.window.commit(header.counter) {
            return Err(OpenRefused::Replayed);
        }
        Ok(Authentic { len, newest })
    }

    /// True once the key must be erased because of the number of forgeries.
    #[must_use]
    pub fn exhausted(&self) -> bool {
        self.failed_opens >= self.limits.max_failed_opens
    }

    /// True once the peer sent so much that the epoch should be replaced.
    #[inline]
    #[must_use]
    pub fn rekey_due(&self) -> bool {
        self.window.highest().is_some_and(|highest| highest >= self.limits.rekey_after)
    }
}

#[cfg(test)]
mod tests {
    use vpnd_crypto::{Backend, Direction, EpochSecret};

    use super::*;

    const SUITE: Suite = Suite::Aes128Gcm;
    const EARLY: Time = Time::from_nanos(1);
    const END: Time = Time::from_nanos(180_000_000_000);

    fn lane() -> (SendLane, ReceiveLane) {
        let key = || EpochSecret::new([3; 32]).lane_key(SUITE, Direction::ToGateway, 0);
        let seal = SealKey::new(SUITE, Backend::Ring, &key(), None).expect("a suite that ring has");
        let open = OpenKey::new(SUITE, Backend::Ring, &key(), None).expect("a suite that ring has");
        (SendLane::new(seal, SUITE, 0, Index(9), END), ReceiveLane::new(open, SUITE.limits()))
    }

    fn seal(lane: &mut SendLane, now: Time) -> Result<Vec<u8>, SealRefused> {
        let mut datagram = vec![0; HEADER_LEN + 8 + 16];
        lane.seal(now, &mut datagram, 8, false)?;
        Ok(datagram)
    }

    fn open(lane: &mut ReceiveLane, mut datagram: Vec<u8>) -> Result<Authentic, OpenRefused> {
        let header = Header::parse(&datagram).expect("it was sealed");
        lane.open(header, &mut datagram)
    }

    #[test]
    fn a_key_asks_for_its_successor_and_ends_by_its_counter() {
        let (mut sender, mut receiver) = lane();
        let limits = SUITE.limits();
        sender.counter = limits.rekey_after - 1;
        assert!(!sender.rekey_due());
        let last = seal(&mut sender, EARLY).expect("the key is young");
        assert!(sender.rekey_due());
        assert_eq!(open(&mut receiver, last).map(|authentic| authentic.newest), Ok(true));
        assert!(!receiver.rekey_due(), "one more, and the peer has sent so many");
        let one_more = seal(&mut sender, EARLY).expect("asking is not ending");
        assert!(open(&mut receiver, one_more).is_ok() && receiver.rekey_due());

        sender.counter = limits.refuse_after - 1;
        assert!(sender.usable(EARLY) && seal(&mut sender, EARLY).is_ok());
        assert!(!sender.usable(EARLY), "whoever asks first must not count on it");
        assert_eq!(seal(&mut sender, EARLY), Err(SealRefused::Exhausted));
    }

    #[test]
    fn a_key_ends_by_its_time() {
        let (mut sender, _) = lane();
        assert!(seal(&mut sender, Time::from_nanos(179_999_999_999)).is_ok());
        assert_eq!(seal(&mut sender, END), Err(SealRefused::Exhausted));
    }

    #[test]
    fn forgeries_use_a_key_up_and_authentic_datagrams_do_not() {
        let (mut sender, mut receiver) = lane();
        receiver.failed_opens = SUITE.limits().max_failed_opens - 1;
        assert!(open(&mut receiver, seal(&mut sender, EARLY).expect("a new key")).is_ok());
        assert!(!receiver.exhausted());
        let mut forged = seal(&mut sender, EARLY).expect("a new key");
        forged[HEADER_LEN] ^= 1;
        assert_eq!(open(&mut receiver, forged), Err(OpenRefused::NotAuthentic));
        assert!(receiver.exhausted());
    }
}
