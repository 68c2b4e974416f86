//! strongSwan with ESP in user space: charon with its kernel-libipsec plugin, IKEv2 with a
//! pre-shared key.
//!
//! Every host has one charon with its own configuration, control socket and log in the lab's
//! directory, so nothing of the machine's own strongSwan is read or touched. The gateway's kernel
//! routes between the clients: a packet leaves its charon by the TUN device and comes back through
//! it. What was negotiated is read from the security associations themselves.

pub mod config;
pub mod status;

use std::ffi::OsString;
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::daemon::Daemon;
use super::folder::Folder;
use super::program::{Program, Programs, Source};
use super::{Cipher, ClientAddress, Profile, System, SystemError, SystemInfo, check_tun};
use crate::interrupt::Interrupt;
use crate::lab::device::Device;
use crate::lab::namespace::Namespace;
use crate::lab::{Lab, run_tool, tool};
use config::DEVICE;

/// Time that a charon may take until it listens to commands.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Time that one client may take to be connected once it was told to.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);
/// Seconds that one command of swanctl may take.
const COMMAND_SECONDS: &str = "20";

const SOURCE: Source = Source::Debian {
    packages: &[
        "charon-systemd",
        "strongswan-swanctl",
        "libcharon-extra-plugins",
        "libstrongswan-standard-plugins",
    ],
};

/// It says its version below a line for each plugin that is not installed, so its package is asked.
static SWANCTL: Program = Program { name: "swanctl", version: &[], places: &[], source: SOURCE };

/// The charon that needs no systemd, only its name: it reads one configuration file and keeps no
/// no state.
static CHARON: Program = Program { name: "charon-systemd", version: &[], places: &[], source: SOURCE };

/// Not a program, but as necessary as one.
static LIBIPSEC: Program = Program {
    name: "libstrongswan-kernel-libipsec.so",
    version: &[],
    places: &["/usr/lib/ipsec/plugins", "/usr/lib/strongswan/plugins", "/usr/lib64/strongswan/plugins"],
    source: SOURCE,
};

/// strongSwan before it runs.
pub const PROFILE: Profile = Profile {
    label: "strongSwan",
    ciphers: &[
        Cipher::Aes128Gcm,
        Cipher::Aes256Gcm,
        Cipher::ChaCha20Poly1305,
        Cipher::AuthOnly,
        Cipher::Aes256CbcHmacSha256,
    ],
    programs: &[&SWANCTL, &CHARON, &LIBIPSEC],
    has_priority: false,
    adapter: |programs, subject| Box::new(StrongSwan::new(programs.clone(), subject.cipher)),
};

/// strongSwan in a lab.
#[derive(Debug)]
pub struct StrongSwan {
    programs: Programs,
    cipher: Cipher,
    facts: SystemInfo,
    clients: Vec<Host>,
    gateway: Option<Host>,
}

/// One charon with its files.
#[derive(Debug)]
struct Host {
    charon: Daemon,
    folder: Folder,
    swanctl: PathBuf,
}

impl StrongSwan {
    fn new(programs: Programs, cipher: Cipher) -> Self {
        Self { programs, cipher, facts: SystemInfo::default(), clients: Vec::new(), gateway: None }
    }

    fn start(&self, folder: &Folder, name: &str, namespace: &Namespace) -> Result<Host, SystemError> {
        let (charon, swanctl) = (self.programs.find(&CHARON)?, self.programs.find(&SWANCTL)?);
        let env = tool("env", "coreutils")?;
        let folder = folder.sub(name)?;
        let config = folder.write("strongswan.conf", &config::daemon(&folder.path("vici")))?;
        let mut setting = OsString::from("STRONGSWAN_CONF=");
        setting.push(&config);
        let log = folder.path("charon.log");
        let arguments = [setting.as_os_str(), charon.as_os_str()];
        let charon = Daemon::start(&format!("charon ({name})"), namespace, &env, arguments, &log)?;
        Ok(Host { charon, folder, swanctl })
    }

    /// Waits until a client's association stands and its device has its addresses; checks what it
    /// negotiated.
    fn finish_client(
        &mut self,
        number: usize,
        namespace: &Namespace,
        interrupt: &Interrupt,
    ) -> Result<ClientAddress, SystemError> {
        let Host { charon, folder, swanctl } = &mut self.clients[number];
        let failure = "has no association with the gateway";
        let (esp, device) = charon.wait_until(failure, CLIENT_TIMEOUT, interrupt, |_| {
            let Some(esp) = status::installed(&ask(swanctl, folder, &["--list-sas"])?) else {
                return Ok(None);
            };
            let device = Device::all(namespace)?.into_iter().find(|device| device.name == DEVICE);
            let wanted = config::client_addresses(number as u32 + 1);
            let device = device.filter(|device| wanted.iter().all(|found| device.addresses.contains(found)));
            Ok(device.map(|device| (esp, device)))
        })?;
        if let Some(wanted) = config::proposal(self.cipher).filter(|wanted| wanted.shown != esp) {
            return Err(charon.failed(&format!("uses {esp}, not {}", wanted.shown)));
        }
        let library = status::library(&ask(swanctl, folder, &["--list-algs"])?, &esp);
        self.facts.cipher = library.map_or_else(|| esp.clone(), |library| format!("{esp} ({library})"));
        self.facts.mtu = Some(device.mtu);
        let (v4, v6) = (config::client_v4(number as u32 + 1), config::client_v6(number as u32 + 1));
        Ok(ClientAddress { v4: Some(v4), v6: Some(v6), device: DEVICE.to_owned() })
    }
}

impl Host {
    /// Waits until charon listens, then gives it its configuration.
    fn configure(&mut self, text: &str, interrupt: &Interrupt) -> Result<(), SystemError> {
        let socket = self.folder.path("vici");
        self.charon.wait_until("does not listen to commands", START_TIMEOUT, interrupt, |_| {
            Ok(UnixStream::connect(&socket).is_ok().then_some(()))
        })?;
        let file = self.folder.write("swanctl.conf", text)?;
        let file = file.to_string_lossy();
        ask(&self.swanctl, &self.folder, &["--load-all", "--noprompt", "--file", &file]).map(drop)
    }
}

/// Runs a command of swanctl; it reads nothing but the files of this host.
fn ask(swanctl: &Path, folder: &Folder, words: &[&str]) -> Result<String, SystemError> {
    let socket = format!("unix://{}", folder.path("vici").display());
    let mut command = Command::new("timeout");
    command
        .arg(COMMAND_SECONDS)
        .arg(swanctl)
        .args(words)
        .args(["--uri", &socket])
        .env("STRONGSWAN_CONF", folder.path("strongswan.conf"))
        .env("SWANCTL_DIR", folder.directory());
    Ok(run_tool(&mut command)?)
}

impl System for StrongSwan {
    fn check(&self) -> Result<(), SystemError> {
        for program in PROFILE.programs {
            self.programs.find(program)?;
        }
        check_tun()
    }

    fn bring_up(&mut self, lab: &Lab, interrupt: &Interrupt) -> Result<Vec<ClientAddress>, SystemError> {
        self.facts.version = SWANCTL.version_of(&self.programs.find(&SWANCTL)?);
        self.facts.notes = vec![
            "ESP in user space (kernel-libipsec), in UDP".to_owned(),
            "packets between clients cross the gateway's device twice; its kernel routes them".to_owned(),
        ];
        // An association for a subnet needs its own address in it, or charon refuses its route.
        let own: [IpAddr; 2] = [config::GATEWAY_V4.into(), config::GATEWAY_V6.into()];
        lab.gateway().add_addresses("lo", &own)?;
        let folder = Folder::make(lab, "strongswan")?;
        self.gateway = Some(self.start(&folder, "gateway", lab.gateway())?);
        for (namespace, number) in lab.clients().iter().zip(1..) {
            let host = self.start(&folder, &format!("client{number}"), namespace)?;
            self.clients.push(host);
        }
        let secrets: Vec<[u64; 4]> = lab.clients().iter().map(|_| rand::random()).collect();
        let gateway = self.gateway.as_mut().expect("it was just started");
        gateway.configure(&config::gateway(self.cipher, &secrets), interrupt)?;
        for ((host, secret), number) in self.clients.iter_mut().zip(&secrets).zip(1..) {
            host.configure(&config::client(self.cipher, number, secret), interrupt)?;
        }
        let numbered = lab.clients().iter().enumerate();
        numbered.map(|(number, namespace)| self.finish_client(number, namespace, interrupt)).collect()
    }

    /// They are not on the device: charon refuses the route of an association without an address of
    /// its own, and has no pool for the gateway.
    fn gateway_address(&mut self, _: &Lab, _: &Interrupt) -> Result<Option<ClientAddress>, SystemError> {
        let (v4, v6) = (Some(config::GATEWAY_V4), Some(config::GATEWAY_V6));
        Ok(Some(ClientAddress { v4, v6, device: DEVICE.to_owned() }))
    }

    fn processes(&self) -> (Vec<u32>, Vec<u32>) {
        let pid = |host: &Host| host.charon.pid();
        (self.gateway.iter().map(pid).collect(), self.clients.iter().map(pid).collect())
    }

    fn facts(&mut self) -> &mut SystemInfo {
        &mut self.facts
    }

    fn down(&mut self) {
        for host in self.clients.iter_mut().chain(&mut self.gateway) {
            host.charon.ask_to_end();
        }
        self.clients.clear();
        self.gateway = None;
    }
}
