//! The rules of `[policy]` and of profiles, as they are written.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

/// `[policy]`: who may send to whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Whether clients reach each other where no rule says otherwise.
    pub client_to_client: bool,
    /// Whether hosts of the pushed networks open connections to clients, where they can reach them
    /// at all.
    pub campus_to_client: bool,
    /// Whether clients reach services of the gateway itself, not only ping and pushed name servers.
    pub client_to_gateway: bool,
    /// Rules; the first that matches decides.
    pub rules: Vec<Rule>,
}

/// One entry of `[[policy.rules]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its line in the file.
    pub line: Option<usize>,
    pub action: Action,
    /// Senders; empty means anyone.
    pub from: Vec<Selector>,
    /// Receivers; empty means anyone.
    pub to: Vec<Selector>,
    /// Transport protocol; `None` means any.
    pub protocol: Option<Protocol>,
    /// Destination ports; empty means all.
    pub ports: Vec<PortRange>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Allow,
    /// The packet is dropped and counted.
    Deny,
}

/// A transport protocol that a rule names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP, number 6.
    Tcp,
    /// UDP, number 17.
    Udp,
    /// ICMP (1) and ICMPv6 (58).
    Icmp,
}

/// One side of a rule: `any`, `clients`, `group:NAME`, `user:NAME`, an address or a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    Any,
    /// Every connected client.
    Clients,
    /// Sessions of users in this group.
    Group(String),
    /// Sessions of this user.
    User(String),
    Net(IpNet),
}

/// Destination ports from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

impl FromStr for Selector {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let name = |name: &str| (!name.is_empty()).then(|| name.to_owned()).ok_or(());
        match text.split_once(':') {
            Some(("group", group)) => Ok(Self::Group(name(group)?)),
            Some(("user", user)) => Ok(Self::User(name(user)?)),
            _ if text == "any" => Ok(Self::Any),
            _ if text == "clients" => Ok(Self::Clients),
            _ => text
                .parse()
                .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
                .map(Self::Net)
                .map_err(|_| ()),
        }
    }
}

impl FromStr for PortRange {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let port = |text: &str| text.parse::<u16>().map_err(|_| ());
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = Self { first: port(first)?, last: port(last)? };
        if range.first <= range.last { Ok(range) } else { Err(()) }
    }
}
