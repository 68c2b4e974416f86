//! A table as the kernel has it, without what packets change in it: two listings are equal if the
//! rules are.
//!
//! It only reads, so it is for every process that may.
//!
//! INVARIANT: the order of rules in a chain counts, that of chains does not, since a chain that is
//! made again comes last.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::nft::{CHAINS, NftError};
use crate::tool::{NFT, ToolError};

/// The table of a gateway at one moment.
#[derive(Debug, Clone)]
pub struct Listing {
    text: String,
    has_other_chains: bool,
    dropped: u64,
}

impl PartialEq for Listing {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Listing {
    /// Reads the table from the kernel; `None` if there is none.
    ///
    /// # Errors
    /// [`NftError`] if it can't be read.
    pub async fn read(table: &str) -> Result<Option<Self>, NftError> {
        Self::read_of("inet", table).await
    }

    /// Reads a table of ARP's own family.
    ///
    /// # Errors
    /// Those of [`Listing::read`].
    pub async fn read_arp(table: &str) -> Result<Option<Self>, NftError> {
        Self::read_of("arp", table).await
    }

    async fn read_of(family: &str, table: &str) -> Result<Option<Self>, NftError> {
        let arguments = ["-j", "list", "table", family, table].map(str::to_owned);
        match NFT.read(&arguments, "").await {
            Ok(json) => Ok(Some(Self::parse(&json)?)),
            Err(ToolError::Refused { message, .. }) if message.contains("No such file or directory") => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn parse(json: &str) -> Result<Self, NftError> {
        let listed: Value = serde_json::from_str(json).map_err(|_| NftError::Listing)?;
        let (mut entries, mut has_other_chains, mut dropped) = (Vec::new(), false, 0_u64);
        for entry in listed["nftables"].as_array().ok_or(NftError::Listing)? {
            let Some((kind, value)) = entry.as_object().and_then(|entry| entry.iter().next()) else {
                continue;
            };
            if kind == "metainfo" {
                continue;
            }
            let mut value = value.clone();
            dropped = dropped.saturating_add(strip(kind, &mut value));
            let chain = value["chain"].as_str().or_else(|| value["name"].as_str()).unwrap_or_default();
            has_other_chains |= kind == "chain" && !CHAINS.contains(&chain);
            entries.push((format!("{kind} {chain}"), value.to_string()));
        }
        // Rules of one chain keep their order.
        entries.sort_by(|(one, _): &(String, String), (other, _)| one.cmp(other));
        let lines: Vec<String> = entries.into_iter().map(|(key, value)| format!("{key} {value}")).collect();
        Ok(Self { text: lines.join("\n"), has_other_chains, dropped })
    }

    /// Whether there are chains that no table of vpnd has.
    pub fn has_other_chains(&self) -> bool {
        self.has_other_chains
    }

    /// Packets that rules with a counter have dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// A short name of the content.
    pub fn digest(&self) -> String {
        Sha256::digest(&self.text).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Removes handles, counts and what packets have added to sets; with the packets that were counted.
fn strip(kind: &str, value: &mut Value) -> u64 {
    let mut packets = 0_u64;
    if let Some(fields) = value.as_object_mut() {
        fields.remove("handle");
        if kind == "set" {
            fields.remove("elem");
        }
    }
    if let Some(statements) = value["expr"].as_array_mut() {
        for statement in statements {
            if let Some(counter) = statement.get_mut("counter") {
                packets = packets.saturating_add(counter["packets"].as_u64().unwrap_or_default());
                *counter = Value::Null;
            }
        }
    }
    packets
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::testing::{in_namespace_async, run};

    #[test]
    fn rules_count_and_handles_counters_and_the_order_of_chains_do_not() {
        in_namespace_async(async || {
            let set = "set s { type ipv4_addr; size 9; flags dynamic; }";
            let one = "chain one { type filter hook output priority 0; ip daddr 192.0.2.1 drop; update @s { ip daddr } counter accept; }";
            let two = "chain two { accept; }";
            let install = |chains: &[&str]| {
                run("nft", &["add table inet t; delete table inet t"]);
                run("nft", &[&format!("table inet t {{\n{set}\n{}\n}}", chains.join("\n"))]);
            };
            assert_eq!(Listing::read("t").await.unwrap(), None);
            install(&[one, two]);
            let first = Listing::read("t").await.unwrap().unwrap();
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.send_to(b"hello", socket.local_addr().unwrap()).unwrap();
            assert!(
                run("nft", &["list", "table", "inet", "t"]).contains("127.0.0.1"),
                "it is in the set now"
            );
            assert_eq!(Listing::read("t").await.unwrap().unwrap(), first);
            install(&[two, one]);
            assert_eq!(Listing::read("t").await.unwrap().unwrap(), first);
            assert_eq!(Listing::read("t").await.unwrap().unwrap().digest(), first.digest());
            for change in [
                "insert rule inet t one accept",
                "add rule inet t two drop",
                "flush chain inet t two",
                "delete chain inet t two",
                "flush table inet t",
            ] {
                install(&[one, two]);
                run("nft", &[change]);
                let now = Listing::read("t").await.unwrap().unwrap();
                assert!(now != first && now.digest() != first.digest(), "{change}");
            }
        });
    }
}
