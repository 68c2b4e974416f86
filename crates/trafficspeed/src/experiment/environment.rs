//! Everything about the machine and the command that someone needs to repeat a measurement.

use std::fs;

use serde::{Deserialize, Serialize};

use crate::clock;
use crate::lab::LinkSettings;
use crate::lab::topology::Topology;
use crate::observe;
use crate::observe::HostInfo;

/// Where and how a campaign ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    pub host: HostInfo,
    /// CPU flags that matter to ciphers.
    pub cpu_flags: Vec<String>,
    pub memory_mib: u64,
    /// The command line as given.
    pub command_line: String,
    /// When the campaign began, UTC.
    pub started: String,
    /// Links of the lab in words; absent between real hosts.
    pub links: Option<String>,
    /// Where the lab's measuring hosts are; absent between real hosts.
    #[serde(default)]
    pub topology: Option<Topology>,
    /// The host's sysctls that bear on TCP.
    pub sysctls: Vec<(String, String)>,
}

impl Environment {
    pub fn read(links: Option<LinkSettings>) -> Self {
        Self {
            host: HostInfo::read(),
            cpu_flags: observe::cipher_cpu_flags(),
            memory_mib: memory_mib(),
            command_line: command_line(),
            started: clock::wall_text(),
            links: links.map(describe),
            topology: links.map(|links| links.topology),
            sysctls: ["net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem", "net/ipv4/tcp_available_congestion_control"]
                .into_iter()
                .filter_map(|name| Some((name.replace('/', "."), sysctl(name)?)))
                .collect(),
        }
    }

    /// The processor and the instructions that decide the speed of ciphers and copies, in one line.
    pub fn machine(&self) -> String {
        let HostInfo { cpu, cpus, system, .. } = &self.host;
        let flags =
            if self.cpu_flags.is_empty() { "none known".to_owned() } else { self.cpu_flags.join(" ") };
        format!("Machine: {cpus} × {cpu} (instructions: {flags}), {} MiB, {system}", self.memory_mib)
    }
}

/// The value of a sysctl given as its path below /proc/sys.
pub fn sysctl(path: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/sys/{path}")).ok()?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn describe(links: LinkSettings) -> String {
    let offload = if !links.sends_single_packets() {
        "segmentation offload on (64 KiB super-packets cross whole)"
    } else {
        "segmentation offload off (frames cross one by one, gathered by the receiver)"
    };
    let (congestion, inherited) = (links.congestion, links.congestion.in_namespaces());
    let tunnels = if congestion == inherited {
        " and of TCP of the VPNs themselves".to_owned()
    } else {
        format!(
            "; VPNs over TCP have {inherited}, since this machine lets namespaces choose no other (to change that: sysctl -w \
             net.ipv4.tcp_allowed_congestion_control='reno {inherited} {congestion}')"
        )
    };
    let plain = format!(
        "links between network namespaces, MTU {}, {offload}; congestion control of the measured connections: {congestion}{tunnels}",
        links.mtu
    );
    let plain = match links.gateway_cpu {
        Some(limit) => format!("{plain}; the VPN's programs at the gateway limited to {limit}"),
        None => plain,
    };
    let plain = links.emulation.map_or(plain.clone(), |emulation| format!("{plain}; emulated: {emulation}"));
    links.topology.method().map_or(plain.clone(), |method| format!("{plain}; {method}"))
}

fn memory_mib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

/// The words after the program's name.
pub fn words() -> Vec<String> {
    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect()
}

/// The command as one could type it again. Secrets come from files, never from here.
fn command_line() -> String {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    words
        .enumerate()
        .map(|(at, word)| if at == 0 { base_name(&word) } else { quote(word) })
        .collect::<Vec<_>>()
        .join(" ")
}

fn base_name(word: &str) -> String {
    word.rsplit('/').next().unwrap_or(word).to_owned()
}

fn quote(word: String) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=@[]%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let environment = Environment::read(Some(LinkSettings { offload: false, ..LinkSettings::default() }));
        assert!(environment.memory_mib > 0 && environment.host.cpus > 0);
        assert!(
            environment
                .links
                .as_ref()
                .is_some_and(|text| text.contains("MTU 1500") && text.contains("offload off"))
        );
        assert!(environment.host.system.starts_with("Linux "));
        let machine = environment.machine();
        assert!(machine.contains(&environment.host.cpu) && machine.contains("instructions: "), "{machine}");
    }

    #[test]
    fn words_are_quoted_as_a_shell_needs_it() {
        assert_eq!(quote("--clients".into()), "--clients");
        assert_eq!(quote("a b'c".into()), r"'a b'\''c'");
        assert_eq!(quote(String::new()), "''");
        assert_eq!(base_name("/usr/bin/trafficspeed"), "trafficspeed");
    }
}
