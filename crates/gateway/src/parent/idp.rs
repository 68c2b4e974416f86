//! The idp process as the parent holds it: there where sources are configured.
//!
//! INVARIANT: whatever becomes of it, sessions and logins of local users go on.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::Context as _;

use super::kept_child::{Failure, KeptChild};
use super::launcher::Launcher;
use vpnd_config::ServerConfig;
use vpnd_ipc::child::ChildRole;
use vpnd_ipc::gateway::idp::{FromIdp, IdpLaunch};
use vpnd_ipc::gateway::{Configuration, ToAuth};
use vpnd_ipc::spawn::StartingChild;

impl Failure for FromIdp {
    const LOSS: &'static str = "no logins of external sources";

    fn into_reason(self) -> Result<String, Self> {
        let Self::Failed(why) = self;
        Ok(why)
    }
}

pub(super) struct Idp {
    child: KeptChild<IdpLaunch, FromIdp>,
    /// Where RADIUS servers ask about sessions. They stay open while one idp process follows
    /// another.
    listeners: Vec<(SocketAddr, OwnedFd)>,
}

impl Idp {
    /// Starts it where sources are configured, and connects the auth process to it.
    pub(super) async fn start(
        launcher: &Launcher,
        configuration: &Configuration,
        config: &ServerConfig,
        auth: &StartingChild,
        before: Option<&Self>,
    ) -> anyhow::Result<Option<Self>> {
        if config.sources.is_empty() {
            return Ok(None);
        }
        let launch = IdpLaunch { common: launcher.common().clone(), configuration: configuration.clone() };
        let listeners = listeners(config, before.map_or(&[], |idp| &idp.listeners))?;
        let child = KeptChild::new(launcher.program(), ChildRole::Idp, launch);
        let mut idp = Self { child, listeners };
        let to_auth = idp.child.start(idp.listeners.iter().map(|(_, listener)| listener)).await?;
        auth.send(&ToAuth::Idp, &[to_auth]).await?;
        Ok(Some(idp))
    }

    /// Waits until it has ended and should be there again. Safe to cancel.
    pub(super) async fn ended(&mut self) {
        // It sends nothing but its end.
        self.child.next().await;
    }

    /// Starts it again; the auth process's end of the channel to it.
    pub(super) async fn restart(&mut self) -> Option<OwnedFd> {
        self.child.restart(self.listeners.iter().map(|(_, listener)| listener)).await
    }

    /// Lets it go.
    pub(super) async fn dismiss(self, timeout: Duration) {
        self.child.dismiss(timeout).await;
    }
}

/// The sockets of the sources that are configured for one, in their order; those that are open
/// already are taken over.
fn listeners(
    config: &ServerConfig,
    before: &[(SocketAddr, OwnedFd)],
) -> anyhow::Result<Vec<(SocketAddr, OwnedFd)>> {
    let open = |address: SocketAddr| -> anyhow::Result<_> {
        if let Some((_, listener)) = before.iter().find(|(open, _)| *open == address) {
            return Ok((address, listener.try_clone()?));
        }
        let socket = UdpSocket::bind(address).with_context(|| {
            format!("can't receive requests of RADIUS servers on {address}; choose another coa_listen")
        })?;
        socket.set_nonblocking(true)?;
        Ok((address, socket.into()))
    };
    config.sources.iter().filter_map(|source| source.dynamic()).map(|dynamic| open(dynamic.listen)).collect()
}
