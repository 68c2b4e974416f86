//! One compiled rule and how it matches a packet.

use std::net::IpAddr;

use ipnet::IpNet;

use super::names::{GroupId, Names, UserId};
use super::{Direction, KnownFlow, PolicyError, Principal, Protocol, RuleSpec, Selector, Verdict};
use crate::flows::{FlowKey, is_error as is_error_of};
use crate::packet::{ICMP, ICMPV6, Packet, TCP, UDP};

/// The properties of a packet that rules compare.
pub(super) struct Flow<'a> {
    /// The sending client; `None` is the campus.
    from: Option<&'a Principal>,
    /// The receiving client; `None` is the campus.
    to: Option<&'a Principal>,
    src: IpAddr,
    dst: IpAddr,
    protocol: u8,
    /// Destination port.
    port: Option<u16>,
    is_later_fragment: bool,
    /// The flow that the packet answers, if it is a reply to one that its receiver opened.
    answered: Option<FlowKey>,
    known: KnownFlow<'a>,
}

impl<'a> Flow<'a> {
    pub(super) fn new(
        from: Option<&'a Principal>,
        to: Option<&'a Principal>,
        packet: &Packet<'_>,
        known: KnownFlow<'a>,
    ) -> Self {
        let (src, dst) = (packet.src(), packet.dst());
        // Errors come from routers of the campus, too; a client has only its own to report.
        let concerns = |key: &FlowKey| key.opener == dst && (from.is_none() || key.responder == src);
        Self {
            from,
            to,
            src,
            dst,
            protocol: packet.protocol(),
            port: packet.ports().map(|(_, dst)| dst),
            is_later_fragment: packet.transport_offset().is_none(),
            answered: FlowKey::of_reply(packet).filter(concerns),
            known,
        }
    }
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
    /// Whether flows that it lets open are to be remembered, because else some of their replies do not pass.
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

    /// Whether replies to what it allows may not pass by the other rules of `back`, those of the other direction, and its default.
    fn needs_flows(&self, back: &[Self], passes_back: bool) -> bool {
        // What it matches it matches the other way round, too.
        let is_symmetric = self.from == self.to && self.ports.is_empty();
        let denied_later = back.iter().any(|rule| rule.action == Verdict::Deny && rule.number > self.number);
        self.action == Verdict::Allow && !is_symmetric && (denied_later || !passes_back)
    }

    /// The decision about a packet, if it matches.
    pub(super) fn matched(&self, flow: &Flow<'_>) -> Option<Matched> {
        let forward = self.from.matches(flow.from, flow.src) && self.to.matches(flow.to, flow.dst);
        if forward && self.matches_service(flow) {
            return Some(Matched { verdict: self.action, opens: self.opens });
        }
        self.is_answer(flow, |from| from.matches(flow.to, flow.dst)).then_some(ANSWER)
    }

    /// The same about a client's packet to a host beyond the campus, which an allow rule has to name by its network.
    pub(super) fn matched_beyond(&self, flow: &Flow<'_>) -> Option<Matched> {
        if self.action == Verdict::Deny {
            return self.matched(flow);
        }
        let forward =
            self.to.names(flow.dst) && self.from.matches(flow.from, flow.src) && self.matches_service(flow);
        if forward {
            return Some(Matched { verdict: Verdict::Allow, opens: self.opens });
        }
        self.is_answer(flow, |from| from.names(flow.dst)).then_some(ANSWER)
    }

    /// Whether the packet is a reply to what the rule allows; `asks` is whether its senders are such that the receiver is one.
    fn is_answer(&self, flow: &Flow<'_>, asks: impl FnOnce(&Side) -> bool) -> bool {
        if !self.answers || !asks(&self.from) {
            return false;
        }
        if flow.is_later_fragment {
            let tells_itself = flow.protocol != TCP && self.ports.is_empty();
            return tells_itself
                && self.matches_protocol(flow.protocol)
                && self.to.matches(flow.from, flow.src);
        }
        flow.answered.as_ref().is_some_and(|key| {
            self.matches_protocol(key.protocol)
                && self.to.matches(flow.from, key.responder)
                && (self.ports.is_empty() || key.port().is_some_and(|port| self.names_port(port)))
                && (flow.known)(key)
        })
    }

    fn matches_service(&self, flow: &Flow<'_>) -> bool {
        self.matches_protocol(flow.protocol) && self.matches_port(flow)
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

    fn matches_port(&self, flow: &Flow<'_>) -> bool {
        if self.ports.is_empty() {
            return true;
        }
        match flow.port {
            Some(port) => self.names_port(port),
            // The ports of a later fragment are unknown: assume whatever lets less pass.
            None => flow.is_later_fragment && self.action == Verdict::Deny,
        }
    }

    fn names_port(&self, port: u16) -> bool {
        self.ports.iter().any(|(first, last)| (*first..=*last).contains(&port))
    }
}

/// Finds out for which of these rules of one direction flows are remembered; `back` are those of the other direction, and what no
/// rule matches passes there if `passes_back` says so.
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
