//! The laboratory: the namespaces of the drawing in the main file, their links, addresses and
//! routes.
//!
//! Invariants: links are up and routes are there when [`Lab::new`] returns; clients cannot reach
//! the campus without a VPN: `net` has no route there, and the gateway forwards nothing until it is
//! configured to. This module must not know vpnd.

use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::namespace::{Namespace, remove_leftovers, unique_prefix};

/// The gateway's outer addresses.
pub(crate) const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
pub(crate) const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd18, 0, 0, 0, 0, 0, 0, 2);
/// The campus host that clients want to reach.
pub(crate) const CAMPUS_V4: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 2);
pub(crate) const CAMPUS_V6: Ipv6Addr = Ipv6Addr::new(0xfd20, 0, 0, 0, 0, 0, 0, 2);
/// The name of each client's and the gateway's interface towards `net`.
pub(crate) const UPLINK: &str = "up0";
/// The longest that a test waits for what takes seconds on a machine that does nothing else.
const MAX_PATIENCE: Duration = Duration::from_secs(90);

/// One laboratory; gone when dropped.
pub(crate) struct Lab {
    pub(crate) net: Namespace,
    pub(crate) gateway: Namespace,
    pub(crate) campus: Namespace,
    pub(crate) clients: Vec<Namespace>,
    directory: TempDir,
}

impl Lab {
    /// Builds it. `None`, and a loud word, if this process may not; a failure instead where `CI` is
    /// set.
    pub(crate) fn new(clients: u8) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            let word = "SKIPPED: tests in network namespaces need root; run ./x test\n";
            assert!(std::env::var_os("CI").is_none(), "{word}");
            // The test harness would hide what a passing test prints by its macros.
            std::io::stderr().write_all(word.as_bytes()).expect("standard error is open");
            return None;
        }
        remove_leftovers();
        let prefix = unique_prefix();
        let make = |role: &str| Namespace::new(format!("{prefix}{role}"));
        let lab = Self {
            net: make("net"),
            gateway: make("gateway"),
            campus: make("campus"),
            clients: (1..=clients).map(|n| make(&format!("client{n}"))).collect(),
            directory: TempDir::with_prefix(&prefix).expect("a temporary directory"),
        };
        for (n, client) in (1..).zip(&lab.clients) {
            lab.link(client, n);
        }
        lab.link(&lab.gateway, 0);
        lab.link_campus();
        for key in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            lab.net.sysctl(key, "1");
        }
        Some(lab)
    }

    /// Path of a file of this test.
    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The name of `net`'s interface towards client `n` (0: the gateway).
    pub(crate) fn port(n: u8) -> String {
        format!("port{n}")
    }

    fn link(&self, host: &Namespace, n: u8) {
        let port = Self::port(n);
        // Two ends with the same index make the kernel wait for up to a second before it believes
        // in the link.
        let index = 100 + u32::from(n);
        self.net.ip_batch(&format!(
            "link add {port} index {index} type veth peer name {UPLINK} netns {host}\n\
             addr add 198.18.{n}.1/24 dev {port}\n\
             addr add fd18:{n}::1/64 dev {port}\n\
             link set {port} up\n",
            host = host.name(),
        ));
        host.ip_batch(&format!(
            "addr add 198.18.{n}.2/24 dev {UPLINK}\n\
             addr add fd18:{n}::2/64 dev {UPLINK}\n\
             link set {UPLINK} up\n\
             route add default via 198.18.{n}.1\n\
             route add default via fd18:{n}::1\n",
        ));
    }

    fn link_campus(&self) {
        self.gateway.ip_batch(&format!(
            "link add campus0 index 200 type veth peer name {UPLINK} netns {campus}\n\
             addr add 10.200.0.1/24 dev campus0\n\
             addr add fd20::1/64 dev campus0\n\
             link set campus0 up\n",
            campus = self.campus.name(),
        ));
        // The campus has a route to the gateway and so to the clients' inner addresses, as a campus
        // router would.
        self.campus.ip_batch(&format!(
            "addr add {CAMPUS_V4}/24 dev {UPLINK}\n\
             addr add {CAMPUS_V6}/64 dev {UPLINK}\n\
             link set {UPLINK} up\n\
             route add default via 10.200.0.1\n\
             route add default via fd20::1\n",
        ));
    }
}

/// Asks again and again until there is an answer; fails with `what` when the time is up. The longer
/// it takes, the more rarely: most questions start a process, and the portal limits connections.
pub(crate) fn eventually<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let (start, limit) = (Instant::now(), extended(limit));
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        let elapsed = start.elapsed();
        assert!(elapsed < limit, "not within {limit:?}: {what}");
        std::thread::sleep((elapsed / 10).clamp(Duration::from_millis(20), Duration::from_millis(250)));
    }
}

/// Extends a limit, which is that of an idle machine, for a slow one that runs other tests
/// meanwhile. Short limits are promises and stay.
fn extended(limit: Duration) -> Duration {
    if limit < Duration::from_secs(5) { limit } else { limit.max((4 * limit).min(MAX_PATIENCE)) }
}
