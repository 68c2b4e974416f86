//! Inner addresses whose sessions are over, until the parent has had the kernel forget their
//! connections.
//!
//! INVARIANT: a session whose address is among them is announced to its client only when it is not
//! any more: its client sends nothing before, so what it gets is its own. Nothing takes an address
//! out but the parent's confirmation.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::administration::Administration;
use vpnd_ipc::gateway::MAX_RELEASED;

/// Time for the kernel to forget connections. A client waits longer for the answer to its login.
pub(super) const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// The addresses, for the control plane and for the task that has the parent release them.
#[derive(Clone, Default)]
pub struct Releases(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    added: Notify,
    released: Notify,
}

#[derive(Default)]
struct State {
    waiting: BTreeSet<IpAddr>,
    /// Those that the parent was sent.
    under_way: BTreeSet<IpAddr>,
}

impl Releases {
    /// Sessions with these addresses are over.
    pub fn add(&self, addresses: BTreeSet<IpAddr>) {
        if !addresses.is_empty() {
            self.0.state().waiting.extend(addresses);
            self.0.added.notify_one();
        }
    }

    /// Whether none of these addresses waits for its release.
    pub fn are_released(&self, mut addresses: impl Iterator<Item = IpAddr>) -> bool {
        let state = self.0.state();
        !addresses.any(|address| state.waiting.contains(&address) || state.under_way.contains(&address))
    }

    /// Returns when addresses were released since it last did. For one task.
    pub async fn progress(&self) {
        self.0.released.notified().await;
    }

    /// The addresses that wait for their release, for the process that takes the sessions over.
    pub fn pending(&self) -> Vec<IpAddr> {
        let state = self.0.state();
        state.waiting.union(&state.under_way).copied().collect()
    }

    /// Has the parent release what is added; never returns.
    pub(super) async fn run(self, administration: Arc<Administration>) {
        let shared = &self.0;
        loop {
            let addresses = shared.state().take_some();
            if addresses.is_empty() {
                shared.added.notified().await;
                continue;
            }
            if administration.parent.release(addresses).await.is_err() {
                // The daemon is going down.
                return;
            }
            shared.state().under_way.clear();
            shared.released.notify_one();
        }
    }
}

impl State {
    fn take_some(&mut self) -> Vec<IpAddr> {
        let some: Vec<IpAddr> = self.waiting.iter().take(MAX_RELEASED).copied().collect();
        for address in &some {
            self.waiting.remove(address);
        }
        self.under_way.extend(&some);
        some
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_waits_until_the_parent_has_confirmed_its_release() {
        let releases = Releases::default();
        let [ended, other]: [IpAddr; 2] = ["10.86.0.7", "10.86.0.8"].map(|text| text.parse().unwrap());
        releases.add(BTreeSet::from([ended]));
        assert!(!releases.are_released([ended, other].into_iter()));
        assert!(releases.are_released([other].into_iter()));
        let shared = &releases.0;
        assert_eq!(shared.state().take_some(), [ended]);
        assert!(!releases.are_released([ended].into_iter()), "not done yet");
        assert_eq!(releases.pending(), [ended]);
        shared.state().under_way.clear();
        assert!(releases.are_released([ended].into_iter()));
    }
}
