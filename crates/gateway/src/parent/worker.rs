//! The worker as the parent holds it: what it may ask for, and what it was sent.
//!
//! INVARIANT: the limits of requests hold for a worker and the next one of an upgrade together: one
//! that was taken over gets no more by a successor.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::hosts::Hosts;
use super::machine::Machine;
use super::own_addresses::OwnAddresses;
use super::releases::Releases;
use vpnd_config::ServerConfig;
use vpnd_ipc::admin::status::Firewall;
use vpnd_ipc::gateway::{FromWorker, HostRouteChanges, ToWorker};
use vpnd_ipc::spawn::{ChildError, RunningChild};
use vpnd_sys::allowance::Allowance;
use vpnd_sys::clock::now;

pub(super) struct Worker {
    pub(super) process: RunningChild<FromWorker>,
    /// The control socket, and that of the metrics, for the next one.
    pub(super) listeners: Vec<OwnedFd>,
    /// Rate limit of its requests to read the configuration.
    rereads: Allowance,
    /// Rate limit of its requests for an upgrade.
    upgrades: Allowance,
    /// Its requests to forget connections of addresses.
    releases: Releases,
    /// Its requests to announce addresses.
    hosts: Hosts,
    own_addresses: OwnAddresses,
    /// The state of the firewall that it has, if it asked for it.
    reported: Option<Option<Firewall>>,
}

/// Something to do for the worker.
pub(super) enum Event {
    Message(Result<FromWorker, ChildError>),
    /// The machine may have other addresses.
    Addresses,
    /// The kernel has forgotten all connections that it was to.
    Forgotten,
}

impl Worker {
    pub(super) fn new(
        process: RunningChild<FromWorker>,
        listeners: Vec<OwnedFd>,
        own_addresses: OwnAddresses,
        config: &ServerConfig,
    ) -> Self {
        Self {
            process,
            listeners,
            rereads: Allowance::new(32, Duration::from_secs(1)),
            upgrades: Allowance::new(16, Duration::from_secs(10)),
            releases: Releases::new(config),
            hosts: Hosts::new(config),
            own_addresses,
            reported: None,
        }
    }

    /// Another process is the worker now. Returns the one before.
    pub(super) fn replace(&mut self, process: RunningChild<FromWorker>) -> RunningChild<FromWorker> {
        self.reported = None;
        self.own_addresses.begin_again();
        std::mem::replace(&mut self.process, process)
    }

    pub(super) async fn send(&self, message: &ToWorker, descriptors: &[OwnedFd]) -> Result<(), ChildError> {
        self.process.send(message, descriptors).await
    }

    /// The next event. Safe to cancel.
    pub(super) async fn next(&mut self) -> Event {
        tokio::select! {
            message = self.process.receive() => Event::Message(message),
            () = self.own_addresses.changed() => Event::Addresses,
            () = self.releases.done() => Event::Forgotten,
        }
    }

    /// Whether there is time for its request to read the configuration.
    pub(super) fn may_reread(&mut self) -> bool {
        self.rereads.take(now())
    }

    /// Whether there is time for its request for an upgrade, which starts processes.
    pub(super) fn may_upgrade(&mut self) -> bool {
        self.upgrades.take(now())
    }

    /// Has connections of these addresses forgotten.
    ///
    /// # Errors
    /// If no worker releases such addresses.
    pub(super) fn release(&mut self, addresses: Vec<IpAddr>) -> Result<(), ChildError> {
        self.releases.begin(addresses)
    }

    /// Announces addresses of clients for the worker, which sends again what is not done.
    pub(super) async fn set_hosts(
        &mut self,
        changes: &HostRouteChanges,
        machine: &Machine,
    ) -> Result<(), ChildError> {
        let not_announced = |error: &anyhow::Error| {
            tracing::warn!(%error, "addresses of clients are not announced yet; trying again");
        };
        let is_set =
            self.hosts.admit(changes)? && machine.set_hosts(changes).await.inspect_err(not_announced).is_ok();
        self.send(&ToWorker::HostsSet(is_set), &[]).await
    }

    /// Names the machine's addresses to the worker.
    pub(super) async fn note_addresses(&mut self) -> Result<(), ChildError> {
        match self.own_addresses.others().await {
            Some(addresses) => self.send(&ToWorker::Addresses(addresses), &[]).await,
            None => Ok(()),
        }
    }

    /// It asks for the state of the firewall.
    pub(super) fn ask_for_firewall(&mut self) {
        self.reported = Some(None);
    }

    /// Sends the state of the firewall, if the worker asked for that and the state is another.
    pub(super) async fn report(&mut self, firewall: Option<Firewall>) -> Result<(), ChildError> {
        let Some(firewall) = firewall else { return Ok(()) };
        match &mut self.reported {
            Some(reported) if reported.as_ref() != Some(&firewall) => {
                *reported = Some(firewall.clone());
                self.send(&ToWorker::Firewall(firewall), &[]).await
            }
            _ => Ok(()),
        }
    }
}
