//! The tunnel's name servers: whether the machine uses them now.
//!
//! The worker reports whether the tunnel leads somewhere; all else is decided here, so that nothing
//! depends on how far the worker came with what it had begun.
//!
//! INVARIANT: while a gateway's name is looked up, or the tunnel leads nowhere, the machine has its
//! own name servers; else it has the tunnel's. INVARIANT: while a full tunnel's are to be in force,
//! no others are asked ([`TunnelDns::closes_names`]).

use std::net::IpAddr;

use super::network::NetworkError;
use vpnd_journal::{Journal, JournalError};
use vpnd_sys::change::ChangeError;
use vpnd_sys::dns::{DnsError, DnsSettings};
use vpnd_sys::netlink::Netlink;

mod changes;
mod other_links;
mod watch;

use changes::DnsChanges;
use other_links::OtherLinks;
pub(super) use watch::DnsWatch;

pub(super) struct TunnelDns {
    /// The gateway's, as far as the profile permits them. `None` leaves the machine's as they are.
    settings: Option<DnsSettings>,
    /// Whether the tunnel is for everything.
    is_full: bool,
    /// Whether the tunnel leads somewhere.
    is_reachable: bool,
    /// Whether a gateway's name is being looked up.
    is_looking_up: bool,
    changes: DnsChanges,
    other_links: OtherLinks,
    /// The problem that was logged last, so that it is not logged each second.
    problem: Option<String>,
    /// Whether names have not been tried since the name servers were set.
    is_untried: bool,
}

impl TunnelDns {
    pub(super) fn new(interface_index: u32) -> Self {
        Self {
            settings: None,
            is_full: false,
            is_reachable: true,
            is_looking_up: false,
            changes: DnsChanges::new(interface_index),
            other_links: OtherLinks::default(),
            problem: None,
            is_untried: false,
        }
    }

    /// Takes the gateway's new settings, of a tunnel for everything or for a part. They are in
    /// force once [`TunnelDns::settle`] was called.
    pub(super) fn set(&mut self, settings: Option<DnsSettings>, is_full: bool) {
        self.is_untried |= settings.is_some() && self.settings != settings;
        (self.settings, self.is_full) = (settings, is_full);
    }

    /// Whether no name servers but the tunnel's may be asked: those are to be in force, and the
    /// tunnel is for everything. Then it does not matter what another program writes or the local
    /// network names.
    pub(super) fn closes_names(&self) -> bool {
        self.is_full && self.wanted().is_some()
    }

    /// The tunnel's name servers, as long as the machine uses them.
    pub(super) fn in_use(&self) -> Option<&DnsSettings> {
        self.wanted().filter(|_| !self.changes.is_empty())
    }

    fn wanted(&self) -> Option<&DnsSettings> {
        self.settings.as_ref().filter(|_| self.is_reachable && !self.is_looking_up)
    }

    pub(super) fn set_reachable(&mut self, is_reachable: bool) {
        self.is_reachable = is_reachable;
    }

    pub(super) fn set_looking_up(&mut self, is_looking_up: bool) {
        self.is_looking_up = is_looking_up;
    }

    pub(super) fn is_looking_up(&self) -> bool {
        self.is_looking_up
    }

    /// The name servers that the machine uses without the tunnel.
    pub(super) fn own_servers(&self) -> Vec<IpAddr> {
        self.changes.own_servers(self.settings.as_ref())
    }

    /// A domain of the tunnel's names, once after its name servers were set: whether one can be
    /// looked up is to be tried. An empty one if the gateway names none.
    pub(super) fn take_untried(&mut self) -> Option<String> {
        if self.changes.is_empty() || !std::mem::take(&mut self.is_untried) {
            return None;
        }
        self.settings.as_ref().map(|settings| settings.search.first().cloned().unwrap_or_default())
    }

    /// Has the machine use the name servers that it should use now. Returns whether that is done;
    /// otherwise another look is needed soon.
    ///
    /// # Errors
    /// If they could not be set or put back. That another tunnel has the file is none, and logged.
    pub(super) async fn settle(
        &mut self,
        journal: &mut Journal,
        netlink: &Netlink,
    ) -> Result<bool, NetworkError> {
        let outcome = match self.wanted().cloned() {
            Some(settings) => self.changes.put_in_force(&settings, journal, netlink).await,
            None => self.changes.take_back(journal, netlink).await.map(|()| true),
        };
        match outcome {
            // Each would put back the other's at its end.
            Err(NetworkError::Dns(error @ DnsError::HeldBy { .. })) => {
                self.report(format!("the gateway's name servers are not used: {error}"));
                Ok(true)
            }
            Err(NetworkError::Journal(JournalError::Change {
                source: ChangeError::Dns(DnsError::Changed(_)),
                ..
            })) => Ok(false),
            Ok(is_done) => {
                self.problem = None;
                Ok(is_done)
            }
            failed => failed,
        }
    }

    /// Whether the name servers are not those that they should be.
    pub(super) fn has_problem(&self) -> bool {
        self.problem.is_some()
    }

    /// Logs once what went wrong, where it is tried again from time to time.
    pub(super) fn checked(&mut self, outcome: Result<bool, NetworkError>) -> bool {
        outcome.unwrap_or_else(|error| {
            let error = vpnd_sys::text::format_chain(&error.into());
            self.report(format!("the machine's name servers are not those that they should be: {error}"));
            true
        })
    }

    fn report(&mut self, problem: String) {
        if self.problem.as_ref() != Some(&problem) {
            tracing::warn!("{problem}");
            self.problem = Some(problem);
        }
    }

    /// Has another task look whether systemd-resolved asks others about the tunnel's names, if it
    /// is time.
    pub(super) fn look_at_other_links(&mut self) {
        let Some(settings) = self.wanted().filter(|_| self.changes.has_resolved()).cloned() else { return };
        // Asking one that was stopped would start it.
        let runs = || self.changes.memory_now().is_some();
        self.other_links.look(settings, self.is_full, runs);
    }
}
