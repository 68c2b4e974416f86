//! The implementations of the suites: three libraries and code of our own, and the measurement that
//! picks one.
//!
//! None is the fastest everywhere: it depends on the processor, its vector extensions and the
//! suite. So each candidate seals and opens packets of typical size for a fraction of a millisecond
//! when the program starts, and the fastest is taken; the caller logs the [`Choice`] once. An
//! administrator can name a backend instead. All backends give the same bytes, so the two ends of a
//! session choose independently. Our own code is measured only after it has given, on this very
//! processor, the bytes that a library gives, and beside libraries it must be faster by a tenth.
//!
//! This is the only module of the crate that reads a clock. Secrets never come here: what is
//! measured are keys of fixed bytes, thrown away afterwards.

use std::fmt;
use std::hint::black_box;
use std::str::FromStr;
use std::time::{Duration, Instant};

use aes_gcm_vaes::Width;

use crate::aead::{Cipher, TAG_LEN};
use crate::suite::{MAX_KEY_LEN, Suite};

/// An implementation of cipher suites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// ring: assembly from BoringSSL.
    Ring,
    /// aws-lc-rs: AWS-LC, which has AVX-512 code for AES-GCM.
    AwsLc,
    /// RustCrypto: Rust with intrinsics, portable.
    RustCrypto,
    /// Our own AES-GCM for packets on vectors of 256 bits: processors with AVX2, VAES and
    /// VPCLMULQDQ.
    Vaes256,
    /// AES-GCM of our own on vectors of 512 bits: processors with AVX-512, VAES and VPCLMULQDQ.
    Vaes512,
    /// ChaCha20-Poly1305 of our own: processors with AVX-512 and IFMA.
    Ifma,
}

impl Backend {
    /// Every backend.
    pub const ALL: [Self; 6] =
        [Self::Ring, Self::AwsLc, Self::RustCrypto, Self::Vaes256, Self::Vaes512, Self::Ifma];

    /// Those that others wrote, and many read.
    pub const LIBRARIES: [Self; 3] = [Self::Ring, Self::AwsLc, Self::RustCrypto];

    /// The name used in configuration, logs and status.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::AwsLc => "aws-lc",
            Self::RustCrypto => "rustcrypto",
            Self::Vaes256 => "vaes-256",
            Self::Vaes512 => "vaes-512",
            Self::Ifma => "ifma",
        }
    }

    /// Whether the backend itself implements the suite, on this processor. ring lacks CBC, our own
    /// code has AES-GCM or ChaCha20-Poly1305 only. The suite without protection has nothing to
    /// implement, so every library supports it.
    pub fn supports(self, suite: Suite) -> bool {
        match self {
            Self::Ring => suite != Suite::Aes256CbcHmacSha256,
            Self::AwsLc | Self::RustCrypto => true,
            Self::Vaes256 => suite.is_aes_gcm() && Width::Bits256.is_supported(),
            Self::Vaes512 => suite.is_aes_gcm() && Width::Bits512.is_supported(),
            Self::Ifma => suite == Suite::ChaCha20Poly1305 && chacha20_poly1305_ifma::is_supported(),
        }
    }

    /// Whether it is our own code.
    const fn is_own(self) -> bool {
        self.is_vaes() || matches!(self, Self::Ifma)
    }

    /// Whether it is our own AES-GCM, of either width.
    const fn is_vaes(self) -> bool {
        matches!(self, Self::Vaes256 | Self::Vaes512)
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
#[error(
    "no such cipher backend; use auto, library, ring, aws-lc, rustcrypto, vaes (of that, vaes-256 or vaes-512) or ifma"
)]
pub struct UnknownBackend;

/// How to find the backend of a suite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preference {
    /// The fastest library on this machine, or our own code if that is faster by [`LEAST_GAIN`].
    #[default]
    Auto,
    /// The fastest library on this machine.
    Library,
    /// Our own AES-GCM, with the vectors that are faster on this machine.
    Vaes,
    /// This one and no other.
    Fixed(Backend),
}

impl Preference {
    /// Every preference, each with the name that [`Preference::from_str`] reads.
    pub fn named() -> impl Iterator<Item = (&'static str, Self)> {
        let fixed = Backend::ALL.into_iter().map(|backend| (backend.name(), Self::Fixed(backend)));
        [("auto", Self::Auto), ("library", Self::Library), ("vaes", Self::Vaes)].into_iter().chain(fixed)
    }

    /// Whether `backend` is one of those to choose from.
    pub fn admits(self, backend: Backend) -> bool {
        match self {
            Self::Auto => true,
            Self::Library => !backend.is_own(),
            Self::Vaes => backend.is_vaes(),
            Self::Fixed(fixed) => fixed == backend,
        }
    }
}

impl fmt::Display for Preference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Library => f.pad("library"),
            Self::Vaes => f.pad("vaes"),
            Self::Fixed(backend) => backend.fmt(f),
        }
    }
}

impl FromStr for Preference {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<Self, UnknownBackend> {
        Self::named()
            .find(|(known, _)| *known == name)
            .map(|(_, preference)| preference)
            .ok_or(UnknownBackend)
    }
}

/// Speed of one core, in MB/s (10^6 bytes of plaintext, each sealed once or opened once, per
/// second).
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
    /// Measured speed of each candidate, in the order of [`Backend::ALL`]; none for backends that
    /// do not implement the suite or were not admitted.
    pub speeds: [Option<MbPerSecond>; Backend::ALL.len()],
    /// Whether each backend, in the same order, was not measured because it gave other bytes than a
    /// library on this processor; only our own code can.
    distrusted: [bool; Backend::ALL.len()],
}

/// Least speed of our own code, in hundredths of the fastest library's, with which `auto` takes it.
const LEAST_GAIN: u64 = 110;

impl Choice {
    fn of(suite: Suite, speeds: [Option<MbPerSecond>; Backend::ALL.len()]) -> Option<Self> {
        let fastest = |is_own: bool| {
            let measured = Backend::ALL.into_iter().zip(speeds).filter_map(|(b, speed)| Some((b, speed?)));
            // `max_by_key` takes the last of equals: reversed, the first backend of the list wins a
            // draw.
            measured.rev().filter(|(backend, _)| backend.is_own() == is_own).max_by_key(|&(_, speed)| speed)
        };
        let (backend, _) = match (fastest(false), fastest(true)) {
            (Some(library), Some(own)) if u64::from(own.1) * 100 < u64::from(library.1) * LEAST_GAIN => {
                library
            }
            (library, own) => own.or(library)?,
        };
        Some(Self { suite, backend, speeds, distrusted: [false; Backend::ALL.len()] })
    }

    /// The backends that gave other bytes than a library on this processor.
    pub fn distrusted(&self) -> impl Iterator<Item = Backend> {
        Backend::ALL
            .into_iter()
            .zip(self.distrusted)
            .filter_map(|(b, is_distrusted)| is_distrusted.then_some(b))
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
    /// For the log: `aes-256-gcm by aws-lc (ring 3210 MB/s, aws-lc 3950 MB/s, rustcrypto 1600
    /// MB/s)`.
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
#[error(
    "the cipher backend {preference} does not implement {suite} on this processor; set the backend to auto"
)]
pub struct Unsupported {
    /// The suite asked for.
    pub suite: Suite,
    /// The preference that leaves no candidate.
    pub preference: Preference,
}

/// Measures the admitted backends of one suite and takes the fastest, as [`Preference`] says.
/// Blocks for about a millisecond for each backend, and for some more for our own code, which is
/// compared with a library first.
///
/// # Errors
/// [`Unsupported`] if `preference` fixes a backend that lacks the suite.
pub fn choose(suite: Suite, preference: Preference) -> Result<Choice, Unsupported> {
    let start = Instant::now();
    choose_by(suite, preference, measured, || start.elapsed())
}

/// A key to compare and to measure with, of bytes that are no secret.
fn measured(suite: Suite, backend: Backend) -> Option<Cipher> {
    Cipher::new(suite, backend, &[0x5A; MAX_KEY_LEN][..suite.key_len()])
}

fn choose_by(
    suite: Suite,
    preference: Preference,
    make: impl Fn(Suite, Backend) -> Option<Cipher>,
    mut clock: impl FnMut() -> Duration,
) -> Result<Choice, Unsupported> {
    let mut candidates = Backend::ALL
        .map(|backend| preference.admits(backend).then(|| Candidate::new(suite, backend, &make)).flatten());
    let expected = |backend: Backend| preference.admits(backend) && backend.supports(suite);
    let distrusted = missing(&candidates, expected);
    measure(&mut candidates, &mut clock);
    let speeds = candidates.map(|candidate| candidate.map(|candidate| speed_of(candidate.best)));
    let choice = Choice::of(suite, speeds).ok_or(Unsupported { suite, preference })?;
    Ok(Choice { distrusted, ..choice })
}

/// Whether each backend that is expected among the candidates is none.
fn missing<T>(
    candidates: &[Option<T>; Backend::ALL.len()],
    expected: impl Fn(Backend) -> bool,
) -> [bool; Backend::ALL.len()] {
    std::array::from_fn(|i| candidates[i].is_none() && expected(Backend::ALL[i]))
}

/// Plaintext of a measured packet: an inner packet on an ordinary path.
const PACKET_LEN: usize = 1_408;
/// The additional data, as long as the header of a datagram.
const AAD: [u8; 16] = [0x80; 16];
/// Our own code is compared at every length to this one, in bytes: that takes batches of each kind,
/// and more than two chunks of the widest vectors.
const EVERY_LENGTH_TO: usize = 1_472;
/// And at these, which take several batches.
const LONGER: [usize; 3] = [2_048, 4_096, 8_999];
/// Packets between two looks at the clock: enough that the clock's resolution does not matter.
const BATCH: u64 = 16;
/// Rounds are made until this much time has passed for each candidate, but at least `MIN_ROUNDS`
/// and at most `MAX_ROUNDS`.
const BUDGET: Duration = Duration::from_micros(800);
const MIN_ROUNDS: usize = 3;
const MAX_ROUNDS: usize = 40;

/// A backend that is being measured.
struct Candidate {
    cipher: Cipher,
    packet: Vec<u8>,
    /// The fastest round counts: what disturbs a measurement only ever makes it slower.
    best: Duration,
}

impl Candidate {
    /// None if the backend lacks the suite, or is our own code and gives other bytes than a
    /// library.
    fn new(suite: Suite, backend: Backend, make: impl Fn(Suite, Backend) -> Option<Cipher>) -> Option<Self> {
        let cipher = make(suite, backend)?;
        if backend.is_own() && !agree(&make(suite, backend)?.own_alone(), &make(suite, Backend::AwsLc)?) {
            return None;
        }
        Some(Self { cipher, packet: vec![0; suite.sealed_len(PACKET_LEN)], best: Duration::MAX })
    }

    /// Seals and opens a few packets. Returns when it was done.
    fn round(&mut self, number: usize, clock: &mut impl FnMut() -> Duration) -> Duration {
        let before = clock();
        for i in 0..BATCH {
            round_trip(&self.cipher, number as u64 * BATCH + i, &mut self.packet);
        }
        let after = clock();
        self.best = self.best.min(after.saturating_sub(before));
        after
    }
}

/// Whether both seal packets of all kinds of lengths to the same bytes, also without additional
/// data, as WireGuard's are, and the first opens them again and refuses a forgery of each.
fn agree(own: &Cipher, library: &Cipher) -> bool {
    let lengths = (0..=EVERY_LENGTH_TO).chain(LONGER);
    lengths.flat_map(|len| [(len, 0), (len, AAD.len())]).all(|(len, aad_len)| {
        let aad = &AAD[..aad_len];
        let plaintext: Vec<u8> = (0..len + TAG_LEN).map(|i| i as u8 ^ 0xA5).collect();
        let nonce = [len as u8; crate::schedule::IV_LEN];
        let (mut by_own, mut by_library) = (plaintext.clone(), plaintext.clone());
        own.seal(nonce, aad, &mut by_own, len).is_ok()
            && library.seal(nonce, aad, &mut by_library, len).is_ok()
            && by_own == by_library
            && refuses(own, nonce, aad, &by_own)
            && own.open(nonce, aad, &mut by_own).is_ok_and(|opened| *opened == plaintext[..len])
    })
}

/// Whether a packet is refused that is wrong in one bit, of the tag or anywhere: the length chooses
/// which.
fn refuses(own: &Cipher, nonce: [u8; crate::schedule::IV_LEN], aad: &[u8], sealed: &[u8]) -> bool {
    let len = sealed.len();
    let places = [len - 1, len - TAG_LEN, len / 2, 0];
    let mut forged = sealed.to_vec();
    forged[places[len % places.len()]] ^= 1 << (len / places.len() % 8);
    own.open(nonce, aad, &mut forged).is_err()
}

/// The candidates take turns. Other work on the machine, or on the other thread of the same core,
/// lasts longer than a round, so it would decide between candidates that are measured one after the
/// other.
fn measure(candidates: &mut [Option<Candidate>], clock: &mut impl FnMut() -> Duration) {
    let budget = BUDGET * u32::try_from(candidates.iter().flatten().count()).unwrap_or(u32::MAX);
    let begin = clock();
    for round in 0..MAX_ROUNDS {
        let mut end = begin;
        for candidate in candidates.iter_mut().flatten() {
            end = candidate.round(round, clock);
        }
        if round + 1 >= MIN_ROUNDS && end.saturating_sub(begin) >= budget {
            return;
        }
    }
}

/// Seals and opens one packet.
fn round_trip(cipher: &Cipher, counter: u64, packet: &mut [u8]) {
    let mut nonce = [0; crate::schedule::IV_LEN];
    nonce[4..].copy_from_slice(&counter.to_le_bytes());
    let sealed = cipher.seal(nonce, &AAD, black_box(packet), PACKET_LEN);
    let sealed_len = sealed.expect("the buffer has room for a sealed packet");
    let opened = cipher.open(nonce, &AAD, black_box(&mut packet[..sealed_len]));
    black_box(opened.expect("the packet was sealed with the same key"));
}

/// Speed of a round: each packet was sealed and opened, which counts its bytes twice.
fn speed_of(round: Duration) -> MbPerSecond {
    let bytes = 2 * u128::from(BATCH) * PACKET_LEN as u128;
    let per_second = bytes * 1_000_000_000 / round.as_nanos().max(1);
    // At least 1, so that a measured suite never looks like an unusable one.
    u32::try_from(per_second / 1_000_000).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for backend in Backend::ALL {
            assert_eq!(backend.name().parse(), Ok(backend));
            assert_eq!(Preference::Fixed(backend).to_string().parse(), Ok(Preference::Fixed(backend)));
        }
        for (name, preference) in Preference::named() {
            assert_eq!(name.parse(), Ok(preference));
            assert_eq!(preference.to_string(), name);
        }
        for name in ["", "Ring", "openssl"] {
            assert_eq!(name.parse::<Preference>(), Err(UnknownBackend));
        }
        assert_eq!("auto".parse::<Backend>(), Err(UnknownBackend));
    }

    #[test]
    fn a_backend_supports_just_what_it_can_make_a_key_of() {
        for (suite, backend) in Suite::ALL.into_iter().flat_map(|suite| Backend::ALL.map(|b| (suite, b))) {
            let cipher = Cipher::new(suite, backend, &[7; MAX_KEY_LEN][..suite.key_len()]);
            assert_eq!(backend.supports(suite), cipher.is_some(), "{suite} by {backend}");
        }
        for suite in Suite::STANDARD {
            assert!(Backend::LIBRARIES.into_iter().all(|backend| backend.supports(suite)), "{suite}");
        }
        assert!(!Backend::Ring.supports(Suite::Aes256CbcHmacSha256));
        assert!(!Backend::Vaes256.supports(Suite::ChaCha20Poly1305));
        assert!(!Backend::Vaes512.supports(Suite::ChaCha20Poly1305));
        assert!(!Backend::Ifma.supports(Suite::Aes128Gcm) && !Backend::Ifma.supports(Suite::Aes256Gcm));
    }

    #[test]
    fn each_own_cipher_agrees_with_a_library() {
        for (suite, own) in Suite::STANDARD.into_iter().flat_map(|suite| Backend::ALL.map(|b| (suite, b))) {
            let cipher = |backend| Cipher::new(suite, backend, &[3; MAX_KEY_LEN][..suite.key_len()]);
            if let Some(own) = cipher(own) {
                let library = cipher(Backend::AwsLc).unwrap();
                assert!(agree(&own, &library), "{suite}");
                assert!(agree(&own.own_alone(), &library), "{suite}: without ring");
            }
        }
    }

    /// Whether `own`, in place of our own code, is measured beside AWS-LC with a key of ones.
    fn is_trusted(suite: Suite, own: impl Fn() -> Option<Cipher>) -> bool {
        let make = |suite: Suite, backend: Backend| {
            if backend.is_own() { own() } else { Cipher::new(suite, backend, &[1; 32]) }
        };
        Candidate::new(suite, Backend::Ifma, make).is_some()
    }

    #[test]
    fn our_own_code_is_no_candidate_if_its_bytes_are_others() {
        let suite = Suite::ChaCha20Poly1305;
        let cipher = |byte| Cipher::new(suite, Backend::RustCrypto, &[byte; 32]);
        assert!(is_trusted(suite, || cipher(1)));
        assert!(!is_trusted(suite, || cipher(2)), "another key");
        let gullible = || Some(Cipher::Gullible(Box::new(cipher(1)?)));
        assert!(!is_trusted(suite, gullible), "everything is opened");
    }

    #[test]
    fn our_own_code_is_compared_at_short_lengths_not_ring() {
        let suite = Suite::ChaCha20Poly1305;
        let cipher = |byte| Cipher::new(suite, Backend::Ifma, &[byte; 32]);
        let mixed = || match (cipher(1)?, cipher(2)?) {
            (Cipher::Ifma { own, .. }, Cipher::Ifma { short, .. }) => Some(Cipher::Ifma { own, short }),
            _ => None,
        };
        assert_eq!(is_trusted(suite, mixed), Backend::Ifma.supports(suite));
    }

    #[test]
    fn our_own_code_with_other_bytes_is_named_and_not_taken() {
        let make = |suite: Suite, backend: Backend| {
            Cipher::new(suite, backend, &[u8::from(backend.is_own()); MAX_KEY_LEN][..suite.key_len()])
        };
        for suite in Suite::STANDARD {
            let choice = choose_by(suite, Preference::Auto, make, || Duration::ZERO).unwrap();
            let own = Backend::ALL.into_iter().filter(|b| b.is_own() && b.supports(suite));
            assert!(choice.distrusted().eq(own) && !choice.backend.is_own(), "{suite}");
        }
    }

    #[test]
    fn the_fastest_is_chosen_and_the_first_of_equals() {
        let chosen =
            |speeds| Choice::of(Suite::Aes256Gcm, speeds).map(|choice| (choice.backend, choice.speed()));
        assert_eq!(chosen([Some(5), Some(9), Some(7), None, None, None]), Some((Backend::AwsLc, 9)));
        assert_eq!(chosen([Some(5), None, Some(7), Some(8), None, None]), Some((Backend::Vaes256, 8)));
        assert_eq!(
            chosen([Some(u32::MAX), None, None, Some(u32::MAX), None, None]),
            Some((Backend::Ring, u32::MAX))
        );
        assert_eq!(chosen([Some(7); 6]), Some((Backend::Ring, 7)));
        // Our own code must be faster by a tenth.
        assert_eq!(
            chosen([Some(90), Some(100), None, Some(109), Some(108), None]),
            Some((Backend::AwsLc, 100))
        );
        assert_eq!(
            chosen([Some(90), Some(100), None, Some(110), Some(108), None]),
            Some((Backend::Vaes256, 110))
        );
        assert_eq!(chosen([None, None, None, Some(3), Some(4), None]), Some((Backend::Vaes512, 4)));
        assert_eq!(chosen([None, Some(7), Some(7), Some(7), None, None]), Some((Backend::AwsLc, 7)));
        assert_eq!(chosen([Some(90), Some(100), None, None, None, Some(109)]), Some((Backend::AwsLc, 100)));
        assert_eq!(chosen([Some(90), Some(100), None, None, None, Some(110)]), Some((Backend::Ifma, 110)));
        assert_eq!(chosen([None; 6]), None);
    }

    #[test]
    fn every_suite_gets_a_library_by_measurement() {
        for suite in Suite::ALL {
            let choice = choose(suite, Preference::Library).unwrap();
            let measured: Vec<_> = choice.candidates().map(|(backend, _)| backend).collect();
            let supporting: Vec<_> = Backend::LIBRARIES.into_iter().filter(|b| b.supports(suite)).collect();
            assert_eq!(measured, supporting, "{suite}");
            assert!(choice.candidates().all(|(_, speed)| speed <= choice.speed() && speed > 0), "{choice}");
        }
    }

    #[test]
    fn all_that_this_processor_has_is_measured_unless_a_library_is_asked_for() {
        for suite in Suite::STANDARD {
            let choice = choose(suite, Preference::Auto).unwrap();
            let measured: Vec<_> = choice.candidates().map(|(backend, _)| backend).collect();
            let supporting: Vec<_> = Backend::ALL.into_iter().filter(|b| b.supports(suite)).collect();
            assert_eq!((measured, choice.distrusted().next()), (supporting, None), "{suite}");
            assert_eq!(Choice::of(suite, choice.speeds), Some(choice));
            assert!(!choose(suite, Preference::Library).unwrap().backend.is_own());
        }
    }

    #[test]
    fn each_width_that_gives_other_bytes_is_named() {
        let candidates = Backend::ALL.map(|backend| (!backend.is_own()).then_some(()));
        let distrusted = missing(&candidates, |backend| backend != Backend::Ring);
        let choice = Choice { distrusted, ..choose(Suite::Aes256Gcm, Preference::Library).unwrap() };
        let own = [Backend::Vaes256, Backend::Vaes512, Backend::Ifma];
        assert_eq!(choice.distrusted().collect::<Vec<_>>(), own);
        let none = missing(&candidates, |backend| !backend.is_own());
        assert_eq!(none, [false; Backend::ALL.len()], "this processor has none of them");
    }

    #[test]
    fn a_fixed_backend_is_taken_or_refused() {
        let choice = choose(Suite::Aes128Gcm, Preference::Fixed(Backend::RustCrypto)).unwrap();
        assert_eq!(choice.backend, Backend::RustCrypto);
        assert_eq!(choice.candidates().count(), 1);
        let (suite, preference) = (Suite::Aes256CbcHmacSha256, Preference::Fixed(Backend::Ring));
        assert_eq!(choose(suite, preference), Err(Unsupported { suite, preference }));
    }

    #[test]
    fn our_own_code_is_chosen_among_its_widths_only() {
        let choice = choose(Suite::Aes256Gcm, Preference::Vaes);
        let supported = [Backend::Vaes256, Backend::Vaes512].map(|own| own.supports(Suite::Aes256Gcm));
        assert_eq!(choice.is_ok(), supported.contains(&true));
        assert!(choice.is_ok_and(|choice| choice.backend.is_own()) || supported == [false; 2]);
        let (suite, preference) = (Suite::ChaCha20Poly1305, Preference::Vaes);
        assert_eq!(choose(suite, preference), Err(Unsupported { suite, preference }));
        let ifma = choose(suite, Preference::Fixed(Backend::Ifma));
        assert_eq!(ifma.is_ok(), Backend::Ifma.supports(suite));
        assert!(choose(Suite::Aes256Gcm, Preference::Fixed(Backend::Ifma)).is_err());
    }

    #[test]
    fn a_stopped_clock_ends_the_measurement_too() {
        let mut looks = 0;
        let stopped = || {
            looks += 1;
            Duration::from_secs(5)
        };
        let choice =
            choose_by(Suite::Aes128Gcm, Preference::Fixed(Backend::Ring), measured, stopped).unwrap();
        assert!(choice.speed() > 0);
        assert_eq!(looks, 1 + 2 * MAX_ROUNDS);
    }

    #[test]
    fn a_slow_machine_measures_no_longer_than_needed() {
        let mut now = Duration::ZERO;
        let mut looks = 0;
        let slow = || {
            looks += 1;
            now += Duration::from_secs(1);
            now
        };
        let choice = choose_by(Suite::Aes128Gcm, Preference::Fixed(Backend::Ring), measured, slow).unwrap();
        assert_eq!(looks, 1 + 2 * MIN_ROUNDS);
        assert_eq!(choice.speed(), 1, "2 x 16 packets in a second are less than 1 MB/s, and never 0");
    }

    #[test]
    fn a_disturbance_affects_all_candidates_alike() {
        // Looked at twice in each round: something slows the machine down tenfold, for as long as
        // one candidate would have been measured by itself.
        let (mut looks, mut now) = (0, Duration::ZERO);
        let disturbed = || {
            looks += 1;
            now +=
                if (80..160).contains(&looks) { Duration::from_micros(60) } else { Duration::from_micros(6) };
            now
        };
        let choice = choose_by(Suite::Aes128Gcm, Preference::Library, measured, disturbed).unwrap();
        let undisturbed = speed_of(Duration::from_micros(6));
        assert_eq!(choice.candidates().count(), 3);
        assert!(choice.candidates().all(|(_, speed)| speed == undisturbed), "{choice}");
    }

    #[test]
    fn speed_counts_sealed_and_opened_bytes() {
        assert_eq!(speed_of(Duration::from_nanos(45_056)), 1_000);
        assert_eq!(speed_of(Duration::ZERO), 45_056_000);
    }

    #[test]
    fn a_choice_reads_well_in_a_log() {
        let choice =
            Choice::of(Suite::Aes256Gcm, [Some(3_210), None, Some(1_600), None, None, None]).unwrap();
        assert_eq!(choice.to_string(), "aes-256-gcm by ring (ring 3210 MB/s, rustcrypto 1600 MB/s)");
    }
}
