//! `vpnd policy test`: whether a user's client may send a packet, or get one from a host, and which
//! rule of the configuration decides.
//!
//! INVARIANT: the answer comes from the same compiled policy that shards apply, about a packet that
//! is made and parsed as theirs are. What other firewalls do is not looked at. Of the gateway's own
//! table, which the configuration decides, only is whether hosts open connections to clients at
//! all.

use std::fmt;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use serde_json::json;
use vpnd_packet::{Packet, tcp_flag};
use vpnd_proto::policy::{Decision, Destination, Ground, Names, PolicyError, Principal, ProfileId, Verdict};

use crate::admin_store::{Opening, Stores, UserSummary};
use crate::cli::PolicyTestArgs;
use vpnd_config::access_profile::Who;
use vpnd_config::policy::{self, Compiled};
use vpnd_config::source::LOCAL;
use vpnd_config::user_name;
use vpnd_config::{AccessProfile, ConfigError, NatMode, ServerConfig};
use vpnd_store::StoreError;

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

#[derive(Debug, thiserror::Error)]
pub enum PolicyTestError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Rules(#[from] PolicyError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(
        "there is no user '{0}' in the gateway's store: 'vpnd user list' shows all; or give the groups by --groups"
    )]
    NoUser(String),
    #[error("the user has never logged in here, and {0}")]
    Directory(String),
    #[error("clients have no address of {0}'s protocol version: [tunnel] has no such pool")]
    NoPool(IpAddr),
    #[error("no packet to {0} can be sent")]
    NoPacket(IpAddr),
    #[error("{0} is an address for clients: ask about two of them by --user SENDER --to user:RECEIVER")]
    FromClient(IpAddr),
    #[error("give --to or --from")]
    NoQuestion,
}

/// Where the packet goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    receiver: Receiver,
    service: Service,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Receiver {
    Address(IpAddr),
    User(String),
}

/// A packet's service at its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Ping,
    Tcp(u16),
    Udp(u16),
}

impl FromStr for Service {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (port, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        match (port.parse(), protocol) {
            (Ok(port), "tcp") => Ok(Self::Tcp(port)),
            (Ok(port), "udp") => Ok(Self::Udp(port)),
            _ => {
                Err(format!("'{text}' is no port: write such as 22/tcp or 53/udp; without one it is a ping"))
            }
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}' is no target: write such as 10.20.1.3:22/tcp, [2001:db8::1]:53/udp, 10.20.1.3 (a ping) or user:bob:22/tcp"
            )
        };
        let (place, protocol) = match text.rsplit_once('/') {
            Some((place, protocol)) => (place, Some(protocol)),
            None => (text, None),
        };
        let (receiver, port) = receiver(place).ok_or_else(wrong)?;
        let service = match (protocol, port) {
            (None | Some("tcp"), Some(port)) => Service::Tcp(port),
            (Some("udp"), Some(port)) => Service::Udp(port),
            (None | Some("icmp"), None) => Service::Ping,
            _ => return Err(wrong()),
        };
        Ok(Self { receiver, service })
    }
}

fn receiver(place: &str) -> Option<(Receiver, Option<u16>)> {
    if let Some(user) = place.strip_prefix("user:") {
        let port = user.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse().ok()?)));
        let (name, port) = port.map_or((user, None), |(name, port)| (name, Some(port)));
        return (!name.is_empty()).then(|| (Receiver::User(name.to_owned()), port));
    }
    let with_port = place.parse().map(|address: SocketAddr| (address.ip(), Some(address.port())));
    let (address, port) = with_port.or_else(|_| place.parse().map(|address| (address, None))).ok()?;
    Some((Receiver::Address(address), port))
}

/// A user, as profiles and policy go by them.
struct Account {
    name: String,
    source: String,
    groups: Vec<String>,
}

impl Account {
    fn who(&self) -> Who<'_> {
        Who { user: &self.name, source: &self.source, groups: &self.groups }
    }
}

/// The result, for people and scripts.
#[derive(Debug)]
struct Report {
    verdict: Verdict,
    profile: Option<String>,
    /// The deciding rule: its place in its section, whether that is the profile's, and its line.
    rule: Option<(usize, bool, Option<usize>)>,
    reason: String,
}

/// Runs it; whether the packet may pass.
///
/// # Errors
/// If that can't be told.
pub fn test(
    args: &PolicyTestArgs,
    stores: &dyn Stores,
    out: &mut dyn Write,
) -> Result<bool, PolicyTestError> {
    let config = ServerConfig::load(&args.config)?;
    let given = (!args.groups.is_empty() || args.source.is_some()).then(|| Account {
        name: args.user.clone(),
        source: args.source.clone().unwrap_or_else(|| LOCAL.to_owned()),
        groups: args.groups.clone(),
    });
    let user = given.map_or_else(|| look_up(&config, stores, &args.user), Ok)?;
    let report = match (&args.to, args.from) {
        (Some(to), _) => {
            let receiver = match &to.receiver {
                Receiver::Address(_) => None,
                Receiver::User(name) => Some(look_up(&config, stores, name)?),
            };
            evaluate(&config, &user, receiver.as_ref(), to)?
        }
        (None, Some(host)) => evaluate_from(&config, host, &user, args.to_port.unwrap_or(Service::Ping))?,
        (None, None) => return Err(PolicyTestError::NoQuestion),
    };
    // A reader that closes early still gets the exit code.
    let _ = if args.json { writeln!(out, "{:#}", report.json(&user)) } else { writeln!(out, "{report}") };
    Ok(report.verdict == Verdict::Allow)
}

/// The user as the store has it or, before the first login, as the directory does.
fn look_up(config: &ServerConfig, stores: &dyn Stores, name: &str) -> Result<Account, PolicyTestError> {
    let canonical = user_name::canonical(name);
    let is_one = |user: &UserSummary| user.name == name || Some(&user.name) == canonical.as_ref();
    let user = stores.open(config, Opening::Inspect)?.users()?.into_iter().find(is_one);
    if let Some(user) = user {
        return Ok(Account { name: user.name, source: user.source, groups: user.groups });
    }
    let asked = directory_groups(config, name).ok_or_else(|| PolicyTestError::NoUser(name.to_owned()))?;
    let (source, groups) = asked.map_err(PolicyTestError::Directory)?;
    Ok(Account { name: canonical.unwrap_or_else(|| name.to_owned()), source, groups })
}

/// Source and groups of a user as a directory has them; `None` if no directory can be asked about
/// the name.
fn directory_groups(config: &ServerConfig, name: &str) -> Option<Result<(String, Vec<String>), String>> {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Some(Err(error.to_string())),
    };
    let asked = runtime.block_on(vpnd_idp::trial::groups(config, name))?;
    Some(asked.map(|(source, identity)| (source, identity.groups.iter().map(ToString::to_string).collect())))
}

fn evaluate(
    config: &ServerConfig,
    sender: &Account,
    receiver: Option<&Account>,
    to: &Target,
) -> Result<Report, PolicyTestError> {
    let mut names = Names::new();
    let compiled = policy::compile(config, &mut names)?;
    for account in [Some(sender), receiver].into_iter().flatten() {
        if let Some(refused) = refused(config, account) {
            return Ok(refused);
        }
    }
    let from = principal(config, &compiled, &mut names, sender);
    let to_client = receiver.map(|account| principal(config, &compiled, &mut names, account));
    let (source, destination) = addresses(config, &to.receiver)?;
    let bytes = packet(source, destination, to.service);
    let packet = Packet::parse(&bytes).map_err(|_| PolicyTestError::NoPacket(destination))?;
    let way = to_client.as_ref().map_or(Destination::Campus, Destination::Client);
    let decision = compiled.policy.decide(&from, way, &packet, &|_| false);
    Ok(report(config, &compiled, decision, &from, destination))
}

/// About the first packet of a host's to the user's client.
fn evaluate_from(
    config: &ServerConfig,
    host: IpAddr,
    user: &Account,
    service: Service,
) -> Result<Report, PolicyTestError> {
    if config.tunnel.pools().any(|pool| pool.contains(&host)) {
        return Err(PolicyTestError::FromClient(host));
    }
    let mut names = Names::new();
    let compiled = policy::compile(config, &mut names)?;
    if let Some(refused) = refused(config, user) {
        return Ok(refused);
    }
    let to = principal(config, &compiled, &mut names, user);
    let (client, _) = addresses(config, &Receiver::Address(host))?;
    let bytes = packet(host, client, service);
    let packet = Packet::parse(&bytes).map_err(|_| PolicyTestError::NoPacket(client))?;
    let decision = compiled.policy.decide_from_campus(&to, &packet, &|_| false);
    let by_policy = report(config, &compiled, decision, &to, host);
    Ok(match no_way_in(config, host) {
        Some(reason) if by_policy.verdict == Verdict::Allow => {
            Report { verdict: Verdict::Deny, rule: None, reason, ..by_policy }
        }
        _ => by_policy,
    })
}

/// Why the gateway's firewall table lets the host open no connection to any client, if it does not.
fn no_way_in(config: &ServerConfig, host: IpAddr) -> Option<String> {
    let is_pushed = || config.profiles.routes().iter().any(|net| net.contains(&host));
    let only_answers = |why: &str| Some(format!("hosts only answer clients: {why}"));
    match config.nat.mode {
        NatMode::None => None,
        NatMode::Nftables => only_answers("mode = \"nftables\" in [nat] hides these"),
        NatMode::Route if !config.policy.campus_to_client => {
            only_answers("campus_to_client is false in [policy]")
        }
        NatMode::Route if !is_pushed() => {
            Some(format!("{host} is in no pushed network, and no other host opens connections to clients"))
        }
        NatMode::Route => None,
    }
}

/// The result for a user who can't log in.
fn refused(config: &ServerConfig, account: &Account) -> Option<Report> {
    let reason = format!("no access profile is for {}: a login is refused", account.name);
    let none = config.profiles.of(account.who()).is_none();
    none.then_some(Report { verdict: Verdict::Deny, profile: None, rule: None, reason })
}

/// The user as policy has them.
fn principal(config: &ServerConfig, compiled: &Compiled, names: &mut Names, account: &Account) -> Principal {
    let position = config.profiles.position(account.who());
    let profile = position.and_then(|position| compiled.numbers.get(position)).copied();
    let groups = account.groups.iter().map(String::as_str);
    names.principal(&account.name, groups).in_profile(profile.unwrap_or(ProfileId::NONE))
}

/// Addresses of a client that sends, and of the receiver.
fn addresses(config: &ServerConfig, to: &Receiver) -> Result<(IpAddr, IpAddr), PolicyTestError> {
    let tunnel = &config.tunnel;
    let v4 = |n: u32| tunnel.pool_v4.map(|pool| Ipv4Addr::from(u32::from(pool.network()) + n).into());
    let v6 = |n: u128| tunnel.pool_v6.map(|pool| Ipv6Addr::from(u128::from(pool.network()) + n).into());
    match to {
        Receiver::Address(address) => {
            let source = if address.is_ipv4() { v4(2) } else { v6(2) };
            Ok((source.ok_or(PolicyTestError::NoPool(*address))?, *address))
        }
        Receiver::User(_) => {
            let none = PolicyTestError::NoPool(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
            v4(2).zip(v4(3)).or_else(|| v6(2).zip(v6(3))).ok_or(none)
        }
    }
}

/// The first packet to a service.
fn packet(source: IpAddr, destination: IpAddr, service: Service) -> Vec<u8> {
    const SOURCE_PORT: u16 = 50_000;
    let mut payload = match service {
        Service::Ping => vec![if source.is_ipv4() { 8 } else { 128 }, 0, 0, 0, 0, 0, 0, 0],
        Service::Tcp(port) | Service::Udp(port) => [SOURCE_PORT.to_be_bytes(), port.to_be_bytes()].concat(),
    };
    let protocol = match service {
        Service::Ping if source.is_ipv4() => ICMP,
        Service::Ping => ICMPV6,
        Service::Tcp(_) => {
            payload.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, tcp_flag::SYN, 0xFF, 0xFF, 0, 0, 0, 0]);
            TCP
        }
        Service::Udp(_) => {
            payload.extend([0, 8, 0, 0]);
            UDP
        }
    };
    let len = payload.len() as u16;
    let mut bytes = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let total = (20 + len).to_be_bytes();
            let head = [0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, protocol, 0, 0];
            [&head[..], &source.octets(), &destination.octets()].concat()
        }
        (source, destination) => {
            let octets = |address: IpAddr| match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            };
            let len = len.to_be_bytes();
            let head = [0x60, 0, 0, 0, len[0], len[1], protocol, 64];
            [&head[..], &octets(source), &octets(destination)].concat()
        }
    };
    bytes.extend(payload);
    bytes
}

fn report(
    config: &ServerConfig,
    compiled: &Compiled,
    decision: Decision,
    client: &Principal,
    other: IpAddr,
) -> Report {
    let profile = |number: ProfileId| {
        let position = compiled.numbers.iter().position(|one| *one == number);
        position.map(|position| config.profiles.at(position))
    };
    let title = |number| profile(number).map_or("default", AccessProfile::title).to_owned();
    let Decision { verdict, ground, .. } = decision;
    let mut rule = None;
    let reason = match ground {
        Ground::Rule(number, at) => {
            let (profile, at) = (profile(number), usize::from(at));
            let own = profile.map_or(0, |profile| profile.own_rules);
            let line = profile.and_then(|profile| profile.rules.get(at - 1)?.line);
            let (place, is_own) = if at <= own { (at, true) } else { (at - own, false) };
            rule = Some((place, is_own, line));
            let section = if is_own { format!("profile '{}'", title(number)) } else { "[policy]".to_owned() };
            let line = line.map(|line| format!(" ({}:{line})", config.file)).unwrap_or_default();
            format!("rule {place} of {section}{line}")
        }
        Ground::Networks(number) if verdict == Verdict::Allow => {
            format!("no rule matches, and {other} is in the networks of profile '{}'", title(number))
        }
        Ground::Networks(number) => {
            format!("no rule matches, and {other} is not in the networks of profile '{}'", title(number))
        }
        Ground::Clients(number) => {
            let value = verdict == Verdict::Allow;
            format!("no rule matches, and profile '{}' has client_to_client = {value}", title(number))
        }
        Ground::NobodysAddress => {
            format!("{other} is an address for clients: ask about its user by --to user:NAME")
        }
        Ground::UnknownProfile(_) => "there are no rules for the profile".to_owned(),
    };
    Report { verdict, profile: Some(title(client.profile())), rule, reason }
}

impl Report {
    fn word(&self) -> &'static str {
        if self.verdict == Verdict::Allow { "allow" } else { "deny" }
    }

    fn json(&self, sender: &Account) -> serde_json::Value {
        json!({
            "verdict": self.word(),
            "user": sender.name,
            "source": sender.source,
            "groups": sender.groups,
            "profile": self.profile,
            "rule": self.rule.map(|(place, ..)| place),
            "section": self.rule.map(|(_, own, _)| if own { "profile" } else { "policy" }),
            "line": self.rule.and_then(|(.., line)| line),
            "reason": self.reason,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let profile = self.profile.as_deref().unwrap_or("none");
        write!(f, "{}: profile {profile}: {}", self.word(), self.reason)
    }
}

#[cfg(test)]
mod tests;
