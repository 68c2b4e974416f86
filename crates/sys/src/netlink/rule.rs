//! Policy rules: which routing table a packet is looked up in.

use futures_util::TryStreamExt;
use rtnetlink::IpVersion;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::RouteProtocol;
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage, RuleUidRange};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{Family, Netlink, NetlinkError, PROTOCOL};

/// The origin of vpnd's rules is the kernel's: systemd-networkd removes the rules of all other
/// origins when it configures a link, and packets would leave in clear until they are back. The
/// kernel itself makes no rule for marks or users, by which vpnd's are known.
const ORIGIN: RouteProtocol = RouteProtocol::Kernel;
/// Also that of earlier versions, which gave their rules the origin of their routes.
const ORIGINS: [RouteProtocol; 2] = [ORIGIN, RouteProtocol::Other(PROTOCOL)];

/// Which packets a rule is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleMatch {
    /// Packets whose mark is another under the mask: all but those that the tunnel must not carry.
    NotMarked {
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
    /// Its place among the rules, lower first; the system's table is looked up at 32766.
    pub priority: u32,
    pub matches: RuleMatch,
    /// Number of the routing table that they are looked up in, or [`NO_TABLE`].
    pub table: u32,
}

/// In the place of a table's number: the packets are refused as unreachable.
pub const NO_TABLE: u32 = 0;

/// A rule that the machine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableRule {
    /// Number of the routing table that it names; 0 if it names none.
    pub table: u32,
    /// Whether vpnd has made it.
    pub made_by_vpnd: bool,
    /// The rule as vpnd adds and removes it, if it is vpnd's.
    pub ours: Option<RuleSpec>,
}

impl Netlink {
    /// All rules.
    pub async fn rules(&self) -> Result<Vec<TableRule>, NetlinkError> {
        let mut all = Vec::new();
        for (version, family) in [(IpVersion::V4, Family::V4), (IpVersion::V6, Family::V6)] {
            match self.rule_messages(version).await {
                Ok(messages) => all.extend(messages.iter().map(|message| parse(message, family))),
                Err(error) => {
                    // A kernel without IPv6 (`ipv6.disable=1`) has none of its rules.
                    let is_absent = matches!(error.errno(), Some(Errno::AFNOSUPPORT | Errno::OPNOTSUPP));
                    if family == Family::V4 || !is_absent {
                        return Err(error);
                    }
                }
            }
        }
        Ok(all)
    }

    /// Whether rules of other programs distinguish packets of IPv4 by their marks.
    pub async fn others_use_marks(&self) -> Result<bool, NetlinkError> {
        let is_for_marks = |message: &RuleMessage| {
            message.attributes.iter().any(|attribute| matches!(attribute, RuleAttribute::FwMark(_)))
        };
        let messages = self.rule_messages(IpVersion::V4).await?;
        Ok(messages.iter().any(|message| is_for_marks(message) && !is_own(message)))
    }

    async fn rule_messages(&self, version: IpVersion) -> Result<Vec<RuleMessage>, NetlinkError> {
        let messages: Result<Vec<_>, _> = self.handle.rule().get(version).execute().try_collect().await;
        messages.map_err(|error| NetlinkError::new("listing rules", &error))
    }

    /// Adds a rule.
    ///
    /// # Errors
    /// [`NetlinkError`]; `EEXIST` if there is one that is equal.
    pub async fn add_rule(&self, spec: &RuleSpec) -> Result<(), NetlinkError> {
        let mut request = self.handle.rule().add();
        *request.message_mut() = message(spec, ORIGIN);
        let added = request.execute().await;
        added.map_err(|error| NetlinkError::new(format!("adding the rule {}", spec.priority), &error))
    }

    /// Removes a rule that vpnd added.
    ///
    /// # Errors
    /// [`NetlinkError`]; [`NetlinkError::is_not_there`] if there was none.
    pub async fn remove_rule(&self, spec: &RuleSpec) -> Result<(), NetlinkError> {
        let [now, earlier] = ORIGINS;
        let removed = self.remove_rule_of(spec, now).await;
        if !removed.as_ref().is_err_and(NetlinkError::is_not_there) {
            return removed;
        }
        self.remove_rule_of(spec, earlier).await
    }

    async fn remove_rule_of(&self, spec: &RuleSpec, origin: RouteProtocol) -> Result<(), NetlinkError> {
        let removed = self.handle.rule().del(message(spec, origin)).execute().await;
        removed.map_err(|error| NetlinkError::new(format!("removing the rule {}", spec.priority), &error))
    }
}

fn parse(message: &RuleMessage, family: Family) -> TableRule {
    let (mut priority, mut table, mut mark, mut mask) = (0, u32::from(message.header.table), None, u32::MAX);
    let mut user = None;
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Priority(number) => priority = *number,
            RuleAttribute::Table(number) => table = *number,
            RuleAttribute::FwMark(number) => mark = Some(*number),
            RuleAttribute::FwMask(number) => mask = *number,
            RuleAttribute::UidRange(range) if range.start == range.end => user = Some(range.start),
            _ => {}
        }
    }
    let is_inverted = message.header.flags.contains(RuleFlags::Invert);
    let matches = match (mark, user) {
        (Some(mark), None) if is_inverted => Some(RuleMatch::NotMarked { mark, mask }),
        (None, Some(user)) if !is_inverted => Some(RuleMatch::User(user)),
        _ => None,
    };
    let made_by_vpnd = is_own(message);
    let ours = matches.filter(|_| made_by_vpnd);
    let ours = ours.map(|matches| RuleSpec { family, priority, matches, table });
    TableRule { table, made_by_vpnd, ours }
}

/// Whether vpnd has made it, or an earlier version of it.
pub(super) fn is_own(message: &RuleMessage) -> bool {
    let is_for_some = |attribute: &RuleAttribute| {
        matches!(attribute, RuleAttribute::FwMark(_) | RuleAttribute::UidRange(_))
    };
    let has_origin = |origin| message.attributes.contains(&RuleAttribute::Protocol(origin));
    ORIGINS.into_iter().any(has_origin) && message.attributes.iter().any(is_for_some)
}

fn message(spec: &RuleSpec, origin: RouteProtocol) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = match spec.family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    };
    message.attributes = vec![RuleAttribute::Priority(spec.priority), RuleAttribute::Protocol(origin)];
    if spec.table == NO_TABLE {
        message.header.action = RuleAction::Unreachable;
    } else {
        message.header.action = RuleAction::ToTable;
        message.attributes.push(RuleAttribute::Table(spec.table));
    }
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
