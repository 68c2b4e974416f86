//! Dates as administrators write and read them, in UTC: `2027-01-31` and `2027-01-31T12:00:00Z`.
//!
//! Invariant: a day without a time means all of it, so an account that expires on that day is good
//! until its last second.

use std::fmt;
use std::str::FromStr;

use time::{Date, Month, OffsetDateTime, PrimitiveDateTime, Time};

const DAY_S: u64 = 86_400;

/// When an account ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    Never,
    /// The first second at which it is no good any more.
    At(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a date such as 2027-01-31 (good to the end of that day, UTC), 2027-01-31T12:00:00Z, or never")]
pub struct NoDate;

impl Expiry {
    pub fn seconds(self) -> Option<u64> {
        match self {
            Self::Never => None,
            Self::At(at_s) => Some(at_s),
        }
    }
}

impl From<Option<u64>> for Expiry {
    fn from(at_s: Option<u64>) -> Self {
        at_s.map_or(Self::Never, Self::At)
    }
}

impl FromStr for Expiry {
    type Err = NoDate;

    fn from_str(text: &str) -> Result<Self, NoDate> {
        if text == "never" {
            return Ok(Self::Never);
        }
        let (day, time) = match text.split_once('T') {
            Some((day, time)) => (day, Some(time.strip_suffix('Z').ok_or(NoDate)?)),
            None => (text, None),
        };
        let [year, month, day] = numbers(day, '-', [4, 2, 2])?;
        let month = Month::try_from(month as u8).map_err(|_| NoDate)?;
        let date = Date::from_calendar_date(i32::from(year), month, day as u8).map_err(|_| NoDate)?;
        let moment = match time {
            Some(time) => {
                let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
                Time::from_hms(hour as u8, minute as u8, second as u8).map_err(|_| NoDate)?
            }
            None => Time::MIDNIGHT,
        };
        let at_s = PrimitiveDateTime::new(date, moment).assume_utc().unix_timestamp();
        let at_s = u64::try_from(at_s).map_err(|_| NoDate)?;
        Ok(Self::At(if time.is_none() { at_s + DAY_S } else { at_s }))
    }
}

/// Three numbers of exactly this many digits.
fn numbers(text: &str, between: char, digits: [usize; 3]) -> Result<[u16; 3], NoDate> {
    let parts: Vec<&str> = text.split(between).collect();
    let parts: [&str; 3] = parts.try_into().map_err(|_| NoDate)?;
    let mut found = [0; 3];
    for ((part, digits), number) in parts.into_iter().zip(digits).zip(&mut found) {
        if part.len() != digits || !part.bytes().all(|b| b.is_ascii_digit()) {
            return Err(NoDate);
        }
        *number = part.parse().map_err(|_| NoDate)?;
    }
    Ok(found)
}

impl fmt::Display for Expiry {
    /// Writes the form that [`Expiry::from_str`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::At(at_s) = *self else { return f.write_str("never") };
        let is_whole = at_s >= DAY_S && at_s.is_multiple_of(DAY_S);
        let shown_s = if is_whole { at_s - DAY_S } else { at_s };
        let Some(at) = i64::try_from(shown_s).ok().and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok())
        else {
            return write!(f, "{at_s} s");
        };
        write!(f, "{:04}-{:02}-{:02}", at.year(), u8::from(at.month()), at.day())?;
        if is_whole { Ok(()) } else { write!(f, "T{:02}:{:02}:{:02}Z", at.hour(), at.minute(), at.second()) }
    }
}

/// A moment, as seconds since 1970: `2027-01-31T12:00:00Z`, `2027-01-31T13:00+01:00`, or by this
/// machine's clock `2027-01-31 13:00`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(pub u64);

const MOMENT: &str = "write a time such as 2027-01-31T12:00:00Z, 2027-01-31T13:00:00+01:00, or by this machine's clock '2027-01-31 13:00'";

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || MOMENT.to_owned();
        let (day, rest) = text.split_once(['T', 't', ' ']).ok_or_else(wrong)?;
        let (time, zone) = match rest.find(['Z', 'z', '+', '-']) {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let [year, month, day] = numbers(day, '-', [4, 2, 2]).map_err(|_| wrong())?;
        // Fractions of a second are cut off.
        let time = time.split_once('.').map_or(time, |(whole, _)| whole);
        let [hour, minute, second] = match numbers(time, ':', [2, 2, 2]) {
            Ok(found) => found,
            Err(_) => numbers(&format!("{time}:00"), ':', [2, 2, 2]).map_err(|_| wrong())?,
        };
        let month = Month::try_from(month as u8).map_err(|_| wrong())?;
        let date = Date::from_calendar_date(i32::from(year), month, day as u8).map_err(|_| wrong())?;
        let time = Time::from_hms(hour as u8, minute as u8, second as u8).map_err(|_| wrong())?;
        let as_utc_s = PrimitiveDateTime::new(date, time).assume_utc().unix_timestamp();
        let at_s = match zone {
            "" => local(as_utc_s)?,
            zone => as_utc_s - offset_s(zone).ok_or_else(wrong)?,
        };
        u64::try_from(at_s).map(Self).map_err(|_| wrong())
    }
}

/// Seconds east of Greenwich.
fn offset_s(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let (sign, digits) = match zone.split_at_checked(1)? {
        ("+", digits) => (1, digits),
        ("-", digits) => (-1, digits),
        _ => return None,
    };
    let [hours, minutes, _] = numbers(&format!("{digits}:00"), ':', [2, 2, 2]).ok()?;
    (hours < 24 && minutes < 60).then(|| sign * (i64::from(hours) * 3600 + i64::from(minutes) * 60))
}

/// The moment at which this machine's clock shows what UTC's shows at `as_utc_s`.
fn local(as_utc_s: i64) -> Result<i64, String> {
    // No zone is farther away, and its offset changes seldom: one of these is in force at the
    // moment that is looked for.
    let offsets = [as_utc_s - DAY_S as i64, as_utc_s + DAY_S as i64].map(crate::kernel_clock::local_offset_s);
    let [before, after] = offsets.map(|offset| offset.map(|offset| as_utc_s - offset));
    let shows =
        |at: Option<i64>| at.filter(|at| crate::kernel_clock::local_offset_s(*at) == Some(as_utc_s - *at));
    match (shows(before), shows(after)) {
        (Some(one), Some(other)) if one != other => {
            Err("this machine's clock showed that time twice, when summer time ended: add the offset, as in 2027-10-31T02:30:00+02:00".to_owned())
        }
        (Some(at), _) | (None, Some(at)) => Ok(at),
        (None, None) => Err("this machine's clock never showed that time, when summer time began".to_owned()),
    }
}

/// A moment as people and programs read it, in UTC.
#[must_use]
pub fn rfc3339(at_s: u64) -> String {
    match i64::try_from(at_s).ok().and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok()) {
        Some(at) => format!(
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
            at.year(),
            u8::from(at.month()),
            at.day(),
            at.hour(),
            at.minute(),
            at.second()
        ),
        None => format!("{at_s} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_good_to_its_end_and_reads_back() {
        for (text, at_s) in [
            ("2027-01-31", 1_801_440_000),
            ("2027-01-31T12:30:00Z", 1_801_398_600),
            ("1970-01-01", 86_400),
            ("2028-02-29", 1_835_481_600),
        ] {
            assert_eq!(text.parse(), Ok(Expiry::At(at_s)), "{text}");
            assert_eq!(Expiry::At(at_s).to_string(), text);
        }
        assert_eq!("never".parse(), Ok(Expiry::Never));
        for text in [
            "",
            "2027",
            "2027-1-31",
            "2027-13-01",
            "2027-02-29",
            "31.1.2027",
            "2027-01-31T25:00:00Z",
            "2027-01-31T12:00:00",
            "1969-01-01",
            "2027-01-31 ",
            "+027-01-31",
            "99999-01-01",
        ] {
            assert_eq!(text.parse::<Expiry>(), Err(NoDate), "{text}");
        }
        assert_eq!(Expiry::At(u64::MAX).to_string(), format!("{} s", u64::MAX));
    }

    #[test]
    fn a_moment_has_a_zone_or_is_of_this_machine() {
        for text in [
            "2027-01-31T12:30:00Z",
            "2027-01-31t12:30:00.999z",
            "2027-01-31 12:30Z",
            "2027-01-31T13:30:00+01:00",
            "2027-01-31T07:00-05:30",
        ] {
            assert_eq!(text.parse(), Ok(Moment(1_801_398_600)), "{text}");
        }
        assert_eq!(rfc3339(1_801_398_600), "2027-01-31T12:30:00Z");
        for text in [
            "",
            "2027-01-31",
            "2027-01-31T12",
            "2027-02-29T12:00Z",
            "2027-01-31T12:00:00+1",
            "2027-01-31T12:00+24:00",
            "1969-12-31T00:00Z",
            "now",
        ] {
            assert!(text.parse::<Moment>().is_err(), "{text}");
        }
        let Moment(here) = "2027-01-31 12:30".parse().unwrap();
        let offset = crate::kernel_clock::local_offset_s(here as i64).unwrap();
        assert_eq!(here as i64 + offset, 1_801_398_600);
    }
}
