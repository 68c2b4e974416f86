//! The profile by which any user reaches a gateway: names come from the gateway's certificate, its
//! addresses from the configuration, or from both.

use std::path::Path;
use std::time::Duration;

use rustls_pki_types::CertificateDer;
use vpnd_pki::leaf::{self, Leaf};

use super::{DEFAULT_LANES, KillSwitch, Profile, Routes, Trust};
use crate::{Offload, ServerConfig};

/// The reason why clients can't be told how to reach the gateway.
#[derive(Debug, thiserror::Error)]
pub enum NoProfile {
    #[error("can't read {path}: {source}")]
    Read { path: String, source: std::io::Error },
    #[error(
        "{path} names no server, so a client would not know where to connect; make it with 'vpnd init --name …'"
    )]
    NoServerName { path: String },
}

impl Profile {
    /// The profile of a gateway, as its files are now: without a user and a client certificate.
    ///
    /// # Errors
    /// [`NoProfile`].
    pub fn of_gateway(config: &ServerConfig) -> Result<Self, NoProfile> {
        let (names, chain) = gateway_names(config)?;
        let leaf = chain.first().and_then(|leaf| Leaf::parse(leaf));
        let Some(first) = names.first() else {
            let path = config.tls.certificate.display().to_string();
            return Err(NoProfile::NoServerName { path });
        };
        Ok(Self {
            servers: config.server.reached_at(names.clone()),
            renew: true,
            spread: config.fleet.is_some(),
            tcp_port: config
                .portal
                .as_ref()
                .filter(|portal| portal.relays > 0)
                .map(|portal| portal.listen.port()),
            server_name: first.clone(),
            trust: trust(config, &chain, first, leaf.as_ref().map_or(0, |leaf| leaf.not_after_s)),
            proxy: None,
            user_proxy: false,
            user: None,
            totp: false,
            browser: false,
            machine: false,
            identity: None,
            suites: Vec::new(),
            routes: Routes::Pushed,
            dns: true,
            local_network: true,
            kill_switch: KillSwitch::default(),
            lanes: DEFAULT_LANES,
            copy_dscp: false,
            busy_poll: Duration::ZERO,
            offload: Offload::default(),
        })
    }
}

/// The names of the gateway that clients can look up, and its certificate with those of its
/// authorities.
///
/// # Errors
/// If its file can't be read.
pub fn gateway_names(
    config: &ServerConfig,
) -> Result<(Vec<String>, Vec<CertificateDer<'static>>), NoProfile> {
    let chain = leaf::chain(read(&config.tls.certificate)?.as_bytes());
    let leaf = chain.first().and_then(|leaf| Leaf::parse(leaf));
    let names = leaf.iter().flat_map(|leaf| &leaf.names).filter(|name| !name.contains('*')).cloned();
    Ok((names.collect(), chain))
}

/// Pins the gateway's own authority if it vouches for the certificate; else the certificate is of a
/// public one. That holds at `at_s`, a moment at which the certificate is valid: one that has
/// expired will be renewed.
fn trust(config: &ServerConfig, chain: &[CertificateDer<'static>], name: &str, at_s: u64) -> Trust {
    let pinned = config.tls.authority().0.and_then(|path| {
        let ca_pem = read(path).ok()?;
        leaf::vouches(ca_pem.as_bytes(), chain, name, at_s).then_some(ca_pem)
    });
    pinned.map_or(Trust::System, |ca_pem| Trust::Pinned { ca_pem })
}

fn read(path: &Path) -> Result<String, NoProfile> {
    std::fs::read_to_string(path)
        .map_err(|source| NoProfile::Read { path: path.display().to_string(), source })
}
