//! The worker's reports for the pages of the desk, while one is open.
//!
//! INVARIANT: the worker is not trusted: what it reports is shown, and decides nothing; so many
//! sessions are kept as a gateway has at most. It reports only while a page was asked for lately.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use vpnd_ipc::gateway::auth::{SessionUse, WorkerState};
use vpnd_ipc::gateway::portal::desk::sessions::Throughput;
use vpnd_proto::session::SessionId;
use vpnd_proto::time::Time;

/// Time after a page for which reports come, so that the next one can show rates.
const WANTED: Duration = Duration::from_secs(15);
/// A report that is older is not shown.
const FRESH: Duration = Duration::from_secs(5);
/// The worker asks whether a report is wanted, and reports, at this interval.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time beyond that for which a page waits for reports.
const WAIT_MARGIN: Duration = Duration::from_millis(500);
/// Sessions of a report that are kept.
const MAX_SESSIONS: usize = 1 << 17;

#[derive(Default)]
pub(super) struct Watch {
    inner: Mutex<Inner>,
    came: Notify,
}

#[derive(Default)]
struct Inner {
    wanted: Option<Time>,
    last: Option<(Time, WorkerState)>,
    sessions: Arc<Uses>,
    /// Those of the report that is coming.
    coming: Uses,
    /// Reports one soon after the other: rates come from two.
    in_row: u64,
}

/// The sessions of a report.
pub(super) type Uses = BTreeMap<SessionId, Use>;

/// A session as the worker has reported it.
#[derive(Clone, Copy)]
pub(super) struct Use {
    pub(super) throughput: Throughput,
    pub(super) outer: Option<IpAddr>,
    pub(super) walled: bool,
}

/// A number of reports for which a page waits.
#[derive(Clone, Copy)]
pub(super) enum Enough {
    One = 1,
    /// With rates.
    Two = 2,
}

impl Watch {
    /// A page shows what the worker reports.
    pub(super) fn want(&self, now: Time) {
        self.inner().wanted = Some(now);
    }

    /// Whether it is to report.
    pub(super) fn wanted(&self, now: Time) -> bool {
        let mut inner = self.inner();
        let is_wanted = inner.wanted.is_some_and(|asked| now.since(asked) < WANTED);
        if !is_wanted {
            *inner = Inner::default();
        }
        is_wanted
    }

    /// Takes a part of a report.
    pub(super) fn take(&self, mut state: WorkerState, now: Time) {
        let mut inner = self.inner();
        let before_at = inner.last.as_ref().map(|(at, _)| *at).filter(|at| now.since(*at) < FRESH);
        for reported in std::mem::take(&mut state.sessions) {
            let SessionUse { session, rx_bytes, tx_bytes, outer, walled } = reported;
            let (id, bytes) = (SessionId(session.into()), [rx_bytes, tx_bytes]);
            let before = before_at.filter(|at| now > *at).map(|at| {
                let before = inner.sessions.get(&id).map_or([0; 2], |before| before.throughput.bytes);
                (before, now.since(at).as_millis().max(1) as u64)
            });
            let rates = before.map(|(before, millis)| {
                [0, 1].map(|at| bytes[at].saturating_sub(before[at]).saturating_mul(1_000) / millis)
            });
            if inner.coming.len() < MAX_SESSIONS {
                inner.coming.insert(id, Use { throughput: Throughput { bytes, rates }, outer, walled });
            }
        }
        if !state.is_last {
            return;
        }
        inner.sessions = Arc::new(std::mem::take(&mut inner.coming));
        inner.in_row = if before_at.is_some() { inner.in_row + 1 } else { 1 };
        inner.last = Some((now, state));
        drop(inner);
        self.came.notify_waiters();
    }

    /// Waits for reports that are new enough, a moment at most.
    pub(super) async fn wait(&self, now: impl Fn() -> Time, enough: Enough) {
        let waited = async {
            loop {
                let came = self.came.notified();
                if self.state(now()).is_some() && self.inner().in_row >= enough as u64 {
                    return;
                }
                came.await;
            }
        };
        // The page is shown without it.
        let _ = tokio::time::timeout(enough as u32 * INTERVAL + WAIT_MARGIN, waited).await;
    }

    /// The last report, if it is new enough.
    pub(super) fn state(&self, now: Time) -> Option<WorkerState> {
        let inner = self.inner();
        inner.last.as_ref().filter(|(at, _)| now.since(*at) < FRESH).map(|(_, state)| state.clone())
    }

    /// Its sessions.
    pub(super) fn sessions(&self, now: Time) -> Arc<Uses> {
        let inner = self.inner();
        let is_fresh = inner.last.as_ref().is_some_and(|(at, _)| now.since(*at) < FRESH);
        if is_fresh { Arc::clone(&inner.sessions) } else { Arc::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_need_two_reports_and_requests_for_them_expire() {
        let watch = Watch::default();
        let at = |millis| Time::ZERO + Duration::from_millis(millis);
        assert!(!watch.wanted(at(0)));
        watch.want(at(0));
        assert!(watch.wanted(at(14_999)));
        let part = |session: u8, rx_bytes, tx_bytes, is_last| {
            let session =
                SessionUse { session: [session; 16].into(), rx_bytes, tx_bytes, outer: None, walled: false };
            WorkerState { sessions: vec![session], is_last, ..WorkerState::default() }
        };
        let throughput =
            |session: u8, now| watch.sessions(now).get(&SessionId([session; 16])).map(|used| used.throughput);
        watch.take(part(1, 1_000, 10, false), at(1_000));
        assert!(watch.state(at(1_000)).is_none(), "more of it is to come");
        watch.take(part(2, 7, 7, true), at(1_000));
        assert_eq!(throughput(1, at(1_000)), Some(Throughput { bytes: [1_000, 10], rates: None }));
        watch.take(part(1, 5_000, 0, true), at(3_000));
        let shown = throughput(1, at(3_000)).unwrap();
        assert_eq!((shown.bytes, shown.rates), ([5_000, 0], Some([2_000, 0])), "it began again");
        assert_eq!(
            (throughput(2, at(3_000)), throughput(1, at(8_000))),
            (None, None),
            "it is over; that is too old"
        );
        assert!(watch.state(at(7_999)).is_some() && watch.state(at(8_000)).is_none());
        watch.take(part(1, 9_000, 0, true), at(14_000));
        assert_eq!(
            throughput(1, at(14_000)).unwrap().rates,
            None,
            "no rate of the time in which nobody looked"
        );
        assert!(!watch.wanted(at(15_000)));
        assert_eq!(throughput(1, at(15_000)), None, "and nothing is kept");
    }
}
