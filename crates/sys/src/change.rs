//! Changes to the machine as data: each can be written down, applied, and undone by another
//! process.
//!
//! INVARIANT: a change that is not on the list of what vpnd does (`allowed.rs`) is neither made nor
//! undone. INVARIANT: undoing is idempotent and touches only what vpnd made: routes and rules are
//! recognised by their origin, files and settings by their present content, the firewall table by
//! its name. No change holds a secret.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::dns::{DnsChange, DnsError, DnsSystem, DnsUndone};
use crate::netlink::{AddressSpec, HostRoutes, Netlink, NetlinkError, RouteSpec, RuleSpec};
use crate::nft::{GatewayRules, GuardRules, NftError};
use crate::sysctl::{SysctlChange, SysctlError};

mod allowed;
mod layer;
mod table;

pub use allowed::is_plausible_local;
pub use layer::Layer;
pub use table::{TABLE_BASE, interface_of, tables_of};

/// First priority of our rules, all of which come before Tailscale's (5210 to 5270) and the
/// system's own at 32766.
pub const PRIORITY_BASE: u32 = 5_136;
/// First priority of the rules of earlier versions, behind ours.
const EARLIER_PRIORITY_BASE: u32 = 5_200;
/// Rules of a tunnel at most, for each protocol version.
pub const RULES: u32 = 4;

/// Metric of the routes that lead into no tunnel: any other route to the same destination comes
/// first.
pub const LAST_RESORT_METRIC: u32 = 1_000_000;

/// One change to the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Sets an interface of ours up.
    LinkUp {
        interface: String,
    },
    Address(AddressSpec),
    Route(RouteSpec),
    Rule(RuleSpec),
    Dns(DnsChange),
    Sysctl(SysctlChange),
    /// Installs the gateway's firewall table.
    Firewall(GatewayRules),
    Guard(GuardRules),
    /// Empties the table for routes to single hosts of a tunnel, of which there may be some from
    /// now on.
    HostRoutes(HostRoutes),
}

#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// It is none of those that vpnd makes.
    #[error("vpnd neither makes nor undoes such a change: {0}")]
    Forbidden(String),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Dns(#[from] DnsError),
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    #[error(transparent)]
    Nft(#[from] NftError),
}

impl ChangeError {
    /// Whether the change is refused because it is made already.
    pub fn is_already_there(&self) -> bool {
        matches!(self, Self::Netlink(error) if error.is_already_there())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undone {
    /// It was there and is gone, or the old state is back.
    Restored,
    /// There was nothing to undo, or another process needs it, and may undo it later.
    WasGone,
    /// Someone else has changed it since; it stays as it is.
    NotOurs,
}

impl Change {
    /// Makes the change.
    ///
    /// # Errors
    /// [`ChangeError`]; what was there already is an error, too.
    pub async fn apply(&self, netlink: &Netlink) -> Result<(), ChangeError> {
        self.check_for(netlink).await?;
        match self {
            Self::LinkUp { interface } => netlink.set_up(interface, true).await?,
            Self::Address(spec) => netlink.add_address(spec).await?,
            Self::Route(spec) => netlink.add_route(spec).await?,
            Self::Rule(spec) => netlink.add_rule(spec).await?,
            Self::Dns(change) => change.apply().await?,
            Self::Sysctl(change) => change.apply()?,
            Self::Firewall(rules) => rules.apply().await?,
            Self::Guard(rules) => rules.apply().await?,
            Self::HostRoutes(routes) => netlink.remove_host_routes(routes).await?,
        }
        Ok(())
    }

    /// With what undoing it has to know of the machine as it is before.
    ///
    /// # Errors
    /// [`ChangeError`]
    pub async fn beside_others(mut self, netlink: &Netlink) -> Result<Self, ChangeError> {
        if let Self::Sysctl(change) = &mut self
            && change.is_valid_marks()
        {
            change.others_had_marks = netlink.others_use_marks().await?;
        }
        Ok(self)
    }

    /// Makes the change in the place of another, where the kernel has room for one of the two; else
    /// as [`Change::apply`].
    pub async fn replace(&self, netlink: &Netlink) -> Result<(), ChangeError> {
        let Self::Route(spec) = self else { return self.apply(netlink).await };
        self.check_for(netlink).await?;
        Ok(netlink.replace_route(spec).await?)
    }

    /// Takes the change back, whether it was made in full, in part or not at all.
    pub async fn undo(&self, netlink: &Netlink) -> Result<Undone, ChangeError> {
        self.check()?;
        if !self.is_for_a_tunnel(netlink).await? {
            return Ok(Undone::NotOurs);
        }
        match self {
            // The device goes with the process that has made it, and takes that along.
            Self::LinkUp { .. } => Ok(Undone::WasGone),
            Self::Address(spec) => removed(netlink.remove_address(spec).await),
            Self::Route(spec) => removed(netlink.remove_route(spec).await),
            Self::Rule(spec) => removed(netlink.remove_rule(spec).await),
            Self::Dns(change) => Ok(match change.undo().await? {
                DnsUndone::Restored => Undone::Restored,
                DnsUndone::WasRestored => Undone::WasGone,
                DnsUndone::NotOurs => Undone::NotOurs,
            }),
            Self::Sysctl(change) => {
                // Another VPN that has come meanwhile found it as it needs it (wg-quick does).
                let may_be_others = change.is_valid_marks() && !change.others_had_marks;
                if may_be_others && netlink.others_use_marks().await? {
                    return Ok(Undone::WasGone);
                }
                Ok(if change.undo()? { Undone::Restored } else { Undone::NotOurs })
            }
            Self::Firewall(rules) => {
                rules.remove().await?;
                Ok(Undone::Restored)
            }
            Self::Guard(rules) => {
                rules.remove().await?;
                Ok(Undone::Restored)
            }
            Self::HostRoutes(routes) => removed(netlink.remove_host_routes(routes).await),
        }
    }

    /// Checks that it may be made.
    async fn check_for(&self, netlink: &Netlink) -> Result<(), ChangeError> {
        self.check()?;
        if !self.is_for_a_tunnel(netlink).await? {
            return Err(ChangeError::Forbidden("the interface is not the tunnel that it is for".to_owned()));
        }
        Ok(())
    }

    /// Checks that it is a change that vpnd makes.
    fn check(&self) -> Result<(), ChangeError> {
        allowed::fault(self, &DnsSystem::default())
            .map_or(Ok(()), |reason| Err(ChangeError::Forbidden(reason)))
    }

    /// Whether the interface that it is for, if that exists, is the tunnel that is meant.
    async fn is_for_a_tunnel(&self, netlink: &Netlink) -> Result<bool, ChangeError> {
        let Some((interface, index)) = allowed::tunnel(self) else { return Ok(true) };
        let Some(link) = netlink.link(interface).await? else { return Ok(true) };
        Ok(link.is_tun && index.is_none_or(|index| index == link.index))
    }

    /// Whether several processes of a machine may need it at the same time.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Sysctl(change) if change.is_valid_marks())
    }

    /// Whether a kernel setting has the value that this sets; of other changes, `false`.
    pub fn is_in_force(&self) -> bool {
        matches!(self, Self::Sysctl(change) if change.is_in_force())
    }

    /// Whether it outlives a restart of the machine.
    pub fn survives_reboot(&self) -> bool {
        matches!(self, Self::Dns(DnsChange::File(_)))
    }
}

fn removed(result: Result<(), NetlinkError>) -> Result<Undone, ChangeError> {
    match result {
        Ok(()) => Ok(Undone::Restored),
        Err(error) if error.is_not_there() => Ok(Undone::WasGone),
        Err(error) => Err(error.into()),
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LinkUp { interface } => write!(f, "interface {interface} up"),
            Self::Address(spec) => write!(f, "address {} on {}", spec.address, spec.interface),
            Self::Route(spec) => write!(f, "route to {} in table {}", spec.destination, spec.table),
            Self::Rule(spec) => {
                write!(f, "{:?} policy rule {} for table {}", spec.family, spec.priority, spec.table)
            }
            Self::Dns(DnsChange::Resolved(settings)) => write!(f, "name servers of {}", settings.interface),
            Self::Dns(DnsChange::File(change)) => write!(f, "name servers in {}", change.path.display()),
            Self::Sysctl(change) => write!(f, "kernel setting {}", change.set.key),
            Self::Firewall(rules) => write!(f, "firewall table of {}", rules.tunnel),
            Self::Guard(rules) => write!(f, "guard of the addresses on {}", rules.tunnel),
            Self::HostRoutes(routes) => {
                write!(f, "routes of {} to single hosts in table {}", routes.interface, routes.table)
            }
        }
    }
}
