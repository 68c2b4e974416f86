//! Policy: which packets may pass between clients and the campus (PROTOCOL §12).
//!
//! Each access profile has its own [`RuleSet`], and a session is in one profile: the number in its
//! [`Principal`]. To and from the campus the client's profile decides; between two clients both of
//! their profiles have to allow a packet. A number for which the policy has no rule set lets
//! nothing pass.
//!
//! Rules are tried in order and the first that matches decides. An *allow* rule matches packets
//! from its senders to its receivers, and in the other direction replies to those. A *deny* rule
//! matches only in its own direction; standing in front of an allow rule it also stops what would
//! be that rule's replies. Where no rule matches, traffic between clients and the campus passes,
//! and clients reach each other only if that was switched on.
//!
//! The campus is what the gateway pushes to clients of the profile, if that is known
//! ([`RuleSet::with_reach`]). A client's packet to any other host passes only by an allow rule that
//! names the host's network: "any" means any of the campus there.
//!
//! A reply belongs to a flow that a packet in the rule's direction has opened ([`FlowKey`]); an
//! ICMP error is a reply to the packet that it quotes. The caller remembers flows:
//! [`Decision::opens`] says when, and [`Known`] asks. Both happen only for rules whose replies
//! would not pass anyway, so that nothing is remembered where policy permits both directions.
//!
//! Only the first fragment of a packet has ports, flags and (in IPv6) the protocol. Where a rule
//! compares any of these, the other fragments are decided as their first one was, and one that
//! arrives before it is dropped. The caller remembers that, too.
//!
//! This module must not know sessions or their addresses: the caller names sender and receiver.

mod names;
mod reach;
mod rule;
mod rule_set;

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use ipnet::IpNet;

pub use names::{Names, Principal, ProfileId};

use crate::flows::Earlier;
pub use rule_set::RuleSet;
use rule_set::Ruling;
use vpnd_packet::web::{HTTP, MAX_RESPONSE};
use vpnd_packet::{Packet, Version};

/// The most rules of a profile.
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

/// Answers whether the receiver has opened a flow, or whether a first fragment has passed.
pub type Known<'a> = &'a dyn Fn(Earlier<'_>) -> bool;

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

/// The addresses that clients may have. One that no client has just now leads nowhere.
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

/// A decision and its ground.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The decision.
    pub verdict: Verdict,
    /// The ground of the decision.
    pub ground: Ground,
    /// Whether replies pass only if the packet's flow is remembered.
    pub opens: bool,
}

/// The ground of a decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// A rule of this profile, by its place in the list, counted from 1.
    Rule(ProfileId, u16),
    /// No rule of this profile matched, and the networks that are pushed decided.
    Networks(ProfileId),
    /// No rule of this profile matched a packet between clients.
    Clients(ProfileId),
    /// The destination is an address of the pools that no client has.
    NobodysAddress,
    /// The policy has no rules for this profile.
    UnknownProfile(ProfileId),
}

/// A compiled policy. The default has the implied profile alone, and keeps clients apart.
#[derive(Clone, Debug)]
pub struct Policy {
    pools: Pools,
    /// By the numbers of the profiles.
    profiles: Vec<Option<RuleSet>>,
    redirect: Option<Arc<[u8]>>,
}

impl Default for Policy {
    fn default() -> Self {
        Self::without_rules(false)
    }
}

impl Policy {
    /// A policy of the defaults alone; by `client_to_client` clients reach each other or not.
    pub fn without_rules(client_to_client: bool) -> Self {
        Self::of_profiles([(ProfileId::IMPLIED, RuleSet::without_rules(client_to_client))])
    }

    /// The policy of a gateway with one profile, the implied one.
    ///
    /// # Errors
    /// Those of [`RuleSet::compile`].
    pub fn compile(
        rules: &[RuleSpec],
        client_to_client: bool,
        names: &mut Names,
    ) -> Result<Self, PolicyError> {
        let set = RuleSet::compile(rules, client_to_client, names)?;
        Ok(Self::of_profiles([(ProfileId::IMPLIED, set)]))
    }

    /// A policy of these profiles. Clients of any other reach nothing.
    pub fn of_profiles(profiles: impl IntoIterator<Item = (ProfileId, RuleSet)>) -> Self {
        let mut sets = Vec::new();
        for (profile, set) in profiles.into_iter().filter(|(profile, _)| *profile != ProfileId::NONE) {
            if sets.len() <= profile.index() {
                sets.resize_with(profile.index() + 1, || None);
            }
            sets[profile.index()] = Some(set);
        }
        Self { pools: Pools::default(), profiles: sets, redirect: None }
    }

    /// Returns this policy, which also drops what clients send to free addresses of `pools`.
    #[must_use]
    pub fn with_pools(self, pools: Pools) -> Self {
        Self { pools, ..self }
    }

    /// Returns this policy, which then also has requests for web pages of clients of
    /// [`ProfileId::WALLED`] answered with this response, where the clients may not reach the
    /// pages. One of more than [`MAX_RESPONSE`] bytes is left out.
    #[must_use]
    pub fn with_redirect(self, response: &[u8]) -> Self {
        Self { redirect: (response.len() <= MAX_RESPONSE).then(|| response.into()), ..self }
    }

    /// The response of [`Self::with_redirect`].
    pub fn redirect(&self) -> Option<&Arc<[u8]>> {
        self.redirect.as_ref()
    }

    /// Whether a client's packet that may not pass is to be answered with [`Self::redirect`].
    #[cold]
    pub fn redirects(&self, from: &Principal, packet: &Packet<'_>) -> bool {
        let is_walled = from.profile() == ProfileId::WALLED && self.redirect.is_some();
        is_walled && packet.tcp().is_some() && packet.ports().is_some_and(|(_, to)| to == HTTP)
    }

    /// Whether a client's packet that may not pass is to be refused at once, for it reaches the
    /// portal alone: its programs would wait for hosts that nothing leads to.
    #[cold]
    pub fn refuses(&self, from: &Principal, packet: &Packet<'_>) -> bool {
        from.profile() == ProfileId::WALLED && packet.ports().is_some()
    }

    /// The gateway's own inner address of an IP version, if it has one.
    pub fn own_address(&self, version: Version) -> Option<IpAddr> {
        self.pools.own.iter().copied().find(|own| own.is_ipv4() == (version == Version::V4))
    }

    /// Decides about a packet that a client sent.
    #[inline]
    pub fn decide(
        &self,
        from: &Principal,
        to: Destination<'_>,
        packet: &Packet<'_>,
        known: Known<'_>,
    ) -> Decision {
        let Some(set) = self.set(from) else { return unknown(from) };
        match to {
            Destination::Campus if self.pools.hold(packet.dst()) => {
                Decision { verdict: Verdict::Deny, ground: Ground::NobodysAddress, opens: false }
            }
            Destination::Campus => {
                let own = self.pools.own.contains(&packet.dst());
                set.rule_to_campus(from, packet, own, known).decision(from, Ground::Networks)
            }
            Destination::Client(to) => {
                let sent = set.rule_between_clients(from, to, packet, known).decision(from, Ground::Clients);
                if sent.verdict == Verdict::Deny || from.profile() == to.profile() {
                    return sent;
                }
                let Some(set) = self.set(to) else { return unknown(to) };
                let received =
                    set.rule_between_clients(from, to, packet, known).decision(to, Ground::Clients);
                Decision { opens: sent.opens || received.opens, ..received }
            }
        }
    }

    /// Decides about a packet from the campus side to a client.
    #[inline]
    pub fn decide_from_campus(&self, to: &Principal, packet: &Packet<'_>, known: Known<'_>) -> Decision {
        let Some(set) = self.set(to) else { return unknown(to) };
        let own = self.pools.own.contains(&packet.src());
        set.rule_from_campus(to, packet, own, known).decision(to, Ground::Networks)
    }

    #[inline]
    fn set(&self, principal: &Principal) -> Option<&RuleSet> {
        self.profiles.get(principal.profile().index())?.as_ref()
    }
}

#[inline]
fn unknown(principal: &Principal) -> Decision {
    Decision { verdict: Verdict::Deny, ground: Ground::UnknownProfile(principal.profile()), opens: false }
}

impl Ruling {
    #[inline]
    fn decision(self, principal: &Principal, default: fn(ProfileId) -> Ground) -> Decision {
        let profile = principal.profile();
        match self {
            Self::Rule { verdict, number, opens } => {
                Decision { verdict, ground: Ground::Rule(profile, number), opens }
            }
            Self::Default(verdict) => Decision { verdict, ground: default(profile), opens: false },
        }
    }
}

#[cfg(test)]
mod tests;
