//! A worker before it gets its devices: all that its first message can be checked for.

use anyhow::Context as _;
use vpnd_crypto::{LabPermit, Preference, Suite};
use vpnd_proto::client::{Client, Config};
use vpnd_proto::control::{FEATURE_RENEWAL, FEATURES, FEATURES_OF_PERSON};
use vpnd_proto::session::Timers;

use super::over_tcp::OverTcp;
use crate::messages::WorkerLaunch;
use vpnd_config::profile::{Profile, Trust};
use vpnd_pki::tls;
use vpnd_shard::suites;

/// State that is prepared before the devices are opened.
pub(super) struct Prepared {
    pub(super) core: Client,
    pub(super) tls: tls::Client,
    pub(super) over_tcp: Option<OverTcp>,
}

impl Prepared {
    /// Checks all that it was given.
    pub(super) fn new(
        launch: &WorkerLaunch,
        profile: &Profile,
        system_trust: Option<tls::SystemTrust>,
    ) -> anyhow::Result<Self> {
        let lab = launch.insecure_lab.then(LabPermit::insecure);
        let wanted = match &launch.suite {
            Some(name) => vec![name.parse::<Suite>()?],
            None => profile.suites.clone(),
        };
        let suites = suites::measure(&wanted, preference(launch.backend.as_deref())?, lab.is_some())?;
        let (lanes, timers) = (launch.lanes as usize, Timers::default());
        let renewal = if profile.renew { FEATURE_RENEWAL } else { 0 };
        let features = FEATURES | FEATURES_OF_PERSON | renewal;
        let config = Config { lanes, suites, features, lab, timers };
        let core = Client::new(config, vpnd_sys::random::random())?;
        let identity = profile.identity.as_ref().map(|identity| {
            tls::Identity::from_pem(identity.certificate_pem.as_bytes(), identity.key_pem.as_bytes())
        });
        let system = system_trust.map(tls::Trust::System);
        let pinned = match &profile.trust {
            Trust::System => None,
            Trust::Pinned { ca_pem } => Some(tls::Trust::Pinned(ca_pem.as_bytes())),
        };
        let trust = pinned.as_ref().or(system.as_ref()).context("the system's trust anchors are missing")?;
        let tls = tls::client(trust, identity.transpose()?)?;
        let pages: Vec<_> = pinned.into_iter().chain(system).collect();
        let pages = profile.tcp_port.map(|port| OverTcp::new(port, profile, &pages));
        Ok(Self { core, tls, over_tcp: pages.transpose()? })
    }
}

fn preference(backend: Option<&str>) -> anyhow::Result<Preference> {
    let Some(name) = backend else { return Ok(Preference::Auto) };
    name.parse().with_context(|| format!("there is no backend {name}"))
}
