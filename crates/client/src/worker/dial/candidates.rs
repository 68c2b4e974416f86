//! The order in which the gateway's addresses are tried, as far as gateways that are being drained
//! matter (PROTOCOL §5.2).
//!
//! Has neither sockets nor a clock.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;
use vpnd_proto::client::Purpose;

/// Time for which an address is tried last after its gateway has said that it is being drained.
/// That is said again sooner.
const DRAINED_FOR: Duration = Duration::from_secs(60);
/// Addresses remembered; a profile has fewer.
const MAX_DRAINED: usize = 64;

/// Addresses of gateways that are being drained.
#[derive(Debug, Default)]
pub(super) struct Drained(HashMap<SocketAddr, Instant>);

impl Drained {
    /// Notes an address; whether it is news.
    pub(super) fn add(&mut self, address: SocketAddr, now: Instant) -> bool {
        self.0.retain(|_, since| now - *since < DRAINED_FOR);
        let room = self.0.len() < MAX_DRAINED;
        let news = !self.0.contains_key(&address);
        if room || !news {
            self.0.insert(address, now);
        }
        news
    }

    fn contains(&self, address: &SocketAddr, now: Instant) -> bool {
        self.0.get(address).is_some_and(|since| now - *since < DRAINED_FOR)
    }

    /// The addresses to try of `known`, in order. `current` is the one of the connection that there
    /// is.
    pub(super) fn order(
        &self,
        known: &[SocketAddr],
        purpose: &Purpose,
        current: Option<SocketAddr>,
        now: Instant,
    ) -> Vec<SocketAddr> {
        let (drained, others): (Vec<_>, Vec<_>) =
            known.iter().copied().partition(|address| self.contains(address, now));
        match (purpose, current) {
            // It leads away from the one that is connected.
            (Purpose::Move, current) => {
                others.into_iter().filter(|address| Some(*address) != current).collect()
            }
            // The gateway that has the session goes on with it at once; another one of its fleet moves it.
            (Purpose::Attach { .. }, Some(current)) => {
                let rest = others.into_iter().chain(drained).filter(|address| *address != current);
                std::iter::once(current).chain(rest).collect()
            }
            _ => others.into_iter().chain(drained).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use vpnd_proto::attach::Token;
    use vpnd_proto::session::SessionId;

    use super::*;

    fn addresses() -> [SocketAddr; 3] {
        [1, 2, 3].map(|last| SocketAddr::from(([192, 0, 2, last], 4433)))
    }

    #[test]
    fn drained_gateways_come_last_and_a_move_leads_elsewhere() {
        let ([a, b, c], now) = (addresses(), Instant::now());
        let known = [a, b, c];
        let attach = Purpose::Attach { session: SessionId([1; 16]), token: Token::from_bytes([1; 32]) };
        let mut drained = Drained::default();
        assert_eq!(drained.order(&known, &Purpose::Login, None, now), known);
        assert!(drained.add(a, now) && !drained.add(a, now), "once");
        assert_eq!(drained.order(&known, &Purpose::Login, None, now), [b, c, a]);
        assert_eq!(drained.order(&known, &attach, None, now), [b, c, a]);
        assert_eq!(drained.order(&known, &attach, Some(a), now), [a, b, c], "the session is there");
        assert_eq!(drained.order(&known, &Purpose::Move, Some(a), now), [b, c]);
        assert_eq!(drained.order(&known, &Purpose::Move, Some(b), now), [c]);
        assert!(drained.order(&[a], &Purpose::Move, Some(a), now).is_empty());
        assert_eq!(drained.order(&[a], &Purpose::Login, None, now), [a], "better than nothing");
        let later = now + DRAINED_FOR;
        assert_eq!(drained.order(&known, &Purpose::Login, None, later), known, "it is forgotten");
    }
}
