//! Dates as administrators write and read them, in UTC: `2027-01-31` and `2027-01-31T12:00:00Z`.
//!
//! Invariant: a day without a time means all of it, so an account that expires on that day is good until its last second.

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

/// Three numbers of exactly so many digits.
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
    /// As [`Expiry::from_str`] reads it.
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
}
