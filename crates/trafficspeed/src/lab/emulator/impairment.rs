//! Impairments of a link, as plain values that can be written on a command line and read back in a
//! report.
//!
//! INVARIANT: everything is an integer (nanoseconds, parts per million, bits per second), so that
//! settings compare exactly and the same seed gives the same decision to the same packets on every
//! machine.

use std::fmt;
use std::str::FromStr;

/// A span of time, written with its unit: `16ms`, `250us`, `1.5s`, `0`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    pub ns: u64,
}

/// A share of packets, written in percent: `1%`, `0.01%`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share {
    /// Parts per million, at most a million.
    pub ppm: u32,
}

/// A rate, written with its unit: `100mbit`, `2.5gbit`, `64kbit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate {
    /// Bits per second, at least 1,000.
    pub bits_per_second: u64,
}

/// The most that may wait for a link of limited rate: `100ms` of its rate, `256kb` or `1000p`
/// (packets).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueLimit {
    Bytes(u64),
    Packets(u64),
    /// The longest that a packet may wait for its turn.
    Time(Span),
}

/// Longest delay, jitter or lateness: ten seconds.
const MAX_SPAN_NS: f64 = 10e9;
/// Highest rate: a terabit per second.
const MAX_RATE: f64 = 1e12;
/// Longest queue in bytes or packets.
const MAX_QUEUE: f64 = 1e9;

/// The impairments of one direction of a link, in this order: a packet waits in the queue for its
/// turn at `rate`, may be lost on the way, travels for `delay` give or take `jitter`, and may then
/// come late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Impairment {
    /// Time that every packet travels.
    pub delay: Span,
    /// A packet travels up to this much shorter or longer, evenly spread. Jitter alone never
    /// changes the order: a packet that would overtake the one before arrives together with it.
    pub jitter: Span,
    /// Share of packets that are lost, independently of each other.
    pub loss: Share,
    /// Share of packets that come late, so that those behind overtake them.
    pub reorder: Share,
    /// Time by which these arrive later.
    pub reorder_late: Span,
    /// Rate of the link in bits of Ethernet frames; as fast as the machine can if absent.
    pub rate: Option<Rate>,
    /// The longest queue; 50 ms of the rate (at least 32 full frames) if absent.
    pub queue: Option<QueueLimit>,
}

/// Why an impairment makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImpairmentError {
    /// A packet would arrive before it was sent.
    #[error("the jitter is larger than the delay, so packets would arrive before they were sent")]
    JitterBeyondDelay,
    #[error("a queue limit needs a rate: without one no packet waits")]
    QueueWithoutRate,
}

impl Impairment {
    /// Whether packets have to cross one by one for this to mean what it says: a share of packets,
    /// an order or a rate is that of packets on a wire, not of super-packets of 64 KiB.
    pub fn needs_single_packets(&self) -> bool {
        let Self { jitter, loss, reorder, rate, .. } = self;
        jitter.ns > 0 || loss.ppm > 0 || reorder.ppm > 0 || rate.is_some()
    }

    /// Says what makes no sense.
    pub fn check(&self) -> Result<(), ImpairmentError> {
        if self.jitter > self.delay {
            return Err(ImpairmentError::JitterBeyondDelay);
        }
        if self.queue.is_some() && self.rate.is_none() {
            return Err(ImpairmentError::QueueWithoutRate);
        }
        Ok(())
    }

    /// The limit of the queue in force.
    pub fn queue_limit(&self, rate: Rate) -> QueueLimit {
        const FULL_FRAME: u64 = 1514;
        self.queue.unwrap_or(QueueLimit::Bytes((rate.bits_per_second / 8 / 20).max(32 * FULL_FRAME)))
    }
}

impl Share {
    /// Every packet, in parts per million.
    pub const WHOLE: u32 = 1_000_000;

    /// The share as a number between 0 and 1.
    pub fn fraction(self) -> f64 {
        f64::from(self.ppm) / f64::from(Self::WHOLE)
    }
}

/// Why a setting could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is no {expected}; write {example}")]
pub struct ParseError {
    given: String,
    expected: &'static str,
    example: &'static str,
}

/// A number from 0 to `most` and the unit behind it.
fn number_and_unit(text: &str, most: f64) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().ok()?;
    (0.0..=most).contains(&number).then_some((number, unit.trim()))
}

impl FromStr for Span {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let read = || {
            let (number, unit) = number_and_unit(text, MAX_SPAN_NS)?;
            let scale = match unit {
                "s" => 1e9,
                "ms" => 1e6,
                "us" | "µs" => 1e3,
                "ns" => 1.0,
                "" if number == 0.0 => 1.0,
                _ => return None,
            };
            let ns = number * scale;
            (ns <= MAX_SPAN_NS).then(|| Self { ns: ns.round() as u64 })
        };
        read().ok_or_else(|| ParseError {
            given: text.to_owned(),
            expected: "time between 0 and 10 s",
            example: "16ms, 250us or 1.5s",
        })
    }
}

impl FromStr for Share {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let read = || {
            let (number, unit) = number_and_unit(text, 100.0)?;
            let known = unit == "%" || (unit.is_empty() && number == 0.0);
            known.then(|| Self { ppm: (number * 1e4).round() as u32 })
        };
        read().ok_or_else(|| ParseError {
            given: text.to_owned(),
            expected: "share of packets",
            example: "1% or 0.01%",
        })
    }
}

impl FromStr for Rate {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let read = || {
            let (number, unit) = number_and_unit(text, MAX_RATE)?;
            let scale = match unit {
                "bit" => 1.0,
                "kbit" => 1e3,
                "mbit" => 1e6,
                "gbit" => 1e9,
                _ => return None,
            };
            let bits = number * scale;
            (1e3..=MAX_RATE).contains(&bits).then(|| Self { bits_per_second: bits.round() as u64 })
        };
        read().ok_or_else(|| ParseError {
            given: text.to_owned(),
            expected: "rate between 1kbit and 1000gbit",
            example: "100mbit or 2.5gbit",
        })
    }
}

impl FromStr for QueueLimit {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let read = || {
            if let Some(span) = text.parse::<Span>().ok().filter(|span| span.ns > 0) {
                return Some(Self::Time(span));
            }
            let (number, unit) = number_and_unit(text, MAX_QUEUE)?;
            let limit = match unit {
                "p" => Self::Packets(number as u64),
                "b" => Self::Bytes(number as u64),
                "kb" => Self::Bytes((number * 1e3) as u64),
                "mb" => Self::Bytes((number * 1e6) as u64),
                _ => return None,
            };
            let fits = |size: u64| size > 0 && size as f64 <= MAX_QUEUE;
            matches!(limit, Self::Packets(size) | Self::Bytes(size) if fits(size)).then_some(limit)
        };
        read().ok_or_else(|| ParseError {
            given: text.to_owned(),
            expected: "queue limit",
            example: "100ms (of the rate), 1000p (packets), 256kb or 2mb",
        })
    }
}

/// A number without needless digits behind the point.
fn plain(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.ns as f64;
        match self.ns {
            0 => f.write_str("0 ms"),
            1..1_000 => write!(f, "{} ns", self.ns),
            1_000..1_000_000 => write!(f, "{} us", plain(ns / 1e3)),
            1_000_000..1_000_000_000 => write!(f, "{} ms", plain(ns / 1e6)),
            _ => write!(f, "{} s", plain(ns / 1e9)),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", plain(self.fraction() * 100.0))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.bits_per_second as f64;
        match self.bits_per_second {
            0..1_000_000 => write!(f, "{} kbit/s", plain(rate / 1e3)),
            1_000_000..1_000_000_000 => write!(f, "{} Mbit/s", plain(rate / 1e6)),
            _ => write!(f, "{} Gbit/s", plain(rate / 1e9)),
        }
    }
}

impl fmt::Display for QueueLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{} kB", plain(*bytes as f64 / 1e3)),
            Self::Packets(packets) => write!(f, "{packets} packets"),
            Self::Time(span) => span.fmt(f),
        }
    }
}

impl fmt::Display for Impairment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "delay {}", self.delay)?;
        if self.jitter.ns > 0 {
            write!(f, " ± {}", self.jitter)?;
        }
        if self.loss.ppm > 0 {
            write!(f, ", loss {}", self.loss)?;
        }
        if self.reorder.ppm > 0 {
            write!(f, ", {} come {} late", self.reorder, self.reorder_late)?;
        }
        if let Some(rate) = self.rate {
            write!(f, ", rate {rate} with a queue of {}", self.queue_limit(rate))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Span {
        Span { ns: ms * 1_000_000 }
    }

    #[test]
    fn settings_are_read_with_their_units_and_shown_with_them() {
        for (text, ns, shown) in [
            ("16ms", 16_000_000, "16 ms"),
            ("0.25 ms", 250_000, "250 us"),
            ("1.5s", 1_500_000_000, "1.5 s"),
            ("7ns", 7, "7 ns"),
            ("0", 0, "0 ms"),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!((span.ns, span.to_string().as_str()), (ns, shown), "{text}");
        }
        assert_eq!("0.01%".parse::<Share>().unwrap().ppm, 100);
        assert_eq!("100%".parse::<Share>().unwrap().to_string(), "100 %");
        assert_eq!("2.5gbit".parse::<Rate>().unwrap().to_string(), "2.5 Gbit/s");
        assert_eq!("1000p".parse::<QueueLimit>().unwrap(), QueueLimit::Packets(1000));
        assert_eq!("256kb".parse::<QueueLimit>().unwrap(), QueueLimit::Bytes(256_000));
        let time: QueueLimit = "100ms".parse().unwrap();
        assert_eq!((time, time.to_string().as_str()), (QueueLimit::Time(ms(100)), "100 ms"));
    }

    #[test]
    fn invalid_settings_are_refused_with_an_example() {
        for text in ["16", "-1ms", "11s", "ms", "", "1e3ms", "1..2ms", "NaNms", "9999999999999ms"] {
            assert!(text.parse::<Span>().unwrap_err().to_string().contains("write 16ms"), "{text}");
        }
        for text in ["1", "101%", "-1%", "%", "1 percent"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
        for text in ["100", "100mb", "0mbit", "2000gbit", "1bit"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        for text in ["0p", "0kb", "10", "9999mb", "0.5p", "0ms", "11s"] {
            assert!(text.parse::<QueueLimit>().is_err(), "{text}");
        }
    }

    #[test]
    fn contradictions_are_named() {
        let good = Impairment { delay: ms(5), jitter: ms(5), ..Impairment::default() };
        assert_eq!(good.check(), Ok(()));
        assert_eq!(Impairment { jitter: ms(6), ..good }.check(), Err(ImpairmentError::JitterBeyondDelay));
        let queue = Some(QueueLimit::Packets(5));
        assert_eq!(Impairment { queue, ..good }.check(), Err(ImpairmentError::QueueWithoutRate));
    }

    #[test]
    fn only_a_pure_delay_may_carry_super_packets() {
        let delay = Impairment { delay: ms(5), ..Impairment::default() };
        assert!(!delay.needs_single_packets());
        let share = Share { ppm: 1 };
        let rate = Some(Rate { bits_per_second: 1_000_000_000_000 });
        for link in [
            Impairment { jitter: ms(1), ..delay },
            Impairment { loss: share, ..delay },
            Impairment { reorder: share, ..delay },
            Impairment { rate, ..delay },
        ] {
            assert!(link.needs_single_packets(), "{link}");
        }
    }

    #[test]
    fn everything_that_is_set_is_shown() {
        let link = Impairment {
            delay: ms(16),
            jitter: ms(2),
            loss: Share { ppm: 10_000 },
            reorder: Share { ppm: 5_000 },
            reorder_late: ms(1),
            rate: Some(Rate { bits_per_second: 100_000_000 }),
            queue: None,
        };
        assert_eq!(
            link.to_string(),
            "delay 16 ms ± 2 ms, loss 1 %, 0.5 % come 1 ms late, rate 100 Mbit/s with a queue of 625 kB"
        );
    }
}
