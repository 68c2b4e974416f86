//! The tunnel's network on this machine, kept as it should be, and the lookups of the gateway's
//! names, which have to leave it.
//!
//! INVARIANT: names are looked up outside the tunnel only as long as the worker waits for one. What
//! a failure leaves of that is ended by the next call of [`TunnelNetwork::end_lookups`].

use std::time::Duration;

use vpnd_proto::control::{Network, Renewal};

use super::gateway_addresses::GatewayAddresses;
use super::lookups::{Found, Lookups};
use super::network::{NetworkError, NetworkSetup};
use super::stop::Stop;
use super::tunnel_dns::DnsWatch;
use crate::user_messages::TunnelDetails;
use vpnd_ipc::spawn::ChildError;
use vpnd_sys::log_limit::LogLimit;
use vpnd_sys::logging::NEWS;
use vpnd_sys::netlink::{Netlink, NetworkChange};
use vpnd_sys::text::format_chain;

/// Shortest interval between lines about a network that can't be kept up to date.
const FAILURE_INTERVAL: Duration = Duration::from_secs(60);

pub(super) struct TunnelNetwork {
    setup: NetworkSetup,
    lookups: Lookups,
    /// The gateway's addresses that are kept for the next start.
    addresses: GatewayAddresses,
    stop: Stop,
    /// Lines about a network that is not up to date.
    failures: LogLimit,
}

pub(super) enum NetworkEvent {
    /// The result for the question of this number.
    LookedUp(u64, Found),
    /// Another program may have removed or changed the guard.
    GuardDisturbed,
}

impl TunnelNetwork {
    pub(super) fn new(
        setup: NetworkSetup,
        lookups: Lookups,
        addresses: GatewayAddresses,
        stop: Stop,
    ) -> Self {
        Self { setup, lookups, addresses, stop, failures: LogLimit::new(1, FAILURE_INTERVAL) }
    }

    /// Waits for something to do. Safe to cancel.
    pub(super) async fn event(&mut self) -> NetworkEvent {
        tokio::select! {
            Some((number, reply)) = self.lookups.next() => NetworkEvent::LookedUp(number, reply),
            () = self.setup.guard_disturbed() => NetworkEvent::GuardDisturbed,
        }
    }

    /// Puts what the gateway says in force; see [`NetworkSetup::apply`]. The inner result is for
    /// the worker, which tries again.
    ///
    /// # Errors
    /// [`ChildError::Failed`] if that would be of no use, unless the end of the client would open a
    /// tunnel for everything.
    pub(super) async fn apply(&mut self, network: &Network) -> Result<Result<(), String>, ChildError> {
        let outcome = self.setup.apply(network).await;
        let is_final = outcome.as_ref().is_err_and(NetworkError::is_final) && !self.is_full();
        match explained(outcome) {
            Err(reason) if is_final => Err(ChildError::Failed(reason)),
            outcome => Ok(outcome),
        }
    }

    /// # Errors
    /// The reason, for the worker, as in the methods below.
    pub(super) async fn use_tunnel_dns(&mut self, tunnel: bool) -> Result<(), String> {
        explained(self.setup.use_tunnel_dns(tunnel).await)
    }

    pub(super) async fn set_mtu(&mut self, mtu: u16) -> Result<(), String> {
        explained(self.setup.set_mtu(mtu).await)
    }

    /// Looks up a gateway's addresses as without a tunnel, whose name servers need the gateway; see
    /// [`Lookups::start`].
    pub(super) async fn start_lookup(
        &mut self,
        number: u64,
        server: u32,
        is_marked: bool,
    ) -> Result<(), String> {
        self.lookups.end_trial().await;
        let begun = explained(self.setup.begin_lookups().await);
        let started = begun.and_then(|()| self.lookups.start(number, server, is_marked));
        self.end_lookups().await;
        started
    }

    /// Has names looked up in the tunnel again, unless a look-up runs. The next call ends what a
    /// failure leaves.
    pub(super) async fn end_lookups(&mut self) {
        if self.lookups.is_idle()
            && let Err(error) = self.setup.end_lookups().await
            && self.failures.admits()
        {
            let error = format_chain(&error.into());
            tracing::error!(%error, "names are still looked up outside the tunnel, and should not be");
        }
    }

    pub(super) fn is_looking_up(&self) -> bool {
        self.setup.is_looking_up()
    }

    /// Keeps the gateway's addresses for the next start, and has them looked up from now on.
    pub(super) fn renew(&mut self, renewal: &Renewal) -> Result<(), String> {
        match self.addresses.keep(renewal) {
            Ok(true) => tracing::info!(
                target: NEWS,
                "from now on the gateway is at {}: kept in {}; 'renew = false' in [server] of the profile switches that off",
                self.addresses.kept().iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
                self.addresses.path().display()
            ),
            Ok(false) => {}
            Err(error) => {
                if self.failures.admits() {
                    tracing::warn!("the gateway's list of its addresses can't be stored: {error}");
                }
                return Err(error.to_string());
            }
        }
        self.lookups.add(self.addresses.kept());
        Ok(())
    }

    /// Brings all up to date. Returns whether it was so before, and will stay so as far as can be
    /// seen.
    pub(super) async fn follow(&mut self) -> bool {
        let renewals = self.setup.renewals();
        let outcome = self.setup.follow().await;
        let is_settled = outcome.is_ok() && renewals == self.setup.renewals() && !self.setup.is_contested();
        if let Err(error) = outcome
            && !self.stop.is_asked_for()
            // The interface goes with the worker, whose end is noticed next.
            && self.setup.has_interface().await
            && self.failures.admits()
        {
            let error = format_chain(&error.into());
            tracing::error!(%error, "the tunnel's addresses, routes and rules could not be updated");
        }
        is_settled
    }

    /// Has the machine use the name servers that it should use now, and tries them where they are
    /// new.
    pub(super) async fn check_dns(&mut self, watch: &mut DnsWatch) {
        if !self.setup.check_dns().await {
            watch.soon();
        }
        if self.setup.has_dns_problem() {
            watch.sign();
        }
        if !self.setup.is_looking_up()
            && let Some(domain) = self.setup.take_untried_names()
        {
            self.lookups.try_names(domain);
        }
    }

    /// Whether something other than the tunnel changed. If not, something of the tunnel may have
    /// been removed.
    pub(super) fn is_foreign(&self, change: NetworkChange) -> bool {
        match change {
            NetworkChange::Link { interface } | NetworkChange::Address { interface } => {
                interface != self.interface_index()
            }
            NetworkChange::RouteRemoved | NetworkChange::RuleRemoved => false,
            // Those that vpnd makes are left out; others into the tunnel may be in the way of the
            // tunnel's datagrams.
            NetworkChange::Route { .. } | NetworkChange::Rule | NetworkChange::Unknown => true,
        }
    }

    /// Whether settings are in force by which nothing may leave without the tunnel.
    pub(super) fn is_full(&self) -> bool {
        self.setup.is_full()
    }

    /// The connection to the kernel.
    pub(super) fn netlink(&self) -> &Netlink {
        self.setup.netlink()
    }

    /// The number of the tunnel's interface.
    pub(super) fn interface_index(&self) -> u32 {
        self.setup.interface_index()
    }

    /// The settings in force, for the user.
    pub(super) fn in_force(&self) -> TunnelDetails {
        self.setup.in_force()
    }

    /// Takes everything back; returns whether that was all.
    pub(super) async fn undo(self) -> bool {
        self.setup.undo().await
    }
}

fn explained(outcome: Result<(), NetworkError>) -> Result<(), String> {
    outcome.map_err(|error| format_chain(&error.into()))
}
