//! Rates of hosts and of the networks that they are in, for one kind of event.
//!
//! INVARIANT: memory is fixed. A refused event counts for no source.

use std::hash::{DefaultHasher, Hasher as _};

use super::sketch::{Cells, Rate, Sketch};
use super::source::{LEVELS, Source};
use super::{BURST_S, WIDER, take};
use crate::time::Time;

/// The events of a host each second, [`BURST_S`] times as many at once; more of site and provider.
#[derive(Debug)]
pub struct NetworkRates {
    secret: DefaultHasher,
    sketches: [Sketch; LEVELS],
}

impl NetworkRates {
    /// `secret` is random, so that no attacker knows which sources share a cell of a table.
    #[must_use]
    pub fn new(per_s: u64, secret: [u8; 16]) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(&secret);
        Self { secret: hasher, sketches: ladder(per_s) }
    }

    /// Takes one of this source, if there is one.
    pub fn take(&mut self, now: Time, source: Source) -> bool {
        take(&mut self.sketches, &cells(&self.secret, source), now)
    }
}

/// The sketches of the provider, the site and the host.
pub(super) fn ladder(per_s: u64) -> [Sketch; LEVELS] {
    WIDER.map(|wider| {
        let per_s = per_s.saturating_mul(wider);
        Sketch::new(Rate { per_s, burst: per_s.saturating_mul(BURST_S) })
    })
}

pub(super) fn cells(secret: &DefaultHasher, source: Source) -> [Cells; LEVELS] {
    source.networks().map(|network| {
        let mut hasher = secret.clone();
        hasher.write_u64(network.prefix);
        hasher.write_u32(network.length);
        hasher.write_u8(u8::from(network.v6));
        Cells::from_hash(hasher.finish())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    #[test]
    fn a_network_uses_up_its_own_rate_alone() {
        let mut rates = NetworkRates::new(10, [7; 16]);
        let source =
            |number: u32| Source::from(std::net::IpAddr::from(std::net::Ipv4Addr::from_bits(number)));
        let taken = |rates: &mut NetworkRates, now, from: &dyn Fn(u32) -> u32| {
            (0..10_000).filter(|n| rates.take(now, source(from(*n)))).count()
        };
        assert_eq!(taken(&mut rates, Time::ZERO, &|_| 0x0A00_0001), 60);
        assert_eq!(taken(&mut rates, Time::ZERO, &|n| 0x0B00_0000 + n), 480, "a provider's");
        assert!(rates.take(Time::ZERO, source(0x1400_0001)));
        let later = Time::ZERO + Duration::from_secs(1);
        assert_eq!(taken(&mut rates, later, &|_| 0x0A00_0001), 10);
    }
}
