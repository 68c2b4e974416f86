//! Rate limits in the configuration: bits per second in the file, bytes per second here.

use std::fmt;
use std::str::FromStr;

use vpnd_proto::rate::Rates;

use super::document::{Log as Problems, Section};

/// The form of a rate, for messages.
const RATE: &str =
    "bits per second such as \"800kbit\", \"50mbit\" or \"1.5gbit\", from 64kbit to 1000gbit, or \"none\"";
/// The slowest limit in bits per second. Below it a connection does not get as far as logging in to
/// anything.
const SLOWEST: f64 = 64e3;
/// The fastest.
const FASTEST: f64 = 1e12;
/// Groups at most.
const MAX_GROUPS: usize = 256;

/// A rate in bytes per second; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate(pub u64);

/// The rate limits of `[limits]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimits {
    /// Rates of each session whose group has no other.
    pub session: Rates,
    /// Rates of all sessions of one user together, unless the user's group has another.
    pub user: Rates,
    /// `[[limits.groups]]`: the first that a user is in decides.
    pub groups: Vec<GroupRates>,
}

/// One entry of `[[limits.groups]]`, or the rates of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRates {
    pub name: String,
    /// Rates of all its sessions together.
    pub together: Rates,
    /// Rates of each of them.
    pub session: Rates,
    /// Rates of all sessions of one user together.
    pub user: Rates,
}

impl FromStr for Rate {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if text == "none" {
            return Ok(Self(0));
        }
        let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).ok_or(())?);
        let factor = match unit {
            "kbit" => 1e3,
            "mbit" => 1e6,
            "gbit" => 1e9,
            _ => return Err(()),
        };
        // Only digits and a point: the parser of numbers also takes signs, exponents and "inf".
        if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            return Err(());
        }
        let bits = number.parse::<f64>().map_err(|_| ())? * factor;
        if (SLOWEST..=FASTEST).contains(&bits) { Ok(Self((bits / 8.0).round() as u64)) } else { Err(()) }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0 * 8;
        match bits {
            0 => f.write_str("none"),
            _ if bits >= 1_000_000_000 => write!(f, "{}gbit", bits as f64 / 1e9),
            _ if bits >= 1_000_000 => write!(f, "{}mbit", bits as f64 / 1e6),
            _ => write!(f, "{}kbit", bits as f64 / 1e3),
        }
    }
}

/// Reads the rates of `[limits]`.
pub(super) fn limits(s: &mut Section<'_>, p: &mut Problems) -> RateLimits {
    let mut limits = RateLimits::default();
    limits.session = session(s, p, limits.session);
    limits.user = user(s, p, limits.user);
    let groups = s.tables(p, "groups", |s, p| group(s, p, &limits));
    if groups.len() > MAX_GROUPS {
        let message = format!("'groups' has {} entries; at most {MAX_GROUPS} are taken", groups.len());
        s.problem(p, "groups", message);
    }
    let twice =
        (1..groups.len()).find(|at| groups[..*at].iter().any(|before| before.name == groups[*at].name));
    if let Some(at) = twice {
        let name = &groups[at].name;
        s.problem(p, "groups", format!("the group '{name}' has two entries in [[limits.groups]]; keep one"));
    }
    RateLimits { groups, ..limits }
}

/// The rates of a profile that has any; `all` are those elsewhere.
pub(super) fn profile(
    s: &mut Section<'_>,
    p: &mut Problems,
    name: &str,
    all: &RateLimits,
) -> Option<GroupRates> {
    let rates = rates(s, p, name.to_owned(), all);
    let has_some =
        ["rate_down", "rate_up", "session_rate_down", "session_rate_up", "user_rate_down", "user_rate_up"];
    has_some.into_iter().any(|key| s.has(key)).then_some(rates)
}

fn group(s: &mut Section<'_>, p: &mut Problems, all: &RateLimits) -> Option<GroupRates> {
    let missing = !s.has("name");
    let name = s.text(p, "name");
    if missing {
        s.missing(p, "name", "write name = \"students\", a group of users");
    }
    let rates = rates(s, p, name.clone().unwrap_or_default(), all);
    name.map(|_| rates)
}

fn rates(s: &mut Section<'_>, p: &mut Problems, name: String, all: &RateLimits) -> GroupRates {
    let together = Rates { down: rate(s, p, "rate_down", 0), up: rate(s, p, "rate_up", 0) };
    GroupRates { name, together, session: session(s, p, all.session), user: user(s, p, all.user) }
}

fn session(s: &mut Section<'_>, p: &mut Problems, default: Rates) -> Rates {
    Rates {
        down: rate(s, p, "session_rate_down", default.down),
        up: rate(s, p, "session_rate_up", default.up),
    }
}

fn user(s: &mut Section<'_>, p: &mut Problems, default: Rates) -> Rates {
    Rates { down: rate(s, p, "user_rate_down", default.down), up: rate(s, p, "user_rate_up", default.up) }
}

fn rate(s: &mut Section<'_>, p: &mut Problems, key: &'static str, default: u64) -> u64 {
    s.parsed::<Rate>(p, key, RATE).map_or(default, |rate| rate.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_a_number_and_a_unit() {
        for (text, bytes) in [
            ("64kbit", 8_000),
            ("1mbit", 125_000),
            ("0.5mbit", 62_500),
            ("1.5gbit", 187_500_000),
            ("1000gbit", 125_000_000_000),
            ("none", 0),
        ] {
            assert_eq!(text.parse(), Ok(Rate(bytes)), "{text}");
            let shown = Rate(bytes).to_string();
            assert_eq!(shown.parse(), Ok(Rate(bytes)), "{text} is shown as {shown}");
        }
        for text in [
            "",
            "0",
            "10",
            "mbit",
            "10 mbit",
            "10Mbit",
            "10mbit/s",
            "-1mbit",
            "+1mbit",
            "1e3mbit",
            "infmbit",
            "1.2.3mbit",
            ".mbit",
            "63kbit",
            "1001gbit",
            "0mbit",
            "nonembit",
            "10mib",
            "10tbit",
            "१mbit",
        ] {
            assert_eq!(text.parse::<Rate>(), Err(()), "{text:?}");
        }
    }
}
