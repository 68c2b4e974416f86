//! What the worker reports for the pages of the desk, while somebody looks at one.
//!
//! INVARIANT: the worker is not trusted: what it reports is shown, and decides nothing; so many
//! sessions are kept as one report has. It reports only while a page was asked for lately.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use vpnd_ipc::gateway::auth::{SessionUse, WorkerState};
use vpnd_ipc::gateway::portal::desk::DeviceTraffic;
use vpnd_proto::control::UserName;
use vpnd_proto::time::Time;

/// Time after a page for which reports come, so that the next one can show rates.
const WANTED: Duration = Duration::from_secs(15);
/// A report that is older is not shown.
const FRESH: Duration = Duration::from_secs(5);
/// Limit for a page's wait for a report; the worker asks each second whether one is wanted.
const WAIT: Duration = Duration::from_millis(1_500);
/// Users whose sessions are reported, at most.
const MAX_USERS: usize = 32;

#[derive(Default)]
pub(super) struct Watch {
    inner: Mutex<Inner>,
    came: Notify,
}

#[derive(Default)]
struct Inner {
    wanted: Option<Time>,
    users: BTreeMap<UserName, Time>,
    last: Option<(Time, WorkerState)>,
    /// Bytes of sessions, received and sent, and their rates.
    sessions: BTreeMap<(UserName, [u8; 16]), Use>,
}

#[derive(Clone, Copy)]
struct Use {
    at: Time,
    bytes: [u64; 2],
    /// Bytes each second since the report before.
    rates: Option<[u64; 2]>,
}

impl Watch {
    /// A page shows the worker's state, and perhaps the sessions of this user.
    pub(super) fn want(&self, user: Option<UserName>, now: Time) {
        let mut inner = self.inner();
        inner.wanted = Some(now);
        inner.users.retain(|_, asked| now.since(*asked) < WANTED);
        if let Some(user) = user
            && inner.users.len() < MAX_USERS
        {
            inner.users.insert(user, now);
        }
    }

    /// The users whose sessions are to be reported; `None` if nothing is.
    pub(super) fn wanted(&self, now: Time) -> Option<Vec<UserName>> {
        let inner = self.inner();
        inner.wanted.filter(|asked| now.since(*asked) < WANTED)?;
        let users = inner.users.iter().filter(|(_, asked)| now.since(**asked) < WANTED);
        Some(users.map(|(user, _)| user.clone()).collect())
    }

    /// Takes a report.
    pub(super) fn take(&self, mut state: WorkerState, now: Time) {
        let mut inner = self.inner();
        let sessions = std::mem::take(&mut state.sessions).into_iter().map(|reported| {
            let SessionUse { user, device, rx_bytes, tx_bytes } = reported;
            let (key, bytes) = ((user, device.into()), [rx_bytes, tx_bytes]);
            let before = inner.sessions.get(&key).filter(|before| now > before.at);
            let rates = before.map(|before| {
                let millis = now.since(before.at).as_millis().max(1) as u64;
                [0, 1].map(|at| bytes[at].saturating_sub(before.bytes[at]).saturating_mul(1_000) / millis)
            });
            (key, Use { at: now, bytes, rates })
        });
        let sessions = sessions.collect();
        inner.sessions = sessions;
        inner.last = Some((now, state));
        drop(inner);
        self.came.notify_waiters();
    }

    /// Waits for a report that is new enough, a moment at most.
    pub(super) async fn wait(&self, now: impl Fn() -> Time, is_enough: impl Fn(&Self, Time) -> bool) {
        let waited = async {
            loop {
                let came = self.came.notified();
                if is_enough(self, now()) {
                    return;
                }
                came.await;
            }
        };
        // The page is shown without it.
        let _ = tokio::time::timeout(WAIT, waited).await;
    }

    /// The last report, if it is new enough.
    pub(super) fn state(&self, now: Time) -> Option<WorkerState> {
        let inner = self.inner();
        inner.last.as_ref().filter(|(at, _)| now.since(*at) < FRESH).map(|(_, state)| state.clone())
    }

    /// The traffic of a user's sessions in it.
    pub(super) fn traffic(&self, user: &str, now: Time) -> Vec<DeviceTraffic> {
        let inner = self.inner();
        let is_shown = |((owner, _), used): &(&(UserName, [u8; 16]), &Use)| {
            **owner == *user && now.since(used.at) < FRESH
        };
        let traffic = inner.sessions.iter().filter(is_shown).map(|((_, device), used)| DeviceTraffic {
            device: (*device).into(),
            bytes: used.bytes,
            rates: used.rates,
        });
        traffic.collect()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_come_from_two_reports_and_nothing_is_wanted_for_long() {
        let (watch, ann) = (Watch::default(), UserName::new("ann").unwrap());
        let at = |millis| Time::ZERO + Duration::from_millis(millis);
        assert_eq!(watch.wanted(at(0)), None);
        watch.want(Some(ann.clone()), at(0));
        assert_eq!(watch.wanted(at(14_999)), Some(vec![ann.clone()]));
        assert_eq!(watch.wanted(at(15_000)), None);
        let report = |rx_bytes, tx_bytes| WorkerState {
            sessions: vec![SessionUse { user: ann.clone(), device: [1; 16].into(), rx_bytes, tx_bytes }],
            ..WorkerState::default()
        };
        watch.take(report(1_000, 10), at(1_000));
        assert_eq!(watch.traffic("ann", at(1_000))[0].rates, None);
        watch.take(report(5_000, 0), at(3_000));
        let shown = watch.traffic("ann", at(3_000));
        assert_eq!((shown[0].bytes, shown[0].rates), ([5_000, 0], Some([2_000, 0])), "it began anew");
        assert!(watch.traffic("bob", at(3_000)).is_empty() && watch.traffic("ann", at(8_000)).is_empty());
        assert!(watch.state(at(7_999)).is_some() && watch.state(at(8_000)).is_none());
    }
}
