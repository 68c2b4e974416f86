//! `[tunnel]` of a profile.

use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use vpnd_crypto::Suite;
use vpnd_proto::wire::MAX_CLIENT_LANES;

use super::{DEFAULT_LANES, KillSwitch, Problems, Routes};
use crate::document::Section;

/// `[tunnel]`, as in [`super::Profile`].
pub(super) struct TunnelSection {
    pub(super) routes: Routes,
    pub(super) dns: bool,
    pub(super) local_network: bool,
    pub(super) kill_switch: KillSwitch,
    pub(super) suites: Vec<Suite>,
    pub(super) lanes: usize,
    pub(super) copy_dscp: bool,
    pub(super) busy_poll: Duration,
}

pub(super) fn read(s: &mut Section<'_>, p: &mut Problems) -> TunnelSection {
    let expects = "\"pushed\", \"all\" or a list of networks such as \"10.20.0.0/16\"";
    let words: Vec<RouteWord> = s.list(p, "routes", expects).unwrap_or_else(|| vec![RouteWord::Pushed]);
    let routes = match words.as_slice() {
        [RouteWord::Pushed] => Routes::Pushed,
        [RouteWord::All] => Routes::All,
        words => Routes::Only(words.iter().filter_map(|word| word.network()).collect()),
    };
    if matches!(&routes, Routes::Only(networks) if networks.len() != words.len()) {
        s.problem(p, "routes", format!("'routes' in [tunnel] must be {expects}, not a mixture"));
    }
    TunnelSection {
        routes,
        dns: s.flag(p, "dns", true),
        local_network: s.flag(p, "local_network", true),
        kill_switch: KillSwitch::read(s, p),
        suites: crate::suites(s, p, "suites"),
        lanes: s.number(p, "lanes", 1..=MAX_CLIENT_LANES as u64, DEFAULT_LANES as u64) as usize,
        copy_dscp: s.flag(p, "copy_dscp", false),
        busy_poll: crate::busy_poll(s, p),
    }
}

#[derive(Clone, Copy)]
enum RouteWord {
    Pushed,
    All,
    Network(IpNet),
}

impl RouteWord {
    fn network(self) -> Option<IpNet> {
        match self {
            Self::Network(network) => Some(network),
            Self::Pushed | Self::All => None,
        }
    }
}

impl FromStr for RouteWord {
    type Err = ipnet::AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "pushed" => Ok(Self::Pushed),
            "all" => Ok(Self::All),
            network => network.parse::<IpNet>().map(|network| Self::Network(network.trunc())),
        }
    }
}
