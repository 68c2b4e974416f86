//! Whether the machine's firewalls let clients' packets through: test packets go each way through a
//! copy of all rules, and the kernel says which chain has dropped one. Each table decides by
//! itself: what vpnd's own lets pass, another one may drop.
//!
//! INVARIANT: no packet leaves the copy, and no rule is read by its text.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use vpnd_packet::checksum;
use vpnd_packet::{PARTIAL_CHECKSUM, Packet, TCP, UDP, tcp_flag};

use super::Finding;
use vpnd_config::check::{LocalNetwork, interfaces, local_networks};
use vpnd_config::{NatMode, ServerConfig};
use vpnd_sys::firewall_copy::{Bench, ChainPlace, CopyError, Fate, FirewallCopy};
use vpnd_sys::tool::ToolError;

const CHECK: &str = "firewall";
/// Hosts far away, from which clients come, and to which they go where everything is pushed.
pub(in crate::commands) const FAR: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(9, 9, 9, 9)), IpAddr::V6(Ipv6Addr::new(0x2620, 0xfe, 0, 0, 0, 0, 0, 9))];
/// Ports of the test packets' senders and receivers.
const SENDER: u16 = 50_000;
const SERVICE: u16 = 443;
/// More ways to the campus are not tried out.
const MAX_WAYS: usize = 8;

/// A way that packets of clients take through the machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Way {
    interface: String,
    is_v4: bool,
    client: IpAddr,
    host: IpAddr,
}

/// The step of a test at which a packet was dropped, and by which chain.
type Drop = (String, Option<ChainPlace>);

/// Looks at all ways.
pub(super) async fn findings(config: &ServerConfig) -> Vec<Finding> {
    let networks: Vec<LocalNetwork> =
        local_networks().into_iter().filter(|net| net.interface != config.tunnel.name).collect();
    match try_out(config, &networks).await {
        Ok(findings) if findings.is_empty() => {
            vec![Finding::good(CHECK, "no other firewall of this machine drops clients' packets")]
        }
        Ok(findings) => findings,
        Err(CopyError::Tool(ToolError::Missing { .. })) if config.nat.mode == NatMode::None => Vec::new(),
        Err(CopyError::Tool(error @ ToolError::Missing { .. })) => {
            vec![Finding::problem(CHECK, "the gateway can't set up its firewall", error.to_string())]
        }
        Err(error) => {
            let advice = "run this as root; if it goes on, look for what drops in 'nft list ruleset' and 'iptables-save'";
            let found = format!("the firewalls of this machine can't be tried out: {error}");
            vec![Finding::unknown(CHECK, found, advice)]
        }
    }
}

async fn try_out(config: &ServerConfig, networks: &[LocalNetwork]) -> Result<Vec<Finding>, CopyError> {
    let tunnel = config.tunnel.name.clone();
    let mut names: BTreeSet<String> = interfaces().into_iter().filter(|name| name != "lo").collect();
    names.insert(tunnel.clone());
    let known = networks.iter().filter(|net| names.contains(&net.interface));
    let mut behind: Vec<(IpNet, String)> = known.map(|net| (net.network, net.interface.clone())).collect();
    behind.extend(config.tunnel.pools().map(|pool| (pool, tunnel.clone())));
    let copy = FirewallCopy::read(names.into_iter().collect(), behind).await?;
    let ways = if config.nat.mode == NatMode::None { Vec::new() } else { ways(config, networks) };
    let doors: Vec<(String, IpAddr, IpAddr)> = FAR
        .iter()
        .filter_map(|far| {
            let interface = interface_to(networks, *far)?.to_owned();
            let own = copy.addresses(&interface).map(|net| net.addr()).find(|own| is_usable(*own, *far))?;
            Some((interface, *far, own))
        })
        .collect();
    let is_ufw = copy.mentions(":ufw-");
    copy.within(|bench| {
        let into = doors.iter().filter_map(|(interface, from, own)| {
            into_the_port(bench, config, interface, (*from, *own), is_ufw)
        });
        let mut findings: Vec<Finding> = into.collect();
        findings.extend(ways.iter().filter_map(|way| through(bench, config, way, is_ufw)));
        findings.dedup();
        findings
    })
}

fn is_usable(own: IpAddr, far: IpAddr) -> bool {
    let is_of_one_link = matches!(own, IpAddr::V6(own) if own.is_unicast_link_local());
    own.is_ipv4() == far.is_ipv4() && !is_of_one_link
}

/// The interface that the machine would send by.
fn interface_to(networks: &[LocalNetwork], address: IpAddr) -> Option<&str> {
    let holding = networks.iter().filter(|net| net.network.contains(&address));
    holding.max_by_key(|net| net.network.prefix_len()).map(|net| net.interface.as_str())
}

/// One way for each interface that leads to a pushed network.
fn ways(config: &ServerConfig, networks: &[LocalNetwork]) -> Vec<Way> {
    let pools: Vec<IpNet> = config.tunnel.pools().collect();
    let pushed = config.profiles.iter().flat_map(|profile| profile.push.reach());
    let mut ways: Vec<Way> = Vec::new();
    for network in pushed {
        let is_v4 = network.addr().is_ipv4();
        let is_pool = pools.iter().any(|pool| pool.contains(&network) || network == *pool);
        let Some(pool) = pools.iter().find(|pool| pool.addr().is_ipv4() == is_v4 && !is_pool) else {
            continue;
        };
        let host = if network.prefix_len() == 0 { FAR[usize::from(!is_v4)] } else { last_host(network) };
        let Some(interface) = interface_to(networks, host) else { continue };
        if ways.len() < MAX_WAYS
            && !ways.iter().any(|way| (way.interface.as_str(), way.is_v4) == (interface, is_v4))
        {
            ways.push(Way { interface: interface.to_owned(), is_v4, client: last_host(*pool), host });
        }
    }
    ways
}

/// The last address of a network that a host may have.
fn last_host(network: IpNet) -> IpAddr {
    match network {
        IpNet::V4(net) if net.prefix_len() < 31 => (u32::from(net.broadcast()) - 1).to_be_bytes().into(),
        IpNet::V4(net) => net.broadcast().into(),
        IpNet::V6(net) => net.broadcast().into(),
    }
}

/// Whether a client's datagram reaches the gateway's port.
fn into_the_port(
    bench: &mut Bench,
    config: &ServerConfig,
    interface: &str,
    (from, own): (IpAddr, IpAddr),
    is_ufw: bool,
) -> Option<Finding> {
    let listen = config.server.listen;
    if !listen.ip().is_unspecified() && listen.ip() != own {
        return None;
    }
    let port = listen.port();
    let fate = bench.deliver(&packet((from, SENDER), (own, port), None), interface, port);
    let (found, place) = match fate {
        Ok(Fate::Arrived(_)) => return None,
        Ok(Fate::Dropped(place)) => {
            (format!("datagrams of clients don't get to UDP port {port}: {}", by(place.as_ref())), place)
        }
        Err(error) => return Some(unknown(&error)),
    };
    Some(Finding::problem(CHECK, found, open_port(place.as_ref(), port, is_ufw)))
}

/// Whether packets of clients get to a host of the campus, and the answers back. One service that
/// gets through is enough: which others are closed is their administrator's decision.
fn through(bench: &mut Bench, config: &ServerConfig, way: &Way, is_ufw: bool) -> Option<Finding> {
    let (tunnel, interface) = (&config.tunnel.name, &way.interface);
    let mut first = None;
    for flags in [None, Some(tcp_flag::SYN)] {
        match both_ways(bench, tunnel, way, flags) {
            Ok(None) => return None,
            Ok(Some(drop)) => first = first.or(Some(drop)),
            Err(error) => return Some(unknown(&error)),
        }
    }
    let (step, place) = first?;
    let found = format!("{step} {interface} are dropped: {}", by(place.as_ref()));
    Some(Finding::problem(CHECK, found, open_forwarding(place.as_ref(), tunnel, is_ufw)))
}

/// A question and its answer; what was dropped, if one was.
fn both_ways(bench: &mut Bench, tunnel: &str, way: &Way, flags: Option<u8>) -> std::io::Result<Option<Drop>> {
    let question = packet((way.client, SENDER), (way.host, SERVICE), flags);
    let is_question = |packet: &Packet<'_>| packet.dst() == way.host && packet.ports().is_some();
    let asked = match bench.forward(&question, (tunnel, &way.interface), is_question)? {
        Fate::Arrived(packet) => packet,
        Fate::Dropped(place) => return Ok(Some(("clients' packets to".to_owned(), place))),
    };
    // Its source may be another by now.
    let Some((source, port)) =
        Packet::parse(&asked).ok().and_then(|packet| Some((packet.src(), packet.ports()?.0)))
    else {
        return Ok(None);
    };
    let answer = packet((way.host, SERVICE), (source, port), flags.map(|flags| flags | tcp_flag::ACK));
    let is_answer = |packet: &Packet<'_>| packet.dst() == way.client && packet.ports().is_some();
    Ok(match bench.forward(&answer, (&way.interface, tunnel), is_answer)? {
        Fate::Arrived(_) => None,
        Fate::Dropped(place) => Some(("answers to clients from".to_owned(), place)),
    })
}

fn unknown(error: &std::io::Error) -> Finding {
    Finding::unknown(CHECK, format!("a test packet can't be sent: {error}"), "run this as root")
}

fn by(place: Option<&ChainPlace>) -> String {
    match place {
        Some(ChainPlace { family, table, chain }) => format!("by the chain {family} {table} {chain}"),
        None => "the kernel does not say by what".to_owned(),
    }
}

const UNKNOWN_CHAIN: &str = "compare 'nft list ruleset' and 'iptables-save' with what clients need";
const ELSEWHERE: &str = "and in that firewall's own configuration";

/// The program of iptables that a chain belongs to, if it is likely to be one's.
fn iptables(place: &ChainPlace) -> Option<&'static str> {
    match (place.family.as_str(), place.table.as_str()) {
        ("iptables-legacy", _) => Some("iptables-legacy"),
        ("ip", "filter") => Some("iptables"),
        ("ip6", "filter") => Some("ip6tables"),
        _ => None,
    }
}

/// The next step, in the words of the program that the chain is likely to belong to.
fn open_port(place: Option<&ChainPlace>, port: u16, is_ufw: bool) -> String {
    let Some(place) = place else { return UNKNOWN_CHAIN.to_owned() };
    let ChainPlace { family, table, chain } = place;
    match iptables(place) {
        Some(_) if is_ufw => format!("ufw allow {port}/udp"),
        Some(program) => format!("{program} -I INPUT -p udp --dport {port} -j ACCEPT; {ELSEWHERE}"),
        None if table == "firewalld" => {
            format!("firewall-cmd --permanent --add-port={port}/udp && firewall-cmd --reload")
        }
        None => format!("nft insert rule {family} {table} {chain} udp dport {port} accept; {ELSEWHERE}"),
    }
}

fn open_forwarding(place: Option<&ChainPlace>, tunnel: &str, is_ufw: bool) -> String {
    let Some(place) = place else { return UNKNOWN_CHAIN.to_owned() };
    let ChainPlace { family, table, chain } = place;
    match iptables(place) {
        Some(_) if is_ufw => format!("ufw route allow in on {tunnel}"),
        Some(program) => format!(
            "{program} -I FORWARD -i {tunnel} -j ACCEPT; {program} -I FORWARD -o {tunnel} -m conntrack \
             --ctstate RELATED,ESTABLISHED -j ACCEPT; {ELSEWHERE} (with Docker in the chain DOCKER-USER)"
        ),
        None if table == "firewalld" => format!(
            "firewall-cmd --permanent --zone=trusted --add-interface={tunnel} && firewall-cmd --reload"
        ),
        None => {
            let rule = format!("nft insert rule {family} {table} {chain}");
            format!(
                "{rule} iifname {tunnel} accept; {rule} oifname {tunnel} ct state established,related accept; {ELSEWHERE}"
            )
        }
    }
}

/// A datagram without contents or, with flags, a segment of TCP.
fn packet((src, from): (IpAddr, u16), (dst, to): (IpAddr, u16), flags: Option<u8>) -> Vec<u8> {
    let mut payload = [from.to_be_bytes(), to.to_be_bytes()].concat();
    match flags {
        None => payload.extend([0, 8, 0, 0]),
        Some(flags) => {
            let answers = u8::from(flags & tcp_flag::ACK != 0);
            payload.extend([0, 0, 0, answers, 0, 0, 0, answers, 0x50, flags, 0xFF, 0xFF, 0, 0, 0, 0]);
        }
    }
    let (protocol, len) = (if flags.is_some() { TCP } else { UDP }, payload.len() as u16);
    let mut bytes = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let total = (20 + len).to_be_bytes();
            let head = [0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, protocol, 0, 0];
            let mut head = [&head[..], &src.octets(), &dst.octets()].concat();
            let sum = checksum::ipv4_header(&head).to_be_bytes();
            head[10..12].copy_from_slice(&sum);
            head
        }
        (src, dst) => {
            let octets = |address: IpAddr| match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            };
            let len = len.to_be_bytes();
            [&[0x60, 0, 0, 0, len[0], len[1], protocol, 64][..], &octets(src), &octets(dst)].concat()
        }
    };
    bytes.extend(payload);
    bytes[0] |= PARTIAL_CHECKSUM;
    // A packet that does not parse is sent as it is, and dropped.
    let _ = checksum::complete(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_packets_are_good_ones() {
        for [src, dst] in [["10.8.0.9", "10.1.0.1"], ["fd86::9", "fd20::1"]] {
            for flags in [None, Some(tcp_flag::SYN)] {
                let bytes = packet((src.parse().unwrap(), 5), (dst.parse().unwrap(), 443), flags);
                let packet = Packet::parse(&bytes).unwrap();
                assert!(checksum::verify(&packet) && packet.ports() == Some((5, 443)));
            }
        }
    }

    #[test]
    fn ways_lead_to_what_is_pushed_by_the_narrowest_route() {
        let text = "[tls]\ncertificate = 'c'\nkey = 'k'\n[tunnel]\npool_v4 = '10.86.0.0/16'\n\
            [push]\nroutes = ['10.86.0.0/16', '10.20.0.0/16', '10.20.1.0/24', '10.30.0.0/16', 'fd20::/64', '0.0.0.0/0']\n";
        let config = ServerConfig::parse(text, "server.toml", "/etc/vpnd".as_ref()).unwrap();
        let network = |network: &str, interface: &str| LocalNetwork {
            network: network.parse().unwrap(),
            interface: interface.to_owned(),
        };
        let networks =
            [network("0.0.0.0/0", "eth0"), network("10.20.0.0/15", "eth1"), network("::/0", "eth0")];
        let found: Vec<_> = ways(&config, &networks)
            .into_iter()
            .map(|way| format!("{} {} {}", way.interface, way.client, way.host))
            .collect();
        assert_eq!(found, ["eth1 10.86.255.254 10.20.255.254", "eth0 10.86.255.254 10.30.255.254"]);
    }
}
