//! A limit of connections for each inner address, so that no client fills the kernel's table of
//! connections, which all share.
//!
//! INVARIANT: the first packet of a connection counts, no other: counting looks at all connections
//! of an address. What other rules of the table drop does not count. The kernel forgets the counts
//! with a set's members, so they begin again when rules are applied.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::{Script, Version};

/// The connections that clients may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionLimit {
    /// Connections of one inner address.
    pub per_address: u32,
    /// Inner addresses of one protocol version that have connections at the same time. Those beyond
    /// have no limit.
    pub addresses: u32,
}

impl ConnectionLimit {
    /// Declares what the rules need.
    pub(super) fn sets(self, script: &mut Script) {
        for version in Version::BOTH {
            script.line(&format!("set {} {{", set(version)));
            script.line(&self.declaration(version));
            script.line("}");
        }
    }

    /// The rules for packets of the tunnel that nothing else drops.
    pub(super) fn rules(self, tunnel: &str, script: &mut Script) {
        for version in Version::BOTH {
            let (keyword, set, most) = (version.keyword(), set(version), self.per_address);
            script.line(&format!(
                "iifname \"{tunnel}\" ct state new ct status & confirmed == 0 \
                 add @{set} {{ {keyword} saddr ct count over {most} }} counter drop"
            ));
        }
    }

    fn declaration(self, version: Version) -> String {
        format!("type {}_addr; size {}; flags dynamic;", version.family(), self.addresses)
    }

    /// Commands in front of a refill of the table: earlier members would keep the earlier limit.
    pub(super) fn prepare(table: &str, text: &str) -> String {
        let mut script = String::new();
        for version in Version::BOTH {
            let set = set(version);
            let begins = format!("set {set} {{\n");
            let declared = text.split_once(&begins).and_then(|(_, rest)| rest.lines().next());
            let (declaration, then) = match declared {
                Some(declaration) => (declaration.to_owned(), "flush"),
                None => (Self { per_address: 0, addresses: 1 }.declaration(version), "delete"),
            };
            // Writing to a string can't fail.
            let _ = writeln!(
                script,
                "add set inet {table} {set} {{ {declaration} }}\n{then} set inet {table} {set}"
            );
        }
        script
    }
}

fn set(version: Version) -> String {
    format!("connections_{}", version.family())
}
