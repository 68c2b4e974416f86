//! The inner addresses that a gateway of a fleet has announced: those of its sessions.
//!
//! INVARIANT: an address is announced with the generation of its session, and withdrawn once the
//! session is over or another gateway's. While the database is away, the address of a client that
//! is silent is withdrawn as well: it may be at another gateway, where the database is not away.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use vpnd_proto::gateway::Addresses;
use vpnd_proto::time::Time;

use super::administration::Administration;
use vpnd_ipc::gateway::{HostRoute, HostRouteChanges, MAX_HOSTS};

/// The database counts as away when its last answer is older.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Silence of a client after which its address is withdrawn while the database is away.
pub(super) const SILENCE: Duration = Duration::from_secs(10);
/// Pause after a request that was not carried out.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The addresses, for the control plane and for the task that has the parent announce them.
#[derive(Clone, Default)]
pub(crate) struct Hosts(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
    settled: Notify,
}

#[derive(Default)]
struct State {
    /// Addresses to announce, with generations.
    wanted: BTreeMap<IpAddr, u64>,
    /// Addresses that the parent has announced.
    in_force: BTreeMap<IpAddr, u64>,
    /// When the database has answered last.
    answered: Option<Time>,
    /// By the last look.
    was_away: bool,
}

impl Hosts {
    /// A session with these addresses is here since this generation.
    pub(crate) fn announce(&self, addresses: Addresses, generation: u64) {
        let mut state = self.0.state();
        let mut is_news = false;
        for address in addresses.iter() {
            let known = state.wanted.get(&address);
            if known.is_none_or(|known| *known < generation) {
                state.wanted.insert(address, generation);
                is_news = true;
            }
        }
        if is_news {
            self.0.changed.notify_one();
        }
    }

    /// It is here no longer. A later session may have the addresses by now.
    pub(crate) fn withdraw(&self, addresses: Addresses, generation: u64) {
        let mut state = self.0.state();
        for address in addresses.iter() {
            if state.wanted.get(&address) == Some(&generation) {
                state.wanted.remove(&address);
            }
        }
        self.0.changed.notify_one();
    }

    /// No session is here any more.
    pub(crate) fn withdraw_all(&self) {
        self.0.state().wanted.clear();
        self.0.changed.notify_one();
    }

    /// The database has answered.
    pub(crate) fn answered(&self, now: Time) {
        self.0.state().answered = Some(now);
    }

    /// Whether the database is away, as far as is known; `None` if it is not, and was not at the
    /// last look either.
    pub(crate) fn look(&self, now: Time) -> Option<bool> {
        let mut state = self.0.state();
        let is_away = state.answered.is_some_and(|answered| now.since(answered) > ANSWER_TIMEOUT);
        let was_away = std::mem::replace(&mut state.was_away, is_away);
        (is_away || was_away).then_some(is_away)
    }

    /// Returns once everything is announced and withdrawn.
    pub(crate) async fn settled(&self) {
        loop {
            let settled = self.0.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            if self.0.state().next_changes().is_none() {
                return;
            }
            settled.await;
        }
    }

    /// Has the parent announce and withdraw what has changed; never returns.
    pub(super) async fn run(self, administration: Arc<Administration>) {
        loop {
            let next = self.0.state().next_changes();
            let Some(changes) = next else {
                self.0.settled.notify_waiters();
                self.0.changed.notified().await;
                continue;
            };
            match administration.parent.set_hosts(changes.as_routes()).await {
                Ok(true) => self.0.state().made(&changes),
                Ok(false) => tokio::time::sleep(RETRY_INTERVAL).await,
                // The daemon is going down.
                Err(_) => return,
            }
        }
    }
}

/// Addresses with their generations.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    added: Vec<(IpAddr, u64)>,
    removed: Vec<(IpAddr, u64)>,
}

impl State {
    /// The next changes for the parent, if there are any.
    fn next_changes(&self) -> Option<Changes> {
        fn missing(all: &BTreeMap<IpAddr, u64>, other: &BTreeMap<IpAddr, u64>) -> Vec<(IpAddr, u64)> {
            let differs = |(address, generation): &(&IpAddr, &u64)| other.get(address) != Some(generation);
            let missing = all.iter().filter(differs).take(MAX_HOSTS / 2);
            missing.map(|(address, generation)| (*address, *generation)).collect()
        }
        let removed = missing(&self.in_force, &self.wanted);
        let added = missing(&self.wanted, &self.in_force);
        let changes = Changes { added, removed };
        (changes != Changes::default()).then_some(changes)
    }

    fn made(&mut self, Changes { added, removed }: &Changes) {
        for (address, generation) in removed {
            if self.in_force.get(address) == Some(generation) {
                self.in_force.remove(address);
            }
        }
        self.in_force.extend(added.iter().copied());
    }
}

impl Changes {
    fn as_routes(&self) -> HostRouteChanges {
        let routes = |hosts: &[(IpAddr, u64)]| {
            let route = |(address, generation): &(IpAddr, u64)| HostRoute {
                address: *address,
                metric: metric(*generation),
            };
            hosts.iter().map(route).collect()
        };
        HostRouteChanges { added: routes(&self.added), removed: routes(&self.removed) }
    }
}

/// The metric of a route, of which routers prefer the lowest: that of the latest generation.
fn metric(generation: u64) -> u32 {
    u32::MAX - u32::try_from(generation).unwrap_or(u32::MAX).clamp(1, u32::MAX - 1)
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(last: u8) -> Addresses {
        Addresses { ipv4: Some([10, 86, 0, last].into()), ipv6: None }
    }

    fn changes(hosts: &Hosts) -> Option<Changes> {
        let mut state = hosts.0.state();
        let changes = state.next_changes();
        changes.iter().for_each(|changes| state.made(changes));
        changes
    }

    fn pairs(changes: &[(u8, u64)]) -> Vec<(IpAddr, u64)> {
        changes.iter().map(|(last, generation)| ([10, 86, 0, *last].into(), *generation)).collect()
    }

    #[test]
    fn an_address_is_withdrawn_with_its_session_and_not_with_an_earlier_one() {
        let hosts = Hosts::default();
        hosts.announce(addresses(2), 7);
        assert_eq!(changes(&hosts).unwrap().added, pairs(&[(2, 7)]));
        // The device has logged in again: the new session begins before the old one is over.
        hosts.announce(addresses(2), 9);
        hosts.withdraw(addresses(2), 7);
        let replaced = Changes { added: pairs(&[(2, 9)]), removed: pairs(&[(2, 7)]) };
        assert_eq!(changes(&hosts), Some(replaced));
        assert_eq!(hosts.0.state().in_force, BTreeMap::from_iter(pairs(&[(2, 9)])));
        hosts.withdraw(addresses(2), 9);
        assert_eq!(changes(&hosts).unwrap().removed, pairs(&[(2, 9)]));
        assert_eq!(changes(&hosts), None);
    }

    #[test]
    fn a_later_generation_is_preferred() {
        for (earlier, later) in [(0, 2), (1, 2), (70_000, 70_001)] {
            assert!(metric(earlier) > metric(later), "{earlier} {later}");
        }
        assert!(metric(u64::MAX) > 0 && metric(0) < u32::MAX);
    }

    #[test]
    fn the_database_is_away_once_it_has_not_answered_for_a_while() {
        let (hosts, start) = (Hosts::default(), Time::ZERO + Duration::from_secs(100));
        assert_eq!(hosts.look(start), None, "it was not asked yet");
        hosts.answered(start);
        assert_eq!(hosts.look(start + ANSWER_TIMEOUT), None);
        assert_eq!(hosts.look(start + ANSWER_TIMEOUT * 2), Some(true));
        hosts.answered(start + ANSWER_TIMEOUT * 2);
        assert_eq!([0, 1].map(|_| hosts.look(start + ANSWER_TIMEOUT * 2)), [Some(false), None]);
    }

    #[tokio::test]
    async fn all_of_many_changes_are_made_in_parts() {
        let hosts = Hosts::default();
        for last in 0..=255 {
            hosts.announce(addresses(last), 1);
        }
        let mut parts = 0;
        while changes(&hosts).is_some() {
            parts += 1;
        }
        assert_eq!((parts, hosts.0.state().in_force.len()), (2, 256));
        hosts.settled().await;
    }
}
