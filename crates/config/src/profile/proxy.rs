//! The HTTP proxy through which a client reaches the gateway over TCP.
//!
//! INVARIANT: a password shows neither in `Debug` nor in a problem.

use std::fmt;
use std::str::FromStr;

use zeroize::Zeroizing;

use super::ServerAddress;

/// Text of a message about a proxy that is none.
pub const PROXY: &str = "the address of an HTTP proxy such as \"http://proxy.example.org:3128\" or \"http://user:password@192.0.2.1:3128\"";

/// A proxy that passes connections on (`CONNECT`).
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    /// The text as it was written.
    text: Zeroizing<String>,
    pub server: ServerAddress,
    /// User and password with a colon between.
    pub credentials: Option<Zeroizing<String>>,
}

impl Proxy {
    /// The text that is read as this proxy.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Removes user and password.
    #[must_use]
    pub fn without_credentials(self) -> Self {
        Self { text: Zeroizing::new(format!("http://{}", self.server)), credentials: None, ..self }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("server", &self.server).finish_non_exhaustive()
    }
}

impl FromStr for Proxy {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let rest = text.strip_prefix("http://").ok_or(())?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (credentials, server) = match rest.rsplit_once('@') {
            Some((credentials, server)) => (Some(decoded(credentials)?), server),
            None => (None, rest),
        };
        // A server's own default port is none of a proxy's.
        let has_port = server.rsplit(':').next().is_some_and(|port| port.parse::<u16>().is_ok());
        if !has_port || server.contains('/') || credentials.as_ref().is_some_and(|text| !text.contains(':')) {
            return Err(());
        }
        Ok(Self { text: Zeroizing::new(text.to_owned()), server: server.parse()?, credentials })
    }
}

/// Text in which some characters are written as `%` and two digits.
fn decoded(text: &str) -> Result<Zeroizing<String>, ()> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len()));
    let mut left = text.bytes();
    while let Some(byte) = left.next() {
        let mut digit = || char::from(left.next()?).to_digit(16);
        let byte = match byte {
            b'%' => digit().zip(digit()).map(|(high, low)| (high << 4 | low) as u8).ok_or(())?,
            byte => byte,
        };
        bytes.push(byte);
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| ())?;
    if text.chars().any(char::is_control) { Err(()) } else { Ok(Zeroizing::new(text.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_a_server_with_a_port_and_perhaps_credentials() {
        let plain: Proxy = "http://proxy.example.org:3128/".parse().unwrap();
        assert_eq!((plain.server.to_string().as_str(), plain.credentials), ("proxy.example.org:3128", None));
        let named: Proxy = "http://ann:p%40s:s%25@[2001:db8::1]:8080".parse().unwrap();
        assert_eq!(named.server.to_string(), "[2001:db8::1]:8080");
        assert_eq!(named.credentials.as_ref().unwrap().as_str(), "ann:p@s:s%");
        assert!(!format!("{named:?}").contains("ann"));
        let plain = named.without_credentials();
        assert_eq!((plain.as_str(), &plain.credentials), ("http://[2001:db8::1]:8080", &None));
        assert_eq!(plain.as_str().parse::<Proxy>(), Ok(plain));
        for bad in [
            "proxy.example.org:3128",
            "https://proxy.example.org:3128",
            "http://proxy.example.org",
            "http://proxy.example.org:3128/path",
            "http://ann@proxy.example.org:3128",
            "http://ann:a%zz@proxy.example.org:3128",
            "http://ann:a%0d%0aX: y@proxy.example.org:3128",
            "http://:3128",
            "http://",
        ] {
            assert!(bad.parse::<Proxy>().is_err(), "{bad}");
        }
    }
}
