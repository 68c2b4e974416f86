//! The life of a gateway with sessions, in which the system's clock is set by two days at each
//! point in turn.
//!
//! INVARIANT: until the gateway starts again no step shows. A start counts from the clock as it is
//! then: sessions may be over by it, but none lasts longer than its lifetime from there, and no
//! address of one that goes on is another's.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const HOUR_S: u64 = 3_600;
const BEGAN_S: u64 = 1_000 * 24 * HOUR_S;
const LIFETIME_S: u64 = 24 * HOUR_S;
const STEP_S: u64 = 48 * HOUR_S;

/// Points of its life before which the clock may be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Point {
    FirstLogin,
    Attach,
    Rekey,
    Recheck,
    SecondLogin,
    Upgrade,
    AfterUpgrade,
    Restart,
    AfterRestart,
}

const POINTS: [Point; 9] = [
    Point::FirstLogin,
    Point::Attach,
    Point::Rekey,
    Point::Recheck,
    Point::SecondLogin,
    Point::Upgrade,
    Point::AfterUpgrade,
    Point::Restart,
    Point::AfterRestart,
];

/// The clocks of the test, which is the only one that sets them.
static WALL_S: AtomicU64 = AtomicU64::new(0);
static STEADY_S: AtomicU64 = AtomicU64::new(0);

fn clocks() -> Clocks {
    Clocks { wall: || WALL_S.load(Ordering::Relaxed), steady: || STEADY_S.load(Ordering::Relaxed) }
}

struct Life {
    directory: tempfile::TempDir,
    service: Arc<Service>,
    point: Point,
    step: (Point, bool),
}

impl Life {
    fn begin(step: (Point, bool)) -> Self {
        WALL_S.store(BEGAN_S, Ordering::Relaxed);
        STEADY_S.store(BEGAN_S, Ordering::Relaxed);
        let directory = tempfile::tempdir().unwrap();
        let service = start(directory.path());
        service.begin(true).unwrap();
        Self { directory, service, point: Point::FirstLogin, step }
    }

    /// A minute passes, and the clock is set if it is time.
    fn reach(&mut self, point: Point) {
        self.point = point;
        for clock in [&WALL_S, &STEADY_S] {
            clock.fetch_add(60, Ordering::Relaxed);
        }
        match self.step {
            (at, true) if at == point => WALL_S.fetch_add(STEP_S, Ordering::Relaxed),
            (at, false) if at == point => WALL_S.fetch_sub(STEP_S, Ordering::Relaxed),
            _ => 0,
        };
    }

    async fn log_in(&self, device: u8) -> ByteArray<16> {
        let session = granted(&self.service, device).await;
        assert_eq!(failed(&self.service, keep(session)).await, 0, "{:?} {:?}", self.step, self.point);
        session
    }

    async fn stored(&self, session: ByteArray<16>) -> Option<StoredSession> {
        ask(&self.service, SessionQuery(session)).await
    }

    /// The address of a session that goes on, and that gets new tokens.
    async fn goes_on(&self, session: ByteArray<16>) -> std::net::Ipv4Addr {
        let stored = self.stored(session).await;
        let stored = stored.unwrap_or_else(|| panic!("it is over: {:?} {:?}", self.step, self.point));
        assert_eq!(failed(&self.service, keep(session)).await, 0, "{:?} {:?}", self.step, self.point);
        let now_s = STEADY_S.load(Ordering::Relaxed);
        assert!((now_s..=now_s + LIFETIME_S).contains(&stored.expires_s), "{:?} {:?}", self.step, self.point);
        stored.addresses.ipv4.unwrap()
    }

    /// The regular checks find nothing to end.
    async fn recheck(&self) {
        self.service.end_misfits(true);
        self.service.end_orphans(&mut HashMap::new(), 0).unwrap();
        let found = ask(&self.service, RevocationQuery { seen: Some(0), history: None }).await.found;
        assert!(found.is_empty(), "{:?}", self.step);
    }
}

fn start(directory: &Path) -> Arc<Service> {
    service_with(directory, Some(Duration::from_secs(LIFETIME_S)), clocks())
}

async fn live(step: (Point, bool)) {
    let mut life = Life::begin(step);
    life.reach(Point::FirstLogin);
    let first = life.log_in(1).await;
    life.reach(Point::Attach);
    let address = life.goes_on(first).await;
    life.reach(Point::Rekey);
    assert_eq!(life.goes_on(first).await, address);
    life.reach(Point::Recheck);
    life.recheck().await;
    life.reach(Point::SecondLogin);
    let second = life.log_in(2).await;
    let others = life.goes_on(second).await;
    assert_ne!(others, address, "{step:?}");
    life.reach(Point::Upgrade);
    // The next auth process has the same origin.
    life.service = start(life.directory.path());
    assert_eq!((life.goes_on(first).await, life.goes_on(second).await), (address, others), "{step:?}");
    life.reach(Point::AfterUpgrade);
    life.recheck().await;
    assert_eq!((life.goes_on(first).await, life.goes_on(second).await), (address, others), "{step:?}");

    life.reach(Point::Restart);
    STEADY_S.store(WALL_S.load(Ordering::Relaxed), Ordering::Relaxed);
    life.service = start(life.directory.path());
    life.service.begin(true).unwrap();
    let is_over = step.1 && step.0 <= Point::Restart;
    assert_eq!(life.stored(first).await.is_none(), is_over, "{step:?}");
    life.reach(Point::AfterRestart);
    life.recheck().await;
    let third = life.log_in(3).await;
    let new = life.goes_on(third).await;
    if !is_over {
        assert_eq!((life.goes_on(first).await, life.goes_on(second).await), (address, others), "{step:?}");
        assert!(new != address && new != others, "{step:?}");
    }
    // Those who are locked out by a clock come in by a login, and get the addresses that they had.
    let again = life.log_in(1).await;
    assert_ne!(life.goes_on(again).await, new, "{step:?}");
}

#[tokio::test]
async fn clock_steps_of_two_days_end_no_session_and_share_no_address() {
    for point in POINTS {
        for forward in [true, false] {
            live((point, forward)).await;
        }
    }
}
