//! Access profiles as configured, in the terms of the protocol's core: what the worker applies and
//! `vpnd policy test` explains is compiled here, once.

use std::collections::BTreeSet;
use std::net::IpAddr;

use vpnd_proto::policy::{self, Names, Policy, PolicyError, Pools, ProfileId, RuleSet, RuleSpec, Verdict};

use crate as config;
use crate::https_url::HttpsUrl;
use crate::source::SourceKind;
use crate::{AccessProfile, Action, Portal, ServerConfig, Tunnel};

const DNS: u16 = 53;
const HTTPS: u16 = 443;

/// The policy of all profiles.
#[derive(Debug)]
pub struct Compiled {
    pub policy: Policy,
    /// Numbers of the profiles, in the order of the configuration.
    pub numbers: Vec<ProfileId>,
}

/// Compiles the profiles of a configuration. Each keeps its number in `names`.
///
/// # Errors
/// If rules make no sense.
pub fn compile(config: &ServerConfig, names: &mut Names) -> Result<Compiled, PolicyError> {
    let (mut numbers, mut sets) = (Vec::new(), Vec::new());
    for profile in config.profiles.iter() {
        let number = profile.name.as_ref().map_or(ProfileId::IMPLIED, |name| names.profile(name));
        let set = rule_set(profile, names)?;
        // The firewall is open to services of the gateway for all clients alike, or for none of
        // them but DNS.
        let is_open = config.policy.client_to_gateway;
        sets.push((number, if is_open { set } else { set.with_own_name_servers(profile.push.dns.clone()) }));
        numbers.push(number);
    }
    if let Some(portal) = &config.portal {
        sets.push((ProfileId::WALLED, walled(config, portal, names)?));
    }
    let policy = Policy::of_profiles(sets).with_pools(pools(&config.tunnel));
    let policy = match config.pages() {
        Some(pages) => policy.with_redirect(redirect(pages).as_bytes()),
        None => policy,
    };
    Ok(Compiled { policy, numbers })
}

/// The response of any web site to a device whose session is over.
fn redirect(pages: &HttpsUrl) -> String {
    format!(
        "HTTP/1.1 302 Found\r\nLocation: {pages}/devices\r\nCache-Control: no-store\r\nContent-Length: 0\r\n\
         Connection: close\r\n\r\n"
    )
}

fn rule_set(profile: &AccessProfile, names: &mut Names) -> Result<RuleSet, PolicyError> {
    let rules: Vec<_> = profile.rules.iter().map(rule).collect();
    let reach: Vec<_> = profile.push.reach().collect();
    let set = RuleSet::compile(&rules, profile.client_to_client, names)?.with_reach(&reach);
    // Where everybody is given the same, the firewall decides alone about what comes in, as it
    // always has.
    Ok(if profile.name.is_some() { set.with_inbound_from_reach() } else { set })
}

/// Rules for devices whose sessions are over: they reach the portal, which is at the gateway's
/// inner addresses too, the name servers that lead there, and login pages of providers where that
/// is configured.
fn walled(config: &ServerConfig, portal: &Portal, names: &mut Names) -> Result<RuleSet, PolicyError> {
    let servers = config.profiles.name_servers();
    let front = portal.front();
    let mut own = pools(&config.tunnel).own;
    own.retain(|own| front.ip().is_unspecified() || *own == front.ip().to_canonical());
    let selectors = |addresses: &mut dyn Iterator<Item = &IpAddr>| -> Vec<_> {
        addresses.map(|address| policy::Selector::Net((*address).into())).collect()
    };
    let allowed = [
        (selectors(&mut portal.addresses.iter()), policy::Protocol::Tcp, portal.port()),
        (selectors(&mut own.iter()), policy::Protocol::Tcp, front.port()),
        (selectors(&mut servers.iter()), policy::Protocol::Udp, DNS),
        (selectors(&mut servers.iter()), policy::Protocol::Tcp, DNS),
    ];
    let pages: Vec<_> = portal.provider_networks.iter().map(|net| policy::Selector::Net(*net)).collect();
    let providers = config.sources.iter().filter(|source| matches!(source.kind, SourceKind::Oidc(_)));
    let ports: BTreeSet<u16> =
        providers.flat_map(|source| &source.servers).map(|server| server.port).chain([HTTPS]).collect();
    let pages = ports.into_iter().map(|port| (pages.clone(), policy::Protocol::Tcp, port));
    // A rule without receivers would be one for all.
    let mut rules: Vec<_> = allowed
        .into_iter()
        .chain(pages)
        .filter(|(to, ..)| !to.is_empty())
        .map(|(to, protocol, port)| RuleSpec {
            action: Verdict::Allow,
            from: Vec::new(),
            to,
            protocol,
            ports: vec![port..=port],
        })
        .collect();
    rules.push(RuleSpec {
        action: Verdict::Deny,
        from: Vec::new(),
        to: Vec::new(),
        protocol: policy::Protocol::Any,
        ports: Vec::new(),
    });
    let set = RuleSet::compile(&rules, false, names)?.with_reach(&[]);
    Ok(set.with_inbound_from_reach().with_own_name_servers(servers))
}

/// Where clients' addresses come from.
fn pools(tunnel: &Tunnel) -> Pools {
    let own = tunnel.gateway_v4().map(IpAddr::V4).into_iter().chain(tunnel.gateway_v6().map(IpAddr::V6));
    Pools { nets: tunnel.pools().collect(), own: own.collect() }
}

fn rule(rule: &config::Rule) -> RuleSpec {
    RuleSpec {
        action: match rule.action {
            Action::Allow => Verdict::Allow,
            Action::Deny => Verdict::Deny,
        },
        from: rule.from.iter().map(selector).collect(),
        to: rule.to.iter().map(selector).collect(),
        protocol: match rule.protocol {
            None => policy::Protocol::Any,
            Some(config::Protocol::Tcp) => policy::Protocol::Tcp,
            Some(config::Protocol::Udp) => policy::Protocol::Udp,
            Some(config::Protocol::Icmp) => policy::Protocol::Icmp,
        },
        ports: rule.ports.iter().map(|range| range.first..=range.last).collect(),
    }
}

fn selector(selector: &config::Selector) -> policy::Selector {
    match selector {
        config::Selector::Any => policy::Selector::Any,
        config::Selector::Clients => policy::Selector::Clients,
        config::Selector::Group(name) => policy::Selector::Group(name.clone()),
        config::Selector::User(name) => policy::Selector::User(name.clone()),
        config::Selector::Net(net) => policy::Selector::Net(*net),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use vpnd_packet::Packet;
    use vpnd_proto::policy::{Destination, Principal};

    use super::*;

    const PAGES: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const RESOLVER: Ipv4Addr = Ipv4Addr::new(10, 20, 0, 53);
    const OTHER: Ipv4Addr = Ipv4Addr::new(10, 20, 0, 7);
    const PROVIDER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 17);
    const OWN: Ipv4Addr = Ipv4Addr::new(10, 86, 0, 1);
    const DEVICE: Ipv4Addr = Ipv4Addr::new(10, 86, 0, 9);
    const TCP: u8 = 6;
    const UDP: u8 = 17;

    fn bytes(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, port: u16) -> Vec<u8> {
        let head = [0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0];
        let syn =
            [0x9c, 0x40, port.to_be_bytes()[0], port.to_be_bytes()[1], 0, 20, 0, 0, 0, 0, 0, 0, 0x50, 2];
        let mut bytes = [&head[..], &from.octets(), &to.octets(), &syn].concat();
        bytes.resize(40, 0);
        bytes
    }

    /// Where a device whose session is over gets, with the portal at every address of the machine.
    fn reaches(to: Ipv4Addr, protocol: u8, port: u16) -> bool {
        reaches_with("", to, protocol, port)
    }

    /// Where it gets with more lines in `[portal]`.
    fn reaches_with(more: &str, to: Ipv4Addr, protocol: u8, port: u16) -> bool {
        let config = crate::testing::smallest(&format!(
            "[push]\nroutes = ['10.20.0.0/16']\ndns = ['10.20.0.53']\n\
             [policy]\nclient_to_client = true\nclient_to_gateway = true\n\
             [wireguard]\nenabled = true\n\
             [portal]\nenabled = true\ncertificate = 'p.pem'\nkey = 'p.key'\n{more}",
        ));
        let config = config.on_machine(&[PAGES.into()]);
        let compiled = compile(&config, &mut Names::new()).unwrap();
        let walled = Principal::default().in_profile(ProfileId::WALLED);
        let bytes = bytes(DEVICE, to, protocol, port);
        let packet = Packet::parse(&bytes).unwrap();
        compiled.policy.decide(&walled, Destination::Campus, &packet, &|_| false).verdict == Verdict::Allow
    }

    #[test]
    fn a_walled_device_reaches_the_portal_and_name_servers_alone() {
        for (to, protocol, port) in
            [(PAGES, TCP, 443), (OWN, TCP, 443), (RESOLVER, UDP, 53), (RESOLVER, TCP, 53)]
        {
            assert!(reaches(to, protocol, port), "{to} {protocol} {port}");
        }
        for (to, protocol, port) in [
            (PAGES, TCP, 22),
            (PAGES, UDP, 443),
            (OWN, TCP, 22),
            (OWN, UDP, 53),
            (OWN, TCP, 80),
            (PROVIDER, TCP, 443),
            (RESOLVER, TCP, 443),
            (OTHER, TCP, 443),
            (OTHER, UDP, 53),
        ] {
            assert!(!reaches(to, protocol, port), "{to} {protocol} {port}");
        }
    }

    #[test]
    fn a_walled_device_reaches_the_login_pages_of_providers_where_these_are_named() {
        let named = "url = 'https://vpn.uni.example'\nprovider_networks = ['198.51.100.16/28']\n\
                     [[source]]\nname = 'uni'\nkind = 'oidc'\nrealm = 'uni.example'\n\
                     issuer = 'https://sso.uni.example:8443'\nclient_id = 'vpn'\nclient_secret_file = 's'\n";
        for port in [443, 8443] {
            assert!(reaches_with(named, PROVIDER, TCP, port), "{port}");
        }
        let beside = Ipv4Addr::new(198, 51, 100, 32);
        for (to, protocol, port) in
            [(PROVIDER, TCP, 22), (PROVIDER, UDP, 443), (beside, TCP, 443), (OTHER, TCP, 443)]
        {
            assert!(!reaches_with(named, to, protocol, port), "{to} {protocol} {port}");
        }
    }

    #[test]
    fn a_walled_devices_requests_for_other_pages_lead_to_the_portal() {
        let compiled = |more: &str| {
            let portal = "[portal]\nenabled = true\ncertificate = 'p.pem'\nkey = 'p.key'\n";
            let config = crate::testing::smallest(&format!("{portal}{more}"));
            compile(&config, &mut Names::new()).unwrap().policy
        };
        let policy = compiled("url = 'https://vpn.uni.example'\n");
        let response = String::from_utf8(policy.redirect().unwrap().to_vec()).unwrap();
        assert!(response.contains("\r\nLocation: https://vpn.uni.example/devices\r\n"), "{response}");
        let (walled, other) = (Principal::default().in_profile(ProfileId::WALLED), Principal::default());
        for (from, protocol, port, expected) in [
            (&walled, TCP, 80, true),
            (&walled, TCP, 443, false),
            (&walled, UDP, 80, false),
            (&other, TCP, 80, false),
        ] {
            let bytes = bytes(DEVICE, OTHER, protocol, port);
            let packet = Packet::parse(&bytes).unwrap();
            assert_eq!(policy.redirects(from, &packet), expected, "{from:?} {protocol} {port}");
        }
        assert_eq!(compiled("").redirect(), None, "nothing says where the pages are");
    }

    #[test]
    fn a_walled_device_is_unreachable_for_others() {
        let config = crate::testing::smallest(
            "[policy]\nclient_to_client = true\n[portal]\nenabled = true\ncertificate = 'p.pem'\nkey = 'p.key'\n",
        );
        let Compiled { policy, .. } = compile(&config, &mut Names::new()).unwrap();
        let (walled, other) = (Principal::default().in_profile(ProfileId::WALLED), Principal::default());
        let bytes = bytes(OTHER, DEVICE, TCP, 443);
        let packet = Packet::parse(&bytes).unwrap();
        let none: vpnd_proto::policy::Known<'_> = &|_| false;
        for (from, to) in [(&other, &walled), (&walled, &other), (&walled, &walled)] {
            assert_eq!(policy.decide(from, Destination::Client(to), &packet, none).verdict, Verdict::Deny);
        }
        assert_eq!(policy.decide_from_campus(&walled, &packet, none).verdict, Verdict::Deny);
        assert_eq!(policy.decide(&other, Destination::Client(&other), &packet, none).verdict, Verdict::Allow);
    }
}
