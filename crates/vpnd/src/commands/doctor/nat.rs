//! The public addresses of port blocks: whether answers come back to them, and whether anything
//! else of this machine uses their ports.

use std::fs;
use std::net::Ipv4Addr;

use ipnet::IpNet;

use super::Finding;
use vpnd_config::ServerConfig;
use vpnd_config::check::{self, LocalNetwork};
use vpnd_config::local_ports::LocalPorts;
use vpnd_sys::port_blocks::PortBlocks;

const ADDRESSES: &str = "nat.addresses";
const PORTS: &str = "nat.ports";
/// The state of a listening TCP socket, and that of a UDP socket without a peer.
const LISTENING: [&str; 2] = ["0A", "07"];
/// Addresses and ports that one finding names.
const SHOWN: usize = 8;

pub(super) fn blocks(config: &ServerConfig) -> Vec<Finding> {
    let Some(blocks) = &config.nat.blocks else { return Vec::new() };
    let own = LocalPorts::read().addresses;
    let mut findings = of_addresses(&blocks.addresses, &own, &check::local_networks());
    if blocks.addresses.iter().any(|address| own.contains(address)) {
        findings.push(of_ports(blocks, &sockets()));
    }
    findings
}

/// Whether answers to the addresses come to this machine: one finding for all that are its own, and
/// for all that are of no network here.
fn of_addresses(addresses: &[Ipv4Addr], own: &[Ipv4Addr], networks: &[LocalNetwork]) -> Vec<Finding> {
    let (mut here, mut routed, mut findings) = (Vec::new(), Vec::new(), Vec::new());
    for address in addresses {
        let has = |local: &&LocalNetwork| match local.network {
            IpNet::V4(network) => (1..32).contains(&network.prefix_len()) && network.contains(address),
            IpNet::V6(_) => false,
        };
        match networks.iter().find(has) {
            _ if own.contains(address) => here.push(*address),
            Some(LocalNetwork { network, interface }) => findings.push(Finding::problem(
                ADDRESSES,
                format!("{address} is of the network {network} at {interface}, and no interface has it: no host answers a router's ARP for it"),
                format!("ip addr add {address}/32 dev {interface}, and in the machine's own configuration"),
            )),
            None => routed.push(*address),
        }
    }
    if !here.is_empty() {
        findings.push(Finding::good(ADDRESSES, format!("this machine's own: {}", shown(&here))));
    }
    if !routed.is_empty() {
        findings.push(Finding::unknown(
            ADDRESSES,
            format!("of no interface: {}: answers come back if the routers lead them here, which can't be seen from here", shown(&routed)),
            "have them routed to this machine",
        ));
    }
    findings
}

/// The first of a list.
fn shown<T: ToString>(list: &[T]) -> String {
    let first: Vec<String> = list.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = list.len().checked_sub(SHOWN).filter(|more| *more > 0);
    first.join(", ") + &more.map_or(String::new(), |more| format!(" and {more} more"))
}

/// A socket of the machine that packets of strangers reach: its address and port.
type LocalSocket = (Ipv4Addr, u16);

/// Whether something of this machine receives at ports that are clients'.
fn of_ports(blocks: &PortBlocks, sockets: &[LocalSocket]) -> Finding {
    let (first, last) = blocks.ports;
    let is_shared = |socket: &&LocalSocket| {
        (first..=last).contains(&socket.1)
            && (socket.0.is_unspecified() || blocks.addresses.contains(&socket.0))
    };
    let mut shared: Vec<u16> = sockets.iter().filter(is_shared).map(|socket| socket.1).collect();
    shared.sort_unstable();
    shared.dedup();
    let (count, needed) = (blocks.count(), blocks.needed());
    if shared.is_empty() {
        let found = format!(
            "{first}-{last} are clients' alone: {count} blocks of {} ports for {needed} addresses of {}; IPv6 is not translated",
            blocks.size, blocks.pool
        );
        return Finding::good(PORTS, found);
    }
    let advice = "'ss -lntup' names the programs: have them listen elsewhere, or give [nat] other 'ports'";
    let found = format!(
        "programs of this machine receive at {} of the {first}-{last} that are clients': a client could take what is sent there",
        shown(&shared)
    );
    Finding::problem(PORTS, found, advice)
}

fn sockets() -> Vec<LocalSocket> {
    let read = |name| fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default();
    ["tcp", "tcp6", "udp", "udp6"].into_iter().flat_map(|name| listed(&read(name))).collect()
}

/// Lines such as `0: 0100007F:1F90 00000000:0000 0A …`, addresses in the machine's byte order. A
/// socket of IPv6 counts if it has all addresses, for then it may have those of IPv4, too.
fn listed(text: &str) -> Vec<LocalSocket> {
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (address, port) = fields.get(1)?.split_once(':')?;
        if !LISTENING.contains(fields.get(3)?) {
            return None;
        }
        let address = match address.len() {
            8 => Ipv4Addr::from(u32::from_str_radix(address, 16).ok()?.to_ne_bytes()),
            32 if address.bytes().all(|digit| digit == b'0') => Ipv4Addr::UNSPECIFIED,
            _ => return None,
        };
        Some((address, u16::from_str_radix(port, 16).ok()?))
    };
    text.lines().filter_map(socket).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Verdict;

    #[test]
    fn replies_need_a_local_or_routed_address() {
        let own = [Ipv4Addr::new(192, 0, 2, 1)];
        let network =
            |text: &str| LocalNetwork { network: text.parse().unwrap(), interface: "eth0".to_owned() };
        let networks = [network("0.0.0.0/0"), network("192.0.2.0/28"), network("198.51.100.1/32")];
        let findings_of = |addresses: &[[u8; 4]]| {
            let addresses: Vec<Ipv4Addr> = addresses.iter().copied().map(Into::into).collect();
            of_addresses(&addresses, &own, &networks)
        };
        let findings = findings_of(&[[192, 0, 2, 1], [192, 0, 2, 2], [192, 0, 2, 16], [198, 51, 100, 1]]);
        assert_eq!(
            findings.iter().map(|finding| finding.verdict).collect::<Vec<_>>(),
            [Verdict::Problem, Verdict::Good, Verdict::Unknown],
            "{findings:?}"
        );
        assert_eq!(
            findings[0].advice.as_deref(),
            Some("ip addr add 192.0.2.2/32 dev eth0, and in the machine's own configuration")
        );
        // The default route is no network at which an address stands.
        assert!(findings[2].found.contains("192.0.2.16, 198.51.100.1"), "{findings:?}");
        let many: Vec<[u8; 4]> = (1..=20).map(|last| [203, 0, 113, last]).collect();
        assert!(findings_of(&many)[0].found.contains("203.0.113.8 and 12 more"), "{:?}", findings_of(&many));
    }

    #[test]
    fn a_program_at_a_clients_port_is_found() {
        let blocks: PortBlocks = "10.86.0.0/28 to 192.0.2.1 ports 20000-21599 by 100".parse().unwrap();
        let hex = |address: [u8; 4], port: u16, state: &str| {
            let address = u32::from_ne_bytes(address);
            let line = format!("   1: {address:08X}:{port:04X} 00000000:0000 {state} 00000000:00000000");
            format!("  sl  local_address rem_address   st\n{line}\n")
        };
        let verdict = |text: &str| of_ports(&blocks, &listed(text)).verdict;
        assert_eq!(verdict(&hex([0, 0, 0, 0], 20_000, "0A")), Verdict::Problem);
        assert_eq!(verdict(&hex([192, 0, 2, 1], 21_599, "07")), Verdict::Problem);
        assert_eq!(verdict(&hex([192, 0, 2, 1], 21_600, "07")), Verdict::Good);
        assert_eq!(verdict(&hex([127, 0, 0, 1], 20_000, "0A")), Verdict::Good, "nobody outside reaches it");
        assert_eq!(verdict(&hex([192, 0, 2, 1], 20_000, "01")), Verdict::Good, "a connection of its own");
        let all_v6 = "   0: 00000000000000000000000000000000:4E20 00000000000000000000000000000000:0000 0A";
        assert_eq!(verdict(all_v6), Verdict::Problem);
        assert!(of_ports(&blocks, &listed(all_v6)).found.contains("20000"));
    }
}
