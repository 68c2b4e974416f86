//! DNS names as configurations have them.

use std::fmt;
use std::str::FromStr;

/// A DNS name in its text form, checked for length and characters (RFC 1035 section 2.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsName(String);

impl DnsName {
    /// The name, without a dot at its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DnsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for DnsName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let letters =
            |label: &str| label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        let label_ok = |label: &str| {
            (1..=63).contains(&label.len())
                && letters(label)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        let is_valid = (1..=253).contains(&text.len()) && text.split('.').all(label_ok);
        if is_valid { Ok(Self(text.to_owned())) } else { Err(()) }
    }
}
