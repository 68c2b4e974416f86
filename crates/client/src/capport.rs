//! Captive portals that announce themselves: the address of their API, which DHCP or a router
//! advertisement names (RFC 8910), and the API's answer (RFC 8908).
//!
//! The address is read where systemd-networkd (from 254) writes it; other network managers keep it
//! nowhere. INVARIANT: the network's operator, who may be an attacker, chooses all of it, so it is
//! shown to people and decides nothing. Lengths are bounded, and an address is shown only if it is
//! one of https without a character that a terminal or a program could take for something else.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout;

use crate::fetch::{self, FetchError};
use crate::person::browser;
use vpnd_config::https_url::HttpsUrl;

/// Where systemd-networkd writes down the state of each link.
const LINKS: &str = "/run/systemd/netif/links";
/// Links that are read, and the longest state of one, bytes.
const MAX_LINKS: usize = 64;
const MAX_STATE: u64 = 64 << 10;
/// In the place of an address: the network has no portal (RFC 8910 §2).
const UNRESTRICTED: &str = "urn:ietf:params:capport:unrestricted";
/// The kind of the API's answers.
const CAPTIVE_JSON: &str = "application/captive+json";
/// Limit for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(6);

/// The word of a network that this machine is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// It has no captive portal.
    Unrestricted,
    /// The address of its portal's API.
    Api(HttpsUrl),
    /// It names something that is no such address.
    Nonsense,
}

/// An API's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Whether a person has to log in.
    pub is_captive: bool,
    /// The page for that, if the answer names one.
    pub page: Option<String>,
    /// Until that is so again, seconds and bytes.
    pub seconds: Option<u64>,
    pub bytes: Option<u64>,
}

/// An answer as it is written. Numbers that make no sense are left out.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Answer {
    captive: bool,
    user_portal_url: Option<String>,
    seconds_remaining: Option<Value>,
    bytes_remaining: Option<Value>,
}

/// The word of each network that has any.
#[must_use]
pub fn named() -> Vec<Named> {
    of_directory(Path::new(LINKS))
}

/// Asks a portal's API how it is now.
///
/// # Errors
/// Why there is no answer, for people.
pub async fn ask(api: &HttpsUrl) -> Result<State, String> {
    let fetched = timeout(ANSWER_TIMEOUT, fetch::document(api, CAPTIVE_JSON)).await;
    let body = match fetched {
        Ok(Ok(body)) => body,
        Ok(Err(FetchError::Connect { source, .. })) => return Err(format!("it can't be reached: {source}")),
        Ok(Err(FetchError::Untrusted { source, .. })) => {
            return Err(format!("it has no certificate that this machine trusts: {source}"));
        }
        Ok(Err(FetchError::Status { status, .. })) => return Err(format!("it answers '{status}'")),
        Ok(Err(_)) => return Err("its answer makes no sense".to_owned()),
        Err(_) => return Err("it does not answer".to_owned()),
    };
    parse(&body).ok_or_else(|| "its answer makes no sense".to_owned())
}

fn parse(body: &[u8]) -> Option<State> {
    let answer: Answer = serde_json::from_slice(body).ok()?;
    let number = |value: Option<Value>| value.and_then(|value| value.as_u64());
    Some(State {
        is_captive: answer.captive,
        page: answer.user_portal_url.filter(|page| browser::check(page).is_ok()),
        seconds: number(answer.seconds_remaining),
        bytes: number(answer.bytes_remaining),
    })
}

fn of_directory(directory: &Path) -> Vec<Named> {
    let entries = fs::read_dir(directory).into_iter().flatten().take(MAX_LINKS).flatten();
    let mut words: Vec<Named> = entries.filter_map(|entry| of_link(&entry.path())).collect();
    words.dedup();
    words
}

fn of_link(path: &Path) -> Option<Named> {
    let mut text = String::new();
    File::open(path).ok()?.take(MAX_STATE).read_to_string(&mut text).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix("CAPTIVE_PORTAL="))?;
    let value = value.trim_matches('"');
    Some(match value {
        UNRESTRICTED => Named::Unrestricted,
        _ if browser::check(value).is_ok() => value.parse().map_or(Named::Nonsense, Named::Api),
        _ => Named::Nonsense,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_names_the_address_of_an_api_or_that_it_has_none() {
        let directory = tempfile::tempdir().unwrap();
        let word = |value: &str| {
            fs::write(directory.path().join("2"), format!("ADMIN_STATE=configured\n{value}\nDNS=\n"))
                .unwrap();
            of_directory(directory.path())
        };
        let api = "https://portal.cafe.example/api?a=b";
        for line in [format!("CAPTIVE_PORTAL={api}"), format!("CAPTIVE_PORTAL=\"{api}\"")] {
            assert_eq!(word(&line), [Named::Api(api.parse().unwrap())]);
        }
        assert_eq!(word(&format!("CAPTIVE_PORTAL={UNRESTRICTED}")), [Named::Unrestricted]);
        for wrong in [
            "http://portal.cafe.example/",
            "https://a@b.example/",
            "https://a.example/\u{1b}[2J",
            "",
            "https://",
        ] {
            assert_eq!(word(&format!("CAPTIVE_PORTAL={wrong}")), [Named::Nonsense], "{wrong:?}");
        }
        assert_eq!(word("X_CAPTIVE_PORTAL=https://a.example/"), []);
        let long = format!("https://a.example/{}", "a".repeat(2_000));
        assert_eq!(word(&format!("CAPTIVE_PORTAL={long}")), [Named::Nonsense]);
        fs::write(directory.path().join("2"), [0xFF, 0xFE]).unwrap();
        assert_eq!(of_directory(directory.path()), []);
        assert_eq!(of_directory(&directory.path().join("none")), []);
    }

    #[test]
    fn an_answer_says_whether_one_has_to_log_in_and_where() {
        let page = "https://portal.cafe.example/login";
        let captive = format!(r#"{{"captive": true, "user-portal-url": "{page}", "venue-info-url": 7}}"#);
        let state = parse(captive.as_bytes()).unwrap();
        assert_eq!((state.is_captive, state.page.as_deref()), (true, Some(page)));
        let free = br#"{"captive": false, "seconds-remaining": 326, "bytes-remaining": 65.5}"#;
        let state = parse(free).unwrap();
        assert_eq!((state.is_captive, state.seconds, state.bytes), (false, Some(326), None));
        for page in ["http://a.example/", "https://a.example/\\u001b[2J", "javascript:x"] {
            let state = parse(format!(r#"{{"captive": true, "user-portal-url": "{page}"}}"#).as_bytes());
            assert_eq!(state.unwrap().page, None, "{page}");
        }
        for wrong in [&b""[..], b"{}", b"[true]", br#"{"captive": "yes"}"#, b"\xFF", b"<html>"] {
            assert_eq!(parse(wrong), None);
        }
    }
}
