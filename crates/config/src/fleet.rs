//! `[fleet]`: gateways that are one service, with one database.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::database::StoreEngine;
use super::document::{Log as Problems, Section};
use super::profile::ServerAddress;
use super::{NatMode, ServerConfig};

/// Table of the host routes, without `route_table`.
const ROUTE_TABLE: u64 = 5_118;
/// Tables of the kernel's own.
const RESERVED: std::ops::RangeInclusive<u64> = 253..=255;
/// The longest id and name, bytes.
const MAX_WORD: usize = 63;

/// A gateway of a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// Name of the fleet, which all its gateways have.
    pub id: String,
    /// Name of this gateway, which no other one has.
    pub name: String,
    /// Number of the kernel's routing table with the addresses of this gateway's sessions.
    pub route_table: u32,
}

/// Reads the section.
pub(super) fn fleet(s: &mut Section<'_>, p: &mut Problems) -> Option<Fleet> {
    s.line()?;
    let word = |s: &mut Section<'_>, p: &mut Problems, key: &'static str, hint: &str| {
        let is_there = s.has(key);
        let text = s.text(p, key).unwrap_or_default();
        let is_good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if !is_there {
            s.missing(p, key, hint);
        } else if text.is_empty() || text.len() > MAX_WORD || !text.chars().all(is_good) {
            let takes = format!("1 to {MAX_WORD} letters, digits, '.', '_' and '-'");
            s.problem(p, key, format!("'{key}' in [fleet] takes {takes}"));
        }
        text
    };
    let id = word(s, p, "id", "write id = \"campus\", the same at all gateways that share the database");
    let name = word(s, p, "name", "write name = \"gw1\", another one at each gateway");
    let route_table = s.number(p, "route_table", 1..=29_999, ROUTE_TABLE);
    if RESERVED.contains(&route_table) {
        let problem = "'route_table' in [fleet] takes a separate table, not one of the system's (253 to 255)";
        s.problem(p, "route_table", problem.to_owned());
    }
    Some(Fleet { id, name, route_table: route_table as u32 })
}

/// Why a gateway with this configuration can't be one of its fleet.
pub(super) fn fault(config: &ServerConfig) -> Option<&'static str> {
    config.fleet.as_ref()?;
    if config.store.engine != StoreEngine::Postgres {
        return Some(
            "[fleet] needs engine = \"postgres\" in [store]: the embedded store belongs to one gateway",
        );
    }
    (config.nat.mode != NatMode::Route)
        .then_some("[fleet] needs mode = \"route\" in [nat]: translated connections end with their gateway")
}

/// Why clients would not find the other gateways; a name may stand for all of them.
pub(super) fn doubt(config: &ServerConfig) -> Option<&'static str> {
    config.fleet.as_ref()?;
    let literals = config.server.addresses.iter().map(ServerAddress::literal).collect::<Option<Vec<_>>>()?;
    let hosts: BTreeSet<IpAddr> = literals.iter().map(SocketAddr::ip).collect();
    (hosts.len() < 2).then_some(
        "clients don't learn of the other gateways of [fleet]: name all of them in 'addresses' of [server]",
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const REST: &str = "[tls]\ncertificate = \"a\"\nkey = \"b\"\n[tunnel]\npool_v4 = \"10.86.0.0/16\"\n";
    const SHARED: &str =
        "[store]\nengine = \"postgres\"\nhosts = [\"/run/postgresql\"]\n[nat]\nmode = \"route\"\n";

    fn read(text: &str) -> Result<Option<Fleet>, String> {
        let config = ServerConfig::parse(&format!("{REST}{text}"), "server.toml", Path::new("/etc/vpnd"));
        let config = config.map_err(|error| error.to_string())?;
        fault(&config).map_or(Ok(config.fleet), |fault| Err(fault.to_owned()))
    }

    #[test]
    fn a_fleet_is_read_and_there_is_none_without_the_section() {
        assert_eq!(read(SHARED).unwrap(), None);
        let fleet = read(&format!("{SHARED}[fleet]\nid = \"campus\"\nname = \"gw-1\"\n")).unwrap().unwrap();
        let default = Fleet { id: "campus".to_owned(), name: "gw-1".to_owned(), route_table: 5_118 };
        assert_eq!(fleet, default);
    }

    #[test]
    fn a_fleet_whose_clients_know_one_gateway_is_doubted() {
        let doubted = |server: &str, fleet: &str| {
            let text = format!("[server]\n{server}{REST}{SHARED}{fleet}");
            let config = ServerConfig::parse(&text, "server.toml", Path::new("/etc/vpnd")).unwrap();
            doubt(&config).is_some()
        };
        let fleet = "[fleet]\nid = \"campus\"\nname = \"gw1\"\n";
        let two = "addresses = [\"192.0.2.1:4433\", \"192.0.2.2:4433\"]\n";
        let one = "addresses = [\"192.0.2.1:4433\", \"192.0.2.1:443\"]\n";
        let name = "addresses = [\"vpn.uni.example:4433\"]\n";
        assert!(doubted("", fleet) && doubted(one, fleet));
        assert!(!doubted(two, fleet) && !doubted(name, fleet) && !doubted("", ""));
    }

    #[test]
    fn what_is_no_fleet_is_refused() {
        let good = "[fleet]\nid = \"campus\"\nname = \"gw1\"\n";
        let translated = SHARED.replace("route", "nftables");
        for (text, part) in [
            (good.to_owned(), "needs engine = \"postgres\""),
            (format!("{translated}{good}"), "needs mode = \"route\""),
            (format!("{SHARED}[fleet]\nname = \"gw1\"\n"), "needs the key 'id'"),
            (format!("{SHARED}[fleet]\nid = \"campus\"\n"), "needs the key 'name'"),
            (format!("{SHARED}{}", good.replace("gw1", "gw 1")), "'name' in [fleet] takes 1 to 63 letters"),
            (format!("{SHARED}{good}route_table = 254\n"), "not one of the system's"),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
