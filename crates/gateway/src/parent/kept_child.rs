//! A child without which the gateway goes on: it is started again when it has ended.
//!
//! INVARIANT: whatever becomes of it, sessions go on, and nothing is waited for but its start.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context as _, bail};
use minicbor::Encode;
use tokio::time::Instant;

use super::launcher::{Program, start_child};
use vpnd_ipc::channel;
use vpnd_ipc::child::ChildRole;
use vpnd_ipc::spawn::{FromChild, RunningChild};

/// Limit for it to be prepared: nothing else is done meanwhile.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Time before it is started again, and the longest such time after it has ended several times.
const DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(30);
/// A process that has lived this long was a good one.
const LIFE: Duration = Duration::from_secs(60);

/// A message of such a child.
pub(super) trait Failure: FromChild {
    /// The function that the gateway lacks without it.
    const LOSS: &'static str;

    /// Why it gives up, if the message is that; all others are given back.
    fn into_reason(self) -> Result<String, Self>;
}

/// The child, there or not, with its first message.
pub(super) struct KeptChild<L, M> {
    program: Program,
    role: ChildRole,
    pub(super) launch: L,
    running: Option<RunningChild<M>>,
    started: Instant,
    delay: Duration,
}

impl<L: Encode<()>, M: Failure> KeptChild<L, M> {
    /// It is not there yet, and is due at once.
    pub(super) fn new(program: &Program, role: ChildRole, launch: L) -> Self {
        let program = program.clone();
        Self { program, role, launch, running: None, started: Instant::now(), delay: Duration::ZERO }
    }

    /// Starts it with these descriptors besides its end of a channel to the auth process, whose
    /// other end is returned.
    pub(super) async fn start<'d>(
        &mut self,
        descriptors: impl Iterator<Item = &'d OwnedFd>,
    ) -> anyhow::Result<OwnedFd> {
        let (ours, to_auth) = channel::pair()?;
        let mut all = vec![ours.into()];
        for descriptor in descriptors {
            all.push(descriptor.try_clone()?);
        }
        let child = start_child(&self.program, self.role, &self.launch, all);
        let Ok(child) = tokio::time::timeout(START_TIMEOUT, child).await else {
            bail!("the {} process was not ready within {} s", self.role, START_TIMEOUT.as_secs());
        };
        self.running = Some(child.context(M::LOSS)?.0.at_work());
        (self.started, self.delay) = (Instant::now(), self.delay.max(DELAY));
        Ok(to_auth.into())
    }

    /// Its next message; `None` once it has ended and should be there again. Safe to cancel.
    pub(super) async fn next(&mut self) -> Option<M> {
        if let Some(child) = &mut self.running {
            let error = match child.receive().await.map(M::into_reason) {
                Ok(Ok(reason)) => reason,
                Ok(Err(message)) => return Some(message),
                Err(error) => error.to_string(),
            };
            tracing::error!(%error, "{} until the {} process is there again", M::LOSS, self.role);
            self.running = None;
            let short = self.started.elapsed() < LIFE;
            self.delay = if short { (self.delay * 2).clamp(DELAY, MAX_DELAY) } else { DELAY };
            self.started = Instant::now();
        }
        tokio::time::sleep_until(self.started + self.delay).await;
        None
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Sends it a message, if it is there. One that reads none is started again.
    pub(super) async fn send<T: Encode<()>>(&mut self, message: &T, descriptors: &[OwnedFd]) {
        if let Some(child) = &self.running
            && let Err(error) = child.send(message, descriptors).await
        {
            tracing::debug!(%error, "the {} process is not sent a message", self.role);
        }
    }

    /// Starts one again that has ended. If that fails it is tried later.
    pub(super) async fn restart<'d>(
        &mut self,
        descriptors: impl Iterator<Item = &'d OwnedFd>,
    ) -> Option<OwnedFd> {
        match self.start(descriptors).await {
            Ok(to_auth) => Some(to_auth),
            Err(error) => {
                let error = vpnd_sys::text::format_chain(&error);
                tracing::error!(error, "the {} process can't be started", self.role);
                self.delay = (self.delay * 2).clamp(DELAY, MAX_DELAY);
                self.started = Instant::now();
                None
            }
        }
    }

    /// Ends it, to be started with another first message.
    pub(super) async fn end(&mut self, timeout: Duration) {
        if let Some(child) = self.running.take() {
            child.dismiss(timeout).await;
        }
    }

    /// Lets it go.
    pub(super) async fn dismiss(mut self, timeout: Duration) {
        self.end(timeout).await;
    }
}
