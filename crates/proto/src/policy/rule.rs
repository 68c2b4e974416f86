//! One compiled rule and how it matches a packet.

use std::net::IpAddr;

use ipnet::IpNet;

use super::names::{GroupId, Names, UserId};
use super::{Direction, PolicyError, Principal, Protocol, RuleSpec, Selector, Verdict};
use crate::packet::{ICMP, ICMPV6, Packet, TCP, UDP, Version, tcp_flag};

/// The properties of a packet that rules compare.
#[derive(Debug)]
pub(super) struct Flow<'a> {
    /// The sending client; `None` is the campus.
    from: Option<&'a Principal>,
    /// The receiving client; `None` is the campus.
    to: Option<&'a Principal>,
    src: IpAddr,
    dst: IpAddr,
    protocol: u8,
    /// Source and destination port.
    ports: Option<(u16, u16)>,
    is_later_fragment: bool,
    may_be_reply: bool,
}

impl<'a> Flow<'a> {
    pub(super) fn new(from: Option<&'a Principal>, to: Option<&'a Principal>, packet: &Packet<'_>) -> Self {
        Self {
            from,
            to,
            src: packet.src(),
            dst: packet.dst(),
            protocol: packet.protocol(),
            ports: packet.ports(),
            is_later_fragment: packet.transport_offset().is_none(),
            may_be_reply: may_be_reply(packet),
        }
    }
}

/// Whether the packet can be an answer rather than the beginning of something.
fn may_be_reply(packet: &Packet<'_>) -> bool {
    match packet.protocol() {
        TCP => packet.tcp().is_some_and(|tcp| tcp.flags() & (tcp_flag::ACK | tcp_flag::RST) != 0),
        // A later fragment has no type or code, and is of no use without the first.
        ICMP | ICMPV6 => {
            packet.icmp().map_or(packet.transport_offset().is_none(), |(kind, _)| match packet.version() {
                Version::V4 => matches!(kind, 0 | 3 | 11 | 12 | 14),
                Version::V6 => matches!(kind, 1..=4 | 129),
            })
        }
        _ => true,
    }
}

/// Whether the packet is an error about another one.
pub(super) fn is_error(packet: &Packet<'_>) -> bool {
    packet.icmp().is_some_and(|(kind, _)| match packet.version() {
        Version::V4 => matches!(kind, 3 | 11 | 12),
        Version::V6 => matches!(kind, 1..=4),
    })
}

/// A rule whose names are numbers.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    /// Its place in the list, counted from 1.
    pub(super) number: u16,
    action: Verdict,
    from: Side,
    to: Side,
    protocol: Protocol,
    /// First and last port of each range; empty means all.
    ports: Vec<(u16, u16)>,
}

impl Rule {
    pub(super) fn compile(spec: &RuleSpec, number: usize, names: &mut Names) -> Result<Self, PolicyError> {
        let has_ports = matches!(
            spec.protocol,
            Protocol::Any | Protocol::Tcp | Protocol::Udp | Protocol::Number(TCP | UDP)
        );
        if !spec.ports.is_empty() && !has_ports {
            return Err(PolicyError::PortsWithoutProtocol(number));
        }
        if spec.ports.iter().any(std::ops::RangeInclusive::is_empty) {
            return Err(PolicyError::EmptyPortRange(number));
        }
        Ok(Self {
            number: u16::try_from(number).map_err(|_| PolicyError::TooManyRules(number))?,
            action: spec.action,
            from: Side::compile(&spec.from, names),
            to: Side::compile(&spec.to, names),
            protocol: spec.protocol,
            ports: spec.ports.iter().map(|range| (*range.start(), *range.end())).collect(),
        })
    }

    /// The rule, if it can match packets of that direction at all.
    pub(super) fn restricted_to(&self, direction: Direction) -> Option<Self> {
        let (from_client, to_client) = match direction {
            Direction::ToCampus => (true, false),
            Direction::BetweenClients => (true, true),
            Direction::FromCampus => (false, true),
        };
        let forward = self.from.can_match(from_client) && self.to.can_match(to_client);
        let reply =
            self.action == Verdict::Allow && self.from.can_match(to_client) && self.to.can_match(from_client);
        (forward || reply).then(|| self.clone())
    }

    /// The rule's verdict on a packet, if it matches.
    pub(super) fn verdict(&self, flow: &Flow<'_>) -> Option<Verdict> {
        if !self.matches_protocol(flow.protocol) {
            return None;
        }
        let forward = self.from.matches(flow.from, flow.src) && self.to.matches(flow.to, flow.dst);
        let port = flow.ports.map(|(_, dst)| dst);
        if forward && self.matches_port(port, flow) {
            return Some(self.action);
        }
        if self.action == Verdict::Deny || !flow.may_be_reply {
            return None;
        }
        let reply = self.from.matches(flow.to, flow.dst) && self.to.matches(flow.from, flow.src);
        let port = flow.ports.map(|(src, _)| src);
        (reply && self.matches_port(port, flow)).then_some(Verdict::Allow)
    }

    /// The same about a client's packet to a host beyond the campus, which an allow rule has to name by its network.
    pub(super) fn verdict_beyond(&self, flow: &Flow<'_>) -> Option<Verdict> {
        if self.action == Verdict::Deny {
            return self.verdict(flow);
        }
        if !self.matches_protocol(flow.protocol) {
            return None;
        }
        let ports = flow.ports;
        let forward = self.to.names(flow.dst)
            && self.from.matches(flow.from, flow.src)
            && self.matches_port(ports.map(|(_, dst)| dst), flow);
        let reply = flow.may_be_reply
            && self.from.names(flow.dst)
            && self.to.matches(flow.from, flow.src)
            && self.matches_port(ports.map(|(src, _)| src), flow);
        (forward || reply).then_some(Verdict::Allow)
    }

    fn matches_protocol(&self, protocol: u8) -> bool {
        match self.protocol {
            Protocol::Any => true,
            Protocol::Tcp => protocol == TCP,
            Protocol::Udp => protocol == UDP,
            Protocol::Icmp => matches!(protocol, ICMP | ICMPV6),
            Protocol::Number(number) => protocol == number,
        }
    }

    fn matches_port(&self, port: Option<u16>, flow: &Flow<'_>) -> bool {
        if self.ports.is_empty() {
            return true;
        }
        match port {
            Some(port) => self.ports.iter().any(|(first, last)| (*first..=*last).contains(&port)),
            // The ports of a later fragment are unknown: assume whatever lets less pass.
            None => flow.is_later_fragment && self.action == Verdict::Deny,
        }
    }
}

/// Senders or receivers of a rule.
#[derive(Clone, Debug)]
enum Side {
    Any,
    Some(Vec<Subject>),
}

#[derive(Clone, Copy, Debug)]
enum Subject {
    Clients,
    User(UserId),
    Group(GroupId),
    Net(IpNet),
}

impl Side {
    fn compile(selectors: &[Selector], names: &mut Names) -> Self {
        let mut subjects = Vec::with_capacity(selectors.len());
        for selector in selectors {
            subjects.push(match selector {
                Selector::Any => return Self::Any,
                Selector::Clients => Subject::Clients,
                Selector::User(name) => Subject::User(names.user(name)),
                Selector::Group(name) => Subject::Group(names.group(name)),
                Selector::Net(net) => Subject::Net(net.trunc()),
            });
        }
        if subjects.is_empty() { Self::Any } else { Self::Some(subjects) }
    }

    /// Whether any client, or anything on the campus side, can be meant.
    fn can_match(&self, client: bool) -> bool {
        match self {
            Self::Any => true,
            Self::Some(subjects) => {
                client || subjects.iter().any(|subject| matches!(subject, Subject::Net(_)))
            }
        }
    }

    /// Whether it names a network that the address is in.
    fn names(&self, address: IpAddr) -> bool {
        match self {
            Self::Any => false,
            Self::Some(subjects) => {
                subjects.iter().any(|subject| matches!(subject, Subject::Net(net) if net.contains(&address)))
            }
        }
    }

    fn matches(&self, client: Option<&Principal>, address: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::Some(subjects) => subjects.iter().any(|subject| match subject {
                Subject::Clients => client.is_some(),
                Subject::User(user) => client.is_some_and(|client| client.is_user(*user)),
                Subject::Group(group) => client.is_some_and(|client| client.is_member(*group)),
                Subject::Net(net) => net.contains(&address),
            }),
        }
    }
}
