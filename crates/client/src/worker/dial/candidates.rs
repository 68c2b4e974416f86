//! The order in which the gateways' addresses are tried: by weights (PROTOCOL §5.3), and as far as
//! gateways that are being drained matter (§5.2).
//!
//! Has neither sockets nor a clock.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::time::Instant;
use vpnd_proto::client::Purpose;

use vpnd_config::profile::ServerAddress;

/// Time for which an address is tried last after its gateway has said that it is being drained.
/// The gateway repeats that sooner.
const DRAINED_FOR: Duration = Duration::from_secs(60);
/// Addresses remembered; a profile has fewer.
const MAX_DRAINED: usize = 64;

/// The weights of addresses, as the gateway has given them last.
#[derive(Debug, Default)]
pub(super) struct Weights {
    given: Vec<(ServerAddress, u32)>,
    /// The addresses of names.
    found: HashMap<SocketAddr, ServerAddress>,
}

impl Weights {
    pub(super) fn new(given: Vec<(ServerAddress, u32)>) -> Self {
        Self { given, found: HashMap::new() }
    }

    /// Takes others in place of those before.
    pub(super) fn replace(&mut self, given: Vec<(ServerAddress, u32)>) {
        self.given = given;
    }

    /// The name of this server has these addresses.
    pub(super) fn found(&mut self, server: &ServerAddress, addresses: &[SocketAddr]) {
        self.found.retain(|_, known| known != server);
        self.found.extend(addresses.iter().map(|address| (*address, server.clone())));
    }

    fn of(&self, address: &SocketAddr) -> Option<u32> {
        let named = self.found.get(address);
        let is_it = |server: &ServerAddress| named == Some(server) || server.literal() == Some(*address);
        self.given.iter().find(|(server, _)| is_it(server)).map(|(_, weight)| *weight)
    }

    /// Draws their order by weight; `draw` gives numbers from 0 to 1. Each host is tried at one
    /// port before any is tried at another. Those without weights come next, as they stand, and
    /// those of weight 0 last.
    pub(super) fn order(&self, addresses: Vec<SocketAddr>, mut draw: impl FnMut() -> f64) -> Vec<SocketAddr> {
        let mut hosts: HashMap<IpAddr, (u32, f64)> = HashMap::new();
        let mut place = |address: &SocketAddr| match self.of(address) {
            Some(0) => (2, 0, 0.0),
            Some(weight) => {
                // The first of several waits of exponential lengths is each one with its share of
                // the rates.
                let mut wait = || -(1.0 - draw()).max(f64::MIN_POSITIVE).ln();
                let (ports, wait) = hosts.entry(address.ip()).or_insert_with(|| (0, wait()));
                *ports += 1;
                (0, *ports, *wait / f64::from(weight))
            }
            None => (1, 0, 0.0),
        };
        let mut places: Vec<_> = addresses.into_iter().map(|address| (place(&address), address)).collect();
        places.sort_by(|((class, port, wait), _), ((other_class, other_port, other), _)| {
            (class, port).cmp(&(other_class, other_port)).then(wait.total_cmp(other))
        });
        places.into_iter().map(|(_, address)| address).collect()
    }
}

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

    /// The addresses to try of `known`, of which the first has answered last, in order. `current`
    /// is the one of the connection that there is.
    pub(super) fn order(
        &self,
        known: &[SocketAddr],
        purpose: &Purpose,
        current: Option<SocketAddr>,
        now: Instant,
        by_weight: impl FnOnce(Vec<SocketAddr>) -> Vec<SocketAddr>,
    ) -> Vec<SocketAddr> {
        let is_drained = |address: &SocketAddr| self.contains(address, now);
        // The gateway that has the session goes on with it at once; another one of its fleet moves
        // it.
        let first = match purpose {
            Purpose::Attach { .. } => {
                current.or_else(|| known.first().copied().filter(|first| !is_drained(first)))
            }
            Purpose::Login | Purpose::Move | Purpose::Transfer { .. } => None,
        };
        let leads_elsewhere = purpose.leads_elsewhere();
        let rest = known
            .iter()
            .copied()
            .filter(|address| Some(*address) != first && !(leads_elsewhere && Some(*address) == current));
        let (drained, others): (Vec<_>, Vec<_>) = rest.partition(is_drained);
        let drained = if leads_elsewhere { Vec::new() } else { drained };
        first.into_iter().chain(by_weight(others)).chain(drained).collect()
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

    fn attach() -> Purpose {
        Purpose::Attach { session: SessionId([1; 16]), token: Token::from_bytes([1; 32]) }
    }

    #[test]
    fn drained_gateways_are_tried_last_and_a_move_excludes_its_own() {
        let ([a, b, c], now) = (addresses(), Instant::now());
        let known = [a, b, c];
        let mut drained = Drained::default();
        let order = |drained: &Drained, known: &[SocketAddr], purpose: &Purpose, current| {
            drained.order(known, purpose, current, now, |others| others)
        };
        assert_eq!(order(&drained, &known, &Purpose::Login, None), known);
        assert!(drained.add(a, now) && !drained.add(a, now), "once");
        assert_eq!(order(&drained, &known, &Purpose::Login, None), [b, c, a]);
        assert_eq!(order(&drained, &known, &attach(), None), [b, c, a]);
        assert_eq!(order(&drained, &known, &attach(), Some(a)), [a, b, c], "the session is there");
        assert_eq!(order(&drained, &known, &Purpose::Move, Some(a)), [b, c]);
        assert_eq!(order(&drained, &known, &Purpose::Move, Some(b)), [c]);
        let transfer = Purpose::Transfer { session: SessionId([1; 16]), token: Token::from_bytes([1; 32]) };
        assert_eq!(order(&drained, &known, &transfer, Some(b)), [c]);
        assert!(order(&drained, &[a], &Purpose::Move, Some(a)).is_empty());
        assert_eq!(order(&drained, &[a], &Purpose::Login, None), [a], "better than nothing");
        let later = drained.order(&known, &Purpose::Login, None, now + DRAINED_FOR, |others| others);
        assert_eq!(later, known, "it is forgotten");
    }

    fn weights(given: &[(&str, u32)]) -> Weights {
        Weights::new(given.iter().map(|(text, weight)| (text.parse().unwrap(), *weight)).collect())
    }

    /// How often each address came first of this many times, in draws that are spread evenly.
    fn firsts(weights: &Weights, addresses: &[SocketAddr], times: u32) -> Vec<u32> {
        let mut counts = vec![0; addresses.len()];
        let mut state = 0_u64;
        let mut draw = || {
            // The increments of a Weyl sequence, mixed: the same at each run.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            f64::from((mixed >> 40) as u32) / f64::from(1 << 24)
        };
        for _ in 0..times {
            let first = weights.order(addresses.to_vec(), &mut draw)[0];
            counts[addresses.iter().position(|address| *address == first).unwrap()] += 1;
        }
        counts
    }

    #[test]
    fn gateways_are_tried_first_in_proportion_to_their_weights() {
        let [a, b, c] = addresses();
        let given = weights(&[("192.0.2.1:4433", 90), ("192.0.2.2", 30), ("192.0.2.3:4433", 0)]);
        let counts = firsts(&given, &[a, b, c], 4_000);
        assert!((2_800..3_200).contains(&counts[0]) && counts[0] + counts[1] == 4_000, "{counts:?}");
        // The largest one drowns the others out, and nothing else comes of it.
        let counts = firsts(&weights(&[("192.0.2.1", u32::MAX), ("192.0.2.2", 1)]), &[b, a], 1_000);
        assert_eq!(counts, [0, 1_000]);
    }

    #[test]
    fn another_port_of_a_host_waits_until_each_host_was_tried() {
        let at = |last: u8, port| SocketAddr::from(([192, 0, 2, last], port));
        let given = weights(&[
            ("192.0.2.1:4433", 1),
            ("192.0.2.2:4433", 99),
            ("192.0.2.1:443", 1),
            ("192.0.2.2:443", 99),
        ]);
        let listed = vec![at(1, 4433), at(2, 4433), at(1, 443), at(2, 443)];
        assert_eq!(given.order(listed, || 0.5), [at(2, 4433), at(1, 4433), at(2, 443), at(1, 443)]);
        let answered = vec![at(1, 443), at(1, 4433), at(2, 4433), at(2, 443)];
        assert_eq!(given.order(answered, || 0.5), [at(2, 4433), at(1, 443), at(2, 443), at(1, 4433)]);
    }

    #[test]
    fn full_gateways_are_tried_last_and_unweighted_order_is_kept() {
        let [a, b, c] = addresses();
        for extreme in [0.0, 0.5, 1.0 - f64::EPSILON, 1.0, f64::NAN, 7.0] {
            let order = |weights: &Weights, list: &[SocketAddr]| weights.order(list.to_vec(), || extreme);
            assert_eq!(order(&Weights::default(), &[c, a, b]), [c, a, b]);
            assert_eq!(order(&weights(&[("192.0.2.3", 0), ("192.0.2.2", 5)]), &[c, a, b]), [b, a, c]);
            let none = weights(&[("192.0.2.1", 0), ("192.0.2.2", 0), ("192.0.2.3", 0)]);
            assert_eq!(order(&none, &[c, a, b]), [c, a, b], "better than nothing");
            assert_eq!(order(&weights(&[("192.0.2.1:1", 9)]), &[c, a, b]), [c, a, b], "another port");
        }
    }

    #[test]
    fn addresses_of_a_name_have_its_weight() {
        let [a, b, c] = addresses();
        let mut given = weights(&[("gw1.example.org", 0), ("gw2.example.org", 10)]);
        let order = |weights: &Weights| weights.order(vec![a, b, c], || 0.5);
        assert_eq!(order(&given), [a, b, c], "none was looked up");
        given.found(&"gw1.example.org".parse().unwrap(), &[a, b]);
        given.found(&"gw2.example.org".parse().unwrap(), &[c]);
        assert_eq!(order(&given), [c, a, b]);
        given.found(&"gw1.example.org".parse().unwrap(), &[b]);
        assert_eq!(order(&given), [c, a, b], "the first one is another's now");
        given.replace(Vec::new());
        assert_eq!(order(&given), [a, b, c]);
    }

    #[test]
    fn a_login_follows_weights_and_an_attach_its_session() {
        let ([a, b, c], now) = (addresses(), Instant::now());
        let (known, drained) = ([a, b, c], Drained::default());
        let given = weights(&[("192.0.2.1", 0), ("192.0.2.2", 0), ("192.0.2.3", 5)]);
        let order = |purpose: &Purpose, current| {
            drained.order(&known, purpose, current, now, |others| given.order(others, || 0.5))
        };
        assert_eq!(order(&Purpose::Login, None), [c, a, b]);
        assert_eq!(order(&attach(), None), [a, c, b], "it has answered last");
        assert_eq!(order(&attach(), Some(b)), [b, c, a]);
        assert_eq!(order(&Purpose::Move, Some(a)), [c, b]);
    }
}
