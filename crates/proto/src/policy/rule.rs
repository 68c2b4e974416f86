//! One compiled rule and how it matches a packet.

use std::net::IpAddr;

use ipnet::IpNet;

use super::names::{GroupId, Names, UserId};
use super::{Direction, Known, PolicyError, Principal, Protocol, RuleSpec, Selector, Verdict};
use crate::flows::{Earlier, FlowKey, is_error as is_error_of};
use vpnd_packet::{ICMP, ICMPV6, Packet, TCP, UDP, Version};

/// The properties of a packet that rules compare.
pub(super) struct Flow<'a> {
    /// The sending client; `None` is the campus.
    from: Option<&'a Principal>,
    /// The receiving client; `None` is the campus.
    to: Option<&'a Principal>,
    src: IpAddr,
    dst: IpAddr,
    /// Unknown of a later fragment of IPv6: which header follows is in the first.
    protocol: Option<u8>,
    /// Destination port.
    port: Option<u16>,
    /// The packet that this is a later fragment of.
    fragment_of: Option<FlowKey>,
    /// The flow that the packet answers, if it is a reply to one that its receiver opened.
    answered: Option<FlowKey>,
    known: Known<'a>,
}

impl<'a> Flow<'a> {
    pub(super) fn new(
        from: Option<&'a Principal>,
        to: Option<&'a Principal>,
        packet: &Packet<'_>,
        known: Known<'a>,
    ) -> Self {
        let (src, dst) = (packet.src(), packet.dst());
        let fragment_of = later_fragment(packet);
        let is_hidden = fragment_of.is_some() && packet.version() == Version::V6;
        // Errors come from routers of the campus, too; a client has only its own to report.
        let concerns = |key: &FlowKey| key.opener == dst && (from.is_none() || key.responder == src);
        Self {
            from,
            to,
            src,
            dst,
            protocol: (!is_hidden).then(|| packet.protocol()),
            port: packet.ports().map(|(_, dst)| dst),
            fragment_of,
            answered: FlowKey::of_reply(packet).filter(concerns),
            known,
        }
    }
}

/// The packet of which this is a fragment, but not the first.
#[inline]
fn later_fragment(packet: &Packet<'_>) -> Option<FlowKey> {
    if packet.transport_offset().is_some() { None } else { FlowKey::of_fragment(packet) }
}

/// The decision about a later fragment by that about its first one; none about any other packet.
#[inline]
pub(super) fn as_first(packet: &Packet<'_>, known: Known<'_>) -> Option<Verdict> {
    Some(follow(&later_fragment(packet)?, known))
}

fn follow(first: &FlowKey, known: Known<'_>) -> Verdict {
    if known(Earlier::FirstFragment(first)) { Verdict::Allow } else { Verdict::Deny }
}

/// Whether the packet is an error about another one.
pub(super) fn is_error(packet: &Packet<'_>) -> bool {
    packet.icmp().is_some_and(|(kind, _)| is_error_of(packet.version(), kind))
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
    /// Whether flows that it lets open are remembered, since else some replies do not pass.
    opens: bool,
    /// Whether it lets replies to such flows pass.
    answers: bool,
}

/// The decision of a rule about a packet that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Matched {
    pub(super) verdict: Verdict,
    /// Whether the packet's flow is to be remembered.
    pub(super) opens: bool,
}

/// A reply that a rule lets pass.
const ANSWER: Matched = Matched { verdict: Verdict::Allow, opens: false };

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
            opens: false,
            answers: false,
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

    /// Whether replies to what it allows may not pass by the other rules of `back`, those of the
    /// other direction, and its default.
    fn needs_flows(&self, back: &[Self], passes_back: bool) -> bool {
        // It matches the same packets in the other direction, too.
        let is_symmetric = self.from == self.to && self.ports.is_empty();
        let denied_later = back.iter().any(|rule| rule.action == Verdict::Deny && rule.number > self.number);
        self.action == Verdict::Allow && !is_symmetric && (denied_later || !passes_back)
    }

    /// The decision about a packet, if it matches.
    pub(super) fn matched(&self, flow: &Flow<'_>) -> Option<Matched> {
        let forward = self.from.matches(flow.from, flow.src) && self.to.matches(flow.to, flow.dst);
        self.decided(flow, forward, |from| from.matches(flow.to, flow.dst))
    }

    /// The match of a client's packet to a host beyond the campus, which a rule has to name.
    pub(super) fn matched_beyond(&self, flow: &Flow<'_>) -> Option<Matched> {
        if self.action == Verdict::Deny {
            return self.matched(flow);
        }
        let forward = self.to.names(flow.dst) && self.from.matches(flow.from, flow.src);
        self.decided(flow, forward, |from| from.names(flow.dst))
    }

    /// The decision, if the rule matches a packet that goes from its senders to its receivers, or
    /// is a reply to what the rule allows; `asks` is whether its senders are such that the receiver
    /// is one.
    #[inline]
    fn decided(&self, flow: &Flow<'_>, forward: bool, asks: impl FnOnce(&Side) -> bool) -> Option<Matched> {
        if forward && self.matches_protocol(flow.protocol) && self.matches_port(flow) {
            return Some(Matched { verdict: self.action, opens: self.opens });
        }
        let may_answer = self.answers && asks(&self.from);
        if let Some(first) = &flow.fragment_of {
            let may_match = forward && (flow.protocol.is_none() || self.matches_protocol(flow.protocol));
            return (may_match || may_answer)
                .then(|| Matched { verdict: follow(first, flow.known), opens: false });
        }
        (may_answer && self.is_answer(flow)).then_some(ANSWER)
    }

    /// Whether the packet is a reply to what the rule allows.
    fn is_answer(&self, flow: &Flow<'_>) -> bool {
        flow.answered.as_ref().is_some_and(|key| {
            self.matches_protocol(Some(key.protocol))
                && self.to.matches(flow.from, key.responder)
                && (self.ports.is_empty() || key.port().is_some_and(|port| self.names_port(port)))
                && (flow.known)(Earlier::Flow(key))
        })
    }

    fn matches_protocol(&self, protocol: Option<u8>) -> bool {
        match self.protocol {
            Protocol::Any => true,
            Protocol::Tcp => protocol == Some(TCP),
            Protocol::Udp => protocol == Some(UDP),
            Protocol::Icmp => matches!(protocol, Some(ICMP | ICMPV6)),
            Protocol::Number(number) => protocol == Some(number),
        }
    }

    fn matches_port(&self, flow: &Flow<'_>) -> bool {
        self.ports.is_empty() || flow.port.is_some_and(|port| self.names_port(port))
    }

    fn names_port(&self, port: u16) -> bool {
        self.ports.iter().any(|(first, last)| (*first..=*last).contains(&port))
    }
}

/// Finds out for which of these rules of one direction flows are remembered; `back` are those of
/// the other direction, and what no rule matches passes there if `passes_back`.
pub(super) fn remember_flows(rules: &mut [Rule], back: &mut [Rule], passes_back: bool) {
    for rule in &mut *rules {
        rule.opens = rule.needs_flows(back, passes_back);
    }
    for rule in back {
        rule.answers = rules.iter().any(|other| other.opens && other.number == rule.number);
    }
}

/// Senders or receivers of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Side {
    Any,
    Some(Vec<Subject>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
