//! Parts of a worker for tests.

use std::sync::Arc;

use tokio::sync::mpsc;
use vpnd_crypto::{Backend, Suite};
use vpnd_ipc::channel::{Channel, pair};
use vpnd_ipc::messages::MAX_FRAME;
use vpnd_proto::control::{List, Network, Offer, SuiteSpeed};
use vpnd_proto::gateway::{Config, Gateway, ProfileSettings};
use vpnd_proto::session::{LocalSuite, Timers};
use vpnd_sys::logging::testing::logged_as_text;

use super::auth_client::AuthClient;
use super::core::Core;
use super::registry::Registry;

/// A connection to the auth process, and the end of that process.
pub(super) fn auth() -> (AuthClient, Channel) {
    let (own, process) = pair().unwrap();
    let [own, process] = [own, process].map(|end| Channel::new(end, MAX_FRAME).unwrap());
    (AuthClient::start(own, Arc::default()), process)
}

/// Settings of a gateway with one shard, which has room for this number of sessions.
pub(super) fn config(max_sessions: usize) -> Config {
    Config {
        shards: 1,
        suites: vec![LocalSuite { suite: Suite::Aes128Gcm, backend: Backend::Ring, mbps: 1 }],
        features: 0,
        lab: None,
        timers: Timers::default(),
        idle_timeout: None,
        max_sessions,
        profiles: ProfileSettings { network: Network::default(), max_sessions_per_user: 1 }.alone(),
        renewal: None,
    }
}

pub(super) fn gateway(config: Config) -> Gateway {
    Gateway::new(config, vpnd_sys::random::random()).unwrap()
}

/// A gateway of a fleet, and the end of the auth process.
pub(super) fn core() -> (Core, Channel) {
    const FLEET: &str = "[store]\nengine = 'postgres'\nhosts = ['/run/postgresql']\n[nat]\nmode = 'route'\n\
        [fleet]\nid = 'campus'\nname = 'gw1'\n";
    let (auth, process) = auth();
    let registry = Registry::new(auth, &vpnd_config::testing::smallest(FLEET)).unwrap();
    let (shards, _) = vpnd_shard::testing::answering(1);
    let (_, no_events) = mpsc::channel(1);
    let gateway = gateway(config(2));
    let (core, _) = Core::start(gateway, shards, no_events, registry, None);
    (core, process)
}

/// What a client with one lane offers.
pub(super) fn offer() -> Offer {
    Offer {
        indexes: List::new(vec![100]).unwrap(),
        suites: List::new(vec![SuiteSpeed { suite: 1, mbps: 10 }]).unwrap(),
        features: 0,
        lab: false,
    }
}

/// The log of a test, whose waits take no time.
pub(super) fn logged(test: impl Future<Output = ()>) -> String {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    logged_as_text(|| runtime.block_on(test))
}
