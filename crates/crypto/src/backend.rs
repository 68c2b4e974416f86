//! The libraries that implement the suites, and the measurement that picks one.
//!
//! No library is the fastest everywhere: it depends on the processor, its vector extensions and the suite. So each
//! candidate seals and opens packets of typical size for a fraction of a millisecond when the program starts, and the
//! fastest is taken; the caller logs the [`Choice`] once. An administrator can name a backend instead. All backends
//! give the same bytes, so the two ends of a session choose independently.
//!
//! Measured speeds also serve to agree on a suite: [`agree`] picks the one whose slower end is fastest.
//!
//! This is the only module of the crate that reads a clock. Secrets never come here: what is measured are keys of
//! fixed bytes, thrown away afterwards.

use std::fmt;
use std::hint::black_box;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::aead::Cipher;
use crate::suite::{MAX_KEY_LEN, Suite};

/// A library that implements cipher suites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// ring: assembly from BoringSSL.
    Ring,
    /// aws-lc-rs: AWS-LC, which has AVX-512 code for AES-GCM.
    AwsLc,
    /// RustCrypto: Rust with intrinsics, portable.
    RustCrypto,
}

impl Backend {
    /// Every backend.
    pub const ALL: [Self; 3] = [Self::Ring, Self::AwsLc, Self::RustCrypto];

    /// The name used in configuration, logs and status.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::AwsLc => "aws-lc",
            Self::RustCrypto => "rustcrypto",
        }
    }

    /// Whether the backend itself implements the suite. ring lacks CBC. The suite without protection has nothing to
    /// implement, so every backend supports it.
    pub const fn supports(self, suite: Suite) -> bool {
        !matches!((self, suite), (Self::Ring, Suite::Aes256CbcHmacSha256))
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Backend {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<Self, UnknownBackend> {
        Self::ALL.into_iter().find(|backend| backend.name() == name).ok_or(UnknownBackend)
    }
}

/// No backend has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such cipher backend; use auto, ring, aws-lc or rustcrypto")]
pub struct UnknownBackend;

/// How to find the backend of a suite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preference {
    /// The fastest on this machine.
    #[default]
    Auto,
    /// This one and no other.
    Fixed(Backend),
}

impl Preference {
    fn admits(self, backend: Backend) -> bool {
        match self {
            Self::Auto => true,
            Self::Fixed(fixed) => fixed == backend,
        }
    }
}

impl fmt::Display for Preference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Fixed(backend) => backend.fmt(f),
        }
    }
}

impl FromStr for Preference {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<Self, UnknownBackend> {
        if name == "auto" { Ok(Self::Auto) } else { name.parse().map(Self::Fixed) }
    }
}

/// Speed of one core, in MB/s (10^6 bytes of plaintext, each sealed once or opened once, per second).
///
/// The unit of an offer's `suites` on the control channel (`docs/PROTOCOL.md` §3.3).
pub type MbPerSecond = u32;

/// The backend of one suite, and what was measured to find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The suite.
    pub suite: Suite,
    /// The backend to make keys with.
    pub backend: Backend,
    /// Measured speed of each candidate, in the order of [`Backend::ALL`]; none for backends that do not implement
    /// the suite or were not admitted.
    pub speeds: [Option<MbPerSecond>; Backend::ALL.len()],
}

impl Choice {
    fn of(suite: Suite, speeds: [Option<MbPerSecond>; Backend::ALL.len()]) -> Option<Self> {
        let measured = Backend::ALL.into_iter().zip(speeds).filter_map(|(b, speed)| Some((b, speed?)));
        // `max_by_key` takes the last of equals: reversed, the first backend of the list wins a draw.
        let (backend, _) = measured.rev().max_by_key(|&(_, speed)| speed)?;
        Some(Self { suite, backend, speeds })
    }

    /// Measured speed of the chosen backend.
    pub fn speed(&self) -> MbPerSecond {
        self.candidates().find(|&(backend, _)| backend == self.backend).map_or(0, |(_, speed)| speed)
    }

    /// The measured backends with their speeds.
    pub fn candidates(&self) -> impl Iterator<Item = (Backend, MbPerSecond)> {
        Backend::ALL.into_iter().zip(self.speeds).filter_map(|(backend, speed)| Some((backend, speed?)))
    }
}

impl fmt::Display for Choice {
    /// For the log: `aes-256-gcm by aws-lc (ring 3210 MB/s, aws-lc 3950 MB/s, rustcrypto 1600 MB/s)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.suite, self.backend)?;
        for (i, (backend, speed)) in self.candidates().enumerate() {
            write!(f, "{}{backend} {speed} MB/s", if i == 0 { " (" } else { ", " })?;
        }
        f.write_str(")")
    }
}

/// No admitted backend implements the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cipher backend {preference} does not implement {suite}; set the backend to auto")]
pub struct Unsupported {
    /// The suite asked for.
    pub suite: Suite,
    /// The preference that leaves no candidate.
    pub preference: Preference,
}

/// Measures the admitted backends of one suite and takes the fastest. Blocks for about a millisecond per backend.
///
/// # Errors
/// [`Unsupported`] if `preference` fixes a backend that lacks the suite.
pub fn choose(suite: Suite, preference: Preference) -> Result<Choice, Unsupported> {
    let start = Instant::now();
    choose_by(suite, preference, || start.elapsed())
}

fn choose_by(
    suite: Suite,
    preference: Preference,
    mut clock: impl FnMut() -> Duration,
) -> Result<Choice, Unsupported> {
    let speeds = Backend::ALL
        .map(|backend| preference.admits(backend).then(|| measure(suite, backend, &mut clock)).flatten());
    Choice::of(suite, speeds).ok_or(Unsupported { suite, preference })
}

/// The choices for all standard suites: what this machine offers to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranking {
    choices: [Choice; Suite::STANDARD.len()],
}

impl Ranking {
    /// Measures every standard suite, the fastest first. Blocks for about ten milliseconds.
    ///
    /// # Errors
    /// [`Unsupported`] never for the backends of today, which all have every standard suite.
    pub fn measure(preference: Preference) -> Result<Self, Unsupported> {
        let mut choices = [Suite::STANDARD[0]; Suite::STANDARD.len()].map(|suite| Choice {
            suite,
            backend: Backend::Ring,
            speeds: [None; Backend::ALL.len()],
        });
        for (slot, suite) in choices.iter_mut().zip(Suite::STANDARD) {
            *slot = choose(suite, preference)?;
        }
        choices.sort_by_key(|choice| std::cmp::Reverse(choice.speed()));
        Ok(Self { choices })
    }

    /// The choices, the fastest suite first.
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// The backend chosen for a standard suite; none for a suite of the laboratory, which [`choose`] measures.
    pub fn backend(&self, suite: Suite) -> Option<Backend> {
        self.choices.iter().find(|choice| choice.suite == suite).map(|choice| choice.backend)
    }

    /// Suites with their speeds, the fastest first, to be offered to a peer.
    pub fn offer(&self) -> impl Iterator<Item = (Suite, MbPerSecond)> {
        self.choices.iter().map(|choice| (choice.suite, choice.speed()))
    }
}

/// The suite both ends offer whose slower end is fastest; a draw goes to the one that `ours` lists first.
///
/// Speeds are the peer's word. A peer that lies can only make the session slower or pick among suites that both ends
/// allow, so callers must leave out of `ours` what they would not accept.
pub fn agree(ours: &[(Suite, MbPerSecond)], theirs: &[(Suite, MbPerSecond)]) -> Option<Suite> {
    let common = ours.iter().filter_map(|&(suite, our_speed)| {
        let &(_, their_speed) = theirs.iter().find(|&&(other, _)| other == suite)?;
        Some((suite, our_speed.min(their_speed)))
    });
    let mut best: Option<(Suite, MbPerSecond)> = None;
    for (suite, speed) in common {
        if best.is_none_or(|(_, best_speed)| speed > best_speed) {
            best = Some((suite, speed));
        }
    }
    best.map(|(suite, _)| suite)
}

/// Plaintext of a measured packet: an inner packet on an ordinary path.
const PACKET_LEN: usize = 1_408;
/// Packets between two looks at the clock: enough that the clock's resolution does not matter.
const BATCH: u64 = 16;
/// A candidate is measured until this much time has passed, but at least `MIN_ROUNDS` and at most `MAX_ROUNDS` rounds.
const BUDGET: Duration = Duration::from_micros(800);
const MIN_ROUNDS: usize = 3;
const MAX_ROUNDS: usize = 40;

/// Speed of sealing and opening, none if the backend lacks the suite. The best round counts: what disturbs a
/// measurement only ever makes it slower.
fn measure(suite: Suite, backend: Backend, clock: &mut impl FnMut() -> Duration) -> Option<MbPerSecond> {
    let key = [0x5A; MAX_KEY_LEN];
    let cipher = Cipher::new(suite, backend, &key[..suite.key_len()])?;
    let mut packet = vec![0; suite.sealed_len(PACKET_LEN)];
    let begin = clock();
    let mut best = Duration::MAX;
    for round in 0..MAX_ROUNDS {
        let before = clock();
        for i in 0..BATCH {
            round_trip(&cipher, round as u64 * BATCH + i, &mut packet);
        }
        let after = clock();
        best = best.min(after.saturating_sub(before));
        if round + 1 >= MIN_ROUNDS && after.saturating_sub(begin) >= BUDGET {
            break;
        }
    }
    Some(speed_of(best))
}

/// Seals and opens one packet.
fn round_trip(cipher: &Cipher, counter: u64, packet: &mut [u8]) {
    let mut nonce = [0; crate::schedule::IV_LEN];
    nonce[4..].copy_from_slice(&counter.to_le_bytes());
    let aad = [0x80; 16];
    let sealed = cipher.seal(nonce, &aad, black_box(packet), PACKET_LEN);
    let sealed_len = sealed.expect("the buffer has room for a sealed packet");
    let opened = cipher.open(nonce, &aad, black_box(&mut packet[..sealed_len]));
    black_box(opened.expect("the packet was sealed with the same key"));
}

/// Speed of a round: each packet was sealed and opened, which counts its bytes twice.
fn speed_of(round: Duration) -> MbPerSecond {
    let bytes = 2 * u128::from(BATCH) * PACKET_LEN as u128;
    let per_second = bytes * 1_000_000_000 / round.as_nanos().max(1);
    // At least 1, so that a measured suite never looks like an unusable one.
    u32::try_from(per_second / 1_000_000).unwrap_or(u32::MAX).max(1)
}
