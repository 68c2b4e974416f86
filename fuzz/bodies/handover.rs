//! Any bytes as what another version's process hands over in an upgrade: nothing panics, whatever
//! time it is; and what is taken over can be handed on, whole and with every lane as far as it was.
//!
//! Input: one byte for the time, and sessions in CBOR, one after the other.

use std::sync::Arc;
use std::time::Duration;

use minicbor::Decoder;
use vpnd_crypto::{Backend, Suite};
use vpnd_proto::control::{Code, Network};
use vpnd_proto::gateway::handover::HandedSession;
use vpnd_proto::gateway::{Config, Effect, Gateway, ProfileSettings, Selector};
use vpnd_proto::plane::{Plane, Role};
use vpnd_proto::policy::{Policy, Principal};
use vpnd_proto::rate::SessionLimits;
use vpnd_proto::session::{LocalSuite, Timers};
use vpnd_proto::time::Time;

const SHARDS: usize = 2;
/// The longest list of sessions that is tried: more of them teach nothing new.
const MAX_SESSIONS: usize = 8;

/// Checks one input.
pub(crate) fn run(data: &[u8]) {
    let Some((time, bytes)) = data.split_first() else { return };
    let now = Time::from_nanos(1 << (time % 64));
    let mut decoder = Decoder::new(bytes);
    let mut sessions = Vec::new();
    while let Ok(session) = decoder.decode()
        && sessions.len() < MAX_SESSIONS
    {
        sessions.push(session);
    }
    // A part of what was decoded is refused; a process that has refused something ends.
    let Some(mut first) = Process::take_over(now, sessions) else { return };
    let handed = first.hand_over();
    let again: Vec<HandedSession> = handed.iter().map(|bytes| decode(bytes)).collect();
    let mut second = Process::take_over(now, again).expect("what was taken over can be handed on");
    assert_eq!(second.hand_over(), handed, "something was lost on the way");
    second.live_on(now);
}

fn decode(bytes: &[u8]) -> HandedSession {
    minicbor::decode(bytes).expect("it was written just now")
}

/// A gateway without its sockets.
struct Process {
    core: Gateway,
    planes: Vec<Plane>,
}

impl Process {
    fn take_over(now: Time, sessions: Vec<HandedSession>) -> Option<Self> {
        let policy = Arc::new(Policy::without_rules(false));
        let planes = (0..SHARDS).map(|shard| Plane::new(Role::Gateway, Arc::clone(&policy), shard as u64));
        let random = Box::new(|bytes: &mut [u8]| bytes.fill(7));
        let core = Gateway::new(config(), random).expect("the configuration is good");
        let mut process = Self { core, planes: planes.collect() };
        for session in sessions {
            process.core.take_over(now, session, Principal::default(), SessionLimits::default()).ok()?;
        }
        process.settle();
        Some(process)
    }

    /// Carries out what the core wants.
    fn settle(&mut self) {
        while let Some(effect) = self.core.poll_effect() {
            if let Effect::Command { shard, command } = effect {
                self.planes[shard].apply(command);
            }
        }
    }

    fn hand_over(&mut self) -> Vec<Vec<u8>> {
        let sessions = self.core.hand_over(self.planes.iter().map(Plane::progress).collect());
        let written = sessions.iter().map(minicbor::to_vec);
        written.map(|bytes| bytes.expect("a vector takes all that is written to it")).collect()
    }

    /// Everything that time brings, and the end of everybody who is left.
    fn live_on(&mut self, now: Time) {
        for shard in &mut self.planes {
            for (slot, activity) in shard.take_activities() {
                self.core.handle_activity(slot, activity);
            }
        }
        let mut now = now;
        for _ in 0..8 {
            self.core.handle_timeout(now);
            self.settle();
            now = now + Duration::from_secs(100);
        }
        let left: Vec<_> = self.core.sessions().map(|status| status.id).collect();
        for id in left {
            assert_eq!(self.core.end(&Selector::Session(id), Code::Kicked, ""), 1);
        }
        self.settle();
        assert_eq!(self.core.sessions().count(), 0);
        for plane in &self.planes {
            assert!(plane.progress().is_empty(), "keys of a session that is over");
        }
    }
}

fn config() -> Config {
    let suite = |suite| LocalSuite { suite, backend: Backend::Ring, mbps: 1_000 };
    Config {
        shards: SHARDS,
        suites: vec![suite(Suite::Aes128Gcm), suite(Suite::ChaCha20Poly1305)],
        features: 0,
        lab: None,
        timers: Timers::default(),
        idle_timeout: Some(Duration::from_secs(600)),
        max_sessions: 100,
        renewal: None,
        profiles: ProfileSettings { network: Network::default(), max_sessions_per_user: 10 }.alone(),
    }
}
