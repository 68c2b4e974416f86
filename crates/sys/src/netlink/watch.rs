//! Changes of links, addresses, routes and rules as they happen: how a client notices that it has
//! moved, and that another program has removed a route or rule of vpnd.

use std::pin::Pin;

use futures_util::{Stream, StreamExt};
use rtnetlink::MulticastGroup;
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage};
use tokio::task::JoinHandle;

use super::{NetlinkError, route, rule};

/// Something about the machine's network changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkChange {
    /// An interface came, went or changed its state.
    Link { interface: u32 },
    /// An address came or went.
    Address { interface: u32 },
    /// A route that vpnd has not made came or went.
    Route {
        /// Index of the interface that it leads to, if it leads to one.
        interface: Option<u32>,
    },
    /// A rule that vpnd has not made came or went.
    Rule,
    /// A route that vpnd made is gone.
    RouteRemoved,
    /// A rule that vpnd made is gone.
    RuleRemoved,
    /// An unspecified change, as after an overflow of the socket: read everything again.
    Unknown,
}

/// A subscription to changes. Several may come for one event, so the reader should wait for quiet.
pub struct NetworkWatch {
    changes: Pin<Box<dyn Stream<Item = NetworkChange> + Send>>,
    driver: JoinHandle<()>,
}

impl NetworkWatch {
    /// Subscribes within the current tokio runtime, for the network namespace of the calling
    /// thread. All changes from here on are reported.
    ///
    /// # Errors
    /// [`NetlinkError::Connect`].
    pub fn open() -> Result<Self, NetlinkError> {
        let groups = [
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv6Route,
            MulticastGroup::Ipv4Rule,
            MulticastGroup::Ipv6Rule,
        ];
        let (connection, _, messages) =
            rtnetlink::new_multicast_connection(&groups).map_err(NetlinkError::Connect)?;
        let changes = Box::pin(messages.filter_map(async |(message, _)| classify(&message.payload)));
        Ok(Self { changes, driver: tokio::spawn(connection) })
    }

    /// The next change; `None` when the kernel has closed the connection. Safe to cancel.
    pub async fn next(&mut self) -> Option<NetworkChange> {
        self.changes.next().await
    }
}

impl Drop for NetworkWatch {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// `None` for a new route or rule of vpnd.
fn classify(payload: &NetlinkPayload<RouteNetlinkMessage>) -> Option<NetworkChange> {
    let NetlinkPayload::InnerMessage(message) = payload else { return Some(NetworkChange::Unknown) };
    Some(match message {
        RouteNetlinkMessage::NewLink(link) | RouteNetlinkMessage::DelLink(link) => {
            NetworkChange::Link { interface: link.header.index }
        }
        RouteNetlinkMessage::NewAddress(address) | RouteNetlinkMessage::DelAddress(address) => {
            NetworkChange::Address { interface: address.header.index }
        }
        RouteNetlinkMessage::NewRoute(route) if route::is_own(route) => return None,
        RouteNetlinkMessage::NewRule(rule) if rule::is_own(rule) => return None,
        RouteNetlinkMessage::DelRoute(route) if route::is_own(route) => NetworkChange::RouteRemoved,
        RouteNetlinkMessage::DelRule(rule) if rule::is_own(rule) => NetworkChange::RuleRemoved,
        RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) => {
            NetworkChange::Route { interface: output_interface(route) }
        }
        RouteNetlinkMessage::NewRule(_) | RouteNetlinkMessage::DelRule(_) => NetworkChange::Rule,
        _ => NetworkChange::Unknown,
    })
}

fn output_interface(route: &RouteMessage) -> Option<u32> {
    route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => Some(*index),
        _ => None,
    })
}
