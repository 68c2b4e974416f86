//! The part of a session that both ends share: its names, its timers, and the choice of a suite.
//!
//! A session outlives its connections and keys; what is replaced with them is elsewhere.

use core::time::Duration;

use minicbor::decode::{self, Decode, Decoder};
use minicbor::encode::{self, Encode, Encoder, Write};
use vpnd_crypto::{Backend, Suite};

use crate::control::{SuiteSpeed, TimersMs};
use crate::time::Time;
use crate::wire::Index;

/// Bytes of a session's and of a device's name.
const NAME_LEN: usize = 16;

/// Where random bytes come from: the system in the daemon, a seed in the simulation.
pub type Random = Box<dyn FnMut(&mut [u8]) + Send>;

/// `N` bytes from `random`.
#[must_use]
pub fn random_bytes<const N: usize>(random: &mut Random) -> [u8; N] {
    let mut bytes = [0; N];
    random(&mut bytes);
    bytes
}

macro_rules! sixteen_bytes {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; NAME_LEN]);

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl<C> Encode<C> for $name {
            fn encode<W: Write>(&self, e: &mut Encoder<W>, _: &mut C) -> Result<(), encode::Error<W::Error>> {
                e.bytes(&self.0)?.ok()
            }
        }

        impl<'b, C> Decode<'b, C> for $name {
            fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
                let at = d.position();
                let bytes = d.bytes()?.try_into();
                bytes.map(Self).map_err(|_| decode::Error::message("wanted are 16 bytes").at(at))
            }
        }
    };
}

sixteen_bytes! {
    /// The name of a session: random, so that gateways need not agree on it.
    SessionId
}
sixteen_bytes! {
    /// The name of a device, which is that of its key ([`crate::device`]).
    DeviceId
}

/// A control connection, numbered by its owner; a number is not used twice in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A suite that this host may use, and how fast it is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalSuite {
    /// The suite.
    pub suite: Suite,
    /// The implementation that is fastest on this host.
    pub backend: Backend,
    /// Its measured speed in MB/s.
    pub mbps: u32,
}

/// The suite whose slower end is fastest (PROTOCOL §3.3), of those that both ends accept. Of
/// equals, the first of `local` wins. Suites of the laboratory are chosen only if `lab` says that
/// both ends were started for it.
#[must_use]
pub fn choose_suite(local: &[LocalSuite], offered: &[SuiteSpeed], lab: bool) -> Option<LocalSuite> {
    let mut best: Option<(u32, LocalSuite)> = None;
    for candidate in local.iter().filter(|candidate| lab || !candidate.suite.is_lab_only()) {
        let Some(offer) = offered.iter().find(|offer| offer.suite == candidate.suite.id()) else { continue };
        let slower = offer.mbps.min(candidate.mbps);
        if best.is_none_or(|(speed, _)| slower > speed) {
            best = Some((slower, *candidate));
        }
    }
    best.map(|(_, suite)| suite)
}

/// A random index whose owner is `shard` of `shards` (PROTOCOL §7.1) and that is not `taken`.
#[must_use]
pub fn random_index(
    random: &mut Random,
    shard: usize,
    shards: usize,
    taken: impl Fn(Index) -> bool,
) -> Index {
    debug_assert!(shard < shards && shards <= 256, "an index names its shard in its low byte");
    let [low, high @ ..] = random_bytes::<4>(random);
    let choices = (256 - shard).div_ceil(shards);
    let low = shard + shards * (usize::from(low) % choices);
    let mut index = u32::from_le_bytes([low as u8, high[0], high[1], high[2]]);
    // Ends, because far fewer than 2^24 indexes are taken: sessions are limited. The low byte stays
    // as it is.
    while taken(Index(index)) {
        index = index.wrapping_add(0x100);
    }
    Index(index)
}

/// The timers of PROTOCOL §11. Those that the client must know travel in `Established`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// An epoch that carried packets is replaced after this time.
    pub rekey_after: Duration,
    /// Sealing is refused after this time.
    pub reject_after: Duration,
    /// Time for which an epoch opens after its successor carried traffic, or it ceased to seal.
    pub retire_after: Duration,
    /// An epoch is erased this long after `Established` if nothing was heard in it.
    pub confirm_within: Duration,
    /// An empty datagram goes out after this time without sending, while the epoch lives.
    pub keepalive: Duration,
    /// A client probes when packets went out for this long and nothing came back.
    pub silence: Duration,
    /// Time between two probes for life.
    pub probe_interval: Duration,
    /// After this many rounds of probes without any answer a client attaches again.
    pub probe_limit: u32,
    /// A client whose network changed attaches again while it probes; probes end after this time.
    pub roam_within: Duration,
    /// The first wait before reconnecting; it doubles each time.
    pub reconnect_first: Duration,
    /// The longest wait before reconnecting.
    pub reconnect_max: Duration,
    /// A gateway erases the keys of a client that it has not heard for this time.
    pub dead_peer: Duration,
    /// The shortest time between two `Wake` messages to one client.
    pub wake_interval: Duration,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            rekey_after: Duration::from_secs(120),
            reject_after: Duration::from_secs(180),
            retire_after: Duration::from_secs(10),
            confirm_within: Duration::from_secs(15),
            keepalive: Duration::from_secs(25),
            silence: Duration::from_secs(1),
            probe_interval: Duration::from_secs(1),
            probe_limit: 5,
            roam_within: Duration::from_secs(1),
            reconnect_first: Duration::from_millis(500),
            reconnect_max: Duration::from_secs(30),
            dead_peer: Duration::from_secs(90),
            wake_interval: Duration::from_secs(1),
        }
    }
}

impl Timers {
    /// When a gateway erases an epoch that began at `began` and has no successor. Its client counts
    /// from when it received the epoch, up to `confirm_within` later, and may seal for
    /// `reject_after` after that.
    pub(crate) fn gateway_erases(&self, began: Time) -> Time {
        began + self.confirm_within + self.reject_after
    }

    /// The values that the gateway sends its clients: only what differs from the protocol's values.
    #[must_use]
    pub fn to_message(&self) -> TimersMs {
        let differing = |of: fn(&Self) -> Duration| {
            let value = of(self);
            (value != of(&Self::default())).then(|| u32::try_from(value.as_millis()).unwrap_or(u32::MAX))
        };
        TimersMs {
            keepalive: differing(|timers| timers.keepalive),
            rekey_after: differing(|timers| timers.rekey_after),
            reject_after: differing(|timers| timers.reject_after),
        }
    }

    /// These timers with what the gateway prescribes. A gateway cannot make keys live longer than
    /// these say, nor make the client busy: times are kept between a second and the value here (for
    /// keepalives, ten times it).
    #[must_use]
    pub fn prescribed(&self, message: &TimersMs) -> Self {
        let within = |ms: Option<u32>, own: Duration, most: Duration| {
            ms.map_or(own, |ms| {
                Duration::from_millis(ms.into()).clamp(Duration::from_secs(1).min(most), most)
            })
        };
        Self {
            keepalive: within(message.keepalive, self.keepalive, self.keepalive * 10),
            rekey_after: within(message.rekey_after, self.rekey_after, self.rekey_after),
            reject_after: within(message.reject_after, self.reject_after, self.reject_after),
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn local(suite: Suite, mbps: u32) -> LocalSuite {
        LocalSuite { suite, backend: Backend::Ring, mbps }
    }

    fn offered(suite: Suite, mbps: u32) -> SuiteSpeed {
        SuiteSpeed { suite: suite.id(), mbps }
    }

    #[test]
    fn the_slower_end_decides() {
        let gateway = [local(Suite::Aes256Gcm, 8000), local(Suite::ChaCha20Poly1305, 1900)];
        // A client without AES instructions.
        let client = [offered(Suite::ChaCha20Poly1305, 400), offered(Suite::Aes256Gcm, 90)];
        let chosen = choose_suite(&gateway, &client, false).unwrap();
        assert_eq!(chosen.suite, Suite::ChaCha20Poly1305);
        let fast = [offered(Suite::ChaCha20Poly1305, 1900), offered(Suite::Aes256Gcm, 6500)];
        assert_eq!(choose_suite(&gateway, &fast, false).unwrap().suite, Suite::Aes256Gcm);
    }

    #[test]
    fn laboratory_suites_need_both_switches() {
        let gateway = [local(Suite::Null, 90_000), local(Suite::Aes128Gcm, 10)];
        let client = [offered(Suite::Null, 90_000), offered(Suite::Aes128Gcm, 10)];
        assert_eq!(choose_suite(&gateway, &client, false).unwrap().suite, Suite::Aes128Gcm);
        assert_eq!(choose_suite(&gateway, &client, true).unwrap().suite, Suite::Null);
        assert_eq!(choose_suite(&gateway[..1], &client, false), None);
    }

    #[test]
    fn nothing_in_common_is_none() {
        let gateway = [local(Suite::Aes128Gcm, 10)];
        assert_eq!(choose_suite(&gateway, &[SuiteSpeed { suite: 77, mbps: 1 }], true), None);
        assert_eq!(choose_suite(&gateway, &[], true), None);
    }

    #[test]
    fn indexes_belong_to_their_shard_and_are_not_taken() {
        let mut state = 1u64;
        let mut random: Random = Box::new(move |bytes| {
            for byte in bytes {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (state >> 56) as u8;
            }
        });
        for shards in [1, 2, 3, 7, 16, 64] {
            for shard in 0..shards {
                let index = random_index(&mut random, shard, shards, |_| false);
                assert_eq!(index.shard(shards), shard);
            }
        }
        let mut constant: Random = Box::new(|bytes| bytes.fill(0xFF));
        let mut taken = BTreeSet::new();
        for _ in 0..100 {
            let index = random_index(&mut constant, 2, 3, |index| taken.contains(&index));
            assert_eq!(index.shard(3), 2);
            assert!(taken.insert(index));
        }
    }

    #[test]
    fn prescribed_timers_cannot_lengthen_the_life_of_keys() {
        let own = Timers::default();
        assert_eq!(own.to_message(), TimersMs::default());
        let greedy =
            TimersMs { keepalive: Some(0), rekey_after: Some(u32::MAX), reject_after: Some(u32::MAX) };
        let got = own.prescribed(&greedy);
        assert_eq!((got.rekey_after, got.reject_after), (own.rekey_after, own.reject_after));
        assert_eq!(got.keepalive, Duration::from_secs(1));
        let short =
            Timers { rekey_after: Duration::from_secs(20), reject_after: Duration::from_secs(30), ..own };
        assert_eq!(own.prescribed(&short.to_message()), short);
    }
}
