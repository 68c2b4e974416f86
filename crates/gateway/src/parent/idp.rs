//! The idp process as the parent holds it: there where sources are configured, and started again
//! when it has ended.
//!
//! INVARIANT: whatever becomes of it, sessions and logins of local users go on.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::time::Instant;

use super::start_child;
use vpnd_config::ServerConfig;
use vpnd_ipc::channel;
use vpnd_ipc::child::ChildRole;
use vpnd_ipc::gateway::Configuration;
use vpnd_ipc::gateway::idp::{FromIdp, IdpLaunch};
use vpnd_ipc::messages::Common;
use vpnd_ipc::spawn::RunningChild;

/// Limit for it to be prepared: nothing else is done meanwhile.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Time before it is started again, and the longest such time after it has ended several times.
const DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(30);
/// A process that has lived this long was a good one.
const LIFE: Duration = Duration::from_secs(60);

pub(super) struct Idp {
    program: PathBuf,
    launch: IdpLaunch,
    running: Option<RunningChild<FromIdp>>,
    /// Where RADIUS servers ask about sessions. They stay open while one idp process follows
    /// another.
    listeners: Vec<(SocketAddr, OwnedFd)>,
    started: Instant,
    delay: Duration,
}

impl Idp {
    /// Starts it where sources are configured; with it the auth process's end of the channel to it.
    pub(super) async fn start(
        program: &Path,
        configuration: &Configuration,
        config: &ServerConfig,
        common: &Common,
        before: Option<&Self>,
    ) -> anyhow::Result<Option<(Self, OwnedFd)>> {
        if config.sources.is_empty() {
            return Ok(None);
        }
        let launch = IdpLaunch { common: common.clone(), configuration: configuration.clone() };
        let program = program.to_owned();
        let listeners = listeners(config, before.map_or(&[], |idp| &idp.listeners))?;
        let mut idp =
            Self { program, launch, running: None, listeners, started: Instant::now(), delay: DELAY };
        let to_auth = idp.launch().await?;
        Ok(Some((idp, to_auth)))
    }

    async fn launch(&mut self) -> anyhow::Result<OwnedFd> {
        let (ours, to_auth) = channel::pair()?;
        let mut descriptors = vec![ours.into()];
        for (_, listener) in &self.listeners {
            descriptors.push(listener.try_clone()?);
        }
        let child = start_child(&self.program, ChildRole::Idp, &self.launch, descriptors);
        let Ok(child) = tokio::time::timeout(START_TIMEOUT, child).await else {
            bail!("the idp process was not ready within {} s", START_TIMEOUT.as_secs());
        };
        self.running = Some(child.context("external logins can't be checked")?.0.at_work());
        self.started = Instant::now();
        Ok(to_auth.into())
    }

    /// Waits until it has ended and should be there again. Safe to cancel.
    pub(super) async fn ended(&mut self) {
        if let Some(child) = &mut self.running {
            let error = match child.receive().await {
                Ok(FromIdp::Failed(why)) => why,
                Err(error) => error.to_string(),
            };
            tracing::error!(%error, "no logins of external sources until the idp process is there again");
            self.running = None;
            let short = self.started.elapsed() < LIFE;
            self.delay = if short { (self.delay * 2).min(MAX_DELAY) } else { DELAY };
            self.started = Instant::now();
        }
        tokio::time::sleep_until(self.started + self.delay).await;
    }

    /// Starts it again. If that fails it is tried later.
    pub(super) async fn restart(&mut self) -> Option<OwnedFd> {
        match self.launch().await {
            Ok(to_auth) => Some(to_auth),
            Err(error) => {
                tracing::error!(error = %vpnd_sys::text::format_chain(&error), "the idp process can't be started again");
                self.delay = (self.delay * 2).min(MAX_DELAY);
                self.started = Instant::now();
                None
            }
        }
    }

    /// Lets it go.
    pub(super) async fn dismiss(self, timeout: Duration) {
        if let Some(child) = self.running {
            child.dismiss(timeout).await;
        }
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
