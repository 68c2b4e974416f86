//! Inner addresses whose sessions are over: the kernel forgets their connections, so that a session
//! that gets an address next gets no packet of them, by state of the firewall or of translation.
//!
//! INVARIANT: nothing but entries of addresses of the pools is removed, and none of the gateway's
//! own. Which of these are in use is the worker's word: it carries their packets, and could drop
//! these as well. No request is refused for its rate: requests that come while the kernel's list is
//! read wait, and share the next reading. One is confirmed only once it is done.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::machine;
use vpnd_config::{NatMode, ServerConfig};
use vpnd_ipc::child::ChildRole;
use vpnd_ipc::gateway::MAX_RELEASED;
use vpnd_ipc::spawn::ChildError;
use vpnd_sys::conntrack;

/// Addresses that wait at most: one request of the worker, and one of the worker before it.
const MAX_WAITING: usize = 2 * MAX_RELEASED;
/// Pause after a removal that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Has the kernel forget these addresses' connections; returns how many it has forgotten.
type Forget = fn(&BTreeSet<IpAddr>) -> io::Result<usize>;

/// The removal of entries, one after the other.
pub(super) struct Releases {
    pools: Vec<IpNet>,
    /// The gateway's own addresses.
    own: Vec<IpAddr>,
    forget: Forget,
    waiting: BTreeSet<IpAddr>,
    under_way: Option<Removal>,
    /// The next removal begins no earlier. Each reads all connections of the machine, so half of
    /// the time is left to other work.
    not_before: Instant,
    /// Whether the worker waits for a confirmation.
    is_asked: bool,
}

struct Removal {
    addresses: BTreeSet<IpAddr>,
    began: Instant,
    task: JoinHandle<io::Result<usize>>,
}

impl Releases {
    pub(super) fn new(config: &ServerConfig) -> Self {
        Self {
            pools: config.tunnel.pools().collect(),
            own: machine::gateway_addresses(config).iter().map(IpNet::addr).collect(),
            // Without forwarding, which connections the kernel knows is the affair of the machine's
            // own firewall.
            forget: match config.nat.mode {
                NatMode::None => |_| Ok(0),
                _ => conntrack::forget_addresses,
            },
            waiting: BTreeSet::new(),
            under_way: None,
            not_before: Instant::now(),
            is_asked: false,
        }
    }

    /// Has the entries of these addresses removed. [`Releases::done`] does the work.
    ///
    /// # Errors
    /// If no worker releases such addresses, or too many before the last ones are confirmed.
    pub(super) fn begin(&mut self, addresses: Vec<IpAddr>) -> Result<(), ChildError> {
        let unexpected = || ChildError::Unexpected(ChildRole::Worker);
        self.waiting.extend(self.check(addresses).ok_or_else(unexpected)?);
        self.is_asked = true;
        if self.waiting.len() > MAX_WAITING { Err(unexpected()) } else { Ok(()) }
    }

    /// `None` if no session can have had one of these addresses.
    fn check(&self, addresses: Vec<IpAddr>) -> Option<BTreeSet<IpAddr>> {
        let is_releasable = |address: &IpAddr| {
            self.pools.iter().any(|pool| pool.contains(address)) && !self.own.contains(address)
        };
        let all = addresses.len() <= MAX_RELEASED && addresses.iter().all(is_releasable);
        all.then(|| addresses.into_iter().collect())
    }

    /// Removes what waits, again and again if that fails, until nothing is left of what the worker
    /// has asked for; never returns if it has not. To be called again after it was dropped.
    pub(super) async fn done(&mut self) {
        loop {
            if let Some(removal) = &mut self.under_way {
                let removed = (&mut removal.task).await.map_err(io::Error::other).and_then(|removed| removed);
                self.finish(removed);
            } else if !self.waiting.is_empty() {
                tokio::time::sleep_until(self.not_before).await;
                let (addresses, forget) = (std::mem::take(&mut self.waiting), self.forget);
                let these = addresses.clone();
                let task = tokio::task::spawn_blocking(move || forget(&these));
                self.under_way = Some(Removal { addresses, began: Instant::now(), task });
            } else if std::mem::take(&mut self.is_asked) {
                return;
            } else {
                std::future::pending().await
            }
        }
    }

    fn finish(&mut self, removed: io::Result<usize>) {
        let Some(removal) = self.under_way.take() else { return };
        let now = Instant::now();
        match removed {
            Ok(removed) => {
                tracing::debug!(removed, "connections of ended sessions are forgotten");
                self.not_before = now + (now - removal.began);
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => tracing::warn!(
                %error,
                "this kernel can't forget connections (CONFIG_NF_CT_NETLINK): those of ended sessions stay until they time out, and \
                 the next holder of an address may get packets of them"
            ),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "connections of ended sessions can't be removed from the kernel's table; trying again, and no other client gets their \
                     addresses before"
                );
                self.waiting.extend(removal.addresses);
                self.not_before = now + RETRY_INTERVAL;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn releases(forget: Forget) -> Releases {
        Releases {
            pools: vec!["10.86.0.0/16".parse().unwrap(), "fd86::/64".parse().unwrap()],
            own: vec!["10.86.0.1".parse().unwrap()],
            forget,
            waiting: BTreeSet::new(),
            under_way: None,
            not_before: Instant::now(),
            is_asked: false,
        }
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 86, 1, last])
    }

    #[tokio::test]
    async fn nothing_but_addresses_of_the_pools_is_released() {
        let check = |text: &[&str]| {
            let addresses = text.iter().map(|text| text.parse().unwrap()).collect();
            releases(|_| Ok(0)).check(addresses).map(|addresses| addresses.len())
        };
        assert_eq!(check(&["10.86.0.7", "10.86.0.7", "fd86::7"]), Some(2));
        for other in ["10.85.255.255", "10.87.0.0", "192.0.2.1", "fd87::1", "::ffff:10.86.0.7", "10.86.0.1"] {
            assert_eq!(check(&["10.86.0.7", other]), None, "{other}");
        }
        assert_eq!(check(&vec!["10.86.0.7"; MAX_RELEASED + 1]), None);
    }

    /// A worker asks as fast as it can, each time before the last is done: all are removed, in few
    /// readings of the list.
    #[tokio::test]
    async fn frequent_release_requests_are_merged() {
        static READINGS: AtomicUsize = AtomicUsize::new(0);
        static FORGOTTEN: AtomicUsize = AtomicUsize::new(0);
        let mut releases = releases(|addresses| {
            std::thread::sleep(Duration::from_millis(20));
            READINGS.fetch_add(1, Ordering::SeqCst);
            FORGOTTEN.fetch_add(addresses.len(), Ordering::SeqCst);
            Ok(addresses.len())
        });
        for last in 0..100 {
            releases.begin(vec![address(last)]).unwrap();
            let _ = tokio::time::timeout(Duration::from_millis(1), releases.done()).await;
        }
        releases.done().await;
        assert_eq!(FORGOTTEN.load(Ordering::SeqCst), 100);
        assert!(READINGS.load(Ordering::SeqCst) < 50, "{READINGS:?}");
        assert!(tokio::time::timeout(Duration::from_millis(50), releases.done()).await.is_err(), "once each");
    }

    #[tokio::test]
    async fn a_removal_that_fails_is_confirmed_only_once_it_is_done() {
        static LEFT: AtomicUsize = AtomicUsize::new(1);
        let mut releases = releases(|addresses| {
            assert_eq!(*addresses, BTreeSet::from([address(1)]));
            let fail = LEFT.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            fail.map_or(Ok(1), |_| Err(io::Error::other("no memory")))
        });
        releases.begin(vec![address(1)]).unwrap();
        releases.done().await;
        assert_eq!(LEFT.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn a_kernel_without_connection_tracking_delays_no_release() {
        let mut releases = releases(|_| Err(io::ErrorKind::Unsupported.into()));
        releases.begin(vec![address(1)]).unwrap();
        releases.done().await;
    }

    #[tokio::test]
    async fn releases_beyond_the_limit_without_a_confirmation_are_an_error() {
        let mut releases = releases(|_| Ok(0));
        let many = |third: u8| (0..=255).map(|last| IpAddr::from([10, 86, third, last])).collect::<Vec<_>>();
        for third in 1..=8 {
            releases.begin(many(third)).unwrap();
        }
        assert!(releases.begin(many(9)).is_err());
    }
}
