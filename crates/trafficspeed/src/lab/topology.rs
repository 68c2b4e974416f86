//! Where the measuring hosts are: on the VPN's own machines, or behind them, so that these are
//! routers.
//!
//! ```text
//!   direct:   client 1 ══ tunnel ══ gateway (or client 2)
//!   routers:  host 1 ── client 1 ══ tunnel ══ gateway ── campus host (or client 2 ── host 2)
//!             198.19.1.2  198.19.1.1             198.19.0.1   198.19.0.2
//! ```
//!
//! No system is configured for the networks behind its ends. The client's router gives packets of
//! its host its own address inside the tunnel (masquerade), and what comes out of a tunnel for an
//! end's address goes on to the host behind it (destination translation). nftables does both on the
//! device of the tunnel, in the same words for each system, plain routing among them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::link::{batch, offload_off, quiet};
use super::namespace::Namespace;
use super::{CLIENT_LINK, LabError, LinkSettings, run_tool};

/// A router's device of the link to its host.
const LAN: &str = "lan";

/// Which machines measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    /// The client's machine and the other end of the tunnel themselves.
    #[default]
    Direct,
    /// A host behind each of them; they forward and translate addresses.
    Routers,
}

impl Topology {
    /// Remarks on it for a reader of the figures.
    pub const fn method(self) -> Option<&'static str> {
        match self {
            Self::Direct => None,
            Self::Routers => Some(
                "topology: host - router - router - host, the VPN (or plain routing) between the routers; the kernels of both routers \
                 forward and translate addresses (nftables on the tunnel's device, connection tracking included) in the same way for \
                 every system, so that none is configured for the networks behind it; the hosts have links of the same MTU and offloads \
                 and learn the tunnel's MTU from the routers; forwarding is the kernel's interrupt time and no process's",
            ),
        }
    }
}

/// A host behind a router, and the link between them.
#[derive(Clone, Debug)]
pub struct Lan {
    router: Namespace,
    host: Namespace,
    /// 0 behind the gateway, otherwise the client's.
    number: u32,
}

/// Where others reach a router through the tunnel.
#[derive(Clone, Copy, Debug)]
pub struct TunnelEnd<'a> {
    pub device: &'a str,
    pub v4: Option<Ipv4Addr>,
    pub v6: Option<Ipv6Addr>,
}

impl Lan {
    /// Names the host behind `router` without making anything.
    pub(super) fn unmade(router: &Namespace, host: &str, number: u32) -> Self {
        Self { router: router.clone(), host: Namespace::unmade(host), number }
    }

    /// The measuring host.
    pub fn host(&self) -> &Namespace {
        &self.host
    }

    /// The host's own address of an IP version.
    pub fn host_address(&self, ip: u8) -> IpAddr {
        if ip == 4 { self.v4(2).into() } else { self.v6(2).into() }
    }

    // 198.19.0.0/16 and 2001:2:0:1000::/52 are apart from the links of the tunnels' ends and still
    // benchmark addresses.
    fn v4(&self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(198, 19, self.number as u8, last)
    }

    fn v6(&self, last: u16) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 2, 0, 0x1000 + self.number as u16, 0, 0, 0, last)
    }

    /// Links the host with its router, which forwards.
    pub(super) fn connect(&self, settings: LinkSettings) -> Result<(), LabError> {
        self.router.sysctl("net/ipv4/ip_forward", "1")?;
        self.router.sysctl("net/ipv6/conf/all/forwarding", "1")?;
        quiet(&self.host)?;
        let (mtu, peer) = (settings.mtu, self.host.name());
        let (router_v4, router_v6) = (self.v4(1), self.v6(1));
        batch(
            &self.router,
            &format!(
                "link add {LAN} mtu {mtu} type veth peer name {CLIENT_LINK} netns {peer} mtu {mtu}\n\
                 addr add {router_v4}/24 dev {LAN}\n\
                 addr add {router_v6}/64 dev {LAN} nodad\n\
                 link set {LAN} up\n"
            ),
        )?;
        if settings.sends_single_packets() {
            offload_off(&self.router, LAN)?;
            offload_off(&self.host, CLIENT_LINK)?;
        }
        batch(
            &self.host,
            &format!(
                "addr add {}/24 dev {CLIENT_LINK}\n\
                 addr add {}/64 dev {CLIENT_LINK} nodad\n\
                 link set {CLIENT_LINK} up\n\
                 route add default via {router_v4}\n\
                 route add ::/0 via {router_v6} dev {CLIENT_LINK}\n",
                self.v4(2),
                self.v6(2)
            ),
        )
    }

    /// Lets the host reach others through the tunnel that ends at `end`, and others reach it there.
    pub fn open(&self, end: TunnelEnd<'_>) -> Result<(), LabError> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.router.name(), "nft"]).arg(self.rules(end));
        run_tool(&mut command).map(drop)
    }

    fn rules(&self, TunnelEnd { device, v4, v6 }: TunnelEnd<'_>) -> String {
        let arrives = |family: &str, from: IpAddr, to: IpAddr| {
            format!(
                "iifname \"{device}\" {family} daddr {from} meta l4proto {{ tcp, udp }} dnat {family} to {to}; "
            )
        };
        let v4 = v4.map(|own| arrives("ip", own.into(), self.host_address(4))).unwrap_or_default();
        let v6 = v6.map(|own| arrives("ip6", own.into(), self.host_address(6))).unwrap_or_default();
        let leaves = |family: &str, network: String| {
            format!("oifname \"{device}\" {family} saddr {network} masquerade; ")
        };
        let (out_v4, out_v6) =
            (leaves("ip", format!("{}/24", self.v4(0))), leaves("ip6", format!("{}/64", self.v6(0))));
        format!(
            "table inet trafficspeed {{ \
             chain prerouting {{ type nat hook prerouting priority dstnat; policy accept; {v4}{v6}}}; \
             chain postrouting {{ type nat hook postrouting priority srcnat; policy accept; {out_v4}{out_v6}}}; }}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_hosts_packets_get_the_routers_address_and_only_at_the_tunnel() {
        let lan = Lan::unmade(&Namespace::unmade("r"), "h", 3);
        let end = TunnelEnd { device: "tun0", v4: Some(Ipv4Addr::new(10, 86, 0, 2)), v6: None };
        let rules = lan.rules(end);
        for expected in [
            "iifname \"tun0\" ip daddr 10.86.0.2 meta l4proto { tcp, udp } dnat ip to 198.19.3.2;",
            "oifname \"tun0\" ip saddr 198.19.3.0/24 masquerade;",
            "oifname \"tun0\" ip6 saddr 2001:2:0:1003::/64 masquerade;",
        ] {
            assert!(rules.contains(expected), "{expected}: {rules}");
        }
        assert!(!rules.contains("dnat ip6"), "there is no such address: {rules}");
    }

    #[test]
    fn hosts_and_tunnel_ends_share_no_network() {
        let lan = |number| Lan::unmade(&Namespace::unmade("r"), "h", number);
        assert_eq!(lan(0).host_address(4).to_string(), "198.19.0.2");
        assert_eq!(lan(254).host_address(6).to_string(), "2001:2:0:10fe::2");
        assert_ne!(lan(1).host_address(6), super::super::Lab::client_v6(1));
    }
}
