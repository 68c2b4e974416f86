//! Policy: which packets may pass between clients and the campus (PROTOCOL §12).
//!
//! Rules are tried in order and the first that matches decides. Nothing is remembered about flows, so an *allow* rule
//! matches in both directions: packets from its senders to its receivers, and in the other direction packets that
//! look like replies, with the ports swapped. A *deny* rule matches only in its own direction; standing in front of
//! an allow rule it also stops what would be that rule's replies. Where no rule matches, traffic between clients and
//! the campus passes, and clients reach each other only if that was switched on.
//!
//! The campus is what the gateway pushes, if the policy knows that ([`Policy::with_reach`]). A client's packet to any other
//! host passes only by an allow rule that names the host's network: "any" means any of the campus there.
//!
//! A reply of TCP carries ACK or RST, a reply of ICMP is an echo reply or an error. For other protocols a reply
//! cannot be told from a question, so a rule for UDP should name ports.
//!
//! Later fragments have no ports: an allow rule with ports does not match them and a deny rule with ports does.
//!
//! This module must not know sessions or addresses of sessions: the caller names sender and receiver.

mod names;
mod reach;
mod rule;

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

pub use names::{Names, Principal};

use crate::packet::{Packet, Version};
use reach::Reach;
use rule::{Flow, Rule};

/// The most rules of a policy.
pub const MAX_RULES: usize = 1024;

/// The decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passes.
    Allow,
    /// It is dropped and counted.
    Deny,
}

/// Where a client's packet goes.
#[derive(Clone, Copy, Debug)]
pub enum Destination<'a> {
    /// Out of the tunnel, to the campus side of the gateway.
    Campus,
    /// To another client.
    Client(&'a Principal),
}

/// One rule as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSpec {
    /// The decision about packets that match.
    pub action: Verdict,
    /// Senders; empty means anyone.
    pub from: Vec<Selector>,
    /// Receivers; empty means anyone.
    pub to: Vec<Selector>,
    /// Protocol.
    pub protocol: Protocol,
    /// Destination ports; empty means all, also of protocols without ports.
    pub ports: Vec<RangeInclusive<u16>>,
}

/// Senders or receivers that a rule names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// Everyone, on both sides of the gateway.
    Any,
    /// Every client.
    Clients,
    /// Sessions of this user.
    User(String),
    /// Sessions of users in this group.
    Group(String),
    /// Inner addresses, on either side of the gateway.
    Net(IpNet),
}

/// The protocol that a rule names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// All protocols; with ports, those that have ports.
    #[default]
    Any,
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP of either IP version.
    Icmp,
    /// A protocol by its IANA number.
    Number(u8),
}

/// The error of rules that make no policy. Rules are counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// More than [`MAX_RULES`] rules.
    #[error("{0} policy rules; no more than {MAX_RULES} are possible")]
    TooManyRules(usize),
    /// Ports of a protocol that has none.
    #[error("policy rule {0} names ports; that needs TCP or UDP")]
    PortsWithoutProtocol(usize),
    /// A port range whose first port is above its last.
    #[error("policy rule {0} has a port range that ends before it begins")]
    EmptyPortRange(usize),
}

/// Which way a packet goes through the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToCampus,
    BetweenClients,
    FromCampus,
}

/// The addresses that clients may have. One that no client has just now leads nowhere: it is not the campus's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pools {
    /// Where clients' addresses are taken from.
    pub nets: Vec<IpNet>,
    /// The gateway's own among them.
    pub own: Vec<IpAddr>,
}

impl Pools {
    #[inline]
    fn hold(&self, address: IpAddr) -> bool {
        self.nets.iter().any(|net| net.contains(&address)) && !self.own.contains(&address)
    }
}

/// A compiled policy. The default one has no rules, knows no pools and keeps clients apart.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    client_to_client: bool,
    pools: Pools,
    /// The campus's networks; `None` is everything.
    reach: Option<Reach>,
    /// For each direction the rules that can match there, in either sense.
    to_campus: Vec<Rule>,
    between_clients: Vec<Rule>,
    from_campus: Vec<Rule>,
}

impl Policy {
    /// A policy of the defaults alone; by `client_to_client` clients reach each other or not.
    pub fn without_rules(client_to_client: bool) -> Self {
        Self { client_to_client, ..Self::default() }
    }

    /// Compiles `rules`. Users and groups are looked up in `names`, which has to be the one that makes the principals.
    pub fn compile(
        rules: &[RuleSpec],
        client_to_client: bool,
        names: &mut Names,
    ) -> Result<Self, PolicyError> {
        if rules.len() > MAX_RULES {
            return Err(PolicyError::TooManyRules(rules.len()));
        }
        let mut policy = Self::without_rules(client_to_client);
        for (number, spec) in (1..).zip(rules) {
            let rule = Rule::compile(spec, number, names)?;
            policy.to_campus.extend(rule.restricted_to(Direction::ToCampus));
            policy.between_clients.extend(rule.restricted_to(Direction::BetweenClients));
            policy.from_campus.extend(rule.restricted_to(Direction::FromCampus));
        }
        Ok(policy)
    }

    /// The same policy, which also drops what clients send to addresses of `pools` that no client has.
    #[must_use]
    pub fn with_pools(self, pools: Pools) -> Self {
        Self { pools, ..self }
    }

    /// The same policy, for which only these networks and the gateway's own inner addresses are the campus.
    #[must_use]
    pub fn with_reach(self, networks: &[IpNet]) -> Self {
        let own = self.pools.own.iter().copied().map(IpNet::from);
        let reach = Reach::new(networks.iter().copied().chain(own));
        Self { reach: Some(reach), ..self }
    }

    /// The gateway's own inner address of an IP version, if it has one.
    pub fn own_address(&self, version: Version) -> Option<IpAddr> {
        self.pools.own.iter().copied().find(|own| own.is_ipv4() == (version == Version::V4))
    }

    /// Decides about a packet that a client sent.
    #[inline]
    pub fn evaluate(&self, from: &Principal, to: Destination<'_>, packet: &Packet<'_>) -> Verdict {
        match to {
            Destination::Campus if self.pools.hold(packet.dst()) => Verdict::Deny,
            Destination::Campus if self.reach.as_ref().is_none_or(|reach| reach.holds(packet.dst())) => {
                decide(&self.to_campus, Some(from), None, packet, Verdict::Allow)
            }
            Destination::Campus => {
                let flow = Flow::new(Some(from), None, packet);
                let named = self.to_campus.iter().find_map(|rule| rule.verdict_beyond(&flow));
                named.unwrap_or(Verdict::Deny)
            }
            Destination::Client(to) => {
                let default = if self.client_to_client { Verdict::Allow } else { Verdict::Deny };
                decide(&self.between_clients, Some(from), Some(to), packet, default)
            }
        }
    }

    /// Decides about a packet from the campus side to a client.
    #[inline]
    pub fn evaluate_from_campus(&self, to: &Principal, packet: &Packet<'_>) -> Verdict {
        decide(&self.from_campus, None, Some(to), packet, Verdict::Allow)
    }
}

#[inline]
fn decide(
    rules: &[Rule],
    from: Option<&Principal>,
    to: Option<&Principal>,
    packet: &Packet<'_>,
    default: Verdict,
) -> Verdict {
    if rules.is_empty() {
        return default;
    }
    let flow = Flow::new(from, to, packet);
    rules.iter().find_map(|rule| rule.verdict(&flow)).unwrap_or(default)
}

#[cfg(test)]
mod tests;
