//! Turns of logins, which wait for what the auth process does.
//!
//! Invariants: their number is limited at each source of users, so that a silent one keeps no
//! other's users waiting, and that of one host more so; where all are taken, a login waits for no
//! longer than [`LONGEST_WAIT`], and networks take turns in the order of [`vpnd_ipc::turns`], so
//! that a flood from some of them keeps no other login out.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use vpnd_ipc::gateway::portal::turns::{LOGINS_AT_ONCE, SourceNumber};
use vpnd_ipc::turns::{Turn, Turns};
use vpnd_proto::admission::Source;
use vpnd_proto::admission::shares::Standing;

use crate::refusals::{self, Reason};

/// Turns of one host at one source at the same time.
const OF_HOST: usize = 6;
/// Logins that wait for a turn, for each that has one.
const QUEUE_FACTOR: usize = 6;
/// A login takes at most 18 s behind that, at a source that is silent; a request has 30.
const LONGEST_WAIT: Duration = Duration::from_secs(11);

/// Gives turns at each source.
#[derive(Default)]
pub(crate) struct LoginTurns(Mutex<HashMap<SourceNumber, Arc<SourceTurns>>>);

struct SourceTurns {
    turns: Arc<Turns>,
    /// Turns of each host that has or awaits one.
    hosts: Mutex<HashMap<Source, Arc<Semaphore>>>,
}

/// A login that is under way, while it is.
pub(crate) struct LoginTurn {
    _turn: Turn,
    _of_host: OwnedSemaphorePermit,
}

impl LoginTurns {
    /// Waits for a turn of a login from this address at this source; `None` if too many others
    /// wait.
    pub(crate) async fn take(&self, at: SourceNumber, address: IpAddr) -> Option<LoginTurn> {
        let turn = self.at(at).wait(address).await;
        if turn.is_none() {
            refusals::count(Reason::Login);
        }
        turn
    }

    fn at(&self, source: SourceNumber) -> Arc<SourceTurns> {
        let mut sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(sources.entry(source).or_default())
    }
}

impl Default for SourceTurns {
    fn default() -> Self {
        let turns = Turns::new(LOGINS_AT_ONCE, LOGINS_AT_ONCE * QUEUE_FACTOR);
        Self { turns, hosts: Mutex::default() }
    }
}

impl SourceTurns {
    async fn wait(&self, address: IpAddr) -> Option<LoginTurn> {
        let (source, until) = (Source::from(address), Instant::now() + LONGEST_WAIT);
        let of_host = self.of_host(source).acquire_owned();
        let of_host = tokio::time::timeout_at(until, of_host).await.ok()?.ok()?;
        let left = until.saturating_duration_since(Instant::now());
        let turn = self.turns.wait(source, Standing::Stranger, left).await?;
        Some(LoginTurn { _turn: turn, _of_host: of_host })
    }

    fn of_host(&self, source: Source) -> Arc<Semaphore> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        // The map's own is the last of a host that has left.
        hosts.retain(|_, own| Arc::strong_count(own) > 1);
        Arc::clone(hosts.entry(source).or_insert_with(|| Arc::new(Semaphore::new(OF_HOST))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vpnd_ipc::gateway::portal::turns::STORE;

    const LIMIT: usize = LOGINS_AT_ONCE;
    const SILENT: SourceNumber = 1;

    fn address(number: usize) -> IpAddr {
        IpAddr::from((number as u32).to_be_bytes())
    }

    #[tokio::test(start_paused = true)]
    async fn login_turns_are_limited_per_host_and_fair_between_networks() {
        let turns = Arc::new(LoginTurns::default());
        let mut held = Vec::new();
        for _ in 0..6 {
            held.push(turns.take(STORE, address(1)).await.unwrap());
        }
        assert!(turns.take(STORE, address(1)).await.is_none(), "a host has no more, however long it waits");
        let crowd = 0x0A00_0000;
        for number in 1..=LIMIT - OF_HOST {
            held.push(turns.take(STORE, address(crowd + number)).await.unwrap());
        }
        // Many more of the same network come first, and then one of another.
        let mut waiting = tokio::task::JoinSet::new();
        for number in LIMIT..3 * LIMIT {
            let turns = Arc::clone(&turns);
            waiting.spawn(async move {
                let turn = turns.take(STORE, address(crowd + number)).await;
                std::future::pending::<()>().await;
                drop(turn);
            });
        }
        tokio::task::yield_now().await;
        let honest = turns.take(STORE, address(0xC633_6401));
        let one_is_over = async {
            tokio::time::sleep(LONGEST_WAIT / 2).await;
            // The first goes to the network that has waited longest, the next to the other.
            held.truncate(held.len() - 2);
        };
        assert!(tokio::join!(honest, one_is_over).0.is_some());
        waiting.shutdown().await;
        drop(held);
        assert!(turns.take(STORE, address(2)).await.is_some());
        assert_eq!(turns.at(STORE).hosts.lock().unwrap().len(), 1, "hosts that have left are forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_is_silent_keeps_no_other_users_waiting() {
        let turns = LoginTurns::default();
        let start = Instant::now();
        let mut held = Vec::new();
        for number in 0..LIMIT {
            held.push(turns.take(SILENT, address(number / OF_HOST)).await.unwrap());
        }
        for host in [0, 1_000] {
            assert!(turns.take(STORE, address(host)).await.is_some(), "not from its own users' hosts either");
        }
        assert_eq!(start.elapsed(), Duration::ZERO, "they had their turns at once");
        assert!(turns.take(SILENT, address(1_000)).await.is_none());
        assert_eq!(start.elapsed(), LONGEST_WAIT);
    }
}
