//! Forwarding and address translation of a gateway, guard and kill switch of a client, each one
//! nftables table.
//!
//! A table is refilled and removed as a whole in one transaction, and no rule of anybody else is
//! touched. A verdict here can only forbid: what another table drops stays dropped.
//!
//! INVARIANT: a packet passes the old rules of a chain or the new ones. The kernel switches the
//! rules within a chain at once, but hooks new chains in before it, and takes old ones out after
//! it: a packet that passed both at that moment would find one empty and then the other. So chains
//! stay, and only their rules are replaced.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::port_blocks::PortBlocks;
use crate::tool::{NFT, ToolError};
use port_blocks::{port_blocks, public_addresses};
use script::Script;

mod connections;
mod entrances;
mod guard;
mod input;
mod kill_switch;
mod port_blocks;
mod script;
mod trace;
mod watch;

pub use connections::ConnectionLimit;
pub use entrances::Entrances;
pub use guard::{GuardRules, MarkMatch, Returning};
pub use kill_switch::{KILL_SWITCH_TABLE, KillSwitchRules, LocalNetwork};
pub use trace::ChainPlace;
pub(crate) use trace::TraceWatch;
pub use watch::TableWatch;

/// Which way packets of clients leave the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outgoing {
    /// By any interface but the tunnel, by the routing table.
    AnyButTunnel,
    /// By this interface only; what would leave by another one is dropped.
    Interface(String),
}

/// Treatment of packets of one protocol version that neither come from the tunnel nor go there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transit {
    /// The machine forwarded before vpnd did: other rules than ours decide.
    Untouched,
    /// vpnd has switched forwarding on, for its tunnel only: they are dropped, except those that
    /// arrive by one of these interfaces, which forwarded before.
    Dropped { except: Vec<String> },
}

/// The gateway's own services that packets from the tunnel reach, at any of its addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Services {
    /// Everything: other rules than ours decide.
    All,
    /// Ping, answers to what the gateway itself has begun, and DNS at these addresses.
    Dns(Vec<IpAddr>),
}

/// Firewall rules of a gateway between its tunnel and the campus.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayRules {
    /// Name of the TUN device.
    pub tunnel: String,
    /// The clients' address pools; packets from the tunnel with another source are dropped.
    pub pools: Vec<IpNet>,
    /// Give packets of clients the gateway's address (`true`), or route the pools as they are
    /// (`false`).
    pub masquerade: bool,
    /// Give packets of IPv4 ports of public addresses in place of the gateway's address, and leave
    /// those of IPv6 as they are.
    pub blocks: Option<PortBlocks>,
    /// Which way packets of clients leave.
    pub outgoing: Outgoing,
    /// Let hosts of these networks open connections to clients; otherwise only answers pass.
    pub inbound: bool,
    /// Let packets within connections of TCP pass whose beginning was at another gateway.
    #[serde(default)]
    pub resumed: bool,
    /// The networks behind the gateway that are pushed to clients.
    pub campus: Vec<IpNet>,
    /// The gateway's own inner addresses.
    pub own: Vec<IpAddr>,
    /// The gateway's own services that clients reach.
    pub services: Services,
    /// Where its web pages are served, which clients reach in any case; an unspecified address is
    /// each of the machine's own.
    #[serde(default)]
    pub pages: Option<Box<SocketAddr>>,
    /// Other packets of IPv4.
    pub transit_v4: Transit,
    /// Other packets of IPv6.
    pub transit_v6: Transit,
    /// Connections of clients; `None` is without a limit.
    pub connections: Option<ConnectionLimit>,
    /// More UDP ports that lead to the gateway's own.
    pub entrances: Option<Box<Entrances>>,
    /// The gateway's own UDP port.
    #[serde(default)]
    pub outer_port: Option<u16>,
}

#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// The name means something else to nftables.
    #[error(
        "the interface name `{0}` can't be used in firewall rules: use letters, digits, `-`, `_` and `.`"
    )]
    BadName(String),
    #[error("the firewall rules of vpnd can't be set: {0}")]
    Tool(#[from] ToolError),
    /// The program's output is no list of rules.
    #[error("'nft -j list table' has no list of rules; is nftables without support for JSON?")]
    Listing,
}

impl GatewayRules {
    /// Puts the rules in force, in place of those of an earlier run.
    ///
    /// # Errors
    /// [`NftError`]; nothing has changed then.
    pub async fn apply(&self) -> Result<(), NftError> {
        self.put(async |script: Script| script.run().await).await
    }

    /// Puts the rules in force in a table that is made again, without what others have added to the
    /// one that was there.
    ///
    /// # Errors
    /// [`NftError`]; nothing has changed then.
    pub async fn apply_to_new_table(&self) -> Result<(), NftError> {
        self.put(async |Script { table, text }: Script| run(&(remove_script(&table) + &text)).await).await
    }

    /// Puts the rules in force by `put`, those that the kernel takes.
    async fn put(&self, put: impl AsyncFn(Script) -> Result<(), NftError>) -> Result<(), NftError> {
        match put(self.script(true)?).await {
            Err(NftError::Tool(ToolError::Refused { .. })) => {
                put(self.script(false)?).await?;
                tracing::warn!(
                    "this kernel has no times of connections by firewall rules (CONFIG_NF_CONNTRACK_TIMEOUT): a flood \
                     of forged senders can fill its table of connections"
                );
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Removes the table; does nothing if there is none.
    pub async fn remove(&self) -> Result<(), NftError> {
        run(&remove_script(&table_name(&self.tunnel)?)).await
    }

    /// Whether the table in force records that vpnd has switched on forwarding of IPv4 and of IPv6.
    ///
    /// # Errors
    /// [`NftError`]; that there is no table is none.
    pub async fn has_switched_forwarding_on(tunnel: &str) -> Result<[bool; 2], NftError> {
        let table = table_name(tunnel)?;
        let mut switched = [false; 2];
        for (version, switched) in Version::BOTH.into_iter().zip(&mut switched) {
            let words = ["list", "chain", "inet", &table, &version.switched_chain()];
            match NFT.run(&words.map(str::to_owned), "").await {
                Ok(()) => *switched = true,
                // It fails for a chain or table that does not exist.
                Err(ToolError::Refused { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(switched)
    }

    /// Checks that the rules are valid, so that they can be set and removed.
    ///
    /// # Errors
    /// [`NftError::BadName`].
    pub fn check(&self) -> Result<(), NftError> {
        self.script(true).map(drop)
    }

    /// The rules as they are to be; `limits_floods` takes a kernel with times of connections by
    /// rules.
    fn script(&self, limits_floods: bool) -> Result<Script, NftError> {
        let mut script = Script::of_table(&table_name(&self.tunnel)?);
        if let Some(limit) = self.connections {
            limit.sets(&mut script);
        }
        self.arrivals(&mut script);
        if let Some(entrances) = &self.entrances {
            entrances.rules(&self.tunnel, &mut script);
        }
        self.input(limits_floods, &mut script);
        self.forward(&mut script)?;
        if self.masquerade {
            if let Some(blocks) = &self.blocks {
                port_blocks(blocks, &mut script);
            }
            self.postrouting(&mut script)?;
        }
        script.line("}");
        Ok(script)
    }

    /// Addresses of the tunnel are good in the tunnel only, whatever other interfaces claim. This
    /// comes before connection tracking: answers to masqueraded packets still have the gateway's
    /// own address here.
    fn arrivals(&self, script: &mut Script) {
        let elsewhere = format!("iifname != {{ \"lo\", \"{}\" }}", self.tunnel);
        script.line("chain arrivals {");
        script.line("type filter hook prerouting priority raw; policy accept;");
        for version in Version::BOTH {
            let keyword = version.keyword();
            if let Some(pools) = self.set(version) {
                script.line(&format!("{elsewhere} {keyword} saddr {pools} drop"));
                if self.translates(version) {
                    script.line(&format!("{elsewhere} {keyword} daddr {pools} drop"));
                }
            }
            if let Some(own) = host_set(&self.own, version) {
                script.line(&format!("{elsewhere} {keyword} daddr {own} drop"));
            }
        }
        script.line("}");
    }

    fn forward(&self, script: &mut Script) -> Result<(), NftError> {
        let tunnel = &self.tunnel;
        let mut switched = Vec::new();
        script.line("chain forward {");
        script.line("type filter hook forward priority filter; policy accept;");
        // Clients reach each other inside the daemon alone, and nothing link-local (of IPv6 the
        // kernel forwards none): clouds give secrets there. Those that do it elsewhere:
        // SECURITY.md.
        script.line(&format!("iifname \"{tunnel}\" oifname \"{tunnel}\" drop"));
        script.line(&format!("iifname \"{tunnel}\" ip daddr 169.254.0.0/16 drop"));
        for version in Version::BOTH {
            let (keyword, family) = (version.keyword(), version.family());
            match self.set(version) {
                Some(pools) => {
                    script.line(&format!("iifname \"{tunnel}\" {keyword} saddr != {pools} drop"));
                    script.line(&format!("oifname \"{tunnel}\" {keyword} daddr != {pools} drop"));
                    script.line(&format!("oifname != \"{tunnel}\" {keyword} daddr {pools} drop"));
                }
                None => {
                    script.line(&format!("iifname \"{tunnel}\" meta nfproto {family} drop"));
                    script.line(&format!("oifname \"{tunnel}\" meta nfproto {family} drop"));
                }
            }
        }
        if let Outgoing::Interface(name) = &self.outgoing {
            let name = checked(name)?;
            script.line(&format!("iifname \"{tunnel}\" oifname != \"{name}\" drop"));
            script.line(&format!("oifname \"{tunnel}\" iifname != \"{name}\" drop"));
        }
        self.forward_of_blocks(script);
        if self.inbound {
            let begins = format!("oifname \"{tunnel}\" ct state new");
            for version in Version::BOTH {
                let campus = match networks(&self.campus, version) {
                    Some(campus) => format!("{} saddr != {campus}", version.keyword()),
                    None => format!("meta nfproto {}", version.family()),
                };
                script.line(&format!("{begins} {campus} drop"));
            }
            // A packet that begins a connection must come from where answers would go: its source
            // is not forged.
            script.line(&format!("{begins} fib saddr . iif oif missing drop"));
            script.line(&format!("oifname \"{tunnel}\" ct state invalid drop"));
        } else if self.resumed {
            // A packet that begins a connection has no ACK. The kernel does not know connections of
            // another gateway; policy, in the daemon, decides about them.
            for begins in ["invalid", "new meta l4proto != tcp", "new tcp flags & (syn | ack) != ack"] {
                script.line(&format!("oifname \"{tunnel}\" ct state {begins} drop"));
            }
        } else {
            script.line(&format!("oifname \"{tunnel}\" ct state new,invalid drop"));
        }
        for (version, transit) in Version::BOTH.into_iter().zip([&self.transit_v4, &self.transit_v6]) {
            if let Transit::Dropped { except } = transit {
                switched.push(version.switched_chain());
                let mut from = vec![format!("\"{tunnel}\"")];
                // A name that can't be written here stays without its forwarding.
                from.extend(except.iter().filter_map(|name| Some(format!("\"{}\"", checked(name).ok()?))));
                let (family, from) = (version.family(), from.join(", "));
                script.line(&format!(
                    "meta nfproto {family} iifname != {{ {from} }} oifname != \"{tunnel}\" drop"
                ));
            }
        }
        if let Some(limit) = self.connections {
            limit.rules(tunnel, script);
        }
        script.line("}");
        // Nothing passes through these: who forwards since when is known as long as the rules are,
        // whatever becomes of files.
        for chain in switched {
            script.line(&format!("chain {chain} {{"));
            script.line("}");
        }
        Ok(())
    }

    /// Rules about what is not forwarded where clients have blocks of ports.
    fn forward_of_blocks(&self, script: &mut Script) {
        let Some(blocks) = &self.blocks else { return };
        // Other protocols have no port by which their sender could be found.
        script.line(&format!(
            "iifname \"{}\" meta nfproto ipv4 meta l4proto != {{ tcp, udp, icmp }} drop",
            self.tunnel
        ));
        // Answers have a client's address here. Other packets would be sent back to the router they
        // came from, in a loop.
        let addresses: Vec<IpAddr> = blocks.addresses.iter().copied().map(Into::into).collect();
        if let Some(addresses) = host_set(&addresses, Version::V4) {
            script.line(&format!("ip daddr {addresses} drop"));
        }
    }

    fn postrouting(&self, script: &mut Script) -> Result<(), NftError> {
        let leaves = match &self.outgoing {
            Outgoing::AnyButTunnel => format!("oifname != \"{}\"", self.tunnel),
            Outgoing::Interface(name) => format!("oifname \"{}\"", checked(name)?),
        };
        script.line("chain postrouting {");
        script.line("type nat hook postrouting priority srcnat; policy accept;");
        for version in Version::BOTH.into_iter().filter(|version| self.translates(*version)) {
            let Some(pools) = self.set(version) else { continue };
            match &self.blocks {
                Some(blocks) => {
                    script.line(&format!(
                        "{leaves} meta l4proto {{ tcp, udp }} snat ip to ip saddr map @port_blocks"
                    ));
                    let addresses = public_addresses(blocks);
                    script.line(&format!("{leaves} ip protocol icmp snat ip to ip saddr map {addresses}"));
                }
                None => script.line(&format!("{leaves} {} saddr {pools} masquerade", version.keyword())),
            }
        }
        script.line("}");
        Ok(())
    }

    /// Whether clients' packets of this version get another source address.
    fn translates(&self, version: Version) -> bool {
        self.masquerade && (self.blocks.is_none() || matches!(version, Version::V4))
    }

    /// The pools of one protocol version as an anonymous set.
    fn set(&self, version: Version) -> Option<String> {
        networks(&self.pools, version)
    }
}

/// The networks of one protocol version as an anonymous set; `None` if there is none.
fn networks(networks: &[IpNet], version: Version) -> Option<String> {
    let networks = networks.iter().filter(|network| version.has(network.addr()));
    set(IpNet::aggregate(&networks.map(IpNet::trunc).collect()))
}

/// One version of the Internet protocol, as nftables names it.
#[derive(Clone, Copy)]
enum Version {
    V4,
    V6,
}

impl Version {
    const BOTH: [Self; 2] = [Self::V4, Self::V6];

    fn has(self, address: IpAddr) -> bool {
        address.is_ipv4() == matches!(self, Self::V4)
    }

    /// Before an address.
    fn keyword(self) -> &'static str {
        match self {
            Self::V4 => "ip",
            Self::V6 => "ip6",
        }
    }

    /// The chain whose presence records that vpnd has switched forwarding on.
    fn switched_chain(self) -> String {
        format!("{}_forwarded_for_vpnd_alone", self.family())
    }

    /// After `meta nfproto`.
    fn family(self) -> &'static str {
        match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
        }
    }
}

/// The condition that a packet is for this address.
fn to_address(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => format!("ip daddr {address}"),
        IpAddr::V6(address) => format!("ip6 daddr {address}"),
    }
}

/// The hosts of one protocol version as an anonymous set; `None` if there is none.
fn host_set(hosts: &[IpAddr], version: Version) -> Option<String> {
    let mut hosts: Vec<IpAddr> = hosts.iter().copied().filter(|host| version.has(*host)).collect();
    hosts.sort();
    hosts.dedup();
    set(hosts)
}

fn set<T: ToString>(members: Vec<T>) -> Option<String> {
    let list: Vec<String> = members.iter().map(ToString::to_string).collect();
    (!list.is_empty()).then(|| format!("{{ {} }}", list.join(", ")))
}

/// All chains that a table of ours may have.
pub(super) const CHAINS: [&str; 9] = [
    "arrivals",
    "departures",
    "entrances",
    "input",
    "forward",
    "postrouting",
    "questions",
    "ipv4_forwarded_for_vpnd_alone",
    "ipv6_forwarded_for_vpnd_alone",
];

async fn run(script: &str) -> Result<(), NftError> {
    Ok(NFT.run(&["-f".to_owned(), "-".to_owned()], script).await?)
}

/// Deletes the table whether it is there or not.
fn remove_script(table: &str) -> String {
    format!("add table inet {table}\ndelete table inet {table}\n")
}

/// The name of a gateway's table: one for each tunnel, so that several daemons don't meet.
///
/// # Errors
/// [`NftError::BadName`].
pub fn table_name(tunnel: &str) -> Result<String, NftError> {
    Ok(format!("vpnd_{}", plain(tunnel)?))
}

/// The name of a tunnel as a part of a table's name.
fn plain(tunnel: &str) -> Result<String, NftError> {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    Ok(checked(tunnel)?.chars().map(plain).collect())
}

/// Refuses names that would end the quotation or match other interfaces (`*`).
fn checked(name: &str) -> Result<&str, NftError> {
    let usable = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let good = !name.is_empty() && name.len() <= 15 && name.chars().all(usable);
    if good { Ok(name) } else { Err(NftError::BadName(name.to_owned())) }
}

#[cfg(test)]
mod tests;
