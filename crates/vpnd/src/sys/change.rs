//! Changes to the machine as data: each can be written down, applied, and undone by another process.
//!
//! INVARIANT: undoing is idempotent and touches only what vpnd made: routes and rules are told by their origin,
//! files and settings by their present content, the firewall table by its name. No change holds a secret.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::sys::dns::{DnsChange, DnsError, DnsUndone};
use crate::sys::netlink::{AddressSpec, Netlink, NetlinkError, RouteSpec, RuleSpec};
use crate::sys::nft::{GatewayRules, NftError};
use crate::sys::sysctl::{SysctlChange, SysctlError};

/// One change to the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Sets an interface of ours up.
    LinkUp {
        /// Its name.
        interface: String,
    },
    /// Adds an address.
    Address(AddressSpec),
    /// Adds a route.
    Route(RouteSpec),
    /// Adds a policy rule.
    Rule(RuleSpec),
    /// Sets name servers.
    Dns(DnsChange),
    /// Sets a kernel setting.
    Sysctl(SysctlChange),
    /// Installs the gateway's firewall table.
    Firewall(GatewayRules),
}

/// Why a change was not applied or undone.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// A link, address, route or rule.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// Name servers.
    #[error(transparent)]
    Dns(#[from] DnsError),
    /// A kernel setting.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// The firewall table.
    #[error(transparent)]
    Nft(#[from] NftError),
}

/// What undoing came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undone {
    /// It was there and is gone, or the old state is back.
    Restored,
    /// There was nothing to undo.
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
        match self {
            Self::LinkUp { interface } => netlink.set_up(interface, true).await?,
            Self::Address(spec) => netlink.add_address(spec).await?,
            Self::Route(spec) => netlink.add_route(spec).await?,
            Self::Rule(spec) => netlink.add_rule(spec).await?,
            Self::Dns(change) => change.apply().await?,
            Self::Sysctl(change) => change.apply()?,
            Self::Firewall(rules) => rules.apply().await?,
        }
        Ok(())
    }

    /// Takes the change back, whether it was made in full, in part or not at all.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub async fn undo(&self, netlink: &Netlink) -> Result<Undone, ChangeError> {
        match self {
            Self::LinkUp { interface } => removed(netlink.set_up(interface, false).await),
            Self::Address(spec) => removed(netlink.remove_address(spec).await),
            Self::Route(spec) => removed(netlink.remove_route(spec).await),
            Self::Rule(spec) => removed(netlink.remove_rule(spec).await),
            Self::Dns(change) => Ok(match change.undo().await? {
                DnsUndone::Restored => Undone::Restored,
                DnsUndone::WasRestored => Undone::WasGone,
                DnsUndone::NotOurs => Undone::NotOurs,
            }),
            Self::Sysctl(change) => Ok(if change.undo()? { Undone::Restored } else { Undone::NotOurs }),
            Self::Firewall(rules) => {
                rules.remove().await?;
                Ok(Undone::Restored)
            }
        }
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
        }
    }
}
