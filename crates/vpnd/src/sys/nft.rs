//! Forwarding and address translation of a gateway, as one nftables table of its own.
//!
//! The table is replaced and removed as a whole in one transaction, and no rule of anybody else is touched. A
//! verdict here can only forbid: what another table drops stays dropped.

use std::fmt::Write;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::sys::tool::{Tool, ToolError};

const NFT: Tool = Tool { program: "nft", package: "nftables" };

/// Which way packets of clients leave the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outgoing {
    /// By any interface but the tunnel, as the routes say.
    AnyButTunnel,
    /// By this interface only; what would leave by another one is dropped.
    Interface(String),
}

/// What a gateway lets through between its tunnel and the campus.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayRules {
    /// Name of the TUN device.
    pub tunnel: String,
    /// The clients' address pools; packets from the tunnel with another source are dropped.
    pub pools: Vec<IpNet>,
    /// Give packets of clients the gateway's address (`true`), or route the pools as they are (`false`).
    pub masquerade: bool,
    /// Which way packets of clients leave.
    pub outgoing: Outgoing,
    /// Let the campus open connections to clients; otherwise only answers pass.
    pub inbound: bool,
}

/// Why the rules are not in force.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// The name means something else to nftables.
    #[error(
        "the interface name `{0}` can't be used in firewall rules: use letters, digits, `-`, `_` and `.`"
    )]
    BadName(String),
    /// `nft` did not do it.
    #[error("the firewall rules of the gateway can't be set: {0}")]
    Tool(#[from] ToolError),
}

impl GatewayRules {
    /// Puts the rules in force, in place of those of an earlier run.
    ///
    /// # Errors
    /// [`NftError`]; nothing has changed then.
    pub async fn apply(&self) -> Result<(), NftError> {
        run(&self.script()?).await
    }

    /// Removes the table; does nothing if there is none.
    ///
    /// # Errors
    /// [`NftError`].
    pub async fn remove(&self) -> Result<(), NftError> {
        run(&remove_script(&table_name(&self.tunnel)?)).await
    }

    /// The transaction that replaces the table.
    fn script(&self) -> Result<String, NftError> {
        let table = table_name(&self.tunnel)?;
        let tunnel = &self.tunnel;
        let leaves = match &self.outgoing {
            Outgoing::AnyButTunnel => format!("oifname != \"{tunnel}\""),
            Outgoing::Interface(name) => format!("oifname \"{}\"", checked(name)?),
        };
        let mut script = remove_script(&table);
        let mut line = |text: String| {
            // Writing to a string can't fail.
            let _ = writeln!(script, "{text}");
        };
        line(format!("table inet {table} {{"));
        line("chain forward {".to_owned());
        line("type filter hook forward priority filter; policy accept;".to_owned());
        // Clients reach each other inside the daemon, under its policy, and never through the kernel.
        line(format!("iifname \"{tunnel}\" oifname \"{tunnel}\" drop"));
        for (family, keyword) in [(true, "ip"), (false, "ip6")] {
            let version = if family { "ipv4" } else { "ipv6" };
            match self.set(family) {
                Some(set) => line(format!("iifname \"{tunnel}\" {keyword} saddr != {set} drop")),
                None => line(format!("iifname \"{tunnel}\" meta nfproto {version} drop")),
            }
        }
        if let Outgoing::Interface(name) = &self.outgoing {
            line(format!("iifname \"{tunnel}\" oifname != \"{name}\" drop"));
        }
        if !self.inbound {
            line(format!("oifname \"{tunnel}\" ct state new,invalid drop"));
        }
        line("}".to_owned());
        if self.masquerade {
            line("chain postrouting {".to_owned());
            line("type nat hook postrouting priority srcnat; policy accept;".to_owned());
            for (family, keyword) in [(true, "ip"), (false, "ip6")] {
                if let Some(set) = self.set(family) {
                    line(format!("{leaves} {keyword} saddr {set} masquerade"));
                }
            }
            line("}".to_owned());
        }
        line("}".to_owned());
        Ok(script)
    }

    /// The pools of one protocol version as an anonymous set.
    fn set(&self, v4: bool) -> Option<String> {
        let pools = self.pools.iter().filter(|pool| pool.addr().is_ipv4() == v4);
        let pools = IpNet::aggregate(&pools.map(IpNet::trunc).collect());
        let list: Vec<String> = pools.iter().map(ToString::to_string).collect();
        (!list.is_empty()).then(|| format!("{{ {} }}", list.join(", ")))
    }
}

async fn run(script: &str) -> Result<(), NftError> {
    Ok(NFT.run(&["-f".to_owned(), "-".to_owned()], script).await?)
}

/// Deletes the table whether it is there or not.
fn remove_script(table: &str) -> String {
    format!("add table inet {table}\ndelete table inet {table}\n")
}

/// The name of our table: one for each tunnel, so that several daemons don't meet.
fn table_name(tunnel: &str) -> Result<String, NftError> {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    Ok(format!("vpnd_{}", checked(tunnel)?.chars().map(plain).collect::<String>()))
}

/// Refuses names that would end the quotation or match other interfaces (`*`).
fn checked(name: &str) -> Result<&str, NftError> {
    let usable = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let good = !name.is_empty() && name.len() <= 15 && name.chars().all(usable);
    if good { Ok(name) } else { Err(NftError::BadName(name.to_owned())) }
}

#[cfg(test)]
mod tests;
