//! Everything about the machine and the command that someone needs to repeat a measurement.

use std::fs;

use serde::{Deserialize, Serialize};

use crate::clock;
use crate::lab::LinkSettings;
use crate::lab::cpu_limit::CpuLimit;
use crate::lab::topology::Topology;
use crate::load::congestion::CongestionControl;
use crate::observe;
use crate::observe::HostInfo;
use crate::stats::distinct;
use crate::system::buffers;

/// The sysctls that bear on every figure, as their paths below /proc/sys: those of sockets, and
/// whether the CPU goes to sessions first and to the threads of each only then, as in sched(7),
/// which makes threads wait long while other sessions are busy.
const SYSCTLS: [&str; 12] = [
    "kernel/sched_autogroup_enabled",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_wmem",
    "net/ipv4/tcp_available_congestion_control",
    "net/ipv4/tcp_allowed_congestion_control",
    "net/ipv4/tcp_congestion_control",
    "net/core/rmem_max",
    "net/core/wmem_max",
    "net/core/rmem_default",
    "net/core/wmem_default",
    "net/core/netdev_max_backlog",
    "net/core/default_qdisc",
];

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
    pub topology: Option<Topology>,
    /// The CPU time that the VPN's programs at the gateway got at most.
    pub gateway_cpu: Option<CpuLimit>,
    /// The host's sysctls that bear on sockets and on whose turn it is.
    pub sysctls: Vec<(String, String)>,
}

impl Environment {
    pub fn read(links: Option<LinkSettings>) -> Self {
        Self::of_each(links.as_slice())
    }

    /// The environment of labs one after the other, whose links may differ in MTU and congestion
    /// control: all of these are named.
    pub fn of_each(all: &[LinkSettings]) -> Self {
        let links = all.first();
        Self {
            host: HostInfo::read(),
            cpu_flags: observe::cipher_cpu_flags(),
            memory_mib: observe::memory_mib("MemTotal:").unwrap_or(0),
            command_line: command_line(),
            started: clock::wall_text(),
            links: describe(all),
            topology: links.map(|links| links.topology),
            gateway_cpu: links.and_then(|links| links.gateway_cpu),
            sysctls: SYSCTLS
                .into_iter()
                .filter_map(|name| Some((name.replace('/', "."), sysctl(name)?)))
                .collect(),
        }
    }

    /// The processor and the instructions that decide the speed of ciphers and copies, in one line;
    /// and whether it is a processor at all.
    pub fn machine(&self) -> String {
        let HostInfo { cpu, cpus, system, .. } = &self.host;
        let flags =
            if self.cpu_flags.is_empty() { "none known".to_owned() } else { self.cpu_flags.join(" ") };
        let emulated = if self.is_emulated() {
            ". This processor is emulated: no speed here is a result, nor is a ratio of two"
        } else {
            ""
        };
        format!(
            "Machine: {cpus} × {cpu} (instructions: {flags}), {} MiB, {system}{emulated}",
            self.memory_mib
        )
    }

    /// Whether a program (QEMU's TCG) plays the processor.
    pub fn is_emulated(&self) -> bool {
        self.host.cpu.contains("QEMU TCG")
    }
}

/// The value of a sysctl given as its path below /proc/sys.
pub fn sysctl(path: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/sys/{path}")).ok()?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The texts that differ, in their order.
fn in_turn(texts: impl Iterator<Item = String>) -> String {
    distinct(texts).join(", then ")
}

/// The links of labs that differ in MTU and congestion control at most.
fn describe(all: &[LinkSettings]) -> Option<String> {
    let links = all.first()?;
    let offload = if !links.sends_single_packets() {
        "segmentation offload on (64 KiB super-packets cross whole)"
    } else {
        "segmentation offload off (frames cross one by one, gathered by the receiver)"
    };
    let mtus = in_turn(all.iter().map(|links| links.mtu.to_string()));
    let congestion = in_turn(all.iter().map(|links| describe_congestion(links.congestion)));
    let plain = format!(
        "links between network namespaces, MTU {mtus}, {offload}; congestion control of the measured connections: {congestion}"
    );
    let plain = match links.gateway_cpu {
        Some(limit) => format!("{plain}; the VPN's programs at the gateway limited to {limit}"),
        None => plain,
    };
    let plain = links.emulation.map_or(plain.clone(), |emulation| format!("{plain}; emulated: {emulation}"));
    let plain = format!("{plain}; {}", buffers::METHOD);
    Some(links.topology.method().map_or(plain.clone(), |method| format!("{plain}; {method}")))
}

/// A congestion control, and which one TCP of the VPNs has then.
fn describe_congestion(congestion: CongestionControl) -> String {
    let inherited = congestion.in_namespaces();
    if congestion == inherited {
        return format!("{congestion} and of TCP of the VPNs themselves");
    }
    format!(
        "{congestion}; VPNs over TCP have {inherited}, since this machine lets namespaces choose no other (to change that: sysctl -w \
         net.ipv4.tcp_allowed_congestion_control='reno {inherited} {congestion}')"
    )
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
        assert!(environment.links.as_ref().is_some_and(|text| text.contains(buffers::METHOD)));
        assert!(environment.sysctls.iter().any(|(name, _)| name == "net.core.rmem_max"), "{environment:?}");
        assert!(environment.host.system.starts_with("Linux "));
        let machine = environment.machine();
        assert!(machine.contains(&environment.host.cpu) && machine.contains("instructions: "), "{machine}");
    }

    #[test]
    fn an_emulated_processor_is_named_as_no_measure_of_speed() {
        let mut environment = Environment::default();
        environment.host.cpu = "Intel(R) Xeon(R) Processor".into();
        assert!(!environment.machine().contains("emulated"));
        environment.host.cpu = "QEMU TCG CPU version 2.5+".into();
        assert!(environment.machine().contains("This processor is emulated: no speed here is a result"));
    }

    #[test]
    fn links_that_differ_in_mtu_and_congestion_control_are_all_named_once() {
        let links = |mtu, congestion: &str| LinkSettings {
            mtu,
            congestion: congestion.parse().unwrap(),
            ..LinkSettings::default()
        };
        let all = [links(1_400, "reno"), links(9_000, "reno"), links(1_400, "nonsuch")];
        let said = Environment::of_each(&all).links.unwrap();
        assert!(said.contains("MTU 1400, then 9000, segmentation"), "{said}");
        assert!(said.contains("connections: reno") && said.contains(", then nonsuch;"), "{said}");
        assert_eq!(Environment::of_each(&all[..1]).links, Environment::read(Some(all[0])).links);
        assert_eq!(Environment::of_each(&[]).links, None);
    }

    #[test]
    fn the_gateways_cpu_limit_is_optional_in_files() {
        let limit: CpuLimit = "0.5".parse().unwrap();
        let links = LinkSettings { gateway_cpu: Some(limit), ..LinkSettings::default() };
        let environment = Environment::read(Some(links));
        assert_eq!(environment.gateway_cpu, Some(limit));
        let mut value = serde_json::to_value(&environment).unwrap();
        value.as_object_mut().unwrap().remove("gateway_cpu");
        assert_eq!(serde_json::from_value::<Environment>(value).unwrap().gateway_cpu, None);
    }

    #[test]
    fn words_are_quoted_as_a_shell_needs_it() {
        assert_eq!(quote("--clients".into()), "--clients");
        assert_eq!(quote("a b'c".into()), r"'a b'\''c'");
        assert_eq!(quote(String::new()), "''");
        assert_eq!(base_name("/usr/bin/trafficspeed"), "trafficspeed");
    }
}
