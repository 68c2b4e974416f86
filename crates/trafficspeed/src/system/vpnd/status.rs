//! A running gateway's own account, read from `vpnd status --json`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The output of `vpnd status --json`, as far as a measurement needs it.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Status {
    #[serde(default)]
    pub(super) sessions: Vec<Session>,
    /// Cipher suites on offer.
    #[serde(default)]
    pub(super) suites: Vec<Suite>,
    #[serde(default)]
    counters: Counters,
}

/// The gateway's counters since it started, by name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Packets and datagrams dropped.
    #[serde(default)]
    pub drops: BTreeMap<String, u64>,
    /// Outcomes of logins and attaches.
    #[serde(default)]
    pub logins: BTreeMap<String, u64>,
    /// Handshakes by their end.
    #[serde(default)]
    pub handshakes: BTreeMap<String, u64>,
    /// Waits in which its shards polled, by their end, and the time in milliseconds.
    #[serde(default)]
    pub polling: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default)]
pub struct Held {
    /// Sessions in its table.
    pub sessions: u32,
    /// Those of them with a control connection.
    pub connected: u32,
    /// Inner IPv4 addresses that are leased, each once.
    pub leases: u32,
    /// Bytes of everything in its state directory.
    pub store_bytes: u64,
    pub counters: Counters,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Session {
    pub(super) user: String,
    pub(super) inner_v4: Option<Ipv4Addr>,
    pub(super) inner_v6: Option<Ipv6Addr>,
    pub(super) suite: Option<String>,
    pub(super) backend: Option<String>,
    #[serde(default)]
    connected: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Suite {
    suite: String,
    backend: Option<String>,
    /// Its speed at the gateway, MB/s.
    #[serde(default)]
    mbps: u32,
}

impl Status {
    /// The name of the suite that is fastest at the gateway; of equally fast ones, the first.
    pub(super) fn fastest_suite(&self) -> Option<String> {
        let fastest = self.suites.iter().rev().max_by_key(|suite| suite.mbps);
        fastest.map(|suite| suite.suite.clone())
    }

    /// The library of a suite at the gateway.
    pub(super) fn library_of(&self, suite: &str) -> Option<String> {
        self.suites.iter().find(|known| known.suite == suite)?.backend.clone()
    }
}

impl Held {
    /// From `status`, with the size of the state in `directory`.
    pub(super) fn of(status: Status, directory: &Path) -> Self {
        let sessions = &status.sessions;
        let leases: BTreeSet<_> = sessions.iter().filter_map(|session| session.inner_v4).collect();
        Self {
            sessions: sessions.len() as u32,
            connected: sessions.iter().filter(|session| session.connected).count() as u32,
            leases: leases.len() as u32,
            store_bytes: bytes_below(directory),
            counters: status.counters,
        }
    }
}

/// Bytes of all files in a directory. One that is renamed meanwhile may be missed.
fn bytes_below(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.metadata().ok())
        .filter(fs::Metadata::is_file)
        .map(|file| file.len())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_read_with_fields_we_do_not_know_and_without_those_we_do() {
        let text = r#"{"version":9,"sessions":[{"user":"client1","inner_v4":"10.86.0.2","suite":"aes-256-gcm","x":1}]}"#;
        let status: Status = serde_json::from_str(text).unwrap();
        assert_eq!(status.sessions[0].inner_v4, Some(Ipv4Addr::new(10, 86, 0, 2)));
        assert_eq!(status.sessions[0].inner_v6, None);
        assert_eq!(status.fastest_suite(), None);
    }

    #[test]
    fn the_fastest_suite_is_the_first_of_equals() {
        let text = r#"{"suites":[{"suite":"slow","mbps":1},{"suite":"a","mbps":9},{"suite":"b","mbps":9},{"suite":"c","mbps":2}]}"#;
        let status: Status = serde_json::from_str(text).unwrap();
        assert_eq!(status.fastest_suite().as_deref(), Some("a"));
    }

    #[test]
    fn what_is_held_is_counted_once_each() {
        let text = r#"{"sessions":[{"user":"a","inner_v4":"10.86.0.2","connected":true},
                                   {"user":"b","inner_v4":"10.86.0.2"}],"counters":{"drops":{"x":3}}}"#;
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), [0; 100]).unwrap();
        let held = Held::of(serde_json::from_str(text).unwrap(), directory.path());
        assert_eq!((held.sessions, held.connected, held.leases, held.store_bytes), (2, 1, 1, 100));
        assert_eq!(held.counters.drops["x"], 3);
    }
}
