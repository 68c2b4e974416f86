//! Links, addresses, routes and policy rules, through the kernel's rtnetlink.
//!
//! Routes carry [`PROTOCOL`] as their origin. Those in a tunnel's own tables, those that refuse
//! packets for a gateway's pool, and rules carry the kernel's. Removing one names it too, so that
//! nothing that an administrator or another program made can be removed by mistake.
//!
//! A connection belongs to the network namespace of the thread that opened it.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;

use futures_util::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags};
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use rtnetlink::{Handle, LinkUnspec};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

mod hosts;
mod route;
mod rule;
mod watch;

pub use hosts::HostRoutes;
pub use route::{LocalRoute, NOWHERE, RoutePlace, RouteSpec, RouteTarget, TableRoute};
pub use rule::{NO_TABLE, RuleMatch, RuleSpec, TableRule};
pub use watch::{NetworkChange, NetworkWatch};

/// The origin that marks routes without the kernel's, such as those to single hosts, as made by
/// vpnd; `ip route` shows `proto 118`.
pub const PROTOCOL: u8 = 118;

/// The routing table that the system's own routes are in.
pub const MAIN_TABLE: u32 = 254;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// The version of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    #[error("no netlink connection to the kernel: {0}")]
    Connect(#[source] io::Error),
    /// An interface is gone or never was.
    #[error("there is no interface {0}")]
    NoInterface(String),
    #[error("{what} failed: {source}")]
    Refused {
        /// The request, for people.
        what: String,
        source: io::Error,
    },
    /// The library or the kernel broke the protocol.
    #[error("{what} failed: {detail}")]
    Protocol {
        /// The request, for people.
        what: String,
        detail: String,
    },
}

impl NetlinkError {
    fn new(what: impl Into<String>, error: &rtnetlink::Error) -> Self {
        match error {
            rtnetlink::Error::NetlinkError(message) => {
                Self::Refused { what: what.into(), source: message.to_io() }
            }
            other => Self::Protocol { what: what.into(), detail: other.to_string() },
        }
    }

    /// Whether the error means that the object exists already.
    pub fn is_already_there(&self) -> bool {
        self.errno() == Some(Errno::EXIST)
    }

    /// Whether the error means that the object does not exist.
    pub fn is_not_there(&self) -> bool {
        matches!(self, Self::NoInterface(_))
            || matches!(
                self.errno(),
                Some(Errno::SRCH | Errno::NOENT | Errno::NODEV | Errno::ADDRNOTAVAIL | Errno::NXIO)
            )
    }

    fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { source, .. } => Errno::from_io_error(source),
            _ => None,
        }
    }
}

/// An address of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressSpec {
    pub interface: String,
    /// The interface's number, where one of that name could be another program's.
    #[serde(default)]
    pub index: Option<u32>,
    /// The address and the length of its network's prefix.
    pub address: IpNet,
}

/// An address that the machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalAddress {
    pub interface: u32,
    /// The address and the length of its network's prefix.
    pub address: IpNet,
}

/// An interface that the machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalLink {
    pub index: u32,
    pub is_up: bool,
    /// Whether it is a TUN or TAP device.
    pub is_tun: bool,
}

/// A connection to the kernel's routing and link services.
#[derive(Debug)]
pub struct Netlink {
    handle: Handle,
    driver: JoinHandle<()>,
}

impl Netlink {
    /// Connects within the current tokio runtime, for the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`NetlinkError::Connect`].
    pub fn open() -> Result<Self, NetlinkError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(NetlinkError::Connect)?;
        Ok(Self { handle, driver: tokio::spawn(connection) })
    }

    /// The index of an interface; `None` if there is no such interface.
    pub async fn interface_index(&self, name: &str) -> Result<Option<u32>, NetlinkError> {
        Ok(self.link(name).await?.map(|link| link.index))
    }

    /// Returns an interface by name; `None` if there is none.
    pub async fn link(&self, name: &str) -> Result<Option<LocalLink>, NetlinkError> {
        let mut links = self.handle.link().get().match_name(name.to_owned()).execute();
        match links.try_next().await {
            Ok(link) => Ok(link.map(|link| LocalLink {
                index: link.header.index,
                is_up: link.header.flags.contains(LinkFlags::Up),
                is_tun: is_tun(&link),
            })),
            Err(error) => {
                let error = NetlinkError::new(format!("looking up the interface {name}"), &error);
                if error.is_not_there() { Ok(None) } else { Err(error) }
            }
        }
    }

    /// Count of an interface's link changes.
    ///
    /// # Errors
    /// [`NetlinkError`]; [`NetlinkError::is_not_there`] if there is no such interface.
    pub async fn carrier_changes(&self, index: u32) -> Result<u32, NetlinkError> {
        let mut links = self.handle.link().get().match_index(index).execute();
        let link = links.try_next().await;
        let link =
            link.map_err(|error| NetlinkError::new(format!("looking up interface {index}"), &error))?;
        let mut attributes = link.into_iter().flat_map(|link| link.attributes);
        let changes = attributes.find_map(|attribute| match attribute {
            LinkAttribute::CarrierChanges(changes) => Some(changes),
            _ => None,
        });
        Ok(changes.unwrap_or_default())
    }

    /// The numbers of all interfaces.
    pub async fn interface_indexes(&self) -> Result<Vec<u32>, NetlinkError> {
        let links = self.handle.link().get().execute().map_ok(|link| link.header.index);
        links.try_collect().await.map_err(|error| NetlinkError::new("listing interfaces", &error))
    }

    /// The names of all interfaces, by their numbers.
    pub async fn interface_names(&self) -> Result<HashMap<u32, String>, NetlinkError> {
        let links: Result<Vec<LinkMessage>, _> = self.handle.link().get().execute().try_collect().await;
        let links = links.map_err(|error| NetlinkError::new("listing interfaces", &error))?;
        let name = |attribute: LinkAttribute| match attribute {
            LinkAttribute::IfName(name) => Some(name),
            _ => None,
        };
        let named = links
            .into_iter()
            .filter_map(|link| Some((link.header.index, link.attributes.into_iter().find_map(name)?)));
        Ok(named.collect())
    }

    async fn require_interface(&self, name: &str) -> Result<u32, NetlinkError> {
        self.interface_index(name).await?.ok_or_else(|| NetlinkError::NoInterface(name.to_owned()))
    }

    /// Sets an interface up or down.
    pub async fn set_up(&self, interface: &str, up: bool) -> Result<(), NetlinkError> {
        let link = LinkUnspec::new_with_index(self.require_interface(interface).await?);
        let link = if up { link.up() } else { link.down() };
        let state = if up { "up" } else { "down" };
        let changed = self.handle.link().change(link.build()).execute().await;
        changed.map_err(|error| NetlinkError::new(format!("setting {interface} {state}"), &error))
    }

    /// Sets the largest packet of an interface, bytes.
    pub async fn set_mtu(&self, interface: &str, mtu: u32) -> Result<(), NetlinkError> {
        let link = LinkUnspec::new_with_index(self.require_interface(interface).await?).mtu(mtu);
        let changed = self.handle.link().change(link.build()).execute().await;
        changed.map_err(|error| NetlinkError::new(format!("setting the MTU of {interface} to {mtu}"), &error))
    }

    /// Gives an interface an address, usable at once: in a tunnel duplicates can't be detected.
    ///
    /// # Errors
    /// [`NetlinkError`]; `EEXIST` if the interface has it.
    pub async fn add_address(&self, spec: &AddressSpec) -> Result<(), NetlinkError> {
        let index = self.require_interface(&spec.interface).await?;
        let (address, prefix) = (spec.address.addr(), spec.address.prefix_len());
        let mut request = self.handle.address().add(index, address, prefix);
        if address.is_ipv6() {
            let message = request.message_mut();
            message.header.flags |= AddressHeaderFlags::Nodad;
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        let added = request.execute().await;
        added.map_err(|error| {
            NetlinkError::new(format!("adding {} to {}", spec.address, spec.interface), &error)
        })
    }

    /// Takes an address from an interface.
    ///
    /// # Errors
    /// [`NetlinkError`]; [`NetlinkError::is_not_there`] if there was none.
    pub async fn remove_address(&self, spec: &AddressSpec) -> Result<(), NetlinkError> {
        let index = self.require_interface(&spec.interface).await?;
        let mut message = rtnetlink::packet_route::address::AddressMessage::default();
        let address = spec.address.addr();
        message.header.family = match Family::of(address) {
            Family::V4 => rtnetlink::packet_route::AddressFamily::Inet,
            Family::V6 => rtnetlink::packet_route::AddressFamily::Inet6,
        };
        message.header.prefix_len = spec.address.prefix_len();
        message.header.index = index;
        message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
        let removed = self.handle.address().del(message).execute().await;
        removed.map_err(|error| {
            NetlinkError::new(format!("removing {} from {}", spec.address, spec.interface), &error)
        })
    }

    /// All addresses of the machine, on interfaces in any state.
    pub async fn addresses(&self) -> Result<Vec<LocalAddress>, NetlinkError> {
        let messages: Vec<_> = self
            .handle
            .address()
            .get()
            .execute()
            .try_collect()
            .await
            .map_err(|error| NetlinkError::new("listing addresses", &error))?;
        let parsed = messages.iter().filter_map(|message| {
            // A point-to-point link names its own end `Local` and the other end `Address`.
            let own = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Local(ip) => Some(*ip),
                _ => None,
            });
            let any = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Address(ip) => Some(*ip),
                _ => None,
            });
            let address = IpNet::new(own.or(any)?, message.header.prefix_len).ok()?;
            Some(LocalAddress { interface: message.header.index, address })
        });
        Ok(parsed.collect())
    }

    /// The first network of this machine that shares addresses with `pool`, other than those of the
    /// interface `except`: a pool that overlaps a local network would cut the machine off from it.
    pub async fn overlap(&self, pool: IpNet, except: Option<&str>) -> Result<Option<IpNet>, NetlinkError> {
        let except = match except {
            Some(name) => self.interface_index(name).await?,
            None => None,
        };
        let addresses = self.addresses().await?;
        let own = addresses.iter().filter(|a| Some(a.interface) != except).map(|a| a.address.trunc());
        let routes = self.routes().await?;
        let routed = routes
            .iter()
            .filter(|route| route.table == MAIN_TABLE && route.destination.prefix_len() > 0)
            .filter(|route| except.is_none() || route.interface != except)
            .map(|route| route.destination);
        Ok(own.chain(routed).find(|net| net.contains(&pool) || pool.contains(net)))
    }
}

fn is_tun(link: &LinkMessage) -> bool {
    link.attributes.iter().any(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => infos.contains(&LinkInfo::Kind(InfoKind::Tun)),
        _ => false,
    })
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

#[cfg(test)]
mod tests;
