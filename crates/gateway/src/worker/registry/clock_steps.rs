//! The life of a session at a worker, in which the system's clock is set by two days at each point
//! in turn.
//!
//! INVARIANT: the session ends when it was granted to end, counted by boot time from the origin of
//! the privileged parent. A worker that starts later, the next one of an upgrade too, counts from
//! the same origin.

use vpnd_crypto::EpochSecret;
use vpnd_proto::control::Network;
use vpnd_proto::gateway::{Config, ProfileSettings};
use vpnd_proto::plane::Activity;
use vpnd_proto::policy::ProfileId;
use vpnd_proto::session::ConnectionId;
use vpnd_proto::time::Time;

use vpnd_sys::clock::Origin;

use super::*;
use crate::worker::testing::{self, offer};

const HOUR_S: u64 = 3_600;
const LIFETIME_S: u64 = 24 * HOUR_S;
const IDLE_S: u64 = 12 * HOUR_S;
const STEP_S: i64 = 48 * HOUR_S as i64;

/// Points before which the clock may be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    WorkerStarts,
    Login,
    Attach,
    Recheck,
    Upgrade,
    AfterUpgrade,
    End,
}

const POINTS: [Point; 7] = [
    Point::WorkerStarts,
    Point::Login,
    Point::Attach,
    Point::Recheck,
    Point::Upgrade,
    Point::AfterUpgrade,
    Point::End,
];

/// A machine's two clocks.
#[derive(Clone, Copy, Debug)]
struct Clock {
    wall_s: u64,
    boot: Time,
}

impl Clock {
    fn pass(&mut self, s: u64) {
        self.wall_s += s;
        self.boot = self.boot + Duration::from_secs(s);
    }
}

struct Life {
    clock: Clock,
    /// The clock of another process of the daemon, which has the same origin.
    steady_s: u64,
    step: (Point, i64),
    origin: Origin,
    registry: Registry,
    gateway: Gateway,
}

fn registry(origin: Origin) -> Registry {
    let (auth, _) = testing::auth();
    let mut registry = Registry::new(auth, &vpnd_config::testing::smallest("")).unwrap();
    registry.rules.origin = origin;
    registry
}

fn gateway() -> Gateway {
    testing::gateway(Config {
        idle_timeout: Some(Duration::from_secs(IDLE_S)),
        profiles: ProfileSettings { network: Network::default(), max_sessions_per_user: 2 }.alone(),
        ..testing::config(2)
    })
}

impl Life {
    fn begin(step: (Point, i64)) -> Self {
        let clock = Clock { wall_s: 1_000 * 24 * HOUR_S, boot: Time::from_nanos(7_000_000_000) };
        let origin = Origin::new(clock.wall_s, clock.boot);
        // Encoded as the parent hands it to each child.
        let handed = minicbor::decode(&minicbor::to_vec(origin).unwrap()).unwrap();
        let (registry, gateway) = (registry(handed), gateway());
        Self { clock, steady_s: clock.wall_s, step, origin, registry, gateway }
    }

    /// Time passes, and the clock is set if this is the point.
    fn reach(&mut self, point: Point) {
        self.pass(600);
        if self.step.0 == point {
            self.clock.wall_s = self.clock.wall_s.strict_add_signed(self.step.1);
        }
        if point == Point::WorkerStarts {
            self.registry = registry(self.origin);
        }
    }

    fn pass(&mut self, s: u64) {
        self.clock.pass(s);
        self.steady_s += s;
        self.gateway.handle_timeout(self.clock.boot);
    }

    fn admission(&self) -> AdmittedSession {
        let user = UserName::new("ann").unwrap();
        AdmittedSession {
            account: Account { name: user, groups: Vec::new(), source: SourceName::cut("local") },
            session: SessionId([1; 16]),
            addresses: Addresses { ipv4: Some([10, 86, 0, 2].into()), ipv6: None },
            span: Span { started_s: self.steady_s, expires_s: self.steady_s + LIFETIME_S },
            factors: Factors::default(),
            own_addresses: true,
            idle_timeout: None,
            is_walled: false,
            generation: 0,
            elsewhere: 0,
        }
    }

    fn log_in(&mut self) -> SessionId {
        let admission = self.admission();
        let session = admission.session;
        let who = self.registry.authenticated(&admission, DeviceId([1; 16]));
        let secret = EpochSecret::new([1; 32]);
        self.gateway.login(self.clock.boot, ConnectionId(1), who, &offer(), secret).unwrap();
        session
    }

    /// Its client sends a packet.
    fn uses(&mut self, session: SessionId) {
        let slot =
            self.gateway.session(session).unwrap_or_else(|| panic!("it is over: {:?}", self.step)).slot;
        let activity = Activity { last_rx_packet: self.clock.boot, ..Activity::default() };
        self.gateway.handle_activity(slot, activity);
    }

    fn goes_on(&self, session: SessionId) -> bool {
        self.gateway.session(session).is_some()
    }

    /// Settings are read again, and policy.
    fn recheck(&mut self) {
        let config = vpnd_config::testing::smallest("");
        self.registry.set_access(&config, &mut self.gateway).unwrap();
        self.registry.set_deadlines(&mut self.gateway);
        assert!(self.registry.unfit().is_empty());
        assert_eq!(self.gateway.due_to_end(self.clock.boot).count(), 0, "{:?}", self.step);
    }

    /// The next worker has everything that this one has handed over, and its own start.
    fn upgrade(&mut self, session: SessionId) {
        let mut next = (registry(self.origin), gateway());
        let handed = self.gateway.hand_over(Vec::new());
        assert_eq!(handed.len(), 1);
        for handed in handed {
            let bytes = minicbor::to_vec(handed).unwrap();
            let member = self.registry.member(session).unwrap().clone();
            let (principal, limits) = next.0.take_over(session, member);
            let handed = minicbor::decode(&bytes).unwrap();
            next.1.take_over(self.clock.boot, handed, principal, limits).unwrap();
        }
        (self.registry, self.gateway) = next;
    }
}

/// Uses a session up to its end, by its lifetime or because it is idle.
fn live(step: (Point, i64), idle: bool) {
    let mut life = Life::begin(step);
    life.reach(Point::WorkerStarts);
    life.reach(Point::Login);
    let began_s = life.steady_s;
    let session = life.log_in();
    for point in [Point::Attach, Point::Recheck, Point::Upgrade, Point::AfterUpgrade] {
        life.reach(point);
        life.uses(session);
        match point {
            Point::Upgrade => life.upgrade(session),
            _ => life.recheck(),
        }
    }
    let last_s = life.steady_s;
    life.reach(Point::End);
    let end_s = if idle { last_s + IDLE_S } else { began_s + LIFETIME_S };
    while life.steady_s + HOUR_S < end_s {
        life.pass(HOUR_S);
        if !idle {
            life.uses(session);
        }
    }
    life.pass(end_s - 1 - life.steady_s);
    assert!(life.goes_on(session), "{step:?}, idle {idle}");
    life.recheck();
    life.pass(1);
    assert!(!life.goes_on(session), "{step:?}, idle {idle}");
}

#[tokio::test]
async fn clock_steps_of_two_days_move_no_end_of_a_session() {
    for point in POINTS {
        for step_s in [STEP_S, -STEP_S] {
            for idle in [true, false] {
                live((point, step_s), idle);
            }
        }
    }
}

#[tokio::test]
async fn a_walled_device_stays_so_until_its_session_is_over() {
    let mut life = Life::begin((Point::End, 0));
    let portal = "[portal]\nenabled = true\ncertificate = 'p.pem'\nkey = 'p.key'\n[timeouts]\nsession_lifetime_s = 60\n";
    let config = vpnd_config::testing::smallest(portal);
    life.registry.set_access(&config, &mut life.gateway).unwrap();
    let admission = AdmittedSession { is_walled: true, ..life.admission() };
    let (session, user) = (admission.session, admission.account.name.clone());
    let who = life.registry.authenticated(&admission, DeviceId([1; 16]));
    assert_eq!(who.principal.profile(), ProfileId::WALLED);
    assert_eq!(who.deadline, life.origin.boot_time(life.steady_s + LIFETIME_S), "not by its profile");
    life.gateway.admit_wireguard(life.clock.boot, who, 1280).unwrap();
    let profile = |life: &Life| life.gateway.sessions().next().unwrap().profile;
    life.registry.set_access(&config, &mut life.gateway).unwrap();
    assert_eq!(profile(&life), ProfileId::WALLED, "after a reload");
    life.registry.regroup(vec![(user, vec!["staff".to_owned()])], &mut life.gateway);
    assert_eq!(profile(&life), ProfileId::WALLED, "in other groups");
    let member = life.registry.member(session).unwrap().clone();
    assert!(member.is_walled && life.registry.unfit().is_empty());
    let (principal, _) = registry(life.origin).take_over(session, member);
    assert_eq!(principal.profile(), ProfileId::WALLED, "after an upgrade");
}
