//! SoftEther VPN 5: a virtual hub in the server's own process, and clients whose virtual Ethernet
//! devices it switches.
//!
//! Its programs keep state, locks and control files at fixed places, so every process sees
//! directories of the lab there. Both ends are set up by `vpncmd`, as a user would. Each program
//! forks once: its first process only waits for the one that works.

pub mod script;
pub mod status;

use std::ffi::OsStr;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::buffers::set_queues;
use super::daemon::Daemon;
use super::folder::Folder;
use super::program::{Program, Programs, Source};
use super::{
    Cipher, ClientAddress, Priority, Profile, Subject, System, SystemError, SystemInfo, check_tun, pause,
};
use crate::interrupt::Interrupt;
use crate::lab::device::Device;
use crate::lab::namespace::{Namespace, PrivateDirectory};
use crate::lab::{Lab, tool};
use crate::observe::children_of;
use script::{BRIDGE_DEVICE, DEVICE, Transport};
use status::Status;

/// Time that a program may take until it answers to commands.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Time that one set of commands may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that a client may take until its transport is complete; UDP acceleration needs up to 20 s.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a client is asked; the answer costs the CPU a tenth of a second.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// Where its programs keep what only one of them may have. The last hides where the lab itself is.
const PLACES: [(&str, &str); 4] =
    [("lib", "/var/lib"), ("log", "/var/log"), ("tmp", "/tmp"), ("run", "/run")];

/// Starts a program that can't put itself before others, as the server does with nice -20. Its own
/// setting against that is in a file that it writes, at its start, with all others.
const WITHOUT_PRIORITY: [&str; 5] =
    ["prlimit", "--nice=0", "setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice"];

const SOURCE: Source =
    Source::Debian { packages: &["softether-vpnserver", "softether-vpnclient", "softether-vpncmd"] };

static SERVER: Program = Program { name: "vpnserver", version: &[], places: &[], source: SOURCE };
static CLIENT: Program = Program { name: "vpnclient", version: &[], places: &[], source: SOURCE };
static COMMAND: Program = Program { name: "vpncmd", version: &[], places: &[], source: SOURCE };

/// SoftEther over its TCP connections, before it runs.
pub const PROFILE: Profile = Profile {
    label: "SoftEther",
    ciphers: &[Cipher::Aes256Gcm, Cipher::None],
    programs: &[&SERVER, &CLIENT, &COMMAND],
    has_priority: true,
    adapter: |programs, subject| Box::new(SoftEther::new(programs.clone(), subject, Transport::Tcp)),
};

/// SoftEther with UDP acceleration, before it runs.
pub const UDP_PROFILE: Profile = Profile {
    label: "SoftEther, UDP acceleration",
    ciphers: &[Cipher::None],
    adapter: |programs, subject| Box::new(SoftEther::new(programs.clone(), subject, Transport::Udp)),
    ..PROFILE
};

/// SoftEther in a lab.
#[derive(Debug)]
pub struct SoftEther {
    programs: Programs,
    cipher: Cipher,
    priority: Priority,
    transport: Transport,
    facts: SystemInfo,
    clients: Vec<Host>,
    gateway: Option<Host>,
}

/// One of its processes and what is needed to command it.
#[derive(Debug)]
struct Host {
    daemon: Daemon,
    namespace: Namespace,
    folder: Folder,
    command: PathBuf,
    /// Where vpncmd finds it.
    target: [&'static str; 2],
}

impl SoftEther {
    fn new(programs: Programs, subject: Subject, transport: Transport) -> Self {
        let (cipher, priority, facts) = (subject.cipher, subject.priority, SystemInfo::default());
        Self { programs, cipher, priority, transport, facts, clients: Vec::new(), gateway: None }
    }

    fn start(
        &self,
        program: &Program,
        folder: &Folder,
        name: &str,
        namespace: &Namespace,
        target: [&'static str; 2],
    ) -> Result<Host, SystemError> {
        let (path, command) = (self.programs.find(program)?, self.programs.find(&COMMAND)?);
        let folder = folder.sub(name)?;
        let private = private_directories(&folder)?;
        let name = format!("{} ({name})", program.name);
        let log = folder.path("out.log");
        let unshare = tool("unshare", "util-linux")?;
        // The process that works is a grandchild, which no signal of ours reaches; a process
        // namespace ends with its first process, and that with the one that we start.
        let mut words = vec!["--pid", "--fork", "--kill-child"];
        if self.priority == Priority::Same {
            words.extend(WITHOUT_PRIORITY);
        }
        let own = words.into_iter().map(OsStr::new);
        let arguments = own.chain([path.as_os_str(), "execsvc".as_ref()]);
        let daemon = Daemon::start_with(&private, &name, namespace, &unshare, arguments, &log)?;
        Ok(Host { daemon, namespace: namespace.clone(), folder, command, target })
    }

    /// Waits until a client's transport is complete and gives its device its addresses; checks what
    /// it negotiated.
    fn finish_client(&mut self, at: usize, interrupt: &Interrupt) -> Result<ClientAddress, SystemError> {
        let client = &mut self.clients[at];
        let deadline = Instant::now() + CLIENT_TIMEOUT;
        let status = loop {
            let text = client.run_commands("status", script::STATUS, interrupt)?;
            let status = Status::read(&text);
            if status.is_complete(self.transport) {
                break status;
            }
            if Instant::now() > deadline {
                return Err(client.daemon.failed(&format!("is not fully connected: {}", status.state())));
            }
            let next = Instant::now() + ASK_EVERY;
            while Instant::now() < next {
                client.daemon.must_run()?;
                pause(interrupt)?;
            }
        };
        let protection = status.protection();
        let other = match self.cipher {
            Cipher::None => status.is_encrypted(),
            Cipher::Aes256Gcm => !protection.contains("AES_256_GCM"),
            _ => false,
        };
        if other {
            return Err(client.daemon.failed(&format!("uses {protection}, not {}", self.cipher.name())));
        }
        self.facts.cipher = match self.transport {
            Transport::Udp if status.is_encrypted() => {
                format!("{protection} for TCP; that of UDP acceleration is not shown")
            }
            _ => protection.to_owned(),
        };
        let number = at as u32 + 1;
        let address = give_addresses(&client.namespace, DEVICE, (inner_v4(number), inner_v6(number)))?;
        let device = Device::all(&client.namespace)?.into_iter().find(|device| device.name == DEVICE);
        self.facts.mtu = device.map(|device| device.mtu);
        Ok(address)
    }
}

impl Host {
    /// Runs commands and returns what vpncmd said; every command must succeed.
    fn run_commands(&self, name: &str, commands: &str, interrupt: &Interrupt) -> Result<String, SystemError> {
        let mut vpncmd = self.start_command(name, commands)?;
        vpncmd.wait_for_success(COMMAND_TIMEOUT, interrupt)?;
        let said = vpncmd.output();
        if script::is_refused(&said) { Err(vpncmd.failed("was refused")) } else { Ok(said) }
    }

    fn start_command(&self, name: &str, commands: &str) -> Result<Daemon, SystemError> {
        let file = self.folder.path(&format!("{name}.txt"));
        if !file.exists() {
            self.folder.write(&format!("{name}.txt"), commands)?;
        }
        // Every answer has its own log; it leaves nothing but its cache in /tmp.
        let log = self.folder.path(&format!("{name}.log"));
        remove_old(&log)?;
        let own = self.folder.sub("command")?.directory().to_owned();
        let private = [PrivateDirectory { own, seen_as: "/tmp".into() }];
        let arguments = self.target.map(str::to_owned).into_iter().chain([format!("/IN:{}", file.display())]);
        Daemon::start_with(&private, "vpncmd", &self.namespace, &self.command, arguments, &log)
    }

    /// Waits until the process answers; returns its version in its own words.
    fn wait_for_answer(&mut self, interrupt: &Interrupt) -> Result<String, SystemError> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            match self.run_commands("about", script::ABOUT, interrupt) {
                Ok(said) => return Ok(script::version(&said).unwrap_or("version unknown").to_owned()),
                Err(SystemError::Start { .. }) => {}
                Err(other) => return Err(other),
            }
            self.daemon.must_run()?;
            if Instant::now() > deadline {
                return Err(self.daemon.failed("does not answer to vpncmd"));
            }
            pause(interrupt)?;
        }
    }
}

fn remove_old(path: &Path) -> Result<(), SystemError> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(SystemError::Io { action: format!("removing {}", path.display()), source })
        }
        _ => Ok(()),
    }
}

fn private_directories(folder: &Folder) -> Result<Vec<PrivateDirectory>, SystemError> {
    PLACES
        .iter()
        .map(|(own, seen_as)| {
            folder.sub(own)?.sub("softether")?;
            Ok(PrivateDirectory { own: folder.path(own), seen_as: PathBuf::from(seen_as) })
        })
        .collect()
}

/// Its own directories would hide a program that lies in the place of one of them.
fn must_stay_visible(program: &Path) -> Result<(), SystemError> {
    let Some((_, place)) = PLACES.iter().find(|(_, place)| program.starts_with(place)) else { return Ok(()) };
    Err(SystemError::Missing(format!(
        "{}: SoftEther's processes see a directory of the lab in the place of {place}; put the program elsewhere",
        program.display()
    )))
}

/// The hub only switches frames; addresses are its hosts' own business.
fn give_addresses(
    namespace: &Namespace,
    device: &str,
    (v4, v6): (Ipv4Addr, Ipv6Addr),
) -> Result<ClientAddress, SystemError> {
    namespace.add_addresses(device, &[format!("{v4}/16"), format!("{v6}/64")])?;
    Ok(ClientAddress { v4: Some(v4), v6: Some(v6), device: device.to_owned() })
}

/// The gateway's own inner addresses, which it has where it is an end of a measurement.
const GATEWAY: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(10, 89, 0, 1), Ipv6Addr::new(0xfd89, 0, 0, 0, 0, 0, 0, 1));

/// The inner IPv4 address of a client, from 1.
fn inner_v4(number: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 89, 1, number as u8)
}

/// The inner IPv6 address of a client, from 1.
fn inner_v6(number: u32) -> Ipv6Addr {
    Ipv6Addr::new(0xfd89, 0, 0, 0, 0, 0, 1, number as u16)
}

impl System for SoftEther {
    fn check(&self) -> Result<(), SystemError> {
        for program in PROFILE.programs {
            must_stay_visible(&self.programs.find(program)?)?;
        }
        check_tun()
    }

    fn bring_up(&mut self, lab: &Lab, interrupt: &Interrupt) -> Result<Vec<ClientAddress>, SystemError> {
        let folder = Folder::make(lab, "softether")?;
        let gateway = self.start(&SERVER, &folder, "server", lab.gateway(), script::SERVER_TARGET)?;
        let gateway = self.gateway.insert(gateway);
        self.facts.version = gateway.wait_for_answer(interrupt)?;
        self.facts.notes = vec![self.transport.note().to_owned()];
        let secrets: Vec<[u64; 2]> = lab.clients().iter().map(|_| rand::random()).collect();
        gateway.run_commands("hub", &script::hub(&secrets), interrupt)?;
        for (namespace, number) in lab.clients().iter().zip(1..) {
            let name = format!("client{number}");
            let host = self.start(&CLIENT, &folder, &name, namespace, script::CLIENT_TARGET)?;
            self.clients.push(host);
        }
        for ((host, secret), number) in self.clients.iter_mut().zip(&secrets).zip(1..) {
            host.wait_for_answer(interrupt)?;
            let commands = script::client(number, secret, self.transport, self.cipher != Cipher::None);
            host.run_commands("connect", &commands, interrupt)?;
        }
        (0..self.clients.len()).map(|at| self.finish_client(at, interrupt)).collect()
    }

    /// The hub has no address; a bridge joins it to a TAP device of the gateway.
    fn gateway_address(
        &mut self,
        lab: &Lab,
        interrupt: &Interrupt,
    ) -> Result<Option<ClientAddress>, SystemError> {
        let server = self.gateway.as_mut().expect("it is up");
        server.run_commands("bridge", script::BRIDGE, interrupt)?;
        server.daemon.wait_until("has no TAP device", START_TIMEOUT, interrupt, |_| {
            let mut devices = Device::all(lab.gateway())?.into_iter();
            Ok(devices.any(|device| device.name == BRIDGE_DEVICE).then_some(()))
        })?;
        // The device was made after the others had got their queues.
        set_queues(lab)?;
        self.facts.notes.push("a local bridge joins the gateway's own TAP device to the hub".to_owned());
        give_addresses(lab.gateway(), BRIDGE_DEVICE, GATEWAY).map(Some)
    }

    fn processes(&self) -> (Vec<u32>, Vec<u32>) {
        // The process started here is not SoftEther; its one child is, and the rest below that.
        let own = |host: &Host| children_of(host.daemon.pid());
        (self.gateway.iter().flat_map(own).collect(), self.clients.iter().flat_map(own).collect())
    }

    fn facts(&mut self) -> &mut SystemInfo {
        &mut self.facts
    }

    fn down(&mut self) {
        // The process started here only waits and ignores polite requests; all that is theirs ends
        // with it.
        for host in self.clients.iter_mut().chain(&mut self.gateway) {
            host.daemon.kill();
        }
        self.clients.clear();
        self.gateway = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_its_own_directories_would_hide_is_refused() {
        assert!(must_stay_visible(Path::new("/usr/bin/vpnserver")).is_ok());
        let said = must_stay_visible(Path::new("/var/lib/x/vpnserver")).unwrap_err().to_string();
        assert!(said.contains("in the place of /var/lib; put the program elsewhere"), "{said}");
    }

    #[test]
    fn inner_addresses_are_all_different() {
        let all: std::collections::HashSet<_> =
            (1..=crate::lab::MAX_CLIENTS).map(|n| (inner_v4(n), inner_v6(n))).collect();
        assert_eq!(all.len(), crate::lab::MAX_CLIENTS as usize);
        assert_eq!(inner_v6(254).to_string(), "fd89::1:fe");
        assert!(!all.contains(&GATEWAY), "the gateway's are its own");
    }
}
