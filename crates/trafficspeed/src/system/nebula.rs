//! Nebula with its gateway as the hub.
//!
//! Nebula is a mesh: hosts that know each other talk without a gateway. So that the gateway carries
//! everything, as those of the other systems do, clients reach each other by addresses that are
//! outside of the mesh and that only the gateway routes (`unsafe_routes`): it opens each packet,
//! and its kernel routes it back into its device. Clients name the gateway as their lighthouse,
//! which makes them begin the handshake.

pub mod config;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::daemon::{Daemon, Daemons};
use super::folder::Folder;
use super::program::{Program, Programs, Source};
use super::{Cipher, ClientAddress, Profile, Subject, System, SystemError, SystemInfo, check_tun};
use crate::interrupt::Interrupt;
use crate::lab::Lab;
use crate::lab::namespace::Namespace;
use config::{Host, Settings};

/// Time that a host may take until its device is there, and a client until it has a session.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for making one certificate.
const CERTIFICATE_TIMEOUT: Duration = Duration::from_secs(20);
/// Outer IPv4 and UDP headers, Nebula's header and the tag.
const OVERHEAD: u32 = 20 + 8 + 16 + 16;

/// The newest that Go 1.26 builds.
static NEBULA: Program = Program {
    name: "nebula",
    version: &["-version"],
    places: &[],
    source: Source::Go { module: "github.com/slackhq/nebula/cmd/nebula", version: "v1.11.0" },
};

static NEBULA_CERT: Program = Program {
    name: "nebula-cert",
    version: &["-version"],
    places: &[],
    source: Source::Go { module: "github.com/slackhq/nebula/cmd/nebula-cert", version: "v1.11.0" },
};

/// Nebula with its defaults, before it runs.
pub const PROFILE: Profile = Profile {
    label: "Nebula",
    ciphers: &[Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305],
    programs: &[&NEBULA, &NEBULA_CERT],
    has_priority: false,
    adapter: |programs, Subject { cipher, .. }| Box::new(Nebula::new(programs.clone(), cipher, false)),
};

/// Nebula with a queue for each core, before it runs.
pub const ROUTINES_PROFILE: Profile = Profile {
    label: "Nebula, routines",
    adapter: |programs, Subject { cipher, .. }| Box::new(Nebula::new(programs.clone(), cipher, true)),
    ..PROFILE
};

/// Nebula in a lab.
#[derive(Debug)]
pub struct Nebula {
    programs: Programs,
    cipher: Cipher,
    has_routines: bool,
    facts: SystemInfo,
    daemons: Daemons,
}

impl Nebula {
    fn new(programs: Programs, cipher: Cipher, has_routines: bool) -> Self {
        let facts = SystemInfo::default();
        Self { programs, cipher, has_routines, facts, daemons: Daemons::default() }
    }

    fn fill_facts(&mut self, program: &Path, settings: Settings) {
        let route = "packets between clients cross the gateway's device twice; its kernel routes them";
        let routines = format!("routines: {}", settings.routines);
        self.facts = SystemInfo {
            version: NEBULA.version_of(program).replace("Version:", "nebula"),
            cipher: settings.cipher_name().into(),
            mtu: Some(settings.mtu),
            notes: vec![route.to_owned(), routines],
        };
    }
}

fn start(
    program: &Path,
    folder: &Folder,
    namespace: &Namespace,
    host: Host,
    text: &str,
) -> Result<Daemon, SystemError> {
    let name = host.name();
    let configuration = folder.write(&format!("{name}.yml"), text)?;
    let arguments = ["-config".as_ref(), configuration.as_os_str()];
    Daemon::start(
        &format!("nebula ({name})"),
        namespace,
        program,
        arguments,
        &folder.path(&format!("{name}.log")),
    )
}

/// Makes the authority, and a certificate for each host.
fn certify(
    program: &Path,
    folder: &Folder,
    lab: &Lab,
    hosts: &[Host],
    interrupt: &Interrupt,
) -> Result<(), SystemError> {
    let run = |name: &str, arguments: Vec<PathBuf>| {
        let log = folder.path("certificates.log");
        Daemon::start(&format!("nebula-cert ({name})"), lab.gateway(), program, arguments, &log)?
            .wait_for_success(CERTIFICATE_TIMEOUT, interrupt)
    };
    run("authority", config::authority(folder.directory()))?;
    hosts.iter().try_for_each(|host| run(&host.name(), host.certificate(folder.directory())))
}

/// Gives a client the addresses that it is known by, and the way to the others.
fn give_addresses(namespace: &Namespace, host: Host) -> Result<ClientAddress, SystemError> {
    let (v4, v6) = host.known_by();
    let device = config::DEVICE;
    namespace.add_addresses(device, &[IpAddr::from(v4), IpAddr::from(v6)])?;
    namespace.ip(&["route", "add", config::CLIENTS_V4, "dev", device, "src", &v4.to_string()])?;
    namespace.ip(&["-6", "route", "add", config::CLIENTS_V6, "dev", device, "src", &v6.to_string()])?;
    Ok(ClientAddress { v4: Some(v4), v6: Some(v6), device: device.to_owned() })
}

impl System for Nebula {
    fn check(&self) -> Result<(), SystemError> {
        self.programs.find(&NEBULA)?;
        self.programs.find(&NEBULA_CERT)?;
        check_tun()
    }

    fn bring_up(&mut self, lab: &Lab, interrupt: &Interrupt) -> Result<Vec<ClientAddress>, SystemError> {
        let program = self.programs.find(&NEBULA)?;
        let folder = Folder::make(lab, "nebula")?;
        let clients: Vec<Host> = (1..=lab.clients().len() as u32).map(Host::Client).collect();
        let hosts = [&[Host::Gateway], &clients[..]].concat();
        certify(&self.programs.find(&NEBULA_CERT)?, &folder, lab, &hosts, interrupt)?;

        let settings = Settings {
            cipher: self.cipher,
            mtu: lab.link_mtu()? - OVERHEAD,
            routines: if self.has_routines {
                std::thread::available_parallelism().map_or(1, Into::into)
            } else {
                1
            },
        };
        self.fill_facts(&program, settings);
        let text = config::gateway(settings, folder.directory(), clients.len() as u32);
        let mut gateway = start(&program, &folder, lab.gateway(), Host::Gateway, &text)?;
        gateway.wait_until("did not become ready", START_TIMEOUT, interrupt, |daemon| {
            Ok(config::is_ready(&daemon.output()).then_some(()))
        })?;
        self.daemons.gateway = Some(gateway);
        for (host, namespace) in clients.iter().zip(lab.clients()) {
            let text = config::client(settings, folder.directory(), *host);
            self.daemons.clients.push(start(&program, &folder, namespace, *host, &text)?);
        }
        for client in &mut self.daemons.clients {
            client.wait_until("made no handshake with the gateway", START_TIMEOUT, interrupt, |daemon| {
                Ok(config::has_session(&daemon.output()).then_some(()))
            })?;
        }
        clients.iter().zip(lab.clients()).map(|(host, namespace)| give_addresses(namespace, *host)).collect()
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
