//! `addresses`, `ports` and `ports_per_client` of `[nat]`.
//!
//! INVARIANT: what is read has a block for each address of the pool, and no port at which the
//! gateway itself listens.

use std::net::Ipv4Addr;

use super::document::{Log as Problems, Section};
use super::{NatMode, PortRange, ServerConfig};
use vpnd_sys::port_blocks::{PortBlocks, SIZES};

/// Public addresses at most.
const MAX_ADDRESSES: usize = 1024;
/// Larger pools would have maps of blocks that take the kernel many seconds to load.
const SHORTEST_POOL: u8 = 16;
/// Ports of a block where nothing is configured.
const SIZE: u64 = 512;
/// Below those that Linux takes for its own connections (`net.ipv4.ip_local_port_range`), and above
/// those of most servers.
const PORTS: PortRange = PortRange { first: 10_000, last: 32_767 };

/// Reads the keys of `[nat]`; the rest of the file is read already.
pub(super) fn read(
    s: &mut Section<'_>,
    p: &mut Problems,
    mode: NatMode,
    config: &ServerConfig,
) -> Option<PortBlocks> {
    let addresses = s.list::<Ipv4Addr>(p, "addresses", "a public IPv4 address such as \"192.0.2.10\"");
    let ports = s.parsed::<PortRange>(p, "ports", "a range such as \"10000-32767\"");
    let size = s.number(p, "ports_per_client", SIZES, SIZE) as u16;
    let Some(mut addresses) = addresses else {
        for key in ["ports", "ports_per_client"].into_iter().filter(|key| s.has(key)) {
            s.problem(p, key, format!("'{key}' in [nat] counts with 'addresses' alone"));
        }
        return None;
    };
    let named = addresses.len();
    addresses.sort_unstable();
    addresses.dedup();
    let fault = if !(1..=MAX_ADDRESSES).contains(&named) || addresses.len() < named {
        Some(format!("takes 1 to {MAX_ADDRESSES} addresses, each of them once"))
    } else if mode != NatMode::Nftables {
        Some("counts with mode = \"nftables\" alone".to_owned())
    } else if config.tunnel.pool_v4.is_none() {
        Some("needs 'pool_v4' in [tunnel]: only IPv4 is translated".to_owned())
    } else {
        None
    };
    if let Some(fault) = fault {
        s.problem(p, "addresses", format!("'addresses' in [nat] {fault}"));
        return None;
    }
    let ports = ports.unwrap_or(PORTS);
    let blocks = PortBlocks {
        addresses,
        ports: (ports.first, ports.last),
        size,
        pool: config.tunnel.pool_v4?.trunc(),
    };
    report_faults(&blocks, s, p, config);
    Some(blocks)
}

fn report_faults(blocks: &PortBlocks, s: &Section<'_>, p: &mut Problems, config: &ServerConfig) {
    let PortBlocks { addresses, ports, pool, .. } = blocks;
    let is_unusable = |address: &&Ipv4Addr| {
        address.is_unspecified()
            || address.is_loopback()
            || address.is_multicast()
            || address.is_broadcast()
            || pool.contains(*address)
    };
    if let Some(address) = addresses.iter().find(is_unusable) {
        let reason =
            format!("'addresses' in [nat] has {address}, which is no address that other hosts can answer");
        s.problem(p, "addresses", reason);
    }
    if ports.0 < 1024 {
        let reason = "'ports' in [nat] begins at 1024 at least: lower ports are those of servers";
        s.problem(p, "ports", reason.to_owned());
    }
    if pool.prefix_len() < SHORTEST_POOL {
        let reason =
            format!("'addresses' in [nat] needs a 'pool_v4' of a /{SHORTEST_POOL} or less, and it is {pool}");
        s.problem(p, "addresses", reason);
    } else if blocks.count() < blocks.needed() {
        s.problem(p, "addresses", shortage(blocks));
    }
    let own =
        [Some(config.server.listen), config.admin.metrics, config.acme.as_ref().map(|acme| acme.listen)];
    let own = own.into_iter().flatten().map(|address| address.port());
    for port in own.chain(config.server.more_ports.iter().copied()) {
        if (ports.0..=ports.1).contains(&port) {
            let reason = format!(
                "'ports' in [nat] has {port}, at which the gateway listens: a client could take packets that are meant for the gateway"
            );
            s.problem(p, "ports", reason);
        }
    }
}

/// An error that there are fewer blocks than addresses of the pool, and what would do: clients
/// never share a block.
fn shortage(blocks: &PortBlocks) -> String {
    let PortBlocks { addresses, ports, size, pool } = blocks;
    let (in_address, needed, named) =
        (u64::from(blocks.in_address()), blocks.needed(), addresses.len() as u64);
    let all_ports = u64::from(ports.1) - u64::from(ports.0) + 1;
    let mut remedies = Vec::new();
    if let Some(addresses) = needed.checked_add(in_address).and_then(|sum| (sum - 1).checked_div(in_address))
    {
        remedies.push(format!("name {addresses} addresses"));
    }
    let smaller = all_ports / needed.div_ceil(named);
    if SIZES.contains(&smaller) {
        remedies.push(format!("set ports_per_client = {smaller}"));
    }
    let prefix = 32 - blocks.count().checked_ilog2().unwrap_or(0);
    if prefix <= 30 {
        remedies.push(format!("make 'pool_v4' a /{prefix}"));
    }
    let remedies = if remedies.is_empty() { "widen 'ports'".to_owned() } else { remedies.join(", or ") };
    format!(
        "{pool} has {needed} addresses, and {named} of [nat]'s 'addresses' x {all_ports} 'ports' make {} blocks of {size} ports: {remedies}",
        blocks.count()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(nat: &str, pool: &str) -> Result<ServerConfig, String> {
        let text = format!(
            "[tls]\ncertificate = \"a\"\nkey = \"b\"\n[tunnel]\npool_v4 = \"{pool}\"\n[nat]\n{nat}\n"
        );
        ServerConfig::parse(&text, "server.toml", std::path::Path::new("/etc/vpnd"))
            .map_err(|e| e.to_string())
    }

    const ONE: &str = "mode = \"nftables\"\naddresses = [\"192.0.2.1\"]\n";

    #[test]
    fn blocks_are_those_of_the_pool_and_the_addresses_in_order() {
        let nat = "mode = \"nftables\"\naddresses = [\"192.0.2.11\", \"192.0.2.10\"]";
        let read = config(nat, "10.86.0.0/26").unwrap().nat.blocks.unwrap();
        assert_eq!(read.to_string(), "10.86.0.0/26 to 192.0.2.10,192.0.2.11 ports 10000-32767 by 512");
        let nat = format!("{ONE}ports = \"20000-29999\"\nports_per_client = 100");
        let read = config(&nat, "10.86.0.0/26").unwrap().nat.blocks.unwrap();
        assert_eq!(read.to_string(), "10.86.0.0/26 to 192.0.2.1 ports 20000-29999 by 100");
        assert_eq!(config("mode = \"nftables\"", "10.0.0.0/8").unwrap().nat.blocks, None);
    }

    #[test]
    fn more_inner_addresses_than_blocks_are_refused_with_the_arithmetic() {
        let refused = config(ONE, "10.86.0.0/24").unwrap_err();
        for part in [
            "server.toml:8: 10.86.0.0/24 has 256 addresses, and 1 of [nat]'s 'addresses' x 22768 'ports' make 44 blocks of 512 ports",
            "name 6 addresses, or set ports_per_client = 88, or make 'pool_v4' a /27",
        ] {
            assert!(refused.contains(part), "{refused}");
        }
        // Each of these is enough.
        let six: Vec<String> = (1..=6).map(|n| format!("\"192.0.2.{n}\"")).collect();
        for (nat, pool) in [
            (ONE.to_owned(), "10.86.0.0/27"),
            (format!("{ONE}ports_per_client = 88"), "10.86.0.0/24"),
            (format!("mode = \"nftables\"\naddresses = [{}]", six.join(", ")), "10.86.0.0/24"),
        ] {
            assert!(config(&nat, pool).is_ok(), "{nat}");
        }
        assert!(config(&format!("{ONE}ports_per_client = 89"), "10.86.0.0/24").is_err());
        assert!(
            config(&format!("{ONE}ports = \"20000-20001\""), "10.86.0.0/24").unwrap_err().contains("widen")
        );
    }

    #[test]
    fn keys_that_can_not_be_meant_are_refused() {
        let wrong = |nat: &str, pool: &str| config(nat, pool).expect_err("it is wrong");
        assert!(wrong(&ONE.replace("nftables", "route"), "10.86.0.0/28").contains("alone"));
        assert!(wrong(&format!("{ONE}ports = \"4000-9000\""), "10.86.0.0/30").contains("4433"));
        assert!(wrong(&format!("{ONE}ports = \"80-9000\""), "10.86.0.0/30").contains("1024"));
        assert!(wrong(ONE, "10.0.0.0/8").contains("/16"));
        assert!(wrong("mode = \"nftables\"\naddresses = []", "10.86.0.0/28").contains("1 to 1024"));
        assert!(
            wrong("mode = \"nftables\"\nports = \"20000-29999\"", "10.86.0.0/28")
                .contains("'addresses' alone")
        );
        let twice = "mode = \"nftables\"\naddresses = [\"192.0.2.1\", \"192.0.2.1\"]";
        assert!(wrong(twice, "10.86.0.0/28").contains("once"));
        for address in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "10.86.0.3"] {
            assert!(wrong(&ONE.replace("192.0.2.1", address), "10.86.0.0/28").contains(address));
        }
    }
}
