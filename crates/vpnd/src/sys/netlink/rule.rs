//! Policy rules: which routing table a packet is looked up in.

use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::RouteProtocol;
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage, RuleUidRange};
use serde::{Deserialize, Serialize};

use super::{Family, Netlink, NetlinkError, PROTOCOL};

/// Which packets a rule is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleMatch {
    /// Packets whose mark is another under the mask: all but those that the tunnel must not carry.
    NotMarked {
        /// The mark.
        mark: u32,
        /// The bits of it that count.
        mask: u32,
    },
    /// Packets of the sockets that a process of this user has made.
    User(u32),
}

/// A policy rule of ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleSpec {
    /// The protocol version that it is for.
    pub family: Family,
    /// Its place among the rules, lower first; the system's table is asked at 32766.
    pub priority: u32,
    /// Which packets.
    pub matches: RuleMatch,
    /// Number of the routing table that they are looked up in.
    pub table: u32,
}

impl Netlink {
    /// Adds a rule.
    ///
    /// # Errors
    /// [`NetlinkError`]; `EEXIST` if there is one that is equal.
    pub async fn add_rule(&self, spec: &RuleSpec) -> Result<(), NetlinkError> {
        let mut request = self.handle.rule().add();
        *request.message_mut() = message(spec);
        let added = request.execute().await;
        added.map_err(|error| NetlinkError::new(format!("adding the rule {}", spec.priority), &error))
    }

    /// Removes a rule that vpnd added.
    ///
    /// # Errors
    /// [`NetlinkError`]; [`NetlinkError::is_not_there`] says when there was none.
    pub async fn remove_rule(&self, spec: &RuleSpec) -> Result<(), NetlinkError> {
        let removed = self.handle.rule().del(message(spec)).execute().await;
        removed.map_err(|error| NetlinkError::new(format!("removing the rule {}", spec.priority), &error))
    }
}

fn message(spec: &RuleSpec) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = match spec.family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    };
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![
        RuleAttribute::Priority(spec.priority),
        RuleAttribute::Table(spec.table),
        RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)),
    ];
    match spec.matches {
        RuleMatch::NotMarked { mark, mask } => {
            message.header.flags = RuleFlags::Invert;
            message.attributes.push(RuleAttribute::FwMark(mark));
            message.attributes.push(RuleAttribute::FwMask(mask));
        }
        RuleMatch::User(user) => {
            message.attributes.push(RuleAttribute::UidRange(RuleUidRange { start: user, end: user }));
        }
    }
    message
}
