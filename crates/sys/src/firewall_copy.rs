//! A copy of the machine's firewall in a separate network namespace, through which test packets
//! pass. So the kernel decides about them, no rule has to be understood, and nothing leaves the
//! machine.
//!
//! INVARIANT: rules, interfaces, addresses and routes of the machine are read and never changed.
//! The copy is gone with its thread. This module must not know which packets should pass.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use serde_json::Value;
use tun_rs::{DeviceBuilder, SyncDevice};
use vpnd_packet::Packet;

use crate::netlink::{AddressSpec, MAIN_TABLE, Netlink, NetlinkError, RouteSpec, RouteTarget};
pub use crate::nft::ChainPlace;
use crate::nft::TraceWatch;
use crate::tool::{NFT, Tool, ToolError};

/// A packet that has not come out by now and was not seen dropped is lost. The kernel takes
/// microseconds.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Limit for an address of IPv6 to be usable: the kernel reports links that come up a few each
/// second, and a machine may have many.
const USABLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Settings of the copy's kernel.
const SETTINGS: [(&str, &str); 4] = [
    ("ipv4/ip_forward", "1"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv6/conf/all/forwarding", "1"),
];
/// Marks all packets that come in for the trace.
const TRACED: &str = "table inet vpnd_trace {\nchain prerouting {\ntype filter hook prerouting priority -450;\nmeta nftrace set 1\n}\n}\n";

/// The programs that save and restore one set of rules of iptables.
struct Tables {
    family: &'static str,
    save: &'static str,
    restore: &'static str,
    is_legacy: bool,
}

const IPTABLES: [Tables; 4] = [
    Tables { family: "ip", save: "iptables-nft-save", restore: "iptables-nft-restore", is_legacy: false },
    Tables { family: "ip6", save: "ip6tables-nft-save", restore: "ip6tables-nft-restore", is_legacy: false },
    Tables {
        family: "ip",
        save: "iptables-legacy-save",
        restore: "iptables-legacy-restore",
        is_legacy: true,
    },
    Tables {
        family: "ip6",
        save: "ip6tables-legacy-save",
        restore: "ip6tables-legacy-restore",
        is_legacy: true,
    },
];

#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error(transparent)]
    Tool(#[from] ToolError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error("a network namespace for a copy of the firewall: {0}")]
    Namespace(#[source] io::Error),
}

/// The machine's firewall and network, as they were read.
#[derive(Debug)]
pub struct FirewallCopy {
    /// Texts, each with the tool that loads it.
    rules: Vec<(Tool, String)>,
    interfaces: Vec<String>,
    addresses: Vec<AddressSpec>,
    /// Networks and the interfaces that lead there.
    networks: Vec<(IpNet, String)>,
}

/// The end of a test packet.
#[derive(Debug, PartialEq, Eq)]
pub enum Fate {
    /// It came out so.
    Arrived(Vec<u8>),
    /// It was dropped; by that chain, if it is known.
    Dropped(Option<ChainPlace>),
}

impl FirewallCopy {
    /// Reads the rules of nftables and iptables. `interfaces` are to be there, and `networks`
    /// behind them.
    ///
    /// # Errors
    /// [`CopyError`]; tools of iptables that are missing are none.
    pub async fn read(interfaces: Vec<String>, networks: Vec<(IpNet, String)>) -> Result<Self, CopyError> {
        let netlink = Netlink::open()?;
        let mut names = HashMap::new();
        for interface in &interfaces {
            names.extend(netlink.interface_index(interface).await?.map(|index| (index, interface)));
        }
        let addresses = netlink.addresses().await?.into_iter().filter_map(|address| {
            let interface = (*names.get(&address.interface)?).clone();
            Some(AddressSpec { interface, index: None, address: address.address })
        });
        let addresses = addresses.collect();
        Ok(Self { rules: rules().await?, interfaces, addresses, networks })
    }

    /// The addresses of an interface.
    pub fn addresses(&self, interface: &str) -> impl Iterator<Item = IpNet> {
        self.addresses.iter().filter(move |spec| spec.interface == interface).map(|spec| spec.address)
    }

    /// Whether a text is anywhere in the rules.
    pub fn mentions(&self, text: &str) -> bool {
        self.rules.iter().any(|(_, rules)| rules.contains(text))
    }

    /// Makes the copy and carries out `work` in it.
    ///
    /// # Errors
    /// [`CopyError`] if it can't be made.
    pub fn within<T: Send>(&self, work: impl FnOnce(&mut Bench) -> T + Send) -> Result<T, CopyError> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // SAFETY: only the network namespace of this new thread is unshared; descriptors
                // keep their meaning.
                unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
                    .map_err(|error| CopyError::Namespace(error.into()))?;
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.map_err(CopyError::Namespace)?;
                let (devices, trace) = runtime.block_on(self.make())?;
                Ok(work(&mut Bench { devices, trace, runtime }))
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    async fn make(&self) -> Result<(HashMap<String, SyncDevice>, TraceWatch), CopyError> {
        for (setting, value) in SETTINGS {
            // Without IPv6 there is nothing to set.
            let _ = std::fs::write(format!("/proc/sys/net/{setting}"), value);
        }
        let mut devices = HashMap::new();
        for name in &self.interfaces {
            let device = DeviceBuilder::new().name(name).enable(true).build_sync();
            devices.insert(name.clone(), device.map_err(CopyError::Namespace)?);
        }
        let netlink = Netlink::open()?;
        netlink.set_up("lo", true).await?;
        for spec in &self.addresses {
            already(netlink.add_address(spec).await)?;
        }
        for spec in &self.addresses {
            until_usable(spec.address.addr()).await;
        }
        for (destination, interface) in &self.networks {
            let target = RouteTarget::Interface(interface.clone());
            let table = MAIN_TABLE;
            let spec = RouteSpec { destination: *destination, target, source: None, table, metric: None };
            already(netlink.add_route(&spec).await)?;
        }
        for (tool, text) in &self.rules {
            let arguments = if tool.program == NFT.program { ["-f", "-"].as_slice() } else { &[] };
            let arguments: Vec<String> = arguments.iter().map(|one| (*one).to_owned()).collect();
            tool.run(&arguments, text).await?;
        }
        NFT.run(&["-f".to_owned(), "-".to_owned()], TRACED).await?;
        Ok((devices, TraceWatch::open().map_err(CopyError::Namespace)?))
    }
}

/// Waits until the kernel takes packets for an address of IPv6, which follows its interface's
/// coming up with a delay.
async fn until_usable(address: IpAddr) {
    let is_of_one_link = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
    let end = Instant::now() + USABLE_TIMEOUT;
    while !is_of_one_link && UdpSocket::bind((address, 0)).is_err() && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn already(done: Result<(), NetlinkError>) -> Result<(), NetlinkError> {
    done.or_else(|error| if error.is_already_there() { Ok(()) } else { Err(error) })
}

/// All rules of the machine, those of iptables first: only its own tools read and write them whole.
async fn rules() -> Result<Vec<(Tool, String)>, CopyError> {
    let (mut rules, mut known) = (Vec::new(), HashSet::new());
    for tables in IPTABLES {
        let save = Tool { program: tables.save, package: "iptables" };
        let text = match save.read(&[], "").await {
            Ok(text) => text,
            Err(ToolError::Missing { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix('*')).collect();
        if names.is_empty() {
            continue;
        }
        if !tables.is_legacy {
            known.extend(names.iter().map(|name| (tables.family.to_owned(), (*name).to_owned())));
        }
        rules.push((Tool { program: tables.restore, package: "iptables" }, text));
    }
    let listed = NFT.read(&["-j", "list", "tables"].map(str::to_owned), "").await?;
    let listed: Value = serde_json::from_str(&listed).unwrap_or_default();
    for entry in listed["nftables"].as_array().into_iter().flatten() {
        let text = |key: &str| entry["table"][key].as_str().map(str::to_owned);
        let (Some(family), Some(name)) = (text("family"), text("name")) else { continue };
        if !known.contains(&(family.clone(), name.clone())) {
            let arguments = ["list".to_owned(), "table".to_owned(), family, name];
            rules.push((NFT, with_names(&NFT.read(&arguments, "").await?)));
        }
    }
    Ok(rules)
}

/// Names the protocols of objects, as nft reads them. It prints their numbers on a machine without
/// /etc/protocols.
fn with_names(listing: &str) -> String {
    let named = listing.lines().map(|line| {
        let is_of_object = ["protocol ", "type \""].iter().any(|start| line.trim_start().starts_with(start));
        let names = [(" 6", " tcp"), (" 17", " udp")];
        let name = names.iter().find_map(|(number, name)| {
            let rest = line.strip_suffix(number).filter(|rest| is_of_object && rest.ends_with("protocol"))?;
            Some(rest.to_owned() + name)
        });
        name.unwrap_or_else(|| line.to_owned()) + "\n"
    });
    named.collect()
}

/// The copy, as packets get in and out.
pub struct Bench {
    devices: HashMap<String, SyncDevice>,
    trace: TraceWatch,
    runtime: tokio::runtime::Runtime,
}

impl Bench {
    /// Has a packet come in by one interface and waits for it at another.
    ///
    /// # Errors
    /// If the copy has no such interfaces, or they fail.
    pub fn forward(
        &mut self,
        packet: &[u8],
        (into, out): (&str, &str),
        is_it: impl Fn(&Packet<'_>) -> bool,
    ) -> io::Result<Fate> {
        let out = self.device(out)?;
        // SAFETY: the device is open for as long as it is borrowed.
        let descriptor = unsafe { BorrowedFd::borrow_raw(out.as_raw_fd()) };
        self.send(packet, into, descriptor, || {
            let mut buffer = [0; 2048];
            let length = out.recv(&mut buffer).ok()?;
            let packet = Packet::parse(&buffer[..length]).ok()?;
            is_it(&packet).then(|| packet.bytes().to_vec())
        })
    }

    /// Has a datagram come in by an interface for a port of the machine.
    ///
    /// # Errors
    /// If the copy has no such interface, or it fails.
    pub fn deliver(&mut self, packet: &[u8], into: &str, port: u16) -> io::Result<Fate> {
        let any = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port));
        let socket = any.or_else(|_| UdpSocket::bind(("0.0.0.0", port)))?;
        self.send(packet, into, std::os::fd::AsFd::as_fd(&socket), || {
            let mut buffer = [0; 2048];
            let (length, _) = socket.recv_from(&mut buffer).ok()?;
            Some(buffer[..length].to_vec())
        })
    }

    fn device(&self, name: &str) -> io::Result<&SyncDevice> {
        self.devices.get(name).ok_or_else(|| io::Error::other(format!("there is no interface {name}")))
    }

    fn send(
        &self,
        packet: &[u8],
        into: &str,
        out: BorrowedFd<'_>,
        mut receive: impl FnMut() -> Option<Vec<u8>>,
    ) -> io::Result<Fate> {
        self.trace.last_drop();
        self.device(into)?.send(packet)?;
        let end = Instant::now() + TIMEOUT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let mut ready = [PollFd::new(&out, PollFlags::IN), PollFd::new(&self.trace, PollFlags::IN)];
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            poll(&mut ready, Some(&timeout))?;
            let [has_packet, has_trace] = [&ready[0], &ready[1]].map(|fd| !fd.revents().is_empty());
            if has_packet && let Some(received) = receive() {
                return Ok(Fate::Arrived(received));
            }
            if has_trace && let Some(place) = self.trace.last_drop() {
                return Ok(Fate::Dropped(Some(place)));
            }
            if left.is_zero() {
                return Ok(Fate::Dropped(self.legacy_drop()));
            }
        }
    }

    /// The first chain of the older iptables that has dropped anything: no trace shows it.
    fn legacy_drop(&self) -> Option<ChainPlace> {
        IPTABLES.iter().filter(|tables| tables.is_legacy).find_map(|tables| {
            let save = Tool { program: tables.save, package: "iptables" };
            let text = self.runtime.block_on(save.read(&["-c".to_owned()], "")).ok()?;
            counted_drop(&text)
        })
    }
}

/// The first rule or policy that drops and has counted a packet, in what iptables-save prints.
fn counted_drop(text: &str) -> Option<ChainPlace> {
    let mut table = "";
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        let chain = match first {
            rule if rule.starts_with('[') => {
                let drops = line.contains(" -j DROP") || line.contains(" -j REJECT");
                (drops && !rule.starts_with("[0:")).then(|| words.nth(1)).flatten()
            }
            chain if chain.starts_with(':') => {
                let drops = words.next() == Some("DROP");
                let has_counted = words.next().is_some_and(|count| !count.starts_with("[0:"));
                (drops && has_counted).then_some(&chain[1..])
            }
            _ => None,
        };
        if let Some(chain) = chain {
            let (family, table) = ("iptables-legacy".to_owned(), table.to_owned());
            return Some(ChainPlace { family, table, chain: chain.to_owned() });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_of_objects_have_names_and_those_of_rules_stay() {
        let listed = "\tct timeout a {\n\t\tprotocol 17\n\t}\n\tct helper b {\n\t\ttype \"ftp\" protocol 6\n\t}\n\
                      \t\tip protocol 6\n\t\tprotocol udp\n";
        let named = "\tct timeout a {\n\t\tprotocol udp\n\t}\n\tct helper b {\n\t\ttype \"ftp\" protocol tcp\n\t}\n\
                     \t\tip protocol 6\n\t\tprotocol udp\n";
        assert_eq!(with_names(listed), named);
    }

    #[test]
    fn the_rule_or_policy_that_has_dropped_is_found() {
        let saved = |input: u8, policy: u8, rule: u8| {
            format!(
                "# Generated\n*nat\n:POSTROUTING ACCEPT [7:1]\nCOMMIT\n*filter\n:INPUT DROP [{input}:1]\n:FORWARD DROP [{policy}:60]\n\
                 :mine - [0:0]\n[4:9] -A FORWARD -j mine\n[3:9] -A mine -i eth0 -j ACCEPT\n[{rule}:60] -A mine -j REJECT --reject-with x\nCOMMIT\n"
            )
        };
        let chain = |text: &str| counted_drop(text).map(|place| format!("{} {}", place.table, place.chain));
        assert_eq!(chain(&saved(0, 1, 0)).as_deref(), Some("filter FORWARD"));
        assert_eq!(chain(&saved(0, 0, 1)).as_deref(), Some("filter mine"));
        assert_eq!((chain(&saved(0, 0, 0)), chain("")), (None, None));
    }
}
