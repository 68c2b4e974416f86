//! Whether the gateway's certificate is to be ordered again from an ACME authority, and how the
//! last order went.

use serde::{Deserialize, Serialize};

use crate::{Acme, ServerConfig};
use vpnd_pki::leaf::Leaf;
use vpnd_sys::clock::wall_s;
use vpnd_sys::own_file;

/// How the last order went, for `vpnd doctor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Seconds since 1970.
    pub at_s: u64,
    /// Why there is no certificate; absent after a success.
    pub failed: Option<String>,
    /// Time of the next order without a reload, seconds since 1970.
    pub next_s: Option<u64>,
}

impl Outcome {
    /// The record of the last order, if there was one.
    pub fn read(config: &ServerConfig) -> Option<Self> {
        serde_json::from_slice(&own_file::read(&config.acme_outcome(), 1 << 16).ok()?).ok()
    }
}

/// Why another certificate is wanted, if it is.
///
/// # Errors
/// If the one that is there can't be read.
pub fn wanted(config: &ServerConfig, acme: &Acme) -> anyhow::Result<Option<&'static str>> {
    let pem = super::read(&config.tls.certificate)?;
    let chain = vpnd_pki::leaf::chain(&pem);
    let Some(leaf) = chain.first().and_then(|leaf| Leaf::parse(leaf)) else {
        return Ok(Some("the one that is there can't be read"));
    };
    if let Some(reason) = lacks(&leaf, acme, wall_s()) {
        return Ok(Some(reason));
    }
    // One of the local authority, which made it so that the gateway could start.
    let (Some(ca), Some(ca_key)) = config.tls.authority() else { return Ok(None) };
    let (Some(name), true) = (leaf.names.first(), ca_key.exists()) else { return Ok(None) };
    let is_local = vpnd_pki::leaf::vouches(&super::read(ca)?, &chain, name, leaf.not_after_s);
    Ok(is_local.then_some("the one that is there is of the local authority"))
}

/// The reason that a certificate does not do at this time, seconds since 1970.
pub fn lacks(leaf: &Leaf, acme: &Acme, now_s: u64) -> Option<&'static str> {
    let has = |name: &str| leaf.names.iter().any(|have| have.eq_ignore_ascii_case(name));
    if !acme.names.iter().all(|name| has(&name.to_string())) {
        return Some("the one that is there lacks a name");
    }
    (now_s >= leaf.due_s()).then_some("the one that is there is due")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn acme(names: &[&str]) -> Acme {
        let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
        let text = format!(
            "[tls]\ncertificate = \"a\"\nkey = \"b\"\n[tunnel]\npool_v4 = \"10.86.0.0/16\"\n[acme]\n\
             directory = \"https://ca.example/d\"\nnames = [{}]\nterms_of_service_agreed = true\n",
            names.join(", ")
        );
        let config = ServerConfig::parse(&text, "server.toml", Path::new("/etc/vpnd")).expect("it is good");
        config.acme.expect("it is there")
    }

    #[test]
    fn a_certificate_is_wanted_when_it_lacks_a_name_or_is_due() {
        let names = ["VPN.uni.example".to_owned()];
        let leaf = Leaf { names: names.into(), not_before_s: 0, not_after_s: 900, public_key: Vec::new() };
        assert_eq!(lacks(&leaf, &acme(&["vpn.uni.example"]), 599), None);
        assert!(lacks(&leaf, &acme(&["vpn.uni.example"]), 600).is_some_and(|reason| reason.contains("due")));
        let more = acme(&["vpn.uni.example", "vpn2.uni.example"]);
        assert!(lacks(&leaf, &more, 0).is_some_and(|reason| reason.contains("lacks a name")));
    }
}
