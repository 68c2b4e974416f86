//! Where a peer is (§2.1), and whether it is in two places at once.
//!
//! Any authentic message moves a peer to where it came from; a cookie reply never does, because it
//! is not authenticated by the peer's private key. One configuration on two devices makes a peer
//! come back and back to addresses that it has left: both are slow, and their users do not see why.
//! [`Roaming`] notices that.
//!
//! A phone that changes between Wi-Fi and a mobile network comes back, too, and takes its keys with
//! it; two devices have their own keys. So a return counts only if it comes with other keys than
//! the last message, and a move with the same keys shows that there is one device.

use core::time::Duration;

use vpnd_proto::plane::Endpoint;
use vpnd_proto::time::Time;
use vpnd_proto::wire::Index;

/// Returns within [`WINDOW`] that no single device makes: it makes new keys every two minutes.
const RETURNS: u8 = 3;
const WINDOW: Duration = Duration::from_secs(200);
/// Time between two reports of the same peer.
const QUIET: Duration = Duration::from_secs(600);

/// A move of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// It is where it was.
    No,
    /// It is somewhere else.
    Yes,
    /// It went back once more to where it had been: two devices have the same key.
    BackAndForth,
}

/// A peer's address and its moves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Roaming {
    current: Option<Endpoint>,
    previous: Option<Endpoint>,
    /// The session of the last message.
    keys: Option<Index>,
    /// Returns, counted from the first of them.
    returns: u8,
    counted_from: Time,
    reported_at: Option<Time>,
}

impl Roaming {
    /// A peer that is at `endpoint`, if that is known.
    #[must_use]
    pub fn new(endpoint: Option<Endpoint>) -> Self {
        Self { current: endpoint, ..Self::default() }
    }

    /// Where the peer is.
    #[must_use]
    pub const fn endpoint(&self) -> Option<Endpoint> {
        self.current
    }

    /// Where it was before.
    #[must_use]
    pub const fn previous(&self) -> Option<Endpoint> {
        self.previous
    }

    /// An authentic message came from `from`, sealed with the keys of the session `keys` or to make
    /// them.
    pub fn on_message(&mut self, now: Time, from: Endpoint, keys: Index) -> Moved {
        let has_same_keys = self.keys.replace(keys) == Some(keys);
        if self.current == Some(from) {
            return Moved::No;
        }
        if has_same_keys {
            self.returns = 0;
        }
        let returned = self.previous.is_some_and(|previous| previous.remote == from.remote);
        self.previous = self.current.replace(from);
        if !returned || has_same_keys {
            return Moved::Yes;
        }
        if self.returns == 0 || now.since(self.counted_from) > WINDOW {
            (self.returns, self.counted_from) = (0, now);
        }
        self.returns = self.returns.saturating_add(1);
        if self.returns < RETURNS || self.reported_at.is_some_and(|at| now.since(at) < QUIET) {
            return Moved::Yes;
        }
        (self.returns, self.reported_at) = (0, Some(now));
        Moved::BackAndForth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> Endpoint {
        Endpoint { remote: ([192, 0, 2, 1], port).into(), local: None }
    }

    const fn s(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    /// Moves to and fro, each this many seconds after the one before, with these keys.
    fn to_and_fro(count: u32, seconds: u64, keys: impl Fn(u32) -> u32) -> Vec<Moved> {
        let mut roaming = Roaming::new(None);
        let message = |turn: u32| {
            let now = s(u64::from(turn) * seconds);
            roaming.on_message(now, at(1 + turn as u16 % 2), Index(keys(turn)))
        };
        (0..count).map(message).collect()
    }

    #[test]
    fn one_configuration_on_two_devices_is_noticed_once() {
        // Each makes new keys when it gets no answers any more.
        let moves = to_and_fro(40, 15, |turn| turn);
        assert_eq!(moves[..2], [Moved::Yes, Moved::Yes]);
        assert_eq!(moves.iter().filter(|moved| **moved == Moved::BackAndForth).count(), 1);
        assert_eq!(moves.iter().position(|moved| *moved == Moved::BackAndForth), Some(4), "within 60 s");
        // Each sends with the keys that it has.
        let moves = to_and_fro(40, 1, |turn| turn % 2);
        assert_eq!(moves.iter().filter(|moved| **moved == Moved::BackAndForth).count(), 1);
        let moves = to_and_fro(80, 15, |turn| turn);
        assert_eq!(moves.iter().filter(|moved| **moved == Moved::BackAndForth).count(), 2, "it goes on");
    }

    #[test]
    fn a_roaming_device_is_not_reported() {
        let mut roaming = Roaming::new(Some(at(1)));
        assert_eq!(roaming.on_message(s(0), at(1), Index(1)), Moved::No);
        // New ports of a NAT, one after the other.
        let mut moved = |port: u16| roaming.on_message(s(u64::from(port)), at(port), Index(port.into()));
        assert!((2..100).all(|port| moved(port) == Moved::Yes));
        // Between Wi-Fi and a mobile network every second, with new keys every two minutes.
        assert!(to_and_fro(1_000, 1, |turn| turn / 120).into_iter().all(|moved| moved == Moved::Yes));
        // Between two networks, with new keys in each because nothing was sent for long.
        assert!(to_and_fro(100, 125, |turn| turn).into_iter().all(|moved| moved == Moved::Yes));
        // New keys in one of them, because it was out of reach.
        assert!(to_and_fro(100, 20, |turn| turn / 2).into_iter().all(|moved| moved == Moved::Yes));
    }
}
