//! The systems under test: one file per VPN, all behind [`System`].
//!
//! An adapter brings its VPN up inside a lab, says under which addresses the clients reach each
//! other through it, and which processes are its own. It knows nothing of load, experiments or
//! reports. A new system is a file here with its [`Profile`], a variant of [`Kind`] and its line in
//! [`Kind::profile`]; the command line, the labels and `trafficspeed doctor` follow from the
//! profile.

pub mod buffers;
pub mod cipher;
pub mod command;
pub mod daemon;
mod error;
pub mod folder;
pub mod generator;
pub mod install;
pub mod ipsec;
pub mod kernel;
pub mod nebula;
pub mod openvpn;
pub mod plain;
pub mod pptp;
mod priority;
pub mod program;
pub mod softether;
pub mod strongswan;
pub mod vpnd;
pub mod wireguard;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::interrupt::Interrupt;
use crate::lab::Lab;
use crate::lab::cpu_limit::CpuLimit;
use crate::stats::distinct;
use program::Program;
use wireguard::implementation;

pub use crate::observation::AGAIN;
pub use cipher::Cipher;
pub use error::SystemError;
pub use priority::Priority;
pub use program::Programs;

/// How often a system that comes up is looked at.
const POLL: Duration = Duration::from_millis(50);

/// The systems that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// This project's VPN.
    Vpnd,
    /// vpnd with its own AES-GCM, which it uses only if the configuration has it.
    VpndVaes,
    /// vpnd with its users and sessions in PostgreSQL.
    VpndPostgres,
    /// WireGuard's original user-space implementation, in Go.
    WireguardGo,
    /// Tailscale's fork of wireguard-go.
    WireguardGoTailscale,
    /// Tailscale's fork of wireguard-go with GOMAXPROCS=1 at the gateway.
    #[value(name = "wireguard-go-tailscale-procs1")]
    #[serde(rename = "wireguard-go-tailscale-procs1")]
    WireguardGoTailscaleProcs1,
    /// Cloudflare's WireGuard in Rust.
    Boringtun,
    /// Mullvad's WireGuard in Rust.
    Gotatun,
    /// This project's VPN as the gateway of stock WireGuard clients: the original in Go.
    VpndWireguardGo,
    /// This project's VPN as the gateway of stock WireGuard clients: Tailscale's fork.
    VpndWireguardGoTailscale,
    /// OpenVPN over UDP, forwarding between clients in its own process.
    Openvpn,
    /// OpenVPN with TUN packets of 9,000 bytes.
    #[value(name = "openvpn-mtu9000")]
    #[serde(rename = "openvpn-mtu9000")]
    OpenvpnMtu9000,
    /// SoftEther VPN, the successor of PacketiX, over TLS.
    Softether,
    /// SoftEther VPN with its UDP acceleration.
    SoftetherUdp,
    /// Nebula with its gateway as the hub.
    Nebula,
    /// Nebula with a queue for each core.
    NebulaRoutines,
    /// strongSwan with ESP in user space (kernel-libipsec).
    Strongswan,
    /// WireGuard in the kernel.
    Wireguard,
    /// IPsec in the kernel: ESP, or AH with --cipher auth-only.
    Ipsec,
    /// IPsec in the kernel: AH around ESP.
    IpsecAhEsp,
    /// OpenVPN with the kernel's data channel (DCO), of Linux 6.16 and newer.
    OpenvpnDco,
    /// PPTP, encrypted by the kernel's MPPE with 128 bits; IPv4 only.
    Pptp,
    /// A system of your own, brought up by --command-up.
    Command,
    /// Plain routing through the gateway without a VPN: the ceiling.
    None,
}

impl Kind {
    /// The system's profile, which needs no running system.
    pub fn profile(self) -> &'static Profile {
        match self {
            Self::Vpnd => &vpnd::PROFILE,
            Self::VpndVaes => &vpnd::VAES_PROFILE,
            Self::VpndPostgres => &vpnd::POSTGRES_PROFILE,
            Self::WireguardGo => &implementation::WIREGUARD_GO_PROFILE,
            Self::WireguardGoTailscale => &implementation::WIREGUARD_GO_TAILSCALE_PROFILE,
            Self::WireguardGoTailscaleProcs1 => &implementation::WIREGUARD_GO_TAILSCALE_PROCS1_PROFILE,
            Self::Boringtun => &implementation::BORINGTUN_PROFILE,
            Self::Gotatun => &implementation::GOTATUN_PROFILE,
            Self::VpndWireguardGo => &vpnd::WIREGUARD_GO_PROFILE,
            Self::VpndWireguardGoTailscale => &vpnd::WIREGUARD_GO_TAILSCALE_PROFILE,
            Self::Openvpn => &openvpn::PROFILE,
            Self::OpenvpnMtu9000 => &openvpn::MTU9000_PROFILE,
            Self::Softether => &softether::PROFILE,
            Self::SoftetherUdp => &softether::UDP_PROFILE,
            Self::Nebula => &nebula::PROFILE,
            Self::NebulaRoutines => &nebula::ROUTINES_PROFILE,
            Self::Strongswan => &strongswan::PROFILE,
            Self::Wireguard => &wireguard::kernel::PROFILE,
            Self::Ipsec => &ipsec::PROFILE,
            Self::IpsecAhEsp => &ipsec::AH_ESP_PROFILE,
            Self::OpenvpnDco => &openvpn::DCO_PROFILE,
            Self::Pptp => &pptp::PROFILE,
            Self::Command => &command::PROFILE,
            Self::None => &plain::PROFILE,
        }
    }

    /// The system whose program it is, too: what two of one program differ in is no rivalry.
    pub fn family(self) -> Self {
        match self {
            Self::VpndVaes | Self::VpndPostgres | Self::VpndWireguardGo | Self::VpndWireguardGoTailscale => {
                Self::Vpnd
            }
            other => other,
        }
    }

    /// A cipher that it does not have: its name, and why that is so if there is a reason.
    fn lacks(self, cipher: Cipher) -> String {
        let reason = cipher.reason_against(self).map(|reason| format!(" ({reason})"));
        format!("{}{}", cipher.name(), reason.unwrap_or_default())
    }

    /// The ciphers that it can be told to use, in words.
    fn offered(self) -> String {
        let offered: Vec<&str> = self.profile().ciphers.iter().map(|cipher| cipher.name()).collect();
        format!("it has {}, and its own choice with `--cipher auto`", offered.join(", "))
    }

    /// Its name on the command line.
    pub fn name(self) -> String {
        let value = self.to_possible_value().expect("no system is hidden from the command line");
        value.get_name().to_owned()
    }
}

/// The properties of a system that are known before it runs.
#[derive(Debug)]
pub struct Profile {
    /// Its name in reports.
    pub label: &'static str,
    /// The ciphers that it can be told to use; what it uses without being told, it says in its
    /// [`SystemInfo`].
    pub ciphers: &'static [Cipher],
    /// The programs that it needs; the first is the one whose version names the system's.
    pub programs: &'static [&'static Program],
    /// Whether it asks the kernel for more than other programs get, and can be told not to.
    pub has_priority: bool,
    /// Makes the adapter, not yet up.
    pub adapter: fn(&Programs, Subject) -> Box<dyn System>,
}

/// One line of a report: a system with its cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Subject {
    /// The system.
    pub kind: Kind,
    /// How it protects packets.
    pub cipher: Cipher,
    /// Which of the user's own systems, from 0; 0 for all others.
    #[serde(default)]
    pub own: usize,
    #[serde(default)]
    pub priority: Priority,
    /// Measured a second time beside itself, as a control: the differences between the two are
    /// no system's merit.
    #[serde(default)]
    pub again: bool,
    /// CPU of its programs at the gateway, where several shares are compared.
    #[serde(default)]
    pub gateway_cpu: Option<CpuLimit>,
}

impl Subject {
    /// A system, the first if it is the user's own.
    pub const fn new(kind: Kind, cipher: Cipher) -> Self {
        Self { kind, cipher, own: 0, priority: Priority::Own, again: false, gateway_cpu: None }
    }

    /// All combinations of systems and ciphers, plain routing once, and for [`Kind::Command`] all
    /// `own` systems.
    pub fn all(kinds: &[Kind], ciphers: &[Cipher], own: usize) -> Vec<Self> {
        distinct(kinds.iter().flat_map(|&kind| {
            let ciphers = if kind == Kind::None { &[Cipher::None] } else { ciphers };
            // Without a script there is one still, which says that it needs one.
            let own = if kind == Kind::Command { own.max(1) } else { 1 };
            let with_ciphers =
                move |own| ciphers.iter().map(move |&cipher| Self { own, ..Self::new(kind, cipher) });
            (0..own).flat_map(with_ciphers)
        }))
    }

    /// Each of `subjects` with each of `priorities`; a system that takes no priority
    /// stays as it is.
    pub fn with_priorities(subjects: &[Self], priorities: &[Priority]) -> Vec<Self> {
        distinct(subjects.iter().flat_map(|subject| {
            let has_priority = subject.kind.profile().has_priority;
            priorities.iter().map(move |&priority| Self {
                priority: if has_priority { priority } else { Priority::Own },
                ..*subject
            })
        }))
    }

    /// Each of `subjects` with each of several `shares` of the CPU for its gateway; plain routing,
    /// which has no programs, stays as it is, and a single share is one of the lab.
    pub fn with_shares(subjects: &[Self], shares: &[CpuLimit]) -> Vec<Self> {
        if shares.len() < 2 {
            return subjects.to_vec();
        }
        distinct(shares.iter().flat_map(|&share| {
            subjects.iter().map(move |subject| Self {
                gateway_cpu: Some(share).filter(|_| subject.kind != Kind::None),
                ..*subject
            })
        }))
    }

    /// Whether two lines of a report are of the same system, however much each may take of the CPU
    /// and of the scheduler.
    pub fn is_but_for_shares(self, other: Self) -> bool {
        Self { priority: other.priority, gateway_cpu: other.gateway_cpu, ..self } == other
    }

    /// The subject as its own control.
    pub const fn again(self) -> Self {
        Self { again: true, ..self }
    }

    /// The system of `subjects` that is measured a second time: `wanted` if it is one of them,
    /// otherwise the first that is not plain routing, or plain routing if there is nothing else.
    pub fn control(subjects: &[Self], wanted: impl Fn(&Self) -> bool) -> Option<Self> {
        let vpn = |subject: &&Self| subject.kind != Kind::None;
        let chosen = subjects.iter().find(|subject| wanted(subject)).or_else(|| subjects.iter().find(vpn));
        Some(chosen.or(subjects.first())?.again())
    }

    /// Whether the system can be told to use the cipher, or chooses one itself.
    pub fn has_cipher(self) -> bool {
        self.cipher == Cipher::Auto || self.kind.profile().ciphers.contains(&self.cipher)
    }

    /// Those of `subjects` that have their cipher, and a sentence for each system about those that
    /// it does not have.
    pub fn with_their_ciphers(subjects: &[Self]) -> (Vec<Self>, Vec<String>) {
        let (kept, left_out): (Vec<Self>, Vec<Self>) =
            subjects.iter().partition(|subject| subject.has_cipher());
        let kinds = distinct(left_out.iter().map(|subject| subject.kind));
        let sentence = |kind: Kind| {
            let of_kind = left_out.iter().filter(|subject| subject.kind == kind);
            let lacks = distinct(of_kind.map(|subject| kind.lacks(subject.cipher)));
            let outcome = if kept.iter().any(|subject| subject.kind == kind) {
                "is measured without"
            } else {
                "is not measured"
            };
            format!(
                "{} has no {} and {outcome}; {}",
                kind.profile().label,
                lacks.join(", no "),
                kind.offered()
            )
        };
        let sentences = kinds.into_iter().map(sentence).collect();
        (kept, sentences)
    }

    /// Its name in the report, where the user's own system has no name but its kind's.
    pub fn label(self) -> String {
        self.label_as(self.kind.profile().label)
    }

    /// Its name in the report; the user's own system by the name that the user gave it.
    pub fn label_with(self, programs: &Programs) -> String {
        match programs.scripts(self.own) {
            Some(scripts) if self.kind == Kind::Command => self.label_as(&scripts.name),
            _ => self.label(),
        }
    }

    fn label_as(self, label: &str) -> String {
        let cipher = match (self.kind, self.cipher) {
            (Kind::None, _) | (_, Cipher::Auto) => String::new(),
            (_, Cipher::None) => ", no encryption".into(),
            (_, cipher) => format!(", {}", cipher.name()),
        };
        let priority = if self.priority == Priority::Same { ", no priority" } else { "" };
        let share = self.gateway_cpu.map_or_else(String::new, |share| format!(", gateway {share}"));
        let again = if self.again { AGAIN } else { "" };
        format!("{label}{cipher}{priority}{share}{again}")
    }

    /// The adapter, not yet up.
    ///
    /// # Errors
    /// [`SystemError::Missing`] if the system does not have the cipher.
    pub fn system(self, programs: &Programs) -> Result<Box<dyn System>, SystemError> {
        let profile = self.kind.profile();
        if self.has_cipher() {
            return Ok((profile.adapter)(programs, self));
        }
        let (label, lacking) = (profile.label, self.kind.lacks(self.cipher));
        Err(SystemError::Missing(format!("{label} has no {lacking}; {}", self.kind.offered())))
    }

    /// Says what is missing for it, before anything is changed.
    pub fn check(self, programs: &Programs) -> Result<(), SystemError> {
        self.system(programs)?.check()
    }

    /// Says what is missing for `subjects`. A program that is missing leaves a gap in the report,
    /// unless no system can run; a part of the kernel can't be installed, so without one nothing
    /// runs.
    pub fn check_all(subjects: &[Self], programs: &Programs) -> Result<(), SystemError> {
        let problems = subjects.iter().filter_map(|subject| subject.check(programs).err());
        let (in_kernel, others): (Vec<_>, Vec<_>) =
            problems.partition(|problem| matches!(problem, SystemError::NoModule(_)));
        match in_kernel.into_iter().next() {
            Some(absent) => Err(absent),
            None if others.is_empty() || others.len() < subjects.len() => Ok(()),
            None => {
                let lines: Vec<String> = others.iter().map(ToString::to_string).collect();
                Err(SystemError::Missing(format!("nothing to measure: {}", lines.join("; "))))
            }
        }
    }
}

/// Where a client is reached through the system, and by which device it reaches the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientAddress {
    /// Over IPv4.
    pub v4: Option<Ipv4Addr>,
    /// Over IPv6.
    pub v6: Option<Ipv6Addr>,
    /// The client's device that leads into the tunnel; that it carries the traffic is checked for
    /// every system.
    pub device: String,
}

/// A system that ran, for the report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemInfo {
    /// Its version in its own words.
    pub version: String,
    /// The cipher that was really in use.
    pub cipher: String,
    /// MTU of the clients' device.
    pub mtu: Option<u32>,
    /// Anything else that a reader of the figures must know.
    pub notes: Vec<String>,
}

/// Fails if this machine has no TUN devices.
///
/// # Errors
/// [`SystemError::Missing`], with what to do about it.
pub fn check_tun() -> Result<(), SystemError> {
    if Path::new("/dev/net/tun").exists() {
        return Ok(());
    }
    Err(SystemError::Missing(
        "/dev/net/tun is missing; load it with `modprobe tun` or give the container the device".into(),
    ))
}

/// Waits a little for a system to come up, unless the user ends it.
pub fn pause(interrupt: &Interrupt) -> Result<(), SystemError> {
    if interrupt.is_set() {
        return Err(SystemError::Interrupted);
    }
    std::thread::sleep(POLL);
    Ok(())
}

/// One VPN in one lab.
pub trait System {
    /// Says what is missing, before anything is changed.
    fn check(&self) -> Result<(), SystemError>;

    /// Brings it up in `lab` as its makers mean it, and returns the clients' addresses in order;
    /// gives up once interrupted.
    ///
    /// # Errors
    /// Any of [`SystemError`]; `down` is called in any case.
    fn bring_up(&mut self, lab: &Lab, interrupt: &Interrupt) -> Result<Vec<ClientAddress>, SystemError>;

    /// Brings it up and gives it the buffers that all systems have; no adapter has another way to
    /// be measured.
    ///
    /// # Errors
    /// Any of [`SystemError`]; `down` is called in any case.
    fn up(&mut self, lab: &Lab, interrupt: &Interrupt) -> Result<Vec<ClientAddress>, SystemError> {
        let addresses = self.bring_up(lab, interrupt)?;
        if let Some(exception) = buffers::equalise(lab)? {
            self.facts().notes.push(exception);
        }
        Ok(addresses)
    }

    /// Makes the gateway itself reachable through the system, which is up, and returns where.
    /// `None`: at the addresses of the device by which the gateway reaches the clients.
    fn gateway_address(
        &mut self,
        _lab: &Lab,
        _interrupt: &Interrupt,
    ) -> Result<Option<ClientAddress>, SystemError> {
        Ok(None)
    }

    /// The ids of its processes: the gateway's, and all clients'.
    fn processes(&self) -> (Vec<u32>, Vec<u32>);

    /// Its account for the report, to which remarks can be added; called while it is up.
    fn facts(&mut self) -> &mut SystemInfo;

    /// Ends it. Called once, whether `up` succeeded or not.
    fn down(&mut self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_once_and_plain_routing_without_ciphers() {
        let ciphers = [Cipher::Aes256Gcm, Cipher::None, Cipher::Aes256Gcm];
        let labels: Vec<_> =
            Subject::all(&[Kind::None, Kind::Vpnd], &ciphers, 0).iter().map(|s| s.label()).collect();
        assert_eq!(labels, ["plain routing", "vpnd, aes-256-gcm", "vpnd, no encryption"]);
    }

    #[test]
    fn only_a_system_that_takes_priority_is_measured_without_it_too() {
        let kinds = [Kind::Vpnd, Kind::Openvpn, Kind::Softether, Kind::None];
        let subjects = Subject::all(&kinds, &[Cipher::Auto], 0);
        let doubled = Subject::with_priorities(&subjects, &[Priority::Own, Priority::Same]);
        let labels: Vec<_> = doubled.iter().map(|subject| subject.label()).collect();
        assert_eq!(
            labels,
            ["vpnd", "vpnd, no priority", "OpenVPN", "SoftEther", "SoftEther, no priority", "plain routing"]
        );
        let usual = Subject::usual_priorities;
        assert_eq!(usual(&[Kind::Vpnd, Kind::None]), [Priority::Own], "there is no other VPN");
        assert_eq!(usual(&[Kind::Vpnd, Kind::VpndVaes]), [Priority::Own], "one program");
        for other in [Kind::Openvpn, Kind::Softether] {
            assert_eq!(usual(&[Kind::Vpnd, other]), [Priority::Own, Priority::Same]);
        }
        let without = Subject::with_priorities(&subjects, &[Priority::Same]);
        assert_eq!(without.iter().filter(|subject| subject.priority == Priority::Same).count(), 2);
    }

    #[test]
    fn the_control_is_the_system_that_was_asked_for_or_the_first_vpn() {
        let subjects = Subject::all(&[Kind::None, Kind::Openvpn, Kind::Vpnd], &[Cipher::Auto], 0);
        let label = |wanted: fn(&Subject) -> bool| Subject::control(&subjects, wanted).unwrap().label();
        assert_eq!(label(|subject| subject.kind == Kind::Vpnd), "vpnd (again)");
        assert_eq!(label(|_| false), "OpenVPN (again)");
        assert_eq!(Subject::control(&subjects[..1], |_| false).unwrap().label(), "plain routing (again)");
        assert_eq!(Subject::control(&[], |_| true), None);
    }

    #[test]
    fn the_users_own_system_has_the_users_name() {
        let scripts = |name: &str| command::Scripts { name: name.into(), up: "/bin/true".into(), down: None };
        let programs = Programs::default().with_scripts(vec![scripts("mine"), scripts("theirs")]);
        let all = Subject::all(&[Kind::Vpnd, Kind::Command], &[Cipher::Auto, Cipher::None], 2);
        let labels: Vec<_> = all.iter().map(|subject| subject.label_with(&programs)).collect();
        assert_eq!(
            labels,
            ["vpnd", "vpnd, no encryption", "mine", "mine, no encryption", "theirs", "theirs, no encryption"]
        );
    }

    #[test]
    fn a_cipher_that_a_system_does_not_have_is_refused_with_those_it_has() {
        let subject = Subject::new(Kind::None, Cipher::Aes256Gcm);
        let said = subject.check(&Programs::default()).unwrap_err().to_string();
        assert_eq!(
            said,
            "plain routing has no aes-256-gcm; it has none, and its own choice with `--cipher auto`"
        );
        assert!(Subject { cipher: Cipher::Auto, ..subject }.check(&Programs::default()).is_ok());
    }

    #[test]
    fn missing_programs_are_skipped_and_missing_kernel_modules_refused() {
        let programs = Programs::default().with("gotatun", "/nonexistent/gotatun".into());
        let subjects = |kinds: &[Kind]| Subject::all(kinds, &[Cipher::Auto], 0);
        assert!(Subject::check_all(&subjects(&[Kind::Gotatun, Kind::None]), &programs).is_ok());
        let nothing = Subject::check_all(&subjects(&[Kind::Gotatun]), &programs).unwrap_err().to_string();
        assert!(nothing.starts_with("nothing to measure: --program gotatun="), "{nothing}");
        let dco = Subject::check_all(&subjects(&[Kind::OpenvpnDco, Kind::None]), &programs);
        match kernel::check("it", &["ovpn"]) {
            Ok(()) => assert!(dco.is_ok()),
            Err(_) => assert!(matches!(dco, Err(SystemError::NoModule(_))), "{dco:?}"),
        }
    }

    #[test]
    fn ciphers_that_a_system_lacks_are_left_out_and_named_once_for_each_system() {
        let kinds = [Kind::Vpnd, Kind::WireguardGo, Kind::None];
        let filtered = |ciphers: &[Cipher]| {
            let all =
                Subject::with_priorities(&Subject::all(&kinds, ciphers, 0), &[Priority::Own, Priority::Same]);
            let (kept, said) = Subject::with_their_ciphers(&all);
            (kept.into_iter().map(Subject::label).collect::<Vec<_>>(), said)
        };
        let (kept, said) = filtered(&[Cipher::Aes256Gcm, Cipher::Aes128Gcm]);
        assert_eq!(kept.len(), 5, "vpnd with both and both priorities, and plain routing: {kept:?}");
        assert_eq!(
            said,
            [
                "wireguard-go has no aes-256-gcm, no aes-128-gcm and is not measured; it has chacha20-poly1305, and its own choice \
              with `--cipher auto`"
            ]
        );
        let (kept, said) = filtered(&[Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305]);
        assert!(kept.contains(&"wireguard-go, chacha20-poly1305".to_owned()), "{kept:?}");
        assert!(
            said.len() == 1 && said[0].contains("has no aes-256-gcm and is measured without"),
            "{said:?}"
        );
        assert_eq!(filtered(&[Cipher::Auto]).1, [""; 0]);
    }

    #[test]
    fn systems_and_programs_have_unique_names() {
        let labels: Vec<_> = Kind::value_variants().iter().map(|kind| kind.profile().label).collect();
        let programs: Vec<_> =
            Kind::value_variants().iter().flat_map(|kind| kind.profile().programs).collect();
        for (at, label) in labels.iter().enumerate() {
            assert!(!labels[..at].contains(label), "{label}");
        }
        for (at, program) in programs.iter().enumerate() {
            let same = programs[..at].iter().find(|other| other.name == program.name);
            assert!(same.is_none_or(|same| same == program), "{}", program.name);
        }
        for kind in Kind::value_variants() {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
