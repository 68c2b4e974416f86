//! The certificates that are ordered from an ACME authority: when each is to be ordered again, and
//! how its last order went.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Acme, ServerConfig};
use vpnd_pki::leaf::Leaf;
use vpnd_sys::clock::wall_s;
use vpnd_sys::own_file;

/// The owner of an ordered certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Gateway,
    Portal,
}

impl Owner {
    pub const ALL: [Self; 2] = [Self::Gateway, Self::Portal];
}

/// A certificate that is ordered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    pub owner: Owner,
    pub acme: Acme,
    pub names: Vec<String>,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// How the last order of a certificate went, for `vpnd doctor`.
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
    /// The file with the record of the last order.
    #[must_use]
    pub fn path(config: &ServerConfig, owner: Owner) -> PathBuf {
        config.server.state_dir.join(match owner {
            Owner::Gateway => "acme-outcome.json",
            Owner::Portal => "acme-outcome-portal.json",
        })
    }

    /// The record of the last order, if there was one.
    pub fn read(config: &ServerConfig, owner: Owner) -> Option<Self> {
        serde_json::from_slice(&own_file::read(&Self::path(config, owner), 1 << 16).ok()?).ok()
    }
}

impl ServerConfig {
    /// Whether the gateway's own certificate is ordered, rather than the portal's alone.
    #[must_use]
    pub fn orders_own(&self) -> bool {
        Ordered::of(self, Owner::Gateway).is_some()
    }
}

impl Ordered {
    /// The certificate of this owner, if it is ordered.
    #[must_use]
    pub fn of(config: &ServerConfig, owner: Owner) -> Option<Self> {
        let acme = config.acme.clone()?;
        let (names, certificate, key) = match owner {
            Owner::Gateway => {
                let names: Vec<String> = acme.names.iter().map(ToString::to_string).collect();
                (names, &config.tls.certificate, &config.tls.key)
            }
            Owner::Portal => {
                let portal = config.portal.as_ref()?;
                (vec![portal.ordered_name()?.to_owned()], &portal.certificate, &portal.key)
            }
        };
        let (certificate, key) = (certificate.clone(), key.clone());
        (!names.is_empty()).then_some(Self { owner, acme, names, certificate, key })
    }

    /// The reason that a certificate does not do at this time, seconds since 1970.
    pub fn lacks(&self, leaf: &Leaf, now_s: u64) -> Option<&'static str> {
        let has = |name: &str| leaf.names.iter().any(|have| have.eq_ignore_ascii_case(name));
        if !self.names.iter().all(|name| has(name)) {
            return Some("the one that is there lacks a name");
        }
        (now_s >= leaf.due_s()).then_some("the one that is there is due")
    }

    /// Why another certificate is wanted, if it is.
    ///
    /// # Errors
    /// If the one of the gateway that is there can't be read.
    pub fn wanted(&self, config: &ServerConfig) -> anyhow::Result<Option<&'static str>> {
        let pem = match (super::read(&self.certificate), self.owner) {
            (Ok(pem), _) => pem,
            (Err(_), Owner::Portal) => return Ok(Some("there is none yet")),
            (Err(error), Owner::Gateway) => return Err(error.into()),
        };
        let chain = vpnd_pki::leaf::chain(&pem);
        let Some(leaf) = chain.first().and_then(|leaf| Leaf::parse(leaf)) else {
            return Ok(Some("the one that is there can't be read"));
        };
        if let Some(reason) = self.lacks(&leaf, wall_s()) {
            return Ok(Some(reason));
        }
        Ok(match self.owner {
            Owner::Portal => (public_key(&self.key).as_ref() != Some(&leaf.public_key))
                .then_some("the key of the one that is there is another one or lost"),
            Owner::Gateway => {
                is_local(config, &chain, &leaf)?.then_some("the one that is there is of the local authority")
            }
        })
    }
}

/// Whether it is one of the local authority, which made it so that the gateway could start.
fn is_local(
    config: &ServerConfig,
    chain: &[rustls_pki_types::CertificateDer<'static>],
    leaf: &Leaf,
) -> anyhow::Result<bool> {
    let (Some(ca), Some(ca_key)) = config.tls.authority() else { return Ok(false) };
    let (Some(name), true) = (leaf.names.first(), ca_key.exists()) else { return Ok(false) };
    Ok(vpnd_pki::leaf::vouches(&super::read(ca)?, chain, name, leaf.not_after_s))
}

/// The public half of the key in a file (DER), if it can be used.
pub fn public_key(path: &Path) -> Option<Vec<u8>> {
    let pem = zeroize::Zeroizing::new(std::fs::read(path).ok()?);
    Some(vpnd_pki::tls::signing_key(&pem).ok()?.public_key()?.to_vec())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(names: &[&str], directory: &Path) -> ServerConfig {
        let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
        let text = format!(
            "[tls]\ncertificate = \"a\"\nkey = \"b\"\n[tunnel]\npool_v4 = \"10.86.0.0/16\"\n[acme]\n\
             directory = \"https://ca.example/d\"\nnames = [{}]\nterms_of_service_agreed = true\n\
             [portal]\nenabled = true\nacme = true\nurl = \"https://Pages.example\"\n",
            names.join(", ")
        );
        ServerConfig::parse(&text, "server.toml", directory).expect("it is good")
    }

    #[test]
    fn a_certificate_is_wanted_when_it_lacks_a_name_or_is_due() {
        let gateway = |names| {
            Ordered::of(&config(names, Path::new("/etc/vpnd")), Owner::Gateway).expect("it is ordered")
        };
        let names = ["VPN.uni.example".to_owned()];
        let leaf = Leaf { names: names.into(), not_before_s: 0, not_after_s: 900, public_key: Vec::new() };
        let one = gateway(&["vpn.uni.example"]);
        assert_eq!(one.lacks(&leaf, 599), None);
        assert!(one.lacks(&leaf, 600).is_some_and(|reason| reason.contains("due")));
        let more = gateway(&["vpn.uni.example", "vpn2.uni.example"]);
        assert!(more.lacks(&leaf, 0).is_some_and(|reason| reason.contains("lacks a name")));
    }

    #[test]
    fn the_portals_certificate_is_wanted_until_there_is_one_for_its_name_and_key() {
        let directory = tempfile::tempdir().expect("a directory");
        let config = config(&["vpn.uni.example"], directory.path());
        let ordered = Ordered::of(&config, Owner::Portal).expect("it is ordered");
        let wanted = || ordered.wanted(&config).expect("the portal's is none of the gateway's");
        assert_eq!(wanted(), Some("there is none yet"));
        let key = rcgen::KeyPair::generate().expect("a key");
        let issue = |name: &str| {
            let params = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("a name");
            let pem = params.self_signed(&key).expect("it signs").pem();
            std::fs::write(&ordered.certificate, pem).expect("the directory is ours");
        };
        issue("pages.example");
        assert!(wanted().is_some_and(|reason| reason.contains("lost")));
        std::fs::write(&ordered.key, key.serialize_pem()).expect("the directory is ours");
        assert_eq!(wanted(), None);
        issue("vpn.uni.example");
        assert!(wanted().is_some_and(|reason| reason.contains("lacks a name")));
        issue("pages.example");
        let other = rcgen::KeyPair::generate().expect("a key");
        std::fs::write(&ordered.key, other.serialize_pem()).expect("the directory is ours");
        assert!(wanted().is_some_and(|reason| reason.contains("another one")));
    }
}
