//! The portal of a gateway: web pages for its users.
//!
//! Invariants: it decides nothing. A browser has a token, which goes to the auth process with each
//! request; what comes back is shown, and that is all that this process knows of anybody. It has no
//! store, no file and no network but the connections to the socket that it was handed, which are
//! bounded in number, time and size; an address that takes many loses them to others. Pages need no
//! script and nothing from elsewhere. Where that is switched on, a connection may carry datagrams
//! of the gateway's port instead, by a socket of the parent that leads nowhere else.
#![deny(unsafe_code)]
// A library in form only: its user is the daemon's dispatch of roles.
#![allow(missing_docs)]

mod auth_client;
mod browser;
mod certificates;
mod connections;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod login_turns;
mod pages;
mod parent;
mod places;
mod refusals;
mod relays;
mod site;
mod texts;
mod typed;

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use rustls::crypto::CryptoProvider;
use rustls::{ServerConfig, SupportedProtocolVersion};
use tokio::sync::mpsc;

use auth_client::AuthClient;
use certificates::Certificates;
use connections::Listener;
use parent::Parent;
use relays::Relays;
use site::Site;
use vpnd_ipc::channel::Channel;
use vpnd_ipc::child::{self, ChildRole, Preparation, Started};
use vpnd_ipc::gateway::portal::{FromPortal, MAX_FRAME, PortalLaunch};
use vpnd_ipc::messages::Prepared;
use vpnd_pki::challenge::ALPN as CHALLENGE;

/// Versions of TLS that browsers may have.
const VERSIONS: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS13, &rustls::version::TLS12];

/// Runs it; `stream` leads to the parent.
pub fn run(stream: UnixStream) -> anyhow::Result<()> {
    // A flood of handshakes costs the tunnel, which other processes carry, as little as can be.
    vpnd_sys::process::go_behind_others();
    let prepare = |launch: &PortalLaunch| {
        let certificates = Arc::new(Certificates::new(launch.certificate().as_ref())?);
        if let Err(error) = certificates.answer_by(&launch.proofs) {
            tracing::error!(%error, "the authority's challenge is not answered");
        }
        let made = (tls(Arc::clone(&certificates))?, certificates);
        Ok(Preparation { writable: Vec::new(), tcp_ports: Vec::new(), made })
    };
    let started = child::start(ChildRole::Portal, &stream, |launch: &PortalLaunch| &launch.common, prepare);
    match started.and_then(|started| child::work(&stream, async |parent| serve(started, parent).await)) {
        Ok(()) => Ok(()),
        Err(error) => child::finish(stream, &FromPortal::Failed(vpnd_sys::text::format_chain(&error))),
    }
}

/// Algorithms of TLS.
fn suites() -> CryptoProvider {
    rustls::crypto::aws_lc_rs::default_provider()
}

/// TLS for browsers, and for an authority that looks whether the name leads here.
fn tls(certificates: Arc<Certificates>) -> anyhow::Result<Arc<ServerConfig>> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(suites()))
        .with_protocol_versions(&VERSIONS)?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    // One request at a time on each connection, so that their number is bounded as well.
    config.alpn_protocols = vec![b"http/1.1".to_vec(), CHALLENGE.to_vec()];
    Ok(Arc::new(config))
}

/// TLS for browsers, with the certificates that it presents.
type Tls = (Arc<ServerConfig>, Arc<Certificates>);

async fn serve(started: Started<PortalLaunch, Tls>, parent: Channel) -> anyhow::Result<()> {
    let Ok([auth, listener]) = <[_; 2]>::try_from(started.launch.descriptors) else {
        bail!("the portal was started without its channel to the auth process or its socket");
    };
    let (auth, answers) = AuthClient::start(Channel::new(auth.into(), MAX_FRAME)?);
    let PortalLaunch { name, logo, providers, relays, hsts_subdomains, .. } = started.launch.message;
    site::headers::cover_subdomains(hsts_subdomains);
    let (to_parent, messages) = mpsc::unbounded_channel();
    let relays = Relays::new(relays as usize, to_parent.clone());
    let (tls, certificates) = started.made;
    let at_parent = Parent::new(Arc::clone(&relays), certificates, to_parent);
    let site = Arc::new(Site::new(auth, name.to_string(), logo, providers.to_vec()));
    let listener = Listener::new(listener, tls, site::router(Arc::clone(&site)), relays)?;
    parent.send(&Prepared::Prepared(started.protections), &[]).await?;
    tokio::select! {
        ended = at_parent.serve(parent, messages) => ended.context("the daemon's parent is lost"),
        ended = answers => ended.context("the auth process is lost"),
        never = listener.serve() => match never {},
        never = site.report() => match never {},
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tls_1_2_and_1_3_with_aead_suites_are_offered() {
        let names: Vec<String> =
            suites().cipher_suites.iter().map(|suite| format!("{:?}", suite.suite())).collect();
        let is_good = |name: &String| {
            (name.starts_with("TLS13_") || name.starts_with("TLS_ECDHE_"))
                && (name.contains("_GCM_") || name.contains("_POLY1305_"))
        };
        assert!(!names.is_empty() && names.iter().all(is_good), "{names:?}");
        assert!(names[0].starts_with("TLS13_"), "the best first: {names:?}");
        let versions = VERSIONS.map(|version| format!("{:?}", version.version));
        assert_eq!(versions, ["TLSv1_3", "TLSv1_2"]);
    }
}
