//! The network worker, as its privileged parent sees it.
//!
//! INVARIANT: a request is carried out only within the worker's limits, for an attacker may have
//! taken the worker over; and its own words reach a terminal without control characters.

use std::os::fd::OwnedFd;
use std::time::Duration;

use super::limits::Limits;
use crate::messages::{FromWorker, ParentRequest, ToWorker};
use vpnd_ipc::spawn::{ChildError, RunningChild};
use vpnd_sys::clock::now;
use vpnd_sys::text::harmless;

/// Time for the worker to close its connection to the gateway.
const END_TIMEOUT: Duration = Duration::from_secs(6);

pub(super) struct Worker {
    child: RunningChild<FromWorker>,
    limits: Limits,
}

impl Worker {
    pub(super) fn new(child: RunningChild<FromWorker>) -> Self {
        Self { child, limits: Limits::new() }
    }

    /// The next request and its number. Safe to cancel.
    ///
    /// # Errors
    /// The reason for which the worker has ended.
    pub(super) async fn requested(&mut self) -> Result<(u64, ParentRequest), ChildError> {
        match self.child.receive().await? {
            FromWorker::Request { number, request } => Ok((number, request)),
            FromWorker::Failed(why) => Err(ChildError::Failed(harmless(&why))),
            FromWorker::Refused(why) => Err(ChildError::Refused(harmless(&why))),
            FromWorker::Unreached(why) => Err(ChildError::Unreached(harmless(&why))),
        }
    }

    /// Whether the worker has not had too much of this; otherwise it is refused.
    pub(super) async fn allows(&mut self, number: u64, request: &ParentRequest) -> Result<bool, ChildError> {
        if let Err(why) = self.limits.take(request, now()) {
            self.send(&ToWorker::refusal(number, &why)).await?;
            return Ok(false);
        }
        Ok(true)
    }

    pub(super) async fn send(&self, message: &ToWorker) -> Result<(), ChildError> {
        self.send_with(message, &[]).await
    }

    /// Sends a message with these descriptors.
    pub(super) async fn send_with(
        &self,
        message: &ToWorker,
        descriptors: &[OwnedFd],
    ) -> Result<(), ChildError> {
        self.child.send(message, descriptors).await
    }

    /// Has it inform the gateway and end, for this reason.
    pub(super) async fn stop(self, reason: &str) {
        // One that has ended by itself does not receive it.
        let _ = self.send(&ToWorker::Stop(Some(reason.to_owned()))).await;
        self.child.end(END_TIMEOUT).await;
    }
}
