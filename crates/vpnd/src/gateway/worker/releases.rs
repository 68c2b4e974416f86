//! Inner addresses whose sessions are over, until the parent has had the kernel forget their connections.
//!
//! INVARIANT: a session whose address is among them is announced to its client only when it is not any more, or the parent takes
//! too long: its client sends nothing before, so what it gets is its own.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::administration::Administration;
use crate::gateway::messages::MAX_RELEASED;

/// Limit for a new session to wait; all others wait with it.
const PARENT_TIMEOUT: Duration = Duration::from_secs(2);

/// The addresses, for the control plane and for the task that has the parent release them.
#[derive(Clone, Default)]
pub(crate) struct Releases(Option<Arc<Shared>>);

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

impl State {
    fn is_released(&self, addresses: &[IpAddr]) -> bool {
        !addresses.iter().any(|address| self.waiting.contains(address) || self.under_way.contains(address))
    }
}

impl Releases {
    /// By a parent that takes such requests or, being of an earlier version, does not: then nothing is released or waited for.
    pub(super) fn by_parent(takes: Option<bool>) -> Self {
        Self((takes == Some(true)).then(Arc::default))
    }

    /// Sessions with these addresses are over.
    pub(crate) fn add(&self, addresses: BTreeSet<IpAddr>) {
        if let (Some(shared), false) = (&self.0, addresses.is_empty()) {
            shared.state().waiting.extend(addresses);
            shared.added.notify_one();
        }
    }

    /// Waits until these addresses are released.
    pub(crate) async fn released(&self, addresses: &[IpAddr]) {
        let Some(shared) = &self.0 else { return };
        let wait = async {
            loop {
                let next = shared.released.notified();
                if shared.state().is_released(addresses) {
                    return;
                }
                next.await;
            }
        };
        if tokio::time::timeout(PARENT_TIMEOUT, wait).await.is_err() {
            tracing::warn!("a session begins before the kernel has forgotten connections of its address");
        }
    }

    /// Has the parent release what is added, for ever.
    pub(super) async fn run(self, administration: Arc<Administration>) {
        let Some(shared) = &self.0 else { return };
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
            shared.released.notify_waiters();
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
    async fn a_session_waits_for_its_address_and_no_other() {
        let releases = Releases::by_parent(Some(true));
        let addresses: Vec<IpAddr> = ["10.86.0.7", "10.86.0.8"].map(|text| text.parse().unwrap()).into();
        releases.add(addresses[..1].iter().copied().collect());
        let limit = PARENT_TIMEOUT / 20;
        assert!(tokio::time::timeout(limit, releases.released(&addresses)).await.is_err());
        assert!(tokio::time::timeout(limit, releases.released(&addresses[1..])).await.is_ok());
        let shared = releases.0.as_ref().unwrap();
        assert_eq!(shared.state().take_some(), addresses[..1]);
        assert!(tokio::time::timeout(limit, releases.released(&addresses)).await.is_err(), "not done yet");
        shared.state().under_way.clear();
        assert!(tokio::time::timeout(limit, releases.released(&addresses)).await.is_ok());
    }

    #[tokio::test]
    async fn a_parent_that_does_not_answer_keeps_nobody_out() {
        let releases = Releases::by_parent(Some(true));
        let address = "10.86.0.7".parse().unwrap();
        releases.add(BTreeSet::from([address]));
        releases.released(&[address]).await;
        Releases::default().released(&[address]).await;
    }
}
