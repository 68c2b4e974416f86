//! Other firewalls of the machine. In nftables each table decides by itself: what vpnd's own table lets pass, another one drops.

use serde_json::Value;

use super::Finding;
use crate::config::{NatMode, ServerConfig};
use crate::sys::tool::{NFT, ToolError};

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
