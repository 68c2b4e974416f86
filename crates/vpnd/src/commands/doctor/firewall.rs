//! The gateway's own firewall table, and other firewalls of the machine. In nftables each table decides by itself: what vpnd's own table lets pass, another one drops.

use std::time::Duration;

use serde_json::Value;

use super::Finding;
use crate::admin::Status;
use crate::config::{NatMode, ServerConfig};
use crate::sys::nft_listing::Listing;
use crate::sys::tool::{NFT, ToolError};

/// Time in which a gateway puts its table back.
const RENEWAL_TIME: Duration = Duration::from_secs(1);

/// A chain that a packet passes on its way into or through this machine, and that drops what it does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Closed {
    family: String,
    table: String,
    name: String,
    hook: Hook,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hook {
    Input,
    Forward,
}

/// Chains of others that would drop clients' datagrams or packets.
pub(super) async fn chains(config: &ServerConfig) -> Vec<Finding> {
    const CHECK: &str = "firewall";
    let listed = match list(&["-j", "list", "chains"]).await {
        Ok(listed) => listed,
        Err(ToolError::Missing { .. }) if config.nat.mode == NatMode::None => return Vec::new(),
        Err(error @ ToolError::Missing { .. }) => {
            return vec![Finding::problem(CHECK, "the gateway can't set up its firewall", error.to_string())];
        }
        Err(error) => {
            let advice = "run this as root; if it goes on, the kernel lacks nftables";
            return vec![Finding::unknown(CHECK, error.to_string(), advice)];
        }
    };
    let mut findings = Vec::new();
    for chain in closed(&listed) {
        let table = list(&["list", "table", &chain.family, &chain.table]).await.unwrap_or_default();
        findings.extend(chain.judge(config, &table));
    }
    if findings.is_empty() {
        findings.push(Finding::good(CHECK, "no other firewall of this machine stands in the way"));
    }
    findings
}

/// The running gateway's own table, as the kernel has it.
pub(super) async fn own(status: Option<&Status>) -> Vec<Finding> {
    const CHECK: &str = "firewall.own";
    let Some(applied) = status.and_then(|status| status.firewall.as_ref()) else { return Vec::new() };
    let table = &applied.table;
    let mut fault = None;
    for attempt in 0..2 {
        if attempt > 0 {
            // The gateway may be about to put it back.
            tokio::time::sleep(RENEWAL_TIME).await;
        }
        fault = match Listing::read(table).await {
            Ok(None) => Some("is missing"),
            Ok(Some(found)) => {
                let is_known = applied.rules.as_ref() == Some(&found.digest());
                (!is_known).then_some("is not as the gateway has applied it")
            }
            Err(error) => return vec![Finding::unknown(CHECK, error.to_string(), "run this as root")],
        };
        if fault.is_none() {
            break;
        }
    }
    let renewals = applied.renewals;
    let advice = "the log says why, and which program did it; 'vpnd reload' applies the table again; have other programs leave it alone";
    vec![match fault {
        Some(fault) => Finding::problem(
            CHECK,
            format!("the gateway's firewall table inet {table} {fault}, so packets pass without its rules"),
            advice,
        ),
        None if renewals > 0 => Finding::warning(
            CHECK,
            format!(
                "another program has removed or changed the gateway's firewall table inet {table}, which was put back ({renewals} times)"
            ),
            advice,
        ),
        None => Finding::good(CHECK, format!("the gateway's firewall table inet {table} is in force")),
    }]
}

/// How full the kernel's table of connections is, and whether one client can fill it.
pub(super) fn connections(config: &ServerConfig) -> Vec<Finding> {
    let read = |name: &str| -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/sys/net/netfilter/nf_conntrack_{name}")).ok()?;
        text.trim().parse().ok()
    };
    match (config.nat.mode, read("count"), read("max")) {
        (NatMode::None, ..) | (_, None, _) | (_, _, None | Some(0)) => Vec::new(),
        (_, Some(count), Some(most)) => {
            let limit = config.limits.max_connections_per_address.map(|limit| u64::from(limit.get()));
            vec![judge_connections(count, most, limit)]
        }
    }
}

fn judge_connections(count: u64, most: u64, limit: Option<u64>) -> Finding {
    const CHECK: &str = "kernel.connections";
    let found = format!("{count} of {most} places in the kernel's table of connections are taken");
    let more =
        format!("sysctl -w net.netfilter.nf_conntrack_max={}, and in /etc/sysctl.d", most.saturating_mul(2));
    if count >= most {
        Finding::problem(CHECK, format!("{found}: new connections of clients fail"), more)
    } else if count >= most / 5 * 4 {
        Finding::warning(CHECK, found, more)
    } else if limit.is_none_or(|limit| limit > most / 4) {
        let limit = "max_connections_per_address in [limits]";
        Finding::warning(
            CHECK,
            format!(
                "{limit} lets few clients fill the kernel's table of connections, which has {most} places"
            ),
            format!("set it to {} or less; or {more}", most / 16),
        )
    } else {
        Finding::good(CHECK, found)
    }
}

async fn list(arguments: &[&str]) -> Result<String, ToolError> {
    let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    NFT.read(&arguments, "").await
}

/// The chains whose policy is to drop, but for ours.
fn closed(listed: &str) -> Vec<Closed> {
    let listed: Value = serde_json::from_str(listed).unwrap_or_default();
    let chains = listed["nftables"].as_array().into_iter().flatten();
    let closed = chains.filter_map(|entry| {
        let chain = &entry["chain"];
        let text = |key: &str| chain[key].as_str().map(str::to_owned);
        let hook = match chain["hook"].as_str()? {
            "input" => Hook::Input,
            "forward" => Hook::Forward,
            _ => return None,
        };
        let (family, table, name) = (text("family")?, text("table")?, text("name")?);
        let is_ours = table.starts_with("vpnd_") || table.starts_with("vpndguard_");
        (chain["policy"] == "drop" && !is_ours).then_some(Closed { family, table, name, hook })
    });
    closed.collect()
}

impl Closed {
    /// A table that names our port or tunnel was written with it in mind; reading its rules is its author's work.
    fn judge(&self, config: &ServerConfig, table: &str) -> Option<Finding> {
        const CHECK: &str = "firewall";
        let Self { family, table: of, name, hook } = self;
        let names = |word: &str| {
            let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
            table.split(|c: char| !is_part(c)).any(|part| part == word)
        };
        let rule = format!("nft insert rule {family} {of} {name}");
        match hook {
            Hook::Input => {
                let port = config.server.listen.port();
                (!names(&port.to_string())).then(|| {
                    Finding::warning(
                        CHECK,
                        format!("the chain {family} {of} {name} drops what it does not accept, and nothing there names UDP port {port}"),
                        format!("{rule} udp dport {port} accept, and in that firewall's own configuration"),
                    )
                })
            }
            Hook::Forward if config.nat.mode == NatMode::None => None,
            Hook::Forward => {
                let tunnel = &config.tunnel.name;
                (!names(tunnel)).then(|| {
                    Finding::problem(
                        CHECK,
                        format!("the chain {family} {of} {name} drops clients' packets: it accepts none of {tunnel}"),
                        format!(
                            "{rule} iifname {tunnel} accept; {rule} oifname {tunnel} ct state established,related accept; \
                             and in that firewall's own configuration"
                        ),
                    )
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::commands::doctor::Verdict;

    const LISTED: &str = r#"{"nftables": [{"metainfo": {"version": "1.0.6"}},
        {"chain": {"family": "ip", "table": "filter", "name": "FORWARD", "hook": "forward", "prio": 0, "policy": "drop"}},
        {"chain": {"family": "ip", "table": "filter", "name": "DOCKER"}},
        {"chain": {"family": "inet", "table": "site", "name": "in", "hook": "input", "prio": 0, "policy": "drop"}},
        {"chain": {"family": "inet", "table": "open", "name": "in", "hook": "input", "prio": 0, "policy": "accept"}},
        {"chain": {"family": "inet", "table": "vpnd_vpnd0", "name": "forward", "hook": "forward", "policy": "drop"}}]}"#;

    fn config(nat: &str) -> ServerConfig {
        let text = format!(
            "[tls]\ncertificate = 'c'\nkey = 'k'\n[tunnel]\npool_v4 = '10.86.0.0/16'\n[nat]\nmode = '{nat}'\n"
        );
        ServerConfig::parse(&text, "server.toml", Path::new("/etc/vpnd")).unwrap()
    }

    #[test]
    fn chains_of_others_that_drop_are_found() {
        let found = closed(LISTED);
        assert_eq!(found.iter().map(|chain| chain.name.as_str()).collect::<Vec<_>>(), ["FORWARD", "in"]);
        assert_eq!(closed("nothing of JSON"), []);
    }

    #[test]
    fn a_table_of_connections_that_fills_up_is_noticed_before_it_is_full() {
        for (count, most, limit, verdict) in [
            (0, 262_144, Some(4_096), Verdict::Good),
            (209_711, 262_144, Some(4_096), Verdict::Good),
            (209_712, 262_144, Some(4_096), Verdict::Warning),
            (262_144, 262_144, Some(4_096), Verdict::Problem),
            (0, 262_144, None, Verdict::Warning),
            (0, 8_192, Some(4_096), Verdict::Warning),
        ] {
            assert_eq!(judge_connections(count, most, limit).verdict, verdict, "{count} of {most}");
        }
    }

    #[test]
    fn one_that_names_the_tunnel_or_the_port_is_left_to_its_author() {
        let [forward, input] = <[Closed; 2]>::try_from(closed(LISTED)).unwrap();
        let config = config("nftables");
        let finding = forward
            .judge(&config, "table ip filter { chain FORWARD { iifname \"vpnd01\" accept } }")
            .unwrap();
        assert_eq!(finding.verdict, Verdict::Problem);
        assert!(finding.advice.unwrap().contains("nft insert rule ip filter FORWARD iifname vpnd0 accept"));
        assert_eq!(forward.judge(&config, "iifname \"vpnd0\" accept"), None);
        assert_eq!(forward.judge(&self::config("none"), ""), None, "then forwarding is the administrator's");
        assert_eq!(input.judge(&config, "udp dport 44330 accept").unwrap().verdict, Verdict::Warning);
        assert_eq!(input.judge(&config, "udp dport { 443, 4433 } accept"), None);
    }
}
