//! Addresses of services that are reached by HTTPS.
//!
//! INVARIANT: the scheme is `https`, there is a host and a port, and nothing of a user.

use std::fmt;
use std::str::FromStr;

const HTTPS_PORT: u16 = 443;
const MAX_BYTES: usize = 512;

/// An address such as `https://login.uni.example/realms/uni`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpsUrl {
    text: String,
    host: String,
    port: u16,
}

impl HttpsUrl {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// A name or an address, that of IPv6 without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The TCP port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether there is nothing but scheme, host, port and path.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        !self.text.contains(['?', '#'])
    }

    /// Whether there is nothing but scheme, host and port.
    #[must_use]
    pub fn is_bare(&self) -> bool {
        self.is_plain() && !self.text.trim_start_matches("https://").contains('/')
    }
}

impl FromStr for HttpsUrl {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let url: hyper::Uri = text.parse().map_err(|_| ())?;
        let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let is_good = url.scheme_str() == Some("https") && !host.is_empty() && !text.contains('@');
        let port = url.port_u16().unwrap_or(HTTPS_PORT);
        if is_good && port > 0 && text.len() <= MAX_BYTES {
            Ok(Self { text: text.to_owned(), host: host.to_owned(), port })
        } else {
            Err(())
        }
    }
}

impl fmt::Display for HttpsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_port_are_those_of_the_address() {
        for (text, host, port) in [
            ("https://a.example", "a.example", 443),
            ("https://a.example:8443/b?c=d", "a.example", 8443),
            ("https://[2001:db8::1]:1/b", "2001:db8::1", 1),
        ] {
            let url: HttpsUrl = text.parse().unwrap();
            assert_eq!((url.as_str(), url.host(), url.port()), (text, host, port));
        }
        for wrong in ["http://a.example", "https://", "https://me@a.example", "https://a.example:0", "a", ""]
        {
            assert_eq!(wrong.parse::<HttpsUrl>(), Err(()), "{wrong}");
        }
        assert!("https://a/b".parse::<HttpsUrl>().unwrap().is_plain());
        for more in ["https://a/b?c", "https://a/b#c"] {
            assert!(!more.parse::<HttpsUrl>().unwrap().is_plain(), "{more}");
        }
        assert!("https://a:1".parse::<HttpsUrl>().unwrap().is_bare());
        for more in ["https://a/", "https://a/b", "https://a?b"] {
            assert!(!more.parse::<HttpsUrl>().unwrap().is_bare(), "{more}");
        }
    }
}
