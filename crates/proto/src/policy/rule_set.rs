//! The rules of one access profile, and the networks that are pushed to its clients.

use std::net::IpAddr;

use ipnet::IpNet;

use super::reach::Reach;
use super::rule::{Flow, Matched, Rule, as_first, is_error, remember_flows};
use super::{Direction, Known, MAX_RULES, Names, PolicyError, Principal, RuleSpec, Verdict};
use vpnd_packet::Packet;

/// Port of name servers.
const DNS: u16 = 53;

/// Rules about what clients of one profile may send and receive. The default keeps clients apart.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    client_to_client: bool,
    /// The campus's networks; `None` is everything.
    reach: Option<Reach>,
    /// Whether hosts outside of them reach clients only by a rule.
    inbound_from_reach: bool,
    /// The gateway's own addresses at which DNS is for this profile; `None` for all of them.
    own_name_servers: Option<Vec<IpAddr>>,
    /// For each direction the rules that can match there, in either sense.
    to_campus: Vec<Rule>,
    between_clients: Vec<Rule>,
    from_campus: Vec<Rule>,
}

/// The decision of a rule set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ruling {
    /// By the rule with this number, counted from 1.
    Rule {
        verdict: Verdict,
        number: u16,
        /// Whether the packet's flow is to be remembered.
        opens: bool,
    },
    /// No rule matched.
    Default(Verdict),
}

impl RuleSet {
    /// A set of the defaults alone; by `client_to_client` clients reach each other or not.
    pub fn without_rules(client_to_client: bool) -> Self {
        Self { client_to_client, ..Self::default() }
    }

    /// Compiles `rules`. `names` has to be the one that makes the principals.
    ///
    /// # Errors
    /// If there are too many, or one makes no sense.
    pub fn compile(
        rules: &[RuleSpec],
        client_to_client: bool,
        names: &mut Names,
    ) -> Result<Self, PolicyError> {
        if rules.len() > MAX_RULES {
            return Err(PolicyError::TooManyRules(rules.len()));
        }
        let mut set = Self::without_rules(client_to_client);
        for (number, spec) in (1..).zip(rules) {
            let rule = Rule::compile(spec, number, names)?;
            set.to_campus.extend(rule.restricted_to(Direction::ToCampus));
            set.between_clients.extend(rule.restricted_to(Direction::BetweenClients));
            set.from_campus.extend(rule.restricted_to(Direction::FromCampus));
        }
        Ok(set.remembering())
    }

    /// Returns these rules, with the flows that they need after the defaults have changed.
    fn remembering(mut self) -> Self {
        let everything = self.reach.is_none() && self.own_name_servers.is_none();
        let everybody = self.reach.is_none() || !self.inbound_from_reach;
        remember_flows(&mut self.to_campus, &mut self.from_campus, everybody);
        remember_flows(&mut self.from_campus, &mut self.to_campus, everything);
        let mut back = self.between_clients.clone();
        remember_flows(&mut self.between_clients, &mut back, self.client_to_client);
        remember_flows(&mut back, &mut self.between_clients, self.client_to_client);
        self
    }

    /// Returns these rules, with only these networks and the gateway's own addresses as the campus.
    #[must_use]
    pub fn with_reach(self, networks: &[IpNet]) -> Self {
        Self { reach: Some(Reach::new(networks.iter().copied())), ..self }.remembering()
    }

    /// Returns these rules, by which hosts outside the campus reach clients only if a rule allows
    /// it. The firewall knows the networks of all profiles together, so a host that is pushed to
    /// others only would get through it.
    #[must_use]
    pub fn with_inbound_from_reach(self) -> Self {
        Self { inbound_from_reach: true, ..self }.remembering()
    }

    /// Returns these rules, for which DNS at the gateway's own inner addresses is a part of the
    /// campus at these alone. The firewall knows the name servers of all profiles together.
    #[must_use]
    pub fn with_own_name_servers(self, own: Vec<IpAddr>) -> Self {
        Self { own_name_servers: Some(own), ..self }.remembering()
    }

    /// About a packet to the campus; `own` is whether it is for the gateway itself.
    #[inline]
    pub(super) fn rule_to_campus(
        &self,
        from: &Principal,
        packet: &Packet<'_>,
        own: bool,
        known: Known<'_>,
    ) -> Ruling {
        let is_campus = if own {
            let has_dns = self.has_dns_at(packet.dst());
            if !has_dns && let Some(verdict) = as_first(packet, known) {
                return Ruling::Default(verdict);
            }
            has_dns || packet.ports().is_none_or(|(_, port)| port != DNS)
        } else {
            self.holds(packet.dst())
        };
        if is_campus {
            return decide(&self.to_campus, (Some(from), None), packet, known, Verdict::Allow);
        }
        let flow = Flow::new(Some(from), None, packet, known);
        let named = self.to_campus.iter().find_map(|rule| Some((rule.matched_beyond(&flow)?, rule.number)));
        ruling(named, Verdict::Deny)
    }

    /// About a packet between clients, one of which is in this profile.
    #[inline]
    pub(super) fn rule_between_clients(
        &self,
        from: &Principal,
        to: &Principal,
        packet: &Packet<'_>,
        known: Known<'_>,
    ) -> Ruling {
        let default = if self.client_to_client { Verdict::Allow } else { Verdict::Deny };
        decide(&self.between_clients, (Some(from), Some(to)), packet, known, default)
    }

    /// About a packet from the campus; `own` is whether the gateway itself has sent it.
    #[inline]
    pub(super) fn rule_from_campus(
        &self,
        to: &Principal,
        packet: &Packet<'_>,
        own: bool,
        known: Known<'_>,
    ) -> Ruling {
        // Errors come from routers, which need not be a part of what is pushed.
        let default = if own || !self.inbound_from_reach || self.holds(packet.src()) || is_error(packet) {
            Verdict::Allow
        } else {
            as_first(packet, known).unwrap_or(Verdict::Deny)
        };
        decide(&self.from_campus, (None, Some(to)), packet, known, default)
    }

    /// Whether DNS at this address of the gateway is for clients of this profile.
    fn has_dns_at(&self, own: IpAddr) -> bool {
        self.own_name_servers.as_ref().is_none_or(|servers| servers.contains(&own))
    }

    #[inline]
    fn holds(&self, address: IpAddr) -> bool {
        self.reach.as_ref().is_none_or(|reach| reach.holds(address))
    }
}

#[inline]
fn decide(
    rules: &[Rule],
    (from, to): (Option<&Principal>, Option<&Principal>),
    packet: &Packet<'_>,
    known: Known<'_>,
    default: Verdict,
) -> Ruling {
    if rules.is_empty() {
        return Ruling::Default(default);
    }
    let flow = Flow::new(from, to, packet, known);
    ruling(rules.iter().find_map(|rule| Some((rule.matched(&flow)?, rule.number))), default)
}

#[inline]
fn ruling(matched: Option<(Matched, u16)>, default: Verdict) -> Ruling {
    match matched {
        Some((Matched { verdict, opens }, number)) => Ruling::Rule { verdict, number, opens },
        None => Ruling::Default(default),
    }
}
