//! More UDP ports of a gateway, for networks that pass few.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::{Script, to_address};

/// UDP ports of this machine that lead to one at which it listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entrances {
    /// These ports.
    pub ports: Vec<u16>,
    /// Where they lead; an unspecified address is each of the machine's own.
    pub to: SocketAddr,
}

impl Entrances {
    /// The address stays what it was, so that answers come from there.
    pub(super) fn rules(&self, tunnel: &str, script: &mut Script) {
        let own = match self.to.ip().to_canonical() {
            any if any.is_unspecified() => "fib daddr type local".to_owned(),
            address => to_address(address),
        };
        let ports = self.ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
        let port = self.to.port();
        script.line("chain entrances {");
        script.line("type nat hook prerouting priority dstnat; policy accept;");
        script.line(&format!("iifname != \"{tunnel}\" {own} udp dport {{ {ports} }} dnat to :{port}"));
        script.line("}");
    }
}
