//! The guard of a client: its inner addresses are reached through the tunnel and from nowhere else.
//!
//! Linux takes packets for any of its addresses from any interface. A neighbour on the same Wi-Fi
//! could so find out the inner address, see that a connection exists, and slip packets into it
//! (CVE-2019-14899).
//!
//! With source checks the kernel (`rp_filter`) or a rule of a firewall (`fib saddr`, `rpfilter`)
//! looks up the route back to each source, and a full tunnel is the route to everything: the
//! tunnel's own datagrams would be dropped, whose way back is found by their mark alone. So
//! packets to the tunnel's own sockets get the mark on arrival that these give to what they send,
//! and so do answers to the user that looks up names. Which ports and addresses the sockets have
//! does not matter. A firewall may come at any time, so this is done whether one checks or not. The
//! kernel's check holds for the senders of ARP requests, too: where the local network's addresses
//! lead into the tunnel, the kernel would not answer its router, which then finds the machine no
//! more. ARP concerns links alone, so all of it gets the mark that passes over every tunnel, in a
//! table of ARP's own family.
//!
//! INVARIANT: packets from an inner address leave by the tunnel or not at all, whatever becomes of
//! routes and rules. INVARIANT: datagrams that carry the tunnel never leave by it. The tunnel's
//! rules pass over them, but where the system's own routes lead into the tunnel they would go round
//! and round, each time a little longer. So they are dropped at its device. INVARIANT: while a full
//! tunnel's name servers are in force, this machine asks no other ones. A resolver that has domains
//! of the local network's DHCP asks that network's servers for them, bound to its interface, where
//! no rule or route leads elsewhere.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{NftError, Script, Version, host_set, plain, remove_script, run};
use crate::change::Layer;
use crate::netlink::NOWHERE;
use crate::tool::ToolError;

/// DNS, and DNS over TLS or QUIC.
pub(super) const NAME_PORTS: &str = "{ 53, 853 }";

/// The addresses that packets from outside the tunnel don't reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardRules {
    /// Name of the TUN device.
    pub tunnel: String,
    pub addresses: Vec<IpAddr>,
    /// The datagrams whose route back is outside the tunnel; `None` if nothing leads into it.
    pub returning: Option<Returning>,
    /// The datagrams that never leave by the tunnel: its own, and those of the tunnels that it may
    /// go through.
    pub excluded: Option<MarkMatch>,
    /// Whether this machine's questions for names leave by the tunnel or not at all.
    #[serde(default)]
    pub closes_names: bool,
}

/// Packets by their mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkMatch {
    /// The value of the bits that count.
    pub mark: u32,
    /// The bits that count.
    pub mask: u32,
}

/// Datagrams that arrive for the tunnel itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Returning {
    /// The mark of the tunnel's own sockets.
    pub mark: u32,
    /// The user that looks up names.
    pub lookups: Option<u32>,
    /// Whether the kernel itself checks sources, of ARP requests, too.
    pub arp: bool,
}

impl GuardRules {
    /// Puts the guard in force, in place of an earlier one of this tunnel.
    ///
    /// # Errors
    /// [`NftError`]; nothing has changed then.
    pub async fn apply(&self) -> Result<(), NftError> {
        self.apply_to_packets().await?;
        match run(&self.arp_script()?).await {
            // Without such tables in the kernel there is none to remove, and without this one only
            // a router's questions fail.
            Err(NftError::Tool(ToolError::Refused { message, .. })) => {
                if self.marks_arp() {
                    tracing::warn!(
                        %message,
                        "this kernel can't mark ARP requests, and may not answer those of its router while it checks sources: if the \
                         tunnel falls silent now and then, set net.ipv4.conf.*.rp_filter to 0"
                    );
                }
                Ok(())
            }
            applied => applied,
        }
    }

    async fn apply_to_packets(&self) -> Result<(), NftError> {
        match self.script()?.run().await {
            // A kernel may be built without what finds a datagram's socket; the guard itself needs
            // none of that.
            Err(NftError::Tool(ToolError::Refused { message, .. })) if self.returning.is_some() => {
                Self { returning: None, ..self.clone() }.script()?.run().await?;
                tracing::warn!(
                    %message,
                    "this kernel can't mark the tunnel's own datagrams on arrival, and drops them where it or a firewall checks \
                     sources: if the tunnel carries nothing, set net.ipv4.conf.*.rp_filter to 0, or IPv6_rpfilter=no in firewalld.conf"
                );
                Ok(())
            }
            applied => applied,
        }
    }

    /// Removes the guard; does nothing if there is none.
    pub async fn remove(&self) -> Result<(), NftError> {
        let without_arp = Self { returning: None, ..self.clone() };
        match run(&without_arp.arp_script()?).await {
            Ok(()) | Err(NftError::Tool(ToolError::Refused { .. })) => {}
            Err(error) => return Err(error),
        }
        run(&remove_script(&self.table()?)).await
    }

    /// Checks that the guard is valid, so that it can be set and removed.
    ///
    /// # Errors
    /// [`NftError::BadName`].
    pub fn check(&self) -> Result<(), NftError> {
        self.script().map(drop)
    }

    fn script(&self) -> Result<Script, NftError> {
        let mut script = Script::of_table(&self.table()?);
        if let Some(Returning { lookups: Some(user), .. }) = self.returning {
            self.asked(&mut script, user);
        }
        script.line("chain arrivals {");
        script.line("type filter hook prerouting priority raw; policy accept;");
        for version in Version::BOTH {
            if let Some(own) = host_set(&self.addresses, version) {
                script.line(&format!(
                    "iifname != {{ \"lo\", \"{}\" }} {} daddr {own} fib saddr type != local drop",
                    self.tunnel,
                    version.keyword()
                ));
            }
        }
        if let Some(Returning { mark, lookups, .. }) = self.returning {
            // nft itself knows the names of the first three; the fourth's is in /etc/protocols,
            // which small systems lack.
            let own = format!("iifname != \"{}\" meta l4proto {{ tcp, udp, icmp, 58 }}", self.tunnel);
            script.line(&format!("{own} socket mark {mark:#x} meta mark set {mark:#x}"));
            if lookups.is_some() {
                // Questions go beside all tunnels.
                let mark = Layer::OLDEST.mark();
                for (version, protocol, set) in questions() {
                    let answer = format!("{} saddr . {protocol} sport . {protocol} dport", version.keyword());
                    script.line(&format!("{answer} @{set} meta mark set {mark:#x}"));
                }
            }
        }
        script.line("}");
        if let Some(MarkMatch { mark, mask }) = self.excluded {
            // After everything that may change a packet's route.
            script.line("chain departures {");
            script.line("type filter hook postrouting priority filter; policy accept;");
            script.line(&format!("oifname \"{}\" meta mark & {mask:#x} == {mark:#x} drop", self.tunnel));
            self.astray(&mut script);
            if self.closes_names {
                self.names(&mut script, mark, mask);
            }
            script.line("}");
        }
        script.line("}");
        Ok(script)
    }

    /// Drops what would miss the tunnel because another program has removed its routes or rules:
    /// packets from its own addresses, and those of a full tunnel that take the closed way.
    fn astray(&self, script: &mut Script) {
        for version in Version::BOTH {
            if let Some(own) = host_set(&self.addresses, version) {
                let keyword = version.keyword();
                script.line(&format!(
                    "oifname != {{ \"lo\", \"{}\" }} {keyword} saddr {own} drop",
                    self.tunnel
                ));
            }
        }
        script.line(&format!("rt ip nexthop {NOWHERE} drop"));
    }

    /// Drops this machine's queries to name servers outside the tunnel; the chain's last rules.
    /// Other tunnels are the administrator's, and look-ups of gateways' names are known by their
    /// user or mark. What other machines ask through this one stays: it may be bridged, which has
    /// nothing to do with the tunnel.
    fn names(&self, script: &mut Script, mark: u32, mask: u32) {
        script.line("meta l4proto != { tcp, udp } accept");
        script.line(&format!("th dport != {NAME_PORTS} accept"));
        script.line(&format!("oifname {{ \"lo\", \"{}\" }} accept", self.tunnel));
        script.line("meta oifkind { \"tun\", \"wireguard\" } accept");
        script.line(&format!("meta mark & {mask:#x} == {mark:#x} accept"));
        if let Some(Returning { lookups: Some(user), .. }) = self.returning {
            script.line(&format!("meta skuid {user} accept"));
        }
        script.line("fib saddr type local drop");
    }

    /// Refills the table that marks ARP, or removes it. No answer to a router is lost in between,
    /// since it asks again.
    fn arp_script(&self) -> Result<String, NftError> {
        let table = self.table()?;
        let mut script = format!("add table arp {table}\ndelete table arp {table}\n");
        if self.marks_arp() {
            let mark = Layer::OLDEST.mark();
            script += &format!(
                "table arp {table} {{\nchain arrivals {{\n\
                 type filter hook input priority filter; policy accept;\n\
                 meta mark set {mark:#x}\n}}\n}}\n"
            );
        }
        Ok(script)
    }

    /// Whether it has a table of ARP's family.
    pub fn marks_arp(&self) -> bool {
        self.returning.is_some_and(|returning| returning.arp)
    }

    /// Name of its tables, which no gateway's has.
    ///
    /// # Errors
    /// [`NftError::BadName`].
    pub fn table(&self) -> Result<String, NftError> {
        Ok(format!("vpndguard_{}", plain(&self.tunnel)?))
    }

    /// Remembers for a while which servers this user queries, and from which port.
    fn asked(&self, script: &mut Script, user: u32) {
        for (version, _, set) in questions() {
            script.line(&format!("set {set} {{"));
            script.line(&format!("type {}_addr . inet_service . inet_service", version.family()));
            script.line("size 4096");
            script.line("flags dynamic,timeout");
            script.line("timeout 30s");
            script.line("}");
        }
        script.line("chain questions {");
        script.line("type filter hook output priority raw; policy accept;");
        // Another client of this machine may send queries through this tunnel.
        let outside = format!("oifname != \"{}\"", self.tunnel);
        for (version, protocol, set) in questions() {
            let question = format!("{} daddr . {protocol} dport . {protocol} sport", version.keyword());
            script.line(&format!("{outside} meta skuid {user} update @{set} {{ {question} }}"));
        }
        script.line("}");
    }
}

/// The queries that are remembered: their version, their protocol and the set that they are in.
fn questions() -> impl Iterator<Item = (Version, &'static str, String)> {
    let set = |version: Version, protocol| format!("asked_{}_{protocol}", version.family());
    Version::BOTH
        .into_iter()
        .flat_map(move |version| ["udp", "tcp"].map(|protocol| (version, protocol, set(version, protocol))))
}
