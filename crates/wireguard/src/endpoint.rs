//! Where a peer is (§2.1), and whether it is in two places at once.
//!
//! Any authentic message moves a peer to where it came from; a cookie reply never does, because it
//! is not authenticated by the peer's private key. One configuration on two devices makes a peer
//! come back and back to addresses that it has left: both are slow, and their users do not see why.
//! [`Roaming`] notices that.

use core::time::Duration;

use vpnd_proto::plane::Endpoint;
use vpnd_proto::time::Time;

/// Returns within [`WINDOW`] that no single device makes.
const RETURNS: u8 = 4;
const WINDOW: Duration = Duration::from_secs(120);
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

    /// An authentic message came from `from`.
    pub fn on_message(&mut self, now: Time, from: Endpoint) -> Moved {
        if self.current == Some(from) {
            return Moved::No;
        }
        let returned = self.previous.is_some_and(|previous| previous.remote == from.remote);
        self.previous = self.current.replace(from);
        if !returned {
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

    #[test]
    fn one_configuration_on_two_devices_is_noticed_once() {
        let mut roaming = Roaming::new(None);
        let moves: Vec<_> =
            (0..40).map(|turn| roaming.on_message(s(turn * 15), at(1 + turn as u16 % 2))).collect();
        assert_eq!(moves[..2], [Moved::Yes, Moved::Yes]);
        assert_eq!(moves.iter().filter(|moved| **moved == Moved::BackAndForth).count(), 1);
        assert_eq!(moves.iter().position(|moved| *moved == Moved::BackAndForth), Some(5), "within 75 s");
        assert_eq!(roaming.on_message(s(700), at(1)), Moved::Yes);
        let later: Vec<_> =
            (0..8).map(|turn| roaming.on_message(s(701 + turn), at(2 - turn as u16 % 2))).collect();
        assert!(later.contains(&Moved::BackAndForth), "it goes on, and is said again after ten minutes");
    }

    #[test]
    fn a_device_that_moves_is_none_of_that() {
        let mut roaming = Roaming::new(Some(at(1)));
        assert_eq!(roaming.on_message(s(0), at(1)), Moved::No);
        // New ports of a NAT, one after the other.
        assert!((2..100).all(|port| roaming.on_message(s(u64::from(port)), at(port)) == Moved::Yes));
        // Between two networks now and then.
        let moves = (0..100).map(|turn| roaming.on_message(s(1_000 + turn * 60), at(1 + turn as u16 % 2)));
        assert!(moves.into_iter().all(|moved| moved == Moved::Yes));
    }
}
