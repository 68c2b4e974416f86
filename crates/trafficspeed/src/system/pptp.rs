//! PPTP: pptpd at the gateway, pptp-linux at the clients, encrypted by the kernel's MPPE with keys
//! of 128 bits.
//!
//! Each client's packets go through its pppd's pseudo-terminal to a program that wraps them in GRE.
//! MPPE is RC4 without authentication and broken since 2012; it is here because the first
//! experiment had it. IPv4 only.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::daemon::{Daemon, Daemons};
use super::folder::Folder;
use super::program::{Program, Programs, Source};
use super::{ClientAddress, Profile, System, SystemError, SystemInfo, kernel};
use crate::interrupt::Interrupt;
use crate::lab::device::Device;
use crate::lab::namespace::{Namespace, PrivateDirectory};
use crate::lab::{Lab, LabError};

static PPTPD: Program = Program {
    name: "pptpd",
    version: &["--version"],
    places: &[],
    source: Source::Debian { packages: &["pptpd"] },
};

static PPTP: Program = Program {
    name: "pptp",
    version: &["--version"],
    places: &[],
    source: Source::Debian { packages: &["pptp-linux"] },
};

static PPPD: Program = Program {
    name: "pppd",
    version: &["--version"],
    places: &[],
    source: Source::Debian { packages: &["ppp"] },
};

const MODULES: &[&str] = &["ppp_generic", "ppp_async", "ppp_mppe"];
/// Where pptp has a socket for each server that it calls.
const SOCKETS: &str = "/run/pptp";
const DEVICE: &str = "ppp0";
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 91, 0, 1);
const NETWORK: &str = "10.91.0.0/16";
/// Headers of IP, GRE, PPP and MPPE, rounded up.
const OVERHEAD: u32 = 60;
/// Time that pptpd may take until it listens.
const SERVER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that a client may take once all are started.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);

/// PPTP before it runs.
pub const PROFILE: Profile = Profile {
    label: "PPTP",
    ciphers: &[],
    programs: &[&PPTPD, &PPTP, &PPPD],
    has_priority: false,
    adapter: |programs, _| Box::new(Pptp::new(programs)),
};

/// PPTP in a lab.
#[derive(Debug)]
struct Pptp {
    programs: Programs,
    facts: SystemInfo,
    daemons: Daemons,
}

impl Pptp {
    fn new(programs: &Programs) -> Self {
        Self { programs: programs.clone(), facts: SystemInfo::default(), daemons: Daemons::default() }
    }

    fn start_gateway(
        &mut self,
        folder: &Folder,
        lab: &Lab,
        secrets: &[String],
        mtu: u32,
        interrupt: &Interrupt,
    ) -> Result<(), SystemError> {
        let folder = folder.sub("gateway")?;
        let private = private_directories(&folder, &secrets.concat())?;
        let log = folder.path("pppd.log");
        let options = folder.write("ppp-options", &server_options(mtu, &log))?;
        let config = folder.write("pptpd.conf", &format!("localip {GATEWAY}\nconnections 254\n"))?;
        let (pppd, pid) = (self.programs.find(&PPPD)?, folder.path("pptpd.pid"));
        let arguments = [
            "--fg".as_ref(),
            "--delegate".as_ref(),
            "--noipparam".as_ref(),
            "--conf".as_ref(),
            config.as_os_str(),
            "--option".as_ref(),
            options.as_os_str(),
            "--ppp".as_ref(),
            pppd.as_os_str(),
            "--pidfile".as_ref(),
            pid.as_os_str(),
        ];
        let program = self.programs.find(&PPTPD)?;
        let log = folder.path("pptpd.log");
        let mut gateway = Daemon::start_with(&private, "pptpd", lab.gateway(), &program, arguments, &log)?;
        gateway.wait_until("does not listen", SERVER_TIMEOUT, interrupt, |_| {
            Ok(lab.gateway().within(listens)?.then_some(()))
        })?;
        self.daemons.gateway = Some(gateway);
        Ok(())
    }

    fn start_client(
        &mut self,
        folder: &Folder,
        number: u32,
        namespace: &Namespace,
        secret: &str,
        mtu: u32,
    ) -> Result<(), SystemError> {
        let name = user(number);
        let folder = folder.sub(&name)?;
        let private = private_directories(&folder, secret)?;
        let pptp = self.programs.find(&PPTP)?;
        let options = folder.write("ppp-options", &client_options(&name, &pptp, mtu))?;
        let arguments = ["file".as_ref(), options.as_os_str()];
        let (program, log) = (self.programs.find(&PPPD)?, folder.path("pppd.log"));
        let name = format!("pppd ({name})");
        self.daemons.clients.push(Daemon::start_with(&private, &name, namespace, &program, arguments, &log)?);
        Ok(())
    }

    /// Waits until a client encrypts and its device has its address, and gives it its route.
    fn finish_client(
        &mut self,
        number: u32,
        namespace: &Namespace,
        interrupt: &Interrupt,
    ) -> Result<ClientAddress, SystemError> {
        let client = &mut self.daemons.clients[number as usize - 1];
        let wanted = address(number);
        let failure = "has no encrypted connection with its address";
        let (cipher, mtu) = client.wait_until(failure, CLIENT_TIMEOUT, interrupt, |daemon| {
            let Some(cipher) = encryption(&daemon.output()) else { return Ok(None) };
            let devices = Device::all(namespace)?.into_iter();
            let mut own = devices.filter(|device| device.addresses.contains(&wanted.into()));
            Ok(own.next().map(|device| (cipher, device.mtu)))
        })?;
        namespace.ip(&["route", "add", NETWORK, "dev", DEVICE])?;
        (self.facts.cipher, self.facts.mtu) = (cipher, Some(mtu));
        Ok(ClientAddress { v4: Some(wanted), v6: None, device: DEVICE.to_owned() })
    }
}

/// Whether something listens at PPTP's port in the thread's namespace.
fn listens() -> Result<bool, LabError> {
    let path = "/proc/thread-self/net/tcp";
    let failed = |source| LabError::System { action: format!("reading {path}"), source };
    Ok(fs::read_to_string(path).map_err(failed)?.contains(":06BB 00000000:0000 0A"))
}

/// Directories that pppd and pptp of one host see instead of the machine's settings and sockets.
fn private_directories(folder: &Folder, secrets: &str) -> Result<[PrivateDirectory; 2], SystemError> {
    let (settings, sockets) = (folder.sub("etc-ppp")?, folder.sub("sockets")?);
    settings.write("chap-secrets", secrets)?;
    settings.write("options", "")?;
    fs::create_dir_all(SOCKETS)
        .map_err(|source| SystemError::Io { action: format!("making {SOCKETS}"), source })?;
    let directory = |own: &Folder, seen_as: &str| PrivateDirectory {
        own: own.directory().to_owned(),
        seen_as: PathBuf::from(seen_as),
    };
    Ok([directory(&settings, "/etc/ppp"), directory(&sockets, SOCKETS)])
}

fn user(number: u32) -> String {
    format!("client{number}")
}

/// The inner address of a client, from 1.
fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 91, 1, number as u8)
}

/// A line of chap-secrets: who, whom, secret, and the address that the gateway gives.
fn secret(number: u32, secret: [u64; 2]) -> String {
    let [a, b] = secret;
    format!("{} gateway {a:016x}{b:016x} {}\n", user(number), address(number))
}

/// Options of PPP at both ends; without MPPE of 128 bits neither goes on.
fn common_options(mtu: u32) -> String {
    format!(
        "refuse-pap\nrefuse-chap\nrefuse-mschap\nrefuse-eap\nrequire-mppe-128\nnobsdcomp\nnodeflate\nnovj\n\
         novjccomp\nnodefaultroute\nnoipv6\nmtu {mtu}\nmru {mtu}\n"
    )
}

fn server_options(mtu: u32, log: &Path) -> String {
    format!("name gateway\nrequire-mschap-v2\n{GATEWAY}:\n{}logfile {}\n", common_options(mtu), log.display())
}

fn client_options(name: &str, pptp: &Path, mtu: u32) -> String {
    let (pptp, gateway) = (pptp.display(), Lab::SERVICE_V4);
    format!(
        "pty \"{pptp} {gateway} --nolaunchpppd --nohostroute\"\nname {name}\nremotename gateway\nnoauth\n\
         noipdefault\nnodetach\n{}",
        common_options(mtu)
    )
}

/// The encryption that pppd says is in use.
fn encryption(log: &str) -> Option<String> {
    let line = log.lines().find(|line| line.starts_with("MPPE 128-bit") && line.ends_with("enabled"))?;
    Some(line.trim_end_matches(" compression enabled").to_owned())
}

impl System for Pptp {
    fn check(&self) -> Result<(), SystemError> {
        kernel::check("PPTP's data path", MODULES)?;
        PROFILE.programs.iter().try_for_each(|program| self.programs.find(program).map(drop))
    }

    fn bring_up(&mut self, lab: &Lab, interrupt: &Interrupt) -> Result<Vec<ClientAddress>, SystemError> {
        kernel::load(MODULES)?;
        self.facts.version = PPTPD.version_of(&self.programs.find(&PPTPD)?);
        self.facts.notes = vec![
            "MPPE authenticates nothing; pptpd and pptp carry GRE in user space, by pseudo-terminals".into(),
        ];
        let folder = Folder::make(lab, "pptp")?;
        let mtu = lab.link_mtu()? - OVERHEAD;
        let numbers = 1..=lab.clients().len() as u32;
        let secrets: Vec<String> = numbers.clone().map(|number| secret(number, rand::random())).collect();
        self.start_gateway(&folder, lab, &secrets, mtu, interrupt)?;
        for ((namespace, secret), number) in lab.clients().iter().zip(&secrets).zip(numbers.clone()) {
            self.start_client(&folder, number, namespace, secret, mtu)?;
        }
        let all = lab.clients().iter().zip(numbers);
        all.map(|(namespace, number)| self.finish_client(number, namespace, interrupt)).collect()
    }

    fn processes(&self) -> (Vec<u32>, Vec<u32>) {
        self.daemons.pids()
    }

    fn facts(&mut self) -> &mut SystemInfo {
        &mut self.facts
    }

    fn down(&mut self) {
        self.daemons.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_refuse_everything_but_mppe_of_128_bits() {
        let server = server_options(1_440, Path::new("/lab/pppd.log"));
        let client = client_options("client1", Path::new("/usr/sbin/pptp"), 1_440);
        for text in [&server, &client] {
            assert!(text.contains("\nrequire-mppe-128\n") && text.contains("\nmtu 1440\n"), "{text}");
        }
        assert!(server.contains("require-mschap-v2\n") && server.ends_with("logfile /lab/pppd.log\n"));
        assert!(client.starts_with("pty \"/usr/sbin/pptp 198.18.0.1 --nolaunchpppd --nohostroute\"\n"));
        assert_eq!(secret(7, [1, 2]), "client7 gateway 00000000000000010000000000000002 10.91.1.7\n");
    }

    #[test]
    fn encryption_counts_once_pppd_has_it() {
        let log =
            "Using interface ppp0\nMPPE 128-bit stateless compression enabled\nlocal  IP address 10.91.1.1\n";
        assert_eq!(encryption(log).as_deref(), Some("MPPE 128-bit stateless"));
        assert_eq!(encryption("MPPE required but peer negotiation failed\n"), None);
        assert_eq!(encryption("MPPE 40-bit stateless compression enabled\n"), None);
    }
}
