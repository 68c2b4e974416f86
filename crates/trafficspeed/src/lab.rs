//! The laboratory: network namespaces on this machine, made for one measurement and removed after
//! it.
//!
//! ```text
//!   client 1 (ts<pid>c1)          gateway (ts<pid>g)           client 2 (ts<pid>c2)
//!   eth0 198.18.1.2/24 ───veth─── c1 198.18.1.1/24
//!        2001:2:0:1::2/64            2001:2:0:1::1/64
//!                                 c2 198.18.2.1/24 ───veth─── eth0 198.18.2.2/24
//!                                    2001:2:0:2::1/64              2001:2:0:2::2/64
//! ```
//!
//! Every client has its own link to the gateway, which routes between them and has the service
//! address 198.18.0.1 (2001:2::1) on its loopback; the addresses are those reserved for benchmarks
//! (RFC 2544, RFC 5180). Each may have a host behind it ([`topology`]). No link leads out of the
//! namespaces. Where a link is to be slow, lossy or narrow, both its ends are TAP devices of the
//! same names and addresses, and [`emulator`] carries the frames between them.
//!
//! INVARIANT: a namespace's name is recorded under [`record::RECORDS`] before it is made, so that
//! `trafficspeed cleanup` finds what a killed run left behind and touches nothing else.

pub mod cpu_limit;
pub mod device;
pub mod emulator;
pub mod enter;
pub mod link;
pub mod namespace;
pub mod record;
pub mod topology;

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;

use cpu_limit::CpuLimit;
use device::Device;
use emulator::{Emulation, Emulator};
use namespace::Namespace;
use record::Record;
use topology::{Lan, Topology};

use crate::interrupt::Interrupt;
use crate::load::congestion::CongestionControl;
use crate::load::fragments;
use crate::load::tcp::ConnectError;
use crate::terminal;

/// Most clients a lab can hold: one /24 of 198.18.0.0/16 each.
pub const MAX_CLIENTS: u32 = 254;

/// The device of every client's link to the gateway.
pub const CLIENT_LINK: &str = "eth0";

/// Time that fragments wait for the others of their datagram, in seconds, which a lab sets to one:
/// the kernel's 30 s would pass before each measurement that follows a flood of fragments
/// ([`Lab::await_few_fragments`]).
const FRAGMENT_TIMES: [&str; 2] = ["net/ipv4/ipfrag_time", "net/ipv6/ip6frag_time"];

/// Why a lab could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Something is missing; nothing was changed.
    #[error("{0}")]
    Missing(String),
    /// A tool said no.
    #[error("`{command}` failed: {reason}")]
    Tool { command: String, reason: String },
    /// The system said no.
    #[error("{action}: {source}")]
    System { action: String, source: std::io::Error },
}

/// How the links of a lab are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSettings {
    /// Segmentation offload: super-packets cross whole; off is closer to a wire.
    pub offload: bool,
    pub mtu: u32,
    /// Impairments of the links; none if absent.
    pub emulation: Option<Emulation>,
    /// Congestion control of TCP that chooses none itself, such as a VPN's tunnel over TCP.
    pub congestion: CongestionControl,
    /// CPU of the VPN's programs at the gateway, all together.
    pub gateway_cpu: Option<CpuLimit>,
    /// TCP in all namespaces may have buffers of this many bytes, a quarter of that from the first
    /// round trip on, and keeps its window after a pause; as the kernel sizes them if absent.
    pub window_bytes: Option<u32>,
    pub topology: Topology,
}

impl LinkSettings {
    /// Whether frames cross the links one by one.
    pub fn sends_single_packets(&self) -> bool {
        !self.offload || self.emulation.is_some_and(|emulation| emulation.needs_single_packets())
    }
}

impl Default for LinkSettings {
    /// The links of an ordinary machine's lab: whole super-packets, an MTU of 1,500 bytes, nothing
    /// emulated or limited.
    fn default() -> Self {
        let (emulation, congestion, gateway_cpu) = (None, CongestionControl::default(), None);
        let (window_bytes, topology) = (None, Topology::Direct);
        Self { offload: true, mtu: 1500, emulation, congestion, gateway_cpu, window_bytes, topology }
    }
}

/// A gateway and its clients.
#[derive(Debug)]
pub struct Lab {
    gateway: Namespace,
    clients: Vec<Namespace>,
    /// The hosts behind the gateway and the clients, in this order; none if they measure
    /// themselves.
    lans: Vec<Lan>,
    emulator: Option<Emulator>,
    record: Record,
}

impl Lab {
    /// Says what is missing for a lab, before anything is changed.
    ///
    /// # Errors
    /// [`LabError::Missing`], with what to do about it.
    pub fn check(settings: LinkSettings) -> Result<(), LabError> {
        let missing = |text: &str| Err(LabError::Missing(text.to_owned()));
        if !rustix::process::geteuid().is_root() {
            return missing("network namespaces need root; run it again with `sudo`");
        }
        if find_program("ip").is_none() {
            return missing("`ip` is not installed; run `apt-get install iproute2`");
        }
        if !settings.offload && find_program("ethtool").is_none() {
            return missing("`--offload off` needs ethtool; run `apt-get install ethtool`");
        }
        if settings.topology == Topology::Routers && find_program("nft").is_none() {
            return missing("`--topology routers` needs nftables; run `apt-get install nftables`");
        }
        if let Some(emulation) = &settings.emulation {
            emulation.check().or_else(|error| missing(&error.to_string()))?;
            emulation.prepare()?;
        }
        settings.gateway_cpu.map_or(Ok(()), CpuLimit::check)?;
        let available =
            fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
        if !available.split_whitespace().any(|name| name == settings.congestion.name()) {
            let (wanted, there) = (settings.congestion, available.trim());
            return missing(&format!("this kernel has no congestion control `{wanted}`; it has: {there}"));
        }
        Ok(())
    }

    /// Makes a lab with `clients` clients.
    ///
    /// # Errors
    /// Any of [`LabError`]; whatever was already made is removed again.
    pub fn build(clients: u32, settings: LinkSettings) -> Result<Self, LabError> {
        assert!((1..=MAX_CLIENTS).contains(&clients), "the command line bounds the number of clients");
        Self::check(settings)?;
        let prefix = format!("ts{}", std::process::id());
        let names: Vec<String> = (1..=clients).map(|n| format!("{prefix}c{n}")).collect();
        let gateway = format!("{prefix}g");
        let hosts = if settings.topology == Topology::Routers { clients + 1 } else { 0 };
        let hosts: Vec<String> = (0..hosts).map(|n| format!("{prefix}h{n}")).collect();
        let all = std::iter::once(&gateway).chain(&names).chain(&hosts);
        let record = Record::open(all.cloned().collect())?;
        // From here on dropping the lab removes what was made, so an early return leaves nothing.
        let mut lab = Self {
            gateway: Namespace::unmade(&gateway),
            clients: names.iter().map(|name| Namespace::unmade(name)).collect(),
            lans: Vec::new(),
            emulator: None,
            record,
        };
        let routers = std::iter::once(&lab.gateway).chain(&lab.clients);
        let lans =
            routers.zip(&hosts).zip(0..).map(|((router, host), number)| Lan::unmade(router, host, number));
        lab.lans = lans.collect();
        for namespace in lab.namespaces() {
            namespace.make()?;
        }
        lab.record.note_identities()?;
        if let Some(limit) = settings.gateway_cpu {
            limit.apply(lab.gateway.name())?;
        }
        let inherited = settings.congestion.in_namespaces();
        for namespace in lab.namespaces() {
            namespace.sysctl("net/ipv4/tcp_congestion_control", inherited.name())?;
            for path in FRAGMENT_TIMES {
                namespace.sysctl(path, "1")?;
            }
        }
        if let Some(bytes) = settings.window_bytes {
            lab.set_windows(bytes)?;
        }
        lab.emulator = link::connect(&lab.gateway, &lab.clients, settings)?;
        lab.lans.iter().try_for_each(|lan| lan.connect(settings))?;
        Ok(lab)
    }

    /// Waits until no namespace holds fragments of what was sent before, so that no measurement
    /// meets a queue that is full of them. Agents wait at the ends; a router that translates
    /// addresses holds fragments, too. An interrupt ends the waiting.
    pub fn await_few_fragments(&self, interrupt: &Interrupt) -> Result<(), LabError> {
        self.namespaces().try_for_each(|namespace| {
            namespace.within(|| {
                // The next measurement sees the interrupt.
                let _: Result<(), ConnectError> = fragments::await_few(&mut || interrupt.is_set());
                Ok(())
            })
        })
    }

    fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        std::iter::once(&self.gateway).chain(&self.clients).chain(self.lans.iter().map(Lan::host))
    }

    pub fn gateway(&self) -> &Namespace {
        &self.gateway
    }

    /// The clients' namespaces, in order.
    pub fn clients(&self) -> &[Namespace] {
        &self.clients
    }

    /// The host behind client `number` (from 1), or behind the gateway (0), if hosts are apart from
    /// the tunnel's ends.
    pub fn lan(&self, number: usize) -> Option<&Lan> {
        self.lans.get(number)
    }

    /// Carries the frames of its links, if they are emulated.
    pub fn emulator(&self) -> Option<&Emulator> {
        self.emulator.as_ref()
    }

    /// The MTU of a client's link.
    pub fn link_mtu(&self) -> Result<u32, LabError> {
        let devices = Device::all(&self.clients[0])?;
        let link = devices.iter().find(|device| device.name == CLIENT_LINK);
        Ok(link.expect("every client has its link").mtu)
    }

    fn set_windows(&self, bytes: u32) -> Result<(), LabError> {
        let sizes = format!("4096 {} {bytes}", bytes / 4);
        for namespace in self.namespaces() {
            namespace.sysctl("net/ipv4/tcp_rmem", &sizes)?;
            namespace.sysctl("net/ipv4/tcp_wmem", &sizes)?;
            namespace.sysctl("net/ipv4/tcp_slow_start_after_idle", "0")?;
        }
        Ok(())
    }

    /// A directory for the files of this run; removed with the lab.
    pub fn directory(&self) -> &Path {
        self.record.directory()
    }

    /// The gateway's own address, on its loopback: where every client reaches a VPN server.
    pub const SERVICE_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
    /// The service over IPv6.
    pub const SERVICE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1);

    /// The gateway's address that client `number` (from 1) reaches directly.
    pub fn gateway_v4(number: u32) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, number as u8, 1)
    }

    /// The gateway's IPv6 address that client `number` (from 1) reaches directly.
    pub fn gateway_v6(number: u32) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 2, 0, number as u16, 0, 0, 0, 1)
    }

    /// The address of client `number` (from 1).
    pub fn client_v4(number: u32) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, number as u8, 2)
    }

    /// The IPv6 address of client `number` (from 1).
    pub fn client_v6(number: u32) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 2, 0, number as u16, 0, 0, 0, 2)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // Its devices keep the namespaces alive.
        self.emulator = None;
        for problem in self.record.remove_all() {
            terminal::say(format_args!("trafficspeed: {problem}; `trafficspeed cleanup` tries again"));
        }
    }
}

/// Runs a tool to its end.
///
/// # Errors
/// [`LabError::Tool`] with what the tool said.
pub fn run_tool(command: &mut Command) -> Result<String, LabError> {
    let text = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ");
    let failed = |reason: String| LabError::Tool { command: text.clone(), reason };
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(failed(if words.is_empty() { output.status.to_string() } else { words }))
}

/// A tool of the package `package`, which most machines have.
pub fn tool(name: &str, package: &str) -> Result<PathBuf, LabError> {
    let missing = || LabError::Missing(format!("`{name}` is missing; it belongs to {package}"));
    find_program(name).ok_or_else(missing)
}

/// Where a program is, looking also where Debian keeps administrators' tools.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/bin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_has_its_own_network() {
        assert_eq!(Lab::client_v4(16).to_string(), "198.18.16.2");
        assert_eq!(Lab::gateway_v6(MAX_CLIENTS).to_string(), "2001:2:0:fe::1");
        assert_ne!(Lab::client_v6(1), Lab::client_v6(2));
    }

    #[test]
    fn a_failing_tool_is_named_with_its_own_words() {
        let error = run_tool(Command::new("ls").arg("/nonexistent-directory")).unwrap_err().to_string();
        assert!(error.contains("ls /nonexistent-directory") && error.contains("No such file"), "{error}");
        assert!(find_program("sh").is_some() && find_program("no-such-program-here").is_none());
    }
}
