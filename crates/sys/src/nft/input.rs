//! The input chain: floods from outside, and the services of the gateway for its clients.

use std::net::IpAddr;

use super::{GatewayRules, Script, Services, Version, host_set, to_address};

/// New senders and connections each second beyond which the kernel remembers each for some seconds
/// only, unless it answers: a flood of forged senders would fill its table, and end new connections
/// of clients. Below that its own times count, by which a client that is silent is still reached.
const MANY: &str = "limit rate over 500/second burst 500 packets";
/// Times by protocol. The kernel keeps what a name means for as long as the table is there.
const FLOOD_TIMES: [(&str, &str, &str); 2] =
    [("udp", "udp_2s", "unreplied : 2"), ("tcp", "tcp_5s", "syn_sent : 5, syn_recv : 5")];

impl GatewayRules {
    pub(super) fn input(&self, limits_floods: bool, script: &mut Script) {
        let tunnel = &self.tunnel;
        let limits = if limits_floods { &FLOOD_TIMES[..] } else { &[] };
        for (protocol, name, times) in limits {
            script.line(&format!("ct timeout {name} {{ protocol {protocol}; policy = {{ {times} }}; }}"));
        }
        script.line("chain input {");
        script.line("type filter hook input priority filter; policy accept;");
        for (protocol, name, _) in limits {
            let port = if *protocol == "udp" {
                self.outer_port
            } else {
                self.pages.as_ref().map(|pages| pages.port())
            };
            if let Some(port) = port {
                script
                    .line(&format!("ct state new {protocol} dport {port} {MANY} ct timeout set \"{name}\""));
            }
        }
        script.line(&format!("iifname != \"{tunnel}\" accept"));
        script.line("ct state established,related accept");
        if let Some(limit) = self.connections {
            limit.rules(tunnel, script);
        }
        if let Services::Dns(servers) = &self.services {
            self.services(servers, script);
        }
        script.line("}");
    }

    /// Rules for the gateway's own services.
    fn services(&self, name_servers: &[IpAddr], script: &mut Script) {
        script.line("icmp type echo-request accept");
        script.line("icmpv6 type echo-request accept");
        for version in Version::BOTH {
            if let Some(servers) = host_set(name_servers, version) {
                let keyword = version.keyword();
                script.line(&format!(
                    "{keyword} daddr {servers} meta l4proto {{ tcp, udp }} th dport 53 accept"
                ));
            }
        }
        if let Some(pages) = &self.pages {
            let port = pages.port();
            let at = match pages.ip().to_canonical() {
                IpAddr::V4(any) if any.is_unspecified() => "meta nfproto ipv4 ".to_owned(),
                IpAddr::V6(any) if any.is_unspecified() => String::new(),
                address => format!("{} ", to_address(address)),
            };
            script.line(&format!("{at}tcp dport {port} accept"));
        }
        script.line("drop");
    }
}
